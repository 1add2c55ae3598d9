//! Runs of free frames that are not one block: neighbouring blocks that are free, and what is free
//! at the edges of those on either side.

use super::{Segment, Zone};
use crate::block::State;
use crate::block::table::blocks_of;
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};

/// Heads that are looked at under one hold of the lock.
const HEADS_AT_ONCE: u32 = 128;

impl Zone {
    /// Follows a run through a segment of the zone, or until it is long enough. A look without a
    /// lock held for long: others may take of it meanwhile.
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
                let Some((_, state)) = locked.buddy.table.head_of(next) else {
                    run.start = None;
                    next += 1;
                    continue;
                };
                let found = match state.state() {
                    Some(State::Free) => run.extend(start, start.add(state.order().pages())),
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
                next += blocks_of(state.order().max(Order::BLOCK));
            }
        }
        None
    }
}

/// Free frames one after the other, as far as they were followed, and what is wanted of them.
pub(crate) struct FreeRun {
    /// Where it begins.
    start: Option<Pfn>,
    /// Where the memory ends that is looked at.
    end: Pfn,
    pages: u64,
    align: Order,
    from: Pfn,
}

impl FreeRun {
    /// The first `pages` frames at `from` or above that begin at a multiple of `align`.
    pub(crate) const fn new(pages: u64, align: Order, from: Pfn) -> Self {
        Self { start: None, end: from, pages, align, from }
    }

    /// What is looked at next begins at `start`: the run ends where that does not touch.
    fn go_on_at(&mut self, start: Pfn, end: Pfn) {
        if self.end != start {
            self.start = None;
        }
        self.end = end;
    }

    /// What is free goes on up to `end`, from `start` on if it begins there. The run, if it is
    /// long enough by now.
    fn extend(&mut self, start: Pfn, end: Pfn) -> Option<PfnRange> {
        let start = *self.start.get_or_insert(start);
        let first = start.max(self.from).0.checked_next_multiple_of(self.align.pages())?;
        let last = first.checked_add(self.pages)?;
        (last <= end.0).then_some(PfnRange::new(first, last))
    }

    /// Goes over a block from `start` on of which so many frames are free at its beginning, and so
    /// many at its end.
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
