//! Grows and shrinks a pool (Linux: `mm/hugetlb.c`, `set_max_huge_pages`).
//!
//! The pages to add or remove are dealt out over the nodes in advance, as if one page at a time in
//! turn. Then each node's share is one part of a job, so that several threads work on nodes of
//! their own. A chunk is taken from the zones unseen by others and then published under one hold of
//! the lock. For few pages no job is made.

use crate::hugetlb::{
    Accounting, BLOCKS_OF_A_THREAD_WITH_MAPS, PoolError, Shares, Taken, resize_threads,
};
use crate::manager::hugetlb::pool::Pool;
use crate::manager::job;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{MAX_NODES, NodeId, NodeMask, PAGES_PER_BLOCK, PoolSize};
use core::fmt;
use core::ops::Range;
use framewright_jobs::{Helpers, Job, MAX_PARTS, Part};

/// The most pages that are published together.
const PAGES_AT_ONCE: u64 = 16384;
/// How many pages are counted off a list under one hold of the lock: each is a cache miss if the
/// list is shuffled.
pub(super) const PAGES_OF_A_HOLD: u64 = 256;
/// The width of a page's number in a node's part of a job, as a power of two; no node has so many
/// pages.
const PART_SHIFT: u32 = 40;

/// Whether a resize adds or removes pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Grow,
    Shrink,
}

/// The result of a resize. It is no error if a pool could not grow as far as was asked: its target
/// is then what it reached (Linux: `mm/hugetlb.c`, `set_max_huge_pages`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resized {
    /// The pool's page size.
    pub size: PoolSize,
    /// The persistent pages that were asked for, over all nodes.
    pub wanted: u64,
    /// The persistent pages that the pool has.
    pub reached: u64,
}

impl Resized {
    /// Returns whether there was too little memory.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.reached < self.wanted
    }
}

/// Formats Linux's warning at boot.
impl fmt::Display for Resized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, wanted, reached } = self;
        if self.is_short() {
            write!(
                f,
                "HugeTLB: allocating {wanted} of page size {size} failed.  Only allocated \
                 {reached} hugepages."
            )
        } else {
            write!(f, "HugeTLB: {reached} pages of page size {size}")
        }
    }
}

impl<P: Platform> Pool<'_, P> {
    /// Writes `nr_hugepages`: sets how many persistent pages the pool is to have. To grow, the pool
    /// first makes surplus pages persistent and then takes memory from all nodes in turn. To
    /// shrink, it gives up free pages that are not reserved, including surplus ones; if pages in
    /// use are still in excess, that many become surplus, which leave the pool when they are freed.
    ///
    /// `helpers` may take part ([`NoHelpers`](framewright_jobs::NoHelpers) for none). May take
    /// long, and waits for other resizes where the platform tells tasks apart.
    ///
    /// # Errors
    /// [`PoolError::Busy`]. Too little memory is no error, see [`Resized`].
    pub fn resize<H: Helpers + ?Sized>(
        &self,
        pages: u64,
        helpers: &H,
    ) -> Result<Resized, PoolError> {
        self.resize_within(pages, NodeMask::ALL, helpers)
    }

    /// Writes `nr_hugepages_mempolicy`: does [`resize`](Self::resize), but adds and removes pages
    /// only on these nodes.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn resize_within<H: Helpers + ?Sized>(
        &self,
        pages: u64,
        nodes: NodeMask,
        helpers: &H,
    ) -> Result<Resized, PoolError> {
        let _resizing = self.manager.hugetlb().start_resizing()?;
        Ok(self.resize_locked(pages, nodes, &helpers, u32::MAX))
    }

    /// Writes a node's `nr_hugepages`: sets how many persistent pages the node is to have.
    ///
    /// # Errors
    /// As [`resize`](Self::resize), and [`PoolError::NoNode`].
    pub fn resize_node<H: Helpers + ?Sized>(
        &self,
        node: NodeId,
        pages: u64,
        helpers: &H,
    ) -> Result<Resized, PoolError> {
        self.existing(node)?;
        let _resizing = self.manager.hugetlb().start_resizing()?;
        // The pages of other nodes count as wanted.
        let others = {
            let accounting = self.accounting();
            accounting.counts(self.size).all.persistent()
                - accounting.node(self.size, node).persistent()
        };
        let pages = pages.saturating_add(others);
        Ok(self.resize_locked(pages, NodeMask::only(node), &helpers, u32::MAX))
    }

    /// Does the work of a resize. The caller is the only one that resizes.
    pub(super) fn resize_locked(
        &self,
        count: u64,
        nodes: NodeMask,
        helpers: &dyn Helpers,
        threads: u32,
    ) -> Resized {
        let size = self.size;
        let missing = {
            let mut accounting = self.accounting();
            accounting.keep_surplus(size, nodes, count);
            count.saturating_sub(accounting.counts(size).all.persistent())
        };
        if missing != 0 {
            self.grow_pool(missing, nodes, helpers, threads);
        } else {
            self.shrink_pool(count, nodes, helpers, threads);
            // Pages that were reserved when they became surplus may be free and unreserved now.
            self.cancel_reservation(0, u64::MAX, nodes);
        }
        let mut accounting = self.accounting();
        let counts = accounting.counts_mut(size);
        counts.target = counts.all.persistent();
        Resized { size, wanted: count, reached: counts.target }
    }

    /// Adds up to `missing` pages.
    fn grow_pool(&self, missing: u64, nodes: NodeMask, helpers: &dyn Helpers, threads: u32) {
        let size = self.size;
        let all = self.manager.hugetlb().nodes_with_memory(nodes);
        let mut open = all;
        let mut left = missing;
        let mut returned = 0;
        while left != 0 && !open.is_empty() {
            let room = |node| self.managed_on(node) / size.frames();
            let shares = self.accounting().deal_growth(size, left, open, &room);
            let (got, returned_now) = self.add_shares(&shares, helpers, threads);
            for node in open.nodes() {
                let share = shares[node.index()];
                // A node without any room is never dealt a page.
                if got.of(node) < share || room(node) == 0 {
                    open = open.without(node);
                }
            }
            left = left.saturating_sub(got.sum());
            returned += returned_now;
            if open.is_empty() && returned != 0 {
                // The memory of descriptors that were given up may make further pages.
                returned = 0;
                open = all;
            }
        }
        // No node has available memory left: now use all means against a shortage, as long as they
        // help.
        for node in all.nodes() {
            left -= self.add_hard(node, left);
        }
    }

    /// Adds given numbers of pages to nodes, as far as these have them. The caller is the only one
    /// that resizes.
    pub(super) fn fill_shares(&self, shares: &Shares, helpers: &dyn Helpers, threads: u32) {
        let size = self.size;
        let with_memory = self.manager.hugetlb().nodes_with_memory(NodeMask::ALL);
        let shares = core::array::from_fn(|index| {
            let node = NodeId::new(index).filter(|&node| with_memory.contains(node));
            node.map_or(0, |node| shares[index].min(self.managed_on(node) / size.frames()))
        });
        let (got, _) = self.add_shares(&shares, helpers, threads);
        for node in with_memory.nodes() {
            self.add_hard(node, shares[node.index()].saturating_sub(got.of(node)));
        }
        let mut accounting = self.accounting();
        let counts = accounting.counts_mut(size);
        counts.target = counts.all.persistent();
    }

    /// Adds each node's share as far as memory is available. Returns how many pages were added, and
    /// how many frames their descriptors gave back.
    fn add_shares(&self, shares: &Shares, helpers: &dyn Helpers, threads: u32) -> (Tallies, u64) {
        let got = Tallies::new();
        let returned = AtomicU64::new(0);
        self.work(shares, helpers, threads, Direction::Grow, &|node, range| {
            let most = range.end - range.start;
            let mut done = 0;
            while done < most {
                let taken = self.take_pages(node, (most - done).min(PAGES_AT_ONCE));
                let pages = taken.pages();
                if pages == 0 {
                    break;
                }
                // Relaxed: read after the job has ended.
                returned.fetch_add(self.publish_pages(node, &taken), Ordering::Relaxed);
                done += pages;
            }
            got.add(node, done);
        });
        (got, returned.into_inner())
    }

    /// Adds up to `most` pages of a node, with all means against a shortage; returns how many.
    fn add_hard(&self, node: NodeId, most: u64) -> u64 {
        let mut added = 0;
        while added < most {
            let taken = self.take_hard(node, (most - added).min(PAGES_AT_ONCE));
            let pages = taken.pages();
            if pages == 0 {
                break;
            }
            self.publish_pages(node, &taken);
            added += pages;
        }
        added
    }

    /// Takes free pages out and makes the rest of the excess surplus.
    fn shrink_pool(&self, count: u64, nodes: NodeMask, helpers: &dyn Helpers, threads: u32) {
        let size = self.size;
        let nodes = self.manager.hugetlb().nodes_with_memory(nodes);
        loop {
            let shares = {
                let mut accounting = self.accounting();
                let most = accounting.removable(size, count);
                let shares = accounting
                    .deal_removal(size, most, nodes, |counts| counts.free.min(counts.persistent()));
                if shares.iter().all(|&share| share == 0) {
                    accounting.make_surplus(size, nodes, count);
                    return;
                }
                shares
            };
            self.work(&shares, helpers, threads, Direction::Shrink, &|node, range| {
                let mut left = range.end - range.start;
                while left != 0 {
                    let taken = self.remove_pages(node, count, left);
                    let pages = taken.pages();
                    if pages == 0 {
                        // Others have taken or reserved them.
                        break;
                    }
                    self.give_back(&taken);
                    left -= pages;
                }
            });
        }
    }

    /// Takes free pages of a node out of the pool for a resize to `count`: up to `most`, or as many
    /// as are handled together.
    fn remove_pages(&self, node: NodeId, count: u64, most: u64) -> Taken {
        let size = self.size;
        let mut taken = Taken::NONE;
        while taken.pages() < most.min(PAGES_AT_ONCE) {
            let mut accounting = self.accounting();
            let reach = self.within_reach(&mut accounting, node, &taken);
            let wanted = (most - taken.pages()).min(accounting.removable(size, count)).min(reach);
            // If all pages of a node go, they come off at once. A part has to be counted off link
            // by link with the lock held. And if descriptors are restored, pages that were given
            // back provide memory for the rest.
            let is_whole = wanted >= reach && !self.is_much_for_vmemmap(Direction::Shrink);
            let most = if is_whole { wanted } else { wanted.min(PAGES_OF_A_HOLD) };
            let pages = accounting.drop_free(size, node, count, most);
            if pages == 0 {
                break;
            }
            self.take_off(&mut accounting, node, pages, &mut taken);
        }
        taken
    }

    /// Returns how many free pages of a node [`take_off`](Self::take_off) can take.
    pub(super) fn within_reach(
        &self,
        accounting: &mut Accounting,
        node: NodeId,
        taken: &Taken,
    ) -> u64 {
        let mut room = taken.room();
        let mut reach = |(slot, _)| {
            let pages = accounting.list(self.size, slot).pages();
            let is_known = taken.lists().any(|(of, _)| of == slot);
            if pages == 0 || !is_known && room == 0 {
                return 0;
            }
            room -= usize::from(!is_known);
            pages
        };
        self.manager.hugetlb().node_zones(node).map(&mut reach).sum()
    }

    /// Takes `pages` free pages of a node off its lists, which have that many [within
    /// reach](Self::within_reach).
    pub(super) fn take_off(
        &self,
        accounting: &mut Accounting,
        node: NodeId,
        pages: u64,
        taken: &mut Taken,
    ) {
        let size = self.size;
        let mut left = pages;
        for (slot, zone) in self.manager.hugetlb().node_zones(node) {
            if left == 0 || accounting.list(size, slot).pages() == 0 {
                continue;
            }
            let Some(taken) = taken.list(slot) else { continue };
            let list = accounting.list(size, slot).take(zone.table(), left);
            left -= list.pages();
            taken.append(zone.table(), list);
        }
    }

    pub(super) fn managed_on(&self, node: NodeId) -> u64 {
        self.manager.hugetlb().node_zones(node).map(|(_, zone)| zone.final_managed_pages()).sum()
    }

    /// Calls `part` until all shares are done, with several threads if that pays.
    fn work(
        &self,
        shares: &Shares,
        helpers: &dyn Helpers,
        threads: u32,
        direction: Direction,
        part: &(dyn Fn(NodeId, Range<u64>) + Sync),
    ) {
        let size = self.size;
        let nodes = || NodeMask::ALL.nodes().filter(|node| shares[node.index()] != 0);
        let pages = nodes().fold(0_u64, |sum, node| sum.saturating_add(shares[node.index()]));
        let nodes_used = u32::try_from(nodes().count()).unwrap_or(1);
        let threads =
            resize_threads(size, pages, nodes_used, self.is_much_for_vmemmap(direction), threads);
        // Relaxed: the caller that fills the pools reads it, and it makes these calls itself.
        self.manager.pools.threads_of_use.fetch_max(threads, Ordering::Relaxed);
        if threads < 2 {
            nodes().for_each(|node| part(node, 0..shares[node.index()]));
            return;
        }
        // If there are more nodes than parts of a job, they take turns.
        let mut rest = nodes().peekable();
        while rest.peek().is_some() {
            self.work_on(
                shares,
                &mut rest.by_ref().take(MAX_PARTS),
                helpers,
                threads,
                direction,
                part,
            );
        }
    }

    fn work_on(
        &self,
        shares: &Shares,
        nodes: &mut dyn Iterator<Item = NodeId>,
        helpers: &dyn Helpers,
        threads: u32,
        direction: Direction,
        part: &(dyn Fn(NodeId, Range<u64>) + Sync),
    ) {
        let size = self.size;
        let mut parts = [const { Part { node: 0, range: 0..0 } }; MAX_PARTS];
        let mut used = 0;
        // In this order: the other way round, `zip` would lose a node for which there is no part
        // left.
        for (slot, node) in parts.iter_mut().zip(nodes) {
            let (index, start) = (node.index(), (node.index() as u64) << PART_SHIFT);
            *slot = Part {
                node: u32::try_from(index).unwrap_or(0),
                range: start..start + shares[index],
            };
            used += 1;
        }
        let job = Job::of_parts(&parts[..used]).max_threads(threads);
        let job = if self.restores_vmemmap(direction) {
            // All of the work is outside locks, and how long it takes is known, so helpers come at
            // once; chunks are as small as possible, so that all threads end together.
            let least = (BLOCKS_OF_A_THREAD_WITH_MAPS * PAGES_PER_BLOCK / size.frames()).max(1);
            job.align(least).min_chunk(least)
        } else {
            // Zones give whole GiBs most efficiently.
            job.align((Self::FRAMES_OF_A_GIB / size.frames()).max(1))
        };
        let threads = job::run(&job, helpers, &|range| {
            let index = usize::try_from(range.start >> PART_SHIFT).unwrap_or(usize::MAX);
            let node = NodeId::new(index);
            debug_assert!(node.is_some(), "the parts are those of nodes");
            if let Some(node) = node {
                part(node, range);
            }
        });
        self.manager.pools.threads_used.fetch_max(threads, Ordering::Relaxed);
    }

    /// Returns whether a block's descriptors take more work than the block itself: if they are made
    /// again, or if a hook handles them. Giving them up is little work in a kernel; in a process it
    /// is one system call, which several threads at once do not speed up.
    fn is_much_for_vmemmap(&self, direction: Direction) -> bool {
        self.manager.pools.has_vmemmap_hook.load(Ordering::Relaxed)
            || self.restores_vmemmap(direction)
    }

    /// Returns whether the manager itself makes descriptors again.
    fn restores_vmemmap(&self, direction: Direction) -> bool {
        direction == Direction::Shrink
            && self.manager.hugetlb().eager_restore()
            && !self.manager.pools.has_vmemmap_hook.load(Ordering::Relaxed)
    }

    const FRAMES_OF_A_GIB: u64 = PoolSize::OneGib.frames();
}

/// Pages by node, counted by several threads.
struct Tallies([AtomicU64; MAX_NODES]);

impl Tallies {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_NODES])
    }

    fn add(&self, node: NodeId, pages: u64) {
        self.0[node.index()].fetch_add(pages, Ordering::Relaxed);
    }

    fn of(&self, node: NodeId) -> u64 {
        self.0[node.index()].load(Ordering::Relaxed)
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|pages| pages.load(Ordering::Relaxed)).sum()
    }
}
