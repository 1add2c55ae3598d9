//! The benchmark: one line for each row, in ticks of the time stamp counter, which are instructions
//! under QEMU's `-icount shift=0`.

use crate::frames::{ADDITION_TICKS, FIRST_TICKS, NAME, UNDER_TEST};
use alloc::vec::Vec;
use core::alloc::Layout;
use core::hint::black_box;
use core::sync::atomic::Ordering::Relaxed;
use ostd::arch::read_tsc;
use ostd::early_println;
use ostd::mm::{PAGE_SIZE, Paddr, frame::GlobalFrameAllocator};
use ostd::power::{ExitCode, poweroff};

const ROUNDS: usize = 1000;
const BULK: usize = 4000;
/// Pages of the part of memory that is fragmented.
const PIECES: usize = 40 * 512;

fn layout(pages: usize, align_pages: usize) -> Layout {
    let align = align_pages * PAGE_SIZE;
    Layout::from_size_align(pages * PAGE_SIZE, align).expect("a size and a power of two")
}

fn allocator() -> &'static dyn GlobalFrameAllocator {
    black_box(&UNDER_TEST)
}

fn row(name: &str, ticks: u64, times: usize) {
    early_println!("bench {} {}", name, ticks / times.max(1) as u64);
}

/// Allocates a run and frees it at once, many times.
fn pair(name: &str, layout: Layout) {
    let frames = allocator();
    let once = || {
        let start = frames.alloc(layout)?;
        frames.dealloc(start, layout.size());
        Some(())
    };
    for _ in 0..ROUNDS / 10 {
        once();
    }
    let began = read_tsc();
    let done = (0..ROUNDS).map_while(|_| once()).count();
    row(name, read_tsc() - began, done);
    if done != ROUNDS {
        early_println!("failed {} after {}", name, done);
    }
}

fn take(held: &mut Vec<Paddr>, layout: Layout, most: usize) {
    let frames = allocator();
    while held.len() < most {
        let Some(start) = frames.alloc(layout) else { break };
        held.push(start);
    }
}

fn give_back(held: &mut Vec<Paddr>, layout: Layout) {
    for start in held.drain(..) {
        allocator().dealloc(start, layout.size());
    }
}

/// Shuffles in the same pseudorandom order each time.
fn shuffle(held: &mut [Paddr]) {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for index in (1..held.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        held.swap(index, (seed >> 33) as usize % (index + 1));
    }
}

/// Takes a number of runs, then gives all back. Fewer runs are a different measurement, so that is
/// reported as a failure; with no runs at all a row would be close to 0.
fn many(names: [&str; 2], layout: Layout, count: usize, order: fn(&mut [Paddr])) {
    let mut held = Vec::with_capacity(count);
    let began = read_tsc();
    take(&mut held, layout, count);
    let (took, len) = (read_tsc() - began, held.len());
    if len != count {
        early_println!("failed {} after {}", names[1], len);
    }
    order(&mut held);
    let began = read_tsc();
    give_back(&mut held, layout);
    let freed = read_tsc() - began;
    if !names[0].is_empty() {
        row(names[0], took, len);
    }
    row(names[1], freed, len);
}

/// Returns the most pages that can be allocated in one run.
fn largest_run() -> usize {
    let frames = allocator();
    let fits = |pages| {
        let start = frames.alloc(layout(pages, 1));
        start.is_some_and(|start| {
            frames.dealloc(start, pages * PAGE_SIZE);
            true
        })
    };
    (0..=18).rev().map(|order| 1 << order).find(|&pages| fits(pages)).unwrap_or(0)
}

/// Measures when the only free memory is runs of four pages with four used pages between them.
fn fragmented() {
    let (one, block) = (layout(1, 1), layout(512, 512));
    let (mut blocks, mut held) = (Vec::with_capacity(8192), Vec::with_capacity(PIECES));
    take(&mut blocks, block, 8192);
    let spare = blocks.split_off(blocks.len().saturating_sub(PIECES / 512));
    spare.iter().for_each(|&start| allocator().dealloc(start, block.size()));
    take(&mut held, one, PIECES);
    held.retain(|&start| {
        let stays = start / PAGE_SIZE % 8 >= 4;
        if !stays {
            allocator().dealloc(start, PAGE_SIZE);
        }
        stays
    });
    pair("fragmented-1", one);
    pair("fragmented-3", layout(3, 1));
    give_back(&mut held, one);
    give_back(&mut blocks, block);
}

#[ostd::main]
fn main() {
    early_println!("allocator {}", NAME);
    row("start", ADDITION_TICKS.load(Relaxed) + FIRST_TICKS.load(Relaxed), 1);
    row("start-additions", ADDITION_TICKS.load(Relaxed), 1);
    early_println!("run {}", largest_run());
    let one = layout(1, 1);
    pair("pair", one);
    many(["bulk-allocate", "bulk-free"], one, BULK, |_| {});
    many(["", "random-free"], one, BULK, shuffle);
    pair("2m-pair", layout(512, 512));
    many(["2m-allocate", "2m-free"], layout(512, 512), 100, |_| {});
    pair("3", layout(3, 1));
    pair("280", layout(280, 1));
    fragmented();
    early_println!("run-after {}", largest_run());
    #[cfg(feature = "framewright")]
    {
        early_println!("lost {}", UNDER_TEST.frames().lost_pages());
        let checked = UNDER_TEST.frames().get().map(|manager| manager.verify());
        if !matches!(checked, Some(Ok(_))) {
            early_println!("failed {:?}", checked);
        }
    }
    early_println!("end");
    poweroff(ExitCode::Success);
}
