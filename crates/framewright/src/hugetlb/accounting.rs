//! The counters and free pages of all pools, and the rules that hold between them (Linux:
//! `mm/hugetlb.c`, `struct hstate`).
//!
//! One lock protects all of it. Every change here keeps the rules, so they hold whenever the lock
//! is free (invariant 38); [`Accounting::check`] recounts them.

use super::{Shares, spread};
use crate::block::FreeList;
use crate::units::{MAX_NODES, NodeId};
use crate::units::{NodeMask, PoolSize};
use crate::zone::ZoneId;
use core::fmt;

/// Pages of one size, on one node or on all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeCounts {
    /// Pages in the pool, including surplus ones: `nr_hugepages`.
    pub nr: u64,
    /// Pages that are not in use: `free_hugepages`. Some of them may be reserved.
    pub free: u64,
    /// Pages beyond the number asked for: they leave the pool when they are freed
    /// (`surplus_hugepages`).
    pub surplus: u64,
}

impl NodeCounts {
    /// Returns the persistent pages: all but the surplus ones.
    #[must_use]
    pub const fn persistent(&self) -> u64 {
        self.nr - self.surplus
    }
}

/// The counters of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolCounts {
    /// The counts over all nodes.
    pub all: NodeCounts,
    /// Free pages that are reserved: `resv_hugepages`. Their nodes are not known before they are
    /// used.
    pub reserved: u64,
    /// The most surplus pages that may be allocated on demand: `nr_overcommit_hugepages`.
    pub overcommit: u64,
    /// How many pages should be persistent: the value that `vm.nr_hugepages` shows. A resize ends
    /// by setting it to as many as are.
    pub target: u64,
    /// Pages that had memory errors and left the pool for good.
    pub leaked: u64,
}

impl PoolCounts {
    /// Returns the free pages that are not reserved.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.all.free - self.reserved
    }
}

pub(crate) type NodeAccounts = NodeCounts;

/// A difference between the accounting and the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolFault {
    /// A counter is wrong.
    Count {
        /// The size of the pool.
        size: PoolSize,
        /// The node; nothing for all nodes.
        node: Option<NodeId>,
        /// The name of the counter.
        counter: &'static str,
        /// The value in the accounting.
        says: u64,
        /// The value counted, or the bound that is exceeded.
        counted: u64,
    },
    /// A list of free pages is broken, or names a block that is not a page of its pool.
    List {
        /// The size of the pool.
        size: PoolSize,
        /// The zone of the list.
        zone: ZoneId,
    },
}

impl fmt::Display for PoolFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { size, node: Some(node), counter, says, counted } => {
                write!(f, "{size} pool: {counter} of node {node} is {says}, not {counted}")
            }
            Self::Count { size, node: None, counter, says, counted } => {
                write!(f, "{size} pool: {counter} is {says}, not {counted}")
            }
            Self::List { size, zone } => {
                write!(f, "{size} pool: the list of free pages of {zone} is broken")
            }
        }
    }
}

impl core::error::Error for PoolFault {}

/// The data of one size, besides that of its nodes.
#[derive(Clone, Copy, Default)]
struct SizeBook {
    counts: PoolCounts,
    allocate_cursor: usize,
    free_cursor: usize,
    /// Reported pages that were handed out again.
    reused: u64,
}

/// The accounting of all pools: counts and lists by size, node and zone.
pub(crate) struct Accounting {
    sizes: [SizeBook; PoolSize::COUNT],
    /// Counters, by node and size.
    nodes: &'static mut [NodeAccounts],
    /// Free pages by zone and size.
    lists: &'static mut [FreeList],
    suspects: [Option<Suspect>; SUSPECTS],
    /// How many of these there are.
    suspected: usize,
}

/// The number of pages that [`Accounting::suspect`] remembers: more than the memory errors to be
/// expected while one pool is resized, or while all of its free pages are reserved.
const SUSPECTS: usize = if cfg!(feature = "pools") { 16 } else { 0 };

/// A pool's page that had a memory error and could not leave: it may have been on its way into or
/// out of the pool, or all free pages were reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Suspect {
    pub(crate) size: PoolSize,
    /// The position of its zone among the manager's.
    pub(crate) slot: usize,
    pub(crate) index: u32,
}

/// One of the two cursors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cursor {
    Allocate,
    Free,
}

/// The nodes of a pool that take turns, from a cursor on.
#[derive(Clone, Copy)]
struct Turns {
    size: PoolSize,
    nodes: NodeMask,
    cursor: Cursor,
}

impl Accounting {
    /// Builds it over zeroed counters, [`PoolSize::COUNT`] for each node, and as many empty lists
    /// for each zone.
    pub(crate) fn new(nodes: &'static mut [NodeAccounts], lists: &'static mut [FreeList]) -> Self {
        Self {
            sizes: [SizeBook::default(); PoolSize::COUNT],
            nodes,
            lists,
            suspects: [None; SUSPECTS],
            suspected: 0,
        }
    }

    pub(crate) fn counts(&self, size: PoolSize) -> PoolCounts {
        self.sizes[size.index()].counts
    }

    pub(crate) fn counts_mut(&mut self, size: PoolSize) -> &mut PoolCounts {
        &mut self.sizes[size.index()].counts
    }

    pub(crate) fn node(&self, size: PoolSize, node: NodeId) -> NodeCounts {
        self.nodes.get(node.index() * PoolSize::COUNT + size.index()).copied().unwrap_or_default()
    }

    /// Returns the free pages of a zone, by the zone's position among the manager's.
    pub(crate) fn list(&mut self, size: PoolSize, slot: usize) -> &mut FreeList {
        &mut self.lists[slot * PoolSize::COUNT + size.index()]
    }

    /// Returns how many free pages of a size and node may be reported and lent to the hypervisor.
    /// As many pages as are reserved stay unreported, and one page more stays free for requests. A
    /// node with surplus pages lends none, because those leave the pool when they are freed.
    pub(crate) fn lendable(&self, size: PoolSize, node: NodeId) -> u64 {
        let unreported: u64 = self
            .lists
            .iter()
            .skip(size.index())
            .step_by(PoolSize::COUNT)
            .map(FreeList::unreported_pages)
            .sum();
        let counts = self.counts(size);
        if self.node(size, node).surplus != 0 {
            0
        } else {
            let others = counts.available().saturating_sub(1);
            unreported.saturating_sub(counts.reserved).min(others)
        }
    }

    /// Frames of reported pages that were handed out again.
    pub(crate) fn reused_frames(&self) -> u64 {
        PoolSize::ALL.iter().map(|size| self.sizes[size.index()].reused * size.frames()).sum()
    }

    /// Changes a node's counters and the sums.
    fn change(&mut self, size: PoolSize, node: NodeId, change: impl Fn(&mut NodeCounts)) {
        change(&mut self.nodes[node.index() * PoolSize::COUNT + size.index()]);
        change(&mut self.sizes[size.index()].counts.all);
    }

    /// Counts free pages that join the pool as persistent ones.
    pub(crate) fn add_free(&mut self, size: PoolSize, node: NodeId, pages: u64) {
        self.change(size, node, |counts| {
            counts.nr += pages;
            counts.free += pages;
        });
    }

    /// Counts free pages that join the pool as surplus ones, as many as overcommit allows. Returns
    /// how many.
    pub(crate) fn add_surplus(&mut self, size: PoolSize, node: NodeId, pages: u64) -> u64 {
        let counts = self.counts(size);
        let pages = pages.min(counts.overcommit.saturating_sub(counts.all.surplus));
        self.change(size, node, |counts| {
            counts.nr += pages;
            counts.free += pages;
            counts.surplus += pages;
        });
        pages
    }

    /// Counts a free page that is used now.
    pub(crate) fn use_free(&mut self, size: PoolSize, node: NodeId) {
        self.change(size, node, |counts| counts.free -= 1);
    }

    /// Counts a page that is free again.
    pub(crate) fn end_use(&mut self, size: PoolSize, node: NodeId) {
        self.change(size, node, |counts| counts.free += 1);
    }

    /// Uncounts a page in use that leaves the pool: a surplus page if the node has any.
    pub(crate) fn drop_used(&mut self, size: PoolSize, node: NodeId) {
        let surplus = u64::from(self.node(size, node).surplus != 0);
        self.change(size, node, |counts| {
            counts.nr -= 1;
            counts.surplus -= surplus;
        });
        let counts = self.counts_mut(size);
        counts.target = counts.target.saturating_sub(1 - surplus);
    }

    /// Uncounts up to `most` free pages of a node that leave the pool in a resize to `count` pages:
    /// never reserved ones, and never more than the node has persistent ones. The caller takes as
    /// many off the node's lists.
    pub(crate) fn drop_free(&mut self, size: PoolSize, node: NodeId, count: u64, most: u64) -> u64 {
        let pages = most.min(self.removable(size, count)).min(self.removable_of(size, node));
        self.change(size, node, |counts| {
            counts.nr -= pages;
            counts.free -= pages;
        });
        pages
    }

    /// Returns how many free pages a resize to `count` removes in all: those that are not reserved,
    /// until `count` persistent pages are left. Linux (`mm/hugetlb.c`, `set_max_huge_pages`) keeps
    /// more: it counts pages in use among those that stay, even if they are surplus.
    pub(crate) fn removable(&self, size: PoolSize, count: u64) -> u64 {
        let counts = self.counts(size);
        counts.all.persistent().saturating_sub(count).min(counts.available())
    }

    /// Returns how many free pages a node can lose.
    pub(crate) fn removable_of(&self, size: PoolSize, node: NodeId) -> u64 {
        let counts = self.node(size, node);
        counts.free.min(counts.persistent())
    }

    /// Returns whether a free page of a node can be demoted: it must not be reserved, and the node
    /// must have persistent pages.
    pub(crate) fn can_demote(&self, size: PoolSize, node: NodeId) -> bool {
        self.counts(size).available() != 0 && self.removable_of(size, node) != 0
    }

    /// Uncounts such a page, which leaves this pool for good.
    pub(crate) fn drop_for_demotion(&mut self, size: PoolSize, node: NodeId) {
        self.change(size, node, |counts| {
            counts.nr -= 1;
            counts.free -= 1;
        });
        let counts = self.counts_mut(size);
        counts.target = counts.target.saturating_sub(1);
    }

    /// Undoes [`drop_for_demotion`](Self::drop_for_demotion).
    pub(crate) fn undo_demotion(&mut self, size: PoolSize, node: NodeId, pages: u64) {
        self.add_free(size, node, pages);
        self.counts_mut(size).target += pages;
    }

    /// Uncounts a free page that leaves the pool for good. False if all free pages are reserved.
    pub(crate) fn drop_page(&mut self, size: PoolSize, node: NodeId) -> bool {
        if self.counts(size).available() == 0 {
            return false;
        }
        let surplus = u64::from(self.node(size, node).persistent() == 0);
        self.change(size, node, |counts| {
            counts.nr -= 1;
            counts.free -= 1;
            counts.surplus -= surplus;
        });
        let counts = self.counts_mut(size);
        counts.target = counts.target.saturating_sub(1 - surplus);
        true
    }

    /// Uncounts free surplus pages of a node that leave the pool, at most `most` and none that is
    /// reserved. Returns how many.
    pub(crate) fn drop_surplus(&mut self, size: PoolSize, node: NodeId, most: u64) -> u64 {
        let counts = self.node(size, node);
        let pages = most.min(counts.free).min(counts.surplus).min(self.counts(size).available());
        self.change(size, node, |counts| {
            counts.nr -= pages;
            counts.free -= pages;
            counts.surplus -= pages;
        });
        pages
    }

    /// Makes surplus pages persistent until `count` pages are, in turn over `nodes`.
    pub(crate) fn keep_surplus(&mut self, size: PoolSize, nodes: NodeMask, count: u64) {
        let missing = count.saturating_sub(self.counts(size).all.persistent());
        let turns = Turns { size, nodes, cursor: Cursor::Allocate };
        let shares = self.deal(turns, missing, |counts| counts.surplus);
        self.convert(size, &shares, |counts, pages| counts.surplus -= pages);
    }

    /// Makes persistent pages surplus until only `count` are persistent. They leave the pool when
    /// they are freed. Overcommit does not limit this.
    pub(crate) fn make_surplus(&mut self, size: PoolSize, nodes: NodeMask, count: u64) {
        let excess = self.counts(size).all.persistent().saturating_sub(count);
        let shares = self.deal_removal(size, excess, nodes, NodeCounts::persistent);
        self.convert(size, &shares, |counts, pages| counts.surplus += pages);
    }

    fn convert(&mut self, size: PoolSize, shares: &Shares, change: impl Fn(&mut NodeCounts, u64)) {
        for (index, &pages) in shares.iter().enumerate().filter(|&(_, &pages)| pages != 0) {
            if let Some(node) = NodeId::new(index) {
                self.change(size, node, |counts| change(counts, pages));
            }
        }
    }

    /// Deals out pages that are to join over the nodes, in turn from where the last allocation
    /// ended.
    pub(crate) fn deal_growth(
        &mut self,
        size: PoolSize,
        pages: u64,
        nodes: NodeMask,
        room: &dyn Fn(NodeId) -> u64,
    ) -> Shares {
        let cursor = &mut self.sizes[size.index()].allocate_cursor;
        let (shares, _, next) = spread(pages, *cursor, nodes, room);
        *cursor = next;
        shares
    }

    /// Deals out pages that are to leave over the nodes, in turn from where the last removal ended.
    pub(crate) fn deal_removal(
        &mut self,
        size: PoolSize,
        pages: u64,
        nodes: NodeMask,
        room: impl Fn(&NodeCounts) -> u64,
    ) -> Shares {
        self.deal(Turns { size, nodes, cursor: Cursor::Free }, pages, room)
    }

    fn deal(&mut self, turns: Turns, pages: u64, room: impl Fn(&NodeCounts) -> u64) -> Shares {
        let Turns { size, nodes, cursor } = turns;
        if pages == 0 {
            return [0; MAX_NODES];
        }
        let from = *self.cursor(size, cursor);
        let (shares, _, next) = spread(pages, from, nodes, &|node| room(&self.node(size, node)));
        *self.cursor(size, cursor) = next;
        shares
    }

    fn cursor(&mut self, size: PoolSize, which: Cursor) -> &mut usize {
        let pool = &mut self.sizes[size.index()];
        match which {
            Cursor::Allocate => &mut pool.allocate_cursor,
            Cursor::Free => &mut pool.free_cursor,
        }
    }

    /// Remembers a page with a memory error, to look at it again when no pages are on their way and
    /// one is available. False if there are too many.
    pub(crate) fn suspect(&mut self, page: Suspect) -> bool {
        if self.suspects.contains(&Some(page)) {
            return true;
        }
        let free = self.suspects.iter_mut().find(|slot| slot.is_none());
        let is_noted = free.map(|slot| *slot = Some(page)).is_some();
        self.suspected += usize::from(is_noted);
        is_noted
    }

    /// Returns whether any page is remembered.
    pub(crate) const fn has_suspects(&self) -> bool {
        self.suspected != 0
    }

    /// Takes the next of the remembered pages. `turn` begins at 0; a page that is remembered again
    /// meanwhile does not come twice.
    pub(crate) fn take_suspect(&mut self, turn: &mut usize) -> Option<Suspect> {
        let rest = self.suspects.iter_mut().enumerate().skip(*turn);
        let (at, page) = rest.filter_map(|(at, slot)| Some((at, slot.take()?))).next()?;
        *turn = at + 1;
        self.suspected -= 1;
        Some(page)
    }

    /// Counts a page that is handed out, if it was reported.
    pub(crate) fn count_reused(&mut self, size: PoolSize, reported: bool) {
        self.sizes[size.index()].reused += u64::from(reported);
    }

    /// Checks the rules among the counters (Linux: `mm/hugetlb.c`, `struct hstate`). `resizing`
    /// says that a resize may be under way; only then may the target differ from the persistent
    /// pages.
    pub(crate) fn check(&self, size: PoolSize, resizing: bool) -> Result<(), PoolFault> {
        let counts = self.counts(size);
        let wrong = |node, counter, says, counted| {
            Err(PoolFault::Count { size, node, counter, says, counted })
        };
        let mut sum = NodeCounts::default();
        for node in (0..self.nodes.len() / PoolSize::COUNT).filter_map(NodeId::new) {
            let NodeCounts { nr, free, surplus } = self.node(size, node);
            if free > nr {
                return wrong(Some(node), "free", free, nr);
            }
            if surplus > nr {
                return wrong(Some(node), "surplus", surplus, nr);
            }
            sum.nr += nr;
            sum.free += free;
            sum.surplus += surplus;
        }
        for (counter, says, counted) in [
            ("nr", counts.all.nr, sum.nr),
            ("free", counts.all.free, sum.free),
            ("surplus", counts.all.surplus, sum.surplus),
        ] {
            if says != counted {
                return wrong(None, counter, says, counted);
            }
        }
        if counts.reserved > counts.all.free {
            return wrong(None, "reserved", counts.reserved, counts.all.free);
        }
        if !resizing && counts.target != counts.all.persistent() {
            return wrong(None, "target", counts.target, counts.all.persistent());
        }
        Ok(())
    }
}
