//! `virtio_mem_test=SECONDS`: checks that memory is added, can be used, is removed, and comes back
//! empty, with one line of log for each step.
//!
//! The guest waits until the host wants it to have memory, takes all of it, writes to each page,
//! and gives it back. It then waits until the host wants it to have none, waits until the host
//! offers memory again, and checks all of it: memory that was removed must not hold anything of
//! what was written. At the end the host wants it to have none.

use super::{Driver, open, region_of};
use crate::console::log;
use crate::platform::{GuestPlatform, PLATFORM};
use crate::timekeeping::within;
use framewright::firmware::{MemoryMap, Topology};
use framewright::platform::Platform;
use framewright::units::{Order, PAGE_SIZE, PfnRange, PhysRange};
use framewright::zone::MigrateType;
use framewright::{Manager, Request};

const WRITTEN: u64 = 0x6b8b_4567_327b_23c6;
/// The words of a page that are written and checked.
const WORDS: [usize; 4] = [0, 170, 341, 511];

/// Runs the test. Returns false if something is wrong; a missing device is wrong, too.
pub fn test(
    manager: &Manager<GuestPlatform>,
    topology: &Topology<'_>,
    map: MemoryMap<'_>,
    wait_seconds: u64,
) -> bool {
    crate::virtio::lend(manager, || {
        let passed = match open(manager, topology, map) {
            Some(mut driver) => run(&mut driver, manager, wait_seconds),
            None => {
                log!("virtio-mem test: no usable device");
                false
            }
        };
        let is_whole = manager.verify().inspect_err(|fault| log!("virtio-mem test: {fault}"));
        let passed = passed && is_whole.is_ok();
        log!("virtio-mem test: {}", if passed { "passed" } else { "FAILED" });
        passed
    })
}

fn run(driver: &mut Driver<'_>, manager: &Manager<GuestPlatform>, seconds: u64) -> bool {
    let before = manager.totals().managed_pages;
    let region = region_of(&driver.device);
    let managed = |what: &str| {
        let pages = manager.totals().managed_pages.saturating_sub(before);
        log!("virtio-mem test: {what}, {} MiB more to manage", (pages * PAGE_SIZE) >> 20);
    };
    let mut passed = true;
    for is_new in [true, false] {
        passed &= wait_for(driver, true, seconds);
        managed("plugged");
        let mut blocks = Blocks::take(manager, region);
        let dirty = blocks.len - blocks.count(|words| words.iter().all(|word| *word == 0));
        if !is_new {
            log!("virtio-mem test: {dirty} of {} blocks held something", blocks.len);
            passed &= dirty == 0;
        }
        blocks.write();
        let kept = blocks.count(|words| words.iter().all(|word| *word == WRITTEN));
        log!("virtio-mem test: {kept} of {} blocks written", blocks.len);
        passed &= kept == blocks.len && blocks.len > 0;
        blocks.give_back(manager);
        passed &= wait_for(driver, false, seconds);
        managed("unplugged");
    }
    passed && manager.totals().managed_pages == before
}

/// Polls until the host requests some memory, or none, and all of it has been added or removed.
fn wait_for(driver: &mut Driver<'_>, wants_some: bool, seconds: u64) -> bool {
    let came = within(seconds, || {
        let Some(now_ns) = PLATFORM.now_ns() else { return true };
        let progress = driver.work(now_ns, None).0;
        progress.is_some_and(|progress| {
            progress.is_settled() && (progress.requested_bytes > 0) == wants_some
        })
    });
    if !came {
        log!("virtio-mem test: the host's request did not come, or could not be met");
    }
    came
}

/// All 2 MiB blocks of the region that can be allocated, linked through their second words.
struct Blocks {
    first: Option<u64>,
    len: usize,
}

impl Blocks {
    /// Takes all free blocks of the region. Blocks elsewhere are taken meanwhile, and given back.
    fn take(manager: &Manager<GuestPlatform>, region: PhysRange) -> Self {
        let mut inside = Self { first: None, len: 0 };
        let mut outside = Self { first: None, len: 0 };
        if let Some(order) = Order::new(9) {
            let request = Request {
                migrate_type: MigrateType::Movable,
                max_address: PLATFORM.direct_limit(),
                fail_fast: true,
                ..Request::new(order)
            };
            while let Ok(range) = manager.allocate(&request) {
                let block = range.start.address();
                if region.start <= block && block < region.end {
                    inside.push(block);
                } else {
                    outside.push(block);
                }
            }
        }
        outside.give_back(manager);
        inside
    }

    /// Adds a block. The link is the block's second word, which the test does not use.
    fn push(&mut self, block: u64) {
        // SAFETY: the block is this test's, and the direct map maps it.
        unsafe { word(block, 1).write_volatile(self.first.unwrap_or(u64::MAX)) };
        self.first = Some(block);
        self.len += 1;
    }

    fn each(&self, mut work: impl FnMut(u64)) {
        let mut next = self.first;
        while let Some(block) = next {
            // SAFETY: as in `push`. The link is read first, because `work` may give the block away.
            let link = unsafe { word(block, 1).read_volatile() };
            work(block);
            next = Some(link).filter(|&link| link != u64::MAX);
        }
    }

    /// Counts the blocks in which the words of every page satisfy `is_so`.
    fn count(&self, is_so: impl Fn(&[u64; WORDS.len()]) -> bool) -> usize {
        let mut count = 0;
        self.each(|block| {
            let mut pages = (block..block + (512 * PAGE_SIZE)).step_by(4096);
            // SAFETY: as in `push`.
            let words = |page| WORDS.map(|at| unsafe { word(page, at).read_volatile() });
            count += usize::from(pages.all(|page| is_so(&words(page))));
        });
        count
    }

    fn write(&mut self) {
        self.each(|block| {
            for page in (block..block + (512 * PAGE_SIZE)).step_by(4096) {
                for at in WORDS {
                    // SAFETY: as in `push`.
                    unsafe { word(page, at).write_volatile(WRITTEN) };
                }
            }
        });
    }

    fn give_back(self, manager: &Manager<GuestPlatform>) {
        self.each(|block| {
            let first = block / PAGE_SIZE;
            // SAFETY: allocated by this test, which does not use it any more (invariant 42).
            if let Err(error) = unsafe { manager.free(PfnRange::new(first, first + 512)) } {
                log!("virtio-mem test: {error}");
            }
        });
    }
}

/// A word of a page.
fn word(page: u64, at: usize) -> *mut u64 {
    PLATFORM.direct(page).cast::<u64>().as_ptr().wrapping_add(at)
}
