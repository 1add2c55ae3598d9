//! Lists of pages that lie in the pages themselves. The first words of a page name the next page,
//! with a seal, so that a link that another owner has overwritten is detected and not followed.
//!
//! Orders of memory: Relaxed: one owner at a time reads and writes a list, and a page that wrongly
//! has two owners is no data race.

use crate::random::mix;
use crate::stamp::word;
use core::sync::atomic::Ordering;
use framewright::Platform;
use framewright::units::Pfn;

/// The word with the next page, plus one, and the word with its seal.
const NEXT: u64 = 0;
const SEAL: u64 = 1;

/// A page does not hold the link that was written there.
pub(crate) struct Broken;

/// Writes which page follows `page`.
pub(crate) fn set<P: Platform>(platform: &P, page: Pfn, next: Option<Pfn>) {
    let next = next.map_or(0, |next| next.0 + 1);
    word(platform, page, NEXT).store(next, Ordering::Relaxed);
    word(platform, page, SEAL).store(seal(page, next), Ordering::Relaxed);
}

/// Returns the page that follows `page`.
///
/// # Errors
/// Another owner wrote there.
pub(crate) fn get<P: Platform>(platform: &P, page: Pfn) -> Result<Option<Pfn>, Broken> {
    let next = word(platform, page, NEXT).load(Ordering::Relaxed);
    if word(platform, page, SEAL).load(Ordering::Relaxed) != seal(page, next) {
        return Err(Broken);
    }
    Ok(next.checked_sub(1).map(Pfn))
}

const fn seal(page: Pfn, next: u64) -> u64 {
    mix(page.0 ^ mix(next.wrapping_add(0x5bd1)))
}
