//! Makes ranges in any order sorted and disjoint, in the storage that they lie in.

use super::steps::Steps;
use super::{MapRange, MemoryKind};
use crate::units::{PhysRange, sort};

/// Writes ranges one after the other, and joins adjacent ranges of one kind.
pub(super) struct Merger<'a> {
    pub(super) out: &'a mut [MapRange],
    pub(super) len: &'a mut usize,
}

impl Merger<'_> {
    pub(super) fn push(&mut self, new: MapRange) {
        if !self.join(new) {
            self.out[*self.len] = new;
            *self.len += 1;
        }
    }

    /// Extends the last range, which needs no room, if `new` continues it.
    pub(super) fn join(&mut self, new: MapRange) -> bool {
        let last = self.len.checked_sub(1).map(|last| &mut self.out[last]);
        let Some(last) = last else { return false };
        let joins = last.kind == new.kind && last.range.end == new.range.start;
        if joins {
            last.range.end = new.range.end;
        }
        joins
    }
}

/// For each kind, how far the ranges reach that begin at or before the current position of the
/// walk.
struct Reach([u64; MemoryKind::ALL.len()]);

impl Reach {
    /// Writes the ranges from `start` to `end`, between which no range begins: the most restrictive
    /// kind that reaches there, then what that leaves. Each turn but the last ends where a range
    /// does.
    fn write(&self, start: u64, end: u64, out: &mut Merger<'_>, steps: &Steps) {
        let mut position = start;
        while position < end {
            steps.count(1);
            let worst =
                MemoryKind::ALL.into_iter().rev().find(|&kind| self.0[kind as usize] > position);
            let Some(kind) = worst else { return };
            let next = self.0[kind as usize].min(end);
            out.push(MapRange { range: PhysRange::new(position, next), kind });
            position = next;
        }
    }
}

/// Makes the first `ranges` entries sorted and disjoint; on every byte the most restrictive kind
/// wins. Returns the new number of entries. The storage must have at least twice as many entries as
/// there are ranges: `i` ranges form fewer than `2 * i`, so the output written at the front never
/// reaches the input still to be read at the back.
pub(super) fn merge(entries: &mut [MapRange], ranges: usize, steps: &Steps) -> usize {
    // Sorts in place, which needs no second array. It does not keep the order of equal entries,
    // which does not matter here.
    sort(&mut entries[..ranges], &mut |one, other| {
        steps.count(1);
        one.range.start < other.range.start
    });
    let back = entries.len() - ranges;
    entries.copy_within(..ranges, back);
    let mut reach = Reach([0; MemoryKind::ALL.len()]);
    let (mut len, mut position) = (0, 0);
    for index in back..entries.len() {
        let MapRange { range, kind } = entries[index];
        let mut out = Merger { out: &mut *entries, len: &mut len };
        reach.write(position, range.start, &mut out, steps);
        position = range.start;
        let end = &mut reach.0[kind as usize];
        *end = range.end.max(*end);
    }
    reach.write(position, u64::MAX, &mut Merger { out: entries, len: &mut len }, steps);
    len
}
