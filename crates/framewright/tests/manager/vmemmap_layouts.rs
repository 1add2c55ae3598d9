//! The memory map on machines of any layout: holes, unaligned edges, tiny nodes, crumbs of
//! reservations. Exactly the memory that can be handed out has initialised descriptors, each is
//! initialised once, and all policies give the same memory.

use crate::common::{Fake, bring_up_with, check, parameters, retire};
use framewright::parameters::Policy;
use framewright::units::{Order, Pfn, PhysRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::State;
use framewright::{Request, Reserves};
use framewright_testkit::{FakeMachine, FakeVmemmap, HelperPool, Owner};
use proptest::prelude::*;
use std::sync::atomic::Ordering;

const MIB: u64 = 1 << 20;
const MARK: u64 = 0x6d61_726b;

/// Ranges of memory, each with its node, and the reservations in them.
#[derive(Clone, Debug)]
struct Layout {
    ram: Vec<(PhysRange, usize)>,
    reserved: Vec<PhysRange>,
}

/// In pages: the gap before the piece, its size, its node, and reservations as (distance from the
/// last, size).
type Piece = (u64, u64, usize, Vec<(u64, u64)>);

fn layout() -> impl Strategy<Value = Layout> {
    let size = prop_oneof![
        1..600_u64,
        30_000..70_000_u64,
        Just(32_768),
        Just(65_536),
        100_000..140_000_u64
    ];
    let gap = prop_oneof![Just(0_u64), 1..600_u64, 1..40_000_u64, Just(32_768)];
    let crumbs = prop::collection::vec(
        (prop_oneof![1..700_u64, 1..40_000_u64], prop_oneof![1..5_u64, 1..3000_u64]),
        0..12,
    );
    let pieces: BoxedStrategy<Vec<Piece>> =
        prop::collection::vec((gap, size, 0..3_usize, crumbs), 1..6).boxed();
    pieces.prop_map(|pieces| {
        // The first range is large enough for the tables, whatever follows.
        let mut layout =
            Layout { ram: vec![(PhysRange::new(0, 48 * MIB), 0)], reserved: Vec::new() };
        let mut at = 48 * MIB / 4096;
        for (gap, size, node, crumbs) in pieces {
            at += gap;
            layout.ram.push((PhysRange::new(at * 4096, (at + size) * 4096), node));
            let mut crumb = at;
            for (distance, pages) in crumbs {
                crumb += distance;
                let end = (crumb + pages).min(at + size);
                if crumb < end {
                    layout.reserved.push(PhysRange::new(crumb * 4096, end * 4096));
                }
                crumb = end.max(crumb);
            }
            at += size;
        }
        layout
    })
}

fn build(layout: &Layout) -> (&'static FakeMachine, &'static FakeVmemmap) {
    let mut builder = FakeMachine::builder().cpus(6).nodes(3);
    for &(range, node) in &layout.ram {
        builder = builder.ram(range).node(range, node);
    }
    let machine = builder.build();
    // The fake array takes no frames, so that all policies have the same memory.
    (machine, FakeVmemmap::install_with(machine, false, false))
}

fn bring_up(layout: &Layout, policy: Policy) -> (Fake, &'static FakeVmemmap) {
    let (machine, array) = build(layout);
    let line = format!(
        "memmap_init={} {}",
        policy.name(),
        if policy == Policy::OnDemand { "pages=none" } else { "" }
    );
    let manager = bring_up_with(machine, &layout.reserved, &parameters(&line)).expect("bring-up");
    (manager, array)
}

/// Whether a block can be handed out in whole or in part.
fn is_managed(manager: &Fake, block: BlockNumber) -> bool {
    manager.block_state(block).is_some_and(|state| match state.state() {
        Some(State::Free | State::Whole) => true,
        Some(State::Split) => state.managed_pages() > 0,
        _ => false,
    })
}

/// The blocks of all segments.
fn blocks(manager: &Fake) -> Vec<BlockNumber> {
    let segments = manager.zones().iter().flat_map(|zone| zone.segments());
    segments.flat_map(|segment| (segment.start.0..segment.end().0).map(BlockNumber)).collect()
}

/// Checks that descriptors of memory that can be handed out are initialised, and that all others
/// were never touched.
fn check_written(manager: &Fake, array: &FakeVmemmap) {
    for block in blocks(manager) {
        // Reserved blocks may share a section with other blocks, but not a descriptor.
        assert_eq!(array.is_junk(block.start()), !is_managed(manager, block), "block {block:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_layout(
        layout in layout(),
        grow in prop::collection::vec((0..3_u8, any::<bool>()), 0..12),
    ) {
        let (eager, eager_array) = bring_up(&layout, Policy::Eager);
        check(&eager);
        check_written(&eager, eager_array);
        let (on_demand, on_demand_array) = bring_up(&layout, Policy::OnDemand);
        assert_eq!(on_demand_array.counts().sections, 0);
        let (deferred, array) = bring_up(&layout, Policy::Deferred);
        check(&deferred);
        check_written(&deferred, array);
        // Initialises some of it on request, with marks in the descriptors that a second
        // initialisation would wipe.
        let mut marked: Vec<Pfn> = Vec::new();
        let mut held = Vec::new();
        for (of, keep) in grow {
            let order = Order::new([0, 9, 15][usize::from(of)]).expect("an order");
            let all = Request { reserves: Reserves::All, ..Request::new(order) };
            let request = Request { fail_fast: true, ..all };
            let Ok(range) = deferred.allocate(&request) else { continue };
            // SAFETY: the test owns the page and keeps it.
            if let Some(page) = unsafe { deferred.vmemmap().page(range.start) } {
                page.flags().store(MARK, Ordering::Relaxed);
                marked.push(range.start);
                held.push(range);
            } else if keep {
                held.push(range);
            } else {
                deferred.give_back(range).expect("allocated");
            }
        }
        check_written(&deferred, array);
        deferred.vmemmap().initialise_deferred(&HelperPool::on_nodes(&[0, 1]));
        for &pfn in &marked {
            // SAFETY: the test still owns the page.
            let page = unsafe { deferred.vmemmap().page(pfn) }.expect("it has a descriptor");
            assert_eq!(
                page.flags().swap(0, Ordering::Relaxed),
                MARK,
                "pfn {pfn} was initialised \
                twice"
            );
        }
        check_written(&deferred, array);
        held.into_iter().for_each(|range| deferred.give_back(range).expect("allocated"));
        deferred.drain().expect("only good frames");
        check(&deferred);
        let totals = [&eager, &deferred, &on_demand].map(|manager| {
            let totals = manager.totals();
            // Each policy has tables of its own size.
            (totals.present_pages, totals.free_pages + totals.reserved_pages, totals.deferred_pages)
        });
        assert!(totals.iter().all(|one| *one == totals[0]), "{totals:?}");
        for manager in [&eager, &deferred, &on_demand] {
            retire(manager);
        }
    }
}
