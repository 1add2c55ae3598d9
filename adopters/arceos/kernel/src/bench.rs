//! The benchmark: one line for each row, in ticks of the time stamp counter, which are instructions
//! under QEMU's `-icount shift=0`.

use axalloc::{GlobalAllocator, UsageKind, global_allocator};
use axallocator::{BaseAllocator, BitmapPageAllocator};
use axstd::boxed::Box;
use axstd::println;
use axstd::vec::Vec;
use core::arch::x86_64::_rdtsc;
use core::hint::black_box;

const PAGE_SIZE: usize = 4096;
const ROUNDS: usize = 1000;
const BULK: usize = 4000;
/// Runs of 2 MiB. This many fit into the smaller machine's 256 MiB beside everything else.
const BLOCKS: usize = 60;
/// Pages of the part of memory that is fragmented.
const PIECES: usize = 40 * 512;
/// Pages of the allocator whose start is measured.
const OTHER_PAGES: usize = 64 * 256;

/// Reads the clock.
pub fn ticks() -> u64 {
    // SAFETY: x86-64 has the instruction.
    unsafe { _rdtsc() }
}

fn pages() -> &'static GlobalAllocator {
    black_box(global_allocator())
}

fn take(count: usize, align: usize) -> Option<usize> {
    pages().alloc_pages(count, align * PAGE_SIZE, UsageKind::Global).ok()
}

fn give(start: usize, count: usize) {
    pages().dealloc_pages(start, count, UsageKind::Global);
}

fn row(name: &str, ticks: u64, times: usize) {
    println!("bench {} {}", name, ticks / times.max(1) as u64);
}

/// Allocates a run and frees it at once, many times.
fn pair(name: &str, count: usize, align: usize) {
    let once = || take(count, align).map(|start| give(start, count));
    for _ in 0..ROUNDS / 10 {
        once();
    }
    let began = ticks();
    let done = (0..ROUNDS).map_while(|_| once()).count();
    row(name, ticks() - began, done);
    if done != ROUNDS {
        println!("failed {name} after {done}");
    }
}

/// Takes up to `most` runs.
fn take_many(held: &mut Vec<usize>, count: usize, align: usize, most: usize) {
    held.extend((0..most).map_while(|_| take(count, align)));
}

fn give_many(held: &mut Vec<usize>, count: usize) {
    held.drain(..).for_each(|start| give(start, count));
}

/// Shuffles in the same pseudorandom order each time.
fn shuffle(held: &mut [usize]) {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for index in (1..held.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        held.swap(index, (seed >> 33) as usize % (index + 1));
    }
}

/// Takes a number of runs, then gives all back. Fewer runs are a different measurement, so that is
/// reported as a failure; with no runs at all a row would be close to 0.
fn many(names: [&str; 2], held: &mut Vec<usize>, size: [usize; 3], order: fn(&mut [usize])) {
    let [pages, align, most] = size;
    let began = ticks();
    take_many(held, pages, align, most);
    let (took, len) = (ticks() - began, held.len());
    if len != most {
        println!("failed {} after {len}", names[1]);
    }
    order(held);
    let began = ticks();
    give_many(held, pages);
    let gave = ticks() - began;
    if !names[0].is_empty() {
        row(names[0], took, len);
    }
    row(names[1], gave, len);
}

/// Returns the most pages that can be allocated in one run.
fn largest_run() -> usize {
    let fits = |count| take(count, 1).map(|start| give(start, count)).is_some();
    (0..=18).rev().map(|order| 1 << order).find(|&count| fits(count)).unwrap_or(0)
}

/// Measures when the only free memory is runs of four pages with four used pages between them.
fn fragmented(blocks: &mut Vec<usize>, held: &mut Vec<usize>) {
    take_many(blocks, 512, 512, blocks.capacity());
    let kept = blocks.len().saturating_sub(PIECES / 512);
    blocks.drain(kept..).for_each(|start| give(start, 512));
    take_many(held, 1, 1, PIECES);
    held.retain(|&start| {
        let stays = start / PAGE_SIZE % 8 >= 4;
        if !stays {
            give(start, 1);
        }
        stays
    });
    pair("fragmented-1", 1, 1);
    pair("fragmented-3", 3, 1);
    give_many(held, 1);
    give_many(blocks, 512);
}

/// Measures how long an allocator of the kind that ArceOS starts with takes to start.
fn start() {
    let Some(memory) = take(OTHER_PAGES, 1) else { return println!("failed start") };
    let mut other = Box::new(BitmapPageAllocator::<PAGE_SIZE>::new());
    let began = ticks();
    black_box(&mut *other).init(memory, OTHER_PAGES * PAGE_SIZE);
    row("start", ticks() - began, 1);
    drop(other);
    give(memory, OTHER_PAGES);
}

/// Runs the whole benchmark.
pub fn run() {
    let (mut held, mut blocks) = (Vec::with_capacity(PIECES), Vec::with_capacity(2048));
    let mut few = Vec::with_capacity(BLOCKS);
    start();
    let before = global_allocator().used_pages();
    println!("run {}", largest_run());
    pair("pair", 1, 1);
    many(["bulk-allocate", "bulk-free"], &mut held, [1, 1, BULK], |_| {});
    many(["", "random-free"], &mut held, [1, 1, BULK], shuffle);
    pair("2m-pair", 512, 512);
    many(["2m-allocate", "2m-free"], &mut few, [512, 512, BLOCKS], |_| {});
    pair("3", 3, 1);
    pair("280", 280, 1);
    fragmented(&mut blocks, &mut held);
    println!("run-after {}", largest_run());
    println!("lost {}", global_allocator().used_pages().abs_diff(before));
}
