//! What a device that takes reports implements.

use crate::units::{Order, PhysRange};

/// Most ranges in one submission.
pub(crate) const MOST_RANGES: usize = 32;

/// What a device makes of memory that was reported to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Content {
    /// Nothing is promised. An acknowledgement by itself proves nothing: a host whose memory is
    /// locked acknowledges and keeps the content.
    #[default]
    Undefined,
    /// Reported memory reads as zero, every range of it that was acknowledged. With
    /// `init_on_free=1` others should be as they were, or zero: nothing clears them again except a
    /// request for cleared memory.
    Zero,
    /// Each page reads as zero or has the content that it had: memory that is zero when it is freed
    /// stays so, but what was never freed is not known to be zero. What a virtio balloon promises
    /// that was told that free pages are zero, since a host whose memory is locked keeps them.
    ZeroOrKept,
    /// Reported memory reads as [`POISON`](crate::debug::POISON), byte for byte, also where the
    /// device failed or was reset half-way.
    Poison,
}

/// Why nothing was submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// There is no room at this moment; the same may be tried soon.
    Busy,
    /// It failed; another attempt may be made later.
    Failed,
}

/// Which ranges of a submission the device has acknowledged: bit n is range n.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledged(pub u32);

impl Acknowledged {
    /// All of them.
    pub const ALL: Self = Self(u32::MAX);
    /// None.
    pub const NONE: Self = Self(0);

    /// Whether range `number` is.
    #[must_use]
    pub const fn has(self, number: usize) -> bool {
        number < MOST_RANGES && self.0 >> number & 1 != 0
    }
}

/// What became of the last submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The device has not answered.
    Pending,
    /// It has, and is done with all ranges, also with those that it did not acknowledge.
    Done(Acknowledged),
    /// It failed, and is done with all ranges.
    Failed,
}

/// A device that tells the hypervisor of free memory: a virtio balloon's reporting queue, or
/// `madvise` in a process.
///
/// No method waits. One submission is out at a time, and calls come from one place, so that `&mut
/// self` is all the exclusion that is needed.
///
/// # Safety
/// Memory of a submission may be discarded and overwritten from the call of
/// [`submit`](Self::submit) on. The implementer promises that nobody touches it on the device's
/// behalf any more once
/// * `submit` has returned an error, or
/// * [`poll`](Self::poll) has returned anything but [`Progress::Pending`], or
/// * [`reset`](Self::reset) has returned true;
///
/// that memory outside the ranges is never touched; and that what is acknowledged holds what
/// [`content`](Self::content) says.
pub unsafe trait ReportDevice {
    /// How many ranges one submission may hold; 0 and everything above 32 mean 32. It stays what it
    /// is.
    fn capacity(&self) -> usize;

    /// The smallest order that is worth a report, where the device knows; without it that is a
    /// block of 2 MiB. The parameter `page_reporting.page_reporting_order` takes precedence.
    fn order(&self) -> Option<Order> {
        None
    }

    /// Begins to report `ranges`: at least one, at most the capacity, of whole frames and with no
    /// frame in two. They belong to the device from now on unless this fails.
    ///
    /// # Errors
    /// See [`SubmitError`]. Then the device has none of the ranges.
    ///
    /// # Safety
    /// The caller owns the frames of all `ranges` (invariant 42) and nobody uses them, until this
    /// fails, [`poll`](Self::poll) has returned anything but [`Progress::Pending`], or
    /// [`reset`](Self::reset) has returned true: their content may be gone from now on. No other
    /// submission is out.
    unsafe fn submit(&mut self, ranges: &[PhysRange]) -> Result<(), SubmitError>;

    /// What became of the last submission. Asked while one is out, again and again; the first
    /// answer that is not [`Progress::Pending`] ends it.
    fn poll(&mut self) -> Progress;

    /// Brings the device to a state in which it has no memory of ours. True when that is done;
    /// otherwise it is called again until it is.
    fn reset(&mut self) -> bool;

    /// What reported memory holds.
    fn content(&self) -> Content {
        Content::Undefined
    }
}
