//! A page with several owners (step 11 of `docs/porting.md`).

use framewright::units::{Order, PfnRange};
use framewright::{AllocateError, Manager, Platform, ReferenceError, Request};

/// Why a page is not shared.
#[derive(Debug)]
pub enum ShareError {
    /// There is no memory.
    Allocate(AllocateError),
    /// Another has frozen its count.
    Reference(ReferenceError),
}

impl From<AllocateError> for ShareError {
    fn from(error: AllocateError) -> Self {
        Self::Allocate(error)
    }
}

impl From<ReferenceError> for ShareError {
    fn from(error: ReferenceError) -> Self {
        Self::Reference(error)
    }
}

/// Shares a page by its number, and lets go of it.
///
/// # Errors
/// See [`ShareError`].
pub fn share<P: Platform>(manager: &Manager<P>) -> Result<(), ShareError> {
    let page: PfnRange = manager.allocate(&Request::new(Order::PAGE))?;
    // SAFETY: the page is ours, and used by nobody yet.
    if let Err(error) = unsafe { manager.references().start(page) } {
        // SAFETY: as above; it has no count.
        let freed = unsafe { manager.free(page) };
        debug_assert!(freed.is_ok());
        return Err(error.into());
    } // 1: ours
    manager.references().try_get(page.start)?; // 2: somebody found it by number
    for _ in 0..2 {
        // SAFETY: the two references are ours, and each is put once; the last one frees the page.
        unsafe { manager.references().put(page.start) }?;
    }
    // By number alone, at any time: an error, never a wrong page.
    let gone = manager.references().try_get(page.start);
    assert!(matches!(gone, Err(ReferenceError::Frozen(_) | ReferenceError::NotCounted(_))));
    Ok(())
}
