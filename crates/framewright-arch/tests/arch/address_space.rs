//! Windows for huge pages in real page tables, against a model; the CPUs cache every translation
//! and every table they ever saw until a flush.

use crate::common::table_memory::Memory;
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::FrameSource;
use framewright_arch::paging::{AddressSpace, SpaceError};
use framewright_arch::paging::{FlushRequest, FlushTlb, VirtualRange};
use framewright_arch::paging::{PageSize, TableMemory, index_of, translate};
use framewright_testkit::contract::contract_pool;
use framewright_testkit::{FakeMachine, FramePool};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

const BASE: u64 = 0xffff_d000_0000_0000;
const MEDIUM: u64 = 2 << 20;
const LARGE: u64 = 1 << 30;
const WINDOW: u64 = 512 << 30;

/// What CPUs may have cached: everything since the last flush.
struct Cpus {
    memory: Memory,
    root: u64,
    remembered: Mutex<Remembered>,
}

#[derive(Default)]
struct Remembered {
    tables: BTreeSet<u64>,
    pages: BTreeMap<u64, u64>,
    flushes: u64,
}

impl Cpus {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Walks everything that is mapped.
    fn look(&self) {
        let mut remembered = self.lock();
        let root = self.memory.read(self.root, index_of(BASE, 4));
        if !root.is_present() {
            return;
        }
        remembered.tables.insert(root.address());
        for gib in 0..512 {
            let entry = self.memory.read(root.address(), gib);
            let at = BASE + gib as u64 * LARGE;
            if entry.is_page(3) {
                remembered.pages.insert(at, entry.address());
            } else if entry.is_present() {
                remembered.tables.insert(entry.address());
                for place in 0..512 {
                    let page = self.memory.read(entry.address(), place);
                    if page.is_present() {
                        remembered.pages.insert(at + place as u64 * MEDIUM, page.address());
                    }
                }
            }
        }
    }
}

// SAFETY: the CPUs are simulated, and nothing else accesses the window's addresses.
unsafe impl FlushTlb for Cpus {
    fn flush(&self, request: FlushRequest<'_>) {
        assert_eq!(request, FlushRequest::Everything);
        {
            let mut remembered = self.lock();
            *remembered = Remembered { flushes: remembered.flushes + 1, ..Remembered::default() };
        }
        self.look();
    }
}

struct Rig {
    pool: &'static FramePool,
    cpus: &'static Cpus,
    space: AddressSpace<FakeMachine, &'static Cpus>,
    resting: usize,
}

/// Gives a limited number of frames.
struct Few<'a>(&'a FramePool, usize);

// SAFETY: the pool's promise.
unsafe impl FrameSource for Few<'_> {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        self.1 = self.1.checked_sub(1)?;
        (&mut { self.0 }).take(order)
    }
    unsafe fn put_back(&mut self, start: Pfn, order: Order) {
        self.1 += 1;
        // SAFETY: passed on to the caller.
        unsafe { (&mut { self.0 }).put_back(start, order) };
    }
}

fn rig(largest: PageSize) -> Rig {
    let pool: &'static FramePool = Box::leak(Box::new(contract_pool(Order::MAX)));
    let root = (&mut { pool }).take(Order::PAGE).expect("a frame").address();
    let memory = Memory(pool.machine());
    for index in 0..512 {
        // SAFETY: the frame was just taken for this.
        unsafe { pool.machine().store(root + 8 * index, 0) };
    }
    let cpus: &'static Cpus =
        Box::leak(Box::new(Cpus { memory, root, remembered: Mutex::default() }));
    // SAFETY: the root is of this rig alone.
    let space = unsafe { AddressSpace::new(pool.machine(), cpus, root, BASE, largest) }
        .expect("an empty window");
    Rig { pool, cpus, space, resting: pool.outstanding() }
}

impl Rig {
    fn map(&mut self, address: u64, memory: PhysRange, frames: usize) -> Result<(), SpaceError> {
        let done = self.space.map(address, memory, &mut Few(self.pool, frames));
        self.cpus.look();
        done
    }

    fn unmap(&mut self, start: u64, bytes: u64) -> Result<u64, SpaceError> {
        let (pool, cpus) = (self.pool, self.cpus);
        let range = VirtualRange { start, end: start.wrapping_add(bytes) };
        let done = self.space.unmap(range, &mut |frame| {
            assert!(
                !cpus.lock().tables.contains(&frame.address()),
                "a table that a CPU may still walk is given away"
            );
            pool.free_runs(&[PfnRange::new(frame.0, frame.0 + 1)]);
        });
        if done.is_ok() {
            let remembered = cpus.lock();
            let stale = remembered.pages.keys().find(|&&at| at >= start && at - start < bytes);
            assert_eq!(stale, None, "a page that was taken away is still remembered");
        }
        done
    }

    fn translate(&self, address: u64) -> Option<(u64, PageSize)> {
        translate(&self.cpus.memory, self.cpus.root, address).map(|(physical, size, access)| {
            assert!(access.write && !access.execute && !access.global, "{access:?}");
            (physical, size)
        })
    }

    fn tables(&self) -> usize {
        assert_eq!(self.space.tables(), (self.pool.outstanding() - self.resting) as u64);
        self.pool.outstanding() - self.resting
    }
}

#[test]
fn pages_of_both_sizes_come_and_go() {
    let mut rig = rig(PageSize::Large);
    rig.map(BASE, PhysRange::new(4 * LARGE, 6 * LARGE), 9).expect("there is room");
    assert_eq!(rig.translate(BASE + LARGE + 5), Some((5 * LARGE + 5, PageSize::Large)));
    assert_eq!(rig.tables(), 1, "pages of a GiB need no directory");
    let at = BASE + 7 * LARGE;
    rig.map(at - MEDIUM, PhysRange::new(8 * MEDIUM, 10 * MEDIUM), 9).expect("there is room");
    assert_eq!((rig.translate(at), rig.tables()), (Some((9 * MEDIUM, PageSize::Medium)), 3));
    // The addresses are not equally aligned for 1 GiB, so 2 MiB pages map the range.
    rig.map(BASE + 2 * LARGE, PhysRange::new(LARGE + MEDIUM, 2 * LARGE + MEDIUM), 9)
        .expect("there is room");
    assert_eq!(rig.translate(BASE + 2 * LARGE), Some((LARGE + MEDIUM, PageSize::Medium)));
    assert_eq!(rig.cpus.lock().flushes, 0, "what comes needs no flush");
    assert_eq!(rig.unmap(BASE, 4 * LARGE), Ok(3 * LARGE));
    assert_eq!((rig.tables(), rig.cpus.lock().flushes), (3, 1));
    assert_eq!(rig.unmap(BASE, WINDOW), Ok(2 * MEDIUM));
    assert_eq!((rig.tables(), rig.cpus.lock().flushes, rig.translate(at)), (0, 2, None));
    assert_eq!(rig.unmap(BASE, WINDOW), Ok(0));
    assert_eq!(rig.cpus.lock().flushes, 2, "where nothing was there is no flush");
}

#[test]
fn a_full_window_goes_with_few_flushes() {
    let mut rig = rig(PageSize::Medium);
    for gib in 0..512 {
        let memory = PhysRange::new(gib * LARGE, gib * LARGE + MEDIUM);
        rig.map(BASE + gib * LARGE, memory, 2).expect("there is room");
    }
    assert_eq!(rig.tables(), 513);
    assert_eq!(rig.unmap(BASE, WINDOW), Ok(512 * MEDIUM));
    assert_eq!((rig.tables(), rig.cpus.lock().flushes), (0, 9));
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut rig = rig(PageSize::Large);
    let one = PhysRange::new(LARGE, 2 * LARGE);
    rig.map(BASE + LARGE, one, 1).expect("there is room");
    let bad = |address| Err(SpaceError::BadRange { address });
    for (address, memory) in [
        (BASE + 1, one),
        (BASE - LARGE, one),
        (BASE + WINDOW, one),
        (BASE + WINDOW - MEDIUM, one),
        (BASE, PhysRange::new(LARGE, LARGE)),
        // An entry has no bits for this address and would name frame 0.
        (BASE, PhysRange::new(1 << 52, (1 << 52) + MEDIUM)),
        (BASE, PhysRange::new((1 << 52) - MEDIUM, (1 << 52) + MEDIUM)),
        (BASE, PhysRange::new(LARGE, LARGE + 4096)),
        (BASE, PhysRange::new(4096, 4096 + MEDIUM)),
    ] {
        assert_eq!(rig.map(address, memory, 9), bad(address), "{address:#x} {memory:?}");
    }
    let occupied = |address| Err(SpaceError::Occupied { address });
    assert_eq!(rig.map(BASE, PhysRange::new(0, 2 * LARGE), 9), occupied(BASE + LARGE));
    assert_eq!(
        rig.map(BASE + LARGE + MEDIUM, PhysRange::new(0, MEDIUM), 9),
        occupied(BASE + LARGE + MEDIUM)
    );
    // Two directories are missing, and only one frame is available.
    let across = PhysRange::new(MEDIUM, 3 * MEDIUM);
    assert_eq!(rig.map(BASE + 4 * LARGE - MEDIUM, across, 1), Err(SpaceError::OutOfFrames));
    assert_eq!((rig.tables(), rig.translate(BASE + 4 * LARGE - MEDIUM)), (1, None));
    for (start, bytes) in
        [(BASE + LARGE, MEDIUM), (BASE, LARGE + MEDIUM), (BASE + 2 * LARGE - MEDIUM, LARGE)]
    {
        assert_eq!(rig.unmap(start, bytes).map(|_| ()), bad(start), "{start:#x} {bytes:#x}");
    }
    assert_eq!(rig.translate(BASE + LARGE), Some((LARGE, PageSize::Large)));
    for (base, expected) in [
        (BASE, SpaceError::Occupied { address: BASE }),
        (BASE + LARGE, SpaceError::BadBase { base: BASE + LARGE }),
        (1 << 50, SpaceError::BadBase { base: 1 << 50 }),
    ] {
        // SAFETY: it is refused.
        let refused = unsafe {
            AddressSpace::new(rig.pool.machine(), rig.cpus, rig.cpus.root, base, PageSize::Large)
        };
        assert_eq!(refused.err(), Some(expected));
    }
    assert_eq!(rig.unmap(BASE, WINDOW), Ok(LARGE));
    assert_eq!(rig.tables(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_history_agrees_with_a_model(
        steps in prop::collection::vec(
            (any::<bool>(), 0_u64..4 * 512, 1_u64..1100, 0_u64..3 * 512, any::<bool>(), 0_usize..6),
            1..40,
        ),
        large: bool,
    ) {
        let mut rig = rig(if large { PageSize::Large } else { PageSize::Medium });
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for (is_map, place, pages, from, align, frames) in steps {
            let align = if align { 512 } else { 1 };
            let (place, from, pages) =
                (place / align * align, from / align * align, pages.next_multiple_of(align));
            let address = BASE + place * MEDIUM;
            if is_map {
                let memory = PhysRange::new(from * MEDIUM, (from + pages) * MEDIUM);
                let free = (0..pages).all(|page| !model.contains_key(&(place + page)));
                let before = rig.tables();
                match rig.map(address, memory, frames) {
                    Ok(()) => {
                        prop_assert!(free);
                        model.extend((0..pages).map(|page| (place + page, from + page)));
                    }
                    Err(SpaceError::Occupied { .. }) => prop_assert!(!free),
                    Err(error) => {
                        prop_assert_eq!(error, SpaceError::OutOfFrames);
                        prop_assert_eq!(rig.tables(), before);
                    }
                }
            } else {
                let cuts = |edge: u64| {
                    !edge.is_multiple_of(512)
                        && rig
                            .translate(BASE + edge * MEDIUM)
                            .is_some_and(|(_, size)| size == PageSize::Large)
                };
                let refused = cuts(place) || cuts(place + pages);
                match rig.unmap(address, pages * MEDIUM) {
                    Ok(bytes) => {
                        prop_assert!(!refused);
                        let gone: Vec<u64> =
                            model.range(place..place + pages).map(|(&page, _)| page).collect();
                        prop_assert_eq!(bytes, gone.len() as u64 * MEDIUM);
                        gone.iter().for_each(|page| {
                            model.remove(page);
                        });
                    }
                    Err(error) => {
                        prop_assert!(refused);
                        prop_assert_eq!(error, SpaceError::BadRange { address });
                    }
                }
            }
            for page in 0..7 * 512 {
                let found =
                    rig.translate(BASE + page * MEDIUM).map(|(physical, _)| physical / MEDIUM);
                prop_assert_eq!(found, model.get(&page).copied(), "page {}", page);
            }
        }
        rig.unmap(BASE, WINDOW).expect("all of it");
        prop_assert_eq!(rig.tables(), 0);
    }
}
