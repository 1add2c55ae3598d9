//! Frames for a [`VmemmapSpace`](framewright::vmemmap_space::VmemmapSpace) under test: a pool, a
//! ledger of the frames that are out, and failure on demand.

use crate::lock::lock;
use crate::machine::FakeMachine;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{FrameList, FrameSource};
pub use framewright_workload::vmemmap_space::FaultyFrames;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Records which frames are taken. Each taking has a generation, which translations must match.
#[derive(Clone, Default, Debug)]
pub struct FrameLedger {
    inner: Arc<Mutex<Ledger>>,
}

#[derive(Default, Debug)]
struct Ledger {
    taken: HashMap<u64, u64>,
    generation: u64,
}

impl FrameLedger {
    /// Records frames that were handed out.
    ///
    /// # Panics
    /// If one of them is out already.
    pub fn take(&self, frames: PfnRange) {
        let mut ledger = lock(&self.inner);
        ledger.generation += 1;
        let generation = ledger.generation;
        for frame in frames.start.0..frames.end.0 {
            assert!(
                ledger.taken.insert(frame, generation).is_none(),
                "frame {frame:#x} was handed out twice"
            );
        }
    }

    /// Records frames that came back.
    ///
    /// # Panics
    /// If one of them was not out.
    pub fn free(&self, frames: PfnRange) {
        let mut ledger = lock(&self.inner);
        for frame in frames.start.0..frames.end.0 {
            assert!(
                ledger.taken.remove(&frame).is_some(),
                "frame {frame:#x} came back but was not handed out"
            );
        }
    }

    /// The generation of `frame`, or `None` if the frame is free.
    #[must_use]
    pub fn generation(&self, frame: Pfn) -> Option<u64> {
        lock(&self.inner).taken.get(&frame.0).copied()
    }

    /// The number of frames that are out.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        lock(&self.inner).taken.len()
    }
}

#[derive(Debug)]
struct Free {
    frames: Vec<bool>,
    /// The index at which the last single frame was found.
    next: usize,
}

/// A pool of a machine's frames, which poisons frames that come back.
#[derive(Debug)]
pub struct FramePool {
    machine: &'static FakeMachine,
    frames: PfnRange,
    free: Mutex<Free>,
    largest: Order,
    /// The distance between single frames that are handed out; 2 leaves gaps.
    stride: usize,
    ledger: FrameLedger,
}

impl Free {
    /// Finds a single frame: the next free one in steps of `stride`, else any free one.
    fn single(&mut self, stride: usize) -> Option<usize> {
        let strided =
            (self.next..self.frames.len()).step_by(stride).find(|&index| self.frames[index]);
        let index = strided.or_else(|| self.frames.iter().position(|&free| free))?;
        self.frames[index] = false;
        self.next = index;
        Some(index)
    }

    /// Finds the lowest free run; `start` is the first frame of the pool.
    fn run(&mut self, order: Order, start: Pfn) -> Option<usize> {
        let pages = usize::try_from(order.pages()).expect("an order fits the host");
        let phase =
            usize::try_from(start.0.wrapping_neg() % order.pages()).expect("below an order");
        let index = (phase..self.frames.len()).step_by(pages).find(|&first| {
            let run = self.frames.get(first..first + pages);
            run.is_some_and(|run| run.iter().all(|&free| free))
        })?;
        self.frames[index..index + pages].fill(false);
        Some(index)
    }
}

impl FramePool {
    /// Makes a pool of all of `frames`, which must be usable memory of `machine`.
    ///
    /// # Safety
    /// The frames have no other user as long as the pool, or any frame that it handed out, lives.
    #[must_use]
    pub unsafe fn new(machine: &'static FakeMachine, frames: PfnRange) -> Self {
        let count = usize::try_from(frames.pages()).expect("a pool of frames fits the host");
        let free = Mutex::new(Free { frames: vec![true; count], next: 0 });
        Self {
            machine,
            frames,
            free,
            largest: Order::MAX,
            stride: 1,
            ledger: FrameLedger::default(),
        }
    }

    /// Refuses orders above `largest`, as fragmented memory does.
    #[must_use]
    pub fn up_to(mut self, largest: Order) -> Self {
        self.largest = largest;
        self
    }

    /// Hands out single frames only, and no adjacent ones while there are others.
    #[must_use]
    pub fn fragmented(mut self) -> Self {
        self.largest = Order::PAGE;
        self.stride = 2;
        self
    }

    /// The machine to which the frames belong.
    #[must_use]
    pub fn machine(&self) -> &'static FakeMachine {
        self.machine
    }

    /// The ledger of the frames that are out.
    #[must_use]
    pub fn ledger(&self) -> &FrameLedger {
        &self.ledger
    }

    /// The number of frames that are out.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.ledger.outstanding()
    }

    /// Takes back the frames that a flush released.
    ///
    /// # Panics
    /// If a frame was not handed out.
    #[expect(clippy::needless_pass_by_value, reason = "the list is the right to free its frames")]
    pub fn free(&self, list: FrameList) {
        self.free_runs(&list.runs().collect::<Vec<_>>());
    }

    /// Takes back some runs of such a list.
    ///
    /// # Panics
    /// If a frame was not handed out.
    pub fn free_runs(&self, runs: &[PfnRange]) {
        runs.iter().for_each(|&run| self.release(run));
    }

    fn take(&self, order: Order) -> Option<Pfn> {
        if order > self.largest {
            return None;
        }
        let mut free = lock(&self.free);
        let index = if order == Order::PAGE {
            free.single(self.stride)?
        } else {
            free.run(order, self.frames.start)?
        };
        drop(free);
        let start = self.frames.start.add(index as u64);
        self.ledger.take(PfnRange::new(start.0, start.0 + order.pages()));
        Some(start)
    }

    fn release(&self, run: PfnRange) {
        self.ledger.free(run);
        for frame in run.start.0..run.end.0 {
            // SAFETY: the frame belongs to the pool again (invariant 12), and the pool's frames
            // have no other user.
            unsafe { self.machine.poison(Pfn(frame)) };
        }
        let mut free = lock(&self.free);
        let first = usize::try_from(run.start.0 - self.frames.start.0).expect("inside the pool");
        let pages = usize::try_from(run.pages()).expect("inside the pool");
        free.frames[first..first + pages].fill(true);
    }
}

// SAFETY: the pool's frames are its own (the promise of `new`), and the ledger fails the test if
// one is handed out twice.
unsafe impl FrameSource for &FramePool {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        FramePool::take(self, order)
    }

    unsafe fn put_back(&mut self, start: Pfn, order: Order) {
        self.release(PfnRange::new(start.0, start.0 + order.pages()));
    }
}
