//! A vmemmap of global pages on CPUs that cache translations of several contexts (PCID).

use super::fixture::Fixture;
use super::{LIMITS, order};
use framewright::units::Order;
use framewright_arch::paging::{FlushRequest, LocalFlush, LocalTlb, VirtualRange};
use framewright_testkit::contract::contract_pool;
use framewright_testkit::vmemmap_space_contract;
use framewright_testkit::workload::vmemmap_space::vmemmap_space_history;

#[test]
fn no_context_goes_on_through_a_table_that_was_given_up() {
    for limit in LIMITS {
        vmemmap_space_contract(|| Fixture::in_contexts(contract_pool(Order::MAX), limit, 2));
        vmemmap_space_contract(|| {
            Fixture::in_contexts(contract_pool(order(3)).fragmented(), limit, 3)
        });
    }
}

#[test]
fn histories_in_contexts_agree_with_their_model() {
    for seed in 0..6 {
        for pool in [contract_pool(Order::MAX), contract_pool(order(3))] {
            vmemmap_space_history(&Fixture::in_contexts(pool, u64::MAX, 2), seed, 80);
        }
    }
}

#[test]
fn the_cheapest_means_is_enough_and_no_more() {
    let ranges = [VirtualRange { start: 0x1000, end: 0x3000 }];
    let few = FlushRequest::Ranges(&ranges);
    for (request, global, contexts, means) in [
        (few, false, false, LocalFlush::Pages(&ranges)),
        (few, true, false, LocalFlush::Pages(&ranges)),
        (few, false, true, LocalFlush::Everything),
        (few, true, true, LocalFlush::Everything),
        (FlushRequest::Everything, false, false, LocalFlush::NotGlobal),
        (FlushRequest::Everything, true, false, LocalFlush::Everything),
        (FlushRequest::Everything, false, true, LocalFlush::Everything),
        (FlushRequest::Everything, true, true, LocalFlush::Everything),
    ] {
        assert_eq!(
            LocalTlb::cheapest(request, global, contexts),
            means,
            "{request:?}, {global}, {contexts}"
        );
    }
}
