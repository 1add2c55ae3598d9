//! Undo: finds every maximal range whose chunks succeeded, in ascending order.

use core::ops::Range;

/// Calls `undo` for every range that was claimed and did not fail. `claimed` yields the claimed
/// ranges in ascending order; `next_failed` returns the first failed range that begins at or after
/// a position. Each failed range lies within one claimed range. Adjacent ranges are joined.
pub(super) fn undo_succeeded(
    claimed: impl Iterator<Item = Range<u64>>,
    next_failed: impl Fn(u64) -> Option<Range<u64>>,
    mut undo: impl FnMut(Range<u64>),
) {
    let mut open = 0..0;
    let mut add = |piece: Range<u64>| {
        if piece.is_empty() {
            return;
        }
        if open.end == piece.start && !open.is_empty() {
            open.end = piece.end;
        } else {
            let ready = core::mem::replace(&mut open, piece);
            if !ready.is_empty() {
                undo(ready);
            }
        }
    };
    for range in claimed {
        let mut at = range.start;
        while let Some(failed) = next_failed(at).filter(|failed| failed.start < range.end) {
            add(at..failed.start);
            // A chunk has at least one unit.
            at = failed.end.max(failed.start + 1);
        }
        add(at..range.end);
    }
    if !open.is_empty() {
        undo(open);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn gaps_between_failures_are_undone_once_and_in_order() {
        let failed = [10..20, 20..25, 40..50, 99..100];
        let next = |at| failed.iter().find(|range| range.start >= at).cloned();
        let mut undone = Vec::new();
        undo_succeeded([0..30, 30..50, 60..70, 70..100].into_iter(), next, |range| {
            undone.push(range)
        });
        assert_eq!(undone, [0..10, 25..40, 60..99]);
    }
}
