//! Memory that is used through a table of handles, so that it can be moved while it is in use: the
//! reference [`Mover`].
//!
//! Users know the number of a handle and never an address. They enter a run, and nobody moves it
//! while they are in it. Each frame has a stamp that depends on the handle and not on the place, so
//! that a move that loses or mixes up something is found.
//!
//! ```text
//!   slot:  0 ──allocate──> held ──enter──> busy ──leave──> held ──free──> 0
//!                           │ ^ begin, then relocate or abort
//!                           v │
//!                          moving             pinned: begin refuses
//! ```
//!
//! The tables are frames of the manager: a word for each handle, and half a word for each frame of
//! the memory, which says which handle owns the frame (`owners.rs`).
//!
//! Orders of memory: Acquire when a slot is taken and Release when it is given up, so that the
//! taker sees what others wrote into the run. Relaxed: habits, stamps of a run that one has taken,
//! and hints.

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

/// A user is in the run.
const BUSY: u64 = 1;
/// The run is being moved, made or freed.
const MOVING: u64 = 2;
/// The run must stay where it is.
const PINNED: u64 = 4;
const ORDER_SHIFT: u32 = 3;
const PFN_SHIFT: u32 = 8;
/// The words of a frame that are stamped.
const STAMPED: [u64; 3] = [0, 255, 511];

/// The number of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u32);

/// What makes this mover a difficult one. With all fields zero it never fails on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Habits {
    /// One in this many moves is refused as busy.
    pub refuse_every: u32,
    /// One in this many moves begins and then fails.
    pub fail_every: u32,
    /// One in this many moves reports success without copying. Users go on with the new place.
    pub lie_every: u32,
    /// How many turns of a loop delay each copy.
    pub delay_turns: u32,
    /// The move with this number, counted from 1, and all later moves panic instead of copying. The
    /// run of such a move stays usable where it was; others that had begun with it stay in motion
    /// for ever.
    pub die_from: u32,
}

/// Why an operation on a handle failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandleError {
    /// There is no memory.
    Memory(AllocateError),
    /// All handles are in use.
    NoHandle,
    /// The handle is not in use.
    NotHeld(Handle),
    /// A user is in the run, or the run is pinned.
    Busy(Handle),
    /// A frame does not hold what was written there.
    Damaged {
        /// The handle whose frame it is.
        handle: Handle,
        /// The frame.
        pfn: Pfn,
    },
    /// The manager refused to take the run back.
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

/// Returns the token of a move: the handle of the run, and the number of the move, because all
/// moves that are settled together begin before the first of them is made.
fn token_of(handle: Handle, turn: u32) -> MoveToken {
    MoveToken(u64::from(turn) << 32 | u64::from(handle.0))
}

fn of_token(token: MoveToken) -> (Handle, u32) {
    let half = |shift: u32| u32::try_from(token.0 >> shift & 0xffff_ffff).unwrap_or(u32::MAX);
    (Handle(half(0)), half(32))
}

/// A table of handles; see the module documentation.
pub struct Handles<'m, P: Platform> {
    manager: &'m Manager<P>,
    /// A word for each handle.
    slots: PfnRange,
    count: u32,
    /// The number of the handle that each frame belongs to.
    owners: Owners<'m, P>,
    next: AtomicU32,
    begun: AtomicU32,
    habits: [AtomicU32; 5],
}

impl<'m, P: Platform> Handles<'m, P> {
    /// Makes room for `count` handles. Their runs may lie anywhere in the manager's memory that the
    /// direct map covers, including memory that is added later. Moves to other memory fail.
    ///
    /// # Errors
    /// [`HandleError::Memory`] if there is no memory for the tables.
    pub fn new(manager: &'m Manager<P>, count: u32) -> Result<Self, HandleError> {
        let slots = manager.allocate(&request(manager, u64::from(count) * 8));
        let slots = slots.map_err(HandleError::Memory)?;
        let owners = Owners::new(manager).inspect_err(|_| {
            // SAFETY: allocated just now, and nobody has used it (invariant 42).
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

    /// Changes how this mover behaves from now on, and counts moves from 1 again.
    pub fn set_habits(&self, habits: Habits) {
        let Habits { refuse_every, fail_every, lie_every, delay_turns, die_from } = habits;
        let values = [refuse_every, fail_every, lie_every, delay_turns, die_from];
        for (habit, value) in self.habits.iter().zip(values) {
            habit.store(value, Ordering::Relaxed);
        }
        self.begun.store(0, Ordering::Relaxed);
    }

    /// Returns all handles in use.
    pub fn held(&self) -> impl Iterator<Item = Handle> + '_ {
        self.held_from(0)
    }

    /// Returns the handles in use from number `first` on.
    pub fn held_from(&self, first: u32) -> impl Iterator<Item = Handle> + '_ {
        (first..self.count).map(Handle).filter(|&handle| {
            self.slot(handle).is_some_and(|slot| slot.load(Ordering::Relaxed) != 0)
        })
    }

    /// Returns how many frames all runs have.
    pub fn pages(&self) -> u64 {
        self.held().filter_map(|handle| self.range(handle)).map(PfnRange::pages).sum()
    }

    /// Returns how many frames the tables take.
    pub fn table_pages(&self) -> u64 {
        self.slots.pages() + self.owners.pages()
    }

    /// Returns where the run of a handle is at this moment.
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

    /// Like [`allocate`](Self::allocate), but allocates what `request` describes: a power of two of
    /// frames.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
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
                    // SAFETY: allocated just now, and nobody uses it (invariant 42).
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

    /// Takes a run for the caller by setting `bits`. Waits for a move that is under way.
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

    /// Frees a run, after checking its stamps.
    ///
    /// # Errors
    /// [`HandleError`]. The run is held as before then.
    pub fn free(&self, handle: Handle) -> Result<(), HandleError> {
        let (slot, held) = self.take(handle, MOVING)?;
        let run = run_of(held).ok_or(HandleError::NotHeld(handle))?;
        if let Err(error) = self.look(handle, run) {
            slot.store(held, Ordering::Release);
            return Err(error);
        }
        self.set_owner(run, None);
        // SAFETY: it was allocated for this handle, which nobody can enter or move while the slot
        // says *moving* (invariant 42).
        if let Err(error) = unsafe { self.manager.free(run) } {
            self.set_owner(run, Some(handle));
            slot.store(held, Ordering::Release);
            return Err(HandleError::Free(error));
        }
        slot.store(0, Ordering::Release);
        Ok(())
    }

    /// Enters a run and checks all its stamps.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn check(&self, handle: Handle) -> Result<(), HandleError> {
        let (slot, held) = self.take(handle, BUSY)?;
        let run = run_of(held).ok_or(HandleError::NotHeld(handle))?;
        let found = self.look(handle, run);
        // Clears only this bit.
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

    /// Returns the handle of the run that the move with this token moves.
    #[must_use]
    pub fn moved_by(token: MoveToken) -> Handle {
        of_token(token).0
    }

    /// Pins a run, so that it stays where it is, or unpins it.
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

/// Returns frame, word and content of each stamp of a run.
fn stamps(handle: Handle, run: PfnRange) -> impl Iterator<Item = (Pfn, u64, u64)> {
    (0..run.pages()).flat_map(move |frame| {
        STAMPED.into_iter().map(move |place| {
            (run.start.add(frame), place, mix(u64::from(handle.0) << 32 ^ frame << 10 ^ place) | 1)
        })
    })
}

// SAFETY: a run that `occupant` calls movable belongs to a handle and was allocated for it alone.
// During a move the slot says so, and nobody enters the run. Afterwards the slot leads to the new
// place, and nothing else names the old one (invariant 42).
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
            // SAFETY: both runs are whole, do not overlap, and belong to nobody else as long as the
            // slot says *moving* (invariants 1 and 15).
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
                // SAFETY: allocated for this handle, and only this table names it (invariant 42).
                let _ = unsafe { self.manager.free(run) };
            }
        }
        // SAFETY: allocated in `new`, and not used any more (invariant 42).
        let _ = unsafe { self.manager.free(self.slots) };
    }
}
