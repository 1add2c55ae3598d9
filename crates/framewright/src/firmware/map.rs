//! Turns what firmware says into a sorted, disjoint, page-granular memory map.
//!
//! [`MapBuilder`] takes ranges in any order and state and makes them sorted and disjoint **in
//! bytes**: the most restrictive kind wins on every byte. [`MapBuilder::finish`] then rounds to
//! frames. Both work in storage that the caller provides, because nothing can be allocated yet.
//!
//! A range in ascending order is appended. Any other range waits behind the sorted ones until the
//! map is read, as long as the storage is large enough for whatever they form together (`merge`).
//! So the work grows with `n log n`, whatever firmware says.

use super::MemoryKind;
use super::merge::{Merger, merge};
use super::steps::Steps;
use crate::units::{PAGE_SIZE, PHYSICAL_ADDRESS_END, PhysRange};
use core::fmt;

/// One range of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRange {
    /// The bytes.
    pub range: PhysRange,
    /// The kind of memory.
    pub kind: MemoryKind,
}

impl MapRange {
    /// A placeholder to fill storage with.
    pub const EMPTY: Self = Self { range: PhysRange::new(0, 0), kind: MemoryKind::Reserved };
}

/// Why a firmware map was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// No range was given, or all were empty.
    Empty,
    /// There are ranges, but they hold no whole usable frame.
    NoUsableMemory,
    /// Keeping this range apart from the others may need more entries than the storage has. Nothing
    /// was changed.
    TooManyRanges {
        /// The range that did not fit.
        range: PhysRange,
        /// The number of entries in the storage.
        capacity: usize,
    },
    /// The range lies above the highest physical address, or wraps around.
    BeyondAddressSpace {
        /// The first byte, as given.
        start: u64,
        /// The size, as given.
        size_bytes: u64,
    },
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the memory map is empty: firmware gave no range"),
            Self::NoUsableMemory => {
                f.write_str("no usable memory: the map, less mem= and memmap=, has no whole frame")
            }
            Self::TooManyRanges { range, capacity } => {
                write!(
                    f,
                    "the memory map has too many ranges: no room for {range} in {capacity} entries"
                )
            }
            Self::BeyondAddressSpace { start, size_bytes } => write!(
                f,
                "memory range at {start:#x} of {size_bytes:#x} bytes lies beyond the {}-bit \
                 address space",
                crate::units::PHYSICAL_ADDRESS_BITS
            ),
        }
    }
}

impl core::error::Error for MapError {}

/// Collects firmware ranges. See the module documentation.
#[derive(Debug)]
pub struct MapBuilder<'a> {
    entries: &'a mut [MapRange],
    /// The number of entries that are sorted and disjoint.
    len: usize,
    /// The number of entries after them that are still as they came.
    waiting: usize,
    pub(super) steps: Steps,
}

impl<'a> MapBuilder<'a> {
    /// Returns an empty map over `storage`. A map of `n` firmware ranges needs at most `2 * n + 5`
    /// entries. Fewer may suffice, but then ranges that do not ascend are slow when there are
    /// thousands, because each moves all others.
    pub fn new(storage: &'a mut [MapRange]) -> Self {
        Self { entries: storage, len: 0, waiting: 0, steps: Steps::new() }
    }

    /// Adds `size_bytes` bytes from `start`; an empty range is accepted and ignored.
    ///
    /// # Errors
    /// [`MapError::BeyondAddressSpace`] or [`MapError::TooManyRanges`]; the map is then unchanged.
    pub fn add(&mut self, start: u64, size_bytes: u64, kind: MemoryKind) -> Result<(), MapError> {
        if size_bytes == 0 {
            return Ok(());
        }
        let end = start.checked_add(size_bytes).filter(|&end| end <= PHYSICAL_ADDRESS_END);
        let Some(end) = end else {
            return Err(MapError::BeyondAddressSpace { start, size_bytes });
        };
        let new = MapRange { range: PhysRange::new(start, end), kind };
        if self.append(new) || self.defer(new) {
            return Ok(());
        }
        self.settle();
        // There may be room for it to wait now that merging has left fewer entries.
        if self.append(new) || self.defer(new) {
            return Ok(());
        }
        self.cover(new.range, |old| Some(old.map_or(kind, |old| old.max(kind))))
    }

    /// Appends a range, if it lies behind all others.
    fn append(&mut self, new: MapRange) -> bool {
        if self.waiting != 0 {
            return false;
        }
        let last = self.len.checked_sub(1).map(|last| self.entries[last].range.end);
        if last.is_some_and(|end| new.range.start < end) {
            return false;
        }
        let has_room = self.len < self.entries.len();
        let mut merger = Merger { out: &mut self.entries[..], len: &mut self.len };
        if has_room {
            merger.push(new);
        } else if !merger.join(new) {
            return false;
        }
        self.steps.count(1);
        true
    }

    /// Lets a range wait, if there is room for all that it and the others can form together: `n`
    /// ranges have at most `2 * n - 1` intervals between their edges.
    fn defer(&mut self, new: MapRange) -> bool {
        let ranges = self.len + self.waiting + 1;
        let fits = 2 * ranges <= self.entries.len();
        if fits {
            self.entries[ranges - 1] = new;
            self.waiting += 1;
            self.steps.count(1);
        }
        fits
    }

    /// Merges the waiting ranges.
    fn settle(&mut self) {
        if self.waiting != 0 {
            let ranges = self.len + core::mem::take(&mut self.waiting);
            self.len = merge(self.entries, ranges, &self.steps);
        }
    }

    /// Removes all memory, of any kind, at and above `limit` (the parameter `mem=`).
    ///
    /// # Errors
    /// [`MapError::TooManyRanges`] when the cut needs one more entry than there is; the map is then
    /// unchanged.
    pub fn limit(&mut self, limit: u64) -> Result<(), MapError> {
        if limit >= PHYSICAL_ADDRESS_END {
            return Ok(());
        }
        self.settle();
        self.cover(PhysRange::new(limit, PHYSICAL_ADDRESS_END), |old| {
            old.filter(|kind| !kind.shrinks())
        })
    }

    /// Changes the usable memory in `range` to unaccepted, and nothing else.
    ///
    /// # Errors
    /// [`MapError::TooManyRanges`] when the map has no room for the pieces; it is then unchanged.
    pub fn leave_unaccepted(&mut self, range: PhysRange) -> Result<(), MapError> {
        if range.is_empty() {
            return Ok(());
        }
        self.settle();
        self.cover(range, |old| {
            old.map(|kind| if kind.is_usable() { MemoryKind::Unaccepted } else { kind })
        })
    }

    /// Returns the first usable memory from an address on, up to the end of its range.
    pub(super) fn next_usable(&mut self, from: u64) -> Option<PhysRange> {
        self.settle();
        let first = self.settled().partition_point(|entry| entry.range.end <= from);
        self.steps.count(1);
        let mut above = self.settled()[first..].iter();
        let entry = above.find(|entry| {
            self.steps.count(1);
            entry.kind.is_usable()
        })?;
        Some(PhysRange::new(entry.range.start.max(from), entry.range.end))
    }

    /// Returns the ranges so far: sorted and disjoint, in bytes.
    #[must_use]
    pub fn ranges(&mut self) -> &[MapRange] {
        self.settle();
        self.settled()
    }

    /// Returns the ranges, for use when none waits.
    fn settled(&self) -> &[MapRange] {
        &self.entries[..self.len]
    }

    /// Rounds to frames, makes frame 0 and 640 KiB..1 MiB unusable, and returns the finished map.
    ///
    /// # Errors
    /// [`MapError::Empty`], [`MapError::NoUsableMemory`], [`MapError::TooManyRanges`].
    pub fn finish(mut self) -> Result<MemoryMap<'a>, MapError> {
        if self.len + self.waiting == 0 {
            return Err(MapError::Empty);
        }
        // Frame 0 stays unused because too many callers take address 0 for a failure. 640 KiB..1
        // MiB holds video memory and ROMs whatever firmware says (Linux does the same).
        self.add(0, PAGE_SIZE, MemoryKind::Reserved)?;
        self.add(0xa_0000, 0x6_0000, MemoryKind::Reserved)?;
        self.settle();
        self.round_to_frames();
        let map = MemoryMap { ranges: &self.entries[..self.len] };
        if map.ranges.iter().any(|entry| entry.kind.is_usable()) {
            Ok(map)
        } else {
            Err(MapError::NoUsableMemory)
        }
    }

    /// Replaces the kind of every byte in `range` by `change(kind)`, where `None` stands for a
    /// hole. No range may be waiting.
    fn cover(
        &mut self,
        range: PhysRange,
        change: impl Fn(Option<MemoryKind>) -> Option<MemoryKind>,
    ) -> Result<(), MapError> {
        if self.len + self.entries_needed(range, change(None).is_some()) > self.entries.len() {
            return Err(MapError::TooManyRanges { range, capacity: self.entries.len() });
        }
        self.cut(range.start);
        self.cut(range.end);
        let mut index = self.settled().partition_point(|entry| entry.range.end <= range.start);
        let mut position = range.start;
        while position < range.end {
            let next = (index < self.len)
                .then(|| self.entries[index].range)
                .filter(|next| next.start < range.end);
            let hole_end = next.map_or(range.end, |next| next.start);
            if position < hole_end {
                if let Some(kind) = change(None) {
                    self.insert(
                        index,
                        MapRange { range: PhysRange::new(position, hole_end), kind },
                    );
                    index += 1;
                }
                position = hole_end;
            } else if let Some(next) = next {
                position = next.end;
                match change(Some(self.entries[index].kind)) {
                    Some(kind) => {
                        self.entries[index].kind = kind;
                        index += 1;
                    }
                    None => self.remove(index),
                }
            }
        }
        self.join();
        Ok(())
    }

    /// Returns the most entries that [`cover`](Self::cover) adds while it works. It is known before
    /// anything changes, and exact, so that `n` ranges never need more than the `2 * n - 1`
    /// intervals between their edges.
    fn entries_needed(&self, range: PhysRange, fills_holes: bool) -> usize {
        self.steps.count(3 * self.len as u64);
        let inside = |at: u64| {
            self.settled().iter().any(|entry| entry.range.start < at && at < entry.range.end)
        };
        let mut needed = usize::from(inside(range.start)) + usize::from(inside(range.end));
        if fills_holes {
            let mut position = range.start;
            for entry in
                self.settled().iter().filter(|entry| !entry.range.intersection(range).is_empty())
            {
                needed += usize::from(position < entry.range.start);
                position = entry.range.end;
            }
            needed += usize::from(position < range.end);
        }
        needed
    }

    /// Makes `at` a boundary between entries.
    fn cut(&mut self, at: u64) {
        let index = self.settled().partition_point(|entry| entry.range.end <= at);
        if index < self.len && self.entries[index].range.start < at {
            let whole = self.entries[index];
            self.entries[index].range.end = at;
            self.insert(
                index + 1,
                MapRange { range: PhysRange::new(at, whole.range.end), ..whole },
            );
        }
    }

    fn insert(&mut self, index: usize, entry: MapRange) {
        self.entries.copy_within(index..self.len, index + 1);
        self.entries[index] = entry;
        self.len += 1;
    }

    fn remove(&mut self, index: usize) {
        self.entries.copy_within(index + 1..self.len, index);
        self.len -= 1;
    }

    /// Joins adjacent entries of one kind.
    fn join(&mut self) {
        self.steps.count(self.len as u64);
        let mut kept = 0;
        for index in 0..self.len {
            let entry = self.entries[index];
            Merger { out: &mut self.entries[..], len: &mut kept }.push(entry);
        }
        self.len = kept;
    }

    /// Rounds in place. Every run of the output accounts for at least one entry of the input, so
    /// writing never overtakes reading.
    fn round_to_frames(&mut self) {
        let mut out = Rounder { entries: self.entries, len: 0, pending: None };
        for index in 0..self.len {
            let MapRange { range, kind } = out.entries[index];
            let mut position = range.start;
            while position < range.end {
                let frame_start = position & !(PAGE_SIZE - 1);
                let whole_end = range.end & !(PAGE_SIZE - 1);
                if position == frame_start && whole_end > position {
                    out.flush();
                    out.emit(PhysRange::new(position, whole_end), kind);
                    position = whole_end;
                } else {
                    let piece_end = range.end.min(frame_start + PAGE_SIZE);
                    out.touch(frame_start, kind, piece_end - position);
                    position = piece_end;
                }
            }
        }
        out.flush();
        self.len = out.len;
    }
}

/// The state of [`MapBuilder::round_to_frames`]. A frame that several ranges share is decided once
/// the last of them was seen.
struct Rounder<'a> {
    entries: &'a mut [MapRange],
    len: usize,
    pending: Option<(u64, MemoryKind, u64)>,
}

impl Rounder<'_> {
    fn touch(&mut self, frame_start: u64, kind: MemoryKind, bytes: u64) {
        match &mut self.pending {
            Some((start, worst, covered)) if *start == frame_start => {
                *worst = kind.max(*worst);
                *covered += bytes;
            }
            _ => {
                self.flush();
                self.pending = Some((frame_start, kind, bytes));
            }
        }
    }

    fn flush(&mut self) {
        if let Some((start, kind, covered)) = self.pending.take()
            && (covered == PAGE_SIZE || !kind.shrinks())
        {
            self.emit(PhysRange::new(start, start + PAGE_SIZE), kind);
        }
    }

    fn emit(&mut self, range: PhysRange, kind: MemoryKind) {
        Merger { out: &mut self.entries[..], len: &mut self.len }.push(MapRange { range, kind });
    }
}

/// A finished map: sorted, disjoint and page aligned, with neighbours joined. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct MemoryMap<'a> {
    ranges: &'a [MapRange],
}

impl<'a> MemoryMap<'a> {
    /// Returns the ranges, ascending.
    #[must_use]
    pub const fn ranges(self) -> &'a [MapRange] {
        self.ranges
    }

    /// Bytes that zones will count as present.
    #[must_use]
    pub fn present_bytes(self) -> u64 {
        self.ranges
            .iter()
            .filter(|entry| entry.kind.is_present())
            .map(|entry| entry.range.size())
            .sum()
    }

    /// Returns one past the highest present byte.
    #[must_use]
    pub fn present_end(self) -> u64 {
        self.ranges
            .iter()
            .rev()
            .find(|entry| entry.kind.is_present())
            .map_or(0, |entry| entry.range.end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    const COUNT: u64 = 20_000;

    /// Returns the number of steps for ranges that begin where `start` says, and the number of
    /// entries of the map.
    fn steps_of(start: impl Fn(u64) -> u64, capacity: usize) -> (u64, usize) {
        let mut storage = vec![MapRange::EMPTY; capacity];
        let mut builder = MapBuilder::new(&mut storage);
        for number in 0..COUNT {
            let kind =
                [MemoryKind::Conventional, MemoryKind::Reserved][usize::from(number % 3 == 0)];
            builder.add(start(number), 0x1800, kind).expect("there is room");
        }
        let ranges = builder.ranges().len();
        (builder.steps.counted(), ranges)
    }

    #[test]
    fn work_grows_with_ranges_and_not_with_their_square() {
        let at = |place: u64| (1 << 20) + place * 0x2000;
        let most = COUNT * (u64::from(COUNT.ilog2()) + 8);
        let capacity = usize::try_from(2 * COUNT + 5).expect("small");
        for (name, order) in [
            ("ascending", (|number| number) as fn(u64) -> u64),
            ("descending", |number| COUNT - 1 - number),
            (
                "from both ends",
                |number| if number % 2 == 0 { number / 2 } else { COUNT - 1 - number / 2 },
            ),
            ("mixed", |number| number * 7919 % COUNT),
        ] {
            let (steps, ranges) = steps_of(|number| at(order(number)), capacity);
            assert_eq!(ranges as u64, COUNT, "{name}");
            assert!(steps <= most, "{name}: {steps} steps");
        }
        // All ranges overlap.
        let (steps, _) = steps_of(|number| (1 << 20) + number * 7919 % COUNT * 0x100, capacity);
        assert!(steps <= most, "overlapping: {steps} steps");
        // Ascending ranges need no more entries than there are.
        let (steps, _) = steps_of(at, usize::try_from(COUNT).expect("small"));
        assert!(steps <= most, "ascending, in little storage: {steps} steps");
    }

    /// The map, and which ranges do not fit, must not depend on whether it is read after each range
    /// or only at the end.
    #[test]
    fn what_waits_makes_no_difference() {
        let mut seed = 3_u64;
        let mut random = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut refused = 0;
        for round in 0..2000 {
            let capacity = usize::try_from(random(24)).expect("small");
            let ranges: Vec<_> = (0..random(16))
                .map(|_| {
                    (
                        random(64),
                        1 + random(20),
                        MemoryKind::ALL[usize::try_from(random(9)).expect("small")],
                    )
                })
                .collect();
            let (mut one, mut other) =
                (vec![MapRange::EMPTY; capacity], vec![MapRange::EMPTY; capacity]);
            let (mut looked, mut waited) = (MapBuilder::new(&mut one), MapBuilder::new(&mut other));
            for &(start, size, kind) in &ranges {
                let result = looked.add(start, size, kind);
                assert_eq!(waited.add(start, size, kind), result, "round {round}");
                refused += u32::from(result.is_err());
                let _ = looked.ranges();
            }
            assert_eq!(looked.ranges(), waited.ranges(), "round {round}: {ranges:?}");
        }
        assert!(refused > 1000);
    }
}
