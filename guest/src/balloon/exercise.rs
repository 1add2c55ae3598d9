//! `balloon_test=SECONDS`: runs every part of the driver once, with one line of log each.
//!
//! Memory blocks are written to, the balloon follows the host's target, the device is reset with a
//! report in flight, the blocks are reported, and the balloon follows the target again. Before each
//! time that it follows the target, the guest waits for the host to change it, for at most SECONDS,
//! so that a test outside can examine a quiet machine.

use super::{GuestBalloon, with};
use crate::console::log;
use crate::platform::{GuestPlatform, PLATFORM};
use crate::timekeeping::within;
use framewright::firmware::MemoryMap;
use framewright::platform::Platform;
use framewright::units::{Order, PAGE_SIZE, PfnRange};
use framewright::{Manager, Parameters, Request};
use framewright_balloon::{DeviceFault, ManagedFrames, Progress, Statistic};

/// Most blocks that the test writes to and reports: 256 MiB.
const MOST_BLOCKS: usize = 128;
const BLOCK_ORDER: u8 = 9;
const BLOCK_BYTES: u32 = 2 << 20;
/// How long the device may take for one answer.
const ANSWER_SECONDS: u64 = 20;
const WRITTEN: u64 = 0x5aa5_f00d_0ff0_a55a;

/// Exercises the balloon. Returns false if something is wrong; a missing balloon is not an error.
pub fn test(
    manager: &Manager<GuestPlatform>,
    parameters: &Parameters,
    map: MemoryMap<'_>,
    wait_seconds: u64,
) -> bool {
    let free_before = free_pages(manager);
    let passed = with(manager, parameters, map, |balloon| {
        let Some(balloon) = balloon else { return true };
        let mut frames = ManagedFrames::new(manager);
        let passed = match run(balloon, manager, wait_seconds) {
            Ok(passed) => passed,
            Err(fault) => {
                log!("Balloon test: {fault}");
                false
            }
        };
        // SAFETY: the balloon's frames are all this manager's.
        within(ANSWER_SECONDS, || unsafe { balloon.stop(&mut frames) }) && passed
    });
    let lost_pages = free_before.saturating_sub(free_pages(manager));
    // Page tables that map the device's registers stay allocated.
    let is_whole = lost_pages <= MOST_TABLES && manager.verify().is_ok();
    log!("Balloon test: {}", if passed && is_whole { "passed" } else { "FAILED" });
    passed && is_whole
}

/// Most tables that it takes to map six ranges of registers.
const MOST_TABLES: u64 = 13;

fn run(
    balloon: &mut GuestBalloon,
    manager: &Manager<GuestPlatform>,
    wait_seconds: u64,
) -> Result<bool, DeviceFault> {
    let mut blocks = [0; MOST_BLOCKS];
    let blocks = take_blocks(manager, &mut blocks);
    for &block in &*blocks {
        fill(block);
    }
    // Work once before logging the line that the host waits for.
    let first = work(balloon, manager)?;
    log!("Balloon test: {} blocks of 2 MiB written", blocks.len());
    wait_for_host(balloon, manager, first.target_pages, wait_seconds)?;
    let inflated = follow(balloon, manager)?;
    log!("Balloon test: {} of {} pages in the balloon", inflated.held_pages, inflated.target_pages);

    if balloon.capacity() > 0 {
        reset_under_way(balloon, blocks);
    }
    let reported = report(balloon, blocks)?;
    log!("Balloon test: {reported} blocks reported and answered");
    wait_for_host(balloon, manager, inflated.target_pages, wait_seconds)?;
    let deflated = follow(balloon, manager)?;
    log!("Balloon test: {} of {} pages in the balloon", deflated.held_pages, deflated.target_pages);

    // Reported memory must be as usable as before, whatever it holds now.
    let kept = blocks.iter().filter(|&&block| is_filled(block)).count();
    for &block in &*blocks {
        fill(block);
    }
    let usable = blocks.iter().filter(|&&block| is_filled(block)).count();
    log!(
        "Balloon test: {kept} of {} blocks kept their contents, {usable} can be written to",
        blocks.len()
    );
    let count = blocks.len();
    give_back(manager, blocks);
    let all_reported = reported == count || balloon.capacity() == 0;
    Ok(all_reported && usable == count && !inflated.waiting && !deflated.waiting)
}

/// Takes up to a quarter of the free memory.
fn take_blocks<'a>(
    manager: &Manager<GuestPlatform>,
    room: &'a mut [u64; MOST_BLOCKS],
) -> &'a mut [u64] {
    let quarter = usize::try_from(manager.totals().free_pages / 512 / 4).unwrap_or(MOST_BLOCKS);
    let mut count = 0;
    if let Some(order) = Order::new(BLOCK_ORDER) {
        for slot in room.iter_mut().take(quarter) {
            let Ok(range) = manager.allocate(&Request { fail_fast: true, ..Request::new(order) })
            else {
                break;
            };
            *slot = range.start.address();
            count += 1;
        }
    }
    &mut room[..count]
}

fn give_back(manager: &Manager<GuestPlatform>, blocks: &[u64]) {
    for &block in blocks {
        let first = block / PAGE_SIZE;
        // SAFETY: this test allocated the block, and the device has answered for it (invariants 35
        // and 42).
        if let Err(error) = unsafe { manager.free(PfnRange::new(first, first + 512)) } {
            log!("Balloon test: {error}");
        }
    }
}

/// Resets the device while it has a report in flight.
fn reset_under_way(balloon: &mut GuestBalloon, blocks: &[u64]) {
    let Some(&block) = blocks.first() else { return };
    // SAFETY: `take_blocks` got it from the manager, and nobody accesses it before the reset is
    // complete.
    let submitted = unsafe { balloon.submit(&[(block, BLOCK_BYTES)]) };
    let mut error = None;
    let is_reset = within(ANSWER_SECONDS, || match balloon.try_reset() {
        Ok(is_complete) => is_complete,
        Err(why) => {
            error = Some(why);
            true
        }
    });
    let left = balloon.reports_in_flight();
    match (submitted, error) {
        (Ok(_), None) if is_reset && left == 0 => {
            log!("Balloon test: reset during a report, and started again")
        }
        (submitted, error) => {
            log!("Balloon test: reset: {submitted:?}, {error:?}, {left} reports left")
        }
    }
}

/// Reports all blocks to the host. Returns how many blocks the host has answered for.
fn report(balloon: &mut GuestBalloon, blocks: &[u64]) -> Result<usize, DeviceFault> {
    let capacity = balloon.capacity();
    if capacity == 0 {
        return Ok(0);
    }
    let mut answered = 0;
    let mut ranges = [(0, BLOCK_BYTES); MOST_BLOCKS];
    for batch in blocks.chunks(capacity) {
        for (range, &block) in ranges.iter_mut().zip(batch) {
            range.0 = block;
        }
        // SAFETY: `take_blocks` got the blocks from the manager. Nobody looks at them before this
        // function returns or, if no answer comes, before `stop` resets the device.
        let token = match unsafe { balloon.submit(&ranges[..batch.len()]) } {
            Ok(token) => token,
            Err(error) => {
                log!("Balloon test: {error}");
                return Ok(answered);
            }
        };
        let mut fault = None;
        let came = within(ANSWER_SECONDS, || match balloon.poll() {
            Ok(completion) => completion
                .is_some_and(|completion| completion.token == token && completion.result.is_ok()),
            Err(error) => {
                fault = Some(error);
                true
            }
        });
        if let Some(fault) = fault {
            return Err(fault);
        }
        if !came {
            log!("Balloon test: no answer to a report");
            return Ok(answered);
        }
        answered += batch.len();
    }
    Ok(answered)
}

/// Lets the driver do one step.
fn work(
    balloon: &mut GuestBalloon,
    manager: &Manager<GuestPlatform>,
) -> Result<Progress, DeviceFault> {
    let held_pages = balloon.held_pages();
    let mut answer = |tag| statistics(manager, held_pages, tag);
    // SAFETY: the guest has one manager, and all of the balloon's frames are this manager's.
    unsafe { balloon.work(&mut ManagedFrames::new(manager), &mut answer) }
}

/// Answers one of the host's questions for statistics. The balloon holds `held_pages`, which do not
/// count as the guest's memory, as in Linux.
pub(super) fn statistics(
    manager: &Manager<GuestPlatform>,
    held_pages: u32,
    tag: Statistic,
) -> Option<u64> {
    let totals = manager.totals();
    let bytes = |pages: u64| Some(pages * PAGE_SIZE);
    match tag {
        Statistic::Free | Statistic::Available => bytes(totals.free_pages),
        Statistic::Total => bytes(totals.managed_pages.saturating_sub(held_pages.into())),
        Statistic::Caches => bytes(manager.caches().pages()),
        _ => None,
    }
}

/// Works until the balloon has reached the host's target or can get no further.
fn follow(
    balloon: &mut GuestBalloon,
    manager: &Manager<GuestPlatform>,
) -> Result<Progress, DeviceFault> {
    let mut latest = work(balloon, manager)?;
    let mut fault = None;
    within(ANSWER_SECONDS, || match work(balloon, manager) {
        Ok(progress) => {
            latest = progress;
            progress.short || !progress.waiting && progress.held_pages == progress.goal_pages
        }
        Err(error) => {
            fault = Some(error);
            true
        }
    });
    fault.map_or(Ok(latest), Err)
}

/// Answers the host's questions until it changes its target.
fn wait_for_host(
    balloon: &mut GuestBalloon,
    manager: &Manager<GuestPlatform>,
    target_pages: u32,
    seconds: u64,
) -> Result<(), DeviceFault> {
    let mut fault = None;
    within(seconds, || match balloon.target_pages() {
        Ok(target) if target != target_pages => true,
        Ok(_) => {
            // While the target stays the same, `work` only has to answer for statistics.
            fault = work(balloon, manager).err();
            fault.is_some()
        }
        Err(error) => {
            fault = Some(error);
            true
        }
    });
    fault.map_or(Ok(()), Err)
}

fn free_pages(manager: &Manager<GuestPlatform>) -> u64 {
    manager.totals().free_pages + manager.caches().pages()
}

/// The words of a block.
fn words(block: u64) -> impl Iterator<Item = *mut u64> {
    let first = PLATFORM.direct(block).cast::<u64>().as_ptr();
    (0..BLOCK_BYTES as usize / 8).map(move |index| first.wrapping_add(index))
}

fn fill(block: u64) {
    for (word, number) in words(block).zip(0u64..) {
        // SAFETY: the block is this test's, and the direct map maps it.
        unsafe { word.write_volatile(WRITTEN ^ number) };
    }
}

fn is_filled(block: u64) -> bool {
    // SAFETY: as in `fill`. Memory that the host has discarded reads as zeros.
    words(block)
        .zip(0u64..)
        .all(|(word, number)| unsafe { word.read_volatile() } == WRITTEN ^ number)
}
