//! Who owns each frame, and stamps in memory that name the owner.

use framewright::units::{Order, Pfn, PfnRange};
use framewright_testkit::FakeMachine;

/// The kind of a run that has an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Frames from `allocate` and similar calls; with an order if one call returned the run and all
    /// of it is still there.
    Plain(Option<Order>),
    /// A counted run with this many references.
    Counted(u32),
    /// A huge page of a pool.
    Pool(framewright::hugetlb::PoolSize),
}

/// Frames that the test owns.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub range: PfnRange,
    pub kind: Kind,
}

/// See the module documentation.
pub struct Model {
    machine: &'static FakeMachine,
    /// One bit per frame: set while the frame has an owner.
    owned: Vec<u64>,
    /// One bit per block: set while no frame of the block may be handed out.
    isolated: Vec<bool>,
}

impl Model {
    pub fn new(machine: &'static FakeMachine) -> Self {
        let frames = usize::try_from(machine.map().present_end() / 4096).expect("64-bit addresses");
        Self {
            machine,
            owned: vec![0; frames.div_ceil(64)],
            isolated: vec![false; frames.div_ceil(512)],
        }
    }

    /// Records that `range` was handed out. Uses no heap because the interrupt handler calls it.
    pub fn got(&mut self, range: PfnRange) {
        assert!(!range.is_empty(), "an empty run");
        for frame in range.start.0..range.end.0 {
            let (word, bit) = (usize::try_from(frame / 64).expect("small"), 1 << (frame % 64));
            assert!(self.owned[word] & bit == 0, "frame {frame:#x} of {range:?} is somebody's");
            self.owned[word] |= bit;
            if frame % 512 == 0 || frame == range.start.0 {
                assert!(self.machine.is_usable(frame * 4096), "frame {frame:#x} is no memory");
                let block = usize::try_from(frame / 512).expect("small");
                assert!(!self.isolated[block], "frame {frame:#x} of {range:?} is isolated");
            }
        }
        self.stamp(range);
    }

    /// Records that `range` has no owner from now on. Its owner checks the stamps first.
    pub fn gives(&mut self, range: PfnRange) {
        self.look(range);
        for frame in range.start.0..range.end.0 {
            let (word, bit) = (usize::try_from(frame / 64).expect("small"), 1 << (frame % 64));
            assert!(self.owned[word] & bit != 0, "frame {frame:#x} of {range:?} is nobody's");
            self.owned[word] &= !bit;
        }
    }

    pub fn is_owned(&self, pfn: Pfn) -> bool {
        let word = usize::try_from(pfn.0 / 64).expect("small");
        self.owned[word] >> (pfn.0 % 64) & 1 != 0
    }

    pub fn owned_pages(&self) -> u64 {
        self.owned.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub fn isolate(&mut self, start: u32, end: u32, isolated: bool) {
        self.isolated[start as usize..end as usize].fill(isolated);
    }

    pub fn is_isolated(&self, start: u32, end: u32) -> bool {
        self.isolated[start as usize..end as usize].contains(&true)
    }

    pub fn blocks(&self) -> u32 {
        u32::try_from(self.isolated.len()).expect("small")
    }

    /// Returns the frames of a run that carry a stamp: all of a small run, a random selection of a
    /// large one.
    fn stamped(range: PfnRange) -> impl Iterator<Item = Pfn> {
        let all = range.pages() <= 64;
        (range.start.0..range.end.0)
            .filter(move |&frame| all || mix(frame).is_multiple_of(509))
            .map(Pfn)
    }

    /// Writes stamps into frames that have an owner.
    pub fn stamp(&self, range: PfnRange) {
        for frame in Self::stamped(range) {
            for offset in [0, 4088] {
                // SAFETY: the frame was handed out just now, and the model has seen that nobody
                // else has it.
                unsafe { self.machine.store(frame.address() + offset, mix(frame.0 ^ offset)) };
            }
        }
    }

    /// Finds stamps that were overwritten.
    pub fn look(&self, range: PfnRange) {
        for frame in Self::stamped(range) {
            for offset in [0, 4088] {
                let found = self.machine.load(frame.address() + offset);
                assert!(
                    found == mix(frame.0 ^ offset),
                    "somebody wrote {found:#x} into {frame} of {range:?}"
                );
            }
        }
    }
}

const fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (value ^ value >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ value >> 32
}
