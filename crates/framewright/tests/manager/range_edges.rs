//! A run that cannot be divided and crosses an edge of the requested range: the request fails, and
//! no page of the run stays out of circulation.

use crate::common::{Fake, bring_up_with, check, gib, mib, order, parameters, settled, unmovable};
use framewright::hugetlb::PoolSize;
use framewright::manager::Budget;
use framewright::memblock::NodeChoice;
use framewright::units::{Order, PfnRange};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, Owner, PoolOwner};

/// Ranges that cross the first edge of `of`, the last, or both, by blocks and by less.
fn over_the_edges(of: PfnRange) -> [PfnRange; 4] {
    let (start, end) = (of.start.0, of.end.0);
    [
        PfnRange::new(start + 100, end + 512),
        PfnRange::new(start - 512, end - 100),
        PfnRange::new(start + 100, end - 100),
        PfnRange::new(start - 100, end + 100),
    ]
}

fn refuses(manager: &Fake, range: PfnRange) {
    manager.moving().allocate_range(range, Budget::UNLIMITED).expect_err("it is in use");
    check(manager);
    assert_eq!(manager.totals().isolated_pages, 0);
}

#[test]
fn a_counted_run_comes_back_whole() {
    for line in ["pages=none", "pages=inside"] {
        let machine = FakeMachine::builder().ram(mib(0, 512)).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        for of in [9, 10, 12] {
            let idle = settled(&manager);
            let run = manager.allocate(&unmovable(order(of))).expect("memory");
            manager.begin_references(run).expect("allocated whole");
            for range in over_the_edges(run) {
                refuses(&manager, range);
            }
            manager.give_back_reference(run.start).expect("the last");
            let back = settled(&manager);
            assert_eq!((back.isolated_pages, back.allocated_pages), (0, idle.allocated_pages));
            check(&manager);
        }
    }
}

#[test]
fn a_page_of_a_pool_comes_back_whole() {
    let machine = FakeMachine::builder().zeroed().ram(gib(0, 6)).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let idle = settled(&manager);
    let pool = manager.pool(PoolSize::OneGib);
    assert_eq!(pool.resize(1, &NoHelpers).expect("nobody else resizes").reached, 1);
    let page = pool.allocate(NodeChoice::Any, false).expect("is free");
    for range in over_the_edges(PfnRange::of_order(page.start, Order::MAX)) {
        refuses(&manager, range);
    }
    pool.give_back_page(page.start).expect("was allocated");
    let again = pool.allocate(NodeChoice::Any, false).expect("is free again");
    pool.give_back_page(again.start).expect("was allocated");
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    let back = settled(&manager);
    assert_eq!((back.isolated_pages, back.allocated_pages), (0, idle.allocated_pages));
    check(&manager);
}
