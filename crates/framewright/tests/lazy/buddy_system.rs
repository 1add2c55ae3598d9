//! Runs one sequence of requests on the allocators of the crate `buddy_system_allocator` and on
//! ours, and checks both against one model.

use crate::common::{check, mib};
use buddy_system_allocator as theirs;
use framewright::adapters::buddy_system as ours;
#[cfg(feature = "moving")]
use framewright::{
    manager::{MoveFailed, MoveToken, Mover, NotNow, Occupant},
    units::{Pfn, PfnRange},
};
use framewright_testkit::FakeMachine;
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ops::Range;

/// The methods that both allocators have, called as on a static behind their lock.
macro_rules! calls {
    ($of:expr) => {
        Calls {
            add_frame: &|start, end| $of.lock().add_frame(start, end),
            insert: &|range| $of.lock().insert(range),
            alloc: &|count| $of.lock().alloc(count),
            alloc_aligned: &|layout| $of.lock().alloc_aligned(layout),
            alloc_at: &|start, count| $of.lock().alloc_at(start, count),
            dealloc: &|start, count| $of.lock().dealloc(start, count),
            dealloc_aligned: &|start, layout| $of.lock().dealloc_aligned(start, layout),
        }
    };
}

struct Calls<'a> {
    add_frame: &'a dyn Fn(usize, usize),
    insert: &'a dyn Fn(Range<usize>),
    alloc: &'a dyn Fn(usize) -> Option<usize>,
    alloc_aligned: &'a dyn Fn(Layout) -> Option<usize>,
    alloc_at: &'a dyn Fn(usize, usize) -> Option<usize>,
    dealloc: &'a dyn Fn(usize, usize),
    dealloc_aligned: &'a dyn Fn(usize, Layout),
}

/// How a run was asked for.
#[derive(Clone, Copy)]
enum Held {
    Count(usize),
    Of(Layout),
}

/// Runs that are held, by their start, and the ranges that were added.
struct Model {
    added: Vec<Range<usize>>,
    held: BTreeMap<usize, (usize, Held)>,
}

impl Model {
    fn take(&mut self, start: usize, len: usize, align: usize, held: Held) {
        assert!(start.is_multiple_of(align), "{start:#x} is not aligned to {align}");
        let end = start + len;
        assert!(self.added.iter().any(|it| it.start <= start && end <= it.end), "not added");
        let before = self.held.range(..end).next_back();
        assert!(before.is_none_or(|(&at, &(pages, _))| at + pages <= start), "in use already");
        self.held.insert(start, (len, held));
    }
}

/// Makes random requests, some of which both allocators serve; then all memory goes back and can be
/// allocated again.
fn program(calls: &Calls<'_>, mut state: u64) -> usize {
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    let mut model = Model { added: vec![0x200..0x2000, 0x2400..0x3a80], held: BTreeMap::new() };
    assert_eq!((calls.alloc)(1), None, "nothing was added");
    (calls.add_frame)(0x200, 0x2000);
    (calls.insert)(0x2400..0x3a80);
    let mut served = 0;
    for _ in 0..4000 {
        let count = 1 << random(8);
        let count = if random(3) == 0 { count } else { 1 + random(count) };
        match random(8) {
            0..3 => {
                if let Some(start) = (calls.alloc)(count) {
                    model.take(start, count, count.next_power_of_two(), Held::Count(count));
                    served += 1;
                }
            }
            3 => {
                let align = 1 << random(7);
                let layout = Layout::from_size_align(count, align).expect("a power of two");
                if let Some(start) = (calls.alloc_aligned)(layout) {
                    model.take(start, count, align, Held::Of(layout));
                    served += 1;
                }
            }
            4 => {
                let size = count.next_power_of_two();
                let start = random(0x3a80 / size) * size;
                let end = start + size;
                let is_free = model.added.iter().any(|it| it.start <= start && end <= it.end)
                    && model
                        .held
                        .iter()
                        .all(|(&at, &(len, _))| at + len.next_power_of_two() <= start || end <= at);
                let taken = (calls.alloc_at)(start, count);
                if let Some(at) = taken {
                    assert_eq!(at, start);
                    model.take(start, count, size, Held::Count(count));
                    served += 1;
                }
                // Our allocator keeps some memory for tables and reserves.
                assert!(is_free || taken.is_none() || model.held.contains_key(&start));
            }
            _ => {
                let at = random(0x3a80);
                let next = model.held.range(at..).next().or(model.held.iter().next());
                let Some((&start, &(_, held))) = next else { continue };
                model.held.remove(&start);
                match held {
                    Held::Count(count) => (calls.dealloc)(start, count),
                    Held::Of(layout) => (calls.dealloc_aligned)(start, layout),
                }
            }
        }
    }
    for (start, (_, held)) in std::mem::take(&mut model.held) {
        match held {
            Held::Count(count) => (calls.dealloc)(start, count),
            Held::Of(layout) => (calls.dealloc_aligned)(start, layout),
        }
    }
    let whole: Vec<_> = std::iter::from_fn(|| (calls.alloc)(0x200)).take(14).collect();
    assert!(whole.len() > 10, "all went back, and {} blocks are whole", whole.len());
    for start in whole {
        model.take(start, 0x200, 0x200, Held::Count(0x200));
        (calls.dealloc)(start, 0x200);
    }
    served
}

#[test]
fn one_program_runs_on_both() {
    for seed in 1..8 {
        let them = theirs::LockedFrameAllocator::<33>::new();
        let served = program(&calls!(them), seed);
        let machine = FakeMachine::builder().ram(mib(0, 64)).build();
        // SAFETY: the machine has what the program adds, and the program is its only user.
        let us = unsafe { ours::LockedFrameAllocator::new(machine) };
        let ours = program(&calls!(us), seed);
        // Both serve most requests, but not the same ones.
        assert!(served > 500 && ours > 500, "{served} and {ours}");
        check(us.frames().get().expect("it is up"));
        assert_eq!(us.frames().lost_pages(), 0);
        let usage = us.frames().usage();
        assert_eq!(usage.total_pages - usage.free_pages, 0x400, "the gap");
    }
}

#[test]
fn what_does_not_fit_is_refused_and_counted() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    // SAFETY: the machine has what is added, and the test is its only user.
    let us = unsafe { ours::FrameAllocator::new(machine) };
    us.add_frame(0x200, 0x2000);
    us.add_frame(0x1000, 0x3000);
    assert_eq!(us.frames().lost_pages(), 0x2000, "a part of it is there already");
    assert_eq!(us.alloc(usize::MAX), None);
    assert_eq!(us.alloc(1 << 40), None);
    assert_eq!(us.alloc_at(usize::MAX, 1), None);
    assert_eq!(us.alloc_at(0x201, 2), None, "not aligned");
    let none = us.alloc(0).expect("one frame");
    us.dealloc(none, 0);
    us.dealloc(0x3000, 4);
    assert_eq!(us.frames().lost_pages(), 0x2004);
    check(us.frames().get().expect("it is up"));
}

/// A mover that nobody may ask.
#[cfg(feature = "moving")]
struct Unasked;

// SAFETY: it never moves anything.
#[cfg(feature = "moving")]
unsafe impl Mover for Unasked {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        panic!("nothing is to move, and pfn {pfn} is in use")
    }
    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        Err(NotNow::Busy)
    }
    unsafe fn relocate(&self, _: MoveToken, _: PfnRange, _: PfnRange) -> Result<(), MoveFailed> {
        Err(MoveFailed)
    }
    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}

#[test]
fn a_place_that_is_free_needs_no_waiting_and_nothing_moves_for_one() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(4).build();
    // SAFETY: the machine has what is added, and the test is its only user.
    let us = unsafe { ours::FrameAllocator::new(machine) };
    us.add_frame(0x200, 0x4000);
    us.frames().bring_up().expect("there is memory");
    #[cfg(feature = "moving")]
    us.frames().get().expect("it is up").moving().set_mover(Some(&Unasked));
    // In a handler nobody can wait for other CPUs.
    for (start, count) in [(0x1000, 1), (0x1008, 5), (0x1400, 0x400), (0x2000, 0x300)] {
        assert_eq!(machine.interrupt(|| us.alloc_at(start, count)), Some(start));
        assert_eq!(us.alloc_at(start, count), None, "in use");
        us.dealloc(start, count);
        assert_eq!(us.alloc_at(start, count), Some(start), "out of a cache, too");
    }
    assert_eq!(us.alloc_at(0x1400, 0x800), None, "half of it is in use");
    for (start, count) in [(0x1000, 1), (0x1008, 5), (0x1400, 0x400), (0x2000, 0x300)] {
        us.dealloc(start, count);
    }
    assert_eq!(us.frames().lost_pages(), 0);
    check(us.frames().get().expect("it is up"));
}
