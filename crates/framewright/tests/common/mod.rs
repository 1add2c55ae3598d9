//! Code shared by the tests of the manager.
#![allow(dead_code, reason = "each program uses its part")]

pub mod pool_machine;
pub mod reporting_rig;

use framewright::parameters::{Pages, Policy};
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::Counts;
use framewright::zone::MigrateType;
use framewright::{BringUp, BringUpError, Manager, Parameters, Request, Reserves};
use framewright_testkit::workload::{Handle, Handles};
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};
use std::collections::BTreeMap;

/// A manager and a tally of what it must hold.
pub type Fake = Manager<FakeMachine>;

/// Parses the parameters of a command line, with `careful=` added in a careful run.
/// `FRAMEWRIGHT_PARTS=4` in the environment divides zones that the line does not divide; not all
/// expected values hold then.
pub fn parameters(line: &str) -> Parameters {
    let careful =
        framewright_testkit::careful().map_or(String::new(), |seed| format!(" careful={seed}"));
    let parts = std::env::var("FRAMEWRIGHT_PARTS")
        .map_or(String::new(), |parts| format!("zone_parts={parts} "));
    Parameters::parse(&format!("{parts}{line}{careful}"), &mut |problem| panic!("{problem}"))
}

/// Whether this run is careful.
pub fn is_careful() -> bool {
    framewright_testkit::careful().is_some()
}

/// Brings up the machine's memory with `parameters`.
pub fn bring_up_with(
    machine: &'static FakeMachine,
    reserved: &[PhysRange],
    parameters: &Parameters,
) -> Result<Fake, BringUpError> {
    let early = machine.memblock(reserved);
    let input = BringUp { parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error)?;
    check(&manager);
    Ok(manager)
}

/// Gives the memory of a manager that is no longer used back to the host, so that a test that makes
/// many machines holds only one at a time.
pub fn retire(manager: &Fake) {
    // SAFETY: the manager is no longer used, and no test keeps a reference into its memory.
    unsafe { manager.platform().retire() };
}

/// Brings up a machine and checks all invariants.
pub fn bring_up(machine: &'static FakeMachine) -> Fake {
    Descriptors::None.bring_up(machine)
}

/// Does what [`Descriptors::bring_up_reserving`] does, without descriptors.
pub fn bring_up_reserving(
    machine: &'static FakeMachine,
    reserved: &[PhysRange],
) -> Result<Fake, BringUpError> {
    Descriptors::None.bring_up_reserving(machine, reserved)
}

/// Does what [`Descriptors::bring_up_described`] does, with descriptors inside the blocks.
pub fn bring_up_described(machine: &'static FakeMachine) -> Fake {
    Descriptors::None.bring_up_described(machine)
}

/// Where a file's tests keep page descriptors unless they ask for something else. Some files run
/// once for each variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Descriptors {
    /// No descriptors.
    None,
    /// Descriptors lie in the blocks that they describe.
    Inside,
    /// Descriptors lie in an array that bring-up writes.
    Eager,
    /// Descriptors lie in an array that is written later.
    Deferred,
    /// No descriptors, and zones have up to four parts.
    InParts,
}

impl Descriptors {
    pub const ALL: [Self; 5] =
        [Self::None, Self::Inside, Self::Eager, Self::Deferred, Self::InParts];

    /// Brings up a machine and checks all invariants.
    pub fn bring_up(self, machine: &'static FakeMachine) -> Fake {
        self.bring_up_reserving(machine, &[]).expect("bring-up")
    }

    /// Brings up a machine after reserving `reserved`, and checks all invariants.
    pub fn bring_up_reserving(
        self,
        machine: &'static FakeMachine,
        reserved: &[PhysRange],
    ) -> Result<Fake, BringUpError> {
        let (pages, policy) = match self {
            Self::None | Self::InParts => (Pages::None, Policy::OnDemand),
            Self::Inside => (Pages::Inside, Policy::OnDemand),
            Self::Eager => (Pages::Auto, Policy::Eager),
            Self::Deferred => (Pages::Auto, Policy::Deferred),
        };
        if self.has_array() {
            // The array takes no frames of the machine, so that there is as much memory as without
            // it.
            FakeVmemmap::install_with(machine, false, false);
        }
        let mut parameters = with_pages(pages);
        parameters.policy = policy;
        self.divide(&mut parameters);
        let manager = bring_up_with(machine, reserved, &parameters)?;
        manager.vmemmap().initialise_deferred(&framewright_jobs::NoHelpers);
        Ok(manager)
    }

    /// Does what [`Self::bring_up`] does, with descriptors inside the blocks where there is no
    /// array for them.
    pub fn bring_up_described(self, machine: &'static FakeMachine) -> Fake {
        if self.has_array() {
            return self.bring_up(machine);
        }
        let mut parameters = with_pages(Pages::Inside);
        self.divide(&mut parameters);
        bring_up_with(machine, &[], &parameters).expect("bring-up")
    }

    fn divide(self, parameters: &mut Parameters) {
        if self == Self::InParts {
            parameters.zone_parts = Some(4);
        }
    }

    /// Returns whether every page has a descriptor in an array.
    pub fn has_array(self) -> bool {
        matches!(self, Self::Eager | Self::Deferred)
    }
}

/// Returns parameters with `pages` as the setting for descriptors.
pub fn with_pages(pages: Pages) -> Parameters {
    let mut parameters = parameters("");
    parameters.pages = pages;
    parameters
}

/// Does what [`with_pages`] does, but never carefully: for tests that count every page of the
/// tables, or that free neighbours in one call, which page owners refuse.
pub fn plain_with_pages(pages: Pages) -> Parameters {
    let mut parameters = Parameters::default();
    parameters.pages = pages;
    parameters
}

/// Returns every frame that holds descriptors.
pub fn descriptor_frames_of(manager: &Fake) -> Vec<Pfn> {
    let segments = manager.zones().iter().flat_map(|zone| zone.segments());
    let blocks = segments.flat_map(|segment| (segment.start.0..segment.end().0).map(BlockNumber));
    blocks.filter_map(|block| manager.vmemmap().descriptor_frames(block)).flatten().collect()
}

/// Recounts everything.
pub fn check(manager: &Fake) {
    let counted = manager.verify().unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(counted, manager.totals());
    assert_eq!(
        counted.present_pages,
        counted.managed_pages
            + counted.reserved_pages
            + counted.deferred_pages
            + counted.unaccepted_pages
    );
    manager.platform().assert_quiet();
}

/// Returns the counts after emptying the caches of CPUs.
pub fn settled(manager: &Fake) -> Counts {
    manager.drain().expect("only good frames are cached");
    manager.totals()
}

/// Pages that callers have, those in the caches of CPUs left out.
pub fn in_use(manager: &Fake) -> u64 {
    manager.totals().allocated_pages - manager.caches().pages()
}

/// Pages that nobody has: free ones, and those that hold descriptors, of which there are as many as
/// blocks in pieces.
pub fn idle_pages(manager: &Fake) -> u64 {
    let totals = manager.totals();
    totals.free_pages + totals.descriptor_pages
}

/// All of a machine's memory in use, page by page, up to `count` of them; then only what is chosen
/// by its first frame. Movers live for ever.
pub fn filled(
    manager: &'static Fake,
    count: u32,
    stays: impl Fn(u64) -> bool,
) -> &'static Handles<'static, FakeMachine> {
    let handles: &'static Handles<'static, FakeMachine> =
        Box::leak(Box::new(Handles::new(manager, count).expect("memory")));
    let all = Request { reserves: Reserves::All, ..Request::new(Order::PAGE) };
    while handles.adopt(&all).is_ok() {}
    let goes = |&handle: &Handle| handles.range(handle).is_some_and(|run| !stays(run.start.0));
    let goes: Vec<Handle> = handles.held().filter(goes).collect();
    goes.into_iter().for_each(|handle| handles.free(handle).expect("held"));
    settled(manager);
    handles
}

/// Allocates and frees by chance, `rounds` times, runs of the order and type that `wanted` names by
/// round and chance, `most` of them at a time, and checks all books now and then. Ends with nothing
/// held and all that was free free again.
pub fn random_pieces(
    manager: &Fake,
    rounds: u32,
    most: usize,
    wanted: impl Fn(u32, usize) -> (u8, MigrateType),
) {
    let free = idle_pages(manager);
    let end = manager.zones().iter().map(|zone| zone.span().end.0).max().unwrap_or(1);
    let mut held: BTreeMap<u64, u8> = BTreeMap::new();
    let mut seed = 7_u64;
    for round in 0..rounds {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (of, kind) = wanted(round, (seed >> 33) as usize);
        if seed >> 60 & 1 == 0 && held.len() < most {
            if let Ok(start) = manager.allocate_order(order(of), kind) {
                let next = held.range(start.0..).next().map_or(u64::MAX, |(&start, _)| start);
                let before =
                    held.range(..start.0).next_back().map_or(0, |(&start, &of)| start + (1 << of));
                assert!(
                    before <= start.0 && start.0 + (1 << of) <= next,
                    "{start} of order {of} was held"
                );
                held.insert(start.0, of);
            }
        } else if let Some((&start, &of)) =
            held.range((seed >> 20) % end..).next().or(held.iter().next())
        {
            manager.give_back_order(Pfn(start), order(of)).expect("held");
            held.remove(&start);
        }
        if round % 50 == 0 {
            check(manager);
        }
    }
    for (start, of) in held {
        manager.give_back_order(Pfn(start), order(of)).expect("held");
    }
    manager.drain().expect("good frames");
    check(manager);
    assert_eq!(idle_pages(manager), free);
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

/// So many blocks from `start` on.
pub fn blocks(start: u32, count: u32) -> BlockRange {
    BlockRange::new(start, start + count)
}

/// Free pages that only movable requests may have.
pub fn graded(manager: &Fake) -> u64 {
    manager.zones().iter().map(framewright::zone::Zone::graded_pages).sum()
}

/// A request for what cannot be moved.
pub fn unmovable(order: Order) -> Request {
    Request { migrate_type: MigrateType::Unmovable, ..Request::new(order) }
}

/// Whether any of a run lies in blocks.
pub fn is_in(range: BlockRange, run: PfnRange) -> bool {
    let pages = PfnRange { start: range.start.start(), end: range.end.start() };
    !run.intersection(pages).is_empty()
}
