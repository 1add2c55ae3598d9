//! A pool gets the one block that is kept split although all of it is free, with the frames of its
//! descriptors, as a request does.

use crate::common::pool_machine::{TWO, check, node};
use crate::common::{Fake, bring_up_with, is_careful, mib, parameters};
use framewright::memblock::NodeChoice;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::zone::{MigrateType, ZoneId, ZoneKind};
use framewright::{Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, Owner};

/// Leaves a machine so little memory that a block can be taken only because the descriptors of the
/// spare come back. Everything else is held page by page.
fn squeezed() -> Fake {
    let machine = FakeMachine::builder().ram(mib(4096, 4096 + 256)).build();
    let manager = bring_up_with(machine, &[], &parameters("pages=inside")).expect("bring-up");
    let request = Request {
        reserves: Reserves::All,
        migrate_type: MigrateType::Unmovable,
        ..Request::new(Order::PAGE)
    };
    let mut held = Vec::new();
    while let Ok(page) = manager.allocate(&request) {
        held.push(page.start.0);
    }
    let normal = ZoneId { node: node(0), kind: ZoneKind::Normal };
    let min_pages = manager.view(normal).expect("it has memory").watermarks().min_pages;
    held.sort_unstable();
    let block = held[held.len() / 2] / 512;
    let (of_block, others): (Vec<u64>, Vec<u64>) =
        held.iter().partition(|&&page| page / 512 == block);
    let give = |page: u64| {
        manager.give_back(PfnRange::of_order(Pfn(page), Order::PAGE)).expect("it is held");
        manager.drain().expect("only good frames are cached");
    };
    of_block.into_iter().for_each(give);
    let mut others = others.into_iter().filter(|page| page.is_multiple_of(2));
    while manager.totals().free_pages < min_pages + 506 {
        give(others.next().expect("enough are held"));
    }
    manager
}

#[test]
fn the_spare_serves_a_pool_as_it_serves_a_request() {
    // With debug aids a pool takes a page as any request does.
    if is_careful() {
        return;
    }
    let block = Request {
        node: NodeChoice::Exact(node(0)),
        migrate_type: MigrateType::Unmovable,
        ..Request::new(Order::BLOCK)
    };
    squeezed().allocate(&block).expect("the spare");
    let manager = squeezed();
    let grown = manager.pool(TWO).resize(1, &NoHelpers).expect("nobody else resizes");
    assert_eq!(grown.reached, 1);
    check(&manager);
}
