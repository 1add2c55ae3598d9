//! Numbers that look random but are equal in every run.

/// A generator: a counter whose values are mixed (splitmix64).
pub struct Random(u64);

impl Random {
    /// Starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which must not be zero.
    pub fn below(&mut self, end: usize) -> usize {
        // The high half of the product: every value is about equally likely, and no division is
        // needed.
        let product = u128::from(self.next()) * end as u128;
        usize::try_from(product >> 64).expect("less than a usize")
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (2..=items.len()).rev() {
            items.swap(end - 1, self.below(end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffling_keeps_everything_and_repeats_itself() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..1000).collect();
            Random::new(seed).shuffle(&mut items);
            items
        };
        let once = shuffled(1);
        assert_eq!(once, shuffled(1));
        assert_ne!(once, shuffled(2));
        let in_place =
            once.iter().enumerate().filter(|&(index, &item)| index == item as usize).count();
        assert!(in_place < 20, "{in_place} stayed");
        let mut sorted = once;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
    }

    #[test]
    fn numbers_stay_below_their_end() {
        let mut random = Random::new(7);
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[random.below(10)] += 1);
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }
}
