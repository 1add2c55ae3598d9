//! Ctrl-C and SIGTERM: noted here, and acted upon where there is something to clean up.

use crate::error::Error;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The time between two checks for a signal.
const GLANCE: Duration = Duration::from_millis(200);

static RECEIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    RECEIVED.store(signal, Ordering::Relaxed);
}

/// From now on the first SIGINT, SIGTERM or SIGHUP is only noted; the second kills as usual, in
/// case we are stuck. A signal that is ignored, as under `nohup`, stays ignored.
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

/// Sends the signal that has come to a child process that has not been waited for.
pub fn pass_on(child: u32) {
    let (signal, child) = (RECEIVED.load(Ordering::Relaxed), libc::pid_t::try_from(child));
    if let (1.., Ok(child @ 1..)) = (signal, child) {
        // SAFETY: no memory is involved; the process is a child that was not waited for, so that
        // its number is not another's.
        unsafe { libc::kill(child, signal) };
    }
}

/// Forgets an interrupt from the keyboard after it has ended the command that it was meant for, and
/// watches for the next one. Other signals stay noted.
pub fn forget_keyboard() {
    if RECEIVED.compare_exchange(libc::SIGINT, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        watch();
    }
}

/// Waits until something can be read from `input`, or it has ended. A signal that comes between the
/// check and the wait is found at the next check; a blocking read would miss it.
///
/// # Errors
/// Fails if a signal has come.
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
