//! An interrupt after every instruction of every operation that goes through a CPU's cache: the
//! handler allocates, frees and drains on the same CPU through the same manager. Nothing may be
//! lost or handed out twice, and the handler's requests must be served.

use crate::common::{gib, mib, order};
use framewright::units::{Pfn, PfnRange, PhysRange};
use framewright::zone::MigrateType;
use framewright::{BringUp, Manager, Parameters, Request};
use framewright_testkit::{FakeMachine, Owner, SteppedMachine, memblock_of};

type Stepped = Manager<SteppedMachine>;

/// The number of runs that each side holds at most at the end.
const MOST: usize = 64;

/// A list of runs that needs no heap, for a handler.
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

/// The first frame above 4 GiB, where the zones of these machines begin or meet.
const BORDER: Pfn = Pfn(1 << 20);
/// Just enough memory that caches reach their maximal size, except for order 9.
const SMALL: PhysRange = mib(4096, 4096 + 320);

fn bring_up(ram: PhysRange, cpus: u32) -> &'static Stepped {
    let machine = SteppedMachine::new(FakeMachine::builder().ram(ram).cpus(cpus).build());
    let inner = machine.inner();
    let early = memblock_of(machine, inner.map(), inner.topology(), &[]).expect("early");
    let parameters = Parameters::default();
    let input = BringUp { parameters: &parameters, started_ns: None };
    Box::leak(Box::new(Manager::bring_up(early, &input).expect("bring-up")))
}

/// Does what [`bring_up`] does without the block that the tables begin in: words of blocks that are
/// not managed as a whole go back run by run, which takes long.
fn bring_up_whole(ram: PhysRange, cpus: u32) -> &'static Stepped {
    let manager = bring_up(ram, cpus);
    let blocks = manager.totals().free_pages / 512;
    let mut left = [Pfn(0); 512];
    let left =
        &mut left[..usize::try_from(manager.totals().free_pages % 512).expect("less than a block")];
    // The fullest block is used first, which is this one.
    assert_eq!(manager.allocate_bulk(&Request::pages(1), left), Ok(left.len()));
    assert_eq!(manager.totals().free_pages, blocks * 512);
    assert!(left.windows(2).all(|pages| pages[0].0 / 512 == pages[1].0 / 512));
    manager
}

/// Takes all memory from [`BORDER`] on that an ordinary request can get.
fn hoard(manager: &Stepped) -> Vec<PfnRange> {
    let mut taken = Vec::new();
    for of in (0..=18).rev() {
        while let Ok(range) = manager.allocate(&Request::new(order(of))) {
            if range.start < BORDER {
                manager.give_back(range).expect("it is held");
                break;
            }
            taken.push(range);
        }
    }
    taken
}

fn take(manager: &Stepped, of: u8) -> Option<Pfn> {
    manager.allocate_order(order(of), MigrateType::Movable).ok()
}

fn give(manager: &Stepped, start: Pfn, of: u8) {
    assert!(manager.give_back_order(start, order(of)).is_ok(), "{start} is held");
}

fn age(manager: &Stepped) {
    assert!(manager.caches().age().is_ok(), "only good frames are cached");
}

/// An operation that is interrupted.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Up to this count the interrupt comes after every instruction, which covers all of getting
    /// and putting. Later, in operations that copy batches, it comes less and less often.
    dense: u64,
    /// Beyond `dense`, each interrupt point lies one `growth`th further than the one before.
    growth: u64,
    /// Whether every request finds memory.
    plenty: bool,
}

impl Case {
    const fn new(name: &'static str) -> Self {
        Self { name, dense: 480, growth: 6, plenty: true }
    }
}

/// What the handler does.
#[derive(Clone, Copy, Debug)]
enum Handler {
    /// Keeps a page, gives one back that was allocated before, and gets and gives runs of an order
    /// with words, of orders with stacks, and of one that is not cached; then ages the cache.
    GetsAndGives,
    /// Empties this CPU's cache as far as it is allowed to, takes several pages at once and gives
    /// them back through the cache.
    DrainsAndFills,
}

fn handle(handler: Handler, plenty: bool, manager: &Stepped, held: &mut Held, page: Pfn) {
    match handler {
        Handler::GetsAndGives => {
            for of in [0, 1, 3, 6, 9, 10] {
                let taken = take(manager, of);
                assert!(taken.is_some() || !plenty, "there is plenty of memory");
                if let Some(start) = taken {
                    give(manager, start, of);
                }
            }
            held.push(take(manager, 0), 0);
            give(manager, page, 0);
            age(manager);
        }
        Handler::DrainsAndFills => {
            assert!(manager.drain().is_ok(), "only good frames are cached");
            let mut pages = [Pfn(0); 40];
            let done = manager.allocate_bulk(&Request::pages(1), &mut pages).unwrap_or(0);
            assert!(done == pages.len() || !plenty, "there is plenty of memory");
            for &page in &pages[..done] {
                give(manager, page, 0);
            }
            held.push(Some(page), 0);
        }
    }
}

/// Interrupts `operation` after each of its instructions in turn, from a state that `prepare`
/// makes, and accounts for every page each time.
fn interrupt_everywhere<T>(
    manager: &'static Stepped,
    case: Case,
    prepare: impl Fn(&Stepped) -> (T, Vec<PfnRange>),
    operation: impl Fn(&Stepped, &T, &mut Held),
) {
    if crate::common::is_careful() {
        // These machines are never careful, so a careful run would only repeat the test.
        return;
    }
    let Case { name, dense, growth, plenty } = case;
    let machine = manager.platform();
    manager.drain().expect("only good frames are cached");
    let free = manager.totals().free_pages;
    // The second handler runs after every third instruction because each interrupt costs a signal.
    for (handler, step) in [(Handler::GetsAndGives, 1), (Handler::DrainsAndFills, 3)] {
        let mut points = 0;
        let mut instruction = 0;
        loop {
            instruction += if instruction < dense { step } else { (instruction / growth).max(1) };
            // Allocates past the caches, which stay as `prepare` left them.
            let mut page = [Pfn(0)];
            manager.allocate_bulk(&Request::pages(1), &mut page).expect("there is memory");
            let [page] = page;
            let (prepared, others) = prepare(manager);
            let (mut held, mut handlers) = (Held::NOTHING, Held::NOTHING);
            let ((), came) = machine.interrupt_after(
                instruction,
                || operation(manager, &prepared, &mut held),
                &mut || handle(handler, plenty, manager, &mut handlers, page),
            );
            if !came {
                handlers.push(Some(page), 0);
            }
            let context = || format!("{name}, {handler:?} after instruction {instruction}");
            let runs: Vec<PfnRange> = [held.runs(), handlers.runs(), &others].concat();
            let counts = manager.verify().unwrap_or_else(|fault| panic!("{}: {fault}", context()));
            assert_eq!(counts, manager.totals(), "{}", context());
            let held_pages: u64 = runs.iter().map(|run| run.pages()).sum();
            let accounted = counts.free_pages + manager.caches().pages() + held_pages;
            assert_eq!(accounted, free, "{}: pages are lost or there twice", context());
            for run in runs {
                manager.give_back(run).unwrap_or_else(|error| panic!("{}: {error}", context()));
            }
            manager.drain().unwrap_or_else(|error| panic!("{}: {error}", context()));
            assert_eq!(
                (manager.totals().free_pages, manager.caches().pages()),
                (free, 0),
                "{}",
                context()
            );
            machine.inner().assert_quiet();
            if !came {
                break;
            }
            points += 1;
        }
        assert!(points > 20, "{name}: only {points} instructions could be interrupted");
    }
}

/// Returns runs of order `of` that lie in different words, so that each is an entry of its own, and
/// the other runs that had to be taken for that.
fn scattered(manager: &Stepped, of: u8, count: u64) -> (Vec<Pfn>, Vec<PfnRange>) {
    let word = 64.max(1 << of);
    let whole = manager
        .allocate(&Request::new(order(if of < 9 { 13 } else { 16 })))
        .expect("there is memory");
    for block in (whole.start.0..whole.end.0).step_by(512) {
        // Pages are kept of blocks that are split, and blocks that are allocated as such.
        let part = if of < 9 { run_of(Pfn(block), 0) } else { run_of(Pfn(block), 9) };
        manager.give_back(part).expect("it is held");
        manager.drain().expect("only good frames are cached");
        let order = order(if of < 9 { 0 } else { 9 });
        manager.allocate_at(part.start, order, MigrateType::Movable).expect("just given back");
    }
    let starts: Vec<Pfn> = (0..count).map(|number| whole.start.add(word * number)).collect();
    let rests =
        starts.iter().map(|start| PfnRange { start: start.add(1 << of), end: start.add(word) });
    let tail = PfnRange { start: whole.start.add(word * count), end: whole.end };
    let rests = rests.chain([tail]).filter(|rest| !rest.is_empty()).collect();
    (starts, rests)
}

/// Returns how many runs, freed one after the other, a cache keeps before it makes room.
fn room_for(manager: &Stepped, of: u8) -> u64 {
    let (runs, rest) = scattered(manager, of, 100);
    let mut kept = 0;
    for run in runs {
        if manager.caches().pages() == kept << of {
            give(manager, run, of);
            kept += 1;
        } else {
            manager.give_back(run_of(run, of)).expect("it is held");
        }
    }
    rest.into_iter().for_each(|rest| manager.give_back(rest).expect("it is held"));
    manager.drain().expect("only good frames are cached");
    assert!((3..100).contains(&kept), "room for {kept}");
    // The last run was one too many.
    kept - 1
}

/// Takes what is left of memory that is almost used up, and leaves two freed pages in the cache.
fn keep_two(manager: &Stepped) -> Vec<PfnRange> {
    let mut others = hoard(manager);
    let run = others.iter().position(|run| run.pages() >= 4).expect("a run was left");
    let run = others.swap_remove(run);
    give(manager, run.start, 0);
    give(manager, run.start.add(2), 0);
    assert_eq!(manager.caches().pages(), 2);
    others.push(PfnRange { start: run.start.add(1), end: run.start.add(2) });
    others.push(PfnRange { start: run.start.add(3), end: run.end });
    others
}

fn run_of(start: Pfn, of: u8) -> PfnRange {
    PfnRange { start, end: start.add(1 << of) }
}

/// Takes a run through the cache.
fn get(of: u8) -> impl Fn(&Stepped, &(), &mut Held) {
    move |manager, (), held| held.push(take(manager, of), of)
}

/// Gives the prepared run back through the cache.
fn put(of: u8) -> impl Fn(&Stepped, &Pfn, &mut Held) {
    move |manager, start, _| give(manager, *start, of)
}

#[test]
fn get_from_a_word_and_put_into_it() {
    let manager = bring_up_whole(SMALL, 1);
    let warm = |manager: &Stepped| take(manager, 0).expect("there is memory");
    interrupt_everywhere(
        manager,
        Case::new("get from a word"),
        |manager| ((), vec![run_of(warm(manager), 0)]),
        get(0),
    );
    interrupt_everywhere(
        manager,
        Case::new("put into a word"),
        |manager| (warm(manager), Vec::new()),
        put(0),
    );
}

#[test]
fn turn_to_a_word_that_is_ready() {
    let manager = bring_up_whole(SMALL, 1);
    let use_up = |manager: &Stepped| {
        // All seven other runs of the first word that a refill takes: one page of the word is in
        // use.
        let held = (0..7).map(|_| run_of(take(manager, 3).expect("there is memory"), 3)).collect();
        assert_eq!(manager.caches().pages(), 64, "a further word is ready");
        ((), held)
    };
    interrupt_everywhere(manager, Case::new("turn to a word that is ready"), use_up, get(3));
}

#[test]
fn put_among_the_freed_and_make_room_there() {
    let manager = bring_up_whole(SMALL, 1);
    for (name, before) in
        [("put among the freed", 1), ("make room among the freed", room_for(manager, 1))]
    {
        let fill = |manager: &Stepped| {
            let (runs, rest) = scattered(manager, 1, before + 1);
            runs[1..].iter().for_each(|&run| give(manager, run, 1));
            assert_eq!(manager.caches().pages(), 2 * before);
            (runs[0], rest)
        };
        interrupt_everywhere(manager, Case::new(name), fill, put(1));
    }
}

#[test]
fn age_and_take_back_what_lies_aside() {
    let manager = bring_up_whole(SMALL, 1);
    let fill = |manager: &Stepped| {
        let runs: Vec<Pfn> = (0..4).filter_map(|_| take(manager, 6)).collect();
        runs.iter().for_each(|&run| give(manager, run, 6));
        assert!(manager.caches().pages() >= 2 * 64, "some are kept");
    };
    let nothing = |manager: &Stepped| {
        fill(manager);
        ((), Vec::new())
    };
    interrupt_everywhere(manager, Case::new("lay aside"), nothing, |manager, (), _| age(manager));
    let aside = |manager: &Stepped| {
        fill(manager);
        age(manager);
        ((), Vec::new())
    };
    interrupt_everywhere(manager, Case::new("give back"), aside, |manager, (), _| age(manager));
    let used_up = |manager: &Stepped| {
        fill(manager);
        let in_use = manager.caches().pages() / 64 / 2;
        age(manager);
        let held = (0..in_use).map(|_| run_of(take(manager, 6).expect("there is memory"), 6));
        ((), held.collect())
    };
    interrupt_everywhere(manager, Case::new("take back what lies aside"), used_up, get(6));
}

#[test]
fn refill_an_empty_cache() {
    let manager = bring_up_whole(SMALL, 1);
    for of in [0, 6] {
        interrupt_everywhere(manager, Case::new("refill"), |_| ((), Vec::new()), get(of));
    }
}

#[test]
fn get_and_put_of_stacks() {
    let manager = bring_up_whole(SMALL, 1);
    let of = 6;
    let fill = |manager: &Stepped, before: u64| {
        let (runs, rest) = scattered(manager, of, before + 1);
        runs[1..].iter().for_each(|&run| give(manager, run, of));
        assert_eq!(manager.caches().pages(), before << of);
        (runs[0], rest)
    };
    let two = |manager: &Stepped| {
        let (start, mut rest) = fill(manager, 2);
        rest.push(run_of(start, of));
        ((), rest)
    };
    interrupt_everywhere(manager, Case::new("get from a stack"), two, get(of));
    interrupt_everywhere(
        manager,
        Case::new("put onto a stack"),
        |manager| fill(manager, 2),
        put(of),
    );
    let room = room_for(manager, of);
    interrupt_everywhere(
        manager,
        Case::new("make room in a stack"),
        |manager| fill(manager, room),
        put(of),
    );
}

#[test]
fn blocks() {
    // Enough memory that a refill takes eight blocks at once.
    let manager = bring_up_whole(gib(4, 9), 1);
    interrupt_everywhere(manager, Case::new("refill blocks"), |_| ((), Vec::new()), get(9));
    let one = |manager: &Stepped| (take(manager, 9).expect("there is memory"), Vec::new());
    interrupt_everywhere(manager, Case::new("put a block"), one, put(9));
    let room = room_for(manager, 9);
    let full = |manager: &Stepped| {
        let (blocks, rest) = scattered(manager, 9, room + 1);
        blocks[1..].iter().for_each(|&block| give(manager, block, 9));
        assert_eq!(manager.caches().pages(), room * 512);
        (blocks[0], rest)
    };
    interrupt_everywhere(manager, Case::new("make room for a block"), full, put(9));
}

#[test]
fn use_again_what_was_freed_where_the_zone_has_nothing() {
    let manager = bring_up(mib(4096, 4096 + 64), 1);
    let mut all = hoard(manager);
    let little = all.iter().position(|run| run.pages() >= 16).expect("a run");
    let little = all.swap_remove(little).start;
    manager.give_back(run_of(little, 4)).expect("it is held");
    let case = Case { plenty: false, ..Case::new("use again") };
    interrupt_everywhere(manager, case, |manager| ((), keep_two(manager)), get(0));
}

#[test]
fn refill_from_another_zone() {
    let manager = bring_up(mib(4096 - 512, 4096 + 64), 1);
    let near = hoard(manager);
    assert!(!near.is_empty());
    let far = |manager: &Stepped, (): &(), held: &mut Held| {
        let start = take(manager, 3);
        assert!(start.is_none_or(|start| start < BORDER));
        held.push(start, 3);
    };
    let case = Case { plenty: false, ..Case::new("refill from another zone") };
    interrupt_everywhere(manager, case, |_| ((), Vec::new()), far);
}

#[test]
fn drain_one_cpu_and_several() {
    for cpus in [1, 2] {
        let manager = bring_up_whole(SMALL, cpus);
        let fill = |manager: &Stepped| {
            for of in [0, 1, 6, 9] {
                let start = take(manager, of).expect("there is memory");
                give(manager, start, of);
            }
            ((), Vec::new())
        };
        let case = Case { dense: 32, ..Case::new("drain") };
        interrupt_everywhere(manager, case, fill, |manager, (), _| {
            assert!(manager.drain().is_ok(), "only good frames are cached");
        });
    }
}

#[test]
fn drain_words_of_a_block_that_is_not_managed_whole() {
    let manager = bring_up(SMALL, 1);
    let fill = |manager: &Stepped| {
        give(manager, take(manager, 3).expect("there is memory"), 3);
        ((), Vec::new())
    };
    let case = Case { dense: 32, ..Case::new("drain a part") };
    interrupt_everywhere(manager, case, fill, |manager, (), _| {
        assert!(manager.drain().is_ok(), "only good frames are cached");
    });
}

#[test]
fn past_the_cache() {
    let manager = bring_up_whole(SMALL, 1);
    interrupt_everywhere(manager, Case::new("order 10"), |_| ((), Vec::new()), get(10));
    let one = |manager: &Stepped| (take(manager, 10).expect("there is memory"), Vec::new());
    interrupt_everywhere(manager, Case::new("free order 10"), one, put(10));
    interrupt_everywhere(
        manager,
        Case::new("bulk"),
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
