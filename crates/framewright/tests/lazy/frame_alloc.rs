//! Runs one sequence of requests on the allocator of the crate `frame-alloc` and on ours, and
//! checks both against one model.

use super::{Lazy, lazy};
use crate::common::{bring_up, check, mib};
use frame_alloc::{
    AllocError, InitError, PageSize, PhysRange, PhysicalAllocator, Provenance, RegionInit,
    SummaryBuddyAllocator,
};
use framewright::platform::{Cpu, LinearMap};
use framewright::{LazyManager, PinnedCpu, Platform};
use framewright_testkit::FakeMachine;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::OnceLock;

thread_local! {
    /// The machine of the allocator of this test.
    static MACHINE: Cell<Option<&'static FakeMachine>> = const { Cell::new(None) };
}

/// The address at which the other crate's allocator sees memory.
struct Seen;

// SAFETY: the machine's memory is mapped for as long as the test runs.
unsafe impl Provenance for Seen {
    unsafe fn create(phys: usize) -> NonNull<u8> {
        MACHINE.get().expect("a machine").direct(phys as u64)
    }
    unsafe fn destroy<T>(pointer: NonNull<T>) -> usize {
        pointer.addr().get() - MACHINE.get().expect("a machine").direct(0x1000).addr().get()
            + 0x1000
    }
}

type Theirs = SummaryBuddyAllocator<12, Seen>;

const PAGE: PageSize = PageSize::from_log2(12);
const USABLE: [PhysRange; 2] =
    [PhysRange { base: 1 << 20, len: 30 << 20 }, PhysRange { base: 36 << 20, len: 28 << 20 }];

fn count(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).expect("not 0")
}

fn machine() -> &'static FakeMachine {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    MACHINE.set(Some(machine));
    machine
}

/// Makes random requests; then all memory goes back.
fn program<A: PhysicalAllocator + RegionInit>(frames: &A, mut state: u64) -> usize {
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    assert_eq!(frames.allocate_physical(PAGE, count(1)), Err(AllocError::OutOfMemory));
    // SAFETY: the machine's memory is the test's.
    unsafe { frames.try_init(0, 64 << 20, &USABLE) }.expect("there is room");
    // SAFETY: as above.
    let again = unsafe { frames.try_init(0, 64 << 20, &USABLE) };
    assert_eq!(again, Err(InitError::AlreadyInitialized));
    let mut usable = USABLE.to_vec();
    let mut held = BTreeMap::new();
    let mut served = 0;
    for turn in 0..4000 {
        if turn == 2000 {
            let more = PhysRange { base: 33 << 20, len: 2 << 20 };
            // SAFETY: as above.
            unsafe { frames.add_usable(more.base, more.len) };
            usable.push(more);
        }
        if random(5) < 3 {
            let size = PageSize::from_log2(if random(20) == 0 { 21 } else { 12 });
            let wanted = if size == PAGE {
                {
                    let most = 1 << random(8);
                    1 + random(most)
                }
            } else {
                1
            };
            let Ok(start) = frames.allocate_physical(size, count(wanted)) else { continue };
            let bytes = size.bytes() * wanted;
            assert!(size.is_aligned(start), "{start:#x}");
            let is_usable = |it: &PhysRange| it.base <= start && start + bytes <= it.base + it.len;
            // The other crate's allocator joins added memory to the memory beside it.
            let is_inside = usable.iter().any(is_usable);
            assert!(is_inside, "{start:#x} with {bytes:#x} bytes is not usable");
            let before = held.range(..start + bytes).next_back();
            let is_apart = before.is_none_or(|(&at, &(_, _, len))| at + len <= start);
            assert!(is_apart, "{start:#x} is in use");
            held.insert(start, (size, wanted, bytes));
            served += 1;
        } else {
            let at = random(64 << 20);
            let next = held.range(at..).next().or(held.iter().next());
            let Some((&start, &(size, wanted, _))) = next else { continue };
            held.remove(&start);
            // SAFETY: allocated above.
            unsafe { frames.deallocate_physical(size, count(wanted), start) };
        }
    }
    for (start, (size, wanted, _)) in held {
        // SAFETY: allocated above.
        unsafe { frames.deallocate_physical(size, count(wanted), start) };
    }
    served
}

#[test]
fn one_program_runs_on_both() {
    for seed in 1..8 {
        machine();
        let served = program(&Theirs::new(PAGE), seed);
        let us: &Lazy = lazy(machine());
        let ours = program(us, seed);
        assert!(served > 500 && ours > 500, "{served} and {ours}");
        check(us.get().expect("it is up"));
        assert_eq!(us.lost_pages(), 0);
        let usage = us.usage();
        assert_eq!(usage.total_pages - usage.free_pages, 3 * 256, "the rest of the gap");
    }
}

#[test]
fn what_cannot_be_is_told_and_changes_nothing() {
    let us: &Lazy = lazy(machine());
    // SAFETY: the machine's memory is the test's.
    let init = |base, len, usable: &[PhysRange]| unsafe { us.try_init(base, len, usable) };
    let range = |base, len| PhysRange { base, len };
    assert_eq!(init(1, 4096, &[]), Err(InitError::Misaligned { required: 4096 }));
    assert_eq!(init(0, 0, &[]), Err(InitError::InvalidSpan));
    assert_eq!(init(4096, usize::MAX - 8191, &[]), Err(InitError::InvalidSpan));
    let bad = [range(1 << 20, 4096), range(8 << 20, 1)];
    assert_eq!(init(0, 64 << 20, &bad), Err(InitError::InvalidUsable { index: 1 }));
    let outside = [range(60 << 20, 8 << 20)];
    assert_eq!(init(0, 64 << 20, &outside), Err(InitError::InvalidUsable { index: 0 }));
    let overlaps = [range(1 << 20, 2 << 20), range(8 << 20, 1 << 20), range(2 << 20, 8192)];
    assert_eq!(init(0, 64 << 20, &overlaps), Err(InitError::InvalidUsable { index: 2 }));
    let small = init(0, 64 << 20, &[range(1 << 20, 8192)]);
    assert!(matches!(small, Err(InitError::MetadataWontFit { .. })), "{small:?}");
    assert!(us.get().is_none());
    // It can also begin with the ranges that were wrong before.
    assert_eq!(init(0, 64 << 20, &[range(2 << 20, 8192), range(8 << 20, 32 << 20)]), Ok(()));
    check(us.get().expect("it is up"));
}

/// Single pages, in none of which a longer list of ranges has room.
#[test]
fn too_many_ranges_are_told_as_such() {
    let us: LazyManager<FakeMachine, 300> = LazyManager::new(machine());
    let pages: Vec<_> = (256..456).map(|page| PhysRange { base: page << 13, len: 4096 }).collect();
    // SAFETY: the machine's memory is the test's.
    let error = unsafe { us.try_init(0, 64 << 20, &pages) }.expect_err("too many");
    if cfg!(feature = "large-maps") {
        let InitError::MetadataWontFit { required_bytes } = error else { panic!("{error:?}") };
        assert!(required_bytes > 4096, "{required_bytes}: they have as much");
    } else {
        assert_eq!(error, InitError::InvalidUsable { index: pages.len() - 1 });
    }
    assert!(us.get().is_none());
}

/// A CPU that brings its manager up once more while it comes up.
#[derive(Default)]
struct Again {
    lazy: OnceLock<&'static LazyManager<LinearMap<Self>>>,
    told: OnceLock<Result<(), InitError>>,
}

impl Cpu for Again {
    fn pin(&self) -> PinnedCpu {
        if let Some(lazy) = self.lazy.get() {
            // SAFETY: no memory is named.
            self.told.get_or_init(|| unsafe { lazy.try_init(0, 4096, &[]) });
        }
        PinnedCpu::new(0)
    }
}

#[test]
fn who_cannot_wait_is_not_told_of_too_little_memory() {
    let base = machine().direct(1 << 20).as_ptr().expose_provenance() - (1 << 20);
    // SAFETY: the machine's memory is the test's, and one thread uses it.
    let map: &'static _ = Box::leak(Box::new(unsafe { LinearMap::new(base, Again::default()) }));
    let lazy: &'static _ = Box::leak(Box::new(LazyManager::new(map)));
    assert!(map.cpu().lazy.set(lazy).is_ok());
    // SAFETY: as above.
    unsafe { lazy.try_init(0, 64 << 20, &USABLE) }.expect("there is room");
    assert_eq!(map.cpu().told.get(), Some(&Err(InitError::AlreadyInitialized)));
}

#[test]
fn a_manager_serves_all_its_page_sizes() {
    let manager = bring_up(machine());
    for (log2, wanted) in [(12, 5), (13, 3), (21, 2)] {
        let size = PageSize::from_log2(log2);
        let start = manager.allocate_physical(size, count(wanted)).expect("there is memory");
        assert!(size.is_aligned(start));
        // SAFETY: allocated just now.
        unsafe { manager.deallocate_physical(size, count(wanted), start) };
    }
    let of = |log2, wanted| manager.allocate_physical(PageSize::from_log2(log2), count(wanted));
    assert_eq!(of(11, 1), Err(AllocError::InvalidPageSize));
    assert_eq!(of(31, 1), Err(AllocError::InvalidPageSize));
    assert_eq!(of(30, usize::MAX), Err(AllocError::RequestTooLarge));
    assert_eq!(of(30, 1), Err(AllocError::OutOfMemory));
    check(&manager);
}
