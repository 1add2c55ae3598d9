//! What happens while another thread reads a descriptor. The tests force the moment: the reader is
//! stopped in the middle, when it uses the direct map.

use framewright::internals::Readers;
use framewright::parameters::Pages;
use framewright::units::{NodeId, Order, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::MigrateType;
use framewright::{
    BringUp, IrqState, Manager, Parameters, PinnedCpu, Platform, ReferenceError, Request,
};
use framewright_testkit::{FakeMachine, Owner, memblock_of};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

thread_local! {
    /// The use of the direct map, counted from now, at which this thread stops; 0 for none.
    static STOP_AT: Cell<u32> = const { Cell::new(0) };
}

/// A machine that can stop a thread when it uses the direct map.
struct Gate {
    machine: &'static FakeMachine,
    /// A thread has stopped there.
    stopped: AtomicBool,
    /// The thread may continue.
    opened: AtomicBool,
    /// Another thread is waiting for something.
    waited: AtomicBool,
}

/// Opens the gate however the test ends, so that a failed test does not leave a thread there for
/// ever.
struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.opened.store(true, Ordering::Release);
    }
}

fn until(condition: &AtomicBool) {
    while !condition.load(Ordering::Acquire) {
        thread::yield_now();
    }
}

// SAFETY: everything is the machine's.
unsafe impl Platform for Gate {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        let stop_at = STOP_AT.get();
        if stop_at != 0 {
            STOP_AT.set(stop_at - 1);
            if stop_at == 1 {
                self.stopped.store(true, Ordering::Release);
                until(&self.opened);
            }
        }
        self.machine.direct(pa)
    }

    fn pin(&self) -> PinnedCpu {
        self.machine.pin()
    }

    unsafe fn unpin(&self, cpu: PinnedCpu) {
        // SAFETY: passed on from the caller.
        unsafe { self.machine.unpin(cpu) };
    }

    fn irq_save(&self) -> IrqState {
        self.machine.irq_save()
    }

    unsafe fn irq_restore(&self, state: IrqState) {
        // SAFETY: passed on from the caller.
        unsafe { self.machine.irq_restore(state) };
    }

    fn cpus(&self) -> u32 {
        self.machine.cpus()
    }

    fn cpu_node(&self, cpu: u32) -> NodeId {
        self.machine.cpu_node(cpu)
    }

    fn can_wait(&self) -> bool {
        self.machine.can_wait()
    }

    fn cpu_barrier(&self) {
        self.machine.cpu_barrier();
    }

    /// A thread that waits for the stopped thread lets it continue.
    fn relax(&self) {
        self.waited.store(true, Ordering::Release);
        self.opened.store(true, Ordering::Release);
        thread::yield_now();
    }
}

fn bring_up() -> Manager<Gate> {
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 64 << 20)).cpus(2).build();
    let closed = || AtomicBool::new(false);
    let gate = Box::new(Gate { machine, stopped: closed(), opened: closed(), waited: closed() });
    let gate: &'static Gate = Box::leak(gate);
    let early = memblock_of(gate, machine.map(), machine.topology(), &[]).expect("early");
    let mut parameters = Parameters::default();
    parameters.pages = Pages::Inside;
    let input = BringUp { parameters: &parameters, started_ns: None };
    Manager::bring_up(early, &input).expect("bring-up")
}

fn at(manager: &Manager<Gate>, pfn: u64, pages: u64) -> PfnRange {
    let pages: Vec<PfnRange> = (pfn..pfn + pages)
        .map(|pfn| manager.allocate_at(Pfn(pfn), Order::PAGE, MigrateType::Movable).expect("free"))
        .collect();
    PfnRange { start: pages[0].start, end: pages[pages.len() - 1].end }
}

/// Runs `body` while another thread tries to get a reference to `pfn` and stops at its `stop`-th
/// use of the direct map. Returns what that thread got.
fn while_somebody_tries(
    manager: &Manager<Gate>,
    pfn: Pfn,
    stop: u32,
    body: impl FnOnce(),
) -> Result<(), ReferenceError> {
    let gate = manager.platform();
    for flag in [&gate.stopped, &gate.opened, &gate.waited] {
        flag.store(false, Ordering::Release);
    }
    thread::scope(|scope| {
        let looker = scope.spawn(|| {
            STOP_AT.set(stop);
            let got = manager.references().try_get(pfn);
            // The thread may finish before it reaches that use.
            gate.stopped.store(true, Ordering::Release);
            got
        });
        let opens = Opens(gate);
        until(&gate.stopped);
        body();
        drop(opens);
        looker.join().expect("no panic")
    })
}

#[test]
fn a_block_becomes_whole_when_nobody_looks_any_more() {
    let manager = bring_up();
    let page = at(&manager, 20 * 512, 1);
    let got = while_somebody_tries(&manager, page.start, 1, || {
        manager.give_back(page).expect("allocated");
        assert!(!manager.platform().waited.load(Ordering::Acquire), "a free waits for nobody");
        // The block was kept split; now it has to become whole.
        let whole = manager
            .allocate_at(page.start, Order::BLOCK, MigrateType::Movable)
            .expect("all of it is free");
        assert!(
            manager.platform().waited.load(Ordering::Acquire),
            "its memory is ours while somebody looks at it"
        );
        manager.give_back(whole).expect("allocated");
    });
    assert!(got.is_err());
    manager.verify().expect("all in order");
}

#[test]
fn the_links_of_a_counted_block_wait_for_who_looks() {
    let manager = bring_up();
    let page = at(&manager, 20 * 512, 1);
    let mut waited = false;
    let got = while_somebody_tries(&manager, page.start, 1, || {
        // Several blocks share one reader count; one of these blocks shares it with the block that
        // is being read.
        for block in (8..31).filter(|&block| block != 20) {
            let whole =
                manager.allocate_at(BlockNumber(block).start(), Order::BLOCK, MigrateType::Movable);
            let Ok(whole) = whole else { continue };
            manager.begin_references(whole).expect("a whole block");
            manager.freeze_references(whole.start, 1).expect("alone");
            manager.give_back(whole).expect("allocated");
            waited |= manager.platform().waited.load(Ordering::Acquire);
        }
    });
    assert!(waited, "nobody waited");
    assert_eq!(got, Err(ReferenceError::Frozen(page.start)));
    manager.give_back(page).expect("allocated");
    manager.verify().expect("all in order");
}

#[test]
fn a_reference_to_what_a_page_was_part_of_is_put_back() {
    let manager = bring_up();
    let keep = at(&manager, 20 * 512 + 100, 1);
    let run = at(&manager, 20 * 512, 5);
    // At its stop the reader knows the run, but has no reference to it yet.
    for stop in 1..9 {
        manager.begin_references(run).expect("allocated");
        let tail = run.start.add(3);
        let head = PfnRange { start: run.start, end: run.start.add(1) };
        let got = while_somebody_tries(&manager, tail, stop, || {
            if manager.give_back_testzero(run.start).expect("a reference").is_some() {
                manager.give_back_frozen(run.start).expect("frozen");
                let again = at(&manager, head.start.0, 1);
                manager.begin_references(again).expect("allocated");
            }
        });
        if manager.references().count(tail) == Ok(1) && got.is_ok() {
            // The thread was quicker, and holds a reference to the run.
            manager.give_back_reference(tail).expect("a reference");
        } else {
            assert_eq!(got, Err(ReferenceError::Frozen(tail)), "stopped at {stop}");
            assert_eq!(manager.references().count(head.start), Ok(1), "stopped at {stop}");
            manager.give_back_reference(head.start).expect("the last reference");
        }
        manager.drain().expect("only good frames are cached");
        manager.verify().expect("all in order");
        assert_eq!(at(&manager, run.start.0, 5), run);
    }
    manager.give_back(run).expect("allocated");
    manager.give_back(keep).expect("allocated");
    assert!(manager.allocate(&Request::pages(1)).is_ok());
}

/// On many CPUs some reader may be inside at any moment, so that a wait for no reader at all might
/// never end.
#[test]
fn who_comes_while_somebody_waits_is_let_in_afterwards() {
    let machine = || FakeMachine::builder().ram(PhysRange::new(0, 1 << 21)).cpus(1).build();
    let (waiter, late) = (machine(), machine());
    let readers = Readers::new();
    let entered = AtomicBool::new(false);
    thread::scope(|scope| {
        let first = readers.enter(machine());
        scope.spawn(|| readers.wait(waiter));
        while waiter.calls().relax == 0 {
            thread::yield_now();
        }
        scope.spawn(|| {
            drop(readers.enter(late));
            entered.store(true, Ordering::Release);
        });
        while late.calls().relax == 0 && !entered.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let was_let_in = entered.load(Ordering::Acquire);
        let calls = waiter.calls();
        drop(first);
        assert!(!was_let_in);
        // A reader on the waiter's own CPU would stand aside for ever.
        assert_eq!((calls.irq_save, calls.irq_restore), (1, 0));
    });
    assert!(entered.into_inner());
    assert_eq!(waiter.calls().irq_restore, 1);
}
