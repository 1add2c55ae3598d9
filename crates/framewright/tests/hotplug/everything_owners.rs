//! The tests' own table of who owns each frame, and the stamps that owners write into their frames.

use crate::common::Fake;
use framewright::units::{Pfn, PfnRange};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

pub const NOBODY: u32 = 0;
/// The owner of frames that are not memory.
pub const GONE: u32 = u32::MAX;

pub fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("64 bits")
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, Debug)]
pub struct Run {
    range: PfnRange,
    is_movable: bool,
    is_moving: bool,
}

#[derive(Default)]
pub struct Registry {
    runs: HashMap<u32, Run>,
    by_start: BTreeMap<u64, u32>,
}

/// The table of owners.
pub struct Owners {
    manager: &'static Fake,
    frames: Vec<AtomicU32>,
    registry: Mutex<Registry>,
    pub next: AtomicU32,
    pub moves: AtomicU64,
}

impl Owners {
    pub fn new(manager: &'static Fake, end: u64) -> Self {
        let frames = (0..end / 4096).map(|_| AtomicU32::new(NOBODY)).collect();
        let next = AtomicU32::new(1);
        Self { manager, frames, registry: Mutex::default(), next, moves: AtomicU64::new(0) }
    }

    pub fn change(&self, range: PfnRange, from: u32, to: u32) {
        for frame in range.start.0..range.end.0 {
            let was = self.frames[to_usize(frame)].compare_exchange(
                from,
                to,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            assert!(was.is_ok(), "frame {frame:#x} of {range:?}: {was:?} is not {from}, for {to}");
        }
    }

    fn stamped(range: PfnRange) -> impl Iterator<Item = u64> {
        let pages = range.pages();
        (0..pages).filter(move |at| pages <= 64 || at % 61 == 0 || at + 1 == pages)
    }

    fn stamp(&self, owner: u32, range: PfnRange) {
        for at in Self::stamped(range) {
            let (page, word) = (range.start.add(at).address(), u64::from(owner) << 32 | at);
            for (at, word) in [(page, word), (page + 4088, !word)] {
                // SAFETY: the owner's page.
                unsafe { self.manager.platform().store(at, word) };
            }
        }
    }

    fn check(&self, owner: u32, range: PfnRange) {
        for at in Self::stamped(range) {
            let (page, word) = (range.start.add(at).address(), u64::from(owner) << 32 | at);
            let found = [page, page + 4088].map(|at| self.manager.platform().load(at));
            assert_eq!(found, [word, !word], "page {at} of {range:?}, which {owner} has");
        }
    }

    pub fn take(&self, range: PfnRange, is_movable: bool) -> u32 {
        let owner = self.next.fetch_add(1, Ordering::Relaxed);
        self.change(range, NOBODY, owner);
        self.stamp(owner, range);
        let mut registry = lock(&self.registry);
        registry.runs.insert(owner, Run { range, is_movable, is_moving: false });
        registry.by_start.insert(range.start.0, owner);
        owner
    }

    /// Ends the ownership of a run once it is not being moved, and returns the run for the caller
    /// to free.
    pub fn give_up(&self, owner: u32) -> PfnRange {
        loop {
            let mut registry = lock(&self.registry);
            let run = registry.runs[&owner];
            if run.is_moving {
                drop(registry);
                thread::yield_now();
                continue;
            }
            registry.runs.remove(&owner);
            registry.by_start.remove(&run.range.start.0);
            drop(registry);
            self.check(owner, run.range);
            self.change(run.range, owner, NOBODY);
            return run.range;
        }
    }

    fn owner_of(registry: &Registry, pfn: Pfn) -> Option<(u32, Run)> {
        let (_, &owner) = registry.by_start.range(..=pfn.0).next_back()?;
        let run = registry.runs[&owner];
        run.range.contains(pfn).then_some((owner, run))
    }
}

// SAFETY: a run that is being moved stays in the registry, and its owner waits; after a move
// nothing names the old frames.
unsafe impl Mover for Owners {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        match Self::owner_of(&lock(&self.registry), pfn) {
            Some((_, run)) if run.is_movable => Occupant::Movable(run.range),
            Some(_) => Occupant::Fixed,
            None => Occupant::Unknown,
        }
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        let mut registry = lock(&self.registry);
        let (owner, found) = Self::owner_of(&registry, run.start).ok_or(NotNow::Gone)?;
        if found.range != run {
            return Err(NotNow::Gone);
        }
        if found.is_moving {
            return Err(NotNow::Busy);
        }
        registry.runs.get_mut(&owner).expect("found").is_moving = true;
        Ok(MoveToken(u64::from(owner)))
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        let owner = u32::try_from(token.0).expect("an owner");
        let fails = self.moves.fetch_add(1, Ordering::Relaxed) % 13 == 7;
        if fails {
            lock(&self.registry).runs.get_mut(&owner).expect("there").is_moving = false;
            return Err(MoveFailed);
        }
        self.check(owner, run);
        assert_eq!(run.pages(), to.pages());
        self.change(to, NOBODY, owner);
        self.stamp(owner, to);
        self.change(run, owner, NOBODY);
        let mut registry = lock(&self.registry);
        registry.by_start.remove(&run.start.0);
        registry.by_start.insert(to.start.0, owner);
        registry.runs.insert(owner, Run { range: to, is_movable: true, is_moving: false });
        Ok(())
    }

    unsafe fn abort(&self, token: MoveToken, _: PfnRange) {
        let owner = u32::try_from(token.0).expect("an owner");
        lock(&self.registry).runs.get_mut(&owner).expect("there").is_moving = false;
    }
}
