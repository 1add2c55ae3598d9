//! Hooks that are there for ever, of memory that comes and goes.
//!
//! A manager asks the mover that is registered at any time, on any CPU, also for a while after
//! another was registered, so that it must never go away; a table of handles does. A [`Relay`] is
//! what is registered, and passes calls on to the table that is open. What frees memory when it is
//! short ([`Reclaim`]) comes and goes in the way that movers do.
//!
//! ```text
//!   closed ──open──> open ──close──> closing ──last call and last move end──> closed
//!   nothing moves    calls go on     new ones are refused, begun moves end
//! ```
//!
//! A relay belongs to the first manager that it was opened for. Another would find that a call of
//! the first, which has asked [`Mover::serves`] long ago, moves runs of its table.
//!
//! Orders of memory: a relay and its table are taken with Acquire and given up with Release:
//! whoever opens sees what was closed, calls see the table that was opened, and whoever closes sees
//! what calls did. Whose the relay is changes once, and is compared only: Relaxed; as is that it
//! closes, which calls that come later read in the same word.

use core::cell::UnsafeCell;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use framewright::manager::Begun;
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::{
    AllocateError, Frames, Manager, MoveFailed, MoveToken, Mover, NotNow, Occupant, Platform,
    Reclaim, Request, Shortage,
};

/// Calls may begin.
const OPEN: u64 = 1;
/// One call, or one move that has begun.
const ONE: u64 = 2;

/// What passes calls on to a hook; to a mover unless it says something else. See the module
/// documentation.
pub struct Relay<H: ?Sized + 'static = dyn Mover> {
    /// From before it is opened until after it was closed.
    is_taken: AtomicBool,
    /// The address of the manager that it belongs to; 0 for none yet.
    owner: AtomicUsize,
    /// [`OPEN`], and how many calls and moves there are.
    state: AtomicU64,
    /// Changed by who has taken the relay, while `state` is 0.
    table: UnsafeCell<Option<&'static H>>,
}

// SAFETY: the table is written while no call is in it, by the one who has taken the relay, and read
// by calls; what is called may be from all CPUs.
unsafe impl<H: ?Sized + Sync> Sync for Relay<H> {}
// SAFETY: it has only what may be reached from all CPUs.
unsafe impl<H: ?Sized + Sync> Send for Relay<H> {}

impl<H: ?Sized> Default for Relay<H> {
    fn default() -> Self {
        Self::new()
    }
}

/// One call, until it is dropped, also by a panic.
struct Call<'r, H: ?Sized + 'static>(&'r Relay<H>);

impl<H: ?Sized> Drop for Call<'_, H> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(ONE, Ordering::Release);
    }
}

impl<H: ?Sized> Call<'_, H> {
    fn table(&self) -> Option<&H> {
        // SAFETY: it is not written as long as there is a call, and whoever opened the relay keeps
        // the table until there is none.
        unsafe { *self.0.table.get() }
    }
}

impl Relay<dyn Mover> {
    /// Passes calls on to `table`, and registers the relay with the manager, instead of what was
    /// registered there. `None` when it is open already, or belongs to another manager.
    ///
    /// # Safety
    /// `table` stays where it is and whole until what this returns was dropped, which is done in
    /// any case (no `mem::forget`), and not from within a call of the table.
    #[must_use]
    pub unsafe fn open<'m, P: Platform>(
        &'static self,
        manager: &'m Manager<P>,
        table: &dyn Mover,
    ) -> Option<Opened<'m, P>> {
        // SAFETY: only the lifetime changes; the caller keeps the table until this is closed, which
        // waits for all who use it.
        let table = unsafe { core::mem::transmute::<&dyn Mover, &'static dyn Mover>(table) };
        let opened = self.take(manager, table, |manager| manager.moving().set_mover(None))?;
        manager.moving().set_mover(Some(self));
        Some(opened)
    }
}

impl Relay<dyn Reclaim> {
    /// As for a mover.
    ///
    /// # Safety
    /// As for a mover.
    #[must_use]
    pub unsafe fn open<'m, P: Platform>(
        &'static self,
        manager: &'m Manager<P>,
        hook: &dyn Reclaim,
    ) -> Option<Opened<'m, P, dyn Reclaim>> {
        // SAFETY: as for a mover.
        let hook = unsafe { core::mem::transmute::<&dyn Reclaim, &'static dyn Reclaim>(hook) };
        let opened = self.take(manager, hook, |manager| manager.pressure().set_reclaim(None))?;
        manager.pressure().set_reclaim(Some(self));
        Some(opened)
    }
}

impl<H: ?Sized> Relay<H> {
    /// One that is closed and belongs to nobody yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            owner: AtomicUsize::new(0),
            state: AtomicU64::new(0),
            table: UnsafeCell::new(None),
        }
    }

    /// Lets calls begin, unless it is open or another manager's.
    fn take<'m, P: Platform>(
        &'static self,
        manager: &'m Manager<P>,
        table: &'static H,
        unregister: fn(&Manager<P>),
    ) -> Option<Opened<'m, P, H>> {
        if self.is_taken.swap(true, Ordering::Acquire) {
            return None;
        }
        let address = core::ptr::from_ref(manager).addr();
        let owner = self.owner.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
        if owner.is_err_and(|owner| owner != address) {
            self.is_taken.store(false, Ordering::Release);
            return None;
        }
        // SAFETY: taken above, and no call is in it: it is closed (invariant 47).
        unsafe { *self.table.get() = Some(table) };
        self.state.store(OPEN, Ordering::Release);
        Some(Opened { manager, relay: self, unregister })
    }

    /// A call begins, if `may` says so of the state.
    fn call(&self, may: impl Fn(u64) -> bool) -> Option<Call<'_, H>> {
        self.state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
                may(state).then_some(state + ONE)
            })
            .ok()
            .map(|_| Call(self))
    }

    /// A call that begins something.
    fn enter(&self) -> Option<Call<'_, H>> {
        self.call(|state| state & OPEN != 0)
    }
}

// SAFETY: it does what the table does that is open, and says that nothing is movable where none is.
// The relay stays open to a move that has begun until that ends, so that it ends where it began
// (invariant 47); runs are of the one manager that it belongs to (invariant 42).
unsafe impl Mover for Relay<dyn Mover> {
    fn serves(&self, manager: *const ()) -> bool {
        self.owner.load(Ordering::Relaxed) == manager.addr()
    }

    fn occupant(&self, pfn: Pfn) -> Occupant {
        let call = self.enter();
        let table = call.as_ref().and_then(Call::table);
        table.map_or(Occupant::Unknown, |table| table.occupant(pfn))
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        let call = self.enter().ok_or(NotNow::Gone)?;
        let token = call.table().ok_or(NotNow::Gone)?.begin(run)?;
        // The move counts from here on, as this call did.
        core::mem::forget(call);
        Ok(token)
    }

    fn settle(&self, begun: &[Begun]) {
        // Begun moves are settled also while it closes.
        let call = self.call(|state| state != 0);
        if let Some(table) = call.as_ref().and_then(Call::table) {
            table.settle(begun);
        }
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        // What `begin` left.
        let call = Call(self);
        let table = call.table().ok_or(MoveFailed)?;
        // SAFETY: as for this function; the move began at this table (invariant 42).
        unsafe { table.relocate(token, run, to) }
    }

    unsafe fn abort(&self, token: MoveToken, run: PfnRange) {
        let call = Call(self);
        if let Some(table) = call.table() {
            // SAFETY: as in `relocate`.
            unsafe { table.abort(token, run) }
        }
    }
}

impl Reclaim for Relay<dyn Reclaim> {
    fn reclaim(&self, wanted: &Shortage) -> u64 {
        let call = self.enter();
        call.as_ref().and_then(Call::table).map_or(0, |hook| hook.reclaim(wanted))
    }
}

/// A relay that is open and registered, until this is dropped. That waits for all calls, and for
/// all moves that have begun: for ever, where one of them ended in a panic.
#[must_use = "dropping it closes the relay"]
pub struct Opened<'m, P: Platform, H: ?Sized + 'static = dyn Mover> {
    manager: &'m Manager<P>,
    relay: &'static Relay<H>,
    unregister: fn(&Manager<P>),
}

impl<P: Platform, H: ?Sized> Drop for Opened<'_, P, H> {
    fn drop(&mut self) {
        (self.unregister)(self.manager);
        self.relay.state.fetch_and(!OPEN, Ordering::Relaxed);
        while self.relay.state.load(Ordering::Acquire) != 0 {
            // A task that moves may lose its CPU (invariant 43).
            self.manager.platform().yield_now();
        }
        // SAFETY: no call is in it, and none begins; it is taken by us.
        unsafe { *self.relay.table.get() = None };
        self.relay.is_taken.store(false, Ordering::Release);
    }
}

/// A value in a frame of the manager, which stays where it is when its owner moves.
pub struct Placed<'m, P: Platform, T> {
    /// Freed after the value was dropped.
    _frame: Frames<'m, P>,
    value: NonNull<T>,
}

// SAFETY: it owns the value, as a box does.
unsafe impl<P: Platform, T: Send> Send for Placed<'_, P, T> {}
// SAFETY: as above.
unsafe impl<P: Platform, T: Sync> Sync for Placed<'_, P, T> {}

impl<'m, P: Platform, T> Placed<'m, P, T> {
    /// Moves a value there.
    ///
    /// # Errors
    /// There is no memory; the value was dropped.
    pub fn new(manager: &'m Manager<P>, value: T) -> Result<Self, AllocateError> {
        const { assert!(size_of::<T>() as u64 <= PAGE_SIZE && align_of::<T>() as u64 <= PAGE_SIZE) }
        let request = Request {
            migrate_type: MigrateType::Unmovable,
            max_address: manager.platform().direct_limit(),
            ..Request::new(Order::PAGE)
        };
        let frame = manager.frames(&request)?;
        let place: NonNull<T> = manager.platform().direct(frame.start().address()).cast();
        // SAFETY: the frame is ours alone, large enough and aligned (invariants 1 and 42).
        unsafe { place.write(value) };
        Ok(Self { _frame: frame, value: place })
    }
}

impl<P: Platform, T> Deref for Placed<'_, P, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written in `new`, in a frame that is ours until this is dropped (invariant 42).
        unsafe { self.value.as_ref() }
    }
}

impl<P: Platform, T> Drop for Placed<'_, P, T> {
    fn drop(&mut self) {
        // SAFETY: written in `new`, borrowed by nobody, and used no more.
        unsafe { self.value.drop_in_place() };
    }
}
