//! The vmemmap in real page tables, on CPUs that cache every translation they may.

mod contexts;
mod cpus;
mod fixture;
mod histories;
mod room;

use crate::common::table_memory::Memory;
use cpus::{Asked, Forgets};
use fixture::{BASE, BLOCK_BYTES, Fixture, root};
use framewright::stores::{Line, Store};
use framewright::units::{Order, Pfn};
use framewright::vmemmap_space::{BlockRange, Unflushed, VmemmapSpace};
use framewright_arch::paging::{Entry, Mapping, PageSize, TableMemory, Visitor, walk};
use framewright_arch::vmemmap::{Vmemmap, VmemmapError, VmemmapLayout};
use framewright_testkit::contract::contract_pool;
use framewright_testkit::workload::vmemmap_space::{TrialSpace, vmemmap_space_history};
use framewright_testkit::{FaultyFrames, VmemmapSpaceFixture, vmemmap_space_contract};
use std::collections::HashSet;

fn order(order: u8) -> Order {
    Order::new(order).expect("an order")
}

/// Flush everything always, flush as by default, and flush page by page always.
const LIMITS: [u64; 3] = [0, 32, u64::MAX];

#[test]
fn a_kernel_may_name_its_own_store() {
    let vmemmap = Fixture::new(contract_pool(Order::MAX)).vmemmap;
    for line in [Line::ZERO, Line([0, 1, 2, 3, 4, 5, 6, 7])] {
        assert_eq!(vmemmap.store(&line).name(), Store::of_this_cpu(&line).name());
    }
    let slowest = |line: &Line| {
        let all = Store::all_of_this_cpu(line);
        all.last().unwrap_or_else(|| Store::of_this_cpu(line))
    };
    let vmemmap = vmemmap.with_store(slowest);
    assert_eq!(vmemmap.store(&Line::ZERO).name(), slowest(&Line::ZERO).name());
}

#[test]
fn the_contract_holds_with_large_frames() {
    for limit in LIMITS {
        vmemmap_space_contract(|| {
            Fixture::with(contract_pool(Order::MAX), limit, Forgets::Nothing)
        });
    }
}

#[test]
fn the_contract_holds_without_large_mappings() {
    for limit in LIMITS {
        vmemmap_space_contract(|| Fixture::with(contract_pool(order(3)), limit, Forgets::Nothing));
    }
}

#[test]
fn the_contract_holds_in_fragmented_memory() {
    for limit in LIMITS {
        vmemmap_space_contract(|| {
            Fixture::with(contract_pool(Order::MAX).fragmented(), limit, Forgets::Nothing)
        });
    }
}

#[test]
fn cpus_that_are_not_told_are_found() {
    for forgets in [Forgets::Everything, Forgets::OtherCpus, Forgets::LastPage, Forgets::Steps] {
        let outcome = std::panic::catch_unwind(|| {
            vmemmap_space_contract(|| Fixture::with(contract_pool(Order::MAX), u64::MAX, forgets));
        });
        assert!(outcome.is_err(), "{forgets:?} went unnoticed");
    }
}

#[test]
fn a_history_without_a_heap_agrees_with_its_model() {
    for seed in 0..6 {
        for pool in [
            contract_pool(Order::MAX),
            contract_pool(order(3)),
            contract_pool(Order::MAX).fragmented(),
        ] {
            vmemmap_space_history(&Fixture::new(pool), seed, 80);
        }
    }
    for forgets in [
        Forgets::Everything,
        Forgets::OtherCpus,
        Forgets::LastPage,
        Forgets::Steps,
        Forgets::Sleepers,
    ] {
        let outcome = std::panic::catch_unwind(|| {
            (0..9).for_each(|seed| {
                vmemmap_space_history(
                    &Fixture::with(contract_pool(order(3)), 80, forgets),
                    seed,
                    80,
                )
            });
        });
        assert!(outcome.is_err(), "{forgets:?} went unnoticed");
    }
}

/// Creates a vmemmap with this many frames available.
fn make(
    layout: VmemmapLayout,
    frames: u64,
    pool: &framewright_testkit::FramePool,
) -> Result<(), VmemmapError> {
    let cpus = cpus::SoftwareCpus::new(
        pool.machine(),
        pool.ledger().clone(),
        layout.root,
        Forgets::Nothing,
    );
    let cpus = Box::leak(Box::new(cpus));
    let mut frames = FaultyFrames::fail_after(pool, frames);
    // SAFETY: the root is this test's, and nobody else maps anything.
    unsafe { Vmemmap::new(pool.machine(), &*cpus, layout, &mut frames) }.map(|_| ())
}

#[test]
fn places_that_cannot_be_are_refused() {
    let pool = contract_pool(Order::MAX);
    let root = root(&pool);
    let layout =
        |base, frames_end| VmemmapLayout { root, base, frames_end: Pfn(frames_end), global: true };
    let bad = [
        layout(BASE + 4096, 1),
        layout(BASE + (1 << 30), 1),
        layout(1 << 47, 1),
        layout(BASE, (1 << 40) + 1),
        // A null pointer.
        layout(0, 1),
        // The last 512 GiB of each half have room for 32 TiB.
        layout(0xffff_ff80_0000_0000, (32 << 28) + 1),
        layout(0x7f80_0000_0000, (32 << 28) + 1),
    ];
    for layout in bad {
        assert_eq!(
            make(layout, 10_000, &pool),
            Err(VmemmapError::BadLayout(layout)),
            "{layout:x?}"
        );
    }
    assert_eq!(pool.outstanding(), 1, "only the root");
    for layout in [layout(0xffff_ff80_0000_0000, 32 << 28), layout(0x7f80_0000_0000, 32 << 28)] {
        assert_eq!(make(layout, 10_000, &pool), Ok(()));
        assert_eq!(
            make(layout, 10_000, &pool),
            Err(VmemmapError::Occupied { address: layout.base })
        );
    }
    let text = VmemmapError::Occupied { address: BASE }.to_string();
    assert!(text.contains("0xffffea0000000000"), "{text}");
}

#[test]
fn without_frames_for_the_upper_tables_nothing_changes() {
    let pool = contract_pool(Order::MAX);
    let root = root(&pool);
    // 40 TiB need two tables of level 3 and 640 directories.
    let layout = VmemmapLayout { root, base: BASE, frames_end: Pfn(40 << 28), global: true };
    for frames in [0, 1, 2, 3, 4, 100, 643] {
        assert_eq!(make(layout, frames, &pool), Err(VmemmapError::OutOfFrames));
        assert_eq!(pool.outstanding(), 1, "with {frames} frames");
        assert!((0..512).all(|index| !Memory(pool.machine()).read(root, index).is_present()));
    }
    assert_eq!(make(layout, 644, &pool), Ok(()));
    assert_eq!(pool.outstanding(), 645);
}

#[test]
fn the_last_section_of_a_large_machine_works() {
    let pool = contract_pool(Order::MAX);
    let root = root(&pool);
    let cpus =
        cpus::SoftwareCpus::new(pool.machine(), pool.ledger().clone(), root, Forgets::Nothing);
    let cpus: &'static _ = Box::leak(Box::new(cpus));
    let layout = VmemmapLayout { root, base: BASE, frames_end: Pfn(40 << 28), global: true };
    let vmemmap =
        // SAFETY: the root is this test's, and nobody else maps anything.
        unsafe { Vmemmap::new(pool.machine(), cpus, layout, &mut &pool) }.expect("frames");
    let last = (40 << 19) - 1;
    let address = usize::try_from(BASE + u64::from(last) * BLOCK_BYTES).expect("64 bits");
    assert_eq!(cpus.load(0, address), Ok(0));
    let mut unflushed = Unflushed::new();
    let block = BlockRange::new(last, last + 1);
    // SAFETY: nobody else has the vmemmap, and only simulated CPUs access it.
    let trial = unsafe { TrialSpace::new(&vmemmap) };
    trial.populate(block, &mut &pool, &mut unflushed).expect("frames");
    pool.free(trial.flush(unflushed));
    cpus.store(0, address, 7).expect("present");
    assert_eq!(cpus.load(1, address), Ok(7));
    assert_eq!(vmemmap.range().end, BASE + (640 << 30));
    // Beyond the end no block is described, and nothing happens.
    let beyond = BlockRange::new(last + 1, last + 2);
    let mut unflushed = Unflushed::new();
    assert!(trial.populate(beyond, &mut &pool, &mut unflushed).is_err());
    assert_eq!(trial.prepare(beyond, &mut &pool, &mut unflushed), Ok(()));
    assert_eq!(trial.evict(beyond, &mut unflushed), 0);
    assert!(!unflushed.is_stale());
    assert!(cpus.load(0, usize::try_from(vmemmap.range().end).expect("64 bits")).is_err());
}

#[test]
fn a_whole_section_comes_and_goes_by_one_store_without_a_table() {
    let fixture = Fixture::new(contract_pool(Order::MAX));
    let whole = BlockRange::new(128, 192);
    let address = BASE + 128 * BLOCK_BYTES;
    fixture.populate(whole);
    let (_, size, access) = fixture.translate(address).expect("mapped");
    assert_eq!(
        (size, access.write, access.execute, access.global),
        (PageSize::Medium, true, false, false)
    );
    assert_eq!(fixture.pool.outstanding(), fixture.resting + 512);
    fixture.prepare(whole);
    assert_eq!(fixture.evict(whole), 512);
    let (physical, size, access) = fixture.translate(address + 4096).expect("mapped");
    assert_eq!((physical, size), (fixture.vmemmap.zero_frame().address(), PageSize::Small));
    assert!(!access.write && !access.execute);
    assert_eq!(fixture.pool.outstanding(), fixture.resting);
    let counts = fixture.vmemmap.counts();
    assert_eq!((counts.evicted_sections, counts.splits, counts.tables, counts.large), (1, 0, 0, 0));
    // One for the populate and one for the eviction: nothing needed to be prepared.
    assert_eq!((counts.flushes, counts.full_flushes), (2, 2));
}

#[test]
fn a_section_in_pieces_goes_by_one_store_and_takes_its_table_along() {
    let fixture = Fixture::new(contract_pool(Order::MAX));
    let whole = BlockRange::new(128, 192);
    fixture.populate(whole);
    fixture.prepare(BlockRange::new(130, 131));
    assert_eq!(fixture.vmemmap.counts().tables, 1);
    assert_eq!(fixture.evict(BlockRange::new(130, 131)), 8);
    // The table is no longer written, because CPUs may walk it until the flush.
    let memory = Memory(fixture.pool.machine());
    let root = fixture.vmemmap.layout().root;
    let upper = |level: u32, table: u64| {
        memory
            .read(table, framewright_arch::paging::index_of(BASE + 128 * BLOCK_BYTES, level))
            .address()
    };
    let table = upper(2, upper(3, upper(4, root)));
    let entries = || (0..512).map(|index| memory.read(table, index)).collect::<Vec<Entry>>();
    let before = entries();
    let mut unflushed = Unflushed::new();
    assert_eq!(fixture.trial().evict(whole, &mut unflushed), 0);
    assert_eq!(entries(), before);
    let list = fixture.trial().flush(unflushed);
    assert_eq!(list.pages(), 512 - 8 + 1);
    fixture.pool.free(list);
    assert_eq!(fixture.pool.outstanding(), fixture.resting);
    let counts = fixture.vmemmap.counts();
    assert_eq!((counts.evicted_sections, counts.evicted_pages, counts.tables), (1, 512, 0));
}

#[test]
fn a_section_is_merged_where_it_is_or_moves() {
    let fixture = Fixture::new(contract_pool(Order::MAX));
    let whole = BlockRange::new(128, 192);
    let address = BASE + 128 * BLOCK_BYTES;
    fixture.populate(whole);
    let large = fixture.translate(address);
    fixture.prepare(BlockRange::new(128, 129));
    let merge = || {
        let mut unflushed = Unflushed::new();
        assert_eq!(fixture.trial().merge(whole, &mut &fixture.pool, &mut unflushed), Ok(true));
        let list = fixture.trial().flush(unflushed);
        let pages = list.pages();
        fixture.pool.free(list);
        pages
    };
    assert_eq!(merge(), 1, "the table");
    assert_eq!(fixture.translate(address), large);
    fixture.prepare(BlockRange::new(128, 129));
    assert_eq!(fixture.evict(BlockRange::new(128, 129)), 8);
    // Takes the freed frames, so that the block gets others.
    let _taken = framewright::vmemmap_space::FrameSource::take(&mut &fixture.pool, order(3))
        .expect("frames");
    fixture.populate(BlockRange::new(128, 129));
    assert_eq!(merge(), 513, "all frames and the table");
    let moved = fixture.translate(address).expect("mapped");
    assert_eq!(moved.1, PageSize::Medium);
    assert_ne!(Some(moved), large);
    assert_eq!(fixture.vmemmap.counts().merges, 2);
    assert_eq!(fixture.pool.outstanding(), fixture.resting + 512 + 8);
}

#[test]
fn flushes_are_as_small_as_the_change() {
    let fixture = Fixture::new(contract_pool(order(3)));
    fixture.populate(BlockRange::new(70, 71));
    assert_eq!(fixture.cpus.asked(), [Asked::Ranges(1, 8)]);
    fixture.populate(BlockRange::new(71, 75));
    assert_eq!(fixture.cpus.asked(), [Asked::Ranges(1, 32)]);
    fixture.populate(BlockRange::new(75, 80));
    assert_eq!(fixture.cpus.asked(), [Asked::Everything]);
    // Scattered blocks: one range each, as long as there are few.
    let mut unflushed = Unflushed::new();
    for block in [70, 72, 75] {
        assert_eq!(fixture.trial().evict(BlockRange::new(block, block + 1), &mut unflushed), 0);
    }
    fixture.pool.free(fixture.trial().flush(unflushed));
    assert_eq!(fixture.cpus.asked(), [Asked::Ranges(3, 24)]);
    // No change, no flush.
    fixture.prepare(BlockRange::new(64, 128));
    fixture.pool.free(fixture.trial().flush(Unflushed::new()));
    assert_eq!(fixture.cpus.asked(), []);
    let counts = fixture.vmemmap.counts();
    assert_eq!((counts.flushes, counts.full_flushes), (4, 1));
    assert_eq!((counts.flushed_ranges, counts.flushed_pages), (5, 64));
}

#[test]
fn sections_come_and_go_on_several_cpus_at_once() {
    let fixture = Fixture::new(contract_pool(Order::MAX));
    std::thread::scope(|scope| {
        for cpu in 0..3u32 {
            let fixture = &fixture;
            scope.spawn(move || {
                let whole = BlockRange::new(64 * (cpu + 1), 64 * (cpu + 2));
                let part = BlockRange::new(whole.start.0 + 5, whole.start.0 + 9);
                let address = |block: u32| {
                    usize::try_from(BASE + u64::from(block) * BLOCK_BYTES).expect("64 bits")
                };
                for round in 0..30 {
                    fixture.populate(whole);
                    fixture.cpus.store(cpu, address(whole.start.0), round).expect("present");
                    fixture.prepare(part);
                    fixture.evict(part);
                    assert_eq!(fixture.cpus.load(cpu, address(part.start.0)), Ok(0));
                    assert_eq!(fixture.cpus.load(cpu, address(whole.start.0)), Ok(round));
                    fixture.evict(whole);
                    assert_eq!(fixture.cpus.load(cpu, address(whole.start.0)), Ok(0));
                }
            });
        }
    });
    assert_eq!(fixture.pool.outstanding(), fixture.resting);
    let counts = fixture.vmemmap.counts();
    assert_eq!((counts.populated_pages, counts.evicted_pages), (3 * 30 * 512, 3 * 30 * 512));
    assert_eq!((counts.tables, counts.large), (0, 0));
}

#[test]
fn counts_have_names_of_their_own() {
    let fixture = Fixture::new(contract_pool(Order::MAX));
    fixture.populate(BlockRange::new(0, 64));
    let counts: Vec<_> = fixture.vmemmap.counts().vmstat().collect();
    assert_eq!(counts.iter().map(|&(name, _)| name).collect::<HashSet<_>>().len(), counts.len());
    assert!(
        counts.contains(&("nr_memmap_large", 1)) && counts.contains(&("memmap_populated", 512)),
        "{counts:?}"
    );
}

/// Everything that a walk finds.
#[derive(Default)]
struct Seen {
    pages: Vec<Mapping>,
    tables: usize,
}

impl Visitor for Seen {
    fn table(&mut self, _address: u64, _level: u32, _table: u64) -> bool {
        self.tables += 1;
        true
    }
    fn page(&mut self, mapping: Mapping) {
        self.pages.push(mapping);
    }
}

#[test]
fn a_walk_meets_every_page_and_no_frame_is_writable_twice() {
    let fixture = Fixture::new(contract_pool(Order::MAX));
    fixture.populate(BlockRange::new(0, 64));
    fixture.populate(BlockRange::new(64, 70));
    let mut seen = Seen::default();
    walk(&Memory(fixture.pool.machine()), fixture.vmemmap.layout().root, &mut seen);
    let bytes: u64 = seen.pages.iter().map(|page| page.size.bytes()).sum();
    let range = fixture.vmemmap.range();
    assert_eq!(bytes, range.end - range.start, "the vmemmap has no hole");
    assert!(seen.pages.is_sorted_by_key(|page| page.address));
    // The pointer table, one directory, and a table for each section but the large one.
    assert_eq!(seen.tables, 1 + 1 + 511);
    let writable: Vec<_> = seen.pages.iter().filter(|page| page.access.write).collect();
    assert_eq!(writable.iter().map(|page| page.size.bytes()).sum::<u64>(), (64 + 6) * BLOCK_BYTES);
    let frames: HashSet<u64> = writable.iter().map(|page| page.physical).collect();
    assert_eq!(frames.len(), writable.len());
    for page in seen.pages {
        assert_eq!(fixture.translate(page.address), Some((page.physical, page.size, page.access)));
        assert!(!page.access.execute);
    }
}

#[test]
fn an_array_of_global_pages_says_so() {
    let pool = contract_pool(Order::MAX);
    let root = root(&pool);
    let cpus: &'static _ = Box::leak(Box::new(cpus::SoftwareCpus::new(
        pool.machine(),
        pool.ledger().clone(),
        root,
        Forgets::Nothing,
    )));
    let layout = VmemmapLayout { root, base: BASE, frames_end: Pfn(1), global: true };
    let vmemmap =
        // SAFETY: the root is this test's, and nobody else maps anything.
        unsafe { Vmemmap::new(pool.machine(), cpus, layout, &mut &pool) }.expect("frames");
    let mut seen = Seen::default();
    walk(&Memory(pool.machine()), vmemmap.layout().root, &mut seen);
    assert!(seen.pages.iter().all(|page| page.access.global));
    assert_eq!(vmemmap.base().addr().get() as u64, BASE);
    let fixture = Fixture::new(pool);
    assert_eq!(fixture.outstanding(), fixture.resting as u64);
}
