//! What every [`VmemmapSpace`](framewright::vmemmap_space::VmemmapSpace) must do, as a suite
//! without heap or threads that runs in tests and on machines; and a random history for spaces
//! whose tables can be read.

mod contract;
mod fault;
mod faulty;
mod fixture;
mod history;
mod trial;

pub use contract::vmemmap_space_contract;
pub use fault::AccessFault;
pub use faulty::FaultyFrames;
pub use fixture::VmemmapSpaceFixture;
pub use history::{Translation, Walkable, vmemmap_space_history};
pub use trial::TrialSpace;
