//! Threads as CPUs: which thread has which number.
//!
//! A thread becomes a CPU through [`HostedPlatform::enter_cpu`] and stays that CPU until its token
//! is dropped. Other threads can use the machine, too: while such a thread is pinned, it borrows a
//! free number.
//!
//! ```text
//!              enter                      outermost pin, without a token
//!    ENTERED <--------- FREE -----------------------------------> BORROWED
//!       | leave          ^ ^                                        |
//!       +----------------+ +---------------- unpin -----------------+
//! ```
//!
//! A thread that leaves while it is pinned makes its number `BORROWED` until it unpins.
//!
//! A thread with a token may lend its number for a moment to threads that wait for one:
//!
//! ```text
//!             lend                       outermost pin, without a token
//!    ENTERED ------> OFFERED ------------------------------------> LENT
//!       ^ take back  |     ^                                        |
//!       +------------+     +---------------- unpin -----------------+
//! ```
//!
//! Memory ordering: Acquire when a number is taken pairs with Release when it is given back.
//! Relaxed where a number must only differ from others, for failed exchanges, after which the word
//! is tried again, for a number that the thread itself holds, and for `waiting`, which is a hint.

use super::HostedPlatform;
use super::error::HostedError;
use framewright::PinnedCpu;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

const FREE: u8 = 0;
/// A pinned thread without a token holds the number.
const BORROWED: u8 = 1;
/// A thread with a token holds the number.
const ENTERED: u8 = 2;
/// A thread with a token lends the number, and nobody has taken it.
const OFFERED: u8 = 3;
/// A pinned thread without a token holds a number that it was lent.
const LENT: u8 = 4;

/// How long a number is lent: long enough for many pins, as each wait for a lender may be long.
const LOAN: Duration = Duration::from_millis(1);

/// What a thread is on one machine: its CPU number, and how it holds the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seat {
    /// The machine; 0 for none.
    machine: u64,
    /// The number that the thread holds or last held; `u32::MAX` at first.
    cpu: u32,
    /// Whether it has a token, and so holds the number.
    entered: bool,
    /// Whether it is pinned, and so holds the number until it unpins.
    pinned: bool,
}

impl Seat {
    const fn none(machine: u64) -> Self {
        Self { machine, cpu: u32::MAX, entered: false, pinned: false }
    }

    const fn has_number(self) -> bool {
        self.entered || self.pinned
    }
}

/// The seat in use, such that few instructions pin a thread with a token. Its fields are separate
/// cells: reading the whole seat just after writing a part of it stalls the processor, which made a
/// pin cost 17 ns. Nothing is counted, because each change of a count waits for the previous one,
/// which costs 3.4 ns a pin.
struct CurrentSeat {
    machine: Cell<u64>,
    cpu: Cell<u32>,
    /// The machine while the thread has a token, else 0.
    entered: Cell<u64>,
    /// The machine while the thread has a token and is not pinned, else 0.
    ready: Cell<u64>,
    /// Whether the thread is pinned without a token.
    borrowed: Cell<bool>,
}

impl CurrentSeat {
    const fn none() -> Self {
        Self {
            machine: Cell::new(0),
            cpu: Cell::new(u32::MAX),
            entered: Cell::new(0),
            ready: Cell::new(0),
            borrowed: Cell::new(false),
        }
    }

    fn get(&self) -> Seat {
        let entered = self.entered.get() != 0;
        let is_ready = self.ready.get() != 0;
        Seat {
            machine: self.machine.get(),
            cpu: self.cpu.get(),
            entered,
            pinned: if entered { !is_ready } else { self.borrowed.get() },
        }
    }

    fn set(&self, seat: Seat) {
        let if_so = |is_so| if is_so { seat.machine } else { 0 };
        self.machine.set(seat.machine);
        self.cpu.set(seat.cpu);
        self.entered.set(if_so(seat.entered));
        self.ready.set(if_so(seat.entered && !seat.pinned));
        self.borrowed.set(seat.pinned && !seat.entered);
    }
}

thread_local! {
    /// This thread's seat on the machine that it used last, which is nearly always the only one. It
    /// is found without a search.
    static SEAT: CurrentSeat = const { CurrentSeat::none() };
    /// The thread's seats on other machines where it holds a number.
    /// Destructors of other thread-local data may pin, so this has none: it has no heap while no
    /// number is held elsewhere.
    static OTHERS: RefCell<ManuallyDrop<Vec<Seat>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    static INTERRUPTS_OFF: Cell<bool> = const { Cell::new(false) };
}

/// The CPU numbers of one machine.
#[derive(Debug)]
pub(super) struct Cpus {
    /// The machine's number, unique in the process, so that a seat on a machine that is gone is
    /// never taken for a seat on this one.
    machine: u64,
    numbers: Box<[AtomicU8]>,
    creator: ThreadId,
    /// How many threads wait for a number.
    waiting: AtomicU32,
}

impl Cpus {
    pub fn new(cpus: u32) -> Self {
        static MACHINES: AtomicU64 = AtomicU64::new(1);
        Self {
            machine: MACHINES.fetch_add(1, Ordering::Relaxed),
            numbers: (0..cpus).map(|_| AtomicU8::new(FREE)).collect(),
            creator: std::thread::current().id(),
            waiting: AtomicU32::new(0),
        }
    }

    pub fn count(&self) -> u32 {
        u32::try_from(self.numbers.len()).unwrap_or(u32::MAX)
    }

    /// Makes the calling thread CPU `cpu` until [`Cpus::leave`].
    pub fn enter(&self, cpu: u32) -> Result<(), HostedError> {
        let number = self
            .numbers
            .get(cpu as usize)
            .ok_or(HostedError::NoSuchCpu { cpu, cpus: self.count() })?;
        let seat = self.seat();
        if seat.has_number() {
            return Err(HostedError::AlreadyCpu { cpu: seat.cpu });
        }
        while let Err(found) =
            number.compare_exchange(FREE, ENTERED, Ordering::Acquire, Ordering::Relaxed)
        {
            if found != BORROWED {
                return Err(HostedError::CpuTaken { cpu });
            }
            // Another thread has borrowed the number for the length of one pin.
            std::thread::yield_now();
        }
        SEAT.with(|current| current.set(Seat { cpu, entered: true, ..seat }));
        Ok(())
    }

    /// Undoes [`Cpus::enter`]. A thread that is still pinned keeps the number until it unpins.
    pub fn leave(&self) {
        let seat = self.seat();
        SEAT.with(|current| current.set(Seat { entered: false, ..seat }));
        let left = if seat.pinned { BORROWED } else { FREE };
        // Release pairs with the Acquire of the next thread that takes the number.
        self.numbers[seat.cpu as usize].store(left, Ordering::Release);
    }

    /// If a thread waits for a number, lends it that of the calling thread, which has a token and
    /// is not pinned. Other threads do nothing here.
    pub fn lend(&self) {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let seat = self.seat();
        if !seat.entered || seat.pinned {
            return;
        }
        let number = &self.numbers[seat.cpu as usize];
        // Release pairs with the Acquire of the thread that takes the number.
        number.store(OFFERED, Ordering::Release);
        std::thread::sleep(LOAN);
        while number
            .compare_exchange(OFFERED, ENTERED, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            // It is lent for the length of one more pin.
            std::thread::yield_now();
        }
    }

    /// Pins the calling thread, see [`Platform::pin`](framewright::Platform::pin).
    #[inline]
    pub fn pin(&self) -> PinnedCpu {
        SEAT.with(|seat| {
            if seat.ready.get() != self.machine {
                return self.pin_slowly();
            }
            seat.ready.set(0);
            PinnedCpu::new(seat.cpu.get())
        })
    }

    /// Undoes the outermost pin.
    #[inline]
    pub fn unpin(&self, cpu: u32) {
        SEAT.with(|seat| {
            if seat.entered.get() != self.machine {
                return self.unpin_slowly(cpu);
            }
            debug_assert!(seat.ready.get() == 0 && seat.cpu.get() == cpu, "unpin without its pin");
            seat.ready.set(self.machine);
        });
    }

    /// Pins a thread that is pinned already; or borrows a number; or finds the number that the
    /// thread holds on this machine after it used another machine.
    #[cold]
    fn pin_slowly(&self) -> PinnedCpu {
        let seat = self.seat();
        if seat.pinned {
            return PinnedCpu::nested(seat.cpu);
        }
        // Tries the thread's last number first: that CPU's caches are warm, and there is no search.
        let known = seat.entered || self.try_borrow(seat.cpu);
        let cpu = if known { seat.cpu } else { self.borrow() };
        SEAT.with(|current| current.set(Seat { cpu, pinned: true, ..seat }));
        PinnedCpu::new(cpu)
    }

    /// [`unpin`](Self::unpin) of a thread without a token, or one that used another machine since.
    #[cold]
    fn unpin_slowly(&self, cpu: u32) {
        let seat = self.seat();
        debug_assert!(seat.pinned && seat.cpu == cpu, "unpin without its pin");
        SEAT.with(|current| current.set(Seat { pinned: false, ..seat }));
        if !seat.entered {
            let number = &self.numbers[cpu as usize];
            let is_lent = number.load(Ordering::Relaxed) == LENT;
            number.store(if is_lent { OFFERED } else { FREE }, Ordering::Release);
        }
    }

    /// Takes a number, waiting until one is free or lent.
    fn borrow(&self) -> u32 {
        if let Some(cpu) = self.try_borrow_any() {
            return cpu;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let cpu = loop {
            std::thread::yield_now();
            if let Some(cpu) = self.try_borrow_any() {
                break cpu;
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        cpu
    }

    /// Takes any number. The thread that made the machine prefers 0, which other threads take last.
    fn try_borrow_any(&self) -> Option<u32> {
        let mut order = 0..self.count();
        if std::thread::current().id() == self.creator {
            order.find(|&cpu| self.try_borrow(cpu))
        } else {
            order.rev().find(|&cpu| self.try_borrow(cpu))
        }
    }

    fn try_borrow(&self, cpu: u32) -> bool {
        let Some(number) = self.numbers.get(cpu as usize) else { return false };
        let take = |from, to| {
            number.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).err()
        };
        match take(FREE, BORROWED) {
            Some(OFFERED) => take(OFFERED, LENT).is_none(),
            found => found.is_none(),
        }
    }

    /// Returns the thread's seat on this machine, and makes this the machine that the thread used
    /// last.
    fn seat(&self) -> Seat {
        let last = SEAT.with(CurrentSeat::get);
        if last.machine == self.machine {
            return last;
        }
        OTHERS.with_borrow_mut(|others| {
            // A seat without a number need not be kept.
            if last.has_number() {
                others.push(last);
            }
            let found = others.iter().position(|seat| seat.machine == self.machine);
            let seat = found.map_or(Seat::none(self.machine), |index| others.swap_remove(index));
            if others.is_empty() {
                **others = Vec::new();
            }
            SEAT.with(|current| current.set(seat));
            seat
        })
    }
}

impl HostedPlatform {
    /// Lends the calling thread's number for about a millisecond if a thread that never entered
    /// waits for one, and returns when the number is back. Long work of threads that entered calls
    /// this now and then. Does nothing on a thread that is pinned or is no CPU.
    pub fn lend_cpu(&self) {
        self.cpus.lend();
    }
}

/// Returns the calling thread's task number, which no other thread has had.
pub(super) fn task() -> NonZeroU64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static TASK: NonZeroU64 =
            NonZeroU64::MIN.saturating_add(LAST.fetch_add(1, Ordering::Relaxed));
    }
    TASK.with(|task| *task)
}

/// Marks interrupts as off on this thread, and returns whether they were off.
#[inline]
pub(super) fn interrupts_off() -> bool {
    let were_off = INTERRUPTS_OFF.get();
    if !were_off {
        INTERRUPTS_OFF.set(true);
    }
    were_off
}

/// Restores the state that [`interrupts_off`] returned.
#[inline]
pub(super) fn interrupts_restore(were_off: bool) {
    debug_assert!(INTERRUPTS_OFF.get(), "irq_restore without its irq_save");
    // If they were off, nothing is stored: each store would wait for the load before it.
    if !were_off {
        INTERRUPTS_OFF.set(false);
    }
}

/// Whether interrupts are on on this thread.
#[inline]
pub(super) fn interrupts_on() -> bool {
    !INTERRUPTS_OFF.get()
}
