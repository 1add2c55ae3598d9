//! Addresses at which huge pages are shown to whoever uses them.

use core::fmt;
use core::ptr::NonNull;
use framewright::units::PfnRange;

/// Why a page is not shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowError {
    /// There is no such place in the window, or something is there.
    NoPlace,
    /// There is no memory for page tables.
    OutOfMemory,
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPlace => "the window has no such place",
            Self::OutOfMemory => "no memory is left for page tables",
        })
    }
}

impl core::error::Error for WindowError {}

/// Addresses of their own for huge pages, the same on all CPUs.
///
/// # Safety
/// What [`show`](Self::show) returns is where the page's memory is, readable and writable on every
/// CPU, until [`hide_all`](Self::hide_all) begins; what is shown at other places lies elsewhere
/// (invariant 40).
pub unsafe trait Window: Sync {
    /// Shows a page of a pool at the place of this number, counted in pages of its size; returns
    /// the address of its first byte. The page is the caller's.
    ///
    /// # Errors
    /// See [`WindowError`]; nothing has changed then.
    fn show(&self, place: u64, page: PfnRange) -> Result<NonNull<u8>, WindowError>;

    /// Takes all away that is shown, and says how many frames its page tables still have: none,
    /// unless something is wrong.
    fn hide_all(&self) -> u64;
}
