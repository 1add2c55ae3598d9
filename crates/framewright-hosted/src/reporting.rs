//! Gives free memory back to the operating system: a device for free page reports made of
//! `madvise`.
//!
//! It answers at once. All ranges of a report go into one system call if the system supports this,
//! otherwise into one call each.

use crate::platform::{HostedError, HostedPlatform, OwnProcess};
use framewright::reporting::{Acknowledged, Content, Progress, ReportDevice, SubmitError};
use framewright::units::PhysRange;

/// How memory is given back to the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Advice {
    /// `MADV_DONTNEED`: at once. The memory reads as zero when next touched. For private memory.
    #[default]
    DontNeed,
    /// `MADV_FREE`: when the system needs it. Until then the memory keeps its content. For private
    /// memory.
    Free,
    /// `MADV_REMOVE`: at once, as a hole in the file behind the memory, which reads as zero when
    /// next touched. For shared memory.
    HolePunch,
}

impl Advice {
    const fn number(self) -> libc::c_int {
        match self {
            Self::DontNeed => libc::MADV_DONTNEED,
            Self::Free => libc::MADV_FREE,
            Self::HolePunch => libc::MADV_REMOVE,
        }
    }

    /// The name of the constant in madvise(2).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DontNeed => "MADV_DONTNEED",
            Self::Free => "MADV_FREE",
            Self::HolePunch => "MADV_REMOVE",
        }
    }

    /// Returns the advice that discards memory of `platform` at once.
    #[must_use]
    pub fn for_platform(platform: &HostedPlatform) -> Self {
        if platform.is_shared() { Self::HolePunch } else { Self::DontNeed }
    }
}

/// A device for free page reports; see the module documentation.
#[derive(Debug)]
pub struct MadviseDevice<'a> {
    platform: &'a HostedPlatform,
    advice: Advice,
    process: OwnProcess,
    answer: Acknowledged,
}

impl<'a> MadviseDevice<'a> {
    /// Makes a device for the memory of `platform`.
    ///
    /// # Errors
    /// [`HostedError::AdviceDoesNotFit`].
    ///
    /// # Safety
    /// The device is registered only with a manager of this platform's memory. Addresses that
    /// another manager reports would stand for memory here that somebody uses.
    pub unsafe fn new(platform: &'a HostedPlatform, advice: Advice) -> Result<Self, HostedError> {
        let shared = platform.is_shared();
        if shared != (advice == Advice::HolePunch) {
            return Err(HostedError::AdviceDoesNotFit { advice: advice.name(), shared });
        }
        Ok(Self { platform, advice, process: OwnProcess::default(), answer: Acknowledged::NONE })
    }
}

// SAFETY: everything is done when `submit` returns, and only to the ranges. Memory for which the
// system took `DontNeed` or `HolePunch` reads as zero (invariant 1).
unsafe impl ReportDevice for MadviseDevice<'_> {
    fn capacity(&self) -> usize {
        32
    }

    unsafe fn submit(&mut self, ranges: &[PhysRange]) -> Result<(), SubmitError> {
        let taken =
            // SAFETY: the caller upholds it: the ranges are not in use until this returns, and the
            // advice is done by then.
            unsafe { self.platform.advise(ranges, self.advice.number(), &mut self.process) };
        self.answer = Acknowledged(taken);
        if taken == 0 { Err(SubmitError::Failed) } else { Ok(()) }
    }

    fn poll(&mut self) -> Progress {
        Progress::Done(self.answer)
    }

    fn reset(&mut self) -> bool {
        true
    }

    fn content(&self) -> Content {
        match self.advice {
            Advice::DontNeed | Advice::HolePunch => Content::Zero,
            Advice::Free => Content::Undefined,
        }
    }
}
