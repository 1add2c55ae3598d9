//! Ctrl-C and SIGTERM: noted here, acted upon where there is something to clean up.

use crate::error::Error;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// From look to look.
const GLANCE: Duration = Duration::from_millis(200);

static RECEIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    RECEIVED.store(signal, Ordering::Relaxed);
}

/// From now on the first SIGINT, SIGTERM or SIGHUP is only noted; the second kills as ever, should
/// we be stuck. One that is ignored, as `nohup` has it, stays so.
pub fn watch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all zeros is a valid sigaction, as below.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: nothing is changed, and the place for the answer is live.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
        if asked == 0 && before.sa_sigaction == libc::SIG_IGN {
            continue;
        }
        // SAFETY: all zeros is a valid sigaction: no flags, an empty mask, the default action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESETHAND;
        // SAFETY: the handler only stores to an atomic, which is allowed in any context.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Whether a signal has come.
pub fn has_come() -> bool {
    RECEIVED.load(Ordering::Relaxed) != 0
}

/// Sends the signal that has come to a process that this one started and has not waited for.
pub fn pass_on(child: u32) {
    let (signal, child) = (RECEIVED.load(Ordering::Relaxed), libc::pid_t::try_from(child));
    if let (1.., Ok(child @ 1..)) = (signal, child) {
        // SAFETY: no memory is involved; the process is a child that was not waited for, so that
        // its number is not another's.
        unsafe { libc::kill(child, signal) };
    }
}

/// Forgets an interrupt from the keyboard, which has ended what it was meant for, and watches for
/// the next. Other signals stay.
pub fn forget_keyboard() {
    if RECEIVED.compare_exchange(libc::SIGINT, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        watch();
    }
}

/// Waits until something can be read from `input`, or it has ended. A signal that comes between the
/// look for one and the wait is found at the next look: a read would not see it.
///
/// # Errors
/// A signal has come.
pub fn wait_for(input: &impl AsRawFd) -> Result<(), Error> {
    loop {
        check()?;
        if is_readable(input, GLANCE) {
            return Ok(());
        }
    }
}

/// Whether something can be read from `input`, or it has ended, within `wait`.
pub fn is_readable(input: &impl AsRawFd, wait: Duration) -> bool {
    let mut wanted = libc::pollfd { fd: input.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds = libc::c_int::try_from(wait.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: one entry, which is live. What goes wrong, the read that follows will say.
    (unsafe { libc::poll(&raw mut wanted, 1, milliseconds) }) > 0
}

/// Fails once a signal has come.
pub fn check() -> Result<(), Error> {
    match RECEIVED.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Error::Interrupted(signal)),
    }
}
