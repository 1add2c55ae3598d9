//! Gives advice for many ranges of this process's memory in one call, `process_madvise`. A process
//! may give such advice for itself since Linux 6.13.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

/// Most ranges in one call.
const MAX_RANGES: usize = 32;

/// A pidfd of this process. In a child process it would still name the parent, so each process
/// opens its own.
#[derive(Debug, Default)]
pub(crate) struct OwnProcess {
    /// The process's number and its pidfd. `None` before the first call, and if the system lacks
    /// the call.
    opened: Option<(u32, File)>,
    tried: bool,
}

impl OwnProcess {
    fn open(&mut self) -> Option<libc::c_int> {
        let process = std::process::id();
        if !self.tried || self.opened.as_ref().is_some_and(|(owner, _)| *owner != process) {
            self.tried = true;
            self.opened = pidfd(process).ok().map(|file| (process, file));
        }
        self.opened.as_ref().map(|(_, file)| file.as_raw_fd())
    }

    /// Gives `advice` for ranges in order. Returns for how many ranges, from the first on, the
    /// system took it; 0 if the system lacks the call.
    ///
    /// # Safety
    /// The ranges lie in one mapping of this process, and no other code reads or writes them
    /// meanwhile or relies on their content.
    pub(super) unsafe fn advise(
        &mut self,
        ranges: &[(*mut u8, usize)],
        advice: libc::c_int,
    ) -> usize {
        if ranges.len() < 2
            || ranges.len() > MAX_RANGES
            || ranges.iter().any(|&(_, length)| length == 0)
        {
            return 0;
        }
        let Some(handle) = self.open() else { return 0 };
        let mut vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_RANGES];
        for (place, &(start, length)) in vector.iter_mut().zip(ranges) {
            *place = libc::iovec { iov_base: start.cast(), iov_len: length };
        }
        let (entries, call) = (vector.as_ptr(), libc::SYS_process_madvise);
        // SAFETY: the vector has at least that many entries, and the caller vouches for the ranges.
        // The handle is of this process.
        let result = unsafe { libc::syscall(call, handle, entries, ranges.len(), advice, 0_u32) };
        let Ok(mut bytes) = usize::try_from(result) else {
            // The call is not tried again in this process.
            self.opened = None;
            return 0;
        };
        ranges
            .iter()
            .take_while(|&&(_, length)| {
                let whole = bytes >= length;
                bytes = bytes.saturating_sub(length);
                whole
            })
            .count()
    }
}

fn pidfd(process: u32) -> io::Result<File> {
    // SAFETY: pidfd_open takes two integers and touches no memory of the process.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    let handle = libc::c_int::try_from(result)
        .ok()
        .filter(|&handle| handle >= 0)
        .ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { File::from_raw_fd(handle) })
}
