//! Permanent hooks for memory that comes and goes.
//!
//! A manager may call the registered mover at any time, on any CPU, and even for a while after
//! another mover was registered. So a registered mover must never go away, but a table of handles
//! does. A [`Relay`] is registered instead, and passes calls on to the table that is open. A hook
//! that frees memory when it is short ([`Reclaim`]) comes and goes as movers do.
//!
//! ```text
//!   closed ──open──> open ──close──> closing ──last call and last move end──> closed
//!   nothing moves    calls go on     new ones are refused, begun moves end
//! ```
//!
//! A relay belongs to the first manager that it was opened for. If another manager could open it, a
//! late call of the first one, which has asked [`Mover::serves`] long before, could move runs of
//! the second one's table.
//!
//! Orders of memory: a relay and its table are taken with Acquire and given up with Release. So a
//! CPU that opens the relay sees how it was closed, calls see the table that was opened, and the
//! CPU that closes it sees what calls did. The owner changes once and is only compared: Relaxed.
//! The closing bit is Relaxed, too, because later calls read it in the same word.

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

/// Passes calls on to a hook, by default a mover. See the module documentation.
pub struct Relay<H: ?Sized + 'static = dyn Mover> {
    /// Set from before the relay is opened until after it is closed.
    is_taken: AtomicBool,
    /// The address of the manager that the relay belongs to; 0 if there is none yet.
    owner: AtomicUsize,
    /// [`OPEN`], and how many calls and moves are under way.
    state: AtomicU64,
    /// Changed only by the CPU that has taken the relay, while `state` is 0.
    table: UnsafeCell<Option<&'static H>>,
}

// SAFETY: only the CPU that has taken the relay writes the table, while no call is in it, and calls
// read it. The hook that is called may be used from all CPUs.
unsafe impl<H: ?Sized + Sync> Sync for Relay<H> {}
// SAFETY: a relay holds only what may be used from all CPUs.
unsafe impl<H: ?Sized + Sync> Send for Relay<H> {}

impl<H: ?Sized> Default for Relay<H> {
    fn default() -> Self {
        Self::new()
    }
}

/// A call that is under way until this is dropped, even by a panic.
struct Call<'r, H: ?Sized + 'static>(&'r Relay<H>);

impl<H: ?Sized> Drop for Call<'_, H> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(ONE, Ordering::Release);
    }
}

impl<H: ?Sized> Call<'_, H> {
    fn table(&self) -> Option<&H> {
        // SAFETY: the table is not written while there is a call, and the code that opened the
        // relay keeps the table until there is none.
        unsafe { *self.0.table.get() }
    }
}

impl Relay<dyn Mover> {
    /// Passes calls on to `table`, and registers the relay with the manager in place of the
    /// previous mover. Returns `None` if the relay is open already or belongs to another manager.
    ///
    /// # Safety
    /// `table` stays where it is and stays valid until the returned value is dropped. That value is
    /// dropped in any case (no `mem::forget`), and not from within a call of the table.
    #[must_use]
    pub unsafe fn open<'m, P: Platform>(
        &'static self,
        manager: &'m Manager<P>,
        table: &dyn Mover,
    ) -> Option<Opened<'m, P>> {
        // SAFETY: only the lifetime changes. The caller keeps the table until the relay is closed,
        // and closing waits for all calls that use it.
        let table = unsafe { core::mem::transmute::<&dyn Mover, &'static dyn Mover>(table) };
        let opened = self.take(manager, table, |manager| manager.moving().set_mover(None))?;
        manager.moving().set_mover(Some(self));
        Some(opened)
    }
}

impl Relay<dyn Reclaim> {
    /// Passes calls on to `hook`, and registers the relay with the manager in place of the previous
    /// reclaim hook. Returns `None` if the relay is open already or belongs to another manager.
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
    /// Returns a relay that is closed and belongs to no manager yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            owner: AtomicUsize::new(0),
            state: AtomicU64::new(0),
            table: UnsafeCell::new(None),
        }
    }

    /// Opens the relay to calls, unless it is open already or belongs to another manager.
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
        // SAFETY: we took the relay above, and it was closed, so no call is in it (invariant 47).
        unsafe { *self.table.get() = Some(table) };
        self.state.store(OPEN, Ordering::Release);
        Some(Opened { manager, relay: self, unregister })
    }

    /// Begins a call if `may` returns true for the state.
    fn call(&self, may: impl Fn(u64) -> bool) -> Option<Call<'_, H>> {
        self.state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
                may(state).then_some(state + ONE)
            })
            .ok()
            .map(|_| Call(self))
    }

    /// Begins a call of a relay that is open.
    fn enter(&self) -> Option<Call<'_, H>> {
        self.call(|state| state & OPEN != 0)
    }
}

// SAFETY: the relay does what the open table does, and says that nothing is movable if none is
// open. It stays open to a move that has begun until the move ends, so that it ends at the table
// where it began (invariant 47). The runs are those of the one manager that it belongs to
// (invariant 42).
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
        // From here on the move counts in place of this call.
        core::mem::forget(call);
        Ok(token)
    }

    fn settle(&self, begun: &[Begun]) {
        // Begun moves are settled even while the relay closes.
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
        // The call that `begin` left counted.
        let call = Call(self);
        let table = call.table().ok_or(MoveFailed)?;
        // SAFETY: the caller upholds it, and the move began at this table (invariant 42).
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

/// A relay that is open and registered until this is dropped. Dropping waits for all calls and for
/// all moves that have begun. If one of those moves ended in a panic, it waits for ever.
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
            // A task that moves memory may have lost its CPU (invariant 43).
            self.manager.platform().yield_now();
        }
        // SAFETY: no call is under way, none can begin, and the relay is taken by us.
        unsafe { *self.relay.table.get() = None };
        self.relay.is_taken.store(false, Ordering::Release);
    }
}

/// A value in a frame of the manager. The value stays where it is when this owner moves.
pub struct Placed<'m, P: Platform, T> {
    /// Freed after the value is dropped.
    _frame: Frames<'m, P>,
    value: NonNull<T>,
}

// SAFETY: it owns the value, as a box does.
unsafe impl<P: Platform, T: Send> Send for Placed<'_, P, T> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform, T: Sync> Sync for Placed<'_, P, T> {}

impl<'m, P: Platform, T> Placed<'m, P, T> {
    /// Moves a value into a new frame.
    ///
    /// # Errors
    /// There is no memory; the value is dropped then.
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
        // SAFETY: written in `new`, in a frame that is ours until `self` is dropped (invariant 42).
        unsafe { self.value.as_ref() }
    }
}

impl<P: Platform, T> Drop for Placed<'_, P, T> {
    fn drop(&mut self) {
        // SAFETY: written in `new`, borrowed by nobody, and not used any more.
        unsafe { self.value.drop_in_place() };
    }
}
