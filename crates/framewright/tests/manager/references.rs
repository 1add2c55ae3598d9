//! Reference counts of pages, runs and blocks: putting the last reference frees the memory with the
//! right size, nobody gets a reference to free memory, and misuse is an error.

use super::HERE;
use crate::common::{Fake, bring_up_with, check, gib, idle_pages, mib, order, parameters};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::MigrateType;
use framewright::{Page, PartOf, ReferenceError, Request, Reserves};
use framewright_testkit::model::ReferenceModel;
use framewright_testkit::{FakeMachine, Owner};
use proptest::prelude::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

fn described() -> Fake {
    HERE.bring_up_described(FakeMachine::builder().ram(mib(0, 64)).build())
}

fn allocate(manager: &Fake, pages: u64) -> PfnRange {
    manager.allocate(&Request::pages(pages)).expect("there is memory")
}

fn settle(manager: &Fake) {
    manager.drain().expect("only good frames are cached");
    check(manager);
    assert_eq!(manager.totals().allocated_pages, 0);
}

#[test]
fn the_last_reference_frees() {
    let manager = described();
    for pages in [1, 2, 4, 5, 8, 64, 100, 256, 512, 1024] {
        let idle = idle_pages(&manager);
        let run = allocate(&manager, pages);
        let (first, last) = (run.start, Pfn(run.end.0 - 1));
        assert!(manager.references().try_get(first).is_err(), "nobody started a count");
        manager.begin_references(run).expect("allocated");
        assert_eq!(manager.references().count(last), Ok(1));
        assert_eq!(manager.references().run(last), Ok(run));
        manager.references().try_get(last).expect("it has references");
        manager.references().try_get(first).expect("it has references");
        assert_eq!(manager.references().count(first), Ok(3));
        for _ in 0..2 {
            manager.give_back_reference(last).expect("a reference");
        }
        check(&manager);
        assert!(idle_pages(&manager) < idle);
        manager.give_back_reference(first).expect("the last reference");
        manager.drain().expect("only good frames are cached");
        assert_eq!(idle_pages(&manager), idle, "{pages} pages");
        check(&manager);
        for pfn in [first, last] {
            assert!(
                manager.references().try_get(pfn).is_err()
                    && manager.give_back_reference(pfn).is_err(),
                "it is free"
            );
        }
    }
    settle(&manager);
}

#[test]
fn blocks_have_counts_and_owner_words_without_descriptors() {
    if HERE.has_array() {
        return;
    }
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let page = allocate(&manager, 1);
    assert_eq!(manager.begin_references(page), Err(ReferenceError::NotARun(page)));
    for of in [9, 10, 18] {
        let block = allocate(&manager, 1 << of);
        let last = Pfn(block.end.0 - 1);
        assert_eq!(manager.references().owner_word(last), Err(ReferenceError::NotCounted(last)));
        manager.begin_references(block).expect("a whole block");
        assert_eq!(
            manager.begin_references(block),
            Err(ReferenceError::Busy { pfn: block.start, references: 1 })
        );
        assert_eq!(manager.references().owner_word(last), Ok(0));
        manager.references().set_owner_word(last, 0xdead_beef).expect("counted");
        assert_eq!(manager.references().owner_word(block.start), Ok(0xdead_beef));
        check(&manager);
        manager.references().try_get(last).expect("it has references");
        assert_eq!(
            manager.freeze_references(last, 1),
            Err(ReferenceError::Busy { pfn: last, references: 2 })
        );
        manager.give_back_reference(last).expect("a reference");
        manager.freeze_references(last, 1).expect("alone");
        assert_eq!(
            manager.references().try_get(block.start),
            Err(ReferenceError::Frozen(block.start))
        );
        manager.unfreeze_references(last, 3).expect("frozen");
        assert_eq!(manager.give_back_testzero(last), Ok(None));
        assert_eq!(manager.give_back_testzero(last), Ok(None));
        assert_eq!(manager.give_back_testzero(last), Ok(Some(block)));
        assert_eq!(manager.give_back_frozen(last), Ok(()));
        check(&manager);
        // The next owner begins anew.
        manager.drain().expect("only good frames are cached");
        let again =
            manager.allocate_at(block.start, order(of), MigrateType::Movable).expect("free again");
        assert!(manager.references().try_get(again.start).is_err());
        manager.begin_references(again).expect("a whole block");
        assert_eq!(manager.references().owner_word(again.start), Ok(0));
        manager.give_back_reference(again.start).expect("the last reference");
    }
    manager.give_back_to_zone(page).expect("allocated");
    settle(&manager);
}

#[test]
fn a_block_that_is_freed_in_parts_loses_its_count() {
    for manager in [described(), HERE.bring_up(FakeMachine::builder().ram(mib(0, 64)).build())] {
        let block = allocate(&manager, 2048);
        manager.begin_references(block).expect("a whole block");
        manager.freeze_references(block.start, 1).expect("alone");
        manager
            .give_back_to_zone(PfnRange::new(block.start.0 + 512, block.start.0 + 1024))
            .expect("allocated");
        check(&manager);
        for pfn in [block.start, Pfn(block.end.0 - 1)] {
            assert_eq!(manager.references().count(pfn), Err(ReferenceError::NotCounted(pfn)));
        }
        let halves = [
            PfnRange::new(block.start.0, block.start.0 + 512),
            PfnRange::new(block.start.0 + 1024, block.end.0),
        ];
        for half in halves {
            manager.begin_references(half).expect("each part is a whole block");
            manager.freeze_references(half.start, 1).expect("alone");
            manager
                .give_back_to_zone(PfnRange::new(half.start.0 + 7, half.start.0 + 100))
                .expect("allocated");
            check(&manager);
            manager
                .give_back_to_zone(PfnRange::new(half.start.0, half.start.0 + 7))
                .expect("allocated");
            manager
                .give_back_to_zone(PfnRange::new(half.start.0 + 100, half.end.0))
                .expect("allocated");
        }
        settle(&manager);
    }
}

#[test]
fn a_counted_block_comes_out_of_a_cache_without_references() {
    // Large enough that a CPU may cache some blocks.
    let manager = HERE.bring_up_described(FakeMachine::builder().ram(mib(0, 1024)).build());
    let block =
        manager.allocate_order(Order::BLOCK, MigrateType::Movable).expect("there is memory");
    manager.begin_references(PfnRange::new(block.0, block.0 + 512)).expect("a whole block");
    manager.references().set_owner_word(block, 5).expect("counted");
    manager.give_back_reference(block).expect("the last reference");
    assert!(manager.caches().pages() >= 512);
    assert!(manager.references().try_get(block).is_err());
    let again =
        manager.allocate_order(Order::BLOCK, MigrateType::Movable).expect("there is memory");
    assert_eq!(again, block);
    manager.begin_references(PfnRange::new(block.0, block.0 + 512)).expect("a whole block");
    assert_eq!(manager.references().owner_word(block), Ok(0));
    manager.give_back_reference(block).expect("the last reference");
    settle(&manager);
}

#[test]
fn misuse_is_an_error_and_changes_nothing() {
    let manager = described();
    let page = allocate(&manager, 1);
    let nowhere = Pfn(1 << 30);
    assert_eq!(manager.references().try_get(nowhere), Err(ReferenceError::NotManaged(nowhere)));
    assert_eq!(
        manager.give_back_reference(Pfn(u64::MAX)),
        Err(ReferenceError::NotManaged(Pfn(u64::MAX)))
    );
    assert_eq!(manager.give_back_reference(page.start), Err(ReferenceError::Frozen(page.start)));
    assert_eq!(
        manager.freeze_references(page.start, 0),
        Err(ReferenceError::Busy { pfn: page.start, references: 0 })
    );
    assert_eq!(manager.unfreeze_references(page.start, 0), Err(ReferenceError::Frozen(page.start)));
    let frames = manager.vmemmap().descriptor_frames(BlockNumber::containing(page.start));
    assert_eq!(frames.is_none(), HERE.has_array());
    // With an array no frame of the block holds descriptors, and in the following checks any page
    // may take the place of such frames.
    let frames = frames.unwrap_or([Pfn(page.start.0 + 8); 8]);
    if !HERE.has_array() {
        assert_eq!(
            manager.references().try_get(frames[3]),
            Err(ReferenceError::NotCounted(frames[3]))
        );
    }
    let block = allocate(&manager, 512);
    assert_eq!(
        manager.references().try_get(block.start),
        Err(ReferenceError::NotCounted(block.start))
    );
    let wrong = [
        PfnRange::new(page.start.0, page.start.0),
        // Pages that are free, pages that hold descriptors, and pages that lie in two blocks.
        PfnRange::new(page.start.0, page.start.0 + 2),
        PfnRange::new(frames[0].0, frames[0].0 + 1),
        PfnRange::new(block.start.0 - 4, block.start.0 + 4),
        // Parts of a block, and more than a block.
        PfnRange::new(block.start.0, block.start.0 + 4),
        PfnRange::new(block.start.0, block.start.0 + 1024),
        PfnRange::new(block.start.0, block.start.0 + 600),
    ];
    manager.drain().expect("only good frames are cached");
    for range in wrong {
        assert_eq!(manager.begin_references(range), Err(ReferenceError::NotARun(range)));
    }
    let run = allocate(&manager, 4);
    manager
        .begin_references(PfnRange::new(run.start.0 + 1, run.start.0 + 3))
        .expect("a part of it");
    let busy = manager.begin_references(PfnRange::new(run.start.0 + 1, run.start.0 + 4));
    assert_eq!(busy, Err(ReferenceError::Busy { pfn: run.start.add(1), references: 1 }));
    assert_eq!(
        manager.give_back_frozen(run.start.add(2)),
        Err(ReferenceError::Busy { pfn: run.start.add(2), references: 1 })
    );
    manager.give_back_reference(run.start.add(2)).expect("the last reference frees two pages");
    manager.give_back_to_zone(PfnRange::new(run.start.0, run.start.0 + 1)).expect("allocated");
    manager.give_back_to_zone(PfnRange::new(run.start.0 + 3, run.start.0 + 4)).expect("allocated");
    manager.give_back_to_zone(page).expect("allocated");
    manager.give_back_to_zone(block).expect("allocated");
    settle(&manager);
}

#[test]
fn the_last_put_clears_what_the_owner_wrote() {
    let manager = described();
    let run = allocate(&manager, 6);
    manager.begin_references(run).expect("allocated");
    for pfn in (run.start.0..run.end.0).map(Pfn) {
        // SAFETY: the test owns the page.
        let page = unsafe { manager.vmemmap().page(pfn) }.expect("described");
        page.flags().store(u64::MAX, Ordering::Relaxed);
        page.owner_words().iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        let tail = u32::try_from(pfn.0 - run.start.0).expect("small");
        let expected = if tail == 0 {
            PartOf::Head { pages: 6 }
        } else {
            PartOf::Tail { pages_to_head: tail }
        };
        assert_eq!(page.part_of(), expected);
    }
    manager.give_back_reference(run.start).expect("the last reference");
    settle(&manager);
    let again = manager.allocate_at(run.start, Order::PAGE, MigrateType::Movable).expect("free");
    // SAFETY: the test owns the page.
    assert!(unsafe { manager.vmemmap().page(again.start) }.is_some_and(Page::is_clear));
    manager.give_back_to_zone(again).expect("allocated");
}

#[test]
fn references_are_counted_in_interrupts_and_without_a_lock() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let manager = HERE.bring_up_described(machine);
    let page = allocate(&manager, 1);
    manager.begin_references(page).expect("allocated");
    machine.interrupt(|| manager.references().try_get(page.start)).expect("it has references");
    machine.interrupt(|| manager.give_back_reference(page.start)).expect("a reference");
    machine.interrupt(|| manager.give_back_reference(page.start)).expect("the last reference");
    settle(&manager);
}

#[test]
fn cpus_get_and_put_what_others_free() {
    // A few pages and blocks come and go, while all CPUs try to get references to any of them by
    // number.
    let machine = FakeMachine::builder().ram(mib(0, 32)).cpus(5).build();
    let manager = HERE.bring_up_described(machine);
    let idle = idle_pages(&manager);
    // The number of holders of each frame, as counted by the holders.
    let holders: Vec<AtomicU32> = (0..32 << 8).map(|_| AtomicU32::new(0)).collect();
    let owners: Vec<AtomicU32> = (0..32 << 8).map(|_| AtomicU32::new(0)).collect();
    let known: Mutex<Vec<PfnRange>> = Mutex::new(Vec::new());
    let at = |pfn: Pfn| usize::try_from(pfn.0).expect("small");
    thread::scope(|scope| {
        for seed in 1..=4_u64 {
            let (manager, holders, owners, known) = (&manager, &holders, &owners, &known);
            scope.spawn(move || {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut random = |limit: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % limit
                };
                for _ in 0..6000 {
                    if random(3) == 0 {
                        let pages =
                            [1, 1, 2, 3, 8, 256, 512][usize::try_from(random(7)).expect("small")];
                        let Ok(run) = manager.allocate(&Request::pages(pages)) else { continue };
                        for pfn in run.start.0..run.end.0 {
                            assert_eq!(
                                holders[at(Pfn(pfn))].load(Ordering::Relaxed),
                                0,
                                "pfn {pfn:#x} is held"
                            );
                            assert_eq!(
                                owners[at(Pfn(pfn))].swap(1, Ordering::Relaxed),
                                0,
                                "pfn {pfn:#x} twice"
                            );
                        }
                        manager.begin_references(run).expect("allocated");
                        known.lock().expect("no panic").push(run);
                    } else {
                        let mut known = known.lock().expect("no panic");
                        if known.is_empty() {
                            continue;
                        }
                        let index = usize::try_from(random(known.len() as u64)).expect("small");
                        let run = known[index];
                        if random(2) == 0 {
                            known.swap_remove(index);
                            drop(known);
                            // The first reference is put; others may still hold the run.
                            if let Some(freed) =
                                manager.give_back_testzero(run.start).expect("a reference")
                            {
                                give_up(freed, holders, owners);
                                manager.give_back_frozen(freed.start).expect("alone");
                            }
                        } else {
                            drop(known);
                            let pfn = Pfn(run.start.0 + random(run.pages()));
                            if manager.references().try_get(pfn).is_ok() {
                                let held = manager.references().run(pfn).expect("a reference");
                                assert!(held.contains(pfn));
                                holders[at(pfn)].fetch_add(1, Ordering::Relaxed);
                                assert_eq!(
                                    owners[at(pfn)].load(Ordering::Relaxed),
                                    1,
                                    "pfn {:#x} is free",
                                    pfn.0
                                );
                                holders[at(pfn)].fetch_sub(1, Ordering::Relaxed);
                                if let Some(freed) =
                                    manager.give_back_testzero(pfn).expect("a reference")
                                {
                                    give_up(freed, holders, owners);
                                    manager.give_back_frozen(freed.start).expect("alone");
                                }
                            }
                        }
                    }
                }
            });
        }
    });
    for run in known.into_inner().expect("no panic") {
        manager.give_back_reference(run.start).expect("the last reference");
    }
    settle(&manager);
    assert_eq!(idle_pages(&manager), idle);
}

/// The thread that put the last reference is the only owner.
fn give_up(run: PfnRange, holders: &[AtomicU32], owners: &[AtomicU32]) {
    for pfn in run.start.0..run.end.0 {
        let index = usize::try_from(pfn).expect("small");
        assert_eq!(holders[index].load(Ordering::Relaxed), 0, "pfn {pfn:#x} is held");
        assert_eq!(owners[index].swap(0, Ordering::Relaxed), 1, "pfn {pfn:#x} freed twice");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { pages: u64 },
    Get { slot: usize, offset: u64 },
    Put { slot: usize, offset: u64 },
    Freeze { slot: usize, expected: u32 },
    Unfreeze { slot: usize, count: u32 },
    FreeFrozen { slot: usize },
    Stray { pfn: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let slot = 0_usize..64;
    prop_oneof![
        3 => prop::sample::select(vec![1_u64, 1, 1, 2, 3, 8, 31, 256, 400, 512, 1024])
            .prop_map(|pages| Step::Allocate { pages }),
        4 => (slot.clone(), any::<u64>()).prop_map(|(slot, offset)| Step::Get { slot, offset }),
        5 => (slot.clone(), any::<u64>()).prop_map(|(slot, offset)| Step::Put { slot, offset }),
        1 => (slot.clone(), 0_u32..4).prop_map(|(slot, expected)| Step::Freeze { slot, expected }),
        2 => (slot.clone(), 0_u32..4).prop_map(|(slot, count)| Step::Unfreeze { slot, count }),
        1 => slot.prop_map(|slot| Step::FreeFrozen { slot }),
        1 => (0_u64..20_000).prop_map(|pfn| Step::Stray { pfn }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn counts_follow_the_model(
        steps in prop::collection::vec(step(), 0..150),
        inside in any::<bool>(),
    ) {
        let machine = FakeMachine::builder().ram(mib(0, 64)).build();
        let manager =
            if inside { HERE.bring_up_described(machine) } else { HERE.bring_up(machine) };
        let mut model = ReferenceModel::new();
        let mut runs: Vec<PfnRange> = Vec::new();
        for step in steps {
            let chosen = |slot: usize, offset: u64| {
                let run = *runs.get(slot % runs.len().max(1))?;
                Some((run, Pfn(run.start.0 + offset % run.pages())))
            };
            match step {
                Step::Allocate { pages } => {
                    let Ok(run) = manager.allocate(&Request::pages(pages)) else { continue };
                    match manager.begin_references(run) {
                        Ok(()) => {
                            prop_assert!(
                                inside
                                    || HERE.has_array()
                                    || pages.is_power_of_two() && pages >= 512
                            );
                            model.started(run);
                            runs.push(run);
                        }
                        Err(error) => {
                            prop_assert!(
                                !inside || pages > 400 && !pages.is_power_of_two(),
                                "{}",
                                error
                            );
                            manager.give_back_to_zone(run).expect("allocated");
                        }
                    }
                }
                Step::Get { slot, offset } => {
                    if let Some((_, pfn)) = chosen(slot, offset) {
                        model.got(pfn, manager.references().try_get(pfn).is_ok());
                    }
                }
                Step::Put { slot, offset } => {
                    if let Some((run, pfn)) = chosen(slot, offset) {
                        let last = model.put(pfn, manager.give_back_reference(pfn).is_ok());
                        if last {
                            runs.retain(|&other| other != run);
                        }
                    }
                }
                Step::Freeze { slot, expected } => {
                    if let Some((_, pfn)) = chosen(slot, 0) {
                        model.froze(
                            pfn,
                            expected,
                            manager.freeze_references(pfn, expected).is_ok(),
                        );
                    }
                }
                Step::Unfreeze { slot, count } => {
                    if let Some((_, pfn)) = chosen(slot, 0) {
                        model.unfroze(pfn, count, manager.unfreeze_references(pfn, count).is_ok());
                    }
                }
                Step::FreeFrozen { slot } => {
                    if let Some((run, pfn)) = chosen(slot, 0)
                        && model.freed_frozen(pfn, manager.give_back_frozen(pfn).is_ok())
                    {
                        runs.retain(|&other| other != run);
                    }
                }
                Step::Stray { pfn } => {
                    let references = manager.references().count(Pfn(pfn)).unwrap_or(0);
                    prop_assert_eq!(references, model.references(Pfn(pfn)));
                }
            }
            let held: u64 = model.runs().map(|run| run.pages()).sum();
            prop_assert_eq!(manager.totals().allocated_pages - manager.caches().pages(), held);
        }
        check(&manager);
        for run in runs {
            if manager.references().count(run.start) == Ok(0) {
                manager.give_back_frozen(run.start).expect("frozen");
            }
            while manager.references().count(run.start).is_ok_and(|references| references != 0) {
                manager.give_back_reference(run.start).expect("a reference");
            }
        }
        settle(&manager);
    }
}

#[test]
fn a_run_over_the_end_of_a_block_without_a_free_page_is_none() {
    for pages in ["inside", "none"] {
        let machine = FakeMachine::builder().ram(mib(0, 64)).build();
        let line = parameters(&format!("pages={pages} memmap_init=on-demand"));
        let manager = bring_up_with(machine, &[], &line).expect("bring-up");
        while manager
            .allocate(&Request {
                reserves: Reserves::All,
                fail_fast: true,
                ..Request::new(Order::PAGE)
            })
            .is_ok()
        {}
        let end = 20 * 512;
        for (start, end) in [(end - 4, end + 4), (end - 1, end + 1), (end - 500, end + 11)] {
            let range = PfnRange::new(start, end);
            assert_eq!(manager.begin_references(range), Err(ReferenceError::NotARun(range)));
        }
    }
}
