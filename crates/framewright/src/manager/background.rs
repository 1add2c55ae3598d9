//! Background reclaim: it begins when a request finds a node below its low watermark and ends above
//! the high one, so that requests seldom have to wait for memory.
//!
//! There is no thread here. A request sets a bit and wakes the adopter's reclaim thread, which asks
//! what is missing, or lets the registered hook free it (Linux: `kswapd` in `mm/vmscan.c`).
//!
//! ```text
//!   free pages   high ─────────── enough: the bits are cleared
//!                low  ─────────── a request fails above it: the bits are set
//!                min  ─────────── requests wait (`reclaim`)
//! ```
//!
//! A node has two pairs of bits, one for requests that may have graded memory and one for others.
//! One bit of a pair says that the node is short, the other that a thread was woken for it. The
//! second is cleared when the thread has done what it could, so that the next request that finds
//! the node short wakes it again.
//!
//! Memory that only movable requests may have counts as free for them alone: a request of another
//! type wakes reclaim according to the rest of the node.
//!
//! Orders of memory: Relaxed: the bits of a node are in one word and stand alone; a thread that
//! misses a bit that was just set finds it when it asks next.

use crate::block::MigrateType;
use crate::manager::facets::Pressure;
use crate::manager::request::{Mark, Search};
use crate::manager::state::Manager;
use crate::manager::state::pressure::{NODES_PER_WORD, Shortage, count};
use crate::manager::zone_view::ZoneView;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{NodeId, NodeMask, Order};
use crate::zone::{Zone, ZoneKind};
use core::num::NonZeroU64;

/// The memory that a node lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackgroundShortage {
    /// The node.
    pub node: NodeId,
    /// The highest of its zones that lacks pages. Pages of higher zones do not help.
    pub zone: ZoneKind,
    /// How many pages are missing until all of its zones are above their high watermarks.
    pub pages: u64,
}

/// In each group of four bits, one for each node, the lower two say that the node is short: for
/// requests that may not have graded memory, and for requests that may. The upper two are set while
/// a thread is awake for each.
const SHORT: u64 = 0x3333_3333_3333_3333;
/// How far the bit for an awake thread is above its bit in [`SHORT`].
const AWAKE: u32 = 2;

/// The index of a node's word, and the node's bit for one kind of request.
const fn place(node: NodeId, has_graded: bool) -> (usize, u64) {
    let first = node.index() % NODES_PER_WORD * 4;
    (node.index() / NODES_PER_WORD, 1 << (first + has_graded as usize))
}

impl<P: Platform> Manager<P> {
    /// Called when a request's pass over the zones goes on to `mark`. If that is below the low
    /// mark, all nodes that the request may use are short.
    #[inline]
    pub(super) fn wake_if_below_low(&self, mark: Mark, search: &Search) {
        if !matches!(mark, Mark::Low) {
            self.wake_background(search);
        }
    }

    #[cold]
    fn wake_background(&self, search: &Search) {
        // Memory that the hook itself lacks would wake reclaim, and so call the hook, again and
        // again.
        if self.pressure.is_in_hook(self.platform.current_task().map(NonZeroU64::get)) {
            return;
        }
        let has_graded = search.migrate_type == MigrateType::Movable;
        let of = |nodes: NodeMask, zone: &Zone| nodes.with(zone.id().node);
        for node in self.zonelist(search).fold(NodeMask::EMPTY, of).nodes() {
            let (word, short) = place(node, has_graded);
            let (word, awake) = (&self.pressure.background[word], short << AWAKE);
            // Enough memory may be free in runs that are too small: that is no shortage.
            if word.load(Ordering::Relaxed) & awake == 0
                && self.pressure().lack(node, has_graded).pages != 0
                && word.fetch_or(short | awake, Ordering::Relaxed) & awake == 0
            {
                count(&self.pressure.counters.background_wakes, 1);
                self.platform.wake_reclaim(node);
            }
        }
    }
}

impl<P: Platform> Pressure<'_, P> {
    /// The node whose memory background reclaim should free next, if there is one. Ask now and
    /// then, and again after freeing something, until there is none. A node is returned if a
    /// request found it below its low watermarks and not all of its zones have been above their
    /// high ones since.
    #[must_use]
    pub fn background(self) -> Option<BackgroundShortage> {
        loop {
            let words = self.manager.pressure.background.iter().enumerate();
            let last = words.rev().find_map(|(word, bits)| {
                let bits = bits.load(Ordering::Relaxed) & SHORT;
                Some(word * NODES_PER_WORD + bits.checked_ilog2()? as usize / 4)
            });
            let node = NodeId::new(last?)?;
            if let Some(Lack { pages, zone }) = self.missing(node) {
                return Some(BackgroundShortage { node, zone, pages });
            }
        }
    }

    /// Lets the [reclaim hook](Self::set_reclaim) free what nodes [lack](Self::background), until
    /// no node lacks anything, the hook frees nothing more, or what it frees does not help. Returns
    /// how many pages the hook said it freed. Call this where tasks may wait, on a thread that
    /// [`Platform::wake_reclaim`] wakes, or now and then (Linux: `mm/vmscan.c`, `balance_pgdat`).
    /// If a node is still short afterwards, the next request that finds it short wakes the thread
    /// again.
    ///
    /// Does nothing without a hook, or in a task or context that may not be inside the hook
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

    /// [`reclaim_in_background`](Self::reclaim_in_background) for what requests of one kind lack on
    /// one node.
    fn balance(self, node: NodeId, has_graded: bool) -> u64 {
        let missing = || self.missing_for(node, has_graded);
        let (word, short) = place(node, has_graded);
        let mut done = short << AWAKE;
        let (mut round, mut freed_pages) = (0, 0);
        let mut lack = missing();
        while lack.pages != 0 {
            // The hook is left before this waits for other CPUs, as it may have room for one task
            // only.
            let Some((hook, inside)) = self.manager.enter_hook() else { break };
            let migrate_type =
                if has_graded { MigrateType::Movable } else { MigrateType::Unmovable };
            let freed = hook.reclaim(&Shortage {
                order: Order::PAGE,
                pages: lack.pages,
                node: NodeChoice::Exact(node),
                nodes: NodeMask::only(node),
                zone: lack.zone,
                max_address: u64::MAX,
                migrate_type,
                round,
            });
            drop(inside);
            freed_pages = u64::saturating_add(freed_pages, freed);
            count(&self.manager.pressure.counters.background_pages, freed);
            if freed == 0 || missing().pages == 0 {
                break;
            }
            // The memory that the hook freed may be in caches.
            self.manager.drain_for_more();
            let now = missing();
            if now.pages >= lack.pages {
                // The hook frees memory that does not help. The next request that finds the node
                // short asks again.
                done |= short;
                break;
            }
            (lack, round) = (now, round.saturating_add(1));
        }
        self.manager.pressure.background[word].fetch_and(!done, Ordering::Relaxed);
        freed_pages
    }

    /// Whether a node still lacks something for requests that found it below its low watermarks.
    pub(super) fn is_short(self, node: NodeId) -> bool {
        self.missing(node).is_some()
    }

    /// How many pages a node lacks for one kind of request that found it below its low watermarks.
    /// `None` when no request did, or the node has been above the high ones since.
    fn missing(self, node: NodeId) -> Option<Lack> {
        let missing = [false, true].map(|has_graded| self.missing_for(node, has_graded));
        missing.into_iter().find(|lack| lack.pages != 0)
    }

    /// How many pages a node lacks for such requests of one kind.
    fn missing_for(self, node: NodeId, has_graded: bool) -> Lack {
        let (word, short) = place(node, has_graded);
        let word = &self.manager.pressure.background[word];
        if word.load(Ordering::Relaxed) & short == 0 {
            return Lack::NONE;
        }
        let lack = self.lack(node, has_graded);
        if lack.pages == 0 {
            word.fetch_and(!(short | short << AWAKE), Ordering::Relaxed);
        }
        lack
    }

    /// How many pages are missing until all zones of a node are above their high watermarks, for
    /// requests that may have graded memory or may not.
    #[inline(never)]
    fn lack(self, node: NodeId, has_graded: bool) -> Lack {
        let mut lack = Lack::NONE;
        // Lower zones come first.
        for zone in self.manager.views().filter(|zone| zone.id().node == node) {
            let pages = lack_of(&zone, has_graded);
            if pages != 0 {
                lack = Lack { pages: lack.pages + pages, zone: zone.id().kind };
            }
        }
        lack
    }
}

/// How many pages a node lacks, and the highest zone that lacks some.
#[derive(Clone, Copy)]
struct Lack {
    pages: u64,
    zone: ZoneKind,
}

impl Lack {
    const NONE: Self = Self { pages: 0, zone: ZoneKind::Dma };
}

/// How many pages a zone lacks.
#[inline(never)]
fn lack_of<P: Platform>(zone: &ZoneView<'_, P>, has_graded: bool) -> u64 {
    let Some(part) = zone.parts().first() else { return 0 };
    if has_graded {
        let mut high = part.high_pages(MigrateType::Movable);
        if part.has_graded_limits() {
            // A node's highest zone keeps nothing back from others. What it keeps from movable
            // requests counts, or they could fail before the node is short.
            let [.., of_others, of_movable] = part.lowmem_reserve();
            let own = part.high_pages(MigrateType::Unmovable);
            let above = zone.parts().sum(&Zone::ungraded_free_pages).saturating_sub(own);
            let reserve = if of_others == 0 { of_movable.min(above) } else { 0 };
            high = high.saturating_add(reserve);
        }
        return high.saturating_sub(zone.free_pages() + zone.withheld_pages());
    }
    let high = part.high_pages(MigrateType::Unmovable);
    // Where nearly all memory is kept for other requests, nothing that is freed helps this kind.
    if zone.managed_pages().saturating_sub(zone.most_graded_pages()) <= high {
        return 0;
    }
    high.saturating_sub(zone.parts().sum(&Zone::ungraded_free_pages))
}
