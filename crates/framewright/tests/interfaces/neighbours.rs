//! Runs that are larger than any free block are put together from neighbouring blocks.

use crate::common::{bring_up_with, check, is_careful, parameters, settled};
use framewright::firmware::MemoryKind;
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::zone::MigrateType;
use framewright::{AllocateError, Request, Reserves};
use framewright_testkit::workload::Random;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};

const PER_MIB: u64 = 256;

/// A run may begin and end anywhere, and consists of free memory only.
#[test]
fn a_hole_of_any_size_and_place_is_found_and_filled() {
    let mut random = Random::new(11);
    for line in ["", "pages=none", "page_owner=on", "page_alloc.shuffle=1", "zone_parts=2"] {
        let machine = FakeMachine::builder().ram(PhysRange::new(0, 128 << 20)).cpus(2).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        manager.sysctl().set_min_free_kbytes(0).expect("possible");
        let before = settled(&manager);
        let all = Request { reserves: Reserves::All, ..Request::new(Order::PAGE) };
        let mut held = vec![false; 128 * 256];
        while let Ok(page) = manager.allocate(&all) {
            held[usize::try_from(page.start.0).expect("small")] = true;
        }
        for _ in 0..30 {
            // Inside one zone whose memory is all in use.
            let pages = 513 + random.below(6000);
            let start = 32 * PER_MIB + random.below(60 * PER_MIB);
            let hole = PfnRange::new(start, start + pages);
            let at = |pfn: u64| usize::try_from(pfn).expect("small");
            if !held[at(start)..at(start + pages)].iter().all(|held| *held) {
                continue;
            }
            for pfn in hole.start.0..hole.end.0 {
                manager.give_back_order(Pfn(pfn), Order::PAGE).expect("held");
            }
            let more = manager.allocate_pages(pages + 1, Order::PAGE);
            assert!(matches!(more, Err(AllocateError::OutOfMemory { .. })), "{line}: {more:?}");
            // Descriptors may need some of it.
            let found = manager.allocate_pages(pages, Order::PAGE);
            let found = found.unwrap_or_else(|error| panic!("{line} {hole:?}: {error}"));
            assert_eq!(found, hole, "{line}");
            check(&manager);
            // The hole is in one piece, or in two.
            if random.one_in(2) {
                manager.give_back(found).expect("ours");
            } else {
                let middle = found.start.0 + 1 + random.below(pages - 1);
                for part in
                    [PfnRange::new(found.start.0, middle), PfnRange::new(middle, found.end.0)]
                {
                    manager.give_back(part).expect("ours");
                }
            }
            check(&manager);
            // The run is aligned as far as the hole has room for that.
            let order = Order::new(7).expect("an order");
            let aligned = hole.start.0.next_multiple_of(128);
            let room = hole.end.0.saturating_sub(aligned);
            if room > 512 {
                let found = manager.allocate_pages(room, order).expect("there is room");
                assert_eq!(found.start.0 % 128, 0, "{line}");
                manager.give_back(found).expect("ours");
            }
            for pfn in hole.start.0..hole.end.0 {
                let taken = manager.allocate_at(Pfn(pfn), Order::PAGE, MigrateType::Movable);
                taken.expect("free again");
            }
        }
        for pfn in (0..held.len()).filter(|&pfn| held[pfn]) {
            manager.give_back_order(Pfn(pfn as u64), Order::PAGE).expect("held");
        }
        assert_eq!(settled(&manager).free_pages, before.free_pages);
        check(&manager);
    }
}

/// A zone in parts is still one zone: a run may begin in one part and end in another.
#[test]
fn runs_reach_over_borders_of_parts() {
    const GIB: u64 = 1024 * PER_MIB;
    for line in ["zone_parts=3", "zone_parts=3 page_owner=on", "zone_parts=12 hugepages=9"] {
        let machine = FakeMachine::builder().ram(PhysRange::new(4 << 30, 16 << 30)).cpus(3).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let before = settled(&manager);
        // Between two pages in use, one in the first part and one in the last.
        let hole = PfnRange::new(5 * GIB + 77, 15 * GIB - 5);
        let take = |pfn| manager.allocate_at(pfn, Order::PAGE, MigrateType::Movable).expect("free");
        let ends = [take(Pfn(hole.start.0 - 1)), take(hole.end)];
        let more = manager.allocate_pages(hole.pages() + 1, Order::PAGE);
        // Such a size is not wrong because the whole zone has more pages.
        let is_so = more == Err(AllocateError::OutOfMemory { order: Order::MAX });
        assert!(is_so, "{line}: {more:?}");
        let found = manager.allocate_pages(hole.pages(), Order::PAGE).expect("there is room");
        assert_eq!(found, hole, "{line}");
        check(&manager);
        assert!(manager.allocate_pages(5 * GIB, Order::PAGE).is_err());
        // In one piece, and then in two that end within a part.
        manager.give_back(found).expect("ours");
        let found = manager.allocate_pages(8 * GIB + 1, Order::MAX).expect("there is room");
        assert!(found.start.is_aligned(Order::MAX), "{line}");
        let middle = Pfn(8 * GIB + 1000);
        manager.give_back(PfnRange { start: middle, ..found }).expect("ours");
        manager.give_back(PfnRange { end: middle, ..found }).expect("ours");
        ends.into_iter().for_each(|page| manager.give_back(page).expect("ours"));
        // All parts together keep the pages below the watermark.
        let all = manager.allocate_pages(before.free_pages - 3, Order::PAGE);
        assert!(all.is_err(), "{line}: {all:?}");
        assert_eq!(settled(&manager).free_pages, before.free_pages, "{line}");
        check(&manager);
    }
}

/// If the first MiB is missing, there is no whole block of 512 MiB, but nearly all of the memory is
/// one run, and its upper half is one block. A run of more than 1 GiB is never one block.
#[test]
fn nearly_all_of_a_zone_is_one_run() {
    let machine = FakeMachine::builder().ram(PhysRange::new(1 << 20, 512 << 20)).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    manager.sysctl().set_min_free_kbytes(0).expect("possible");
    let most = (1..512 * PER_MIB)
        .rev()
        .step_by(64)
        .find_map(|pages| manager.allocate_pages(pages, Order::PAGE).ok());
    let most = most.expect("something");
    // All of zone DMA32, which begins at 16 MiB, except tables.
    assert!(most.pages() > 494 * PER_MIB, "{most:?}");
    manager.give_back(most).expect("ours");
    let half = manager.allocate(&Request::new(Order::new(16).expect("an order")));
    let half = half.expect("tables lie where they break less");
    assert_eq!(half, PfnRange::new(256 * PER_MIB, 512 * PER_MIB));
    manager.give_back(half).expect("ours");
    check(&manager);
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 12 << 30)).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let long = manager.allocate_pages((5 << 18) + 77, Order::PAGE).expect("5 GiB and a little");
    check(&manager);
    manager.give_back(long).expect("ours");
    check(&manager);
    let pages = 9 << 18;
    let refused = manager.allocate_pages(pages, Order::PAGE);
    assert_eq!(refused, Err(AllocateError::BadSize { pages }));
    assert_eq!(settled(&manager).allocated_pages, 0);
}

/// Memory that is not accepted or not described yet comes up for runs above 1 GiB as it does for
/// others, and no more of it than they need.
#[test]
fn long_runs_bring_up_what_is_withheld() {
    let gib = |start: u64, end: u64| PhysRange::new(start << 30, end << 30);
    for line in ["", "zone_parts=2", "memmap_init=deferred"] {
        let (builder, later) = (FakeMachine::builder().cpus(2).ram(gib(4, 5)), gib(5, 9));
        let builder = if line.starts_with("memmap") {
            builder.ram(later)
        } else {
            builder.memory(later, MemoryKind::Unaccepted).accepts()
        };
        let machine = builder.build();
        if line.starts_with("memmap") {
            FakeVmemmap::install_with(machine, false, false);
        }
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let withheld = || manager.totals().deferred_pages + manager.totals().unaccepted_pages;
        let before = withheld();
        let pages = (1 << 18) + 512;
        let run = manager.allocate_pages(pages, Order::PAGE);
        let run = run.unwrap_or_else(|error| panic!("{line}: {error} {:?}", manager.totals()));
        let left = withheld();
        assert!(left != 0 && left < before, "{line}: {left} of {before}");
        check(&manager);
        // More than the rest of the memory, and more than all memory.
        let most = manager.allocate_pages(4 << 18, Order::PAGE);
        assert_eq!(most, Err(AllocateError::OutOfMemory { order: Order::MAX }), "{line}");
        let never = manager.allocate_pages(6 << 18, Order::PAGE);
        assert_eq!(never, Err(AllocateError::BadSize { pages: 6 << 18 }), "{line}");
        assert_eq!(withheld(), left, "{line}");
        let more = manager.allocate_pages(pages, Order::PAGE).expect("there is room");
        check(&manager);
        manager.give_back(run).expect("ours");
        manager.give_back(more).expect("ours");
        check(&manager);
    }
}

/// A page in a CPU's cache lies in the middle of the only run.
#[test]
fn caches_are_emptied_for_long_runs() {
    let machine = FakeMachine::builder().ram(PhysRange::new(4 << 30, 6 << 30)).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let page = manager.allocate_at(Pfn(5 << 18), Order::PAGE, MigrateType::Movable);
    manager.give_back(page.expect("free")).expect("ours");
    assert!(is_careful() || manager.caches().pages() != 0);
    let run = manager.allocate_pages(3 << 17, Order::PAGE).expect("there is room");
    check(&manager);
    manager.give_back(run).expect("ours");
}
