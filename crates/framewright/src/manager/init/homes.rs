//! Decides from which part of which zone each CPU's cache keeps frames first.

use crate::manager::init::frame::Frame;
use crate::manager::state::{Node, ZoneSlots};
use crate::platform::Platform;
use crate::units::{MAX_NODES, NodeId};
use crate::zone::{Zone, ZoneId, ZoneKind, near, range_of};

/// Counts the CPUs of each of the first nodes.
pub(crate) fn count_cpus<P: Platform>(platform: &P, cpus: &mut [u32]) {
    for cpu in 0..platform.cpus() {
        if let Some(cpus) = cpus.get_mut(platform.cpu_node(cpu).index()) {
            *cpus += 1;
        }
    }
}

/// Where the CPUs of a node find memory first.
struct NodeHome {
    /// The nearest node with memory.
    node: NodeId,
    /// The zones of that node that caches keep frames of.
    zones: [ZoneSlots; 2],
    /// The managed pages of these zones.
    pages: u64,
}

/// The zones and nodes as bring-up knows them.
struct Homes<'a> {
    nodes: &'a [Node],
    slots: &'a [ZoneSlots],
    zones: &'a [Zone],
}

impl<'a> Homes<'a> {
    fn parts(&self, zone: ZoneSlots) -> &'a [Zone] {
        zone.of(self.zones)
    }

    fn managed_pages(&self, zone: ZoneSlots) -> u64 {
        self.parts(zone).iter().map(Zone::final_managed_pages).sum()
    }

    /// Returns the node's zone that is tried first, which is its highest with memory, and the next
    /// one below. The DMA zone is left to callers that ask for it, unless the node has nothing
    /// else.
    fn of_node(&self, node: NodeId) -> Option<NodeHome> {
        let place = |kind| self.slots[ZoneId { node, kind }.index()];
        let has_memory = |&kind: &ZoneKind| self.managed_pages(place(kind)) != 0;
        let mut kinds = ZoneKind::ALL.into_iter().rev().filter(has_memory);
        let first = place(kinds.next()?);
        let other = kinds.next().filter(|&kind| kind != ZoneKind::Dma);
        let zones = [first, other.map_or(ZoneSlots::NONE, place)];
        let pages = zones.map(|zone| self.managed_pages(zone)).iter().sum();
        Some(NodeHome { node, zones, pages })
    }

    #[inline(never)]
    fn near_node(&self, node: NodeId) -> Option<NodeHome> {
        let node = self.nodes.get(node.index()).or(self.nodes.first())?;
        node.fallback.iter().find_map(|node| self.of_node(node))
    }
}

/// Gives each CPU's cache its zones: those of the nearest node with memory, of which it keeps as
/// many frames as the CPU's share allows. The highest zone is tried first. If that zone has parts,
/// each CPU gets one of its own or shares one with its neighbours.
#[inline(never)]
pub(crate) fn give_caches_homes<P: Platform>(frame: &mut Frame, platform: &P) {
    if !cfg!(feature = "smp") {
        return;
    }
    let homes = Homes { nodes: &*frame.nodes, slots: &*frame.slots, zones: &*frame.zones };
    let mut cpus = [0; MAX_NODES];
    count_cpus(platform, &mut cpus);
    // CPUs of a node without memory share the memory of another node.
    let mut sharers = [0_u32; MAX_NODES];
    for (node, &cpus) in cpus.iter().enumerate().filter(|&(_, &cpus)| cpus != 0) {
        if let Some(home) = NodeId::new(node).and_then(|node| homes.near_node(node)) {
            sharers[home.node.index()] += cpus;
        }
    }
    let mut met = [0_u32; MAX_NODES];
    // CPUs with neighbouring numbers are nearly always on one node; where they are not, finding the
    // node's zones again takes little time.
    let mut last: Option<(NodeId, NodeHome)> = None;
    for (cpu, cache) in (0..).zip(frame.caches.iter_mut()) {
        let node = platform.cpu_node(cpu);
        let number = met[node.index()];
        met[node.index()] += 1;
        if last.as_ref().is_none_or(|(of, _)| *of != node) {
            last = homes.near_node(node).map(|home| (node, home));
        }
        let Some((_, home)) = &last else { continue };
        let parts = home.zones.map(|zone| homes.parts(zone));
        let turn = number as usize * parts[0].len() / cpus[node.index()].max(1) as usize;
        // All of a part may be reserved.
        let turn = (turn..parts[0].len())
            .chain(0..turn)
            .find(|&part| parts[0][part].final_managed_pages() != 0)
            .unwrap_or(turn);
        let [home_parts, other_parts] = parts;
        let range = range_of(home_parts.iter());
        let other = other_parts.get(turn % other_parts.len().max(1));
        let near = [
            near(range, home_parts.get(turn), 0),
            match other {
                Some(_) => near(range_of(other_parts.iter()), other, 0),
                None => near(range, home_parts.get(turn), 1),
            },
        ];
        let sharers = sharers[home.node.index()].max(1);
        let slot = usize::from(home.zones[0].first) + turn;
        // The cache is changed in place: a new value would be on the stack twice on its way there.
        cache.settle(slot, &near, home.pages);
        cache.resize(sharers);
    }
}
