//! The parts of a test that runs lives of a memory: the machine, the model of who owns what, the
//! steps, and the interrupt handler.

mod handler;
mod model;
mod steps;

use self::handler::Handler;
use self::model::{Model, Run};
use framewright::reporting::Reporter;
use framewright::units::PhysRange;
use framewright::vmemmap_space::BlockRange;
use framewright::{BringUp, Manager, Parameters};
use framewright_jobs::NoHelpers;
use framewright_testkit::reporting::{Answer, FakeHost, FakeReportDevice, Traits};
use framewright_testkit::workload::Random;
use framewright_testkit::{FakeMachine, FakeVmemmap, SteppedMachine, memblock_of};
use std::sync::Arc;

/// The manager under test: its operations can be interrupted between any two instructions.
pub type Stepped = Manager<SteppedMachine>;

/// Of so many frames that the host has it writes into one: all of them would be most of the memory,
/// and pages that the test's own host must find are what takes it long. The tables lie together, so
/// that it finds them all the same.
const WRITTEN: usize = 61;

/// The debug aids of a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aids {
    Off,
    OwnersAndPoison,
    Clearing,
    Shuffle,
}

impl Aids {
    const fn line(self) -> &'static str {
        match self {
            Self::Off => "",
            Self::OwnersAndPoison => " page_owner=on page_poison=on",
            Self::Clearing => " init_on_alloc=on init_on_free=on",
            Self::Shuffle => " page_alloc.shuffle=on page_alloc.shuffle_seed=77",
        }
    }
}

const fn mib(start: u64, end: u64) -> PhysRange {
    PhysRange::new(start << 20, end << 20)
}

/// Builds a machine of two nodes with whole GiBs, GiBs in pieces and holes, over the memory of
/// `before` if there was a life before.
pub fn machine(before: Option<&'static FakeMachine>) -> &'static FakeMachine {
    let builder = FakeMachine::builder()
        .ram(PhysRange::new(0x1000, 0x9_f000))
        .ram(mib(1, 77))
        .ram(mib(1024, 2048 + 300))
        .ram(mib(4096, 5 * 1024 + 133))
        .node(mib(0, 4096), 0)
        .node(mib(4096, 8192), 1)
        .cpus_on(0, 1)
        .cpus_on(1, 1);
    match before {
        // SAFETY: the life before has ended, and its manager with it.
        Some(before) => unsafe { builder.over(before) }.build(),
        None => builder.build(),
    }
}

/// One manager, from bring-up until nothing is held any more.
pub struct Life {
    manager: &'static Stepped,
    array: Option<&'static FakeVmemmap>,
    host: Arc<FakeHost>,
    reporter: Option<Reporter<'static, SteppedMachine, FakeReportDevice>>,
    random: Random,
    model: Model,
    handler: Handler,
    runs: Vec<Run>,
    isolated: Vec<BlockRange>,
    now_ns: u64,
    deferred: bool,
    /// With page owners, a free must name exactly what one call allocated.
    whole_frees: bool,
    /// Every page of memory is written when it is freed or handed out.
    fills: bool,
    /// Frames lost to memory errors.
    lost_pages: u64,
}

impl Life {
    /// Brings `machine` up. Its memory holds what the life before left there.
    pub fn begin(machine: &'static FakeMachine, line: &str, aids: Aids, seed: u64) -> Self {
        // Every second array takes its frames from the machine.
        let array = line
            .starts_with("memmap_init")
            .then(|| FakeVmemmap::install_with(machine, seed.is_multiple_of(2), false));
        let stepped = SteppedMachine::new(machine);
        let line = format!("{line}{}", aids.line());
        let parameters = Parameters::parse(&line, &mut |problem| panic!("{problem}"));
        let early = memblock_of(stepped, machine.map(), machine.topology(), &[]).expect("early");
        let input = BringUp { parameters: &parameters, started_ns: None };
        let manager: &'static Stepped = Box::leak(Box::new(
            Manager::bring_up(early, &input).unwrap_or_else(|error| panic!("{error}")),
        ));
        manager.hugetlb().fill(&parameters, &NoHelpers);
        let (host, device) =
            FakeHost::new(machine, Traits { stride: WRITTEN, ..Traits::default() });
        host.answer(Answer::After(1));
        let reporter = match aids {
            // This host must not discard poisoned or cleared memory.
            Aids::OwnersAndPoison | Aids::Clearing => None,
            Aids::Off | Aids::Shuffle => {
                let registered = manager.register_reporting(device);
                Some(registered.map_err(|(error, _)| error).expect("the first device"))
            }
        };
        let life = Self {
            manager,
            array,
            host,
            reporter,
            random: Random::new(seed),
            model: Model::new(machine),
            handler: Handler::default(),
            runs: Vec::new(),
            isolated: Vec::new(),
            now_ns: 0,
            deferred: true,
            whole_frees: aids == Aids::OwnersAndPoison,
            fills: matches!(aids, Aids::OwnersAndPoison | Aids::Clearing),
            lost_pages: 0,
        };
        life.check();
        life
    }

    /// Takes `steps` steps, gives everything back and accounts for every page.
    pub fn run(mut self, steps: u32) {
        for step in 0..steps {
            self.step();
            if step % 256 == 0 {
                self.check();
            }
        }
        self.end();
    }

    /// Recounts all tables.
    fn check(&self) {
        let counted = self.manager.verify().unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(counted, self.manager.totals());
        assert_eq!(
            counted.present_pages,
            counted.managed_pages
                + counted.reserved_pages
                + counted.deferred_pages
                + counted.unaccepted_pages
        );
        self.manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
        self.manager.platform().inner().assert_quiet();
    }

    fn end(mut self) {
        while !self.isolated.is_empty() {
            self.unisolate();
        }
        while !self.runs.is_empty() {
            self.give_back_run(self.runs.len() - 1);
        }
        self.empty_handler();
        self.empty_pools();
        if let Some(mut reporter) = self.reporter.take() {
            reporter.close();
            let mut polls = 0;
            while reporter.poll(self.now_ns).is_some() {
                self.now_ns += 1_000_000_000;
                polls += 1;
                assert!(polls < 10_000, "the reporter does not close");
            }
            drop(reporter);
        }
        self.initialise_deferred();
        self.manager.drain().expect("only good frames are cached");
        self.check();
        let totals = self.manager.totals();
        assert_eq!(self.model.owned_pages(), 0);
        // The frames that the array took from the memblock allocator are reserved; the rest are the
        // manager's.
        let descriptor_pages = self.array.map_or(0, |array| array.counts().frames);
        let nobodys = totals.allocated_pages - self.lost_pages;
        assert!(
            nobodys <= descriptor_pages,
            "{nobodys} pages that nobody has, {descriptor_pages} of the array"
        );
        assert_eq!(totals.isolated_pages, 0);
    }
}
