//! Shared by the shell's tests: a machine of two nodes whose CPUs are threads, and a host that
//! interrupts on request.
#![allow(dead_code, reason = "each test file uses its part")]

use framewright::manager::MOST_AREAS;
use framewright::procfs::{FileSystem, Source};
use framewright::units::PhysRange;
use framewright::{BringUp, Manager, Parameters, Reclaim};
use framewright_jobs::NoHelpers;
use framewright_shell::{Host, Run, Shell};
use framewright_testkit::FakeMachine;
use framewright_testkit::workload::{Relay, Window};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub type Fake = Manager<FakeMachine>;

/// A host that lets the machine's CPUs work and lets time pass.
pub struct Threads {
    pub machine: &'static FakeMachine,
    /// How many commands may begin before an interrupt; 0 for no interrupt.
    pub patience: AtomicU32,
    /// How many polls a command may make before an interrupt; 0 for no interrupt.
    pub looks: AtomicU32,
    pub interrupted: AtomicU32,
    pub window: Option<Arc<dyn Window + Send>>,
    pub relay: Option<&'static Relay>,
    pub reclaim_relay: Option<&'static Relay<dyn Reclaim>>,
}

impl Host for Threads {
    fn pause(&self, nanoseconds: u64) {
        self.machine.advance_ns(nanoseconds.min(300_000_000));
    }

    fn is_interrupted(&self) -> bool {
        let left = self.looks.load(Ordering::Relaxed);
        let looked_enough =
            left == 1 || left > 1 && self.looks.fetch_sub(1, Ordering::Relaxed) <= 2;
        looked_enough || self.interrupted.load(Ordering::Relaxed) != 0
    }

    fn window(&self) -> Option<&dyn Window> {
        self.window.as_ref().map(|window| &**window as &dyn Window)
    }

    fn relay(&self) -> Option<&'static Relay> {
        self.relay
    }

    fn reclaim_relay(&self) -> Option<&'static Relay<dyn Reclaim>> {
        self.reclaim_relay
    }

    fn begin_command(&self) {
        let is_last = self
            .patience
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            == Ok(1);
        self.interrupted.store(u32::from(is_last), Ordering::Relaxed);
    }

    fn on_each_cpu(&self, work: &(dyn Fn(u32) + Sync)) {
        self.beside(work, &mut || work(0));
    }

    fn beside(&self, others: &(dyn Fn(u32) + Sync), own: &mut dyn FnMut()) {
        std::thread::scope(|scope| {
            // The calling thread is one of the CPUs.
            for cpu in 1..framewright::Platform::cpus(self.machine) {
                scope.spawn(move || self.machine.run_on(cpu, || others(cpu)));
            }
            own();
        });
    }
}

/// Creates two CPUs and two nodes of these sizes, the second at 4 GiB; each reading advances the
/// clock by `step_ns`.
pub fn machine(line: &str, nodes_mib: [u64; 2], step_ns: u64) -> (Fake, Threads) {
    let mib = |start: u64, size: u64| PhysRange::new(start << 20, (start + size) << 20);
    let [low, high] = [mib(0, nodes_mib[0]), mib(4096, nodes_mib[1])];
    let builder = FakeMachine::builder().ram(low).ram(high).cpus(1).cpus_on(1, 1);
    let machine = builder.node(low, 0).node(high, 1).clock_step_ns(step_ns).build();
    let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
    let early = machine.memblock(&[]);
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).expect("bring-up");
    let zero = || AtomicU32::new(0);
    (
        manager,
        Threads {
            machine,
            patience: zero(),
            looks: zero(),
            interrupted: zero(),
            window: None,
            relay: Some(Box::leak(Box::default())),
            reclaim_relay: Some(Box::leak(Box::default())),
        },
    )
}

/// What a shell returned for a text: status, output and errors.
pub type Said = (u8, String, String);

/// Lets `used` run texts in one shell, with other work in between, and frees everything.
pub fn with_shell(manager: &Fake, host: &Threads, used: impl FnOnce(&mut dyn FnMut(&str) -> Said)) {
    let (ours, pools) = (manager.files(), manager.hugetlb().files(&NoHelpers));
    let pools = pools.table();
    let sources: [&dyn Source; 2] = [&ours, &pools];
    let mut room = [Run::NOTHING; 8];
    // SAFETY: the commands free what they allocated, there is no window, and it is dropped here.
    let mut shell = unsafe { Shell::new(manager, FileSystem::new(&sources), host, &mut room) };
    used(&mut |text| {
        let (mut out, mut errors) = (String::new(), String::new());
        let status = shell.run(text, &mut out, &mut errors);
        manager.verify().expect("the tables are right");
        (status, out, errors)
    });
    shell.free_all();
    manager.verify().expect("the tables are right");
}

/// A machine, and shells on it that leave it unchanged.
pub struct Bench {
    pub manager: Fake,
    pub host: Threads,
}

impl Bench {
    /// Creates a machine as [`machine`] does.
    pub fn new(line: &str, nodes_mib: [u64; 2]) -> Self {
        let (manager, host) = machine(line, nodes_mib, 1000);
        Self { manager, host }
    }

    /// Returns the memory in use, without the bitmaps of areas, which are never freed.
    fn in_use(&self) -> u64 {
        let areas = (0..MOST_AREAS).filter_map(|number| self.manager.moving().area(number));
        let bitmaps: u64 = areas.map(|(_, range, _)| range.pages().div_ceil(8 << 12)).sum();
        self.manager.totals().allocated_pages - self.manager.caches().pages() - bitmaps
    }

    /// Runs a text in a new shell, which frees everything at the end: all areas are whole then.
    pub fn run(&self, text: &str) -> Said {
        let before = self.in_use();
        let mut said = None;
        with_shell(&self.manager, &self.host, |run| said = Some(run(text)));
        assert_eq!((self.in_use(), self.manager.totals().isolated_pages), (before, 0), "{text}");
        for (name, _, counts) in (0..MOST_AREAS).filter_map(|at| self.manager.moving().area(at)) {
            let name = name.as_str();
            assert_eq!(counts.available_pages, counts.total_pages, "{name} after {text}");
            assert_eq!(counts.released_pages, counts.success_pages, "{name} after {text}");
        }
        self.manager.platform().assert_quiet();
        said.expect("it was run")
    }

    /// Returns the output lines of a text that must succeed.
    pub fn says(&self, text: &str) -> Vec<String> {
        let (status, out, errors) = self.run(text);
        assert_eq!((status, errors.as_str()), (0, ""), "{text}: {out}");
        out.lines().map(str::to_owned).collect()
    }

    /// Checks that a text fails with this status and one line of errors that contains `expected`.
    pub fn complains(&self, text: &str, status: u8, expected: &str) {
        let (found, out, errors) = self.run(text);
        assert!(found == status && errors.contains(expected), "{text}: {found}, {out}{errors}");
        assert_eq!(errors.lines().count(), 1, "{text}: {errors}");
    }
}
