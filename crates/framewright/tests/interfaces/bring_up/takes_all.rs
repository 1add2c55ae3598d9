//! Bring-up takes over the memblock allocator with all that it knows: the manager gets the memory
//! of that one allocator, including added memory and the tables in it, and a failure gives the
//! allocator back.

use crate::common::{check, gib, mib};
use framewright::memblock::{MemblockError, MemblockRequest};
use framewright::units::{NodeId, PAGE_SIZE, Pfn, PhysRange};
use framewright::{BringUp, BringUpError, BringUpFailed, Manager, Parameters};
use framewright_testkit::{FakeMachine, memblock_of};

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

/// A machine of two nodes. The second node has `extra` only if it is added, because `extra` is in
/// another machine's map.
fn with_extra(extra: PhysRange) -> (&'static FakeMachine, &'static FakeMachine) {
    let small =
        || FakeMachine::builder().ram(mib(0, 256)).node(mib(0, 256), 0).node(mib(256, 4096), 1);
    (small().ram(extra).build(), small().build())
}

#[test]
fn memory_that_was_added_reaches_the_manager() {
    let extra = mib(1024, 1536);
    let (machine, firmware) = with_extra(extra);
    let parameters = Parameters::default();
    let input = BringUp { parameters: &parameters, started_ns: None };
    let mut early =
        memblock_of(machine, firmware.map(), machine.topology(), &[]).expect("a small map");
    // SAFETY: the machine has that memory, and nobody uses it.
    unsafe { early.add_memory(extra, node(1), false) }.expect("node 1 is declared");
    let manager = Manager::bring_up(early, &input).expect("bring-up");
    check(&manager);
    let present = firmware.map().present_bytes() + extra.size();
    assert_eq!(manager.totals().present_pages, present / PAGE_SIZE);
    let of_node_1 = manager.zones().iter().filter(|zone| zone.id().node == node(1));
    assert_eq!(of_node_1.map(|zone| zone.present_pages()).sum::<u64>(), extra.size() / PAGE_SIZE);
    assert_eq!(manager.nodes()[1].span, extra.whole_frames());
    // The tables of node 1's zone lie in the added memory, and count as reserved there.
    let zone =
        manager.zones().iter().find(|zone| zone.id().node == node(1)).expect("it has memory");
    assert_eq!(zone.table_memory().intersection(extra), zone.table_memory());
    assert_eq!(zone.reserved_pages(), zone.table_memory().size() / PAGE_SIZE);
}

#[test]
fn memory_cannot_be_added_to_a_node_that_is_not_there() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let mut early = machine.memblock(&[]);
    let before = early.memory().to_vec();
    // SAFETY: it is refused.
    let refused = unsafe { early.add_memory(gib(1, 2), node(1), false) };
    assert_eq!(refused, Err(MemblockError::UnknownNode { node: node(1), nodes: 1 }));
    assert!(refused.unwrap_err().to_string().contains("1 nodes"));
    assert_eq!(early.memory(), before);
}

#[test]
fn a_failed_bring_up_gives_the_allocator_back_for_another_try() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let mut early = machine.memblock(&[]);
    // All but one page is allocated.
    let all = PhysRange::new(mib(1, 64).start, mib(1, 64).end - PAGE_SIZE);
    early.reserve(PhysRange::new(0, mib(1, 2).start)).expect("room");
    let request = MemblockRequest { zeroed: false, ..MemblockRequest::new(all.size(), PAGE_SIZE) };
    let held = early.allocate(&request).expect("it is free");
    let before = early.reserved().to_vec();
    let parameters = Parameters::default();
    let input = BringUp { parameters: &parameters, started_ns: None };
    let BringUpFailed { error, mut early } =
        Manager::bring_up(early, &input).err().expect("there is one page");
    assert!(matches!(error, BringUpError::NoRoomForTables { .. }), "{error}");
    assert_eq!(early.reserved(), before);
    // SAFETY: nobody used what was allocated.
    unsafe { early.free(held) }.expect("allocated");
    let manager = Manager::bring_up(early, &input).expect("now there is room");
    check(&manager);
    assert!(
        manager.totals().free_pages > 0
            && manager.zones().iter().all(|zone| zone.span().start >= Pfn(1))
    );
}
