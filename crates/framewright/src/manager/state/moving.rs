//! The interface to whoever owns the contents of memory, and what is remembered of moves.
//!
//! Orders of memory: Relaxed everywhere: counters, and the mover's flag, whose mover is read under
//! its lock.

use crate::carve::{Carver, room};
use crate::firmware::MirrorNote;
use crate::manager::state::areas::{Area, AreaName, MOST_AREAS};
use crate::platform::Platform;
use crate::sync::SpinLock;
use crate::sync::table_atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::units::{Pfn, PfnRange};

/// What the adopter makes of a move that has begun, such as the number of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MoveToken(pub u64);

/// A move that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Begun {
    /// The frames that are moved.
    pub run: PfnRange,
    /// What [`Mover::begin`] made of it.
    pub token: MoveToken,
}

/// Who has a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occupant {
    /// Nobody any more: it is being freed, or was.
    Free,
    /// It is a part of these frames, which can be moved, all of them at once. At most 1 GiB.
    Movable(PfnRange),
    /// A device or somebody else relies on where it is, for now.
    Pinned,
    /// It cannot be moved.
    Fixed,
    /// It is not known here.
    Unknown,
}

/// Why a move does not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotNow {
    /// Somebody relies on where the run is.
    Pinned,
    /// It is being used; a later attempt may succeed.
    Busy,
    /// It was freed meanwhile.
    Gone,
}

/// A move that has begun did not take place: the run is where it was, whole and in use, and its
/// users go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveFailed;

/// Somebody who can move the contents of memory: the adopter's page tables, page cache, heap of
/// handles. Optional ([`Moving::set_mover`](crate::manager::Moving::set_mover)).
///
/// The manager calls it with no lock held, not pinned and interrupts on, where
/// [`Platform::can_wait`](crate::Platform::can_wait) is true, on the thread of whoever vacates or
/// compacts. Several of these may run at once; each run is in at most one move. A run that was
/// refused is not begun again for one place; a call that tries several places, or one again after a
/// while, as areas do with what is busy, may ask for it again. A target has as many frames as the
/// run and begins at a multiple of the largest power of two by which the run's first frame and
/// length can be divided; it lies outside everything that is isolated, and on the run's node.
/// Where that has none to spare it lies on another, if memory goes
/// ([`Hotplug`](crate::manager::Hotplug)) or the run is to be pinned
/// ([`Moving::move_for_pin`](crate::manager::Moving::move_for_pin)). After a refusal or a failure
/// the run is as it was.
///
/// One that panics leaves what it has begun, and what it moved of the same 32 runs just before, as
/// they are: those frames stay allocated. Blocks come back into circulation, and what an area or a
/// pool had got for the request goes back.
///
/// It may allocate and free. What it does takes place inside the caller's budget, which is looked
/// at before each run is begun only.
///
/// # Safety
/// The manager frees the frames of a run that was moved. So the implementer promises: a run that it
/// calls movable is the whole of one or several allocations that it owns (invariant 42), of the
/// manager that it [`serves`](Self::serves), and after [`relocate`](Self::relocate) has succeeded
/// nobody uses the old frames: no reference, no translation that any CPU remembers, no device.
/// Neither it nor anybody else frees them, then or between [`begin`](Self::begin) and the end of
/// the move.
pub unsafe trait Mover: Sync {
    /// Whether its runs are of the manager at this address; no other asks it anything else. True
    /// where it is not said: then it is for programs with one manager.
    fn serves(&self, _manager: *const ()) -> bool {
        true
    }

    /// Who has `pfn`. Cheap; allocates nothing; often asked of frames of others.
    fn occupant(&self, pfn: Pfn) -> Occupant;

    /// A move of a run that [`occupant`](Self::occupant) named begins: its users are stopped from
    /// writing to it, at the latest when [`settle`](Self::settle) returns, or it is refused. It
    /// does not wait for a run that is in another move, but says [`NotNow::Busy`]: up to 32 runs
    /// are begun before the first is moved, and others may have begun theirs.
    ///
    /// # Errors
    /// [`NotNow`]; nothing has changed.
    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow>;

    /// Moves of these runs have begun, up to 32, and are about to take place: from now on nobody
    /// writes to them. For those who flush translations: one flush for all of them, rather than
    /// one in each [`begin`](Self::begin). Called once after `begin` and before the move ends.
    fn settle(&self, _begun: &[Begun]) {}

    /// Copies the contents to `to`, which nobody uses, makes all users use that, and ends the move.
    ///
    /// # Errors
    /// [`MoveFailed`]: the move has ended, the run is in use where it was, and `to` is used by
    /// nobody.
    ///
    /// # Safety
    /// `token` is what [`begin`](Self::begin) gave for `run`, in a move that has not ended. The
    /// caller owns `to` (invariant 42), which is as described above, and gives it up where this
    /// succeeds; the run is the caller's then.
    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed>;

    /// Ends a move that has begun and will not take place, as there is no memory for it, or as
    /// it lies across the border of what is vacated.
    ///
    /// # Safety
    /// `token` as for [`relocate`](Self::relocate).
    unsafe fn abort(&self, token: MoveToken, run: PfnRange);
}

/// What was moved and what was not, since bring-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MovingEvents {
    /// Frames that were moved (Linux: `pgmigrate_success`).
    pub moved_pages: u64,
    /// Frames whose move was refused, failed, or had no memory to go to (Linux: `pgmigrate_fail`).
    pub failed_pages: u64,
    /// Frames in use that were looked at as something to move (Linux: `compact_migrate_scanned`).
    pub scanned_pages: u64,
    /// Frames whose move began, so that it ended in success, failure or for want of memory (Linux:
    /// `compact_isolated`, which has the free pages taken for them besides).
    pub isolated_pages: u64,
    /// Runs that were begun or that the mover refused to begin.
    pub begun_runs: u64,
    /// Runs that were in the way, by [`ObstacleKind`](crate::manager::ObstacleKind).
    pub obstacles: [u64; KINDS],
    /// Requests that waited for compaction (Linux: `compact_stall`).
    pub compact_stalls: u64,
    /// Of these, those that then found what they wanted (Linux: `compact_success`).
    pub compact_successes: u64,
    /// Blocks that compaction made whole.
    pub compacted_blocks: u64,
    /// Times that a [`Compactor`](crate::manager::Compactor) began to compact a node (Linux:
    /// `compact_daemon_wake`).
    pub daemon_wakes: u64,
    /// Frames in use that compactors looked at (Linux: `compact_daemon_migrate_scanned`).
    pub daemon_scanned_pages: u64,
}

/// Kinds of obstacles.
pub(crate) const KINDS: usize = 13;

/// The counters behind [`MovingEvents`].
#[derive(Default)]
pub(crate) struct MovingCounters {
    pub(crate) moved_pages: AtomicU64,
    pub(crate) failed_pages: AtomicU64,
    pub(crate) scanned_pages: AtomicU64,
    pub(crate) isolated_pages: AtomicU64,
    pub(crate) begun_runs: AtomicU64,
    pub(crate) obstacles: [AtomicU64; KINDS],
    pub(crate) compact_stalls: AtomicU64,
    pub(crate) compact_successes: AtomicU64,
    pub(crate) compacted_blocks: AtomicU64,
    pub(crate) daemon_wakes: AtomicU64,
    pub(crate) daemon_scanned_pages: AtomicU64,
}

/// Name and place of an area.
pub(crate) type Chosen = Option<(AreaName, PfnRange)>;

/// Who moves contents, and what came of it.
pub(crate) struct MovingState {
    mover: SpinLock<Option<&'static dyn Mover>>,
    has_mover: AtomicBool,
    pub(crate) counters: MovingCounters,
    /// Calls that move memory at this moment.
    pub(crate) active: AtomicU32,
    pub(crate) areas: &'static [SpinLock<Option<Area>>],
    /// Frames of all areas.
    pub(crate) area_pages: AtomicU64,
    /// Bytes that the command line wanted set aside and that could not be.
    pub(crate) failed_area_bytes: u64,
    /// What there is to say of `kernelcore=mirror`.
    pub(crate) mirror_note: Option<MirrorNote>,
    /// Bytes that tables wanted of mirrored memory and have elsewhere.
    pub(crate) unmirrored_bytes: u64,
    /// 1 GiB pages come from areas alone.
    pub(crate) hugetlb_cma_only: bool,
    /// Names and places of areas, also of those that do not have their frames yet.
    pub(crate) chosen: SpinLock<&'static mut [Chosen]>,
    /// Bring-up has ended: other CPUs may know of the manager.
    pub(crate) is_up: bool,
}

impl MovingState {
    fn new(areas: &'static [SpinLock<Option<Area>>], chosen: &'static mut [Chosen]) -> Self {
        Self {
            mover: SpinLock::new(None),
            has_mover: AtomicBool::new(false),
            counters: MovingCounters::default(),
            active: AtomicU32::new(0),
            areas,
            area_pages: AtomicU64::new(0),
            failed_area_bytes: 0,
            mirror_note: None,
            unmirrored_bytes: 0,
            hugetlb_cma_only: false,
            chosen: SpinLock::new(chosen),
            is_up: false,
        }
    }

    /// Bytes that it takes.
    pub(crate) fn room() -> u64 {
        let areas = MOST_AREAS as u64;
        room::<Self>(1) + room::<SpinLock<Option<Area>>>(areas) + room::<Chosen>(areas)
    }

    /// In memory of its own.
    pub(crate) fn carve<P: Platform>(carver: &mut Carver<'_, P>) -> &'static mut Self {
        let areas = carver.values(MOST_AREAS, |_| SpinLock::new(None));
        // Not in what is copied, which costs a kernel an instruction a byte.
        let chosen = carver.values(MOST_AREAS, |_| None);
        carver.one(Self::new(areas, chosen))
    }

    pub(crate) fn set_mover<P: Platform>(&self, platform: &P, mover: Option<&'static dyn Mover>) {
        let mut current = self.mover.lock(platform);
        *current = mover;
        self.has_mover.store(mover.is_some(), Ordering::Relaxed);
    }

    /// Whether somebody moves contents.
    pub(crate) fn has_mover(&self) -> bool {
        self.has_mover.load(Ordering::Relaxed)
    }

    pub(crate) fn mover<P: Platform>(&self, platform: &P) -> Option<&'static dyn Mover> {
        if self.has_mover() { *self.mover.lock(platform) } else { None }
    }

    pub(crate) fn events(&self) -> MovingEvents {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let MovingCounters {
            moved_pages,
            failed_pages,
            scanned_pages,
            isolated_pages,
            begun_runs,
            obstacles,
            compact_stalls,
            compact_successes,
            compacted_blocks,
            daemon_wakes,
            daemon_scanned_pages,
        } = &self.counters;
        MovingEvents {
            moved_pages: read(moved_pages),
            failed_pages: read(failed_pages),
            scanned_pages: read(scanned_pages),
            isolated_pages: read(isolated_pages),
            begun_runs: read(begun_runs),
            obstacles: core::array::from_fn(|kind| read(&obstacles[kind])),
            compact_stalls: read(compact_stalls),
            compact_successes: read(compact_successes),
            compacted_blocks: read(compacted_blocks),
            daemon_wakes: read(daemon_wakes),
            daemon_scanned_pages: read(daemon_scanned_pages),
        }
    }
}
