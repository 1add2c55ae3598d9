//! 1 GiB pages out of reserve areas: `hugetlb_cma=` and `hugetlb_cma_only`.

use crate::common::{Fake, bring_up_with, check, gib, order, parameters, retire, settled};
use framewright::Request;
use framewright::hugetlb::PoolSize;
use framewright::manager::AreaCounts;
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, PfnRange};
use framewright::zone::{Grade, MigrateType};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::Handles;
use framewright_testkit::{FakeMachine, Owner};

const GIB_PAGES: u64 = 1 << 18;

/// Two nodes, of 3 and 2 GiB.
fn machine(line: &str) -> &'static Fake {
    let builder = FakeMachine::builder().ram(gib(4, 7)).ram(gib(7, 9)).cpus(2);
    let builder = builder.node(gib(4, 7), 0).node(gib(7, 9), 1);
    let up = bring_up_with(builder.build(), &[], &parameters(line)).expect("bring-up");
    Box::leak(Box::new(up))
}

fn area(manager: &Fake, node: usize) -> Option<(PfnRange, AreaCounts)> {
    let number = manager.moving().area_named(&format!("hugetlb{node}"))?;
    manager.moving().area(number).map(|(_, range, counts)| (range, counts))
}

fn available(manager: &Fake) -> u64 {
    [0, 1].iter().filter_map(|&node| area(manager, node)).map(|(_, of)| of.available_pages).sum()
}

#[test]
fn pages_come_from_areas_first_and_go_back_to_them() {
    for line in ["hugetlb_cma=2G", "hugetlb_cma=0:1G,1:1G page_owner=on page_poison=1"] {
        let manager = machine(line);
        check(manager);
        assert_eq!(manager.moving().failed_area_bytes(), 0, "{line}");
        let ranges: Vec<PfnRange> =
            [0, 1].map(|node| area(manager, node).expect("made").0).to_vec();
        assert!(ranges.iter().all(|range| range.pages() == GIB_PAGES));
        assert!(ranges.iter().all(|range| range.start.0.is_multiple_of(GIB_PAGES)));
        // Unmovable requests get no memory of the areas; movable ones do.
        let fixed = Request { migrate_type: MigrateType::Unmovable, ..Request::new(order(9)) };
        let outside = manager.allocate(&fixed).expect("memory");
        assert!(ranges.iter().all(|range| range.intersection(outside).is_empty()));
        manager.give_back(outside).expect("ours");
        let handles: &'static Handles<'static, FakeMachine> =
            Box::leak(Box::new(Handles::new(manager, 1 << 14).expect("memory")));
        let inside = |range: PfnRange| ranges.iter().any(|area| area.contains(range.start));
        while handles.held().filter(|&one| handles.range(one).is_some_and(inside)).count() < 40 {
            handles.allocate(order(6)).expect("memory");
        }
        settled(manager);
        let pool = manager.pool(PoolSize::OneGib);
        let before = manager.totals();
        manager.moving().set_mover(Some(handles));
        let got = pool.resize(2, &NoHelpers).expect("nobody else resizes");
        assert_eq!((got.reached, available(manager)), (2, 0), "{line}");
        check(manager);
        handles.held().for_each(|handle| handles.check(handle).expect("intact"));
        assert!(handles.held().all(|handle| !handles.range(handle).is_some_and(inside)));
        // Pages from areas are used as any other pages.
        let second = NodeId::new(1).expect("small");
        let page = pool.allocate(NodeChoice::Exact(second), false).expect("free");
        assert!(inside(page));
        let counts = area(manager, 0).expect("there").1;
        assert_eq!((counts.success_pages, counts.released_pages), (GIB_PAGES, 0));
        // SAFETY: the run was just allocated, and nobody uses it.
        unsafe { pool.free(page.start) }.expect("ours");
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        assert_eq!(available(manager), 2 * GIB_PAGES);
        assert_eq!(area(manager, 0).expect("there").1.released_pages, GIB_PAGES);
        check(manager);
        for range in &ranges {
            assert_eq!(manager.moving().grade_of(range.start), Some(Grade::Removable));
        }
        assert_eq!(manager.totals().managed_pages, before.managed_pages);
        let again = pool.resize(2, &NoHelpers).expect("nobody else resizes");
        assert_eq!((again.reached, available(manager)), (2, 0));
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        check(manager);
        handles.held().for_each(|handle| handles.check(handle).expect("intact"));
        retire(manager);
    }
}

#[test]
fn with_areas_alone_there_are_no_other_pages() {
    let manager = machine("hugetlb_cma=1:1G hugetlb_cma_only=on hugepagesz=1G hugepages=3");
    let pool = manager.pool(PoolSize::OneGib);
    let line = "hugetlb_cma=1:1G hugetlb_cma_only=on hugepagesz=1G hugepages=3";
    let fill = manager.hugetlb().fill(&parameters(line), &NoHelpers);
    let [_, of] = fill.pools;
    assert_eq!((of.wanted, of.got, available(manager)), (3, 1, 0));
    assert_eq!(area(manager, 0), None);
    check(manager);
    // Pages from areas are not demoted.
    let demoted = pool.demote(1);
    assert!(demoted.is_err(), "{demoted:?}");
    assert_eq!(pool.counts().all.free, 1);
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    assert_eq!(available(manager), GIB_PAGES);
    check(manager);
}

#[test]
fn an_area_that_does_not_fit_is_said_and_others_are_made() {
    let manager = machine("hugetlb_cma=0:1G,1:3G");
    assert_eq!(manager.moving().failed_area_bytes(), 3 << 30);
    assert!(area(manager, 0).is_some() && area(manager, 1).is_none());
    // A pinned page costs the area's page, and other memory serves instead.
    let handles: &'static Handles<'static, FakeMachine> =
        Box::leak(Box::new(Handles::new(manager, 1 << 14).expect("memory")));
    let range = area(manager, 0).expect("made").0;
    let pinned = loop {
        let handle = handles.allocate(order(8)).expect("memory");
        if handles.range(handle).is_some_and(|run| range.contains(run.start)) {
            break handle;
        }
    };
    handles.pin(pinned, true).expect("held");
    settled(manager);
    manager.moving().set_mover(Some(handles));
    let pool = manager.pool(PoolSize::OneGib);
    let got = pool.resize(1, &NoHelpers).expect("nobody else resizes");
    assert_eq!((got.reached, available(manager)), (1, GIB_PAGES));
    assert_eq!(area(manager, 0).expect("there").1.fail_pages, GIB_PAGES);
    check(manager);
}
