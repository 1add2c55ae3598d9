//! The one manager: made once, kept for ever.

use crate::error::*;
use crate::platform::Checked;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};
use framewright::Manager;

/// Nothing is there.
const NONE: u8 = 0;
/// One caller makes it, and has all of it to itself.
const MAKING: u8 = 1;
/// It is there, and stays.
const UP: u8 = 2;
/// As `MAKING`, and the platform is there.
const HAS_PLATFORM: u8 = 3;

/// A platform and its manager.
struct Instance {
    state: AtomicU8,
    platform: UnsafeCell<MaybeUninit<Checked>>,
    manager: UnsafeCell<MaybeUninit<Manager<Checked>>>,
}

// SAFETY: until the state is `UP` only the caller that set `MAKING` changes the cells, and each is
// only read from the state on that says that it is written (invariant 51).
unsafe impl Sync for Instance {}

static INSTANCE: Instance = Instance {
    state: AtomicU8::new(NONE),
    platform: UnsafeCell::new(MaybeUninit::uninit()),
    manager: UnsafeCell::new(MaybeUninit::uninit()),
};

/// The manager.
///
/// # Errors
/// It is not there yet.
#[inline]
pub(crate) fn manager() -> Result<&'static Manager<Checked>, fw_error> {
    // Acquire pairs with the Release in `make`: what was made is seen.
    if INSTANCE.state.load(Ordering::Acquire) != UP {
        return Err(FW_NOT_UP);
    }
    // SAFETY: it was written before the state became `UP`, and is only read since (invariant 51).
    let manager = unsafe { &*INSTANCE.manager.get() };
    // SAFETY: as above.
    Ok(unsafe { manager.assume_init_ref() })
}

/// The platform of the manager, or of one that is being made, if there is one.
#[cfg(framewright_archive)]
pub(crate) fn platform() -> Option<&'static Checked> {
    // Acquire pairs with the Release in `make`: what was written is seen.
    if !matches!(INSTANCE.state.load(Ordering::Acquire), HAS_PLATFORM | UP) {
        return None;
    }
    // SAFETY: it was written before the state became this, and is only read since (invariant 51).
    let platform = unsafe { &*INSTANCE.platform.get() };
    // SAFETY: as above.
    Some(unsafe { platform.assume_init_ref() })
}

/// Makes the manager with `work`, which gets the platform for ever, and a place to which it writes
/// the manager and which it returns. If it fails, nothing has happened.
///
/// # Errors
/// There is one already, one is being made, and those of `work`.
pub(crate) fn make(
    platform: Checked,
    work: impl FnOnce(
        &'static Checked,
        &'static mut MaybeUninit<Manager<Checked>>,
    ) -> Result<&'static mut Manager<Checked>, fw_error>,
) -> Result<(), fw_error> {
    // Acquire pairs with the Release below, where another caller failed: its writes are over.
    match INSTANCE.state.compare_exchange(NONE, MAKING, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {}
        Err(UP) => return Err(FW_ALREADY_UP),
        Err(_) => return Err(FW_BUSY),
    }
    // SAFETY: this caller has set `MAKING`, and a platform from before is in use nowhere, because
    // the work on it has failed (invariant 51).
    let platform: &Checked = unsafe { (*INSTANCE.platform.get()).write(platform) };
    INSTANCE.state.store(HAS_PLATFORM, Ordering::Release);
    // SAFETY: this caller has set `MAKING`, and a place from before is in use nowhere, as above; it
    // is read only when the state is `UP` (invariant 51).
    let place = unsafe { &mut *INSTANCE.manager.get() };
    let made = work(platform, place).map(drop);
    INSTANCE.state.store(if made.is_ok() { UP } else { NONE }, Ordering::Release);
    made
}
