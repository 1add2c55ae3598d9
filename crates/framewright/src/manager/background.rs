//! Reclaim in the background: it begins when a request finds a node below its low watermark and
//! ends above the high one, so that requests seldom have to wait for it.
//!
//! There is no thread here: a request leaves a bit and wakes whoever reclaims, who asks for what is
//! missing, or lets the registered hook free it (Linux: `kswapd` in `mm/vmscan.c`).
//!
//! ```text
//!   free pages   high ─────────── enough: the bits are cleared
//!                low  ─────────── a request fails above it: the bits are set
//!                min  ─────────── requests wait (`reclaim`)
//! ```
//!
//! A node that is short has a bit for that and one for having woken somebody. The latter goes when
//! whoever reclaims has done what he could, so that the next request that is short wakes him again.
//!
//! What only movable requests may have is free to them alone: a request of another kind wakes
//! reclaim for what is left of a node without it.
//!
//! Orders of memory: Relaxed: the bits of a node are in one word and stand alone; who misses one
//! that was just set finds it when it asks next.

use crate::block::MigrateType;
use crate::manager::facets::Pressure;
use crate::manager::request::{Mark, Search};
use crate::manager::state::Manager;
use crate::manager::state::pressure::{NODES_PER_WORD, Shortage, count};
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{NodeId, NodeMask, Order};
use crate::zone::{Zone, ZoneKind};
use core::num::NonZeroU64;

/// What a node lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackgroundShortage {
    /// Which.
    pub node: NodeId,
    /// How many pages are missing until all of its zones are above their high watermarks.
    pub pages: u64,
}

/// Of each four bits: the node is short for requests that may not have graded memory, and for those
/// that may. The bits above are set while somebody is awake for each.
const SHORT: u64 = 0x3333_3333_3333_3333;
/// The bit above one of [`SHORT`].
const AWAKE: u32 = 2;

/// A node's word, and its bit for requests of a kind.
const fn place(node: NodeId, has_graded: bool) -> (usize, u64) {
    let first = node.index() % NODES_PER_WORD * 4;
    (node.index() / NODES_PER_WORD, 1 << (first + has_graded as usize))
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
        // What the hook lacks itself would have it called again and again.
        if self.pressure.is_in_hook(self.platform.current_task().map(NonZeroU64::get)) {
            return;
        }
        let has_graded = search.migrate_type == MigrateType::Movable;
        let of = |nodes: NodeMask, zone: &Zone| nodes.with(zone.id().node);
        for node in self.zonelist(search).fold(NodeMask::EMPTY, of).nodes() {
            let (word, short) = place(node, has_graded);
            let (word, awake) = (&self.pressure.background[word], short << AWAKE);
            // Enough may be free in pieces that are too small: that is no shortage.
            if word.load(Ordering::Relaxed) & awake == 0
                && self.pressure().lack(node, has_graded) != 0
                && word.fetch_or(short | awake, Ordering::Relaxed) & awake == 0
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
        loop {
            let words = self.manager.pressure.background.iter().enumerate();
            let last = words.rev().find_map(|(word, bits)| {
                let bits = bits.load(Ordering::Relaxed) & SHORT;
                Some(word * NODES_PER_WORD + bits.checked_ilog2()? as usize / 4)
            });
            let node = NodeId::new(last?)?;
            if let Some(pages) = self.missing(node) {
                return Some(BackgroundShortage { node, pages });
            }
        }
    }

    /// Lets the [reclaim hook](Self::set_reclaim) free what nodes [lack](Self::background), until
    /// none lacks anything or it frees nothing more, and returns how many pages it said it freed.
    /// To be called where tasks may wait, on a thread that is woken by
    /// [`Platform::wake_reclaim`], or now and then (Linux: `mm/vmscan.c`, `balance_pgdat`). A node
    /// that is short afterwards wakes that thread again with the next request that finds it so.
    ///
    /// Asks nobody without a hook, and from a task or a context that may not be in it
    /// ([`Reclaim`](crate::Reclaim)).
    pub fn reclaim_in_background(self) -> u64 {
        let mut freed_pages = 0;
        for node in self.manager.numa().nodes().nodes() {
            for has_graded in [false, true] {
                freed_pages = u64::saturating_add(freed_pages, self.balance(node, has_graded));
            }
        }
        freed_pages
    }

    /// [`reclaim_in_background`](Self::reclaim_in_background) for what requests of one kind lack of
    /// one node.
    fn balance(self, node: NodeId, has_graded: bool) -> u64 {
        let missing = || self.missing_for(node, has_graded);
        let (word, short) = place(node, has_graded);
        let mut done = short << AWAKE;
        let (mut round, mut freed_pages) = (0, 0);
        let mut pages = missing();
        while pages != 0 {
            // Left before others are waited for, as there may be room for one task alone.
            let Some((hook, inside)) = self.manager.enter_hook() else { break };
            let migrate_type =
                if has_graded { MigrateType::Movable } else { MigrateType::Unmovable };
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
            if freed == 0 || missing() == 0 {
                break;
            }
            // What it freed may be in caches.
            self.manager.drain_for_more();
            let now = missing();
            if now >= pages {
                // It frees what does not help. The next request that is short asks again.
                done |= short;
                break;
            }
            (pages, round) = (now, round.saturating_add(1));
        }
        self.manager.pressure.background[word].fetch_and(!done, Ordering::Relaxed);
        freed_pages
    }

    /// Whether a node lacks something for requests that found it below its low watermarks.
    pub(super) fn is_short(self, node: NodeId) -> bool {
        self.missing(node).is_some()
    }

    /// What a node lacks for some of the requests that found it below its low watermarks; nothing
    /// when there were none, or since it has been above the high ones.
    fn missing(self, node: NodeId) -> Option<u64> {
        let missing = [false, true].map(|has_graded| self.missing_for(node, has_graded));
        missing.into_iter().find(|&pages| pages != 0)
    }

    /// What a node lacks for such requests of one kind.
    fn missing_for(self, node: NodeId, has_graded: bool) -> u64 {
        let (word, short) = place(node, has_graded);
        let word = &self.manager.pressure.background[word];
        if word.load(Ordering::Relaxed) & short == 0 {
            return 0;
        }
        let pages = self.lack(node, has_graded);
        if pages == 0 {
            word.fetch_and(!(short | short << AWAKE), Ordering::Relaxed);
        }
        pages
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
}
