//! Memory that can move: vacating blocks, taking a range at a given place, finding the place where
//! the least has to be moved, and compaction.
//!
//! The manager knows which frames are in use, but not what is in them. The owner of contents
//! registers a [`Mover`](crate::Mover), which is asked about each run and moves it; without a mover
//! only free memory can be had. Blocks are isolated while they are vacated, so that nobody
//! allocates the frames that become free in them. If vacating fails, they return to circulation.
//!
//! ```text
//!   vacate ──────────> isolate ──> one run after the other ──> all free, isolated
//!   allocate_range ──> vacate, then take exactly the frames     (Linux: alloc_contig_range)
//!   find_contiguous ─> least to move, by the counts of blocks   (Linux: alloc_contig_pages)
//!   compact ─────────> emptiest split blocks into the fullest   (Linux: mm/compaction.c)
//!        each run:  occupant? ──> begin ──> allocate ──> relocate ──> free the old one
//! ```
//!
//! The counters of blocks and maps of 512 bits take the place of Linux's scanners. The mover is
//! never called under a lock, pinned, or from a free.

mod area;
mod area_at_boot;
mod compact;
mod contiguous;
mod direct;
mod grade;
mod moves;
mod outcome;
mod pin;
mod proactive;
mod range;
mod runs;
mod targets;
mod vacate;
mod window;

pub use crate::manager::state::areas::{AreaCounts, AreaName, MOST_AREAS};
pub use crate::manager::state::moving::{
    Begun, MoveFailed, MoveToken, Mover, MovingEvents, NotNow, Occupant,
};
pub use area::AreaError;
pub(in crate::manager) use area_at_boot::HUGETLB;
pub use compact::{CompactError, Compacted};
pub use contiguous::{ContiguousError, ContiguousRequest};
pub use grade::GradeError;
pub use outcome::{Budget, Obstacle, ObstacleKind, Obstacles, Vacated};
pub use proactive::Compactor;
pub use range::RangeError;
pub use vacate::VacateError;
