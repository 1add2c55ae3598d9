//! What the tests of the manager share.
#![allow(dead_code, reason = "each test file uses its part")]

use framewright::early::EarlyAllocator;
use framewright::units::{Order, PfnRange, PhysRange};
use framewright::zone::Counts;
use framewright::{BringUp, BringUpError, Manager, Parameters};
use framewright_testkit::FakeMachine;

/// A manager and a tally of what it must hold.
pub type Fake = Manager<FakeMachine>;

/// Brings up a machine after reserving `reserved`, and checks all invariants.
pub fn bring_up_reserving(machine: &'static FakeMachine, reserved: &[PhysRange]) -> Result<Fake, BringUpError> {
    bring_up_with(machine, reserved, &parameters(""))
}

/// Parameters of a command line, and `careful=` when this run is.
pub fn parameters(line: &str) -> Parameters {
    let careful = framewright_testkit::careful().map_or(String::new(), |seed| format!(" careful={seed}"));
    Parameters::parse(&format!("{line}{careful}"), &mut |problem| panic!("{problem}"))
}

/// Whether this run is careful.
pub fn is_careful() -> bool {
    framewright_testkit::careful().is_some()
}

/// The same with parameters.
pub fn bring_up_with(
    machine: &'static FakeMachine,
    reserved: &[PhysRange],
    parameters: &Parameters,
) -> Result<Fake, BringUpError> {
    let mut early = EarlyAllocator::with_reserved(machine, machine.map(), machine.topology(), reserved).expect("early");
    let input = BringUp { map: machine.map(), topology: machine.topology(), parameters, started_ns: None };
    let manager = Manager::bring_up(&mut early, &input)?;
    check(&manager);
    Ok(manager)
}

/// Brings up a machine and checks all invariants.
pub fn bring_up(machine: &'static FakeMachine) -> Fake {
    bring_up_reserving(machine, &[]).expect("bring-up")
}

/// Recounts everything.
pub fn check(manager: &Fake) {
    let counted = manager.verify().unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(counted, manager.totals());
    assert_eq!(counted.present_pages, counted.managed_pages + counted.reserved_pages);
    manager.platform().assert_quiet();
}

/// Counts with nothing left in the caches of CPUs.
pub fn settled(manager: &Fake) -> Counts {
    manager.drain().expect("only good frames are cached");
    manager.totals()
}

/// Pages that callers have, those in the caches of CPUs left out.
pub fn in_use(manager: &Fake) -> u64 {
    manager.totals().allocated_pages - manager.cached_pages()
}

/// `start..end` in MiB.
pub const fn mib(start: u64, end: u64) -> PhysRange {
    PhysRange::new(start << 20, end << 20)
}

/// `start..end` in GiB.
pub const fn gib(start: u64, end: u64) -> PhysRange {
    PhysRange::new(start << 30, end << 30)
}

/// Order `order`.
pub fn order(order: u8) -> Order {
    Order::new(order).expect("an order")
}

/// `blocks` blocks from `start` on.
pub fn part(start: PfnRange, first: u64, blocks: u64) -> PfnRange {
    PfnRange::new(start.start.0 + first * 512, start.start.0 + (first + blocks) * 512)
}
