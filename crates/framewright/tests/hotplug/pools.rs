//! Free pages of huge-page pools in memory that goes.

use crate::add::add;
use crate::common::{Fake, bring_up, check, gib, mib, settled};
use framewright::hugetlb::{NodeMask, PoolSize};
use framewright::manager::{Budget, HotplugError, Removal};
use framewright::memblock::NodeChoice;
use framewright::units::PhysRange;
use framewright::zone::{Grade, Presence};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, PoolOwner};

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
