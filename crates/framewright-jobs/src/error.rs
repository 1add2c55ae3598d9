//! Why a job was refused, and how a job can fail.

use crate::nodes::{MAX_NODES, MAX_PARTS};
use core::fmt;
use core::ops::Range;

/// An invalid field of a [`Job`](crate::Job). Nothing was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidJob {
    /// `range`: its end lies before its start.
    RangeReversed {
        /// As given.
        start: u64,
        /// As given.
        end: u64,
    },
    /// `size`: start and size add up to more than 2^64 - 1.
    SizeOverflows {
        /// As given.
        start: u64,
        /// As given.
        size: u64,
    },
    /// `align` is 0. Every other value is allowed, whether a power of two or not.
    AlignZero,
    /// `max_threads` is 0, but the caller itself is a thread.
    MaxThreadsZero,
    /// `placement`: the node is not below [`MAX_NODES`](crate::MAX_NODES).
    PlacementNode {
        /// As given.
        node: u32,
    },
    /// `parts`: there are more than [`MAX_PARTS`](MAX_PARTS).
    TooManyParts {
        /// As given.
        count: usize,
    },
    /// `parts`: the end of a part lies before its start.
    PartReversed {
        /// The part's index.
        index: usize,
    },
    /// `parts`: a part begins before the previous part ends. Parts must ascend.
    PartOutOfOrder {
        /// The part's index.
        index: usize,
    },
    /// `parts`: the node of a part is not below [`MAX_NODES`](crate::MAX_NODES).
    PartNode {
        /// The part's index.
        index: usize,
        /// As given.
        node: u32,
    },
    /// The job has units beyond the indices of the slice.
    BeyondSlice {
        /// One past the last unit.
        end: u64,
        /// The number of elements in the slice.
        len: usize,
    },
    /// There is no state for any worker.
    NoStates,
}

impl fmt::Display for InvalidJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = MAX_NODES;
        match self {
            Self::RangeReversed { start, end } => {
                write!(f, "range: ends at {end}, before its start {start}")
            }
            Self::SizeOverflows { start, size } => {
                write!(f, "size: {size} units from {start} end beyond 2^64")
            }
            Self::AlignZero => write!(f, "align: must not be 0"),
            Self::MaxThreadsZero => write!(f, "max_threads: must not be 0, as the caller is one"),
            Self::PlacementNode { node } => {
                write!(f, "placement: node {node} is beyond the limit of {nodes} nodes")
            }
            Self::TooManyParts { count } => {
                write!(f, "parts: {count} are more than the limit of {}", MAX_PARTS)
            }
            Self::PartReversed { index } => write!(f, "parts: part {index} ends before its start"),
            Self::PartOutOfOrder { index } => {
                write!(f, "parts: part {index} begins before the previous one ends")
            }
            Self::PartNode { index, node } => {
                write!(f, "parts: node {node} of part {index} is beyond the limit of {nodes} nodes")
            }
            Self::BeyondSlice { end, len } => {
                write!(f, "range: ends at {end}, beyond a slice of {len} elements")
            }
            Self::NoStates => write!(f, "states: must not be empty, as the caller needs one"),
        }
    }
}

impl core::error::Error for InvalidJob {}

/// How a job can fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobError<E> {
    /// The job was invalid and was not begun.
    Invalid(InvalidJob),
    /// A chunk failed. Other chunks may have failed after it; their errors are dropped.
    Failed {
        /// The error that the first failing chunk returned.
        error: E,
        /// The range with which that chunk was called.
        range: Range<u64>,
    },
    /// The job was cancelled before everything was claimed.
    Cancelled {
        /// The number of units in chunks that returned without error. If there is an undo, they
        /// were undone.
        units: u64,
    },
}

impl<E: fmt::Display> fmt::Display for JobError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => write!(f, "no job: {why}"),
            Self::Failed { error, range } => {
                write!(f, "units {}..{}: {error}", range.start, range.end)
            }
            Self::Cancelled { units } => write!(f, "cancelled after {units} units"),
        }
    }
}

/// The text of a `JobError` says everything in one line; its source is the error that a chunk
/// returned, or the reason why the job is invalid.
impl<E: core::error::Error + 'static> core::error::Error for JobError<E> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Invalid(why) => Some(why),
            Self::Failed { error, .. } => Some(error),
            Self::Cancelled { .. } => None,
        }
    }
}

impl<E> From<InvalidJob> for JobError<E> {
    fn from(why: InvalidJob) -> Self {
        Self::Invalid(why)
    }
}

/// How much a job did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The number of workers that called a chunk, including the caller. A helper that left for
    /// another job and came back counts twice.
    pub threads: u32,
    /// The number of calls of the chunk function.
    pub chunks: u64,
    /// The number of units covered.
    pub units: u64,
}
