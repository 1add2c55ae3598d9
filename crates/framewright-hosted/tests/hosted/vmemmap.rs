//! The vmemmap of a machine in a process: what it costs, what HVO saves, and that an access to an
//! absent part is detected.

use crate::common::is_killed_by_touching;
use framewright::firmware::{MapBuilder, MapRange, MemoryKind, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::platform::Platform;
use framewright::units::{Order, PfnRange};
use framewright::{BringUp, Manager, Parameters, Request};
use framewright_hosted::{HostedError, HostedHelpers, HostedPlatform};
use framewright_testkit::Owner;
use std::process::Command;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

static HELPERS: HostedHelpers = HostedHelpers::new();

/// Brings up a machine of 8 GiB with 128 MiB of descriptors.
fn bring_up(is_guarded: bool, line: &str) -> Manager<HostedPlatform> {
    let mut storage = [MapRange::EMPTY; 8];
    let mut map = MapBuilder::new(&mut storage);
    map.add(0, 8 * GIB, MemoryKind::Conventional).expect("a range");
    let map = map.finish().expect("a map");
    let platform =
        HostedPlatform::open(map, 2).and_then(|platform| platform.with_vmemmap(false, is_guarded));
    let platform = platform.expect("a machine").leak();
    let topology = Topology::new(&mut []);
    let mut storage = MemblockStorage::new();
    // SAFETY: the platform's memory is there for this machine alone, and nothing lies in it
    // (invariant 1).
    let early = unsafe { Memblock::new(platform, &mut storage, map, &topology) }.expect("early");
    let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).expect("bring-up");
    manager.vmemmap().initialise_deferred(&HELPERS);
    manager.verify().expect("the tables are right");
    manager
}

fn resident_mib(manager: &Manager<HostedPlatform>) -> u64 {
    manager.platform().vmemmap_resident_bytes().expect("smaps") / MIB
}

fn allocate(manager: &Manager<HostedPlatform>, order: u8) -> PfnRange {
    manager.allocate(&Request::new(Order::new(order).expect("an order"))).expect("there is memory")
}

#[test]
fn the_map_of_huge_pages_really_goes_back_to_the_system() {
    let manager = bring_up(false, "memmap_init=deferred");
    let before = resident_mib(&manager);
    assert!((127..=129).contains(&before), "{before} MiB");
    let huge: Vec<PfnRange> = (0..4).map(|_| allocate(&manager, 18)).collect();
    let change = manager.optimize_vmemmap(&huge).expect("they are the caller's");
    assert_eq!((change.blocks, change.flushes, change.freed_pages), (4 * 512, 1, 0));
    assert_eq!(resident_mib(&manager), before - 64);
    let change = manager.restore_vmemmap(&huge[..1]).expect("there is memory");
    assert_eq!(change.blocks, 512);
    assert_eq!(resident_mib(&manager), before - 48);
    // Single huge pages, each a part of a section.
    let pages: Vec<PfnRange> = (0..100).map(|_| allocate(&manager, 9)).collect();
    manager.optimize_vmemmap(&pages).expect("they are the caller's");
    assert!(resident_mib(&manager) <= before - 48 - 3);
    for range in huge.into_iter().chain(pages) {
        manager.give_back(range).expect("allocated");
    }
    manager.verify().expect("the tables are right");
}

#[test]
fn pages_of_the_command_line_never_cost_memory_for_their_map() {
    for policy in ["eager", "deferred"] {
        let words =
            "hugetlb_free_vmemmap=on hugepagesz=1G hugepages=3 hugepagesz=2M hugepages=1000";
        let line = format!("memmap_init={policy} {words}");
        let manager = bring_up(false, &line);
        // Of 4096 blocks 2536 have no descriptors, and none were ever written there.
        assert!(
            resident_mib(&manager) <= 128 - (2536 * 32) / 1024 + 1,
            "{policy}: {} MiB",
            resident_mib(&manager)
        );
        let before = resident_mib(&manager);
        let parameters = Parameters::parse(&line, &mut |problem| panic!("{problem}"));
        let filled = manager.hugetlb().fill(&parameters, &HELPERS);
        assert_eq!(
            filled.pools.map(|pool| (pool.got, pool.without_vmemmap)),
            [(1000, 1000), (3, 3)]
        );
        assert_eq!((manager.hugetlb().flushes(), resident_mib(&manager)), (0, before));
        manager.verify().expect("the tables are right");
        manager.hugetlb().verify().expect("the books are right");
    }
}

#[test]
fn on_demand_costs_nothing() {
    let manager = bring_up(false, "memmap_init=on-demand");
    assert_eq!((resident_mib(&manager), manager.vmemmap().bytes()), (0, 0));
}

#[test]
fn a_touch_of_a_map_that_was_given_back_is_found() {
    let manager = bring_up(true, "memmap_init=eager");
    let huge = allocate(&manager, 18);
    let page = manager
        .platform()
        .vmemmap_space()
        .expect("an array")
        .base()
        .as_ptr()
        .wrapping_add(usize::try_from(huge.start.0 * 64).expect("64-bit addresses"));
    assert!(!is_killed_by_touching(page), "it is present");
    manager.optimize_vmemmap(&[huge]).expect("it is the caller's");
    assert!(is_killed_by_touching(page), "it is absent");
    manager.restore_vmemmap(&[huge]).expect("there is memory");
    assert!(!is_killed_by_touching(page), "it is present again");
    manager.give_back(huge).expect("allocated");
    manager.verify().expect("the tables are right");
}

/// Not a limit on addresses, of which there are enough. In a process of its own, which it limits.
#[test]
fn a_limit_on_data_is_said() {
    const LIMITED: &str = "FRAMEWRIGHT_TEST_LIMITED";
    if std::env::var_os(LIMITED).is_none() {
        let program = std::env::current_exe().expect("this program");
        let role = ["--exact", "vmemmap::a_limit_on_data_is_said"];
        let output = Command::new(program).args(role).env(LIMITED, "yes").output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let limit = libc::rlimit { rlim_cur: 8 * GIB, rlim_max: 8 * GIB };
    // SAFETY: the limit is live, and this process runs only this test.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) }, 0);
    let open = |ranges: &[(u64, u64)]| {
        let mut storage = [MapRange::EMPTY; 8];
        let mut map = MapBuilder::new(&mut storage);
        ranges.iter().for_each(|&(start, size)| {
            map.add(start, size, MemoryKind::Conventional).expect("a range");
        });
        HostedPlatform::open(map.finish().expect("a map"), 1)
    };
    // First the memory itself; then 16 GiB of descriptors for little memory.
    let small = open(&[(0, MIB), (1024 * GIB - MIB, MIB)]).expect("it fits");
    for refused in [open(&[(0, 9 * GIB)]), small.with_vmemmap(true, false)] {
        let error = refused.map(|_| ()).expect_err("it does not fit");
        assert!(matches!(error, HostedError::CannotOpen { .. }), "{error}");
        assert!(error.to_string().contains("`ulimit -d`"), "{error}");
    }
}
