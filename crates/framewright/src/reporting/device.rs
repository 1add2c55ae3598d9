//! The interface of a device that takes reports.

use crate::units::{Order, PhysRange};

/// The most ranges in one submission.
pub(crate) const MOST_RANGES: usize = 32;

/// What a device makes of the content of reported memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Content {
    /// Nothing is promised. An acknowledgement alone proves nothing: a host whose memory is locked
    /// acknowledges and keeps the content.
    #[default]
    Undefined,
    /// Every acknowledged range of reported memory reads as zero. With `init_on_free=1` ranges that
    /// were not acknowledged must be unchanged or zero: nothing clears them again except a request
    /// for cleared memory.
    Zero,
    /// Each page reads as zero or has its old content: memory that was zero when it was freed stays
    /// zero, but memory that was never freed is not known to be zero. A virtio balloon that was
    /// told that free pages are zero promises this, because a host whose memory is locked keeps
    /// their content.
    ZeroOrKept,
    /// Reported memory reads as [`POISON`](crate::debug::POISON), byte for byte, even if the device
    /// failed or was reset half-way.
    Poison,
}

/// Why nothing was submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// There is no room at the moment; try the submission again soon.
    Busy,
    /// It failed; try again later.
    Failed,
}

/// Which ranges of a submission the device has acknowledged: bit n is range n.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledged(pub u32);

impl Acknowledged {
    /// All ranges.
    pub const ALL: Self = Self(u32::MAX);
    /// No range.
    pub const NONE: Self = Self(0);

    /// Returns whether range `number` was acknowledged.
    #[must_use]
    pub const fn has(self, number: usize) -> bool {
        number < MOST_RANGES && self.0 >> number & 1 != 0
    }
}

/// The state of the last submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The device has not answered.
    Pending,
    /// It has answered and is done with all ranges, including those that it did not acknowledge.
    Done(Acknowledged),
    /// It failed, and is done with all ranges.
    Failed,
}

/// A device that tells the hypervisor about free memory: a virtio balloon's reporting queue, or
/// `madvise` in a process.
///
/// No method waits. One submission is out at a time, and calls come from one place, so `&mut self`
/// is all the exclusion that is needed.
///
/// # Safety
/// The memory of a submission may be discarded and overwritten from the call of
/// [`submit`](Self::submit) on. The implementer promises that nobody touches it on the device's
/// behalf any more once
/// * `submit` has returned an error, or
/// * [`poll`](Self::poll) has returned anything but [`Progress::Pending`], or
/// * [`reset`](Self::reset) has returned true;
///
/// that memory outside the ranges is never touched; and that acknowledged memory holds what
/// [`content`](Self::content) says.
pub unsafe trait ReportDevice {
    /// Returns how many ranges one submission may hold; 0 and everything above 32 mean 32. The
    /// value must not change.
    fn capacity(&self) -> usize;

    /// Returns the smallest order of free runs that are worth a report, if the device knows;
    /// otherwise that is a block of 2 MiB. Of a run of which parts were reported before, the rest
    /// is, in smaller ranges; of runs above 64 MiB, such pieces. The parameter
    /// `page_reporting.page_reporting_order` takes precedence.
    fn order(&self) -> Option<Order> {
        None
    }

    /// Begins to report `ranges`: at least one, at most the capacity, of whole frames, with no
    /// frame in two of them. They belong to the device from now on unless this fails.
    ///
    /// # Errors
    /// See [`SubmitError`]. The device then has none of the ranges.
    ///
    /// # Safety
    /// The caller owns the frames of all `ranges` (invariant 42) and nobody uses them, until this
    /// fails, [`poll`](Self::poll) has returned anything but [`Progress::Pending`], or
    /// [`reset`](Self::reset) has returned true: their content may be gone from now on. No other
    /// submission is out.
    unsafe fn submit(&mut self, ranges: &[PhysRange]) -> Result<(), SubmitError>;

    /// Returns the state of the last submission. It is called repeatedly while one is out; the
    /// first answer other than [`Progress::Pending`] ends the submission.
    fn poll(&mut self) -> Progress;

    /// Brings the device to a state in which it has none of our memory. Returns true when that is
    /// done; otherwise it is called again until it is.
    fn reset(&mut self) -> bool;

    /// Returns what reported memory holds.
    fn content(&self) -> Content {
        Content::Undefined
    }
}
