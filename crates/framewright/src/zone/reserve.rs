//! When movable requests take memory that is set aside for contiguous requests and lent to them
//! meanwhile (Linux's CMA). Which other requests see it is up to `grade`.

/// Whether a request that may use the reserve takes from it first. It does if more than half of the
/// free memory lies there, so that the reserve and the rest fill up together (Linux:
/// `mm/page_alloc.c`, `__rmqueue`). If nothing else is left it takes from the reserve anyway.
/// `free_reserve_pages` are part of `free_pages`.
#[must_use]
pub const fn takes_reserve_first(free_pages: u64, free_reserve_pages: u64) -> bool {
    free_reserve_pages > free_pages / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn movable_requests_take_the_larger_half_first() {
        for (free, reserve, first) in [
            (1000, 501, true),
            (1000, 500, false),
            (1000, 0, false),
            (1001, 501, true),
            (1001, 500, false),
            (0, 0, false),
            (1, 1, true),
            (u64::MAX, u64::MAX, true),
        ] {
            assert_eq!(takes_reserve_first(free, reserve), first, "{reserve} of {free}");
        }
    }

    proptest! {
        /// Takes single pages, from where the rule says, until none is left.
        #[test]
        fn both_become_empty_together(reserve in 0_u64..2000, rest in 0_u64..2000) {
            let (mut left, mut reserve_left) = (reserve + rest, reserve);
            while left != 0 {
                let others = left - reserve_left;
                let from_reserve = others == 0 || takes_reserve_first(left, reserve_left);
                prop_assert!(!from_reserve || reserve_left != 0);
                left -= 1;
                reserve_left -= u64::from(from_reserve);
                // Once they are level they stay so.
                let others = left - reserve_left;
                prop_assert!(reserve_left.abs_diff(others) <= reserve.abs_diff(rest).max(1));
            }
            prop_assert_eq!(reserve_left, 0);
        }
    }
}
