//! The manager: all memory of a machine behind one front door.
//!
//! [`Manager::bring_up`] builds it from the memblock allocator's free memory (`init`). The usual
//! operations go through the calling CPU's cache (`pcp`, `pcp_request`); `bulk` has many pages at
//! once, `neighbours` runs that are no block, `alloc` all others, across zones and nodes, and
//! `reclaim` those that find too little. The `facets` lead to everything else: `hugetlb` keeps
//! pools of huge pages, `vmemmap` brings up withheld memory and gives the descriptors of huge pages
//! back (HVO), `accept` brings up what a guest has to accept first, `refcount` counts references,
//! `isolate` takes blocks out of circulation, `moving` vacates and compacts, `hotplug` adds and
//! removes memory, `policy` says which nodes may serve and `tier` how slow they are, `reporting` is
//! what a reporter shares with everybody. What they share is in `state`.
//!
//! ```text
//!   allocate_order, free_order ──> pcp ──refill, drain──> zone
//!   allocate, free ──> pcp_request ─┘
//!                  └─> alloc ───────────────────────────> zone     too little: reclaim
//! ```
//!
//! It holds no pointer that its user must keep alive: everything lies in memory that it reserved.
//!
//! # Owning memory
//!
//! **Memory is owned by number, and taking it away by number is unsafe.** A
//! [`Pfn`](crate::units::Pfn) or a [`PfnRange`](crate::units::PfnRange) is a number that anybody
//! can write down: having it proves nothing. So
//!
//! * taking memory is safe ([`Manager::allocate`] and all its like, [`Pool::allocate`],
//!   [`Isolation::claim`]): whoever is given a range owns it, and may pass it on to others,
//!   or forget it, which leaks it;
//! * every call that takes frames, or a reference to them, away from whoever has them is `unsafe`:
//!   [`Manager::free`], [`free_order`](Manager::free_order), [`free_pages`](Manager::free_pages),
//!   [`free_bytes`](Manager::free_bytes), [`free_bulk`](Manager::free_bulk),
//!   [`Moving::release_to_area`], [`remove`](Hotplug::remove),
//!   [`remove_some`](Hotplug::remove_some), [`release`](Hotplug::release),
//!   [`release_bytes`](Hotplug::release_bytes), [`put`](References::put),
//!   [`put_testzero`](References::put_testzero), [`free_frozen`](References::free_frozen),
//!   [`freeze`](References::freeze), [`unfreeze`](References::unfreeze),
//!   [`References::start`], [`Vmemmap::optimize`],
//!   [`Vmemmap::restore`], [`Pool::free`], and those of the
//!   [adapters](crate::adapters).
//!
//! The contract is one for all of them. **The caller owns every frame that it names**: this manager
//! gave it to the caller, by an allocation, by a claim, or by a reference (for what is done with
//! that reference), or its owner passed it on. **And nobody uses it afterwards**: no Rust reference
//! leads into it, no translation names it, no device writes to it. Where a call leaves the caller
//! the owner, the second half does not apply, and its documentation says so.
//!
//! Wrong arguments are answered with an error as far as they are found, and nothing has then
//! changed. What is not found (a frame that was freed and is somebody else's by now cannot be told
//! from one's own) is what the contract excludes.
//!
//! [`Frames`] is the safe way: it owns what it names, frees it when it is dropped, and gives the
//! number away only by name ([`Frames::into_range`]). Whoever keeps page tables or lists of
//! millions of frames works with numbers and says why each free is right.

mod accept;
mod alloc;
mod background;
mod bulk;
mod cpus;
mod debug;
mod facets;
mod hotplug;
mod hugetlb;
mod init;
mod isolate;
mod job;
mod misuse;
mod moving;
mod neighbours;
mod numa;
mod owned;
mod pages;
mod parts;
mod pcp;
mod pcp_drain;
mod pcp_enter;
mod pcp_request;
mod policy;
mod reclaim;
mod refcount;
mod reporting;
mod request;
mod shortfall;
mod state;
mod sysctl;
pub mod tier;
mod vmemmap;
mod zone_view;

pub use crate::vmemmap::VmemmapFallback;
pub use accept::Acceptor;
pub use background::BackgroundShortage;
pub use cpus::CpuError;
pub use facets::{
    Acceptance, Caches, Cpus, Debugging, Hugetlb, Isolation, Moving, Numa, Pressure, References,
    Sysctl, Vmemmap,
};
pub use hotplug::{
    Added, GroupError, Hotplug, HotplugError, MovableRatio, ReleaseError, Released, Removal,
    Removed, Shares, memory_block_bytes,
};
pub(crate) use hugetlb::Loan;
pub use hugetlb::{BootFill, BootPool, Poisoned, Pool, Resized};
pub use init::{BringUp, BringUpError, BringUpFailed, PlatformFault, ShuffleSeed};
pub use moving::{
    AreaCounts, AreaError, AreaName, Begun, Budget, CompactError, Compacted, Compactor,
    ContiguousError, ContiguousRequest, GradeError, MOST_AREAS, MoveFailed, MoveToken, Mover,
    MovingEvents, NotNow, Obstacle, ObstacleKind, Obstacles, Occupant, RangeError, VacateError,
    Vacated,
};
pub use owned::Frames;
pub(crate) use pages::pages_of;
pub use pcp::CpuCacheInfo;
pub use policy::{
    InterleaveCursor, NumaPolicy, Placed, PlacedBulk, PolicyError, PolicyMode, Weights,
};
pub use refcount::ReferenceError;
pub(crate) use reporting::add;
pub use reporting::{Reporting, ReportingCounters};
pub use request::{AllocateError, Request, Reserves};
pub use shortfall::Shortfall;
pub use state::accept::AcceptEvents;
pub use state::fallback::Fallback;
pub use state::hotplug::{Group, HotplugEvent, HotplugNotifier, HotplugSettings, Veto};
pub use state::numa::NumaCounts;
pub use state::pools::{PoolBatch, PoolVmemmap};
pub use state::pressure::{PressureEvents, Reclaim, Shortage};
pub use state::tunables::{Settings, SettingsError};
pub use state::vmemmap::{DeferredNode, VmemmapChange, VmemmapError};
pub use state::{BringUpTimes, Manager, Node, TABLE_BYTES_PER_BLOCK};
pub use zone_view::ZoneView;
