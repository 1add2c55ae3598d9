//! What the tests of the shell share: a machine of two nodes whose CPUs are threads, and a host
//! that interrupts when it is told to.
#![allow(dead_code, reason = "each test file uses its part")]

use framewright::units::PhysRange;
use framewright::{BringUp, Manager, Parameters, Reclaim};
use framewright_shell::Host;
use framewright_testkit::FakeMachine;
use framewright_testkit::workload::{Relay, Window};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub type Fake = Manager<FakeMachine>;

/// Lets the machine's CPUs work, and time pass.
pub struct Threads {
    pub machine: &'static FakeMachine,
    /// Commands that may begin before somebody interrupts; none when 0.
    pub patience: AtomicU32,
    /// Looks that a command may take until somebody interrupts; never when 0.
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
            // The calling thread is one.
            for cpu in 1..framewright::Platform::cpus(self.machine) {
                scope.spawn(move || self.machine.run_on(cpu, || others(cpu)));
            }
            own();
        });
    }
}

/// Two CPUs and two nodes of so many MiB, the second at 4 GiB; the clock leaps by `step_ns`
/// whenever somebody looks at it.
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
