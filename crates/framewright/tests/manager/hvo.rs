//! Giving back the memory map of huge pages (HVO), and restoring it.

use crate::common::{Fake, bring_up_with, check, gib, mib, order, parameters, settled};
use framewright::hugetlb::PoolSize;
use framewright::manager::{VmemmapChange, VmemmapError};
use framewright::memblock::NodeChoice;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::{DescriptorForm, MigrateType};
use framewright::{AllocateError, BringUp, Manager, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};
use proptest::prelude::*;
use std::thread;

fn machine(size: framewright::units::PhysRange, cpus: u32) -> (Fake, &'static FakeVmemmap) {
    let machine = FakeMachine::builder().ram(size).cpus(cpus).build();
    let array = FakeVmemmap::install(machine);
    let manager =
        bring_up_with(machine, &[], &parameters("memmap_init=deferred")).expect("bring-up");
    manager.vmemmap().initialise_deferred(&NoHelpers);
    check(&manager);
    (manager, array)
}

fn blocks(manager: &Fake, of: u8, count: usize) -> Vec<PfnRange> {
    (0..count)
        .map(|_| manager.allocate(&Request::new(order(of))).expect("there is memory"))
        .collect()
}

fn saved(manager: &Fake) -> i64 {
    manager.vmemmap().saved_pages()
}

/// Allocates all pages one by one, each with a clear descriptor, and frees them.
fn use_all(manager: &Fake) -> u64 {
    let mut taken = Vec::new();
    while let Ok(range) = manager.allocate(&Request {
        reserves: Reserves::All,
        fail_fast: true,
        ..Request::new(Order::PAGE)
    }) {
        // SAFETY: the test owns the page.
        let page = unsafe { manager.vmemmap().page(range.start) }.expect("it has a descriptor");
        assert!(page.is_clear(), "pfn {}", range.start);
        taken.push(range);
    }
    check(manager);
    let pages = taken.len() as u64;
    taken.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
    manager.drain().expect("only good frames");
    pages
}

#[test]
fn a_whole_section_comes_back_without_a_table() {
    let (manager, array) = machine(gib(0, 4), 1);
    let before = (settled(&manager), array.counts());
    let huge = manager.allocate(&Request::new(Order::MAX)).expect("there is memory");
    let change = manager.optimize_vmemmap(&[huge]).expect("it is the caller's");
    // 16 MiB of map with one flush, because no page table had to be split.
    assert_eq!(
        change,
        VmemmapChange { blocks: 512, freed_pages: 4096, flushes: 1, ..VmemmapChange::default() }
    );
    assert_eq!(array.counts().sections, before.1.sections - 8);
    assert_eq!((saved(&manager), manager.vmemmap().reclaimed_blocks()), (4096, 512));
    check(&manager);
    assert_eq!(settled(&manager).free_pages, before.0.free_pages - (1 << 18) + 4096);
    assert_eq!(
        manager.optimize_vmemmap(&[huge]),
        Ok(VmemmapChange::default()),
        "a second time there is nothing, and no flush"
    );
    let restored = manager.restore_vmemmap(&[huge]).expect("there is memory");
    assert_eq!((restored.blocks, restored.spent_pages, restored.flushes), (512, 4096, 1));
    assert_eq!((saved(&manager), manager.vmemmap().reclaimed_blocks()), (0, 0));
    manager.give_back(huge).expect("allocated");
    check(&manager);
    assert_eq!(settled(&manager), before.0);
}

#[test]
fn two_flushes_a_batch_and_eight_pages_a_block() {
    let (manager, _) = machine(gib(0, 1), 1);
    let pages = blocks(&manager, 9, 10);
    let free = settled(&manager).free_pages;
    let change = manager.optimize_vmemmap(&pages).expect("they are the caller's");
    assert_eq!(
        (change.blocks, change.freed_pages, change.flushes, change.out_of_frames),
        (10, 80, 2, 0)
    );
    assert!((1..=2).contains(&change.spent_pages), "a table for each section: {change:?}");
    assert_eq!(settled(&manager).free_pages, free + 80 - change.spent_pages);
    assert_eq!(saved(&manager), 80 - i64::try_from(change.spent_pages).expect("small"));
    check(&manager);
    // Frees part of one: its pages now have descriptors inside the block.
    manager.give_back(PfnRange::new(pages[0].start.0, pages[0].start.0 + 100)).expect("allocated");
    let state = manager.block_state(BlockNumber::containing(pages[0].start)).expect("a block");
    assert_eq!(state.descriptor_form(), DescriptorForm::Inside);
    check(&manager);
    manager.give_back(PfnRange::new(pages[0].start.0 + 100, pages[0].end.0)).expect("allocated");
    pages[1..].iter().for_each(|&page| manager.give_back(page).expect("allocated"));
    use_all(&manager);
}

#[test]
fn freeing_never_fails_however_little_memory_there_is() {
    let (manager, array) = machine(mib(0, 512), 1);
    let idle = settled(&manager);
    let mut huge = Vec::new();
    let all = Request { reserves: Reserves::All, fail_fast: true, ..Request::new(Order::BLOCK) };
    while let Ok(block) = manager.allocate(&all) {
        huge.push(block);
        // With the last blocks no page is left for a page table.
        manager.optimize_vmemmap(&[block]).expect("it is the caller's");
    }
    let mut pages = Vec::new();
    while let Ok(page) =
        manager.allocate(&Request { reserves: Reserves::All, ..Request::new(Order::PAGE) })
    {
        pages.push(page);
    }
    assert_eq!(settled(&manager).free_pages, 0);
    check(&manager);
    let flushes = array.counts().flushes;
    // In pieces, so that each block is split first.
    for block in huge {
        for piece in 0..4 {
            let start = block.start.0 + piece * 128;
            manager.give_back(PfnRange::new(start, start + 128)).expect("freeing never fails");
        }
    }
    pages.into_iter().for_each(|page| manager.give_back(page).expect("freeing never fails"));
    assert_eq!(array.counts().flushes, flushes, "and never flushes");
    check(&manager);
    let left = settled(&manager);
    assert_eq!(
        left.free_pages + left.descriptor_pages,
        (idle.free_pages + idle.descriptor_pages).saturating_add_signed(saved(&manager))
    );
}

#[test]
fn without_a_frame_for_a_table_blocks_stay_as_they_are() {
    let (manager, array) = machine(mib(0, 512), 1);
    let block = manager.allocate(&Request::new(Order::BLOCK)).expect("there is memory");
    let mut pages = Vec::new();
    while let Ok(page) =
        manager.allocate(&Request { reserves: Reserves::All, ..Request::new(Order::PAGE) })
    {
        pages.push(page);
    }
    let before = array.counts();
    let change = manager.optimize_vmemmap(&[block]).expect("it is the caller's");
    assert_eq!(change, VmemmapChange { out_of_frames: 1, ..VmemmapChange::default() });
    assert_eq!(array.counts(), before);
    manager.give_back(PfnRange::new(block.start.0, block.start.0 + 1)).expect("allocated");
    let state = manager.block_state(BlockNumber::containing(block.start)).expect("a block");
    assert_eq!(
        state.descriptor_form(),
        DescriptorForm::Array,
        "its descriptors are where they were"
    );
    check(&manager);
}

#[test]
fn restoring_stops_where_frames_run_out() {
    let (manager, array) = machine(gib(0, 4), 1);
    let huge = manager.allocate(&Request::new(Order::MAX)).expect("there is memory");
    manager.optimize_vmemmap(&[huge]).expect("it is the caller's");
    array.fail_after(3);
    let change = manager.restore_vmemmap(&[huge]).expect("some of it works");
    assert_eq!((change.blocks, change.out_of_frames), (3 * 64, 5 * 64));
    check(&manager);
    assert_eq!(manager.vmemmap().reclaimed_blocks(), 5 * 64);
    manager.give_back(huge).expect("allocated");
    check(&manager);
}

#[test]
fn what_cannot_be_changed_is_refused() {
    let (manager, _) = machine(mib(0, 512), 1);
    let block = manager.allocate(&Request::new(Order::BLOCK)).expect("there is memory");
    let beyond = PfnRange::new(1 << 30, (1 << 30) + 512);
    assert_eq!(
        manager.optimize_vmemmap(&[block, beyond]),
        Err(VmemmapError::NotManaged(Pfn(1 << 30)))
    );
    assert_eq!(manager.vmemmap().reclaimed_blocks(), 0, "nothing has changed");
    let inside = manager.platform().interrupt(|| manager.optimize_vmemmap(&[block]));
    assert_eq!(inside, Err(VmemmapError::CannotWait));
    // Free blocks, blocks in pieces and blocks of which only a part is named are left alone.
    let page = manager.allocate(&Request::new(Order::PAGE)).expect("there is memory");
    let around = PfnRange::new(page.start.0 & !511, (page.start.0 & !511) + 512);
    assert_eq!(manager.optimize_vmemmap(&[around]), Ok(VmemmapChange::default()));
    let part = PfnRange::new(block.start.0 + 1, block.end.0);
    assert_eq!(
        manager.optimize_vmemmap(&[part, PfnRange::new(5, 5)]),
        Ok(VmemmapChange::default())
    );
    let bare = FakeMachine::builder().ram(mib(0, 64)).build();
    let bare = bring_up_with(bare, &[], &parameters("")).expect("bring-up");
    assert_eq!(bare.optimize_vmemmap(&[]), Err(VmemmapError::NoArray));
}

#[test]
fn several_cpus_reclaim_restore_and_free_at_once() {
    let (manager, _) = machine(gib(0, 1), 5);
    let idle = settled(&manager);
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let manager = &manager;
            scope.spawn(move || {
                for round in 0..60 {
                    let of = [9, 9, 11, 15][usize::try_from((thread + round) % 4).expect("small")];
                    let run = match manager
                        .allocate(&Request { node: NodeChoice::Any, ..Request::new(order(of)) })
                    {
                        Ok(run) => run,
                        Err(AllocateError::OutOfMemory { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    manager.optimize_vmemmap(&[run]).expect("it is the caller's");
                    if round % 3 == 0 {
                        manager.restore_vmemmap(&[run]).expect("it is the caller's");
                    }
                    let border = run.start.0 + (round * 37) % run.pages();
                    for part in
                        [PfnRange::new(run.start.0, border), PfnRange::new(border, run.end.0)]
                    {
                        if !part.is_empty() {
                            manager.give_back(part).expect("allocated");
                        }
                    }
                }
            });
        }
    });
    manager.drain().expect("only good frames");
    check(&manager);
    let left = settled(&manager);
    assert_eq!(
        left.free_pages + left.descriptor_pages,
        (idle.free_pages + idle.descriptor_pages).saturating_add_signed(saved(&manager))
    );
    use_all(&manager);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn any_mix_of_operations(
        operations in prop::collection::vec(
            (0..6_u8, any::<prop::sample::Index>(), 9..16_u8),
            1..40,
        ),
    ) {
        let (manager, array) = machine(mib(0, 384), 1);
        let idle = settled(&manager);
        let mut held: Vec<PfnRange> = Vec::new();
        for (operation, which, of) in operations {
            match operation {
                0 | 1 => held.extend(manager.allocate(&Request::new(order(of))).ok()),
                _ if held.is_empty() => {}
                2 => {
                    manager.optimize_vmemmap(&[held[which.index(held.len())]]).expect(
                        "it is the \
                        caller's",
                    );
                }
                3 => {
                    manager.restore_vmemmap(&[held[which.index(held.len())]]).expect(
                        "it is the \
                        caller's",
                    );
                }
                4 => {
                    manager.give_back(held.swap_remove(which.index(held.len()))).expect("allocated")
                }
                _ => {
                    manager.optimize_vmemmap(&held).expect("they are the caller's");
                }
            }
            check(&manager);
            let left = settled(&manager);
            let in_use: u64 = held.iter().map(|range| range.pages()).sum();
            prop_assert_eq!(
                left.free_pages + left.descriptor_pages + in_use,
                (idle.free_pages + idle.descriptor_pages).saturating_add_signed(saved(&manager))
            );
        }
        manager.optimize_vmemmap(&held).expect("they are the caller's");
        manager.restore_vmemmap(&held).expect("they are the caller's");
        for range in held {
            manager.give_back(range).expect("allocated");
        }
        use_all(&manager);
        prop_assert!(array.counts().frames > 0);
        // SAFETY: the manager is no longer used.
        unsafe { manager.platform().retire() };
    }
}

#[test]
fn frames_of_the_array_come_back_without_poison_and_nobody_is_blamed() {
    let machine = FakeMachine::builder().ram(mib(0, 256)).build();
    FakeVmemmap::install(machine);
    let line = parameters("memmap_init=eager page_poison=1");
    let manager = bring_up_with(machine, &[], &line).expect("bring-up");
    let block = blocks(&manager, 9, 1)[0];
    // Allocates and frees everything else once, so that it is filled with poison.
    let mut pages = Vec::new();
    while let Ok(page) = manager.allocate(&Request::new(Order::PAGE)) {
        pages.push(page);
    }
    pages.into_iter().for_each(|page| manager.give_back(page).expect("allocated"));
    for _ in 0..2 {
        assert_eq!(manager.optimize_vmemmap(&[block]).expect("it is the caller's").blocks, 1);
        assert_eq!(manager.restore_vmemmap(&[block]).expect("it is the caller's").blocks, 1);
    }
    manager.optimize_vmemmap(&[block]).expect("it is the caller's");
    let error = loop {
        match manager.allocate(&Request { fail_fast: true, ..Request::new(Order::PAGE) }) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error, AllocateError::OutOfMemory { order: Order::PAGE });
}

#[test]
fn a_run_that_is_named_twice_counts_once() {
    let (manager, _) = machine(mib(0, 512), 1);
    let run = blocks(&manager, 9, 1)[0];
    assert_eq!(manager.optimize_vmemmap(&[run, run]).expect("it is the caller's").blocks, 1);
    assert_eq!(manager.vmemmap().reclaimed_blocks(), 1);
    assert_eq!(manager.restore_vmemmap(&[run, run]).expect("it is the caller's").blocks, 1);
    assert_eq!(manager.vmemmap().reclaimed_blocks(), 0);
    check(&manager);
}

/// Frames that leave the array on both sides of a zone border are neighbours, and no single free
/// may span the border.
#[test]
fn what_leaves_the_array_on_both_sides_of_a_zone_border_is_free() {
    let loses_nothing = |bottom_up: bool, ram: &[framewright::units::PhysRange]| {
        let builder = ram.iter().fold(FakeMachine::builder(), |builder, &ram| builder.ram(ram));
        let machine = builder.cpus(1).build();
        let array = FakeVmemmap::install(machine);
        let mut early = machine.memblock(&[]);
        early.set_bottom_up(bottom_up);
        let parameters = parameters("memmap_init=eager");
        let input = BringUp { parameters: &parameters, started_ns: None };
        let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error).expect("up");
        manager.hugetlb().set_optimize_vmemmap(true);
        let (frames, free) = (array.counts().frames, settled(&manager).free_pages);
        let pool = manager.pool(PoolSize::TwoMib);
        pool.resize(100_000, &NoHelpers).expect("nobody else resizes");
        check(&manager);
        let back = settled(&manager).free_pages + pool.counts().all.nr * 512 - free;
        assert_eq!(back, frames - array.counts().frames, "{ram:?}");
    };
    // The array begins below 16 MiB, and ends above 4 GiB.
    loses_nothing(true, &[mib(0, 3072), gib(4, 5)]);
    loses_nothing(false, &[mib(0, 4096 + 40)]);
}

/// Memory that is released after bring-up has no map yet, and never gave one back.
#[test]
fn a_map_that_is_made_for_the_first_time_was_not_given_back() {
    let machine = FakeMachine::builder().ram(gib(0, 1)).cpus(1).build();
    FakeVmemmap::install(machine);
    let manager =
        bring_up_with(machine, &[mib(512, 640)], &parameters("memmap_init=eager")).expect("up");
    // SAFETY: the memory was reserved above, and nobody uses it.
    unsafe { manager.hotplug().release(mib(512, 640).whole_frames()) }.expect("reserved");
    let block =
        manager.allocate_at(mib(512, 640).whole_frames().start, order(9), MigrateType::Movable);
    let change = manager.restore_vmemmap(&[block.expect("free")]).expect("ours");
    assert_eq!((change.blocks, manager.vmemmap().reclaimed_blocks()), (1, 0));
    check(&manager);
}
