//! Divides memory among nodes by address.

use framewright::units::{BLOCK_SIZE, PhysRange};

/// Cuts present memory, which is ascending and disjoint, into parts by address. The parts hold
/// memory in the proportion of `weights`, to 2 MiB. The first part begins at 0, and the last ends
/// at the end of memory.
pub(super) fn by_weight(present: &[PhysRange], weights: &[u64]) -> Vec<PhysRange> {
    let total: u128 = present.iter().map(|range| u128::from(range.size())).sum();
    let all: u128 = weights.iter().map(|&weight| u128::from(weight)).sum::<u128>().max(1);
    let end = present.last().map_or(0, |range| range.end);
    let (mut parts, mut start, mut weight) = (Vec::new(), 0, 0);
    for (index, &own) in weights.iter().enumerate() {
        weight += u128::from(own);
        // `total` is below 2^64 and weights are at most bytes of memory, so the product fits in 128
        // bits.
        let target = u64::try_from(total * weight / all).unwrap_or(u64::MAX);
        let cut = if index + 1 == weights.len() {
            end
        } else {
            position(present, target) / BLOCK_SIZE * BLOCK_SIZE
        };
        let cut = cut.clamp(start, end.max(start));
        parts.push(PhysRange::new(start, cut));
        start = cut;
    }
    parts
}

/// Returns the address below which there are `bytes` bytes of present memory.
fn position(present: &[PhysRange], mut bytes: u64) -> u64 {
    for range in present {
        if bytes < range.size() {
            return range.start + bytes;
        }
        bytes -= range.size();
    }
    present.last().map_or(0, |range| range.end)
}
