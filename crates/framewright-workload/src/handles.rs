//! Memory that is reached through a table of handles, so that it can be moved while it is used: the
//! reference [`Mover`].
//!
//! Users know the number of a handle and never an address: they enter a run, and while they are in
//! it nobody moves it. Each frame has a stamp that depends on the handle and not on the place, so
//! that a move that lost or mixed up something is found.
//!
//! ```text
//!   slot:  0 ──allocate──> held ──enter──> busy ──leave──> held ──free──> 0
//!                           │ ^ begin, then relocate or abort
//!                           v │
//!                          moving             pinned: begin refuses
//! ```
//!
//! The tables are frames of the manager: a word for each handle, and half a word for each frame of
//! the memory, which says whose it is (`owners.rs`).
//!
//! Orders of memory: Acquire when a slot is taken, Release when it is given up: whoever has it sees
//! what others wrote into the run. Relaxed: habits, stamps of a run that
//! one has, and hints.

use crate::owners::{Owners, request};
use crate::random::mix;
use crate::stamp::word;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange};
use framewright::zone::FreeError;
use framewright::{
    AllocateError, Manager, MoveFailed, MoveToken, Mover, NotNow, Occupant, Platform, Request,
};

/// Somebody is in the run.
const BUSY: u64 = 1;
/// It is being moved, made or freed.
const MOVING: u64 = 2;
/// Its place must not change.
const PINNED: u64 = 4;
const ORDER_SHIFT: u32 = 3;
const PFN_SHIFT: u32 = 8;
/// Words of a frame that are stamped.
const STAMPED: [u64; 3] = [0, 255, 511];

/// Number of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u32);

/// What makes this mover a difficult one. All zero: an obliging one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Habits {
    /// Every so many moves are refused, as busy.
    pub refuse_every: u32,
    /// Every so many moves begin and fail.
    pub fail_every: u32,
    /// Every so many moves are said to have succeeded without being made; users go on with the new
    /// place.
    pub lie_every: u32,
    /// So many turns of a loop before each copy.
    pub delay_turns: u32,
    /// The move of this number, counted from 1, and all that follow panic instead of copying. Such
    /// a run is used where it was; others that had begun with it stay in motion for ever.
    pub die_from: u32,
}

/// Why something cannot be done with a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandleError {
    /// There is no memory.
    Memory(AllocateError),
    /// All handles are in use.
    NoHandle,
    /// It is not in use.
    NotHeld(Handle),
    /// Somebody is in its run, or it is pinned.
    Busy(Handle),
    /// A frame does not hold what was written there.
    Damaged {
        /// Whose frame it is.
        handle: Handle,
        /// Which.
        pfn: Pfn,
    },
    /// The run was not accepted back.
    Free(FreeError),
}

impl fmt::Display for HandleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => error.fmt(f),
            Self::NoHandle => f.write_str("all handles are in use"),
            Self::NotHeld(handle) => write!(f, "handle {} is not in use", handle.0),
            Self::Busy(handle) => write!(f, "handle {} is in use or pinned", handle.0),
            Self::Damaged { handle, pfn } => {
                write!(f, "handle {}: pfn {pfn} does not hold what was written there", handle.0)
            }
            Self::Free(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for HandleError {}

fn run_of(slot: u64) -> Option<PfnRange> {
    let start = Pfn(slot >> PFN_SHIFT);
    let order = u8::try_from(slot >> ORDER_SHIFT & 0x1f).ok().and_then(Order::new)?;
    (slot != 0).then(|| PfnRange { start, end: start.add(order.pages()) })
}

fn slot_of(start: Pfn, order: Order) -> u64 {
    start.0 << PFN_SHIFT | u64::from(order.get()) << ORDER_SHIFT
}

/// The handle of a run and which move it is, as moves that are settled together begin before the
/// first of them is made.
fn token_of(handle: Handle, turn: u32) -> MoveToken {
    MoveToken(u64::from(turn) << 32 | u64::from(handle.0))
}

fn of_token(token: MoveToken) -> (Handle, u32) {
    let half = |shift: u32| u32::try_from(token.0 >> shift & 0xffff_ffff).unwrap_or(u32::MAX);
    (Handle(half(0)), half(32))
}

/// See the module documentation.
pub struct Handles<'m, P: Platform> {
    manager: &'m Manager<P>,
    /// A word for each handle.
    slots: PfnRange,
    count: u32,
    /// The number of the handle that a frame belongs to.
    owners: Owners<'m, P>,
    next: AtomicU32,
    begun: AtomicU32,
    habits: [AtomicU32; 5],
}

impl<'m, P: Platform> Handles<'m, P> {
    /// Room for `count` handles whose runs lie anywhere in the manager's memory that the direct map
    /// reaches, also in what is added later: moves to elsewhere fail.
    ///
    /// # Errors
    /// [`HandleError::Memory`] when there is none for the tables.
    pub fn new(manager: &'m Manager<P>, count: u32) -> Result<Self, HandleError> {
        let slots = manager.allocate(&request(manager, u64::from(count) * 8));
        let slots = slots.map_err(HandleError::Memory)?;
        let owners = Owners::new(manager).inspect_err(|_| {
            // SAFETY: it was just allocated here, and nobody has used it (invariant 42).
            let _ = unsafe { manager.free(slots) };
        });
        Ok(Self {
            manager,
            slots,
            count,
            owners: owners.map_err(HandleError::Memory)?,
            next: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            habits: [0; 5].map(AtomicU32::new),
        })
    }

    /// Changes how moves go from now on.
    pub fn set_habits(&self, habits: Habits) {
        let Habits { refuse_every, fail_every, lie_every, delay_turns, die_from } = habits;
        let values = [refuse_every, fail_every, lie_every, delay_turns, die_from];
        for (habit, value) in self.habits.iter().zip(values) {
            habit.store(value, Ordering::Relaxed);
        }
        self.begun.store(0, Ordering::Relaxed);
    }

    /// All handles that are in use.
    pub fn held(&self) -> impl Iterator<Item = Handle> + '_ {
        self.held_from(0)
    }

    /// Those from this one on.
    pub fn held_from(&self, first: u32) -> impl Iterator<Item = Handle> + '_ {
        (first..self.count).map(Handle).filter(|&handle| {
            self.slot(handle).is_some_and(|slot| slot.load(Ordering::Relaxed) != 0)
        })
    }

    /// Frames of all runs.
    pub fn pages(&self) -> u64 {
        self.held().filter_map(|handle| self.range(handle)).map(PfnRange::pages).sum()
    }

    /// Frames of the tables.
    pub fn table_pages(&self) -> u64 {
        self.slots.pages() + self.owners.pages()
    }

    /// Where the run of a handle is at this moment.
    pub fn range(&self, handle: Handle) -> Option<PfnRange> {
        run_of(self.slot(handle)?.load(Ordering::Relaxed))
    }

    fn slot(&self, handle: Handle) -> Option<&AtomicU64> {
        let index = u64::from(handle.0);
        (handle.0 < self.count)
            .then(|| word(self.manager.platform(), self.slots.start.add(index / 512), index % 512))
    }

    fn owned_by(&self, pfn: Pfn) -> Option<Handle> {
        self.owners.get(pfn).map(Handle)
    }

    fn set_owner(&self, run: PfnRange, handle: Option<Handle>) {
        self.owners.set(run, handle.map(|Handle(number)| number));
    }

    /// Allocates a run and stamps it.
    ///
    /// # Errors
    /// [`HandleError::Memory`], [`HandleError::NoHandle`].
    pub fn allocate(&self, order: Order) -> Result<Handle, HandleError> {
        self.adopt(&Request::new(order))
    }

    /// [`allocate`](Self::allocate) of what a request describes, which is a power of two of frames.
    ///
    /// # Errors
    /// As there.
    pub fn adopt(&self, request: &Request) -> Result<Handle, HandleError> {
        let order = Order::for_pages(request.pages).unwrap_or(Order::PAGE);
        let (handle, slot) = self.reserve().ok_or(HandleError::NoHandle)?;
        // Only memory in the direct map can be stamped.
        let max_address = request.max_address.min(self.manager.platform().direct_limit());
        let run = self
            .manager
            .allocate(&Request { pages: order.pages(), max_address, ..*request })
            .and_then(|run| {
                self.owners.make_room(run).map(|()| run).inspect_err(|_| {
                    // SAFETY: just allocated here, and used by nobody (invariant 42).
                    let _ = unsafe { self.manager.free(run) };
                })
            })
            .inspect_err(|_| slot.store(0, Ordering::Release))
            .map_err(HandleError::Memory)?;
        self.set_owner(run, Some(handle));
        for (pfn, place, stamp) in stamps(handle, run) {
            word(self.manager.platform(), pfn, place).store(stamp, Ordering::Relaxed);
        }
        slot.store(slot_of(run.start, order), Ordering::Release);
        Ok(handle)
    }

    /// Finds a handle that is not in use.
    fn reserve(&self) -> Option<(Handle, &AtomicU64)> {
        let from = self.next.load(Ordering::Relaxed);
        let turn = (from..self.count).chain(0..from.min(self.count)).map(Handle);
        for handle in turn {
            let slot = self.slot(handle)?;
            if slot.load(Ordering::Relaxed) == 0
                && slot.compare_exchange(0, MOVING, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                self.next.store(handle.0 + 1, Ordering::Relaxed);
                return Some((handle, slot));
            }
        }
        None
    }

    /// Takes a run for oneself, with these bits; waits for a move that is under way.
    fn take(&self, handle: Handle, bits: u64) -> Result<(&AtomicU64, u64), HandleError> {
        let slot = self.slot(handle).ok_or(HandleError::NotHeld(handle))?;
        loop {
            let held = slot.load(Ordering::Relaxed);
            if held == 0 {
                return Err(HandleError::NotHeld(handle));
            }
            if held & MOVING != 0 {
                self.manager.platform().yield_now();
                continue;
            }
            if held & BUSY != 0 || held & PINNED != 0 && bits & MOVING != 0 {
                return Err(HandleError::Busy(handle));
            }
            if slot
                .compare_exchange(held, held | bits, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return Ok((slot, held));
            }
        }
    }

    /// Frees a run, after looking at it.
    ///
    /// # Errors
    /// [`HandleError`]; the run is held as before.
    pub fn free(&self, handle: Handle) -> Result<(), HandleError> {
        let (slot, held) = self.take(handle, MOVING)?;
        let run = run_of(held).ok_or(HandleError::NotHeld(handle))?;
        if let Err(error) = self.look(handle, run) {
            slot.store(held, Ordering::Release);
            return Err(error);
        }
        self.set_owner(run, None);
        // SAFETY: it was allocated for this handle, which nobody enters any more and nobody moves
        // (invariant 42).
        if let Err(error) = unsafe { self.manager.free(run) } {
            self.set_owner(run, Some(handle));
            slot.store(held, Ordering::Release);
            return Err(HandleError::Free(error));
        }
        slot.store(0, Ordering::Release);
        Ok(())
    }

    /// Enters a run and looks at all stamps.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn check(&self, handle: Handle) -> Result<(), HandleError> {
        let (slot, held) = self.take(handle, BUSY)?;
        let run = run_of(held).ok_or(HandleError::NotHeld(handle))?;
        let found = self.look(handle, run);
        // What was pinned meanwhile stays so.
        slot.fetch_and(!BUSY, Ordering::Release);
        found
    }

    fn look(&self, handle: Handle, run: PfnRange) -> Result<(), HandleError> {
        for (pfn, place, stamp) in stamps(handle, run) {
            if word(self.manager.platform(), pfn, place).load(Ordering::Relaxed) != stamp {
                return Err(HandleError::Damaged { handle, pfn });
            }
        }
        Ok(())
    }

    /// Which run is moved by the move that has this token.
    #[must_use]
    pub fn moved_by(token: MoveToken) -> Handle {
        of_token(token).0
    }

    /// Keeps a run where it is, or lets it go.
    ///
    /// # Errors
    /// [`HandleError::NotHeld`].
    pub fn pin(&self, handle: Handle, pinned: bool) -> Result<(), HandleError> {
        let (slot, held) = self.take(handle, BUSY)?;
        let held = if pinned { held | PINNED } else { held & !PINNED };
        slot.store(held, Ordering::Release);
        Ok(())
    }

    fn is_turn(&self, habit: usize, turn: u32) -> bool {
        let every = self.habits[habit].load(Ordering::Relaxed);
        every != 0 && turn.is_multiple_of(every)
    }

    fn slot_of_run(&self, run: PfnRange) -> Option<(Handle, &AtomicU64)> {
        let handle = self.owned_by(run.start)?;
        Some((handle, self.slot(handle)?))
    }
}

/// Frame, word and content of each stamp of a run.
fn stamps(handle: Handle, run: PfnRange) -> impl Iterator<Item = (Pfn, u64, u64)> {
    (0..run.pages()).flat_map(move |frame| {
        STAMPED.into_iter().map(move |place| {
            (run.start.add(frame), place, mix(u64::from(handle.0) << 32 ^ frame << 10 ^ place) | 1)
        })
    })
}

// SAFETY: what it calls movable is the run of a handle, which was allocated for it alone; during a
// move the slot says so, and nobody enters the run; afterwards the slot leads to the new place, and
// nothing else names the old one (invariant 42).
unsafe impl<P: Platform> Mover for Handles<'_, P> {
    fn serves(&self, manager: *const ()) -> bool {
        core::ptr::from_ref(self.manager).cast() == manager
    }

    fn occupant(&self, pfn: Pfn) -> Occupant {
        let Some((_, slot)) =
            self.owned_by(pfn).and_then(|handle| Some((handle, self.slot(handle)?)))
        else {
            return Occupant::Unknown;
        };
        let held = slot.load(Ordering::Relaxed);
        match run_of(held) {
            Some(run) if run.contains(pfn) && held & PINNED != 0 => Occupant::Pinned,
            Some(run) if run.contains(pfn) => Occupant::Movable(run),
            _ => Occupant::Free,
        }
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        let (handle, slot) = self.slot_of_run(run).ok_or(NotNow::Gone)?;
        let turn = self.begun.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if self.is_turn(0, turn) {
            return Err(NotNow::Busy);
        }
        let held = slot.load(Ordering::Relaxed);
        if run_of(held) != Some(run) {
            return Err(NotNow::Gone);
        }
        if held & PINNED != 0 {
            return Err(NotNow::Pinned);
        }
        if held & (BUSY | MOVING) != 0 {
            return Err(NotNow::Busy);
        }
        slot.compare_exchange(held, held | MOVING, Ordering::Acquire, Ordering::Relaxed)
            .map(|_| token_of(handle, turn))
            .map_err(|_| NotNow::Busy)
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        let (handle, turn) = of_token(token);
        let slot = self.slot(handle).ok_or(MoveFailed)?;
        for _ in 0..self.habits[3].load(Ordering::Relaxed) {
            self.manager.platform().relax();
        }
        let order = Order::for_pages(run.pages()).ok_or(MoveFailed)?;
        let is_in_reach = to.end.address() <= self.manager.platform().direct_limit()
            && self.owners.make_room(to).is_ok();
        let fits = to.start.is_aligned(order) && to.pages() == run.pages() && is_in_reach;
        let death = self.habits[4].load(Ordering::Relaxed);
        let dies = death != 0 && turn >= death;
        if self.is_turn(1, turn) || !fits || dies {
            slot.fetch_and(!MOVING, Ordering::Release);
            assert!(!dies, "the mover dies, as it was told to");
            return Err(MoveFailed);
        }
        if !self.is_turn(2, turn) {
            let platform = self.manager.platform();
            let bytes = usize::try_from(run.pages() * PAGE_SIZE).map_err(|_| MoveFailed)?;
            // SAFETY: both runs are whole, apart, and nobody else's as long as the slot says
            // *moving* (invariants 1 and 15).
            unsafe {
                let from = platform.direct(run.start.address());
                platform.direct(to.start.address()).copy_from_nonoverlapping(from, bytes);
            }
        }
        self.set_owner(to, Some(handle));
        self.set_owner(run, None);
        slot.store(slot_of(to.start, order), Ordering::Release);
        Ok(())
    }

    unsafe fn abort(&self, token: MoveToken, _run: PfnRange) {
        if let Some(slot) = self.slot(of_token(token).0) {
            slot.fetch_and(!MOVING, Ordering::Release);
        }
    }
}

impl<P: Platform> Drop for Handles<'_, P> {
    fn drop(&mut self) {
        for handle in 0..self.count {
            let handle = Handle(handle);
            let _ = self.pin(handle, false);
            if let Some(run) = self.range(handle) {
                // SAFETY: allocated for this handle, and nobody else has the table (invariant 42).
                let _ = unsafe { self.manager.free(run) };
            }
        }
        // SAFETY: allocated in `new`, and used no more (invariant 42).
        let _ = unsafe { self.manager.free(self.slots) };
    }
}
