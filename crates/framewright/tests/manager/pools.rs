//! Huge-page pools, case by case: every file, every kind of bad input, nodes, demotion, memory
//! errors, isolation, and boot.

use crate::common::pool_machine::{GIB, TWO, check, machine, node, nr_of, numbers};
use crate::common::{bring_up, bring_up_with, gib, is_careful, parameters};
use framewright::Request;
use framewright::hugetlb::{NodeMask, PoolError, PoolSize};
use framewright::manager::Poisoned;
use framewright::memblock::NodeChoice;
use framewright::units::{Order, Pfn};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::FreeError;
use framewright::zone::State;
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, Owner, PoolOwner};

#[test]
fn pools_grow_in_turn_over_nodes_and_shrink_to_nothing() {
    let manager = bring_up(machine());
    let before = manager.totals();
    for (size, most) in [(TWO, 700), (GIB, 4)] {
        let pool = manager.pool(size);
        assert_eq!(numbers(&pool), [0; 5]);
        for pages in [1, 2, 3, most, most - 1, 0, most] {
            let resized = pool.resize(pages, &NoHelpers).expect("nobody else resizes");
            assert!(!resized.is_short(), "{resized}");
            assert_eq!(numbers(&pool), [pages, pages, 0, 0, pages]);
            let [first, second] = nr_of(&pool);
            assert!(first.abs_diff(second) <= 1, "{first} {second}");
            check(&manager);
            assert_eq!(manager.hugetlb().kbytes(), pages * size.kbytes());
            let free_pages = crate::common::settled(&manager).free_pages;
            assert_eq!(free_pages, before.free_pages - pages * size.frames());
        }
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
    }
    check(&manager);
    assert_eq!(crate::common::settled(&manager).free_pages, before.free_pages);
}

/// Blocks in caches, and blocks that had reference counts, do not look like memory that pools
/// cannot have.
#[test]
fn blocks_that_had_counts_are_no_obstacle() {
    for line in ["", "page_owner=on"] {
        let machine = FakeMachine::builder().ram(gib(0, 2)).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("it comes up");
        let take = |_| manager.allocate(&Request::new(Order::BLOCK)).expect("there is memory");
        let runs: Vec<_> = (0..12).map(take).collect();
        runs.iter().for_each(|&run| manager.begin_references(run).expect("a whole block"));
        runs.iter().for_each(|run| manager.give_back_reference(run.start).expect("the last"));
        let resized = manager.pool(TWO).resize(20, &NoHelpers).expect("nobody else resizes");
        assert_eq!(resized.reached, 20);
        let (_, short_takes) = manager.hugetlb().takes();
        assert_eq!(short_takes, 0, "{line}");
        check(&manager);
    }
}

#[test]
fn what_is_asked_for_beyond_memory_is_reached_as_far_as_it_goes() {
    for size in PoolSize::ALL {
        if size == TWO && is_careful() {
            // Filling all of it with poison would make the fake memory real.
            continue;
        }
        let manager = bring_up(machine());
        let pool = manager.pool(size);
        let resized = pool.resize(u64::MAX, &NoHelpers).expect("nobody else resizes");
        assert!(resized.is_short());
        assert_eq!(resized.wanted, u64::MAX);
        assert_eq!(resized.reached, pool.counts().target);
        assert!(resized.to_string().contains("Only allocated"), "{resized}");
        // The pool took all memory that an ordinary request could have had, and none of the
        // reserves.
        for index in 0..2 {
            let request = Request {
                node: NodeChoice::Exact(node(index)),
                fail_fast: true,
                ..Request::new(size.order())
            };
            assert!(manager.allocate(&request).is_err());
        }
        for zone in manager.views() {
            assert!(
                zone.free_pages() >= zone.watermarks().min_pages.min(zone.managed_pages() / 2),
                "{:?}",
                zone.id()
            );
        }
        check(&manager);
        let most = numbers(&pool)[0];
        assert!(most >= if size == TWO { 3900 } else { 5 }, "{most}");
        // Resizes to a little less, and to a little more.
        pool.resize(most - 1, &NoHelpers).expect("nobody else resizes");
        assert_eq!(pool.resize(most + 5, &NoHelpers).expect("nobody else resizes").reached, most);
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        check(&manager);
    }
}

#[test]
fn nodes_are_resized_alone() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.resize(10, &NoHelpers).expect("nobody else resizes");
    assert_eq!(nr_of(&pool), [5, 5]);
    pool.resize_node(node(1), 40, &NoHelpers).expect("exists");
    assert_eq!((nr_of(&pool), numbers(&pool)[4]), ([5, 40], 45));
    pool.resize_node(node(0), 0, &NoHelpers).expect("exists");
    assert_eq!(nr_of(&pool), [0, 40]);
    pool.resize_node(node(1), 7, &NoHelpers).expect("exists");
    assert_eq!(nr_of(&pool), [0, 7]);
    // Very large numbers do not wrap.
    if !is_careful() {
        let most = pool.resize_node(node(0), u64::MAX, &NoHelpers).expect("exists");
        assert!(most.is_short() && nr_of(&pool)[0] > 1900 && nr_of(&pool)[1] == 7);
    }
    check(&manager);
    pool.resize_within(0, NodeMask::only(node(0)), &NoHelpers).expect("nobody else resizes");
    assert_eq!(nr_of(&pool), [0, 7]);
    // A resize within a set of nodes counts pages on all nodes and changes only those of the set.
    pool.resize_within(9, NodeMask::only(node(0)).with(node(2)), &NoHelpers)
        .expect("nobody else resizes");
    assert_eq!(nr_of(&pool), [2, 7]);
    // A node without memory, and nodes that do not exist.
    assert!(pool.resize_node(node(2), 5, &NoHelpers).expect("exists").is_short());
    assert_eq!(pool.node_counts(node(2)).map(|counts| counts.nr), Ok(0));
    for absent in [3, 63] {
        assert_eq!(
            pool.resize_node(node(absent), 1, &NoHelpers),
            Err(PoolError::NoNode(node(absent)))
        );
        assert_eq!(pool.node_counts(node(absent)), Err(PoolError::NoNode(node(absent))));
        assert_eq!(
            pool.allocate(NodeChoice::Exact(node(absent)), false),
            Err(PoolError::NoNode(node(absent)))
        );
        assert_eq!(
            manager.pool(GIB).demote_node(node(absent), 1),
            Err(PoolError::NoNode(node(absent)))
        );
    }
    assert_eq!(nr_of(&pool), [2, 7]);
    check(&manager);
}

#[test]
fn pages_in_use_become_surplus_when_the_pool_shrinks_below_them() {
    for size in PoolSize::ALL {
        let manager = bring_up(machine());
        let pool = manager.pool(size);
        pool.resize(4, &NoHelpers).expect("nobody else resizes");
        let used = [0, 1, 2].map(|_| pool.allocate(NodeChoice::Any, false).expect("is free"));
        pool.resize(1, &NoHelpers).expect("nobody else resizes");
        assert_eq!(numbers(&pool), [3, 0, 0, 2, 1]);
        check(&manager);
        // When the pool grows again, pages that are surplus already stay first.
        pool.resize(2, &NoHelpers).expect("nobody else resizes");
        assert_eq!(numbers(&pool), [3, 0, 0, 1, 2]);
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        assert_eq!(numbers(&pool), [3, 0, 0, 3, 0]);
        for (left, page) in [2, 1, 0].into_iter().zip(used) {
            pool.give_back_page(page.start).expect("was allocated");
            assert_eq!(numbers(&pool), [left, 0, 0, left, 0]);
            check(&manager);
        }
    }
}

/// Pages in use had become surplus, and as many free pages had taken their place: such a pool was
/// never empty again.
#[test]
fn a_free_page_leaves_a_shrinking_pool_also_beside_surplus_ones() {
    for size in PoolSize::ALL {
        let manager = bring_up(machine());
        let pool = manager.pool(size);
        pool.resize_node(node(1), 1, &NoHelpers).expect("exists");
        let surplus = pool.allocate(NodeChoice::Exact(node(1)), false).expect("is free");
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        pool.resize_node(node(0), 2, &NoHelpers).expect("exists");
        let used = pool.allocate(NodeChoice::Exact(node(0)), false).expect("is free");
        assert_eq!(numbers(&pool), [3, 1, 0, 1, 2]);
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        assert_eq!(numbers(&pool), [2, 0, 0, 2, 0]);
        for page in [used, surplus] {
            pool.give_back_page(page.start).expect("was allocated");
            check(&manager);
        }
        assert_eq!(numbers(&pool), [0; 5]);
        // A page that was reserved when it became surplus, and is not any more.
        pool.resize(2, &NoHelpers).expect("nobody else resizes");
        pool.reserve(1, NodeMask::ALL).expect("two are free");
        let used = pool.allocate(NodeChoice::Exact(node(1)), false).expect("is free");
        pool.resize_node(node(0), 0, &NoHelpers).expect("exists");
        pool.give_back_page(used.start).expect("was allocated");
        let used = pool.allocate(NodeChoice::Exact(node(1)), true).expect("reserved");
        assert_eq!(numbers(&pool), [2, 1, 0, 1, 1]);
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        assert_eq!(numbers(&pool), [1, 0, 0, 1, 0]);
        pool.commit(used.start).expect("was allocated");
        pool.give_back_page(used.start).expect("was allocated");
        assert_eq!(numbers(&pool), [0; 5]);
        check(&manager);
    }
}

#[test]
fn reserved_pages_are_kept() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.resize(6, &NoHelpers).expect("nobody else resizes");
    pool.reserve(4, NodeMask::ALL).expect("six are free");
    assert_eq!(numbers(&pool), [6, 6, 4, 0, 6]);
    let mut unreserved = Vec::new();
    while let Ok(page) = pool.allocate(NodeChoice::Any, false) {
        unreserved.push(page);
    }
    assert_eq!((unreserved.len(), numbers(&pool)), (2, [6, 4, 4, 0, 6]));
    assert_eq!(pool.allocate(NodeChoice::Any, false), Err(PoolError::NoPage(TWO)));
    assert_eq!(pool.reserve(1, NodeMask::ALL), Err(PoolError::NoPage(TWO)));
    // Shrinking leaves the reserved pages.
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    assert_eq!(numbers(&pool), [6, 4, 4, 6, 0]);
    pool.resize(6, &NoHelpers).expect("nobody else resizes");
    // A page that was allocated from a reservation and comes back unused is reserved again; a page
    // that was used is not.
    let page = pool.allocate(NodeChoice::Any, true).expect("is promised");
    assert_eq!(numbers(&pool), [6, 3, 3, 0, 6]);
    pool.give_back_page(page.start).expect("was allocated");
    assert_eq!(numbers(&pool), [6, 4, 4, 0, 6]);
    let page = pool.allocate(NodeChoice::Any, true).expect("is promised");
    pool.commit(page.start).expect("was allocated");
    pool.give_back_page(page.start).expect("was allocated");
    assert_eq!(numbers(&pool), [6, 4, 3, 0, 6]);
    assert_eq!(pool.unreserve(4), Err(PoolError::NotReserved { pages: 4, reserved: 3 }));
    pool.unreserve(3).expect("are promised");
    assert_eq!(
        pool.allocate(NodeChoice::Any, true),
        Err(PoolError::NotReserved { pages: 1, reserved: 0 })
    );
    unreserved.into_iter().for_each(|page| pool.give_back_page(page.start).expect("was allocated"));
    assert_eq!(numbers(&pool), [6, 6, 0, 0, 6]);
    // More pages than there are on the nodes that the caller may use.
    assert_eq!(pool.reserve(4, NodeMask::only(node(1))), Err(PoolError::NoPage(TWO)));
    assert_eq!(numbers(&pool), [6, 6, 0, 0, 6]);
    check(&manager);
}

#[test]
fn overcommit_gives_surplus_pages_up_to_its_limit() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.set_overcommit(3).expect("2 MiB pages can");
    pool.resize(1, &NoHelpers).expect("nobody else resizes");
    let pages =
        [0; 4].map(|_| pool.allocate(NodeChoice::Any, false).expect("one, and three surplus"));
    assert_eq!(pool.allocate(NodeChoice::Any, false), Err(PoolError::NoPage(TWO)));
    assert_eq!(numbers(&pool), [4, 0, 0, 3, 1]);
    // A limit below the present number: those pages stay, but no more come.
    pool.set_overcommit(1).expect("2 MiB pages can");
    pool.give_back_page(pages[0].start).expect("was allocated");
    assert_eq!(numbers(&pool), [3, 0, 0, 2, 1]);
    assert_eq!(pool.allocate(NodeChoice::Any, false), Err(PoolError::NoPage(TWO)));
    pages[1..].iter().for_each(|page| pool.give_back_page(page.start).expect("was allocated"));
    assert_eq!(numbers(&pool)[3..], [0, 1]);
    // Reservations take surplus pages, and giving the reservations back frees those pages.
    pool.set_overcommit(5).expect("2 MiB pages can");
    assert_eq!(pool.reserve(7, NodeMask::ALL), Err(PoolError::NoPage(TWO)));
    assert_eq!(numbers(&pool), [1, 1, 0, 0, 1]);
    pool.reserve(6, NodeMask::ALL).expect("one and five");
    assert_eq!(numbers(&pool), [6, 6, 6, 5, 1]);
    check(&manager);
    // A reserved page that is freed unused stays, whatever is surplus, because otherwise the
    // reservation could not be kept.
    let page = pool.allocate(NodeChoice::Any, true).expect("is promised");
    pool.give_back_page(page.start).expect("was allocated");
    assert_eq!(numbers(&pool), [6, 6, 6, 5, 1]);
    pool.unreserve(2).expect("are promised");
    assert_eq!(numbers(&pool), [4, 4, 4, 3, 1]);
    pool.unreserve(4).expect("are promised");
    assert_eq!(numbers(&pool), [1, 1, 0, 0, 1]);
    check(&manager);
    // 1 GiB pages support none of this.
    let gigantic = manager.pool(GIB);
    assert_eq!(gigantic.set_overcommit(1), Err(PoolError::NotPossible(GIB)));
    assert_eq!(gigantic.reserve(1, NodeMask::ALL), Err(PoolError::NoPage(GIB)));
    assert_eq!(gigantic.allocate(NodeChoice::Any, false), Err(PoolError::NoPage(GIB)));
}

#[test]
fn pages_come_from_the_node_that_is_asked_for() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.resize_node(node(1), 2, &NoHelpers).expect("exists");
    assert_eq!(pool.allocate(NodeChoice::Exact(node(0)), false), Err(PoolError::NoPage(TWO)));
    let other = pool.allocate(NodeChoice::Preferred(node(0)), false).expect("node 1 has some");
    assert!(other.start.address() >= 8 << 30);
    // A reservation names no node, and a node without free pages has none to give.
    pool.reserve(1, NodeMask::ALL).expect("one is free");
    assert_eq!(pool.allocate(NodeChoice::Exact(node(0)), true), Err(PoolError::NoPage(TWO)));
    assert_eq!(numbers(&pool), [2, 1, 1, 0, 2]);
    // Unless overcommit allows a fresh page.
    pool.set_overcommit(1).expect("2 MiB pages can");
    let here = pool.allocate(NodeChoice::Exact(node(0)), true).expect("is allocated");
    assert!(here.start.address() < 5 << 30);
    assert_eq!(numbers(&pool), [3, 1, 0, 1, 2]);
    assert!(pool.allocate(NodeChoice::Exact(node(2)), false).is_err(), "a node without memory");
    // A page that is freed unused is reserved again; the page on node 1 can serve that reservation,
    // so the surplus page leaves.
    pool.give_back_page(here.start).expect("was allocated");
    assert_eq!(numbers(&pool), [2, 1, 1, 0, 2]);
    check(&manager);
}

#[test]
fn wrong_frees_are_refused() {
    let manager = bring_up(machine());
    let (pool, gigantic) = (manager.pool(TWO), manager.pool(GIB));
    pool.resize(3, &NoHelpers).expect("nobody else resizes");
    gigantic.resize(1, &NoHelpers).expect("nobody else resizes");
    let page = pool.allocate(NodeChoice::Any, false).expect("is free");
    let large = gigantic.allocate(NodeChoice::Any, false).expect("is free");
    let mine = manager.allocate(&Request::new(Order::BLOCK)).expect("is free");
    let unused = pool.allocate(NodeChoice::Any, false).expect("is free");
    pool.give_back_page(unused.start).expect("was allocated");
    let refused = |pfn: Pfn| Err(PoolError::NotAllocated(pfn));
    for pfn in [
        page.start.add(1),
        large.start,
        large.start.add(512),
        mine.start,
        unused.start,
        Pfn(0),
        Pfn(gib(6, 7).start >> 12),
        Pfn(u64::MAX),
    ] {
        assert_eq!(pool.give_back_page(pfn), refused(pfn), "{pfn}");
        assert_eq!(pool.commit(pfn), refused(pfn), "{pfn}");
    }
    assert_eq!(gigantic.give_back_page(page.start), refused(page.start));
    // The manager does not free pages that a pool has.
    for range in [page, large, unused] {
        let error = manager.give_back(range).expect_err("a pool has it");
        assert!(
            matches!(error, FreeError::NotAllocated { state: Some(State::Pool), .. }),
            "{error}"
        );
    }
    pool.give_back_page(page.start).expect("was allocated");
    assert_eq!(pool.give_back_page(page.start), refused(page.start));
    gigantic.give_back_page(large.start).expect("was allocated");
    manager.give_back(mine).expect("was allocated");
    check(&manager);
}

#[test]
fn demotion_takes_only_what_nobody_was_promised() {
    let manager = bring_up(machine());
    let (pool, gigantic) = (manager.pool(TWO), manager.pool(GIB));
    gigantic.resize(5, &NoHelpers).expect("nobody else resizes");
    assert_eq!(gigantic.demote_size(), Some(TWO));
    assert_eq!(pool.demote_size(), None);
    assert_eq!(pool.demote(1), Err(PoolError::NotPossible(TWO)));
    for (of, bytes) in [
        (&gigantic, 1 << 30),
        (&gigantic, 1 << 21 | 1),
        (&gigantic, 4096),
        (&pool, 1 << 21),
        (&pool, 1 << 30),
    ] {
        assert_eq!(of.set_demote_size(bytes), Err(PoolError::NotPossible(of.size())));
    }
    gigantic.set_demote_size(1 << 21).expect("is smaller");
    assert_eq!(gigantic.demote(0), Ok(0));
    assert_eq!(gigantic.demote_node(node(0), 1), Ok(1));
    assert_eq!((numbers(&gigantic), numbers(&pool)), ([4, 4, 0, 0, 4], [512, 512, 0, 0, 512]));
    assert_eq!(pool.node_counts(node(0)).expect("exists").nr, 512);
    check(&manager);
    // More pages are reserved, over all nodes, than one node has free: no counter wraps, and no
    // reservation is broken.
    gigantic.reserve(3, NodeMask::ALL).expect("four are free");
    assert_eq!(gigantic.demote(u64::MAX), Ok(1));
    assert_eq!((numbers(&gigantic), numbers(&pool)), ([3, 3, 3, 0, 3], [1024, 1024, 0, 0, 1024]));
    assert_eq!(gigantic.demote(1), Err(PoolError::NothingToDemote));
    assert_eq!(gigantic.demote_node(node(1), 1), Err(PoolError::NothingToDemote));
    gigantic.unreserve(3).expect("are promised");
    // Pages in use are not demoted.
    let used = [0, 1, 2].map(|_| gigantic.allocate(NodeChoice::Any, false).expect("is free"));
    assert_eq!(gigantic.demote(1), Err(PoolError::NothingToDemote));
    used.iter().for_each(|page| gigantic.give_back_page(page.start).expect("was allocated"));
    check(&manager);
    // Demoted pages can be used and freed, and are whole again in the end.
    let page = pool.allocate(NodeChoice::Any, false).expect("is free");
    pool.give_back_page(page.start).expect("was allocated");
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    gigantic.resize(5, &NoHelpers).expect("nobody else resizes");
    assert_eq!(numbers(&gigantic), [5, 5, 0, 0, 5]);
    check(&manager);
}

#[test]
fn surplus_of_a_node_is_never_more_than_its_pages() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.set_overcommit(1).expect("2 MiB pages can");
    // Node 0 has only one page, which is surplus and reserved; node 1 has three that stay.
    pool.resize_node(node(1), 3, &NoHelpers).expect("exists");
    let there =
        [0, 1, 2].map(|_| pool.allocate(NodeChoice::Exact(node(1)), false).expect("is free"));
    pool.reserve(1, NodeMask::only(node(0))).expect("overcommit allows one");
    there.iter().for_each(|page| pool.give_back_page(page.start).expect("was allocated"));
    assert_eq!((nr_of(&pool), numbers(&pool)), ([1, 3], [4, 4, 1, 1, 3]));
    // Whatever is removed, each node's surplus stays within its pages.
    for pages in [2, 1, 0, 4, 0] {
        pool.resize(pages, &NoHelpers).expect("nobody else resizes");
        check(&manager);
    }
}

#[test]
fn pages_with_memory_errors_are_nobodys() {
    for size in PoolSize::ALL {
        let manager = bring_up(machine());
        let before = crate::common::in_use(&manager);
        let pool = manager.pool(size);
        pool.resize(3, &NoHelpers).expect("nobody else resizes");
        let used = pool.allocate(NodeChoice::Any, false).expect("is free");
        let free = pool.allocate(NodeChoice::Any, false).expect("is free");
        pool.give_back_page(free.start).expect("was allocated");
        assert_eq!(pool.poison(free.start.add(77)), Ok(Poisoned::Left));
        assert_eq!((numbers(&pool), pool.counts().leaked), ([2, 1, 0, 0, 2], 1));
        check(&manager);
        assert_eq!(pool.poison(free.start), Err(PoolError::NotAllocated(free.start)));
        // A page in use leaves when it is freed.
        assert_eq!(pool.poison(used.start.add(1)), Ok(Poisoned::Stays));
        assert_eq!(numbers(&pool), [2, 1, 0, 0, 2]);
        pool.give_back_page(used.start).expect("was allocated");
        assert_eq!((numbers(&pool), pool.counts().leaked), ([1, 1, 0, 0, 1], 2));
        check(&manager);
        // A reserved page stays, and is not handed out.
        pool.reserve(1, NodeMask::ALL).expect("is free");
        let last = pool.allocate(NodeChoice::Any, true).expect("is promised");
        pool.give_back_page(last.start).expect("was allocated");
        assert_eq!(pool.poison(last.start), Ok(Poisoned::Stays));
        assert_eq!(numbers(&pool), [1, 1, 1, 0, 1]);
        assert!(pool.allocate(NodeChoice::Any, true).is_err());
        pool.unreserve(1).expect("is promised");
        assert!(pool.allocate(NodeChoice::Any, false).is_err());
        if size == GIB {
            assert_eq!(pool.demote(1), Err(PoolError::NothingToDemote));
        }
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        assert_eq!((numbers(&pool), pool.counts().leaked), ([0; 5], 3));
        check(&manager);
        assert_eq!(crate::common::in_use(&manager) - before, 3 * size.frames());
        // Bad pages never come back.
        pool.resize(if size == TWO && is_careful() { 50 } else { u64::MAX }, &NoHelpers)
            .expect("nobody else resizes");
        while let Ok(page) = pool.allocate(NodeChoice::Any, false) {
            assert!(![used, free, last].contains(&page));
        }
        check(&manager);
    }
}

#[test]
fn isolated_pages_are_not_handed_out_and_leave_as_isolated() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.resize(4, &NoHelpers).expect("nobody else resizes");
    let page = pool.allocate(NodeChoice::Any, false).expect("is free");
    pool.give_back_page(page.start).expect("was allocated");
    let block = BlockNumber::containing(page.start);
    let range = BlockRange { start: block, end: BlockNumber(block.0 + 1) };
    let pages = manager.isolation().isolate(range).expect("is a pool's");
    assert_eq!(pages.in_use_pages, 512);
    let others: Vec<_> =
        (0..3).map(|_| pool.allocate(NodeChoice::Any, false).expect("is free")).collect();
    assert!(!others.contains(&page));
    assert!(pool.allocate(NodeChoice::Any, false).is_err());
    check(&manager);
    others.iter().for_each(|page| pool.give_back_page(page.start).expect("was allocated"));
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    check(&manager);
    assert_eq!(manager.totals().isolated_pages, 512);
    manager.isolation().unisolate(range).expect("is isolated");
    check(&manager);
    assert_eq!(manager.totals().isolated_pages, 0);
    // A part of a 1 GiB page cannot be isolated.
    manager.pool(GIB).resize(1, &NoHelpers).expect("nobody else resizes");
    let large = manager.pool(GIB).allocate(NodeChoice::Any, false).expect("is free");
    let block = BlockNumber::containing(large.start);
    assert!(
        manager
            .isolation()
            .isolate(BlockRange { start: block, end: BlockNumber(block.0 + 1) })
            .is_err()
    );
    check(&manager);
}
