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
    /// The first `pages` frames at `from` or above that are free, one after the other, and begin at
    /// a multiple of `align`. A look without a lock held for long: others may take of them
    /// meanwhile.
    pub(crate) fn free_neighbours<P: Platform>(
        &self,
        platform: &P,
        pages: u64,
        align: Order,
        from: Pfn,
    ) -> Option<PfnRange> {
        self.segments
            .iter()
            .find_map(|segment| self.free_neighbours_in(platform, segment, pages, align, from))
    }

    fn free_neighbours_in<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        pages: u64,
        align: Order,
        from: Pfn,
    ) -> Option<PfnRange> {
        let mut run = Run { start: None, pages, align, from };
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
                    Some(State::Split) => {
                        let words = locked.buddy.table.free_map(next).words();
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

/// Where the run begins that is followed, and what is wanted of it.
struct Run {
    start: Option<Pfn>,
    pages: u64,
    align: Order,
    from: Pfn,
}

impl Run {
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
