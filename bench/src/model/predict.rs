//! The model itself: pure functions of costs and of a machine's shape. The functions that divide
//! work are those that the library itself uses.

use super::costs::{Costs, Rate};
use super::shape::{Node, Shape};
use framewright::hugetlb::{PoolSize, resize_threads};
use framewright::units::{Order, PAGES_PER_BLOCK};
use framewright_jobs::plan::{Grid, chunk_units, threads_wanted};

/// The size of a page's descriptor.
const DESCRIPTOR_BYTES: f64 = 64.0;
/// The size of the part of the map for 2 MiB.
const BLOCK_MAP_BYTES: f64 = PAGES_PER_BLOCK as f64 * DESCRIPTOR_BYTES;
/// The zones of the smallest machine that calibrates the model.
const SMALLEST_ZONES: f64 = 2.0;
/// The pages of a section.
pub const SECTION_PAGES: u64 = 1 << 15;

/// How a job is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    /// The number of threads, the caller included.
    pub threads: u32,
    /// The number of sections in a chunk.
    pub chunk_sections: u64,
}

/// What happens to the memory map of pages in a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maps {
    /// It is kept, or there is none.
    Kept,
    /// It is given up, and not restored.
    Lazy,
    /// It is given up, and restored when the pool is emptied.
    Eager,
}

impl Maps {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Kept, Self::Lazy, Self::Eager];

    /// The name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kept => "HVO off",
            Self::Lazy => "HVO on, lazy",
            Self::Eager => "HVO on, eager",
        }
    }
}

/// The time until all memory is available, on demand, in nanoseconds.
pub fn bring_up(costs: &Costs, shape: &Shape) -> f64 {
    let gib = shape.present_bytes as f64 / f64::from(1 << 30);
    let further_zones = f64::from(shape.zones) - SMALLEST_ZONES;
    let of_nodes = match shape.nodes.len() {
        0 | 1 => 0.0,
        nodes => costs.nodes.of((nodes - 1) as f64),
    };
    let further_cpus = f64::from(shape.cpus.saturating_sub(1)) * f64::from(shape.zones);
    costs.bring_up.of(gib)
        + costs.zone_ns * further_zones
        + of_nodes
        + costs.cpu_zone_ns * further_cpus
}

/// The time to write one page's descriptor, with its share of handing out its section, while
/// `threads` threads do so at the same time.
fn page_ns(costs: &Costs, threads: f64) -> f64 {
    let rate = costs.write.of(threads) / threads;
    DESCRIPTOR_BYTES / rate * 1e9 + costs.section_ns / SECTION_PAGES as f64
}

/// How the job of a node is divided if it may have `most` threads (as in
/// `Vmemmap::initialise_deferred`: chunks of at least one section).
pub fn division(node: &Node, most: u32) -> Division {
    let sections = node.sections();
    let threads = threads_wanted(sections, 1, 1, most);
    Division { threads, chunk_sections: chunk_units(sections, threads, 1, 1) }
}

/// The time of one node's job, in nanoseconds, while `others` threads of other jobs work on the
/// same memory.
///
/// Threads take chunk after chunk. The speed of each depends on how many are at work at that
/// moment.
pub fn node_job(costs: &Costs, node: &Node, most: u32, others: f64) -> f64 {
    if node.deferred.is_empty() {
        return 0.0;
    }
    let Division { threads, chunk_sections } = division(node, most);
    let grid =
        Grid::new(u64::from(node.deferred.start)..u64::from(node.deferred.end), chunk_sections);
    let chunks = (0..grid.count()).filter_map(|index| grid.piece(index));
    let mut chunks = chunks.map(|chunk| {
        node.pages_within(chunk.start * SECTION_PAGES..chunk.end * SECTION_PAGES) as f64
    });
    // The caller begins at once, its helpers some time later, with the share of a CPU that they
    // get.
    let share = |thread: usize| if thread == 0 { 1.0 } else { costs.helper_share };
    let mut left: Vec<Option<f64>> =
        vec![None; if costs.helper_share > 0.0 { threads as usize } else { 1 }];
    let mut now = 0.0;
    let mut helpers_came = left.len() == 1;
    loop {
        let present = if helpers_came { left.len() } else { 1 };
        for thread in &mut left[..present] {
            *thread = thread.or_else(|| chunks.next());
        }
        let at_work = |(thread, pages): (usize, &Option<f64>)| pages.map(|pages| (thread, pages));
        let busy: f64 =
            left.iter().enumerate().filter_map(at_work).map(|(thread, _)| share(thread)).sum();
        if busy == 0.0 {
            return now;
        }
        let each_ns = page_ns(costs, busy + others);
        // The step lasts until the first thread finishes its chunk, or the helpers begin.
        let ends = left
            .iter()
            .enumerate()
            .filter_map(at_work)
            .map(|(thread, pages)| pages * each_ns / share(thread));
        let mut step = ends.fold(f64::INFINITY, f64::min);
        if !helpers_came && now + step >= costs.helper_ns {
            (step, helpers_came) = (costs.helper_ns - now, true);
        }
        now += step;
        for (thread, pages) in left.iter_mut().enumerate() {
            let done = step * share(thread) / each_ns;
            // Less than a thousandth of a page counts as nothing.
            *pages = pages.map(|pages| pages - done).filter(|&pages| pages > 1e-3);
        }
    }
}

/// The time until all memory is available, deferred: what the boot CPU does first, and then the
/// slowest node. Each node has memory of its own unless `shared`.
pub fn deferred(costs: &Costs, shape: &Shape, most: impl Fn(&Node) -> u32, shared: bool) -> f64 {
    let threads = |node: &Node| {
        if node.deferred.is_empty() {
            0.0
        } else {
            effective(costs, division(node, most(node)).threads)
        }
    };
    let all: f64 = shape.nodes.iter().map(threads).sum();
    let job = |node: &Node| {
        node_job(costs, node, most(node), if shared { all - threads(node) } else { 0.0 })
    };
    let slowest = shape.nodes.iter().map(job).fold(0.0, f64::max);
    let early_pages = shape.pages() - shape.nodes.iter().map(Node::deferred_pages).sum::<u64>();
    // Starting the node jobs is a job of its own, with a helper for each further node.
    let others = if shape.nodes.iter().filter(|node| !node.deferred.is_empty()).count() > 1 {
        costs.helper_ns
    } else {
        0.0
    };
    bring_up(costs, shape) + early_pages as f64 * page_ns(costs, 1.0) + others + slowest
}

/// The number of whole CPUs that so many threads amount to, as helpers get only a share of theirs.
fn effective(costs: &Costs, threads: u32) -> f64 {
    1.0 + f64::from(threads.saturating_sub(1)) * costs.helper_share
}

/// The time until all memory is available, eager: one CPU writes everything.
pub fn eager(costs: &Costs, shape: &Shape) -> f64 {
    bring_up(costs, shape) + shape.pages() as f64 * page_ns(costs, 1.0)
}

/// The time of one flush of all CPUs.
pub fn flush(costs: &Costs, cpus: u32) -> f64 {
    costs.flush.of(f64::from(cpus.saturating_sub(1)))
}

/// The number of flushes for giving up the map of so many blocks: one, as nearly all blocks lie in
/// whole sections.
pub fn flushes(blocks: u64) -> u64 {
    blocks.min(1)
}

/// Resizing a pool from or to zero.
#[derive(Clone, Copy, Debug)]
pub struct Resize {
    /// Which pool.
    pub size: PoolSize,
    /// The number of pages that come or go.
    pub pages: u64,
    /// What happens to the pages' map.
    pub maps: Maps,
    /// The most threads.
    pub most: u32,
    /// The CPUs whose translations are flushed.
    pub cpus: u32,
    /// The nodes from which pages come.
    pub nodes: u32,
}

impl Resize {
    fn blocks(&self) -> u64 {
        self.pages * (self.size.frames() / Order::BLOCK.pages())
    }

    /// The number of threads that fill the pool.
    pub fn fill_threads(&self) -> u32 {
        resize_threads(self.size, self.pages, self.nodes, false, self.most)
    }

    /// The number of threads that empty the pool: more if the map is restored.
    pub fn empty_threads(&self) -> u32 {
        resize_threads(self.size, self.pages, self.nodes, self.maps == Maps::Eager, self.most)
    }

    /// The time that the system or the memory needs for the map, plus the time that `threads` CPUs
    /// need for each block, in nanoseconds.
    fn maps_ns(&self, costs: &Costs, threads: u32, rate: Rate, block_ns: f64) -> f64 {
        let (blocks, threads) = (self.blocks() as f64, effective(costs, threads));
        // A helper begins late, and the other threads do what it would have done until then.
        let late = costs.helper_ns * (threads - 1.0) / threads;
        blocks * BLOCK_MAP_BYTES / rate.of(threads) * 1e9 + blocks * block_ns / threads + late
    }

    /// The time to fill the pool, in nanoseconds.
    pub fn fill(&self, costs: &Costs) -> f64 {
        let line = if self.size.is_gigantic() { costs.fill_one_gib } else { costs.fill_two_mib };
        let pages = line.of(self.pages as f64);
        if self.maps == Maps::Kept {
            return pages;
        }
        pages
            + self.maps_ns(costs, self.fill_threads(), costs.release, costs.withdraw_ns)
            + flushes(self.blocks()) as f64 * flush(costs, self.cpus)
    }

    /// The time to empty the pool, in nanoseconds.
    pub fn empty(&self, costs: &Costs) -> f64 {
        let line = if self.size.is_gigantic() { costs.empty_one_gib } else { costs.empty_two_mib };
        let leave = if self.size.is_gigantic() { costs.leave_one_gib } else { costs.leave_two_mib };
        let pages = self.pages as f64;
        match self.maps {
            Maps::Kept => line.of(pages),
            Maps::Lazy => leave.of(pages),
            Maps::Eager => {
                line.of(pages)
                    + self.maps_ns(costs, self.empty_threads(), costs.supply, costs.restore_ns)
            }
        }
    }
}

#[cfg(test)]
mod tests;
