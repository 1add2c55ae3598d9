//! A model of the firmware intake, page by page: the kind of each byte and so of each page, its
//! node, and its zone.

use framewright::firmware::{MapRange, MemoryAffinity, MemoryKind, NodeRange};
use framewright::units::{
    NodeId, PAGE_SIZE, PAGES_PER_BLOCK, PHYSICAL_ADDRESS_END, Pfn, PfnRange, PhysRange,
};
use std::collections::BTreeMap;

/// What was added, in order.
#[derive(Clone, Copy, Debug)]
enum Told {
    Range(PhysRange, MemoryKind),
    Limit(u64),
}

/// The owner of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageOwner {
    /// The node.
    pub node: NodeId,
    /// Whether the claim says that the memory may be removed.
    pub hot_pluggable: bool,
    /// Whether the page is claimed, or the machine has no claims at all.
    pub claimed: bool,
}

/// The zone of an address, regardless of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ZoneKind {
    /// Below 16 MiB.
    Dma,
    /// Below 4 GiB.
    Dma32,
    /// Everything else.
    Normal,
}

impl ZoneKind {
    /// The zone of a page.
    #[must_use]
    pub fn of(page: Pfn) -> Self {
        match page.address() {
            0..0x100_0000 => Self::Dma,
            0x100_0000..0x1_0000_0000 => Self::Dma32,
            _ => Self::Normal,
        }
    }
}

/// The numbers of pages of one zone of one node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ZoneTotals {
    /// Memory pages, used or not.
    pub present: u64,
    /// Pages that the allocator may hand out.
    pub managed: u64,
    /// All other pages.
    pub reserved: u64,
}

/// A model of the firmware intake. Nothing in it is sorted, joined or split: every question
/// searches everything that was added.
#[derive(Clone, Default, Debug)]
pub struct PageModel {
    told: Vec<Told>,
    claims: Vec<MemoryAffinity>,
}

impl PageModel {
    /// Makes an empty model.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a firmware range.
    pub fn add(&mut self, range: PhysRange, kind: MemoryKind) {
        self.told.push(Told::Range(range, kind));
    }

    /// Removes all memory at and above `limit`.
    pub fn limit(&mut self, limit: u64) {
        self.told.push(Told::Limit(limit));
    }

    /// Adds a node's claim to addresses.
    ///
    /// # Errors
    /// The node that already claims some of the addresses; nothing has changed then.
    pub fn claim(
        &mut self,
        range: PhysRange,
        node: NodeId,
        hot_pluggable: bool,
    ) -> Result<(), NodeId> {
        let overlaps = |other: &&MemoryAffinity| {
            !other.range.intersection(range).is_empty() && other.node != node
        };
        if let Some(other) = self.claims.iter().find(overlaps) {
            return Err(other.node);
        }
        self.claims.push(MemoryAffinity { range, node, hot_pluggable });
        Ok(())
    }

    /// The kind of the byte at `address`: the most restrictive kind that was added.
    #[must_use]
    pub fn byte_kind(&self, address: u64) -> Option<MemoryKind> {
        let mut kind: Option<MemoryKind> = None;
        for told in &self.told {
            match *told {
                Told::Range(range, new) if range.start <= address && address < range.end => {
                    kind = Some(kind.map_or(new, |old| old.max(new)));
                }
                Told::Limit(limit) if address >= limit => {
                    kind = kind.filter(|kind| !kind.shrinks())
                }
                _ => {}
            }
        }
        kind
    }

    /// The kind of a page: the most restrictive kind of its bytes; `None` unless every byte has a
    /// kind.
    #[must_use]
    pub fn page_kind(&self, page: Pfn) -> Option<MemoryKind> {
        let (start, end) = (page.address(), page.address() + PAGE_SIZE);
        if page.0 == 0 || (0xa_0000..0x10_0000).contains(&start) {
            let worst = self.bytes_of(start, end).into_iter().flatten().max();
            return Some(worst.map_or(MemoryKind::Reserved, |kind| kind.max(MemoryKind::Reserved)));
        }
        let bytes = self.bytes_of(start, end);
        let worst = bytes.iter().copied().flatten().max()?;
        (!worst.shrinks() || bytes.iter().all(Option::is_some)).then_some(worst)
    }

    /// The kinds of the bytes of a page, one for each stretch between borders.
    fn bytes_of(&self, start: u64, end: u64) -> Vec<Option<MemoryKind>> {
        let inside = self.edges().filter(|&edge| start < edge && edge < end);
        std::iter::once(start).chain(inside).map(|byte| self.byte_kind(byte)).collect()
    }

    /// The borders of all ranges.
    fn edges(&self) -> impl Iterator<Item = u64> + '_ {
        self.told.iter().flat_map(|told| match *told {
            Told::Range(range, _) => [range.start, range.end],
            Told::Limit(limit) => [limit, limit],
        })
    }

    /// The pages at which something may change: the first of each run that could differ from the
    /// previous page.
    #[must_use]
    pub fn interesting_pages(&self) -> Vec<Pfn> {
        let claims = self.claims.iter().flat_map(|claim| [claim.range.start, claim.range.end]);
        let fixed = [0, PAGE_SIZE, 0xa_0000, 0x10_0000, 0x100_0000, 0x1_0000_0000];
        let around = |edge: u64| [edge / PAGE_SIZE, edge / PAGE_SIZE + 1];
        let mut pages: Vec<u64> =
            self.edges().chain(claims).chain(fixed).flat_map(around).collect();
        pages.retain(|&page| page < PHYSICAL_ADDRESS_END / PAGE_SIZE);
        pages.sort_unstable();
        pages.dedup();
        pages.into_iter().map(Pfn).collect()
    }

    /// The runs of pages for which `of` returns equal values, ascending; pages for which it returns
    /// `None` are left out.
    fn runs<T: PartialEq + Copy>(&self, of: impl Fn(Pfn) -> Option<T>) -> Vec<(PfnRange, T)> {
        let pages = self.interesting_pages();
        let ends = pages.iter().skip(1).copied().chain([Pfn(PHYSICAL_ADDRESS_END / PAGE_SIZE)]);
        let mut runs: Vec<(PfnRange, T)> = Vec::new();
        for (&start, end) in pages.iter().zip(ends) {
            let Some(value) = of(start) else { continue };
            match runs.last_mut() {
                Some((run, last)) if *last == value && run.end == start => run.end = end,
                _ => runs.push((PfnRange { start, end }, value)),
            }
        }
        runs
    }

    /// The finished map.
    #[must_use]
    pub fn map(&self) -> Vec<MapRange> {
        let runs = self.runs(|page| self.page_kind(page));
        runs.into_iter().map(|(run, kind)| MapRange { range: run.to_phys(), kind }).collect()
    }

    /// The node of a page, by the page's first byte. Unclaimed memory goes to the claim that ends
    /// closest below, else to the claim that begins closest above, else to node 0.
    #[must_use]
    pub fn owner(&self, page: Pfn) -> PageOwner {
        let at = page.address();
        // Where claims of one node overlap, the first claim says whether the memory may be removed.
        let direct =
            self.claims.iter().find(|claim| claim.range.start <= at && at < claim.range.end);
        if let Some(claim) = direct {
            return PageOwner {
                node: claim.node,
                hot_pluggable: claim.hot_pluggable,
                claimed: true,
            };
        }
        let claims = || self.claims.iter().filter(|claim| !claim.range.is_empty());
        let below =
            claims().filter(|claim| claim.range.end <= at).max_by_key(|claim| claim.range.end);
        let above =
            claims().filter(|claim| claim.range.start > at).min_by_key(|claim| claim.range.start);
        let node = below.or(above).map_or(NodeId::ZERO, |claim| claim.node);
        PageOwner { node, hot_pluggable: false, claimed: claims().next().is_none() }
    }

    /// Present memory with its nodes, split wherever anything changes.
    #[must_use]
    pub fn node_ranges(&self) -> Vec<NodeRange> {
        let runs = self.runs(|page| {
            let kind = self.page_kind(page).filter(|kind| kind.is_present())?;
            let owner = self.owner(page);
            let least = if owner.hot_pluggable {
                MemoryKind::HotPluggable
            } else {
                MemoryKind::Conventional
            };
            Some((kind.max(least), owner.node, owner.claimed))
        });
        let range = |(range, (kind, node, claimed))| NodeRange { range, kind, node, claimed };
        runs.into_iter().map(range).collect()
    }

    /// The zone that has an entry for `block`: the one with the most present pages in the block, or
    /// the one on the lower node in a tie.
    #[must_use]
    pub fn block_owner(&self, block: u64) -> Option<(NodeId, ZoneKind)> {
        let mut votes: BTreeMap<(NodeId, ZoneKind), u64> = BTreeMap::new();
        for page in block * PAGES_PER_BLOCK..(block + 1) * PAGES_PER_BLOCK {
            if self.page_kind(Pfn(page)).is_some_and(MemoryKind::is_present) {
                *votes.entry((self.owner(Pfn(page)).node, ZoneKind::of(Pfn(page)))).or_default() +=
                    1;
            }
        }
        let most = votes.values().copied().max()?;
        votes.into_iter().find(|&(_, count)| count == most).map(|(zone, _)| zone)
    }

    /// The pages of each zone if the pages in `early` were reserved before hand-over. This visits
    /// every present page, so it is only for small machines.
    #[must_use]
    pub fn zones(&self, early: &[PfnRange]) -> BTreeMap<(NodeId, ZoneKind), ZoneTotals> {
        let mut zones: BTreeMap<(NodeId, ZoneKind), ZoneTotals> = BTreeMap::new();
        let mut owner = (u64::MAX, None);
        for run in self.node_ranges() {
            for page in run.range.start.0..run.range.end.0 {
                let block = page / PAGES_PER_BLOCK;
                if owner.0 != block {
                    owner = (block, self.block_owner(block));
                }
                let zone = (run.node, ZoneKind::of(Pfn(page)));
                let held = early.iter().any(|range| range.contains(Pfn(page)));
                let managed = run.kind.is_usable() && owner.1 == Some(zone) && !held;
                let totals = zones.entry(zone).or_default();
                totals.present += 1;
                if managed {
                    totals.managed += 1;
                } else {
                    totals.reserved += 1;
                }
            }
        }
        zones
    }
}
