//! An interrupt after every instruction of every operation through a CPU's cache: the handler allocates, frees and drains on the same CPU through the same manager. Nothing may be
//! lost or given twice, and the handler must be served.
#![cfg(all(not(loom), target_arch = "x86_64"))]

mod common;

use common::{gib, order};
use framewright::block::MigrateType;
use framewright::early::EarlyAllocator;
use framewright::units::{Pfn, PfnRange};
use framewright::{BringUp, Manager, Parameters, Request};
use framewright_testkit::{FakeMachine, SteppedMachine};

type Stepped = Manager<SteppedMachine>;

/// Most runs that a side holds at the end.
const MOST: usize = 64;

/// Runs without a heap, for a handler.
struct Held {
    runs: [PfnRange; MOST],
    count: usize,
}

impl Held {
    const NOTHING: Self = Self { runs: [PfnRange::new(0, 0); MOST], count: 0 };

    fn push(&mut self, start: Option<Pfn>, of: u8) {
        if let Some(start) = start
            && let Some(slot) = self.runs.get_mut(self.count)
        {
            *slot = PfnRange { start, end: start.add(1 << of) };
            self.count += 1;
        }
    }

    fn runs(&self) -> &[PfnRange] {
        &self.runs[..self.count]
    }
}

fn bring_up(cpus: u32) -> &'static Stepped {
    let machine = SteppedMachine::new(FakeMachine::builder().ram(gib(4, 5)).cpus(cpus).build());
    let inner = machine.inner();
    let mut early = EarlyAllocator::new(machine, inner.map(), inner.topology()).expect("early");
    let parameters = Parameters::default();
    let input = BringUp { map: inner.map(), topology: inner.topology(), parameters: &parameters, started_ns: None };
    Box::leak(Box::new(Manager::bring_up(&mut early, &input).expect("bring-up")))
}

fn take(manager: &Stepped, of: u8) -> Option<Pfn> {
    manager.allocate_order(order(of), MigrateType::Movable).ok()
}

fn give(manager: &Stepped, start: Pfn, of: u8) {
    assert!(manager.free_order(start, order(of)).is_ok(), "{start} is held");
}

/// Up to here the interrupt comes after every instruction, which is all of getting and putting; later, in operations that copy batches, ever
/// more seldom.
const DENSE: u64 = 480;

/// What is done in the handler.
#[derive(Clone, Copy, Debug)]
enum Handler {
    /// Keeps a page, gives one back that was allocated before, and gets and gives of every cached order and one that is not.
    GetsAndGives,
    /// Empties this CPU's cache as far as it may, takes several pages at once and gives them back through the cache.
    DrainsAndFills,
}

fn handle(handler: Handler, manager: &Stepped, held: &mut Held, page: Pfn) {
    match handler {
        Handler::GetsAndGives => {
            for of in [0, 1, 3, 9, 5] {
                let taken = take(manager, of);
                assert!(taken.is_some(), "there is plenty of memory");
                if let Some(start) = taken {
                    give(manager, start, of);
                }
            }
            held.push(take(manager, 0), 0);
            give(manager, page, 0);
        }
        Handler::DrainsAndFills => {
            assert!(manager.drain().is_ok(), "only good frames are cached");
            let mut pages = [Pfn(0); 40];
            assert_eq!(manager.allocate_bulk(&Request::pages(1), &mut pages), Ok(40));
            for &page in &pages {
                give(manager, page, 0);
            }
            held.push(Some(page), 0);
        }
    }
}

/// Interrupts `operation` after each of its instructions in turn, from a state that `prepare` makes, and accounts for every page each time.
fn interrupt_everywhere<T>(
    manager: &'static Stepped,
    (name, dense): (&str, u64),
    prepare: impl Fn(&Stepped) -> (T, Vec<PfnRange>),
    operation: impl Fn(&Stepped, &T, &mut Held),
) {
    let machine = manager.platform();
    manager.drain().expect("only good frames are cached");
    let free = manager.totals().free_pages;
    // The second handler comes after every third instruction: each costs what a signal does.
    for (handler, step) in [(Handler::GetsAndGives, 1), (Handler::DrainsAndFills, 3)] {
        let mut points = 0;
        let mut instruction = 0;
        loop {
            instruction += if instruction < dense { step } else { (instruction / 6).max(1) };
            let (prepared, others) = prepare(manager);
            let page = manager.allocate(&Request::pages(1)).expect("there is memory").start;
            let (mut held, mut handlers) = (Held::NOTHING, Held::NOTHING);
            let ((), came) =
                machine.interrupt_after(instruction, || operation(manager, &prepared, &mut held), &mut || {
                    handle(handler, manager, &mut handlers, page)
                });
            if !came {
                handlers.push(Some(page), 0);
            }
            let context = || format!("{name}, {handler:?} after instruction {instruction}");
            let runs: Vec<PfnRange> = [held.runs(), handlers.runs(), &others].concat();
            let counts = manager.verify().unwrap_or_else(|fault| panic!("{}: {fault}", context()));
            assert_eq!(counts, manager.totals(), "{}", context());
            let held_pages: u64 = runs.iter().map(|run| run.pages()).sum();
            let accounted = counts.free_pages + manager.cached_pages() + held_pages;
            assert_eq!(accounted, free, "{}: pages are lost or there twice", context());
            for run in runs {
                manager.free(run).unwrap_or_else(|error| panic!("{}: {error}", context()));
            }
            manager.drain().unwrap_or_else(|error| panic!("{}: {error}", context()));
            assert_eq!((manager.totals().free_pages, manager.cached_pages()), (free, 0), "{}", context());
            machine.inner().assert_quiet();
            if !came {
                break;
            }
            points += 1;
        }
        assert!(points > 20, "{name}: only {points} instructions could be interrupted");
    }
}

/// Single frames that lie in different words, so that each takes an entry of a stack; and what else had to be taken for that.
fn scattered(manager: &Stepped, count: usize) -> (Vec<Pfn>, Vec<PfnRange>) {
    let whole = manager.allocate(&Request::new(order(13))).expect("there is memory");
    let pages: Vec<Pfn> = (0..count as u64).map(|word| whole.start.add(64 * word)).collect();
    let rest = (0..).map(|word| {
        PfnRange::new(whole.start.0 + 64 * word + u64::from(word < count as u64), whole.start.0 + 64 * (word + 1))
    });
    (pages, rest.take_while(|rest| rest.start < whole.end).collect())
}

#[test]
fn get_from_a_word_and_put_into_it() {
    let manager = bring_up(1);
    let warm = |manager: &Stepped| {
        let page = take(manager, 0).expect("there is memory");
        (page, Vec::new())
    };
    interrupt_everywhere(
        manager,
        ("get from a word", DENSE),
        |manager| {
            let (page, _) = warm(manager);
            ((), vec![PfnRange { start: page, end: page.add(1) }])
        },
        |manager, (), held| held.push(take(manager, 0), 0),
    );
    interrupt_everywhere(manager, ("put into a word", DENSE), warm, |manager, page, _| give(manager, *page, 0));
}

#[test]
fn get_from_a_stack_and_put_onto_it() {
    let manager = bring_up(1);
    interrupt_everywhere(
        manager,
        ("get from a stack", DENSE),
        |manager| {
            let (pages, rest) = scattered(manager, 3);
            for page in pages {
                give(manager, page, 0);
            }
            ((), rest)
        },
        |manager, (), held| held.push(take(manager, 0), 0),
    );
    interrupt_everywhere(
        manager,
        ("put onto a stack", DENSE),
        |manager| {
            let (pages, rest) = scattered(manager, 2);
            give(manager, pages[1], 0);
            (pages[0], rest)
        },
        |manager, page, _| give(manager, *page, 0),
    );
}

#[test]
fn refill_an_empty_cache() {
    let manager = bring_up(1);
    for of in [0, 3] {
        interrupt_everywhere(
            manager,
            ("refill", DENSE),
            |_| ((), Vec::new()),
            |manager, (), held| held.push(take(manager, of), of),
        );
    }
}

#[test]
fn make_room_in_a_full_stack() {
    let manager = bring_up(1);
    interrupt_everywhere(
        manager,
        ("make room", DENSE),
        |manager| {
            let (pages, rest) = scattered(manager, 41);
            for &page in &pages[1..] {
                give(manager, page, 0);
            }
            (pages[0], rest)
        },
        |manager, page, _| give(manager, *page, 0),
    );
}

#[test]
fn blocks() {
    let manager = bring_up(1);
    interrupt_everywhere(
        manager,
        ("refill blocks", DENSE),
        |_| ((), Vec::new()),
        |manager, (), held| held.push(take(manager, 9), 9),
    );
    interrupt_everywhere(
        manager,
        ("put a block", DENSE),
        |manager| (take(manager, 9).expect("there is memory"), Vec::new()),
        |manager, block, _| {
            give(manager, *block, 9);
        },
    );
}

#[test]
fn drain_one_cpu_and_several() {
    for cpus in [1, 2] {
        let manager = bring_up(cpus);
        interrupt_everywhere(
            manager,
            ("drain", 32),
            |manager| {
                for of in [0, 1, 9] {
                    let start = take(manager, of).expect("there is memory");
                    give(manager, start, of);
                }
                ((), Vec::new())
            },
            |manager, (), _| assert!(manager.drain().is_ok(), "only good frames are cached"),
        );
    }
}

#[test]
fn past_the_cache() {
    let manager = bring_up(1);
    interrupt_everywhere(
        manager,
        ("order 4", DENSE),
        |_| ((), Vec::new()),
        |manager, (), held| held.push(take(manager, 4), 4),
    );
    interrupt_everywhere(
        manager,
        ("free order 4", DENSE),
        |manager| (take(manager, 4).expect("there is memory"), Vec::new()),
        |manager, run, _| {
            give(manager, *run, 4);
        },
    );
    interrupt_everywhere(
        manager,
        ("bulk", DENSE),
        |_| ((), Vec::new()),
        |manager, (), held| {
            let mut pages = [Pfn(0); 20];
            assert_eq!(manager.allocate_bulk(&Request::pages(1), &mut pages), Ok(20));
            for page in pages {
                held.push(Some(page), 0);
            }
        },
    );
}
