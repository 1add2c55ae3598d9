//! The reference models detect every error, and nothing else.

use framewright::firmware::MemoryKind;
use framewright::units::{NodeId, Order, Pfn, PfnRange, PhysRange};
use framewright_testkit::model::{Wanted, ZoneKind, ZoneTotals};
use framewright_testkit::{BlockModel, PageModel};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn message(body: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(body)).expect_err("went unnoticed");
    *panic.downcast::<String>().expect("a formatted message")
}

fn order(order: u8) -> Order {
    Order::new(order).expect("an order")
}

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

fn two_zones() -> BlockModel {
    let mut model = BlockModel::new();
    model.add_zone("DMA", node(0), PfnRange::new(0, 4096));
    model.add_zone("Normal", node(1), PfnRange::new(4096, 8192));
    model.add_free(PfnRange::new(512, 4096));
    model.add_free(PfnRange::new(4096, 8000));
    model
}

#[test]
fn right_answers_are_accepted() {
    let mut model = two_zones();
    let block = Wanted::new(Order::BLOCK);
    model.allocated(&block, Some(Pfn(512)));
    model.allocated(&Wanted { max_address: 1024 << 12, ..block.clone() }, None);
    model.allocated(&Wanted { node: Some(node(1)), ..Wanted::new(order(12)) }, None);
    model.allocated_at(PfnRange::new(600, 601), false);
    model.allocated_at(PfnRange::new(7000, 7001), true);
    model.freed(PfnRange::new(600, 700), true);
    model.freed(PfnRange::new(600, 601), false);
    model.freed(PfnRange::new(4095, 4097), false);
    assert_eq!(
        model.allocated_runs(),
        [PfnRange::new(512, 600), PfnRange::new(700, 1024), PfnRange::new(7000, 7001)]
    );
    let total = model.total();
    assert_eq!((total.allocated, total.managed()), (88 + 324 + 1, 3584 + 3904));
    let (zone, found) = model.find(&Wanted { node: Some(node(1)), ..block }).expect("there is one");
    assert_eq!((model.name(zone), found), ("Normal", Pfn(4096)));
    assert_eq!(model.aligned_free(zone, Order::BLOCK), 6);
}

#[test]
fn wrong_answers_are_refused_with_a_reason() {
    let wanted = Wanted::new(Order::BLOCK);
    let refuse = |wanted: &Wanted, result| message(|| two_zones().allocated(wanted, result));
    assert!(refuse(&wanted, None).contains("pfn 0x200 in zone DMA is free"));
    assert!(refuse(&wanted, Some(Pfn(513))).contains("not aligned"));
    assert!(refuse(&wanted, Some(Pfn(0))).contains("pfn 0x0 of zone DMA was Unmanaged, not Free"));
    assert!(refuse(&wanted, Some(Pfn(8192))).contains("in no zone"));
    assert!(refuse(&wanted, Some(Pfn(7680))).contains("pfn 0x1f40 of zone Normal was Unmanaged"));
    let low = Wanted { max_address: 1000 << 12, ..wanted.clone() };
    assert!(refuse(&low, Some(Pfn(512))).contains("too high"));
    let near = Wanted { node: Some(node(1)), ..wanted.clone() };
    assert!(refuse(&near, Some(Pfn(512))).contains("of zone DMA on node 0"));
    let mut model = two_zones();
    model.allocated(&wanted, Some(Pfn(512)));
    assert!(
        message(|| model.clone().allocated(&wanted, Some(Pfn(512))))
            .contains("was Allocated, not Free")
    );
    assert!(
        message(|| model.clone().freed(PfnRange::new(512, 1024), false))
            .contains("freeing pfn 0x200..0x400 failed")
    );
    assert!(
        message(|| model.clone().freed(PfnRange::new(512, 1025), true))
            .contains("pfn 0x400 of zone DMA was Free")
    );
    assert!(
        message(|| model.allocated_at(PfnRange::new(4095, 4097), true)).contains("more than one")
    );
}

#[test]
fn zones_of_a_small_machine() {
    let mut model = PageModel::new();
    model.add(PhysRange::new(0, 32 << 20), MemoryKind::Conventional);
    model.add(PhysRange::new(20 << 20, 21 << 20), MemoryKind::Unaccepted);
    // The second node starts inside a block, most of which is the first node's.
    model.claim(PhysRange::new(0, (25 << 20) + 0x1000), node(0), false).expect("no overlap");
    model.claim(PhysRange::new((25 << 20) + 0x1000, 32 << 20), node(1), false).expect("no overlap");
    let zones = model.zones(&[PfnRange::new(0x1000, 0x1010)]);
    let unusable = 1 + 96;
    let dma = ZoneTotals { present: 4096 - unusable, managed: 4096 - unusable, reserved: 0 };
    assert_eq!(zones[&(node(0), ZoneKind::Dma)], dma);
    let low = ZoneTotals { present: 2305, managed: 2305 - 256 - 16, reserved: 256 + 16 };
    assert_eq!(zones[&(node(0), ZoneKind::Dma32)], low);
    let high = ZoneTotals { present: 1791, managed: 1791 - 255, reserved: 255 };
    assert_eq!(zones[&(node(1), ZoneKind::Dma32)], high);
    assert_eq!(zones.len(), 3);
}
