//! A model of the frames of zones, one by one: which are free and which are allocated. The model
//! does not say what an allocator must return, but judges what it returned. Isolated frames must
//! not be allocated.

use framewright::units::{NodeId, Order, Pfn, PfnRange};
use std::fmt;

/// A zone of a [`BlockModel`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ZoneId(usize);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Frame {
    /// Not memory, or never handed to the allocator.
    Unmanaged,
    Free,
    Allocated,
}

#[derive(Clone, Debug)]
struct Zone {
    name: String,
    node: NodeId,
    span: PfnRange,
    frames: Vec<Frame>,
    /// Whether each frame is isolated.
    isolated: Vec<bool>,
}

impl Zone {
    /// The frames of `range` as indices, if the range lies in the zone.
    fn indices(&self, range: PfnRange) -> Option<std::ops::Range<usize>> {
        let inside = self.span.start <= range.start && range.end <= self.span.end;
        let index = |pfn: Pfn| {
            usize::try_from(pfn.0 - self.span.start.0).expect("zones of a model are small")
        };
        inside.then(|| index(range.start)..index(range.end))
    }

    fn count(&self, wanted: impl Fn(Frame, bool) -> bool) -> u64 {
        self.frames
            .iter()
            .zip(&self.isolated)
            .filter(|&(&frame, &isolated)| wanted(frame, isolated))
            .count() as u64
    }

    /// The lowest aligned free run of `order` that ends at or below `end`.
    fn find(&self, order: Order, end: Pfn) -> Option<Pfn> {
        let last = self.span.end.0.min(end.0);
        let mut start = self.span.start.0.next_multiple_of(order.pages());
        while start + order.pages() <= last {
            let run = &self.frames[self.indices(PfnRange::new(start, start + order.pages()))?];
            let isolated =
                &self.isolated[self.indices(PfnRange::new(start, start + order.pages()))?];
            if run.iter().all(|&frame| frame == Frame::Free) && !isolated.contains(&true) {
                return Some(Pfn(start));
            }
            start += order.pages();
        }
        None
    }
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The size and alignment.
    pub order: Order,
    /// The end of the allowed addresses.
    pub max_address: u64,
    /// The only allowed node.
    pub node: Option<NodeId>,
    /// The only allowed zones.
    pub zones: Option<Vec<ZoneId>>,
}

impl Wanted {
    /// A request for a run of `order`, anywhere.
    #[must_use]
    pub fn new(order: Order) -> Self {
        Self { order, max_address: u64::MAX, node: None, zones: None }
    }

    fn admits(&self, id: ZoneId, zone: &Zone) -> bool {
        self.node.is_none_or(|node| node == zone.node)
            && self.zones.as_ref().is_none_or(|zones| zones.contains(&id))
    }

    fn end(&self) -> Pfn {
        Pfn::containing(self.max_address)
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} below {:#x}", self.order, self.max_address)?;
        if let Some(node) = self.node {
            write!(f, " on node {node}")?;
        }
        if let Some(zones) = &self.zones {
            write!(f, " in {zones:?}")?;
        }
        Ok(())
    }
}

/// The numbers of a zone's frames.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FrameCounts {
    /// Free frames that are not isolated.
    pub free: u64,
    /// Isolated frames that are free.
    pub isolated: u64,
    /// Allocated frames.
    pub allocated: u64,
}

impl FrameCounts {
    /// All frames that the allocator manages.
    #[must_use]
    pub fn managed(self) -> u64 {
        self.free + self.isolated + self.allocated
    }
}

/// A model of free and allocated frames. Every method that takes an outcome panics with a reason if
/// the outcome is wrong.
///
/// ```
/// use framewright::units::{NodeId, Order, Pfn, PfnRange};
/// use framewright_testkit::model::{BlockModel, Wanted};
///
/// let mut model = BlockModel::new();
/// let zone = model.add_zone("Normal", NodeId::ZERO, PfnRange::new(0, 1024));
/// model.add_free(PfnRange::new(512, 1024));
/// model.allocated(&Wanted::new(Order::BLOCK), Some(Pfn(512)));
/// model.allocated(&Wanted::new(Order::PAGE), None);
/// model.freed(PfnRange::new(600, 601), true);
/// assert_eq!(model.counts(zone).free, 1);
/// ```
#[derive(Clone, Default, Debug)]
pub struct BlockModel {
    zones: Vec<Zone>,
}

impl BlockModel {
    /// Makes a model without zones.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a zone that spans `span`; none of it is managed yet. Spans may not overlap.
    ///
    /// # Panics
    /// If spans overlap.
    pub fn add_zone(&mut self, name: &str, node: NodeId, span: PfnRange) -> ZoneId {
        for other in &self.zones {
            assert!(
                other.span.intersection(span).is_empty(),
                "zones {} and {name} overlap",
                other.name
            );
        }
        let count = usize::try_from(span.pages()).expect("zones of a model are small");
        self.zones.push(Zone {
            name: name.to_owned(),
            node,
            span,
            frames: vec![Frame::Unmanaged; count],
            isolated: vec![false; count],
        });
        ZoneId(self.zones.len() - 1)
    }

    /// Hands frames to the allocator as free.
    ///
    /// # Panics
    /// If they are in no zone or were handed over before.
    pub fn add_free(&mut self, range: PfnRange) {
        self.change(range, Frame::Unmanaged, Frame::Free)
            .unwrap_or_else(|why| panic!("cannot hand over {range:?}: {why}"));
    }

    /// Judges an allocation that returned `result`: the result must satisfy `wanted`, and no result
    /// means that nothing could have satisfied it.
    ///
    /// # Panics
    /// If the result is wrong.
    pub fn allocated(&mut self, wanted: &Wanted, result: Option<Pfn>) {
        let Some(start) = result else {
            if let Some((zone, found)) = self.find(wanted) {
                panic!(
                    "allocating {wanted} failed, but {found:?} in zone {} is free",
                    self.name(zone)
                );
            }
            return;
        };
        assert!(
            start.is_aligned(wanted.order),
            "allocating {wanted} returned {start:?}, which is not aligned"
        );
        let range = PfnRange::new(start.0, start.0 + wanted.order.pages());
        assert!(
            range.end <= wanted.end(),
            "allocating {wanted} returned {range:?}, which is too high"
        );
        let id = self
            .zone_of(range)
            .unwrap_or_else(|| panic!("allocating {wanted} returned {range:?}, in no zone"));
        let zone = &self.zones[id.0];
        assert!(
            wanted.admits(id, zone),
            "allocating {wanted} returned {range:?} of zone {} on node {}",
            zone.name,
            zone.node
        );
        assert!(
            !self.any_isolated(range),
            "allocating {wanted} returned {range:?}, which is isolated"
        );
        self.change(range, Frame::Free, Frame::Allocated)
            .unwrap_or_else(|why| panic!("allocating {wanted} returned {range:?}: {why}"));
    }

    /// Judges an allocation of exactly `range`: it must succeed if and only if all of the range is
    /// free and none of it is isolated.
    ///
    /// # Panics
    /// If the outcome is wrong.
    pub fn allocated_at(&mut self, range: PfnRange, succeeded: bool) {
        if self.any_isolated(range) {
            assert!(!succeeded, "allocating {range:?} succeeded, but some of it is isolated");
            return;
        }
        self.told("allocating", range, succeeded, Frame::Free, Frame::Allocated);
    }

    /// Judges a free of `range`, which may be any part of one or of many allocations: it must
    /// succeed if and only if all of the range is allocated.
    ///
    /// # Panics
    /// If the outcome is wrong.
    pub fn freed(&mut self, range: PfnRange, succeeded: bool) {
        self.told("freeing", range, succeeded, Frame::Allocated, Frame::Free);
    }

    fn any_isolated(&self, range: PfnRange) -> bool {
        self.isolated_of(range).is_some_and(|isolated| isolated.contains(&true))
    }

    fn isolated_of(&self, range: PfnRange) -> Option<&[bool]> {
        let zone = &self.zones[self.zone_of(range)?.0];
        Some(&zone.isolated[zone.indices(range)?])
    }

    fn set_isolated(&mut self, range: PfnRange, isolated: bool) {
        let id = self.zone_of(range).expect("it was looked at");
        let zone = &mut self.zones[id.0];
        let indices = zone.indices(range).expect("the zone was chosen for it");
        zone.isolated[indices].fill(isolated);
    }

    /// Judges the isolation of `range`: it must succeed if and only if the range lies in one zone
    /// and nothing of it is isolated.
    ///
    /// # Panics
    /// If the outcome is wrong.
    pub fn isolated(&mut self, range: PfnRange, succeeded: bool) {
        let could = self.isolated_of(range).is_some_and(|isolated| !isolated.contains(&true));
        assert_eq!(succeeded, could, "isolating {range:?}");
        if could {
            self.set_isolated(range, true);
        }
    }

    /// Judges putting `range` back: it must succeed if and only if all of the range is isolated.
    ///
    /// # Panics
    /// If the outcome is wrong.
    pub fn unisolated(&mut self, range: PfnRange, succeeded: bool) {
        let could = self.isolated_of(range).is_some_and(|isolated| !isolated.contains(&false));
        assert_eq!(succeeded, could, "putting {range:?} back");
        if could {
            self.set_isolated(range, false);
        }
    }

    /// Judges claiming `range`: it must succeed if and only if all of the range is isolated and
    /// free.
    ///
    /// # Panics
    /// If the outcome is wrong.
    pub fn claimed(&mut self, range: PfnRange, succeeded: bool) {
        let isolated = self.isolated_of(range).is_some_and(|isolated| !isolated.contains(&false));
        let could = isolated && self.change(range, Frame::Free, Frame::Allocated).is_ok();
        assert_eq!(succeeded, could, "claiming {range:?}");
        if could {
            self.set_isolated(range, false);
        }
    }

    /// The number of free and of allocated frames in `range`.
    #[must_use]
    pub fn survey(&self, range: PfnRange) -> Option<(u64, u64)> {
        let zone = &self.zones[self.zone_of(range)?.0];
        let frames = &zone.frames[zone.indices(range)?];
        let count = |wanted: Frame| frames.iter().filter(|&&frame| frame == wanted).count() as u64;
        Some((count(Frame::Free), count(Frame::Allocated)))
    }

    fn told(&mut self, doing: &str, range: PfnRange, succeeded: bool, from: Frame, to: Frame) {
        match (self.change(range, from, to), succeeded) {
            (Ok(()), true) | (Err(_), false) => {}
            (Ok(()), false) => panic!("{doing} {range:?} failed, but all of it was {from:?}"),
            (Err(why), true) => panic!("{doing} {range:?} succeeded, but {why}"),
        }
    }

    fn change(&mut self, range: PfnRange, from: Frame, to: Frame) -> Result<(), String> {
        let id = self.zone_of(range).ok_or("it lies in no zone, or in more than one")?;
        let zone = &mut self.zones[id.0];
        let indices = zone.indices(range).expect("the zone was chosen for it");
        let frames = &mut zone.frames[indices];
        if let Some(bad) = frames.iter().position(|&frame| frame != from) {
            let pfn = range.start.add(bad as u64);
            return Err(format!(
                "{pfn:?} of zone {} was {:?}, not {from:?}",
                zone.name, frames[bad]
            ));
        }
        frames.fill(to);
        Ok(())
    }

    fn zone_of(&self, range: PfnRange) -> Option<ZoneId> {
        self.zones.iter().position(|zone| zone.indices(range).is_some()).map(ZoneId)
    }

    /// A place that could satisfy `wanted`.
    #[must_use]
    pub fn find(&self, wanted: &Wanted) -> Option<(ZoneId, Pfn)> {
        self.zones.iter().enumerate().map(|(index, zone)| (ZoneId(index), zone)).find_map(
            |(id, zone)| {
                let found =
                    wanted.admits(id, zone).then(|| zone.find(wanted.order, wanted.end()))??;
                Some((id, found))
            },
        )
    }

    /// The name of a zone.
    ///
    /// # Panics
    /// If the zone is another model's.
    #[must_use]
    pub fn name(&self, zone: ZoneId) -> &str {
        &self.zones[zone.0].name
    }

    /// The numbers of a zone's frames.
    ///
    /// # Panics
    /// If the zone is another model's.
    #[must_use]
    pub fn counts(&self, zone: ZoneId) -> FrameCounts {
        let zone = &self.zones[zone.0];
        FrameCounts {
            free: zone.count(|frame, isolated| frame == Frame::Free && !isolated),
            isolated: zone.count(|frame, isolated| frame == Frame::Free && isolated),
            allocated: zone.count(|frame, _| frame == Frame::Allocated),
        }
    }

    /// The numbers of frames of all zones.
    #[must_use]
    pub fn total(&self) -> FrameCounts {
        let all = (0..self.zones.len()).map(|index| self.counts(ZoneId(index)));
        all.fold(FrameCounts::default(), |sum, zone| FrameCounts {
            free: sum.free + zone.free,
            isolated: sum.isolated + zone.isolated,
            allocated: sum.allocated + zone.allocated,
        })
    }

    /// The maximal allocated runs, ascending in each zone.
    #[must_use]
    pub fn allocated_runs(&self) -> Vec<PfnRange> {
        let mut runs: Vec<PfnRange> = Vec::new();
        for zone in &self.zones {
            for (pfn, frame) in (zone.span.start.0..).zip(&zone.frames) {
                if *frame != Frame::Allocated {
                    continue;
                }
                match runs.last_mut() {
                    Some(run) if run.end.0 == pfn && zone.span.contains(run.start) => {
                        run.end = Pfn(pfn + 1)
                    }
                    _ => runs.push(PfnRange::new(pfn, pfn + 1)),
                }
            }
        }
        runs
    }

    /// The number of aligned free runs of `order` in the zone: the most that its buddy system can
    /// hold.
    ///
    /// # Panics
    /// If the zone is another model's.
    #[must_use]
    pub fn aligned_free(&self, zone: ZoneId, order: Order) -> u64 {
        let zone = &self.zones[zone.0];
        let first = zone.span.start.0.next_multiple_of(order.pages());
        let starts = (first..zone.span.end.0)
            .step_by(usize::try_from(order.pages()).expect("an order fits the host"));
        let runs =
            starts.filter_map(|start| zone.indices(PfnRange::new(start, start + order.pages())));
        runs.filter(|run| zone.frames[run.clone()].iter().all(|&frame| frame == Frame::Free))
            .count() as u64
    }
}
