//! Sets of pages, with one bit for each page.

use framewright::units::BLOCK_ORDER;

/// The pages in a 2 MiB block.
pub const BLOCK_PAGES: usize = 1 << BLOCK_ORDER;
const WORDS_PER_BLOCK: usize = BLOCK_PAGES / u64::BITS as usize;

/// A set of page frame numbers; it grows to hold the largest.
#[derive(Clone, Default)]
pub struct PageSet {
    words: Vec<u64>,
    len: u64,
}

impl PageSet {
    fn place(pfn: u64) -> (usize, u64) {
        (usize::try_from(pfn / 64).expect("a machine of this process"), 1 << (pfn % 64))
    }

    /// Adds a page. Returns false if it was in the set already.
    pub fn insert(&mut self, pfn: u64) -> bool {
        let (word, bit) = Self::place(pfn);
        if word >= self.words.len() {
            self.words.resize((word + 1).next_multiple_of(WORDS_PER_BLOCK), 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.len += u64::from(new);
        new
    }

    /// Removes a page. Returns false if it was not in the set.
    pub fn remove(&mut self, pfn: u64) -> bool {
        let (word, bit) = Self::place(pfn);
        let Some(word) = self.words.get_mut(word).filter(|word| **word & bit != 0) else {
            return false;
        };
        *word &= !bit;
        self.len -= 1;
        true
    }

    /// The number of pages.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// All pages, ascending.
    pub fn pages(&self) -> impl Iterator<Item = u64> {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let bits = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            bits.take_while(|&word| word != 0)
                .map(move |word| index as u64 * 64 + u64::from(word.trailing_zeros()))
        })
    }

    /// The first pages of the 2 MiB blocks that lie wholly in this set, ascending.
    pub fn whole_blocks(&self) -> impl Iterator<Item = u64> {
        let blocks = self.words.chunks_exact(WORDS_PER_BLOCK).zip((0..).step_by(BLOCK_PAGES));
        blocks.filter(|(words, _)| words.iter().all(|&word| word == u64::MAX)).map(|(_, pfn)| pfn)
    }

    /// Pages of this set that are not in `other`.
    pub fn without(&self, other: &Self) -> Self {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        let words: Vec<u64> =
            self.words.iter().zip(others).map(|(&word, other)| word & !other).collect();
        let len = words.iter().map(|word| u64::from(word.count_ones())).sum();
        Self { words, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_and_go() {
        let mut set = PageSet::default();
        assert!(set.insert(700) && set.insert(3) && !set.insert(700));
        assert!(set.pages().eq([3, 700]) && set.len() == 2);
        assert!(set.remove(700) && !set.remove(700) && !set.remove(1 << 30));
        assert!(set.pages().eq([3]) && set.len() == 1);
    }

    #[test]
    fn a_block_is_whole_with_all_its_pages() {
        let mut all = PageSet::default();
        (100..2048).for_each(|pfn| assert!(all.insert(pfn)));
        assert!(all.whole_blocks().eq([512, 1024, 1536]));
        let mut taken = PageSet::default();
        taken.insert(1100);
        let left = all.without(&taken);
        assert_eq!(left.len(), 1947);
        assert!(left.whole_blocks().eq([512, 1536]));
    }
}
