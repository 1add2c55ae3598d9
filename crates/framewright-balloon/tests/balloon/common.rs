//! Shared by the driver's tests: memory that checks how it is used.

#![allow(dead_code, reason = "every test file uses a part of it")]

use framewright_balloon::{
    Balloon, BalloonMemory, DeviceFault, Progress, Settings, StartError, Statistic,
};
use framewright_testkit::balloon::{FakeBalloon, FakeHal, FakeTransport};
use std::collections::BTreeSet;

/// The driver over the fakes.
pub type Driver = Balloon<FakeHal, FakeTransport>;

pub fn start(host: &FakeBalloon) -> Result<Driver, StartError> {
    Driver::new(host.transport(), Settings { relieves: true, ..Settings::default() })
}

/// The free frames, and the frames in the balloon.
#[derive(Default, Debug)]
pub struct Memory {
    pub free: BTreeSet<u64>,
    pub taken: BTreeSet<u64>,
    /// `take` gives no 2 MiB blocks, whatever is free.
    pub no_large: bool,
    /// What the next call of `take` returns instead.
    pub instead: Option<u64>,
    pub given_back_instead: Vec<(u64, u32)>,
}

impl Memory {
    pub fn of(frames: std::ops::Range<u64>) -> Self {
        Self { free: frames.collect(), ..Self::default() }
    }
}

// SAFETY: these frames are only numbers.
unsafe impl BalloonMemory for Memory {
    fn take(&mut self, order: u32, end_pfn: u64) -> Option<u64> {
        if let Some(pfn) = self.instead {
            return Some(pfn);
        }
        let pages = 1u64 << order;
        let is_free = |first: u64| (first..first + pages).all(|pfn| self.free.contains(&pfn));
        let mut candidates =
            self.free.range(..end_pfn).copied().filter(|pfn| pfn.is_multiple_of(pages));
        let first =
            candidates.find(|&first| is_free(first)).filter(|_| order == 0 || !self.no_large)?;
        for pfn in first..first + pages {
            self.free.remove(&pfn);
            self.taken.insert(pfn);
        }
        Some(first)
    }

    unsafe fn give_back(&mut self, first_pfn: u64, pages: u32) {
        if self.instead.take().is_some() {
            self.given_back_instead.push((first_pfn, pages));
            return;
        }
        for pfn in first_pfn..first_pfn + u64::from(pages) {
            assert!(self.taken.remove(&pfn), "frame {pfn:#x} was not taken");
            assert!(self.free.insert(pfn), "frame {pfn:#x} is free");
        }
    }
}

/// The driver's operations on a test's memory.
pub trait WithMemory {
    fn work_with(
        &mut self,
        memory: &mut Memory,
        statistics: &mut dyn FnMut(Statistic) -> Option<u64>,
    ) -> Result<Progress, DeviceFault>;

    fn stop_with(&mut self, memory: &mut Memory) -> bool;
}

impl WithMemory for Driver {
    fn work_with(
        &mut self,
        memory: &mut Memory,
        statistics: &mut dyn FnMut(Statistic) -> Option<u64>,
    ) -> Result<Progress, DeviceFault> {
        // SAFETY: these frames are only numbers; `Memory` complains if a frame comes back that it
        // did not give.
        unsafe { self.work(memory, statistics) }
    }

    fn stop_with(&mut self, memory: &mut Memory) -> bool {
        // SAFETY: as above.
        unsafe { self.stop(memory) }
    }
}

/// Works until the balloon has its target size or makes no progress.
pub fn settle(balloon: &mut Driver, memory: &mut Memory) -> Progress {
    for _ in 0..10_000 {
        let progress = balloon.work_with(memory, &mut |_| None).expect("a device that is well");
        if progress.short || !progress.waiting && progress.held_pages == progress.goal_pages {
            return progress;
        }
    }
    panic!("the balloon does not settle: {balloon:?}")
}

/// Returns frames as the host counts them.
pub fn as_told(frames: &BTreeSet<u64>) -> BTreeSet<u32> {
    frames.iter().map(|&pfn| u32::try_from(pfn).expect("32 bits")).collect()
}

/// Checks that all of the driver's memory was freed and that it was used as allowed.
pub fn nothing_is_left() {
    assert_eq!(FakeHal::pages(), 0, "pages are left");
    assert_eq!(FakeHal::violations(), [""; 0]);
}
