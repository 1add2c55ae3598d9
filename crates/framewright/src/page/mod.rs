//! The page tier: 4 KiB to 1 MiB out of split blocks.
//!
//! `cache` holds what a CPU keeps for itself. A split block's free frames are the set bits of its
//! free map. `room` finds a split block that has a run of an order; `tier` splits, takes, frees and
//! makes whole again, under the zone lock, `halves` by short ways for what was taken whole, in
//! pieces; `anywhere` is its search when placement is left to chance. `record` is what is kept of a
//! page, where the adopter wants that, `array` and `inside` where it is kept, `fill` how it begins,
//! and `held` what the tier does with that and with frames that are held back.

mod anywhere;
mod array;
mod cache;
mod fill;
mod halves;
mod inside;
mod partial;
mod record;
mod tier;
mod unavailable;

pub(crate) use array::Array;
pub(crate) use cache::{CpuCache, Flow, MOST_FREED, MOST_RETURNED, MOST_RUNS, Put, Runs};
pub(crate) use fill::Fill;
pub(crate) use halves::HALF;
pub(crate) use inside::{Descriptors, MAP_FRAMES, Map, MapFrames};
pub(crate) use partial::{Partial, first_unmanaged};
pub use record::{Page, PartOf};
pub(crate) use tier::{Refused, Tier};
