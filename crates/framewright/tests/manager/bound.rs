//! Nodes with only movable memory do not bind requests for other types (Linux: `mm/mempolicy.c`,
//! `apply_policy_zone`).

use super::policies::{self, node, nodes};
use crate::common::{Fake, blocks, bring_up_with, check, order, settled, with_pages};
use framewright::Request;
use framewright::manager::{InterleaveCursor, NumaPolicy, Placed, PolicyError};
use framewright::memblock::NodeChoice;
use framewright::parameters::Pages;
use framewright::units::{MAX_ORDER, Order, Pfn, PfnRange};
use framewright::vmemmap_space::BlockRange;
use framewright::zone::{Grade, MigrateType};
use framewright_testkit::Owner;

/// Three nodes of 64 MiB; the manager's tables lie on one of them.
fn machine() -> Fake {
    let machine = policies::machine(&[64; 3]).build();
    bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up")
}

/// All blocks of a node.
fn of_node(index: u32) -> BlockRange {
    blocks((index + 1) << 11, 32)
}

fn request(migrate_type: MigrateType) -> Request {
    Request { migrate_type, ..Request::new(Order::PAGE) }
}

fn bound(manager: &Fake, request: &Request, list: &str) -> Result<Placed, PolicyError> {
    let mut cursor = InterleaveCursor::START;
    manager.numa().allocate(request, &NumaPolicy::bind(nodes(list)), &mut cursor)
}

/// Grades all free blocks of a node, and returns whether all of its blocks were free.
fn grade(manager: &Fake, index: u32, grade: Grade) -> bool {
    let all = of_node(index);
    let mut is_all = true;
    for block in all.start.0..all.end.0 {
        let one = BlockRange::new(block, block + 1);
        is_all &= manager.moving().set_grade(one, grade).is_ok();
    }
    is_all
}

#[test]
fn nodes_of_movable_memory_alone_bind_movable_requests_alone() {
    let kinds = [MigrateType::Unmovable, MigrateType::Reclaimable];
    for of in [Grade::MovableOnly, Grade::Removable] {
        let manager = machine();
        // A node without the manager's tables, which could not be graded.
        let index = (0..3).find(|&index| grade(&manager, index, of)).expect("tables lie on one");
        let list = index.to_string();
        let own = node(index as usize);
        let movable = bound(&manager, &request(MigrateType::Movable), &list).expect("memory");
        assert_eq!((movable.node(), movable.wanted), (own, own));
        for kind in kinds {
            let placed = bound(&manager, &request(kind), &list).expect("it is not bound");
            assert_ne!(placed.node(), own);
            manager.give_back(placed.range).expect("ours");
        }
        // Bulk requests as well.
        let mut pages = [Pfn(0); 40];
        let policy = NumaPolicy::bind(nodes(&list));
        let bulk = request(MigrateType::Unmovable);
        let mut cursor = InterleaveCursor::START;
        let done = manager.numa().allocate_bulk(&bulk, &policy, &mut cursor, &mut pages);
        let done = done.expect("not bound");
        assert_eq!((done.pages, done.on(own)), (40, 0));
        for page in pages {
            manager.give_back(PfnRange::new(page.0, page.0 + 1)).expect("ours");
        }
        // Together with another node that has other memory, the set binds.
        let other = (index + 1) % 3;
        let both = format!("{index},{other}");
        for kind in kinds {
            let placed = bound(&manager, &request(kind), &both).expect("memory");
            assert_eq!(placed.node(), node(other as usize));
            manager.give_back(placed.range).expect("ours");
        }
        // Also when all of that memory is in use: the bound request is refused.
        let mut held = Vec::new();
        for of in (0..=MAX_ORDER).rev().map(order) {
            let exact = Request {
                node: NodeChoice::Exact(node(other as usize)),
                fail_fast: true,
                migrate_type: MigrateType::Unmovable,
                ..Request::new(of)
            };
            while let Ok(run) = manager.allocate(&exact) {
                held.push(run);
            }
        }
        for kind in kinds {
            let error = bound(&manager, &request(kind), &both).expect_err("it is bound");
            let full = PolicyError::OutOfMemory { order: Order::PAGE, nodes: nodes(&both) };
            assert_eq!(error, full);
        }
        // One block of the node is for all types again, so the node binds again.
        let all = of_node(index);
        let mut ones = (all.start.0..all.end.0).map(|block| blocks(block, 1));
        ones.find(|&one| manager.moving().set_grade(one, Grade::Any).is_ok())
            .expect("most are free");
        let placed = bound(&manager, &request(MigrateType::Unmovable), &list).expect("room");
        assert_eq!(placed.node(), own);
        manager.give_back(placed.range).expect("ours");
        held.push(movable.range);
        held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
        assert_eq!(settled(&manager).allocated_pages, 0);
        check(&manager);
    }
}
