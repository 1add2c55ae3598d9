//! A small sort. The slices sorted here are short or mostly in order, and the sorts of `core`,
//! which are made for millions of items, are 18 KB of code.

/// Sorts in place. A slice that is in order already costs one pass; any other is heap-sorted, so
/// that no order of the items is slow. The sort is not stable.
#[inline(never)]
pub(crate) fn sort<T: Copy>(items: &mut [T], is_less: &mut dyn FnMut(&T, &T) -> bool) {
    let in_order = |pair: &[T], is_less: &mut dyn FnMut(&T, &T) -> bool| match pair {
        [one, other] => !is_less(other, one),
        _ => true,
    };
    if items.windows(2).all(|pair| in_order(pair, is_less)) {
        return;
    }
    for root in (0..items.len() / 2).rev() {
        sink(items, root, is_less);
    }
    for end in (1..items.len()).rev() {
        items.swap(0, end);
        sink(&mut items[..end], 0, is_less);
    }
}

/// Sinks the item at `root` to its place in the heap; everything below it is a heap already. The
/// item first goes down to a leaf and then up again, which is not far, because few items are larger
/// than those at the leaves.
#[inline(never)]
fn sink<T: Copy>(heap: &mut [T], root: usize, is_less: &mut dyn FnMut(&T, &T) -> bool) {
    let (item, mut at) = (heap[root], root);
    while 2 * at + 1 < heap.len() {
        let mut child = 2 * at + 1;
        if child + 1 < heap.len() && is_less(&heap[child], &heap[child + 1]) {
            child += 1;
        }
        heap[at] = heap[child];
        at = child;
    }
    while at > root {
        let parent = (at - 1) / 2;
        if !is_less(&heap[parent], &item) {
            break;
        }
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = item;
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::sort;
    use std::vec::Vec;

    #[test]
    fn it_sorts_as_the_one_of_core_does() {
        let mut seed = 5_u64;
        for len in (0..40).chain([500]) {
            for _ in 0..20 {
                let mut items: Vec<u64> = (0..len)
                    .map(|_| {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        seed >> 33 & 63
                    })
                    .collect();
                let mut expected = items.clone();
                expected.sort_unstable();
                sort(&mut items, &mut |one, other| one < other);
                assert_eq!(items, expected);
                let mut again = items.clone();
                sort(&mut again, &mut |one, other| one < other);
                assert_eq!(again, expected);
            }
        }
    }
}
