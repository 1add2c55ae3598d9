//! Free pages of huge-page pools in memory that goes.

use crate::add::add;
use crate::common::{Fake, bring_up, check, gib, mib, settled};
use framewright::hugetlb::{NodeMask, PoolSize};
use framewright::manager::{Budget, HotplugError, Poisoned, Removal};
use framewright::memblock::NodeChoice;
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PhysRange};
use framewright::zone::{Grade, MigrateType, Presence};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, Owner, PoolOwner};

const ADDED: PhysRange = mib(4096, 4160);

/// A machine of 256 MiB with 64 MiB added, and a pool that has all of it but `left` pages.
fn machine(left: u64) -> (Fake, u64) {
    let machine = FakeMachine::builder().ram(mib(0, 256)).spare(gib(4, 5)).build();
    let manager = bring_up(machine);
    add(&manager, ADDED, 0, Grade::Any).expect("added");
    let pool = manager.pool(PoolSize::TwoMib);
    let all = pool.resize(u64::MAX, &NoHelpers).expect("nobody else resizes").reached;
    let mut used = Vec::new();
    while let Ok(page) = pool.allocate(NodeChoice::Any, false) {
        used.push(page);
    }
    // The pool's pages in boot memory go, so that all added memory is the pool's.
    let (stay, go): (Vec<_>, Vec<_>) =
        used.into_iter().partition(|page| page.start.address() >= ADDED.start);
    assert!(stay.len() >= 24, "{}", stay.len());
    for page in go.iter().take(usize::try_from(left).expect("few")) {
        pool.give_back_page(page.start).expect("used");
    }
    pool.resize(all - left, &NoHelpers).expect("nobody else resizes");
    for page in stay.iter().chain(go.iter().skip(usize::try_from(left).expect("few"))) {
        pool.give_back_page(page.start).expect("used");
    }
    check(&manager);
    (manager, all - left)
}

fn remove(manager: &Fake) -> Result<u64, HotplugError> {
    // SAFETY: no test looks up descriptors meanwhile.
    let removed = unsafe { manager.hotplug().remove(ADDED, Budget::UNLIMITED) };
    removed.map(|removed| removed.pages)
}

fn verify(manager: &Fake) {
    check(manager);
    manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
}

#[test]
fn a_pool_keeps_its_size_where_there_is_room() {
    let (manager, pages) = machine(60);
    let pool = manager.pool(PoolSize::TwoMib);
    pool.reserve(pages, NodeMask::ALL).expect("all are free");
    remove(&manager).expect("nobody uses them");
    verify(&manager);
    let counts = pool.counts();
    assert_eq!((counts.all.nr, counts.all.free, counts.target), (pages, pages, pages));
    // All other memory is in use elsewhere.
    for _ in 0..pages {
        let page = pool.allocate(NodeChoice::Any, true).expect("reserved");
        assert!(page.start.address() < ADDED.start);
    }
}

#[test]
fn a_pool_never_shrinks_by_itself() {
    let (manager, pages) = machine(4);
    let pool = manager.pool(PoolSize::TwoMib);
    let before = settled(&manager);
    let error = remove(&manager).expect_err("there is no room for all");
    assert!(error.to_string().contains("no memory to move it to"), "{error}");
    verify(&manager);
    assert_eq!((settled(&manager), pool.counts().all.nr), (before, pages));
    manager.hotplug().offline(ADDED, Budget::UNLIMITED).expect_err("as well");
    // SAFETY: nothing looks up descriptors.
    let some =
        unsafe { manager.hotplug().remove_some(ADDED, ADDED.size(), 2 << 20, Budget::UNLIMITED) };
    if let Ok(Removal::Run(run)) = some {
        add(&manager, run, 0, Grade::Any).expect("removed just now");
    }
    verify(&manager);
    assert_eq!(pool.counts().all.nr, pages);
    pool.resize(pages - 40, &NoHelpers).expect("nobody else resizes");
    remove(&manager).expect("there is room for the others");
    verify(&manager);
    assert_eq!((pool.counts().all.nr, pool.counts().target), (pages - 40, pages - 40));
    assert_eq!(manager.hotplug().presence_of(ADDED.start), Presence::Absent);
}

#[test]
fn a_page_that_somebody_uses_keeps_its_memory_there() {
    let (manager, pages) = machine(60);
    let pool = manager.pool(PoolSize::TwoMib);
    let mut used = Vec::new();
    while let Ok(page) = pool.allocate(NodeChoice::Any, false) {
        used.push(page);
    }
    let stays = used.iter().position(|page| page.start.address() >= ADDED.start).expect("some");
    let stays = used.swap_remove(stays);
    used.iter().for_each(|page| pool.give_back_page(page.start).expect("used"));
    let error = remove(&manager).expect_err("it is used");
    assert!(error.to_string().contains("in a huge-page pool"), "{error}");
    verify(&manager);
    assert_eq!(pool.counts().all.nr, pages);
    pool.give_back_page(stays.start).expect("used");
    remove(&manager).expect("nobody uses any");
    verify(&manager);
    assert_eq!(pool.counts().all.nr, pages);
}

/// A machine whose pools have lost two pages of added memory to memory errors: one that was free
/// and one that was used. All other memory of the pools is free again.
fn with_bad_pages(accepts: bool) -> (Fake, [Pfn; 2]) {
    let builder = FakeMachine::builder().ram(mib(0, 256)).spare(gib(4, 5));
    let machine = if accepts { builder.accepts() } else { builder }.build();
    let manager = bring_up(machine);
    if accepts {
        machine.accept().expect_pins();
    }
    add(&manager, ADDED, 0, Grade::Any).expect("added");
    let pool = manager.pool(PoolSize::TwoMib);
    pool.resize(u64::MAX, &NoHelpers).expect("nobody else resizes");
    let mut used = Vec::new();
    while let Ok(page) = pool.allocate(NodeChoice::Any, false) {
        used.push(page.start);
    }
    let mut added = used.iter().copied().filter(|page| page.address() >= ADDED.start);
    let bad = [added.next(), added.nth(3)].map(|page| page.expect("most memory is the pool's"));
    assert_eq!(pool.poison(bad[0]), Ok(Poisoned::Stays));
    used.iter().for_each(|&page| pool.give_back_page(page).expect("used"));
    assert_eq!(pool.poison(bad[1]), Ok(Poisoned::Left));
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    assert_eq!(pool.counts().leaked, 2);
    verify(&manager);
    (manager, bad)
}

const GOOD_PAGES: u64 = (ADDED.end - ADDED.start) / 4096 - 2 * PAGES_PER_BLOCK;

/// Allocates all memory; returns how many pages lie in the added range, of which none may be bad.
fn usable_pages(manager: &Fake, bad: &[Pfn]) -> u64 {
    let mut held = Vec::new();
    while let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Movable) {
        let block = Pfn(page.0 & !(PAGES_PER_BLOCK - 1));
        assert!(!bad.contains(&block), "{page:?} has a memory error");
        held.push(page);
    }
    let added = held.iter().filter(|page| page.address() >= ADDED.start).count() as u64;
    for page in held {
        manager.give_back_order(page, Order::PAGE).expect("ours");
    }
    verify(manager);
    added
}

#[test]
fn pages_with_memory_errors_do_not_keep_their_memory_there() {
    for accepts in [false, true] {
        let (manager, bad) = with_bad_pages(accepts);
        let usable = usable_pages(&manager, &bad);
        assert_eq!(remove(&manager), Ok(GOOD_PAGES));
        verify(&manager);
        assert_eq!(manager.hotplug().presence_of(ADDED.start), Presence::Absent);
        // What comes is other memory.
        let all = GOOD_PAGES + 2 * PAGES_PER_BLOCK;
        assert_eq!(add(&manager, ADDED, 0, Grade::Any), Ok(all));
        assert!(usable_pages(&manager, &[]) > usable + PAGES_PER_BLOCK);
    }
}

#[test]
fn a_device_gets_such_pages_back_with_others() {
    for accepts in [false, true] {
        let (manager, _) = with_bad_pages(accepts);
        let mut bytes = 0;
        loop {
            // SAFETY: nothing looks up descriptors.
            let some = unsafe {
                manager.hotplug().remove_some(ADDED, 16 << 20, 2 << 20, Budget::UNLIMITED)
            };
            match some.expect("nobody refuses") {
                Removal::Run(run) => bytes += run.size(),
                Removal::Nothing(_) => break,
                Removal::OutOfTime => panic!("there is no limit"),
            }
            verify(&manager);
        }
        assert_eq!(bytes, ADDED.size());
    }
}

#[test]
fn memory_that_stays_keeps_its_memory_errors() {
    for accepts in [false, true] {
        let (manager, bad) = with_bad_pages(accepts);
        let hotplug = manager.hotplug();
        let online = || hotplug.online(ADDED, Grade::Any).map(|added| added.pages);
        let before = (usable_pages(&manager, &bad), settled(&manager));
        for _ in 0..2 {
            let gone = hotplug.offline(ADDED, Budget::UNLIMITED).expect("nobody uses it");
            assert_eq!(gone.pages, GOOD_PAGES);
            verify(&manager);
            assert_eq!(online(), Ok(GOOD_PAGES));
            assert_eq!((usable_pages(&manager, &bad), settled(&manager)), before);
        }
        // Neither does it lose them in a removal that the device refuses.
        for is_offline in [false, true] {
            if is_offline {
                hotplug.offline(ADDED, Budget::UNLIMITED).expect("nobody uses it");
            }
            assert_eq!(remove(&manager), Ok(if is_offline { 0 } else { GOOD_PAGES }));
            // SAFETY: the memory never left.
            let back = unsafe { hotplug.put_back(ADDED, crate::add::node(0), Some(Grade::Any)) };
            assert_eq!(back.expect("room").pages, if is_offline { 0 } else { GOOD_PAGES });
            if is_offline {
                assert_eq!(online(), Ok(GOOD_PAGES));
            }
            assert_eq!((usable_pages(&manager, &bad), settled(&manager)), before);
        }
    }
}
