//! Random traffic from several threads, each a CPU of a [`FakeMachine`]. After each round, every
//! page is accounted for.

use crate::lock::lock;
use crate::machine::{Builder, FakeMachine};
use framewright::firmware::MemoryKind;
use framewright::units::PhysRange;
use framewright::zone::Counts;
use framewright::{BringUp, Manager, Parameters, Platform};
use framewright_workload::{Failure, Held, Shared, Tally, Worker};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

/// A machine to stress.
#[derive(Clone, Debug)]
pub struct Shape {
    /// A description of the machine.
    pub name: &'static str,
    /// The machine, without CPUs.
    pub machine: Builder,
    /// The nodes of the machine's CPUs, in turn.
    pub cpu_nodes: &'static [usize],
    /// The ranges that are reserved before bring-up.
    pub reserved: Vec<PhysRange>,
    /// How many parts the machine's zones have; by default, the number of CPUs decides.
    pub zone_parts: Option<u32>,
}

impl Shape {
    /// Brings up the machine with a CPU for each of `threads` threads and one for the caller.
    ///
    /// # Panics
    /// If bring-up fails.
    #[must_use]
    pub fn bring_up(self, threads: u32) -> Manager<FakeMachine> {
        let nodes = self.cpu_nodes.iter().cycle().take(threads as usize + 1);
        let machine = nodes.fold(self.machine, |machine, &node| machine.cpus_on(node, 1)).build();
        let mut parameters = Parameters::default();
        parameters.zone_parts = self.zone_parts;
        bring_up_with(machine, &self.reserved, &parameters)
    }
}

/// Brings a machine up after reserving `reserved`.
///
/// # Panics
/// If bring-up fails.
#[must_use]
pub fn bring_up(machine: &'static FakeMachine, reserved: &[PhysRange]) -> Manager<FakeMachine> {
    bring_up_with(machine, reserved, &Parameters::default())
}

fn bring_up_with(
    machine: &'static FakeMachine,
    reserved: &[PhysRange],
    parameters: &Parameters,
) -> Manager<FakeMachine> {
    let input = BringUp { parameters, started_ns: None };
    Manager::bring_up(machine.memblock(reserved), &input).unwrap_or_else(|error| panic!("{error}"))
}

/// Machines of several shapes, none with more than 2.5 GiB.
#[must_use]
pub fn shapes() -> Vec<Shape> {
    const ONE_NODE: &[usize] = &[0];
    let mib = |start: u64, end: u64| PhysRange::new(start << 20, end << 20);
    let pages = |start: u64, end: u64| PhysRange::new(start << 12, end << 12);
    let shape = |name, machine, cpu_nodes| Shape {
        name,
        machine,
        cpu_nodes,
        reserved: Vec::new(),
        zone_parts: None,
    };
    let mut holes = FakeMachine::builder();
    let mut reserved = Vec::new();
    for piece in 0..24 {
        // Pieces of odd sizes: some within a block, some across several blocks, some of an unusable
        // kind.
        let start = 0x8_0000 + piece * 1777;
        let kind = if piece % 7 == 3 { MemoryKind::AcpiNvs } else { MemoryKind::Conventional };
        holes = holes.memory(pages(start, start + 300 + 61 * piece), kind);
        reserved.push(pages(start + 100 + piece, start + 103 + piece));
    }
    vec![
        shape("1 GiB whole", FakeMachine::builder().ram(mib(0, 2048)), ONE_NODE),
        shape(
            "two nodes",
            FakeMachine::builder()
                .ram(mib(3584, 4096 + 512))
                .node(mib(0, 4096 + 130), 0)
                .node(mib(4096 + 130, 8192), 1),
            &[0, 1],
        ),
        shape("small zones", FakeMachine::builder().ram(mib(0, 24)).ram(mib(4096, 4104)), ONE_NODE),
        Shape { reserved, ..shape("holes", holes.ram(mib(0, 40)).scattered(), ONE_NODE) },
        shape(
            "four nodes, one without CPUs, one without memory",
            FakeMachine::builder()
                .ram(mib(0, 200))
                .node(mib(0, 63), 0)
                .node(mib(63, 131), 1)
                .node(mib(131, 1024), 2)
                .nodes(4),
            &[0, 1, 3],
        ),
        shape("islands", islands(), ONE_NODE),
        shape("9 MiB", FakeMachine::builder().ram(mib(16, 25)), ONE_NODE),
        Shape {
            zone_parts: Some(4),
            ..shape("zones in parts on two nodes", borders(), &[0, 1, 0, 0])
        },
    ]
}

/// Groups of one to three whole blocks, so far apart that each group is a segment of its own:
/// neighbours in the table, but not in memory.
fn islands() -> Builder {
    let machine = FakeMachine::builder().ram(PhysRange::new(8 << 20, 24 << 20));
    (1..=16).fold(machine, |machine, island| {
        let start = island * (150 << 20) + (island % 3) * (2 << 20);
        machine.ram(PhysRange::new(start, start + (1 + island % 3) * (2 << 20)))
    })
}

/// Memory on both sides of GiB borders, where zones are divided, and on only one side of some.
fn borders() -> Builder {
    let mib = |start: u64, end: u64| PhysRange::new(start << 20, end << 20);
    let machine = FakeMachine::builder().ram(mib(0, 40)).ram(mib(1024, 1040));
    (4..12).fold(
        machine.node(mib(0, 8192 + 4), 0).node(mib(8192 + 4, 1 << 20), 1),
        |machine, gib| {
            let border = gib << 10;
            machine.ram(mib(border - if gib % 3 == 0 { 0 } else { 24 }, border + 40))
        },
    )
}

/// Traffic on one manager.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// The number of threads. The machine must have a CPU for each and one for the caller.
    pub threads: u32,
    /// The seed of all choices; runs with one thread and one seed are equal.
    pub seed: u64,
    /// The most runs that one thread holds.
    pub held: usize,
    /// The number of steps of each thread in a round.
    pub operations: u64,
}

impl Traffic {
    /// Does rounds while `more`, given the number of completed rounds, returns true. Accounts for
    /// every page after each round, and at the end, when everything is freed. Returns what was
    /// done, and the counts at the end.
    ///
    /// # Errors
    /// The first failure, as text; the machine is left as it was then.
    ///
    /// # Panics
    /// If the machine has too few CPUs for the threads.
    pub fn run(
        &self,
        manager: &Manager<FakeMachine>,
        more: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<(Tally, Counts), String> {
        let shared = Shared::new(manager);
        let round = Round::new(self.threads as usize);
        let machine = manager.platform();
        let callers = machine.current_cpu();
        assert!(
            machine.cpus() > self.threads,
            "{} CPUs are too few for {} threads",
            machine.cpus(),
            self.threads
        );
        thread::scope(|scope| {
            for (number, cpu) in (0..self.threads).zip((0..).filter(|&cpu| cpu != callers)) {
                let (shared, round) = (&shared, &round);
                scope.spawn(move || {
                    machine.run_on(cpu, || self.work(manager, shared, round, number, more))
                });
            }
        });
        machine.assert_quiet();
        if let Some(failure) = lock(&round.failure).take() {
            return Err(failure);
        }
        let counts = shared.settle(manager).map_err(|failure| failure.to_string())?;
        Ok((*lock(&round.tally), counts))
    }

    fn work(
        &self,
        manager: &Manager<FakeMachine>,
        shared: &Shared,
        round: &Round,
        number: u32,
        more: &(dyn Fn(u64) -> bool + Sync),
    ) {
        let mut held = vec![Held::NOTHING; self.held];
        let seed = self.seed.wrapping_mul(0x1_0000_0001).wrapping_add(u64::from(number));
        let mut worker = Worker::new(manager, shared, &mut held, seed);
        for rounds in 1.. {
            // If one thread panics, the others must not wait for it.
            let done = catch_unwind(AssertUnwindSafe(|| worker.run(self.operations)));
            round.note(done, number);
            round.held_pages.fetch_add(worker.pages(), Ordering::Relaxed);
            if round.all_are_here() {
                let held_pages = round.held_pages.swap(0, Ordering::Relaxed);
                if !round.failed() {
                    round.note(Ok(shared.account(manager, held_pages).map(drop)), number);
                }
                round.over.store(round.failed() || !more(rounds), Ordering::Relaxed);
            }
            round.barrier.wait();
            if round.over.load(Ordering::Relaxed) {
                break;
            }
        }
        if !round.failed() {
            let done = catch_unwind(AssertUnwindSafe(|| worker.finish()));
            round.note(done.map(|done| done.map(|tally| *lock(&round.tally) += tally)), number);
        }
    }
}

/// The state that the threads share in a round.
struct Round {
    barrier: Barrier,
    held_pages: AtomicU64,
    over: AtomicBool,
    failure: Mutex<Option<String>>,
    tally: Mutex<Tally>,
}

impl Round {
    fn new(threads: usize) -> Self {
        Self {
            barrier: Barrier::new(threads),
            held_pages: AtomicU64::new(0),
            over: AtomicBool::new(false),
            failure: Mutex::new(None),
            tally: Mutex::new(Tally::default()),
        }
    }

    /// Waits for all threads; returns true to one of them.
    fn all_are_here(&self) -> bool {
        self.barrier.wait().is_leader()
    }

    fn failed(&self) -> bool {
        lock(&self.failure).is_some()
    }

    /// Records the first failure.
    fn note(&self, done: thread::Result<Result<(), Failure>>, number: u32) {
        let failure = match done {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => format!("thread {number}: {failure}"),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text =
                    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic");
                format!("thread {number}: {text}")
            }
        };
        lock(&self.failure).get_or_insert(failure);
    }
}
