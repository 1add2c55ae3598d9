//! Ageing of per-CPU caches: how much CPUs may keep, and how a CPU gives back what it does not use.

use super::HERE;
use crate::common::{Fake, bring_up_with, check, gib, idle_pages, mib, order};
use framewright::units::{Pfn, PfnRange};
use framewright::zone::MigrateType::{self, Movable, Unmovable};
use framewright::{Parameters, Request};
use framewright_testkit::{FakeMachine, Owner};

/// Number of ageing calls after which an idle CPU keeps nothing.
const ENOUGH: usize = 32;

#[test]
fn all_caches_together_keep_an_eighth_of_their_node() {
    for mib_of_ram in [16, 64, 320, 1 << 10, 8 << 10, 64 << 10, 1 << 20] {
        for cpus in [1, 2, 3, 7, 16, 64, 100, 256] {
            let machine = FakeMachine::builder().ram(mib(0, mib_of_ram)).cpus(cpus).build();
            // Never careful: the records for a TiB of pages need more memory than small hosts have.
            let plain = Parameters::default();
            let manager = bring_up_with(machine, &[], &plain).expect("bring-up");
            let most = |cpu| manager.caches().cpu(cpu).map_or(0, |cache| cache.most_pages);
            let most_pages: u64 = (0..cpus).map(most).sum();
            let managed = manager.totals().managed_pages;
            assert!(
                most_pages <= managed / 8,
                "{mib_of_ram} MiB, {cpus} CPUs: {most_pages} of {managed} pages"
            );
            // Where memory is plentiful, the limit is the largest that pays: 100 MiB and more.
            let is_plenty = mib_of_ram >= 4096 * u64::from(cpus);
            assert!(!is_plenty || most(0) > 25_600, "{mib_of_ram} MiB, {cpus} CPUs: {}", most(0));
        }
    }
}

#[test]
fn cpus_of_a_node_without_memory_count_where_they_take_theirs() {
    let machine = FakeMachine::builder()
        .ram(gib(0, 4))
        .node(gib(0, 4), 0)
        .nodes(2)
        .cpus(2)
        .cpus_on(1, 62)
        .build();
    let manager = HERE.bring_up(machine);
    let most_pages: u64 =
        (0..64).map(|cpu| manager.caches().cpu(cpu).expect("node 0 has memory").most_pages).sum();
    assert!(most_pages <= manager.totals().managed_pages / 8, "{most_pages}");
}

/// Allocates and frees runs of all orders and types, and of sizes that are no power of two, so that
/// the CPU's cache holds some of everything.
fn fill(manager: &Fake) {
    let mut held = Vec::new();
    for migrate_type in [Movable, Unmovable, MigrateType::Reclaimable] {
        for of in 0..=9 {
            for _ in 0..300_usize >> of.min(6) {
                let start = manager.allocate_order(order(of), migrate_type).expect("memory");
                held.push(PfnRange { start, end: start.add(1 << of) });
            }
        }
        for pages in [3, 5, 280] {
            let request = Request { migrate_type, ..Request::pages(pages) };
            held.push(manager.allocate(&request).expect("memory"));
        }
    }
    for range in held {
        manager.give_back(range).expect("allocated");
    }
}

/// Ages this CPU's cache until it is certainly empty.
fn forget(manager: &Fake) {
    for _ in 0..ENOUGH {
        manager.caches().age().expect("only good frames are cached");
    }
}

#[test]
fn an_idle_cache_is_empty_after_some_calls() {
    let machine = FakeMachine::builder().ram(gib(0, 6)).cpus(2).build();
    let manager = HERE.bring_up(machine);
    let free = idle_pages(&manager);
    machine.run_on(1, || fill(&manager));
    fill(&manager);
    let pages = |cpu| manager.caches().cpu(cpu).expect("it has one").pages;
    let (before, others) = (pages(0), pages(1));
    assert!(before > 1000, "{before}");
    let locks = machine.calls().irq_save;
    assert_eq!(manager.caches().age(), Ok(0), "nothing was idle yet");
    assert_eq!((machine.calls().irq_save, pages(0)), (locks, before));
    let mut gone = 0;
    for _ in 1..ENOUGH {
        let some = manager.caches().age().expect("only good frames are cached");
        gone += some;
        assert_eq!(pages(0), before - gone);
        check(&manager);
    }
    // The other CPU ages its cache by itself.
    assert_eq!((pages(0), pages(1), gone), (0, others, before));
    machine.run_on(1, || forget(&manager));
    assert_eq!((manager.caches().pages(), idle_pages(&manager)), (0, free));
    // The cache works as before.
    fill(&manager);
    check(&manager);
}

#[test]
fn one_call_does_little() {
    // As many pages as a full stack of single pages gives back in blocks, and the rest of a block.
    const MOST_PAGES: u64 = (56 + 28) * 512;
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let blocks: Vec<Pfn> =
        (0..400).map(|_| manager.allocate_order(order(9), Movable).expect("memory")).collect();
    blocks.iter().for_each(|&block| manager.give_back_order(block, order(9)).expect("allocated"));
    fill(&manager);
    for _ in 0..ENOUGH {
        let gone = manager.caches().age().expect("only good frames are cached");
        assert!(gone <= MOST_PAGES, "{gone}");
    }
}

#[test]
fn a_busy_cache_keeps_what_it_uses() {
    // Number of unmovable pages that each round allocates and frees, so that the cache hands them
    // out again.
    const USED: usize = 400;
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let round = |count: usize| {
        let pages: Vec<Pfn> = (0..count)
            .map(|_| manager.allocate_order(order(0), Unmovable).expect("memory"))
            .collect();
        let free = manager.totals().free_pages;
        pages.iter().rev().for_each(|&page| {
            manager.give_back_order(page, order(0)).expect("allocated");
        });
        free
    };
    round(1000);
    for _ in 0..ENOUGH {
        round(USED);
        manager.caches().age().expect("only good frames are cached");
    }
    let kept = manager.caches().pages();
    assert!((USED as u64..900).contains(&kept), "what is used, and little more: {kept}");
    // No page moves between the cache and the zone any more.
    let free = manager.totals().free_pages;
    for _ in 0..100 {
        assert_eq!((round(USED), manager.caches().age()), (free, Ok(0)));
        assert_eq!((manager.totals().free_pages, manager.caches().pages()), (free, kept));
    }
    // A drain also empties what the cache has set aside.
    manager.drain().expect("only good frames are cached");
    assert_eq!(manager.caches().pages(), 0);
    check(&manager);
}

#[test]
fn a_free_twice_is_found_where_it_lies_aside() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let page = manager.allocate_order(order(5), Movable).expect("memory");
    manager.give_back_order(page, order(5)).expect("allocated");
    manager.caches().age().expect("only good frames are cached");
    let again = manager.give_back_order(page, order(5));
    // With debug assertions the second free is found at once, otherwise when the page leaves the
    // cache.
    let result = again.and_then(|()| manager.drain().map(drop));
    assert!(result.is_err());
    manager.drain().expect("the rest is good");
    check(&manager);
}

#[test]
fn a_handler_finds_the_cache_in_use() {
    let machine = FakeMachine::builder().ram(gib(0, 6)).build();
    let manager = HERE.bring_up(machine);
    fill(&manager);
    machine.interrupt(|| forget(&manager));
    assert_eq!(manager.caches().pages(), 0);
    check(&manager);
}
