//! Reclaim in the background: it begins when a request finds a node below its low watermark and
//! ends above the high one, so that requests seldom have to wait for it.
//!
//! There is no thread here: a request leaves a bit and wakes whoever reclaims, who asks for what is
//! missing, or lets the registered hook free it (Linux: `kswapd` in `mm/vmscan.c`).
//!
//! ```text
//!   free pages   high ─────────── enough: the bit is cleared
//!                low  ─────────── a request fails above it: the bit is set
//!                min  ─────────── requests wait (`reclaim`)
//! ```
//!
//! What only movable requests may have is free to them alone: a request of another kind wakes
//! reclaim for what is left of a node without it.
//!
//! Orders of memory: Relaxed: a bit stands alone; who misses one that was just set finds it when it
//! asks next.

use crate::block::MigrateType;
use crate::manager::facets::Pressure;
use crate::manager::reclaim::RECLAIM_ROUNDS;
use crate::manager::request::{Mark, Search};
use crate::manager::state::Manager;
use crate::manager::state::pressure::{Shortage, count};
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{NodeId, NodeMask, Order};
use crate::zone::{Zone, ZoneKind};

/// What a node lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackgroundShortage {
    /// Which.
    pub node: NodeId,
    /// How many pages are missing until all of its zones are above their high watermarks.
    pub pages: u64,
}

/// A node's word and bit.
const fn place(node: NodeId) -> (usize, u64) {
    (node.index() / 64, 1 << (node.index() % 64))
}

impl<P: Platform> Manager<P> {
    /// A request goes on to what this mark leaves: below the low one all nodes that it may have are
    /// short.
    #[inline]
    pub(super) fn wake_if_low(&self, mark: Mark, search: &Search) {
        if !matches!(mark, Mark::Low) {
            self.wake_background(search);
        }
    }

    #[cold]
    fn wake_background(&self, search: &Search) {
        let woken = self.pressure.woken_by(search.migrate_type);
        let has_graded = search.migrate_type == MigrateType::Movable;
        let of = |nodes: NodeMask, zone: &Zone| nodes.with(zone.id().node);
        for node in self.zonelist(search).fold(NodeMask::EMPTY, of).nodes() {
            let (word, bit) = place(node);
            // Enough may be free in pieces that are too small: that is no shortage.
            if woken[word].load(Ordering::Relaxed) & bit == 0
                && self.pressure().lack(node, has_graded) != 0
                && woken[word].fetch_or(bit, Ordering::Relaxed) & bit == 0
            {
                count(&self.pressure.counters.background_wakes, 1);
                self.platform.wake_reclaim(node);
            }
        }
    }
}

impl<P: Platform> Pressure<'_, P> {
    /// The node that reclaim in the background should free memory of, if there is one: to be asked
    /// now and then, and again after something was freed, until there is none. It is one of those
    /// that requests found below their low watermarks since all of their zones were above the high
    /// ones.
    #[must_use]
    pub fn background(self) -> Option<BackgroundShortage> {
        let woken = || self.manager.pressure.background.iter();
        loop {
            let words = self.manager.nodes.len().div_ceil(64);
            let last = (0..words).rev().find_map(|word| {
                let nodes = woken().fold(0, |all, woken| all | woken[word].load(Ordering::Relaxed));
                Some(word * 64 + nodes.checked_ilog2()? as usize)
            });
            let node = NodeId::new(last?)?;
            if let Some((pages, _)) = self.missing(node) {
                return Some(BackgroundShortage { node, pages });
            }
        }
    }

    /// Lets the [reclaim hook](Self::set_reclaim) free what nodes [lack](Self::background), until
    /// none lacks anything or it frees nothing more, and returns how many pages it said it freed.
    /// To be called where tasks may wait, on a thread that is woken by
    /// [`Platform::wake_reclaim`], or now and then (Linux: `mm/vmscan.c`, `balance_pgdat`).
    ///
    /// Does nothing without a hook, and from a task or a context that may not be in it
    /// ([`Reclaim`](crate::Reclaim)).
    pub fn reclaim_in_background(self) -> u64 {
        let woken = self.manager.pressure.background.iter().flatten();
        if woken.map(|word| word.load(Ordering::Relaxed)).all(|word| word == 0) {
            return 0;
        }
        let mut freed_pages = 0;
        for node in self.manager.numa().nodes().nodes() {
            for round in 0..RECLAIM_ROUNDS {
                let Some((pages, migrate_type)) = self.missing(node) else { break };
                // Left before others are waited for, as there may be room for one task alone.
                let Some((hook, inside)) = self.manager.enter_hook() else { return freed_pages };
                let freed = hook.reclaim(&Shortage {
                    order: Order::PAGE,
                    pages,
                    node: NodeChoice::Exact(node),
                    nodes: NodeMask::only(node),
                    zone: ZoneKind::Normal,
                    max_address: u64::MAX,
                    migrate_type,
                    round,
                });
                drop(inside);
                freed_pages = u64::saturating_add(freed_pages, freed);
                count(&self.manager.pressure.counters.background_pages, freed);
                if freed == 0 || self.missing(node).is_none() {
                    break;
                }
                // What it freed may be in caches.
                self.manager.drain_for_more();
                if self.missing(node).is_some_and(|(now, _)| now >= pages) {
                    // It frees what does not help. The next request that is short asks again.
                    self.forget(node);
                    break;
                }
            }
        }
        freed_pages
    }

    /// Whether a node lacks something for requests that found it below its low watermarks.
    pub(super) fn is_short(self, node: NodeId) -> bool {
        self.missing(node).is_some()
    }

    /// What a node lacks for the requests that found it below its low watermarks, and what kind
    /// these are; nothing when there were none, or since it has been above the high ones.
    fn missing(self, node: NodeId) -> Option<(u64, MigrateType)> {
        let (word, bit) = place(node);
        for (woken, has_graded) in self.manager.pressure.background.iter().zip([false, true]) {
            if woken[word].load(Ordering::Relaxed) & bit == 0 {
                continue;
            }
            let pages = self.lack(node, has_graded);
            if pages != 0 {
                let kind = if has_graded { MigrateType::Movable } else { MigrateType::Unmovable };
                return Some((pages, kind));
            }
            woken[word].fetch_and(!bit, Ordering::Relaxed);
        }
        None
    }

    /// How many pages are missing until all zones of a node are above their high watermarks, for
    /// requests that may have graded memory or may not.
    fn lack(self, node: NodeId, has_graded: bool) -> u64 {
        let zones = self.manager.views().filter(|zone| zone.id().node == node);
        let lack = zones.map(|zone| {
            let high = zone.watermarks().high_pages;
            if has_graded {
                return high.saturating_sub(zone.free_pages() + zone.withheld_pages());
            }
            // Where all but that much is kept for others, nothing that is freed helps.
            if zone.managed_pages().saturating_sub(zone.most_graded_pages()) <= high {
                return 0;
            }
            let free = zone.free_pages().saturating_sub(zone.graded_free_pages());
            let withheld = zone.withheld_pages().saturating_sub(zone.unaccepted_graded_pages());
            high.saturating_sub(free + withheld)
        });
        lack.sum()
    }

    /// Nobody waits for a node.
    fn forget(self, node: NodeId) {
        let (word, bit) = place(node);
        for woken in &self.manager.pressure.background {
            woken[word].fetch_and(!bit, Ordering::Relaxed);
        }
    }
}
