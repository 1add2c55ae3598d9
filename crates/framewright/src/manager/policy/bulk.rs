//! Allocation of many single frames under a policy, node by node: each zone's lock is taken once
//! for all pages that its node gives, not once for each page (Linux: `mm/mempolicy.c`,
//! `alloc_pages_bulk_mempolicy`).

use super::weights::Weights;
use super::{InterleaveCursor, NumaPolicy, PolicyError, PolicyMode};
use crate::debug::Place;
use crate::manager::facets::Numa;
use crate::manager::request::{AllocateError, Allowed, Mark, ORDINARY, Request, Search};
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{MAX_NODES, NodeId, NodeMask, Order, Pfn};
use crate::vmemmap_space::BlockNumber;
use core::panic::Location;

/// Single frames that a request got under a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedBulk {
    /// How many frames were found; they are at the beginning of the caller's list.
    pub pages: usize,
    by_node: [usize; MAX_NODES],
}

impl PlacedBulk {
    /// How many of the frames come from a node. [`Numa::zone_of`] tells the zone of each.
    #[must_use]
    pub const fn on(&self, node: NodeId) -> usize {
        self.by_node[node.index()]
    }
}

impl<P: Platform> Numa<'_, P> {
    /// Allocates up to `pages.len()` single frames as [`Manager::allocate_bulk`] does, from the
    /// nodes that `policy` allows. While all nodes have memory, the result is that of as many calls
    /// of [`allocate`](Self::allocate), except that each node gives the pages of all its turns at
    /// once. Frames are ordered by the node whose turn they were. There are fewer only when memory
    /// is short. With the feature `many-nodes` this takes tens of KiB of stack: [`PlacedBulk`]
    /// alone has 8 KiB then.
    ///
    /// # Errors
    /// See [`PolicyError`], when not a single frame was found; neither memory nor `cursor` has
    /// changed.
    ///
    /// [`Manager::allocate_bulk`]: crate::Manager::allocate_bulk
    #[track_caller]
    pub fn allocate_bulk(
        self,
        request: &Request,
        policy: &NumaPolicy<'_>,
        cursor: &mut InterleaveCursor,
        pages: &mut [Pfn],
    ) -> Result<PlacedBulk, PolicyError> {
        let request = &Request { pages: 1, align: Order::PAGE, boundary_pages: 0, ..*request };
        let home = self.home(request, policy)?;
        let done = match policy.mode {
            PolicyMode::Default | PolicyMode::Local => {
                self.manager.allocate_bulk(request, pages)?
            }
            PolicyMode::Preferred => {
                let node = NodeChoice::Preferred(self.preferred(policy, home));
                self.manager.allocate_bulk(&Request { node, ..*request }, pages)?
            }
            PolicyMode::Bind => {
                let mut room = NodeMask::EMPTY;
                let search = self.search(request, policy, home, &mut room)?;
                let found = self.manager.allocate_bulk_where(request, &search, pages);
                let done = found.map_err(|error| self.refused(error, &search))?;
                if done < pages.len() {
                    self.refused(AllocateError::OutOfMemory { order: Order::PAGE }, &search);
                }
                self.hand_out(request, &pages[..done], Location::caller())?;
                done
            }
            PolicyMode::PreferredMany => {
                let mut room = NodeMask::EMPTY;
                let search = self.search(request, policy, home, &mut room)?;
                let near = self.manager.fill(&search, ORDINARY, pages);
                let done = self.fill_rest(request, &search, near, pages)?;
                self.hand_out(request, &pages[..done], Location::caller())?;
                done
            }
            PolicyMode::Interleave | PolicyMode::WeightedInterleave => {
                let deal = self.deal(policy, *cursor)?;
                let done = self.take_turns(request, &deal, pages)?;
                self.hand_out(request, &pages[..done], Location::caller())?;
                self.note_turns(&deal, &pages[..done]);
                *cursor = deal.shares(done).1;
                done
            }
        };
        Ok(self.placed_bulk(&pages[..done]))
    }

    /// Works out whose turns come next.
    fn deal(self, policy: &NumaPolicy<'_>, cursor: InterleaveCursor) -> Result<Deal, PolicyError> {
        let nodes = self.usable(policy)?;
        let is_weighted = policy.mode == PolicyMode::WeightedInterleave;
        let cursor = if is_weighted { cursor } else { cursor.without_rest() };
        Ok(Deal { nodes, weights: self.weights_of(policy), cursor })
    }

    /// Takes from each node the pages of all its turns. What a node lacks comes from other nodes,
    /// by their distance from it, and what is then still missing is looked for by all means.
    /// Returns how many pages were found.
    fn take_turns(
        self,
        request: &Request,
        deal: &Deal,
        pages: &mut [Pfn],
    ) -> Result<usize, PolicyError> {
        let (shares, _) = deal.shares(pages.len());
        let (mut done, mut first) = (0, None);
        for node in deal.nodes.nodes().filter(|node| shares[node.index()] != 0) {
            let near = Request { node: NodeChoice::Preferred(node), ..*request };
            let search = self.manager.search(&near)?;
            first = first.or(Some((near, search)));
            let only = Search { allowed: Allowed::Only(node), ..search };
            let share = &mut pages[done..done + shares[node.index()]];
            let mut got = self.manager.fill(&only, &[Mark::Low], share);
            if got < share.len() {
                got += self.manager.fill(&search, ORDINARY, &mut share[got..]);
            }
            done += got;
        }
        match first {
            Some((near, search)) => self.fill_rest(&near, &search, done, pages),
            None => Ok(done),
        }
    }

    /// Looks everywhere and by all means for the pages missing after the first `done`. Returns how
    /// many there are then.
    fn fill_rest(
        self,
        request: &Request,
        search: &Search,
        done: usize,
        pages: &mut [Pfn],
    ) -> Result<usize, PolicyError> {
        if done == pages.len() {
            return Ok(done);
        }
        let rest = &mut pages[done..];
        match self.manager.allocate_bulk_where(request, &search.anywhere(), rest) {
            Ok(more) => Ok(done + more),
            Err(error) if done == 0 => Err(error.into()),
            Err(_) => Ok(done),
        }
    }

    fn hand_out(self, request: &Request, pages: &[Pfn], place: Place) -> Result<(), PolicyError> {
        Ok(self.manager.hand_out_bulk(pages, request.zeroed, place)?)
    }

    /// Counts the pages that came from each node, at most as many as it had turns.
    fn note_turns(self, deal: &Deal, pages: &[Pfn]) {
        let (shares, _) = deal.shares(pages.len());
        let placed = self.placed_bulk(pages);
        for node in deal.nodes.nodes() {
            let hits = placed.on(node).min(shares[node.index()]) as u64;
            if hits != 0 {
                self.manager.pressure.numa.note_interleave(node, hits);
            }
        }
    }

    /// Counts where pages came from.
    fn placed_bulk(self, pages: &[Pfn]) -> PlacedBulk {
        let mut by_node = [0; MAX_NODES];
        // Neighbouring pages are mostly of one block, which is of one zone.
        let mut last = None;
        for &page in pages {
            let block = BlockNumber::containing(page);
            let known = last.filter(|&(of, _)| of == block).map(|(_, node)| node);
            let node = known.or_else(|| self.zone_of(page).map(|zone| zone.node));
            if let Some(node) = node {
                by_node[node.index()] += 1;
                last = Some((block, node));
            }
        }
        PlacedBulk { pages: pages.len(), by_node }
    }

    /// The weights that apply: all 1 where nodes simply take turns.
    pub(super) fn weights_of(self, policy: &NumaPolicy<'_>) -> Weights {
        match policy.mode {
            PolicyMode::WeightedInterleave => {
                policy.weights.copied().unwrap_or_else(|| self.weights())
            }
            _ => Weights::EVEN,
        }
    }
}

/// The turns to come, with weights that nobody changes meanwhile.
struct Deal {
    nodes: NodeMask,
    weights: Weights,
    cursor: InterleaveCursor,
}

impl Deal {
    /// What each node gets of `pages` pages, and the cursor after them.
    fn shares(&self, pages: usize) -> ([usize; MAX_NODES], InterleaveCursor) {
        let (mut shares, mut cursor) = ([0; MAX_NODES], self.cursor);
        cursor.share(self.nodes, &self.weights, pages, &mut shares);
        (shares, cursor)
    }
}
