//! Runs of free frames that are larger than a block: neighbouring free blocks, and the free frames
//! at the edges of the split blocks on either side.

use super::{Segment, Zone};
use crate::block::State;
use crate::block::table::blocks_of;
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};

/// How many heads are looked at under one hold of the lock.
const HEADS_AT_ONCE: u32 = 128;

impl Zone {
    /// Follows a run through a segment of the zone until it is long enough or the segment ends. The
    /// lock is not held throughout: others may take frames of the run meanwhile.
    pub(crate) fn follow_free<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        run: &mut FreeRun,
    ) -> Option<PfnRange> {
        run.go_on_at(segment.start.start(), segment.end().start());
        let indices = segment.indices();
        let mut next = indices.start;
        while next < indices.end {
            let locked = self.read_coalesced(platform);
            for _ in 0..HEADS_AT_ONCE {
                if next >= indices.end {
                    break;
                }
                let start = segment.block_of(next).start();
                let Some((head, state)) = locked.buddy.table.head_of(next) else {
                    run.start = None;
                    next += 1;
                    continue;
                };
                // If blocks merged while the lock was open, the head may lie before this block.
                let after = head + blocks_of(state.order().max(Order::BLOCK));
                let end = segment.block_of(head).start().add(state.order().pages());
                let found = match state.state() {
                    Some(State::Free) => run.extend(start, end),
                    Some(State::Split) if !state.is_unavailable() => {
                        let words = locked.buddy.table.cold_free_map(next).words();
                        run.cross(start, leading(&words), trailing(&words))
                    }
                    _ => {
                        run.start = None;
                        None
                    }
                };
                if found.is_some() {
                    return found;
                }
                next = after;
            }
        }
        None
    }
}

/// Consecutive free frames as far as they were followed, and what is wanted of them.
pub(crate) struct FreeRun {
    /// Where the current run begins, if there is one.
    start: Option<Pfn>,
    /// Where the memory that is being looked at ends.
    end: Pfn,
    pages: u64,
    align: Order,
    from: Pfn,
}

impl FreeRun {
    /// Asks for the first run of `pages` frames at `from` or above that begins at a multiple of
    /// `align`.
    pub(crate) const fn new(pages: u64, align: Order, from: Pfn) -> Self {
        Self { start: None, end: from, pages, align, from }
    }

    /// Goes on with the memory from `start` to `end`. The run ends if that does not adjoin the
    /// memory before.
    fn go_on_at(&mut self, start: Pfn, end: Pfn) {
        if self.end != start {
            self.start = None;
        }
        self.end = end;
    }

    /// Extends the run to `end`, or begins one at `start`. Returns the wanted run once it is long
    /// enough.
    fn extend(&mut self, start: Pfn, end: Pfn) -> Option<PfnRange> {
        let start = *self.start.get_or_insert(start);
        let first = start.max(self.from).0.checked_next_multiple_of(self.align.pages())?;
        let last = first.checked_add(self.pages)?;
        (last <= end.0).then_some(PfnRange::new(first, last))
    }

    /// Goes on over a block at `start` that has `leading` free frames at its beginning and
    /// `trailing` ones at its end.
    fn cross(&mut self, start: Pfn, leading: u64, trailing: u64) -> Option<PfnRange> {
        let end = start.add(PAGES_PER_BLOCK);
        let found = if leading == 0 { None } else { self.extend(start, start.add(leading)) };
        if leading < PAGES_PER_BLOCK {
            self.start = (trailing != 0).then_some(Pfn(end.0 - trailing));
        }
        found
    }
}

fn leading<const WORDS: usize>(words: &[u64; WORDS]) -> u64 {
    let whole = words.iter().take_while(|&&word| word == u64::MAX).count();
    let rest = words.get(whole).map_or(0, |word| word.trailing_ones());
    whole as u64 * 64 + u64::from(rest)
}

fn trailing<const WORDS: usize>(words: &[u64; WORDS]) -> u64 {
    let whole = words.iter().rev().take_while(|&&word| word == u64::MAX).count();
    let rest = words.iter().rev().nth(whole).map_or(0, |word| word.leading_ones());
    whole as u64 * 64 + u64::from(rest)
}
