//! [`Job`]: a description of what is to be done and how. It can be run any number of times.

use crate::cost::UnitCost;
use crate::error::InvalidJob;
use crate::nodes::{MAX_NODES, MAX_PARTS, Part};
use crate::token::{Cancel, DoneCount, WorkerStats};
use core::ops::Range;

/// Where helpers should run. This is only a preference: a helper elsewhere is better than none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Anywhere. Helpers of a job with several parts go to the nodes of its parts in turn.
    #[default]
    Anywhere,
    /// On the nodes that have CPUs, in turn, continuing where the last job stopped.
    Spread,
    /// On this node.
    Node(u32),
}

/// A half-open range of units, and how it may be divided. A unit is whatever the caller counts: a
/// page, a block, a byte.
///
/// A job is a plain description, and running it does not change it. Invalid fields are found when
/// the job is run ([`JobError::Invalid`](crate::JobError::Invalid)), before anything is called.
///
/// These are refused: a range that is reversed or ends beyond 2^64 - 1, an `align` of 0, and a
/// `max_threads` of 0. These are allowed:
///
/// * an empty range, or only empty parts: the job returns at once, and nothing is called;
/// * an `align` that is not a power of two, or is larger than the job: chunk borders are multiples
///   of it, and there may be none;
/// * a `min_chunk` of 0: chunks have at least one unit, and `align` alone limits the threads;
/// * a `min_chunk` larger than the job: one call for the whole range, if the job has no parts;
/// * a `max_threads` above 256, although the engine never uses more than 256 threads;
/// * fewer [`WorkerStats`] than workers: the workers beyond them are not recorded.
#[derive(Clone, Copy, Debug)]
#[must_use = "a job does nothing until it is run"]
pub struct Job<'a> {
    pub(crate) start: u64,
    extent: Extent,
    pub(crate) align: u64,
    pub(crate) min_chunk: Option<u64>,
    pub(crate) guided: bool,
    pub(crate) max_threads: u32,
    pub(crate) placement: Placement,
    pub(crate) parts: &'a [Part],
    pub(crate) cancel: Option<&'a Cancel>,
    pub(crate) done: Option<&'a DoneCount>,
    pub(crate) statistics: &'a [WorkerStats],
    unit_cost: Option<&'a UnitCost>,
}

#[derive(Clone, Copy, Debug)]
enum Extent {
    End(u64),
    Size(u64),
    Parts,
}

impl<'a> Job<'a> {
    /// A job over `range` with any alignment, chunks that adapt, and as many threads as there are,
    /// anywhere.
    pub const fn new(range: Range<u64>) -> Self {
        Self::with_extent(range.start, Extent::End(range.end))
    }

    /// A job over indices, for example those of a slice.
    pub const fn indices(range: Range<usize>) -> Self {
        Self::new(range.start as u64..range.end as u64)
    }

    /// A job over `size` units that begins at `start`.
    pub const fn with_size(start: u64, size: u64) -> Self {
        Self::with_extent(start, Extent::Size(size))
    }

    /// A job in up to [`MAX_PARTS`] parts, which ascend and do not overlap; what lies between them
    /// is not part of the job. A worker takes chunks of its own node's parts first and then from
    /// the part that has the most units left.
    pub const fn of_parts(parts: &'a [Part]) -> Self {
        let mut job = Self::with_extent(0, Extent::Parts);
        job.parts = parts;
        job
    }

    const fn with_extent(start: u64, extent: Extent) -> Self {
        Self {
            start,
            extent,
            align: 1,
            min_chunk: None,
            guided: false,
            max_threads: u32::MAX,
            placement: Placement::Anywhere,
            parts: &[],
            cancel: None,
            done: None,
            statistics: &[],
            unit_cost: None,
        }
    }

    /// Makes every border between chunks a multiple of `units`, in absolute coordinates.
    pub const fn align(mut self, units: u64) -> Self {
        self.align = units;
        self
    }

    /// Sets the smallest number of units that is worth a call. The job then wants
    /// `size / max(min_chunk, align)` threads, and has chunks of one size, about four for each
    /// thread that it can have at once. If it wants one thread and has no parts, there is one call
    /// for the whole range. Without a `min_chunk` chunks adapt (see [the
    /// model](crate#small-jobs)).
    pub const fn min_chunk(mut self, units: u64) -> Self {
        self.min_chunk = Some(units);
        self
    }

    /// With a [`min_chunk`](Self::min_chunk), makes chunks begin large and shrink to `min_chunk` as
    /// the remaining work shrinks, so that workers finish together even if units differ much in
    /// cost. The number of threads does not change. Without a `min_chunk` chunks shrink anyway.
    pub const fn guided(mut self) -> Self {
        self.guided = true;
        self
    }

    /// Limits the job to this many threads, including the caller.
    pub const fn max_threads(mut self, threads: u32) -> Self {
        self.max_threads = threads;
        self
    }

    /// Sets where helpers should run.
    pub const fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Stops claiming chunks once `token` is cancelled. A running chunk is not interrupted, but it
    /// may look at [`Worker::should_stop`](crate::Worker::should_stop).
    pub const fn cancelled_by(mut self, token: &'a Cancel) -> Self {
        self.cancel = Some(token);
        self
    }

    /// Adds the units that are done to `count`, chunk by chunk.
    pub const fn counting_in(mut self, count: &'a DoneCount) -> Self {
        self.done = Some(count);
        self
    }

    /// Adds what worker `i` did to `workers[i]`.
    pub const fn recording_in(mut self, workers: &'a [WorkerStats]) -> Self {
        self.statistics = workers;
        self
    }

    /// Begins with what `cost` knows about such units, and keeps there what this job finds out for
    /// the next. Has no effect if there is a [`min_chunk`](Self::min_chunk), or if the platform has
    /// no clock or no helpers.
    pub const fn learning_in(mut self, cost: &'a UnitCost) -> Self {
        self.unit_cost = Some(cost);
        self
    }

    /// The number of units of the whole job.
    ///
    /// # Errors
    /// The first field that is invalid.
    #[inline]
    pub fn size(&self) -> Result<u64, InvalidJob> {
        let size = match self.extent {
            Extent::End(end) => {
                let reversed = InvalidJob::RangeReversed { start: self.start, end };
                end.checked_sub(self.start).ok_or(reversed)?
            }
            Extent::Size(size) => {
                let overflow = InvalidJob::SizeOverflows { start: self.start, size };
                self.start.checked_add(size).map(|_| size).ok_or(overflow)?
            }
            Extent::Parts => size_of_parts(self.parts)?,
        };
        if self.align == 0 {
            return Err(InvalidJob::AlignZero);
        }
        if self.max_threads == 0 {
            return Err(InvalidJob::MaxThreadsZero);
        }
        match self.placement {
            Placement::Node(node) if node >= MAX_NODES => Err(InvalidJob::PlacementNode { node }),
            _ => Ok(size),
        }
    }

    /// Refuses a job that is invalid, or that has units beyond the indices of a slice of `len`
    /// elements.
    pub(crate) fn check_end(&self, len: usize) -> Result<(), InvalidJob> {
        let size = self.size()?;
        let end = match self.extent {
            Extent::Parts => self.parts.last().map_or(0, |part| part.range.end),
            _ => self.start + size,
        };
        if end > len as u64 { Err(InvalidJob::BeyondSlice { end, len }) } else { Ok(()) }
    }

    /// Where the job keeps the cost of its units, if it does.
    pub(crate) fn unit_cost(&self) -> Option<&'a UnitCost> {
        self.unit_cost.filter(|_| self.min_chunk.is_none())
    }

    /// Whether the job's units are given as parts.
    pub(crate) const fn has_parts(&self) -> bool {
        matches!(self.extent, Extent::Parts)
    }
}

/// Converts units to indices. All units of a job are valid indices once its end was checked.
pub(crate) fn as_indices(units: &Range<u64>) -> Range<usize> {
    let index = |unit| usize::try_from(unit).unwrap_or(usize::MAX);
    index(units.start)..index(units.end)
}

/// The number of units in all parts.
fn size_of_parts(parts: &[Part]) -> Result<u64, InvalidJob> {
    if parts.len() > MAX_PARTS {
        return Err(InvalidJob::TooManyParts { count: parts.len() });
    }
    let (mut size, mut end) = (0, 0);
    for (index, part) in parts.iter().enumerate() {
        if part.range.end < part.range.start {
            return Err(InvalidJob::PartReversed { index });
        }
        if part.range.start < end {
            return Err(InvalidJob::PartOutOfOrder { index });
        }
        if part.node >= MAX_NODES {
            return Err(InvalidJob::PartNode { index, node: part.node });
        }
        end = part.range.end;
        // Disjoint parts of a 64-bit range cannot add up to more than 64 bits hold.
        size += part.range.end - part.range.start;
    }
    Ok(size)
}
