//! Allocation under a policy, and where the memory came from.

use super::{InterleaveCursor, NumaPolicy, PolicyError, PolicyMode};
use crate::block::MigrateType;
use crate::debug::Place;
use crate::manager::facets::Numa;
use crate::manager::request::Allowed;
use crate::manager::request::{AllocateError, Request, Search};
use crate::manager::state::Manager;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{NodeId, NodeMask, Pfn, PfnRange};
use crate::zone::{Zone, ZoneId};
use core::panic::Location;

/// Memory that a request got under a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The frames, which are the caller's.
    pub range: PfnRange,
    /// The node and the zone that the frames come from.
    pub zone: ZoneId,
    /// The node that was asked first: the nearest of the policy's nodes, or the node whose turn it
    /// was.
    pub wanted: NodeId,
}

impl Placed {
    /// The node that the frames come from.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.zone.node
    }

    /// Whether the frames come from the node that was asked first.
    #[must_use]
    pub fn is_hit(&self) -> bool {
        self.zone.node == self.wanted
    }
}

impl<P: Platform> Numa<'_, P> {
    /// Allocates a run of frames as [`Manager::allocate`] does, from the nodes that `policy` allows
    /// (Linux: `mm/mempolicy.c`, `alloc_pages_mpol`). Nearness is measured from the calling CPU; if
    /// the request prefers a node ([`NodeChoice::Preferred`]) it is measured from there, as if the
    /// caller ran on it.
    ///
    /// `cursor` says whose turn it is in modes where nodes take turns; other modes ignore it. It
    /// moves on when memory was found, on whatever node.
    ///
    /// * *bind*: the caches are drained, and the reclaim hook is asked for what is missing on the
    ///   policy's nodes ([`Shortage::nodes`](crate::Shortage::nodes)). Free memory on other nodes
    ///   does not help. If all memory of the policy's nodes is reserved for movable requests, the
    ///   policy does not bind other requests: these are served as without a policy (Linux:
    ///   `mm/mempolicy.c`, `apply_policy_zone`).
    /// * *preferred-many*: neither is done for the policy's nodes. If these have nothing above
    ///   their marks, all nodes are asked by all means.
    /// * *interleave* and *weighted interleave*: when the node whose turn it is has nothing, the
    ///   other nodes serve by their distance from it.
    ///
    /// # Errors
    /// See [`PolicyError`]; neither memory nor `cursor` has changed.
    #[track_caller]
    pub fn allocate(
        self,
        request: &Request,
        policy: &NumaPolicy<'_>,
        cursor: &mut InterleaveCursor,
    ) -> Result<Placed, PolicyError> {
        let place = Location::caller();
        if !policy.mode.is_interleaved() {
            return self.allocate_by(request, policy, place);
        }
        self.home(request, policy)?;
        let mut next = *cursor;
        let node = match policy.mode {
            PolicyMode::Interleave => {
                next = next.without_rest();
                next.advance(self.usable(policy)?, |_| 1)
            }
            _ => next.advance(self.usable(policy)?, |node| self.weight_of(policy, node)),
        };
        let node = node.ok_or(PolicyError::NoMemory(policy.nodes))?;
        let placed = self.allocate_in_turn(request, node, place)?;
        *cursor = next;
        Ok(placed)
    }

    /// [`allocate`](Self::allocate) of page number `offset` of a shared object. Where nodes take
    /// turns, the offset decides whose turn it is, so the order in which pages are first used does
    /// not matter (Linux: `mm/mempolicy.c`, `interleave_nid` and `weighted_interleave_nid`). Other
    /// modes ignore the offset.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    #[track_caller]
    pub fn allocate_at_offset(
        self,
        request: &Request,
        policy: &NumaPolicy<'_>,
        offset: u64,
    ) -> Result<Placed, PolicyError> {
        let place = Location::caller();
        if !policy.mode.is_interleaved() {
            return self.allocate_by(request, policy, place);
        }
        self.home(request, policy)?;
        let nodes = self.usable(policy)?;
        let weights = self.weights_of(policy);
        let weight = |node: NodeId| u64::from(weights.of(node));
        let round: u64 = nodes.nodes().map(weight).sum();
        let mut rest = offset.checked_rem(round).unwrap_or(0);
        let node = nodes.nodes().find(|&node| {
            let is_its_turn = rest < weight(node);
            rest = rest.saturating_sub(weight(node));
            is_its_turn
        });
        let node = node.ok_or(PolicyError::NoMemory(policy.nodes))?;
        self.allocate_in_turn(request, node, place)
    }

    /// The zone that a frame belongs to; `None` if it belongs to none.
    #[must_use]
    pub fn zone_of(self, pfn: Pfn) -> Option<ZoneId> {
        self.manager.block_of(pfn).map(|(zone, _)| zone.id())
    }

    /// The lowest node of a policy that has memory. If none has, the lowest of all, which is an
    /// error if it does not exist.
    #[inline(never)]
    pub(super) fn preferred(self, policy: &NumaPolicy<'_>, home: NodeId) -> NodeId {
        let nodes = policy.nodes;
        let found = nodes.nodes().find(|&node| self.has_memory(node));
        found.or_else(|| nodes.first()).unwrap_or(home)
    }

    /// Serves a request in a mode without turns.
    fn allocate_by(
        self,
        request: &Request,
        policy: &NumaPolicy<'_>,
        place: Place,
    ) -> Result<Placed, PolicyError> {
        let home = self.home(request, policy)?;
        match policy.mode {
            PolicyMode::Preferred => {
                let node = self.preferred(policy, home);
                self.allocate_near(request, NodeChoice::Preferred(node), node, place)
            }
            PolicyMode::Bind | PolicyMode::PreferredMany => {
                let mut room = NodeMask::EMPTY;
                let search = self.search(request, policy, home, &mut room)?;
                let range = if policy.mode == PolicyMode::Bind {
                    self.manager
                        .allocate_within(request, &search, false, place)
                        .map_err(|error| self.refused(error, &search))
                } else {
                    self.manager.allocate_within(request, &search, true, place).map_err(Into::into)
                };
                self.placed(range?, search.wanted)
            }
            _ => self.allocate_near(request, request.node, home, place),
        }
    }

    /// Serves a request from `wanted` first, which is what `choice` says.
    fn allocate_near(
        self,
        request: &Request,
        choice: NodeChoice,
        wanted: NodeId,
        place: Place,
    ) -> Result<Placed, PolicyError> {
        let near = Request { node: choice, ..*request };
        self.placed(self.manager.allocate_any(&near, place)?, wanted)
    }

    /// Serves a request from the node whose turn it is.
    fn allocate_in_turn(
        self,
        request: &Request,
        node: NodeId,
        place: Place,
    ) -> Result<Placed, PolicyError> {
        let placed = self.allocate_near(request, NodeChoice::Preferred(node), node, place)?;
        if placed.is_hit() {
            self.manager.pressure.numa.note_interleave(node, request.pages);
        }
        Ok(placed)
    }

    fn placed(self, range: PfnRange, wanted: NodeId) -> Result<Placed, PolicyError> {
        // Memory that was just allocated belongs to a zone.
        let zone = self.zone_of(range.start);
        let zone = zone.ok_or(PolicyError::Request(AllocateError::NotFree(range)))?;
        Ok(Placed { range, zone, wanted })
    }

    /// The node from which the distance of nodes is measured.
    pub(super) fn home(
        self,
        request: &Request,
        policy: &NumaPolicy<'_>,
    ) -> Result<NodeId, PolicyError> {
        match request.node {
            NodeChoice::Any => Ok(self.manager.local_node()),
            NodeChoice::Exact(node) if policy.mode != PolicyMode::Default => {
                Err(PolicyError::NodeNamed(node))
            }
            NodeChoice::Preferred(node) | NodeChoice::Exact(node) => {
                self.known(node).map(|()| node)
            }
        }
    }

    /// The nodes of a policy that have memory.
    pub(super) fn usable(self, policy: &NumaPolicy<'_>) -> Result<NodeMask, PolicyError> {
        if policy.nodes.is_empty() {
            return Err(PolicyError::NoNodes(policy.mode));
        }
        let nodes = policy.nodes.and(self.with_memory());
        if nodes.is_empty() {
            self.manager.pressure.numa.note_without_memory();
            return Err(PolicyError::NoMemory(policy.nodes));
        }
        Ok(nodes)
    }

    /// Where a request looks that is bound to a policy's nodes, or prefers several of them.
    pub(super) fn search<'a>(
        self,
        request: &Request,
        policy: &NumaPolicy<'_>,
        home: NodeId,
        room: &'a mut NodeMask,
    ) -> Result<Search<'a>, PolicyError> {
        request.order()?;
        let near = Request { node: NodeChoice::Preferred(home), ..*request };
        *room = self.usable(policy)?;
        let nodes = &*room;
        let mut search = self.manager.search(&near)?;
        if policy.mode != PolicyMode::Bind || self.can_bind(search.migrate_type, *nodes) {
            search.allowed = Allowed::Set(nodes);
        }
        let below = Pfn::containing(search.max_address);
        let fits = |zone: &&Zone| zone.final_managed_pages() != 0 && zone.span().start < below;
        let nearest = self.manager.zonelist(&search).find(fits).map(|zone| zone.id().node);
        search.wanted = match nearest {
            Some(node) => node,
            None if policy.mode == PolicyMode::Bind => {
                self.manager.pressure.numa.note_without_memory();
                return Err(PolicyError::NoMemory(policy.nodes));
            }
            None => nodes.first().unwrap_or(home),
        };
        Ok(search)
    }

    /// Whether requests of this migrate type may have any memory of these nodes, used or free.
    fn can_bind(self, migrate_type: MigrateType, nodes: NodeMask) -> bool {
        if !cfg!(feature = "moving") || migrate_type == MigrateType::Movable {
            return true;
        }
        let mut zones = self.manager.zones().iter().filter(|zone| nodes.contains(zone.id().node));
        // Limits count a graded block in full, and are from the last change of grades.
        zones.any(|zone| zone.pages_for_limits().ungraded != 0 || zone.ungraded_free_pages() != 0)
    }

    /// Turns the error of a bound request into one that names the policy's nodes, and counts it.
    pub(super) fn refused(self, error: AllocateError, search: &Search) -> PolicyError {
        if matches!(search.allowed, Allowed::All) {
            // The request was not bound.
            return PolicyError::Request(error);
        }
        match error {
            AllocateError::OutOfMemory { order } => {
                self.manager.pressure.numa.note_refused(search.wanted);
                PolicyError::OutOfMemory { order, nodes: search.allowed.nodes() }
            }
            error => PolicyError::Request(error),
        }
    }

    fn weight_of(self, policy: &NumaPolicy<'_>, node: NodeId) -> u8 {
        policy.weights.map_or_else(|| self.weight(node), |weights| weights.of(node))
    }
}

impl<P: Platform> Manager<P> {
    /// Allocates from the nodes that a search allows, by all means. Where these nodes are only
    /// preferred, takes their memory only above their marks, and otherwise memory of any node by
    /// all means.
    fn allocate_within(
        &self,
        request: &Request,
        search: &Search,
        are_preferred: bool,
        place: Place,
    ) -> Result<PfnRange, AllocateError> {
        if let Some(taken) = self.cached_of(search.wanted, request) {
            return self.hand_out(taken, request.zeroed, place);
        }
        let at_once = if are_preferred { self.allocate_at_once(request, search)? } else { None };
        let (taken, is_zero) = match at_once {
            Some(found) => found,
            None if are_preferred => self.allocate_where(request, &search.anywhere())?,
            None => self.allocate_where(request, search)?,
        };
        self.hand_out(taken, request.zeroed && !is_zero, place)
    }

    /// Takes a run of a node from the CPU's cache, if that keeps frames of this node.
    fn cached_of(&self, node: NodeId, request: &Request) -> Option<PfnRange> {
        self.allocate_cached(&Request { node: NodeChoice::Exact(node), ..*request })
    }
}

impl Search<'_> {
    /// The search on all nodes; the wanted node stays.
    pub(super) const fn anywhere(self) -> Self {
        Self { allowed: Allowed::All, ..self }
    }
}
