//! Free memory of a process goes back to the operating system, and its content afterwards is as
//! promised.

use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::reporting::{Content, ReportDevice, SubmitError};
use framewright::units::{Order, PfnRange, PhysRange};
use framewright::{BringUp, Manager, Parameters, Platform, Request};
use framewright_hosted::{Advice, HostedError, HostedPlatform, MadviseDevice};
use framewright_testkit::Owner;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 512 * MIB;

fn with_platform<T>(
    shared: bool,
    body: impl FnOnce(&'static HostedPlatform, Manager<HostedPlatform>) -> T,
) -> T {
    let mut ranges = [MapRange::EMPTY; 8];
    let mut map = MapBuilder::new(&mut ranges);
    map.add(4 << 30, SIZE, MemoryKind::Conventional).expect("room");
    let map = map.finish().expect("a map");
    let platform =
        if shared { HostedPlatform::open_shared(map, 2) } else { HostedPlatform::open(map, 2) };
    let platform = platform.expect("a platform").leak();
    let mut claims = [MemoryAffinity::EMPTY; 8];
    let topology = Topology::new(&mut claims);
    let parameters = Parameters::default();
    let mut storage = MemblockStorage::new();
    // SAFETY: the platform's memory is there for this machine alone, and nothing lies in it
    // (invariant 1).
    let early = unsafe { Memblock::new(platform, &mut storage, map, &topology) }.expect("early");
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).expect("bring-up");
    body(platform, manager)
}

fn touch(platform: &HostedPlatform, range: PfnRange) {
    let bytes = range.to_phys();
    for address in (bytes.start..bytes.end).step_by(4096) {
        // SAFETY: the frames are the test's.
        unsafe { platform.direct(address).write_bytes(0x5a, 8) };
    }
}

#[test]
fn dirty_memory_goes_back_and_reads_as_zero() {
    for (shared, advice) in [(false, Advice::DontNeed), (true, Advice::HolePunch)] {
        with_platform(shared, |platform, manager| {
            assert_eq!(Advice::for_platform(platform), advice);
            let before = platform.resident_bytes().expect("smaps");
            // SAFETY: registered with the manager of this platform, or with none.
            let device = unsafe { MadviseDevice::new(platform, advice) }.expect("it fits");
            let mut reporter = manager
                .register_reporting(device)
                .map_err(|(error, _)| error)
                .expect("the only one");
            let mut held = Vec::new();
            for _ in 0..128 {
                let block = manager.allocate(&Request::new(Order::BLOCK)).expect("there is memory");
                touch(platform, block);
                held.push(block);
            }
            assert!(platform.resident_bytes().expect("smaps") >= before + 256 * MIB);
            // Every second block is freed, so a report has many ranges.
            let (free, kept): (Vec<_>, Vec<_>) =
                held.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
            free.iter().for_each(|(_, block)| manager.give_back(*block).expect("it is held"));
            manager.reporting().flush();
            for ms in 0..200 {
                reporter.poll(ms * 1_000_000);
            }
            let counters = manager.reporting_counters();
            assert_eq!(
                (counters.flushes, counters.errors, counters.refused_ranges),
                (1, 0, 0),
                "{counters:?}"
            );
            let after = platform.resident_bytes().expect("smaps");
            assert!(
                after <= before + 128 * MIB + 4 * MIB,
                "{advice:?}: {} MiB",
                (after - before) / MIB
            );
            for (_, block) in &kept {
                // SAFETY: the frame is ours.
                let first = unsafe { platform.direct(block.start.address()).read() };
                assert_eq!(first, 0x5a, "what is in use stays");
            }
            for _ in 0..100 {
                let block =
                    manager.allocate(&Request { zeroed: true, ..Request::new(Order::BLOCK) });
                let bytes = block.expect("there is memory").to_phys();
                for address in (bytes.start..bytes.end).step_by(4096) {
                    // SAFETY: the frame is ours.
                    assert_eq!(unsafe { platform.direct(address).cast::<u64>().read() }, 0);
                }
            }
            manager.verify().unwrap_or_else(|fault| panic!("{fault}"));
        });
    }
}

#[test]
fn memory_that_may_be_taken_keeps_its_content_or_is_zero() {
    with_platform(false, |platform, manager| {
        // SAFETY: registered with the manager of this platform, or with none.
        let device = unsafe { MadviseDevice::new(platform, Advice::Free) }.expect("it fits");
        assert_eq!(device.content(), Content::Undefined);
        let mut reporter =
            manager.register_reporting(device).map_err(|(error, _)| error).expect("the only one");
        let block = manager.allocate(&Request::new(Order::BLOCK)).expect("there is memory");
        touch(platform, block);
        manager.give_back(block).expect("it is held");
        manager.reporting().flush();
        for ms in 0..200 {
            reporter.poll(ms * 1_000_000);
        }
        assert_eq!(manager.reporting_counters().errors, 0);
        let zeroed =
            manager.allocate_at(block.start, Order::BLOCK, framewright::zone::MigrateType::Movable);
        zeroed.expect("it is free");
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    for (shared, advice) in
        [(true, Advice::DontNeed), (true, Advice::Free), (false, Advice::HolePunch)]
    {
        with_platform(shared, |platform, _manager| {
            // SAFETY: registered with the manager of this platform, or with none.
            let refused = unsafe { MadviseDevice::new(platform, advice) }.err();
            assert!(matches!(refused, Some(HostedError::AdviceDoesNotFit { .. })), "{refused:?}");
        });
    }
    with_platform(false, |platform, _manager| {
        let mut device =
            // SAFETY: registered with no manager.
            unsafe { MadviseDevice::new(platform, Advice::DontNeed) }.expect("it fits");
        // The machine has no memory at this range: the device returns an error and touches nothing.
        // SAFETY: there is no memory that could be in use.
        let mut submit = |ranges: &[PhysRange]| unsafe { device.submit(ranges) };
        assert_eq!(
            submit(&[PhysRange::new(0, 4096), PhysRange::new(4096, 8192)]),
            Err(SubmitError::Failed)
        );
        assert_eq!(submit(&[PhysRange::new(0, 4096)]), Err(SubmitError::Failed));
    });
}
