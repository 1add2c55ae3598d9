//! Machines and calls of any shape.

use super::*;

fn any_kind() -> impl Strategy<Value = MemoryKind> {
    prop_oneof![
        6 => Just(MemoryKind::Conventional),
        1 => Just(MemoryKind::HotPluggable),
        1 => Just(MemoryKind::Unaccepted),
        1 => Just(MemoryKind::Reserved),
    ]
}

pub(super) fn any_machine() -> impl Strategy<Value = Machine> {
    let ranges = prop::collection::vec((0..FRAMES, 1..FRAMES, any_kind()), 1..8);
    let claims =
        prop::collection::vec((0..FRAMES, 1..FRAMES, 0..3_usize, prop::bool::weighted(0.2)), 0..6);
    (0..BASES.len(), FRAMES / 2..=FRAMES, ranges, claims).prop_map(
        |(base, limit_frames, ranges, claims)| Machine {
            base: BASES[base],
            limit_frames,
            ranges: ranges
                .into_iter()
                .map(|(start, len, kind)| (start, len.min(FRAMES - start), kind))
                .collect(),
            claims: claims
                .into_iter()
                .map(|(start, len, owner, hot)| (start, len.min(FRAMES - start), owner, hot))
                .collect(),
        },
    )
}

fn any_request() -> impl Strategy<Value = MemblockRequest> {
    let units = UNITS as u64;
    let size = prop_oneof![4 => 1..16_u64, 4 => 16..600_u64, 1 => 600..2 * units];
    let node = prop_oneof![
        2 => Just(NodeChoice::Any),
        1 => (0..4_usize).prop_map(|index| NodeChoice::Preferred(node(index))),
        1 => (0..4_usize).prop_map(|index| NodeChoice::Exact(node(index))),
    ];
    // Limits are relative to the base until the call is made.
    let limits = (prop_oneof![Just(0), 0..=units], prop_oneof![Just(u64::MAX), 0..=units]);
    (size, 0..15_u32, limits, node, any::<(bool, bool, bool)>()).prop_map(
        |(size, align, limits, node, flags)| {
            let (zeroed, no_init, hot_pluggable) = flags;
            MemblockRequest {
                size_bytes: size * UNIT,
                align_bytes: 1 << align,
                min_address: limits.0,
                max_address: limits.1,
                node,
                zeroed,
                no_init,
                hot_pluggable,
            }
        },
    )
}

pub(super) fn any_call() -> impl Strategy<Value = Call> {
    let units = UNITS as u64;
    let len = || prop_oneof![3 => 0..40_u64, 1 => 0..1000_u64];
    prop_oneof![
        4 => (0..units, len()).prop_map(|(start, len)| Call::Reserve { start, len }),
        2 => (0..units, 1..4_u64, 20..250_u64).prop_map(|(start, tooth, count)| Call::Comb {
            start,
            tooth,
            count,
        }),
        4 => (0..units, len()).prop_map(|(start, len)| Call::Free { start, len }),
        1 => (0..units, 0..units).prop_map(|(start, len)| Call::Free { start, len }),
        6 => any_request().prop_map(|request| Call::Allocate { request }),
        1 => (0..FRAMES, 1..20_u64, 0..3_usize, any::<bool>()).prop_map(
            |(frame, frames, node, hot_pluggable)| Call::AddMemory {
                frame,
                frames,
                node,
                hot_pluggable,
            },
        ),
        1 => any::<bool>().prop_map(Call::BottomUp),
        1 => any::<bool>().prop_map(Call::MovableNode),
        1 => (0..units, 0..1000_u64).prop_map(|(start, len)| Call::MarkMirrored { start, len }),
        1 => any::<bool>().prop_map(Call::MirroredFirst),
        1 => (0..=FRAMES).prop_map(Call::RaiseLimit),
    ]
}

/// Keeps a call inside the machine, except at the end of the address space, where the part beyond
/// the end is clipped.
pub(super) fn place_call(call: Call, base: u64) -> Call {
    let units = UNITS as u64;
    let bound = |start: u64, len: u64| if base == BASES[2] { len } else { len.min(units - start) };
    match call {
        Call::Reserve { start, len } => Call::Reserve { start, len: bound(start, len) },
        Call::Free { start, len } => Call::Free { start, len: bound(start, len) },
        Call::MarkMirrored { start, len } => Call::MarkMirrored { start, len: bound(start, len) },
        Call::AddMemory { frame, frames, node, hot_pluggable } => {
            Call::AddMemory { frame, frames: frames.min(FRAMES - frame), node, hot_pluggable }
        }
        Call::Allocate { request } => {
            let lift = |units: u64| if units == u64::MAX { units } else { base + units * UNIT };
            let min_address = if request.min_address == 0 { 0 } else { lift(request.min_address) };
            Call::Allocate {
                request: MemblockRequest {
                    min_address,
                    max_address: lift(request.max_address),
                    ..request
                },
            }
        }
        other => other,
    }
}
