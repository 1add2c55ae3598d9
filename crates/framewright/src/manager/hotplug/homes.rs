//! Gives CPU caches other zones when memory was added or removed.
//!
//! For each CPU, bring-up chose a part of the highest zone of the nearest node with memory. New
//! memory may lie in a higher zone, or be most of the memory; and a node whose memory is all gone
//! serves nobody. Then the caches are drained and get the zones that bring-up would have chosen: of
//! a zone's parts, each CPU gets the one that its share of the zone's memory falls into.

use crate::manager::state::Manager;
use crate::manager::state::isolations::kept as kept_of;
use crate::page::{CpuCache, Near};
use crate::platform::Platform;
use crate::units::{MAX_NODES, NodeId};
use crate::zone::{Zone, ZoneId, ZoneKind, ZoneParts, near, range_of};

/// The memory that a CPU's cache should keep.
struct Home {
    node: NodeId,
    zone: usize,
    near: [Near<'static>; 2],
    /// The managed pages of both zones.
    pages: u64,
}

/// How many CPUs each node has, and how many of them were passed already.
struct Crowd {
    all: [u32; MAX_NODES],
    passed: [u32; MAX_NODES],
}

impl Crowd {
    fn of<P: Platform>(platform: &P) -> Self {
        let mut all = [0; MAX_NODES];
        for cpu in 0..platform.cpus() {
            if let Some(cpus) = all.get_mut(platform.cpu_node(cpu).index()) {
                *cpus += 1;
            }
        }
        Self { all, passed: [0; MAX_NODES] }
    }

    /// Starts again from the first CPU.
    const fn begin(&mut self) {
        self.passed = [0; MAX_NODES];
    }

    /// Returns, for the next CPU's node, how many of the node's CPUs were passed before, and how
    /// many CPUs the node has.
    fn next(&mut self, node: NodeId) -> (u64, u64) {
        let Some(passed) = self.passed.get_mut(node.index()) else { return (0, 1) };
        *passed += 1;
        (u64::from(*passed - 1), u64::from(self.all[node.index()].max(1)))
    }
}

fn managed_pages(parts: ZoneParts<'_>) -> u64 {
    parts.iter().map(Zone::final_managed_pages).sum()
}

impl<P: Platform> Manager<P> {
    /// Drains the caches of CPUs whose zone is not the one that they should have, or whose memory
    /// grew or shrank much, and gives them the right zone. If other CPUs cannot be waited for, this
    /// is left to the next change.
    pub(super) fn settle_caches(&self) {
        let is_alone = self.platform.cpus() == 1;
        let mut crowd = Crowd::of(self.platform);
        let homes_differ = (0..).zip(self.caches).any(|(cpu, cache)| {
            self.home_of(&mut crowd, cpu).is_some_and(|home| Self::is_worth_it(cache, &home))
        });
        if !homes_differ {
            return;
        }
        // Count the shares of the CPUs that are online.
        let kept = self.keep_cpus();
        if kept.is_none() && !is_alone {
            return;
        }
        let mut sharers = [0_u32; MAX_NODES];
        crowd.begin();
        for (cpu, cache) in (0..).zip(self.caches) {
            if let Some(home) = self.home_of(&mut crowd, cpu)
                && !cache.is_offline()
            {
                sharers[home.node.index()] += 1;
            }
        }
        crowd.begin();
        let mut next = 0;
        self.isolation().with_caches(&mut |cache| {
            let cpu = next;
            next += 1;
            let Some(home) = self.home_of(&mut crowd, cpu) else { return };
            // An error in the cache is its user's fault and does not matter here; everything else
            // goes back.
            let _ = self.drain_cache(cache);
            cache.settle(home.zone, &home.near, home.pages);
            cache.resize(sharers[home.node.index()].max(1));
            let hull = self.isolations.lock(self.platform).hull;
            cache.keep_only(|near| kept_of(near, hull));
        });
    }

    fn is_worth_it(cache: &CpuCache, home: &Home) -> bool {
        let pages = cache.home_pages();
        cache.zone() != home.zone || home.pages.abs_diff(pages) > pages / 8
    }

    /// Returns the home of a CPU. To be called for each CPU in turn.
    fn home_of(&self, crowd: &mut Crowd, cpu: u32) -> Option<Home> {
        let own = self.platform.cpu_node(cpu);
        let (before, cpus) = crowd.next(own);
        let of = self.nodes.get(own.index()).or(self.nodes.first())?;
        let node = of.fallback.iter().find(|&node| self.has_managed(node))?;
        let parts = |kind| self.parts(ZoneId { node, kind });
        let mut kinds =
            ZoneKind::ALL.into_iter().rev().filter(|&kind| managed_pages(parts(kind)) != 0);
        let first = parts(kinds.next()?);
        let other = kinds.next().filter(|&kind| kind != ZoneKind::Dma).map(parts);
        let all = managed_pages(first);
        // The middle of the CPU's share.
        let middle = u128::from(all) * u128::from(2 * before + 1) / u128::from(2 * cpus);
        let middle = u64::try_from(middle).unwrap_or(0);
        let mut passed = 0;
        let home = first.iter().find(|part| {
            passed += part.final_managed_pages();
            passed > middle
        })?;
        let zone = self.zones().iter().position(|zone| core::ptr::eq(zone, home))?;
        let largest =
            |parts: ZoneParts<'static>| parts.iter().max_by_key(|part| part.final_managed_pages());
        let range = |parts: ZoneParts<'static>| range_of(parts.iter());
        Some(Home {
            node,
            zone,
            near: [
                near(range(first), Some(home), 0),
                match other {
                    Some(parts) => near(range(parts), largest(parts), 0),
                    None => near(range(first), Some(home), 1),
                },
            ],
            pages: all + other.map_or(0, managed_pages),
        })
    }

    fn has_managed(&self, node: NodeId) -> bool {
        let zones = self.zones().iter().filter(|zone| zone.id().node == node);
        zones.into_iter().any(|zone| zone.final_managed_pages() != 0)
    }
}
