//! Movers that call the manager back, on the task that moves: from each of their methods they free,
//! vacate, compact, take runs and allocate, even until nothing is left. No task waits for itself,
//! no call recurses without end, failures are reported as documented, and in the end all memory is
//! present and intact.

use crate::common::{Fake, blocks, check, filled, is_in, mib, order, settled};
use crate::common::{bring_up_with, unmovable, with_pages};
use framewright::manager::{
    Begun, Budget, CompactError, Compacted, ContiguousError, ContiguousRequest, RangeError,
    VacateError,
};
use framewright::parameters::Pages;
use framewright::units::{Order, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::IsolateError;
use framewright::{
    AllocateError, MoveFailed, MoveToken, Mover, NotNow, Occupant, Request, Reserves,
};
use framewright_testkit::workload::{Habits, Handle, Handles};
use framewright_testkit::{FakeMachine, Owner};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

type Held = Handles<'static, FakeMachine>;

/// Methods of the mover from which it calls the manager back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum When {
    Begin,
    Settle,
    Relocate,
    Moved,
    Abort,
}

/// The most calls back from each method: each call costs a search of all memory.
const MOST_CALLS: u32 = 12;

/// Handles that call back.
struct CallsBack {
    manager: &'static Fake,
    handles: &'static Held,
    call: fn(&Self, When),
    /// Whether it also calls back while it is already in a call of its own.
    always: bool,
    calls: [AtomicU32; 5],
    /// Its own calls that are under way, and the most that ever were.
    depth: AtomicU32,
    deepest: AtomicU32,
    /// Moves that the mover was asked for while it called back.
    inner_moves: AtomicU32,
    under_way: Mutex<BTreeSet<Handle>>,
    /// The blocks that the test vacates.
    vacated: Mutex<Option<BlockRange>>,
}

impl CallsBack {
    fn new(
        (manager, handles): (&'static Fake, &'static Held),
        call: fn(&Self, When),
        always: bool,
    ) -> &'static Self {
        Box::leak(Box::new(Self {
            manager,
            handles,
            call,
            always,
            calls: Default::default(),
            depth: AtomicU32::new(0),
            deepest: AtomicU32::new(0),
            inner_moves: AtomicU32::new(0),
            under_way: Mutex::default(),
            vacated: Mutex::default(),
        }))
    }

    fn call_back(&self, when: When) {
        let depth = self.depth.load(Ordering::Relaxed);
        self.deepest.fetch_max(depth, Ordering::Relaxed);
        let calls = &self.calls[when as usize];
        if depth != 0 && !self.always || calls.load(Ordering::Relaxed) == MOST_CALLS {
            return;
        }
        calls.fetch_add(1, Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        (self.call)(self, when);
        self.depth.store(depth, Ordering::Relaxed);
    }

    fn calls(&self, when: When) -> u32 {
        self.calls[when as usize].load(Ordering::Relaxed)
    }

    /// A run that is not being moved, far from the vacated blocks.
    fn one_at_rest(&self) -> Option<Handle> {
        let under_way = self.under_way.lock().expect("no panic");
        let vacated = *self.vacated.lock().expect("no panic");
        let is_far = |handle: Handle| {
            let run = self.handles.range(handle);
            run.is_some_and(|run| vacated.is_none_or(|range| !is_in(range, run)))
        };
        self.handles.held().find(|&handle| !under_way.contains(&handle) && is_far(handle))
    }

    fn ended(&self, token: MoveToken) {
        let was = self.under_way.lock().expect("no panic").remove(&Held::moved_by(token));
        assert!(was, "a move ends once");
    }
}

// SAFETY: `Handles` makes all the moves, and keeps the contract.
unsafe impl Mover for CallsBack {
    fn serves(&self, manager: *const ()) -> bool {
        self.handles.serves(manager)
    }

    fn occupant(&self, pfn: framewright::units::Pfn) -> Occupant {
        self.handles.occupant(pfn)
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        if self.depth.load(Ordering::Relaxed) != 0 {
            self.inner_moves.fetch_add(1, Ordering::Relaxed);
        }
        let token = self.handles.begin(run)?;
        let is_new = self.under_way.lock().expect("no panic").insert(Held::moved_by(token));
        assert!(is_new, "a run is in one move");
        self.call_back(When::Begin);
        Ok(token)
    }

    fn settle(&self, begun: &[Begun]) {
        assert!(!begun.is_empty());
        self.call_back(When::Settle);
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        self.call_back(When::Relocate);
        // SAFETY: the caller upholds the same contract.
        let moved = unsafe { self.handles.relocate(token, run, to) };
        self.ended(token);
        self.call_back(When::Moved);
        moved
    }

    unsafe fn abort(&self, token: MoveToken, run: PfnRange) {
        self.call_back(When::Abort);
        // SAFETY: the caller upholds the same contract.
        unsafe { self.handles.abort(token, run) };
        self.ended(token);
    }
}

/// All memory is in pieces of a page, and half of it is free.
fn in_pieces(size_mib: u64) -> (&'static Fake, &'static Held) {
    let machine = FakeMachine::builder().ram(mib(0, size_mib)).cpus(1).build();
    let manager = bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up");
    let manager: &'static Fake = Box::leak(Box::new(manager));
    (manager, filled(manager, 1 << 16, |pfn| pfn % 2 != 0))
}

/// Three blocks that are half full.
fn vacated() -> BlockRange {
    blocks(9, 3)
}

fn allocates(mover: &CallsBack, _: When) {
    for request in [Request::new(Order::PAGE), unmovable(Order::PAGE), unmovable(order(3))] {
        match mover.manager.allocate(&request) {
            Ok(run) => mover.manager.give_back(run).expect("ours"),
            Err(AllocateError::OutOfMemory { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Holds what it takes until the call is over, so that moves find no room.
fn takes_all(mover: &CallsBack, when: When) {
    let mut taken = Vec::new();
    let all = Request { reserves: Reserves::All, ..Request::new(Order::PAGE) };
    let error = loop {
        match mover.manager.allocate(&all) {
            Ok(page) => taken.push(page),
            Err(error) => break error,
        }
    };
    assert_eq!(error, AllocateError::OutOfMemory { order: Order::PAGE });
    if when == When::Settle && mover.calls(when).is_multiple_of(2) {
        // Keeps the memory now, so that nothing can be moved and the moves that have begun are
        // aborted.
        TAKEN.with_borrow_mut(|kept| kept.append(&mut taken));
    }
    if when == When::Abort {
        TAKEN.with_borrow_mut(|kept| taken.append(kept));
    }
    taken.into_iter().for_each(|page| mover.manager.give_back(page).expect("ours"));
}

thread_local! {
    /// Memory that a mover took, and gives back when a move is aborted.
    static TAKEN: std::cell::RefCell<Vec<PfnRange>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn frees(mover: &CallsBack, _: When) {
    for _ in 0..3 {
        let Some(handle) = mover.one_at_rest() else { break };
        mover.handles.free(handle).expect("intact");
    }
}

fn vacates(mover: &CallsBack, _: When) {
    let moving = mover.manager.moving().by(mover);
    if let Some(range) = *mover.vacated.lock().expect("no panic") {
        // A block that is being vacated already is refused.
        let one = BlockRange { start: BlockNumber(range.start.0 + 1), ..range };
        let refused = moving.vacate(one, Budget::UNLIMITED);
        assert_eq!(refused, Err(VacateError::Isolate(IsolateError::Isolated(one.start.start()))));
    }
    for other in [blocks(13, 1), blocks(5, 1)] {
        match moving.vacate(other, Budget::runs(40)) {
            Ok(_) => mover.manager.isolation().unisolate(other).expect("isolated"),
            Err(
                VacateError::Obstacles { .. }
                | VacateError::OutOfTime { .. }
                | VacateError::InUse { .. }
                | VacateError::Isolate(IsolateError::Isolated(_)),
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn compacts(mover: &CallsBack, _: When) {
    let made: Result<Compacted, CompactError> =
        mover.manager.moving().by(mover).compact(None, 2, Budget::runs(100));
    made.expect("there is a mover, and it may wait");
}

fn takes_runs(mover: &CallsBack, _: When) {
    let moving = mover.manager.moving().by(mover);
    match moving.allocate_contiguous(&ContiguousRequest::new(700), Budget::runs(400)) {
        Ok(run) => {
            assert_eq!(run.pages(), 700);
            mover.manager.give_back(run).expect("ours");
        }
        Err(ContiguousError::NoPlace { pages: 700 }) => {}
        Err(ContiguousError::InTheWay(RangeError::Vacate(_))) => {}
        Err(error) => panic!("{error}"),
    }
}

fn reads(mover: &CallsBack, _: When) {
    let manager = mover.manager;
    let totals = manager.totals();
    assert_eq!(totals.present_pages, totals.managed_pages + totals.reserved_pages);
    assert!(manager.moving().events().begun_runs <= manager.moving().events().scanned_pages);
    assert!(manager.drain().is_ok());
    let mut text = String::new();
    let table = manager.files();
    let tables = [&table as &_];
    let files = framewright::procfs::FileSystem::new(&tables);
    for path in ["/proc/vmstat", "/proc/buddyinfo", "/sys/kernel/debug/framewright/memory"] {
        files.read(path, &mut text).unwrap_or_else(|error| panic!("{path}: {error:?}"));
    }
    assert!(text.contains("nr_free_pages "));
}

/// What a mover does, with a name for messages.
type Call = (&'static str, fn(&CallsBack, When));

const CALLS: [Call; 7] = [
    ("allocates", allocates),
    ("takes all", takes_all),
    ("frees", frees),
    ("vacates", vacates),
    ("compacts", compacts),
    ("takes runs", takes_runs),
    ("reads", reads),
];

/// Verifies everything, and checks that nothing is left once everything is freed.
fn end(name: &str, mover: &CallsBack, before: u64) {
    let (manager, handles) = (mover.manager, mover.handles);
    TAKEN.with_borrow_mut(|kept| {
        kept.drain(..).for_each(|page| manager.give_back(page).expect("ours"));
    });
    assert!(mover.under_way.lock().expect("no panic").is_empty(), "{name}: each move has ended");
    let totals = settled(manager);
    assert_eq!(totals.isolated_pages, 0, "{name}");
    // Only the runs of handles are allocated, as before; some of them were freed meanwhile.
    assert_eq!(totals.allocated_pages - handles.pages(), before, "{name}");
    check(manager);
    for handle in handles.held().collect::<Vec<_>>() {
        handles.check(handle).unwrap_or_else(|error| panic!("{name}: {error}"));
        handles.free(handle).expect("intact");
    }
    assert_eq!(settled(manager).allocated_pages, before, "{name}");
    check(manager);
}

/// Runs `outer` with a mover for each way to call back.
fn each_way(size_mib: u64, methods: &[When], outer: impl Fn(&str, &'static CallsBack)) {
    for (name, call) in CALLS {
        let (manager, handles) = in_pieces(size_mib);
        let before = settled(manager).allocated_pages - handles.pages();
        let mover = CallsBack::new((manager, handles), call, false);
        outer(name, mover);
        for &when in methods {
            assert_ne!(mover.calls(when), 0, "{name}, {when:?}");
        }
        if ["vacates", "compacts", "takes runs"].contains(&name) {
            assert_ne!(mover.inner_moves.load(Ordering::Relaxed), 0, "{name}");
        }
        end(name, mover, before);
    }
}

const USUAL: [When; 3] = [When::Begin, When::Settle, When::Relocate];

#[test]
fn in_a_vacated_range() {
    each_way(32, &USUAL, |name, mover| {
        let range = vacated();
        *mover.vacated.lock().expect("no panic") = Some(range);
        let result = mover.manager.moving().by(mover).vacate(range, Budget::UNLIMITED);
        *mover.vacated.lock().expect("no panic") = None;
        match result {
            Ok(moved) => {
                assert_eq!(moved.moved_pages, 3 * 256, "{name}");
                mover.manager.isolation().unisolate(range).expect("isolated");
            }
            Err(VacateError::Obstacles { obstacles, .. }) if name == "takes all" => {
                assert_eq!(obstacles.first.kind, framewright::manager::ObstacleKind::NoMemory);
                assert_ne!(mover.calls(When::Abort), 0);
            }
            Err(error) => panic!("{name}: {error}"),
        }
    });
}

#[test]
fn in_compaction() {
    each_way(32, &USUAL, |name, mover| {
        let moving = mover.manager.moving();
        let made = moving.by(mover).compact(None, u64::MAX, Budget::UNLIMITED).expect(name);
        assert_ne!(made.moved.moved_runs + made.refused_runs, 0, "{name}");
    });
}

#[test]
fn in_a_contiguous_run_that_somebody_takes() {
    each_way(32, &USUAL, |name, mover| {
        let moving = mover.manager.moving().by(mover);
        let wanted = ContiguousRequest::new(1000);
        match moving.allocate_contiguous(&wanted, Budget::UNLIMITED) {
            Ok(run) => mover.manager.give_back(run).expect("ours"),
            Err(ContiguousError::InTheWay(RangeError::Vacate(_)))
                if ["takes all", "compacts", "takes runs", "vacates"].contains(&name) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    });
}

#[test]
fn in_a_range_with_edges_inside_blocks() {
    each_way(32, &USUAL, |name, mover| {
        let start = vacated().start.start();
        let range = PfnRange { start: start.add(100), end: start.add(2 * 512 + 37) };
        *mover.vacated.lock().expect("no panic") = Some(vacated());
        let taken = mover.manager.moving().by(mover).allocate_range(range, Budget::UNLIMITED);
        *mover.vacated.lock().expect("no panic") = None;
        match taken {
            Ok(taken) => {
                assert_eq!(taken, range);
                mover.manager.give_back(range).expect("ours");
            }
            Err(RangeError::Vacate(VacateError::Obstacles { .. })) if name == "takes all" => {}
            Err(error) => panic!("{name}: {error}"),
        }
    });
}

/// A request for a run compacts, and the mover's own requests for runs do not compact again.
#[test]
fn in_a_request_that_compacts() {
    for of in [5, 9, 11] {
        each_way(128, &USUAL, |name, mover| {
            mover.manager.moving().set_mover(Some(mover));
            match mover.manager.allocate(&Request::new(order(of))) {
                Ok(run) => mover.manager.give_back(run).expect("ours"),
                Err(AllocateError::OutOfMemory { .. }) if name == "takes all" || of == 11 => {}
                Err(error) => panic!("{name}, {of}: {error}"),
            }
            mover.manager.moving().set_mover(None);
        });
    }
}

/// A mover that asks for runs whenever it is called, even from within its own calls, is not asked
/// to move for each of those requests.
#[test]
fn a_mover_that_needs_runs_for_each_move_does_not_go_round_for_ever() {
    let wants_a_run =
        |mover: &CallsBack, _: When| match mover.manager.allocate(&unmovable(order(4))) {
            Ok(run) => mover.manager.give_back(run).expect("ours"),
            Err(AllocateError::OutOfMemory { .. }) => {}
            Err(error) => panic!("{error}"),
        };
    for direct in [true, false] {
        let (manager, handles) = in_pieces(32);
        let before = settled(manager).allocated_pages - handles.pages();
        let mover = CallsBack::new((manager, handles), wants_a_run, true);
        manager.moving().set_mover(Some(mover));
        if direct {
            let run = manager.allocate(&Request::new(order(6))).expect("compaction makes one");
            manager.give_back(run).expect("ours");
        } else {
            manager.moving().compact(None, u64::MAX, Budget::UNLIMITED).expect("a mover");
        }
        assert_ne!(mover.calls(When::Relocate), 0);
        let deepest = mover.deepest.load(Ordering::Relaxed);
        // Within its own call the mover may be asked to move once, for the first of its requests.
        assert!(deepest <= 2, "{deepest}");
        assert!(direct || deepest >= 1, "{deepest}");
        manager.moving().set_mover(None);
        end("runs", mover, before);
    }
}

/// Moves fail, and the owner then calls back from where it is told of the failure.
#[test]
fn in_moves_of_which_many_fail() {
    each_way(32, &[When::Begin, When::Settle, When::Relocate, When::Moved], |name, mover| {
        mover.handles.set_habits(Habits { fail_every: 3, refuse_every: 7, ..Habits::default() });
        let moving = mover.manager.moving().by(mover);
        let made = moving.compact(None, u64::MAX, Budget::UNLIMITED).expect(name);
        assert_ne!(made.refused_runs, 0, "{name}");
    });
}
