//! The manager: all memory of a machine behind one interface.
//!
//! [`Manager::bring_up`] builds it from the free memory of the memblock allocator (`init`). Usual
//! requests and frees go through the calling CPU's cache (`pcp`, `pcp_request`). `bulk` handles
//! many single pages in one call, `neighbours` runs that no single block holds, and `alloc` all
//! other requests, across zones and nodes; `reclaim` takes over when a request finds too little
//! memory. The `facets` lead to everything else: `hugetlb` keeps pools of huge pages, `vmemmap`
//! brings up withheld memory and gives the descriptors of huge pages back (HVO), `accept` brings up
//! memory that a guest has to accept first, `refcount` counts references, `isolate` takes blocks
//! out of circulation, `moving` vacates ranges and compacts, `hotplug` adds and removes memory,
//! `policy` says which nodes may serve a request, `tier` how slow each node is, and `reporting` has
//! the settings and counters that a reporter shares with everybody. The state that these modules
//! share is in `state`.
//!
//! ```text
//!   allocate_order, free_order ──> pcp ──refill, drain──> zone
//!   allocate, free ──> pcp_request ─┘
//!                  └─> alloc ───────────────────────────> zone     too little: reclaim
//! ```
//!
//! The manager holds no pointer that its user must keep alive: everything lies in memory that it
//! reserved.
//!
//! # Owning memory
//!
//! **Memory is owned by number, and taking it away by number is unsafe.** A
//! [`Pfn`](crate::units::Pfn) or a [`PfnRange`](crate::units::PfnRange) is a number that anybody
//! can write down: having it proves nothing. So
//!
//! * taking memory is safe ([`Manager::allocate`] and its variants, [`Pool::allocate`],
//!   [`Isolation::claim`]): the caller that receives a range owns it, and may pass it on to others,
//!   or forget it, which leaks it;
//! * every call that takes frames, or a reference to them, away from their owner is `unsafe`:
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
//! All of these calls have one contract. **The caller owns every frame that it names**: this
//! manager gave the frame to the caller, by an allocation, by a claim, or by a reference (which
//! covers only what is done with that reference), or the previous owner passed it on. **And nobody
//! uses the frame afterwards**: no Rust reference leads into it, no translation names it, no device
//! writes to it. Where the caller stays the owner after a call, the second half does not apply, and
//! the documentation of that call says so.
//!
//! The manager answers wrong arguments with an error as far as it detects them, and has then
//! changed nothing. The contract excludes the mistakes that it cannot detect: a frame that was
//! freed and now belongs to somebody else looks like the caller's own.
//!
//! [`Frames`] is the safe way: it owns the range that it names, frees it on drop, and gives the
//! number away only on request ([`Frames::into_range`]). Code that keeps page tables or lists of
//! millions of frames works with numbers instead, and must justify each free.

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
