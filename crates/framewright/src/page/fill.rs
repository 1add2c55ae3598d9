//! Initial values of page descriptors.

use crate::stores::{Line, Store};
use core::ptr::NonNull;

/// The words of a descriptor that a template sets: all but the first, which the manager owns.
pub(crate) const TEMPLATE_WORDS: usize = 7;

/// The initial value of descriptors, and how to write it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    /// How to write; none if the memory already holds the initial values.
    store: Option<Store>,
    /// What follows the first eight bytes, which are zero.
    words: [u64; TEMPLATE_WORDS],
}

impl Fill {
    /// 64 zero bytes, which the memory already holds.
    pub(crate) const KNOWN_ZERO: Self = Self { store: None, words: [0; TEMPLATE_WORDS] };

    /// Begins with eight zero bytes, then `words`, written as `store` decides for such a line.
    pub(crate) fn new(words: [u64; TEMPLATE_WORDS], store: impl FnOnce(&Line) -> Store) -> Self {
        Self { store: Some(store(&line(words))), words }
    }

    /// Returns the words that follow the first eight bytes.
    pub(crate) const fn words(&self) -> &[u64; TEMPLATE_WORDS] {
        &self.words
    }

    /// Writes `count` descriptors from `start` on, before any later store. It builds the line to be
    /// copied once for all of them.
    ///
    /// # Safety
    /// `start` must be aligned to 64 bytes, and `count` times 64 bytes from there on must be
    /// writable and belong to nobody else (invariant 28).
    pub(crate) unsafe fn write(self, start: NonNull<u8>, count: usize) {
        if let Some(store) = self.store {
            // SAFETY: the caller promises it; the store was chosen for this content.
            unsafe { store.write(start, count, &line(self.words)) };
        }
    }
}

fn line(words: [u64; TEMPLATE_WORDS]) -> Line {
    let mut line = Line::ZERO;
    line.0[1..].copy_from_slice(&words);
    line
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn filled(fill: Fill, count: usize, written: core::ops::Range<usize>) -> Vec<Line> {
        let mut all = std::vec![Line([u64::MAX; 8]); count];
        let start = NonNull::from(&mut all[written.start]).cast();
        // SAFETY: the vector is ours and long enough (invariant 44).
        unsafe { fill.write(start, written.len()) };
        all
    }

    #[test]
    fn exactly_what_was_asked_for_is_written() {
        let template = [1, 2, 3, 4, 5, 6, 7];
        for (fill, value) in [
            (Fill::new([0; TEMPLATE_WORDS], Store::of_this_cpu), Line::ZERO),
            (Fill::new(template, Store::of_this_cpu), Line([0, 1, 2, 3, 4, 5, 6, 7])),
            (Fill::KNOWN_ZERO, Line([u64::MAX; 8])),
        ] {
            for written in [3..3, 3..4, 5..7, 2..5, 9..13, 1..512, 7..1000] {
                let all = filled(fill, 1001, written.clone());
                for (index, &descriptor) in all.iter().enumerate() {
                    let expected =
                        if written.contains(&index) { value } else { Line([u64::MAX; 8]) };
                    assert_eq!(descriptor, expected, "{fill:?} {index}");
                }
            }
        }
    }

    #[test]
    fn the_store_is_asked_for_by_content_and_used() {
        unsafe fn count(start: NonNull<u8>, lines: usize, line: &Line) {
            let mut found = *line;
            found.0[0] = lines as u64;
            // SAFETY: the test's own memory, with room for a line (invariant 44).
            unsafe { start.cast::<Line>().write(found) };
        }
        static COUNT: crate::stores::StoreParts =
            crate::stores::StoreParts { name: "count", write: count };
        let mut asked = Line::ZERO;
        let fill = Fill::new([7; TEMPLATE_WORDS], |line| {
            asked = *line;
            // SAFETY: it writes one of the test's own lines, which the test then examines
            // (invariant 44).
            unsafe { Store::new(&COUNT) }
        });
        assert_eq!(asked, Line([0, 7, 7, 7, 7, 7, 7, 7]));
        let all = filled(fill, 9, 2..6);
        assert_eq!(all[2], Line([4, 7, 7, 7, 7, 7, 7, 7]));
        assert!(all[3..].iter().all(|line| *line == Line([u64::MAX; 8])));
    }
}
