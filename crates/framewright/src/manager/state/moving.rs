//! The interface to the owner of memory's contents, and the counts of moves.
//!
//! Orders of memory: Relaxed everywhere: counters, and a flag that says whether there is a mover;
//! the mover itself is read under its lock.

use crate::carve::{Carver, room};
use crate::firmware::MirrorNote;
use crate::manager::state::areas::{Area, AreaName, MOST_AREAS};
use crate::platform::Platform;
use crate::sync::SpinLock;
use crate::sync::table_atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::units::{Pfn, PfnRange};

/// The adopter's handle for a move that has begun, such as the number of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MoveToken(pub u64);

/// A move that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Begun {
    /// The frames to move.
    pub run: PfnRange,
    /// What [`Mover::begin`] returned for it.
    pub token: MoveToken,
}

/// The user of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occupant {
    /// Nobody any more: the frame is being freed, or already is free.
    Free,
    /// The frame is part of this run, which can only be moved as a whole. At most 1 GiB.
    Movable(PfnRange),
    /// A device or another user relies on the frame's address for now.
    Pinned,
    /// The frame cannot be moved.
    Fixed,
    /// The mover does not know the frame.
    Unknown,
}

/// Why a move did not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotNow {
    /// A user relies on the run's address.
    Pinned,
    /// The run is in use right now; a later attempt may succeed.
    Busy,
    /// The run was freed meanwhile.
    Gone,
}

/// A move that had begun did not take place: the run is where it was, whole and in use, and its
/// users go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveFailed;

/// A component that can move the contents of memory: the adopter's page tables, page cache or heap
/// of handles. Optional ([`Moving::set_mover`](crate::manager::Moving::set_mover)).
///
/// The manager calls it with no lock held, not pinned, with interrupts on, where
/// [`Platform::can_wait`](crate::Platform::can_wait) is true, and on the thread that vacates or
/// compacts. Several such threads may run at once; each run is in at most one move. The manager
/// does not begin a run again for the same place after a refusal. But a call that tries several
/// places, or tries a place again after a while, as areas do if frames are busy, may ask for the
/// run again.
///
/// A target has as many frames as the run and begins at a multiple of the largest power of two that
/// divides both the run's first frame and its length. It lies outside everything that is isolated,
/// and on the run's node. There are two exceptions: a target may lie on another node if that node
/// has no memory to spare, and some of its memory is wanted back
/// ([`remove_some`](crate::manager::Hotplug::remove_some)) or the run is to be pinned
/// ([`Moving::move_for_pin`](crate::manager::Moving::move_for_pin)); and what goes offline or is
/// removed ([`Hotplug`](crate::manager::Hotplug)) moves to the nearest other node first. After a
/// refusal or a failure the run is as it was.
///
/// If a mover panics, the runs that it has begun, and those of the same batch of 32 that it has
/// just moved, stay as they are: their frames remain allocated. The blocks return to circulation,
/// and what an area or a pool had already got for the request goes back.
///
/// A mover may allocate and free. Its work counts against the caller's budget, which is checked
/// only before each run is begun.
///
/// # Safety
/// The manager frees the frames of a run that was moved. So the implementer promises: a run that it
/// calls movable consists of one or several whole allocations of its own (invariant 42), from the
/// manager that it [`serves`](Self::serves). After [`relocate`](Self::relocate) has succeeded,
/// nobody uses the old frames: no reference, no translation cached by any CPU, no device. Neither
/// the implementer nor anybody else frees them then, or between [`begin`](Self::begin) and the end
/// of the move.
pub unsafe trait Mover: Sync {
    /// Returns whether the mover's runs belong to the manager at this address; no other manager
    /// asks it anything else. The default, true, is for programs with one manager.
    fn serves(&self, _manager: *const ()) -> bool {
        true
    }

    /// Returns the user of `pfn`. Must be cheap and allocate nothing; it is often asked about
    /// frames of other owners.
    fn occupant(&self, pfn: Pfn) -> Occupant;

    /// Begins the move of a run that [`occupant`](Self::occupant) named, or refuses it. The users
    /// of the run are stopped from writing to it, at the latest when [`settle`](Self::settle)
    /// returns. If the run is in another move, this does not wait but returns [`NotNow::Busy`]: up
    /// to 32 runs are begun before the first is moved, and other threads may have begun theirs.
    ///
    /// # Errors
    /// [`NotNow`]; nothing has changed.
    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow>;

    /// Takes note that the moves of these runs, up to 32, are about to take place: from now on
    /// nobody may write to them. A mover that flushes translations does it here once for all of
    /// them, rather than in each [`begin`](Self::begin). Called once between `begin` and the end of
    /// a move.
    fn settle(&self, _begun: &[Begun]) {}

    /// Copies the contents to `to`, which nobody uses, switches all users over to `to`, and ends
    /// the move.
    ///
    /// # Errors
    /// [`MoveFailed`]: the move has ended, the run is in use where it was, and nobody uses `to`.
    ///
    /// # Safety
    /// `token` is what [`begin`](Self::begin) returned for `run`, in a move that has not ended. The
    /// caller owns `to` (invariant 42), which is as described above. If this succeeds, the caller
    /// gives `to` up and owns the run instead.
    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed>;

    /// Ends a move that has begun but will not take place, because there is no memory for it or
    /// because the run crosses the border of what is being vacated.
    ///
    /// # Safety
    /// `token` as for [`relocate`](Self::relocate).
    unsafe fn abort(&self, token: MoveToken, run: PfnRange);
}

/// Counts of what was and was not moved since bring-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MovingEvents {
    /// Frames that were moved (Linux: `pgmigrate_success`).
    pub moved_pages: u64,
    /// Frames whose move was refused, failed, or had no memory to go to (Linux: `pgmigrate_fail`).
    pub failed_pages: u64,
    /// Frames in use that were examined as candidates for a move (Linux:
    /// `compact_migrate_scanned`).
    pub scanned_pages: u64,
    /// Frames whose move began, whether it then succeeded, failed or found no memory (Linux:
    /// `compact_isolated`, which also counts the free pages taken for them).
    pub isolated_pages: u64,
    /// Runs whose move began or was refused by the mover.
    pub begun_runs: u64,
    /// Runs that were obstacles, by [`ObstacleKind`](crate::manager::ObstacleKind).
    pub obstacles: [u64; KINDS],
    /// Requests that waited for compaction (Linux: `compact_stall`).
    pub compact_stalls: u64,
    /// Those of them that then found what they wanted (Linux: `compact_success`).
    pub compact_successes: u64,
    /// Blocks that compaction made whole.
    pub compacted_blocks: u64,
    /// How often a [`Compactor`](crate::manager::Compactor) began to compact a node (Linux:
    /// `compact_daemon_wake`).
    pub daemon_wakes: u64,
    /// Frames in use that compactors looked at (Linux: `compact_daemon_migrate_scanned`).
    pub daemon_scanned_pages: u64,
}

/// The number of obstacle kinds.
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

/// What became of compaction for a request.
pub(crate) enum Compaction {
    /// The request got its memory.
    Succeeded,
    /// It does not help.
    Failed,
    /// It did not help, but runs could not be moved that perhaps can be later.
    Refused,
    /// It might have helped but was not tried: the context does not allow it, others are
    /// compacting, or it failed recently.
    NotTried,
}

/// An area's name and place.
pub(crate) type Chosen = Option<(AreaName, PfnRange)>;

/// The mover, the areas and the counts of moves.
pub(crate) struct MovingState {
    mover: SpinLock<Option<&'static dyn Mover>>,
    has_mover: AtomicBool,
    pub(crate) counters: MovingCounters,
    /// Calls that are moving memory right now.
    pub(crate) active: AtomicU32,
    pub(crate) areas: &'static [SpinLock<Option<Area>>],
    /// Frames of all areas.
    pub(crate) area_pages: AtomicU64,
    /// Bytes that the command line asked to set aside but that could not be.
    pub(crate) failed_area_bytes: u64,
    /// What to report about `kernelcore=mirror`.
    pub(crate) mirror_note: Option<MirrorNote>,
    /// Mirrored memory, ascending, if it is to be the kernel's.
    pub(crate) mirrored: &'static [PfnRange],
    /// Bytes of tables that should be in mirrored memory but are elsewhere.
    pub(crate) unmirrored_bytes: u64,
    /// 1 GiB pages come only from areas.
    pub(crate) hugetlb_cma_only: bool,
    /// Names and places of areas, including those that do not have their frames yet.
    pub(crate) chosen: SpinLock<&'static mut [Chosen]>,
    /// Bring-up has ended, so other CPUs may know of the manager.
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
            mirrored: &[],
            unmirrored_bytes: 0,
            hugetlb_cma_only: false,
            chosen: SpinLock::new(chosen),
            is_up: false,
        }
    }

    /// Returns how many bytes [`carve`](Self::carve) takes.
    pub(crate) fn room() -> u64 {
        let areas = MOST_AREAS as u64;
        room::<Self>(1) + room::<SpinLock<Option<Area>>>(areas) + room::<Chosen>(areas)
    }

    /// Makes the state in the carver's memory.
    pub(crate) fn carve<P: Platform>(carver: &mut Carver<'_, P>) -> &'static mut Self {
        let areas = carver.values(MOST_AREAS, |_| SpinLock::new(None));
        // Kept out of the value that is copied: each byte of that costs a kernel an instruction.
        let chosen = carver.values(MOST_AREAS, |_| None);
        carver.one(Self::new(areas, chosen))
    }

    pub(crate) fn set_mover<P: Platform>(&self, platform: &P, mover: Option<&'static dyn Mover>) {
        let mut current = self.mover.lock(platform);
        *current = mover;
        self.has_mover.store(mover.is_some(), Ordering::Relaxed);
    }

    /// Returns whether there is a mover.
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
