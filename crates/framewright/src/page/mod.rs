//! Pages: what a CPU keeps of them for itself, and what is kept of each.
//!
//! `cache` is a CPU's own store of free pages, made of `words`, stacks and `odd` runs, as large as
//! its `limits`; `near` and `away` tell whose frames it keeps. `record` describes a page,
//! where the adopter wants that; `array` and `inside` are the two places it may have, and `fill` is
//! how it begins. `partial` notes which frames of a block are managed where not all are.
//!
//! Pages out of split blocks are taken and given back under the zone lock, which `zone` does.

mod array;
mod away;
mod cache;
mod fill;
mod inside;
mod limits;
mod near;
mod odd;
mod partial;
mod record;
mod words;

pub(crate) use array::Array;
pub(crate) use cache::{CpuCache, Flow};
pub(crate) use fill::Fill;
pub(crate) use inside::{BlockPages, DESCRIPTOR_FRAMES, DescriptorFrames, Descriptors};
pub(crate) use limits::{MOST_RETURNED, MOST_RUNS, MOST_WORDS};
pub(crate) use near::{Lot, Near};
pub(crate) use partial::{Partial, Partials, frames_of, in_block};
pub use record::{Page, PartOf};
pub(crate) use words::{Put, Runs};
