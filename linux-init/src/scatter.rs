//! Scatters free memory in single pages at random places, as months of use leave it.
//!
//! Memory is filled with movable pages until 3 % of it are free, or 1 % more than the kernel itself
//! would keep free (its high watermarks). Then random pages are freed until the wanted part is in
//! use. Each further round fills the gaps and frees other pages. The mapping stays until the
//! process ends.

use crate::commands::summed;
use crate::say;
use crate::system::{self, ENOENT, EPERM, Errno, Mapping, PAGE_BYTES, Pages};
use core::mem::ManuallyDrop;

const MEMINFO: &str = "/proc/meminfo";
/// The percentage of memory that stays free while memory is filled, and that stays above the
/// watermarks.
const LEFT_FREE: u64 = 3;
const ABOVE: u64 = 1;
/// The pages that one page table maps; the table takes memory, too.
const PAGES_OF_A_TABLE: u64 = 512;

/// Leaves `percent` of memory in use. Prints `@scatter MAPPED GIVEN_BACK LEFT`, in pages.
pub fn run(percent: u64, rounds: u64, seed: u64) -> Result<(), Errno> {
    // On a machine that others use, this would leave them no memory.
    if system::pid() != 1 {
        return Err(EPERM);
    }
    let pages = |word| summed(MEMINFO, word).map(|kib| kib / (PAGE_BYTES as u64 >> 10));
    let (all, free) = (pages("MemTotal:")?, pages("MemFree:")?);
    let watermarks = summed("/proc/zoneinfo", "high")?;
    let left = (all * LEFT_FREE / 100).max(watermarks + all * ABOVE / 100);
    let mapped = free.saturating_sub(left);
    let mapped = mapped - mapped / PAGES_OF_A_TABLE;
    // The surplus is then freed at random.
    let surplus = (all - all * percent.min(100) / 100).saturating_sub(left);
    let bytes = usize::try_from(mapped).map_err(|_| ENOENT)? * PAGE_BYTES;
    let mut memory = ManuallyDrop::new(Mapping::new(bytes, Pages::Base)?);
    let mut given_back = 0;
    for round in 0..rounds.max(1) {
        memory.touch();
        given_back = 0;
        for page in 0..memory.pages() {
            if chance(seed, round, page as u64) % mapped.max(1) < surplus {
                memory.discard(page)?;
                given_back += 1;
            }
        }
    }
    say!("@scatter {mapped} {given_back} {left}");
    Ok(())
}

/// A number for a page in a round that looks random (splitmix64).
fn chance(seed: u64, round: u64, page: u64) -> u64 {
    let state = (seed << 48) ^ (round << 40) ^ page;
    let mixed = state.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
