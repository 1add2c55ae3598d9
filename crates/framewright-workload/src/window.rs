//! Addresses through which users of huge pages access them.

use core::fmt;
use core::ptr::NonNull;
use framewright::units::PfnRange;

/// Why a page could not be mapped in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowError {
    /// The window has no such place, or the place is in use.
    NoPlace,
    /// There is no memory for page tables.
    OutOfMemory,
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPlace => "the place is outside the window",
            Self::OutOfMemory => "no memory is left for page tables",
        })
    }
}

impl core::error::Error for WindowError {}

/// A range of addresses for huge pages, equal on all CPUs.
///
/// # Safety
/// [`show`](Self::show) returns an address of the page's memory, which is readable and writable on
/// every CPU until [`hide_all`](Self::hide_all) begins. Pages at different places have different
/// addresses (invariant 40).
pub unsafe trait Window: Sync {
    /// Maps a page of a pool at place `place`, counted in pages of this size, and returns the
    /// address of its first byte. The caller owns the page.
    ///
    /// # Errors
    /// See [`WindowError`]; nothing has changed then.
    fn show(&self, place: u64, page: PfnRange) -> Result<NonNull<u8>, WindowError>;

    /// Unmaps all pages, and returns how many frames the page tables still hold: none, unless
    /// something is wrong.
    ///
    /// # Safety
    /// Nobody uses an address that [`show`](Self::show) returned any more.
    unsafe fn hide_all(&self) -> u64;
}
