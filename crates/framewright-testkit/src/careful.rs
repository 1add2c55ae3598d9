//! Whether tests run in careful mode, in which all checks are on and everything that no interface
//! promises is random.

use std::sync::OnceLock;

/// The environment variable that turns careful mode on; its value is the seed.
pub const CAREFUL: &str = "FRAMEWRIGHT_CAREFUL";

/// The seed, if this run is careful. Fake machines then have scattered memory, and tests bring up
/// managers with `careful=` and this seed.
///
/// # Panics
/// If the variable is set, but not to a number above 0.
#[must_use]
pub fn careful() -> Option<u64> {
    static SEED: OnceLock<Option<u64>> = OnceLock::new();
    *SEED.get_or_init(|| {
        let value = std::env::var(CAREFUL).ok()?;
        let seed = value.parse().ok().filter(|&seed| seed != 0);
        Some(seed.unwrap_or_else(|| panic!("{CAREFUL}={value}: it is a number above 0")))
    })
}
