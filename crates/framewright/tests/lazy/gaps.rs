//! Memory with gaps of all sizes between its ranges. The gaps count as in use until their users
//! free them.
#![cfg(feature = "hotplug")]

use super::{add, drain, free, lazy};
use crate::common::check;
use framewright::units::{Order, PfnRange, PhysRange};
use framewright::zone::MigrateType;
use framewright::{Parameters, Request};
use framewright_testkit::FakeMachine;

/// The number of pages of the machine.
const PAGES: u64 = 128 << 8;
/// The largest number of ranges: each gap takes an entry of the memblock allocator.
const MOST_RANGES: usize = 110;

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % end
    }

    /// Returns a few pages, part of a block, or some blocks that begin and end anywhere.
    fn pages(&mut self) -> u64 {
        match self.below(4) {
            0 => 1 + self.below(4),
            1 => 1 + self.below(700),
            2 => 512 * (1 + self.below(4)),
            _ => 1 + self.below(3000),
        }
    }
}

/// Ranges and the gaps between them, page by page.
fn pattern(numbers: &mut Numbers) -> (Vec<PfnRange>, Vec<PfnRange>) {
    let (mut ranges, mut gaps) = (Vec::new(), Vec::new());
    let mut next = numbers.below(3) * 300;
    while ranges.len() < MOST_RANGES {
        let range = PfnRange::new(next, next + numbers.pages());
        let gap = PfnRange::new(range.end.0, range.end.0 + numbers.pages());
        if gap.end.0 + 4000 > PAGES {
            break;
        }
        ranges.push(range);
        gaps.push(gap);
        next = gap.end.0;
    }
    // With room for tables.
    ranges.push(PfnRange::new(next, PAGES));
    (ranges, gaps)
}

/// Adds gaps in random pieces.
fn pieces(numbers: &mut Numbers, gaps: &[PfnRange]) -> Vec<PfnRange> {
    let mut pieces = Vec::new();
    for gap in gaps {
        let mut next = gap.start.0;
        while next < gap.end.0 {
            let end = gap.end.0.min(next + numbers.pages());
            pieces.push(PfnRange::new(next, end));
            next = end;
        }
    }
    pieces
}

fn run(seed: u64, line: &str) {
    let mut numbers = Numbers(seed);
    let (ranges, gaps) = pattern(&mut numbers);
    let lazy = lazy(FakeMachine::builder().ram(PhysRange::new(0, PAGES << 12)).build());
    for range in &ranges {
        add(lazy, range.to_phys()).expect("there is room");
    }
    let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
    let manager = lazy.bring_up_with(&parameters).expect("it comes up");
    check(manager);
    let before = lazy.usage();
    let mut left = pieces(&mut numbers, &gaps);
    while !left.is_empty() {
        let at = numbers.below(left.len() as u64);
        let piece = left.swap_remove(usize::try_from(at).expect("few"));
        assert!(free(lazy, piece), "{seed} {line}: {piece:?}");
        assert!(!free(lazy, piece), "{seed} {line}: {piece:?} twice");
    }
    check(manager);
    let of_gaps: u64 = gaps.iter().map(|gap| gap.pages()).sum();
    assert_eq!(lazy.usage().total_pages, before.total_pages, "{seed} {line}");
    assert_eq!(lazy.usage().free_pages, before.free_pages + of_gaps, "{seed} {line}");
    let within: Vec<_> = ranges.iter().chain(&gaps).map(|range| range.to_phys()).collect();
    let pages = drain(lazy, &within);
    let is_free = |page: &u64| pages.binary_search(page).is_ok();
    assert!(gaps.iter().all(|gap| (gap.start.0..gap.end.0).all(|page| is_free(&page))), "{seed}");
    check(manager);
}

#[test]
fn gaps_of_any_size_are_freed_in_any_pieces() {
    for seed in 0..60 {
        run(seed, "");
    }
    for seed in 60..80 {
        run(seed, "page_owner=on page_poison=1");
    }
}

fn mib(start: u64, end: u64) -> PhysRange {
    PhysRange::new(start << 20, end << 20)
}

/// A gap may be larger than all memory.
#[test]
fn what_is_in_use_raises_no_watermark() {
    let lazy = lazy(FakeMachine::builder().ram(mib(16, 512)).build());
    add(lazy, mib(16, 17)).expect("room");
    add(lazy, mib(400, 401)).expect("room");
    for _ in 0..50 {
        lazy.allocate_pages(1, Order::PAGE).expect("half of two MiB is free");
    }
    add(lazy, mib(402, 512)).expect("room for tables");
    check(lazy.get().expect("up"));
    let managed = lazy.get().expect("up").totals().managed_pages;
    assert!(managed > 490 << 8, "the gap is managed in the end: {managed}");
}

#[test]
fn no_area_and_no_movable_memory_is_over_a_gap() {
    let spare = PhysRange::new(0xa_0000, 0x10_0000);
    for line in ["cma=32M", "kernelcore=24M", "movablecore=20M", "cma_pernuma=32M"] {
        let lazy = lazy(FakeMachine::builder().ram(mib(0, 80)).spare(spare).build());
        add(lazy, mib(16, 36)).expect("room");
        add(lazy, mib(40, 64)).expect("room");
        let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
        let manager = lazy.bring_up_with(&parameters).expect("enough memory");
        check(manager);
        let gap = mib(36, 40).whole_frames();
        for area in (0..4).filter_map(|number| manager.moving().area(number)) {
            assert!(area.1.intersection(gap).is_empty(), "{line}: {:?}", area.1);
        }
        // Its memory can be handed out once it is free.
        assert!(free(lazy, gap));
        check(manager);
        let unmovable =
            |order| Request { migrate_type: MigrateType::Unmovable, ..Request::new(order) };
        let mut found = 0;
        while let Ok(range) = manager.allocate(&unmovable(Order::PAGE)) {
            found += u64::from(!range.intersection(gap).is_empty());
        }
        assert!(found > gap.pages() / 2, "{line}: {found} pages of the gap");
    }
}
