//! Code shared by the tests of huge-page pools: a machine with two nodes that have memory and one
//! that has none, and its numbers.
use crate::common::{Fake, gib, mib};
use framewright::hugetlb::PoolSize;
use framewright::manager::Pool;
use framewright::units::NodeId;
use framewright_testkit::FakeMachine;

/// The smaller size.
pub const TWO: PoolSize = PoolSize::TwoMib;
/// The larger size.
pub const GIB: PoolSize = PoolSize::OneGib;

/// Node `index`.
pub fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

/// Builds a machine with two nodes of 4 GiB with holes, and one node without memory.
pub fn machine() -> &'static FakeMachine {
    FakeMachine::builder()
        .ram(mib(1, 3072))
        .ram(gib(4, 5))
        .node(gib(0, 5), 0)
        .ram(gib(8, 12))
        .node(gib(8, 12), 1)
        .nodes(3)
        .cpus_on(0, 1)
        .cpus_on(1, 1)
        .cpus_on(2, 1)
        .build()
}

/// Recounts everything.
pub fn check(manager: &Fake) {
    crate::common::check(manager);
    manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
}

/// nr, free, reserved, surplus, target.
pub fn numbers(pool: &Pool<'_, FakeMachine>) -> [u64; 5] {
    let counts = pool.counts();
    [counts.all.nr, counts.all.free, counts.reserved, counts.all.surplus, counts.target]
}

/// Pages of the nodes that have memory.
pub fn nr_of(pool: &Pool<'_, FakeMachine>) -> [u64; 2] {
    [0, 1].map(|index| pool.node_counts(node(index)).expect("exists").nr)
}
