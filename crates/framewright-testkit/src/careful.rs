//! Whether tests run in careful mode: everything that finds mistakes is on, and what nothing
//! promises is left to chance.

use std::sync::OnceLock;

/// The environment variable that turns it on; its value is the seed.
pub const CAREFUL: &str = "FRAMEWRIGHT_CAREFUL";

/// The seed, when this run is careful. Fake machines then lie scattered, and tests bring managers
/// up with `careful=` and this seed.
///
/// # Panics
/// When the variable is set to something that is no number above 0.
#[must_use]
pub fn careful() -> Option<u64> {
    static SEED: OnceLock<Option<u64>> = OnceLock::new();
    *SEED.get_or_init(|| {
        let value = std::env::var(CAREFUL).ok()?;
        let seed = value.parse().ok().filter(|&seed| seed != 0);
        Some(seed.unwrap_or_else(|| panic!("{CAREFUL}={value}: it is a number above 0")))
    })
}
