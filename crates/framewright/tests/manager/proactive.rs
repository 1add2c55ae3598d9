//! Compaction in the background: when it begins and ends, how much a poll does at most, and which
//! nodes it leaves alone.

use crate::common::{Fake, bring_up_with, check, filled, mib, with_pages};
use framewright::manager::MovingEvents;
use framewright::parameters::Pages;
use framewright::units::{NodeId, Order};
use framewright::{MigrateType, Request};
use framewright_testkit::workload::{Habits, Handles};
use framewright_testkit::{FakeMachine, Owner};

const SECOND_NS: u64 = 1_000_000_000;

/// Nodes of these sizes in MiB, all memory in pieces and half of it free; the movers live for ever.
fn fragmented(nodes: &[u64]) -> (&'static Fake, &'static Handles<'static, FakeMachine>) {
    let mut builder = FakeMachine::builder();
    for (node, &size_mib) in nodes.iter().enumerate() {
        let start = 4096 + node as u64 * 1024;
        let ram = mib(start, start + size_mib);
        builder = builder.ram(ram).node(ram, node).cpus_on(node, 1);
    }
    let manager: &'static Fake = Box::leak(Box::new(
        bring_up_with(builder.build(), &[], &with_pages(Pages::None)).expect("bring-up"),
    ));
    (manager, filled(manager, 1 << 18, |pfn| pfn % 2 != 0))
}

fn score(manager: &Fake, node: usize) -> u64 {
    manager.moving().fragmentation_score(NodeId::new(node).expect("small"))
}

fn events(manager: &Fake) -> MovingEvents {
    manager.moving().events()
}

#[test]
fn nodes_are_compacted_a_little_at_a_time_until_they_are_below_the_low_mark() {
    let (manager, handles) = fragmented(&[512, 64]);
    let mut compactor = manager.moving().compactor();
    assert_eq!([score(manager, 0), score(manager, 1), score(manager, 2)], [99, 99, 0]);
    // There is no mover, and nothing is wanted.
    let mut now = 7;
    assert_eq!(compactor.poll(now), now + SECOND_NS / 2);
    manager.moving().set_mover(Some(handles));
    manager.sysctl().set_compaction_proactiveness(0).expect("in range");
    now += SECOND_NS / 2;
    assert_eq!(compactor.poll(now), now + SECOND_NS / 2);
    assert_eq!(events(manager), MovingEvents::default());
    // The low and high marks are now 80 and 90 percent.
    manager.sysctl().set_compaction_proactiveness(20).expect("in range");
    let mut polls = 0;
    now += SECOND_NS / 2;
    let until = now + 10 * SECOND_NS;
    while now < until {
        let before = events(manager).begun_runs;
        let next = compactor.poll(now);
        let begun = events(manager).begun_runs - before;
        assert!(begun <= 2 * 4096 && next > now);
        polls += u32::from(begun != 0);
        now = next;
    }
    let told = events(manager);
    assert!(polls > 1 && told.daemon_wakes == 2 && told.daemon_scanned_pages != 0, "{told:?}");
    assert_eq!(told.daemon_scanned_pages, told.scanned_pages);
    for node in [0, 1] {
        // Compaction ends at the low mark, and not far below it: a block that CPUs allocate from is
        // in pieces.
        assert!((74..=80).contains(&score(manager, node)), "{}", score(manager, node));
    }
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
    // Between the marks it does not begin again.
    manager.sysctl().set_compaction_proactiveness(22).expect("in range");
    compactor.poll(now + 10 * SECOND_NS);
    assert_eq!(events(manager), told);
    manager.sysctl().set_compaction_proactiveness(100).expect("in range");
    let mut now = now + 20 * SECOND_NS;
    for _ in 0..100 {
        now = compactor.poll(now);
    }
    assert!(score(manager, 0) <= 15 && score(manager, 1) <= 15);
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

#[test]
fn a_node_that_cannot_be_compacted_is_left_alone_for_a_while() {
    let (manager, handles) = fragmented(&[64]);
    manager.moving().set_mover(Some(handles));
    handles.set_habits(Habits { refuse_every: 1, ..Habits::default() });
    let mut compactor = manager.moving().compactor();
    let now = SECOND_NS;
    let next = compactor.poll(now);
    let told = events(manager);
    assert!(told.moved_pages == 0 && told.daemon_wakes >= 1);
    // It looks at other nodes, but not at this one.
    assert_eq!(next, now + SECOND_NS / 2);
    handles.set_habits(Habits::default());
    let until = now + 32 * SECOND_NS;
    let mut at = next;
    while at < until {
        at = compactor.poll(at);
        assert_eq!(events(manager).begun_runs, told.begun_runs);
    }
    compactor.poll(until);
    assert!(events(manager).moved_pages != 0);
    check(manager);
}

#[test]
fn reclaim_comes_first() {
    let (manager, handles) = fragmented(&[64]);
    manager.moving().set_mover(Some(handles));
    let mut held = Vec::new();
    while manager.pressure().background().is_none() {
        held.push(manager.allocate(&Request::new(Order::PAGE)).expect("memory"));
    }
    manager.drain().expect("in order");
    let mut compactor = manager.moving().compactor();
    assert!(score(manager, 0) > 90);
    compactor.poll(SECOND_NS);
    assert_eq!(events(manager).begun_runs, 0);
    held.into_iter().for_each(|page| manager.give_back(page).expect("ours"));
    manager.drain().expect("in order");
    compactor.poll(2 * SECOND_NS);
    assert_ne!(events(manager).begun_runs, 0);
    check(manager);
}

/// Memory that only movable requests may have does not help other requests.
#[test]
fn graded_memory_does_not_end_the_shortage_of_what_cannot_be_moved() {
    use framewright::vmemmap_space::{BlockNumber, BlockRange};
    use framewright::zone::Grade;
    let machine = FakeMachine::builder().ram(mib(4096, 4096 + 128)).build();
    let manager = bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up");
    let half = BlockRange { start: BlockNumber(2048), end: BlockNumber(2048 + 32) };
    manager.moving().set_grade(half, Grade::MovableOnly).expect("free");
    let fixed = Request { migrate_type: MigrateType::Unmovable, ..Request::new(Order::PAGE) };
    let mut held = Vec::new();
    while manager.pressure().background().is_none() {
        held.push(manager.allocate(&fixed).expect("memory"));
        assert!(held.len() < 1 << 15, "nobody asks for reclaim");
    }
    let zone = manager.views().next().expect("one");
    assert!(zone.free_pages() > zone.watermarks().high_pages + 8192);
    while let Some(shortage) = manager.pressure().background() {
        let left = zone.free_pages() - zone.graded_free_pages();
        assert_eq!(shortage.pages, zone.watermarks().high_pages - left);
        manager.give_back(held.pop().expect("more than that is held")).expect("ours");
        manager.drain().expect("in order");
    }
    held.into_iter().for_each(|page| manager.give_back(page).expect("ours"));
    check(&manager);
}
