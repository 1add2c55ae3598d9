//! What the hammer knows of each frame.

use crate::common::{Fake, mib};
use framewright::PartOf;
use framewright::reporting::Content;
use framewright::units::{PAGE_SIZE, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::BlockRange;
use framewright_testkit::FakeMachine;
use framewright_testkit::reporting::FakeHost;
use framewright_testkit::workload::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// One past the last frame of all machines here.
pub const END: u64 = (8 << 18) + (64 << 8);
/// The words of a frame that are written and checked.
pub const WORDS: [u64; 3] = [0, 1999 / 8 * 8, PAGE_SIZE - 8];
/// A run of at least this many pages may be of a block that has no room for descriptors.
pub const UNDESCRIBED: u64 = 504;

/// A range of memory and its node.
#[derive(Clone, Copy)]
pub struct Memory {
    pub start_mib: u64,
    pub end_mib: u64,
    pub node: usize,
}

impl Memory {
    pub const fn new(start_mib: u64, end_mib: u64, node: usize) -> Self {
        Self { start_mib, end_mib, node }
    }

    pub fn range(&self) -> PhysRange {
        mib(self.start_mib, self.end_mib)
    }
}

/// How a machine is run.
#[derive(Clone, Copy)]
pub struct Shape {
    pub line: &'static str,
    pub memory: &'static [Memory],
    /// Whether a thread takes all memory of a node now and then.
    pub fills: bool,
    pub array: bool,
    /// Whether every page of a block in pieces has a descriptor, and whether the descriptor of a
    /// free page is zero.
    pub described: bool,
    pub clear: bool,
    /// What the host does with memory that is reported to it; `None` if nothing is reported.
    pub report: Option<Content>,
}

/// The model of who owns what.
pub struct Model {
    pub manager: &'static Fake,
    pub shape: Shape,
    pub host: Option<Arc<FakeHost>>,
    /// The owner of each frame; 0 if the frame has none.
    pub owners: Vec<AtomicU8>,
    /// For each block, the serial number at which it was isolated; 0 if it is not isolated.
    pub isolated: Vec<AtomicU64>,
    pub now: AtomicU64,
    pub ended: AtomicBool,
}

impl Model {
    /// Makes a model in which no frame has an owner.
    pub fn new(manager: &'static Fake, shape: Shape, host: Option<Arc<FakeHost>>) -> Self {
        Self {
            manager,
            shape,
            host,
            owners: (0..END).map(|_| AtomicU8::new(0)).collect(),
            isolated: (0..END.div_ceil(512)).map(|_| AtomicU64::new(0)).collect(),
            now: AtomicU64::new(1),
            ended: AtomicBool::new(false),
        }
    }

    pub fn node_of(&self, pfn: Pfn) -> usize {
        let memory = self.shape.memory.iter();
        let mut of = memory.filter(|memory| memory.range().whole_frames().contains(pfn));
        of.next().unwrap_or_else(|| panic!("{pfn:?} is no memory")).node
    }

    /// Picks a place in the upper memory: returns the first frame and the number of frames from
    /// there on.
    pub fn somewhere(&self, random: &mut Random) -> PfnRange {
        random.choose(&self.shape.memory[1..]).expect("some").range().whole_frames()
    }

    pub fn machine(&self) -> &'static FakeMachine {
        self.manager.platform()
    }

    pub fn stamp(pfn: u64, offset: u64, owner: u8) -> u64 {
        (pfn << 20 | offset).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(owner) << 56 | 1
    }

    pub fn frames(range: PfnRange) -> impl Iterator<Item = u64> {
        range.start.0..range.end.0
    }

    /// Records that a request that began at `asked` returned `range`.
    pub fn got(&self, owner: u8, range: PfnRange, asked: u64, zeroed: bool) {
        assert!(!range.is_empty() && range.end.0 <= END, "{range:?}");
        for pfn in Self::frames(range) {
            let before =
                self.owners[usize::try_from(pfn).expect("small")].swap(owner, Ordering::SeqCst);
            assert_eq!(before, 0, "{pfn:#x} of {range:?} has an owner");
        }
        for block in range.start.0 / 512..range.end.0.div_ceil(512) {
            let since =
                self.isolated[usize::try_from(block).expect("small")].load(Ordering::SeqCst);
            assert!(
                since == 0 || since > asked,
                "{range:?} was isolated at {since} before {asked}"
            );
        }
        if let Some(host) = &self.host {
            host.handed_out(range);
        }
        for pfn in Self::frames(range) {
            for offset in WORDS {
                let address = pfn * PAGE_SIZE + offset;
                if zeroed {
                    assert_eq!(self.machine().load(address), 0, "{pfn:#x} of {range:?} + {offset}");
                }
                // SAFETY: the frame was handed out just now, and nobody else has it.
                unsafe { self.machine().store(address, Self::stamp(pfn, offset, owner)) };
            }
        }
    }

    /// Records that the owner of `range` is about to free it, or to give it to another owner.
    pub fn gives(&self, owner: u8, range: PfnRange, to: u8) {
        for pfn in Self::frames(range) {
            for offset in WORDS {
                let address = pfn * PAGE_SIZE + offset;
                let found = self.machine().load(address);
                assert_eq!(
                    found,
                    Self::stamp(pfn, offset, owner),
                    "{pfn:#x} of {range:?} + {offset}"
                );
                if to != 0 {
                    // SAFETY: the frame is the owner's.
                    unsafe { self.machine().store(address, Self::stamp(pfn, offset, to)) };
                }
            }
            let before =
                self.owners[usize::try_from(pfn).expect("small")].swap(to, Ordering::SeqCst);
            assert_eq!(before, owner, "{pfn:#x} of {range:?}");
        }
    }

    /// Checks that every page of a new run has a descriptor that is not yet owned, and writes the
    /// owner into it.
    pub fn describe(&self, range: PfnRange, owner: u8) -> bool {
        if !self.shape.described || range.pages() >= UNDESCRIBED {
            return false;
        }
        for pfn in Self::frames(range) {
            // SAFETY: the page is ours.
            let page = unsafe { self.manager.vmemmap().page(Pfn(pfn)) };
            let page = page.unwrap_or_else(|| panic!("{pfn:#x} of {range:?} has no descriptor"));
            assert_eq!((page.references(), page.part_of()), (0, PartOf::Single), "{pfn:#x}");
            assert!(!self.shape.clear || page.is_clear(), "{pfn:#x} of {range:?}");
            page.owner_words()[3].store(Self::stamp(pfn, 0, owner), Ordering::Relaxed);
        }
        true
    }

    /// Checks that the descriptors are as their owner left them; `clears` removes the owner from
    /// them.
    pub fn described(&self, range: PfnRange, owner: u8, clears: bool) {
        for pfn in Self::frames(range) {
            // SAFETY: the page is ours.
            let page = unsafe { self.manager.vmemmap().page(Pfn(pfn)) }.expect("it had one");
            let word = page.owner_words()[3].load(Ordering::Relaxed);
            assert_eq!(word, Self::stamp(pfn, 0, owner), "{pfn:#x} of {range:?}");
            if clears {
                page.clear();
            }
        }
    }

    pub fn isolate(&self, range: BlockRange, isolated: bool) {
        let now = if isolated { self.now.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        let blocks = &self.isolated[range.start.0 as usize..range.end.0 as usize];
        blocks.iter().for_each(|block| block.store(now, Ordering::SeqCst));
    }
}
