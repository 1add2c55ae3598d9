//! Framewright in a Linux process.
//!
//! [`source`] finds out which memory, nodes and CPUs a machine has: this machine, one that a file
//! describes, or a synthetic one. [`platform`] lets a process stand in for such a machine: threads
//! are its CPUs and one reserved mapping is its physical memory, so a machine of 24 TiB can be
//! brought up on a small one. [`reporting`] gives free memory back to the operating system.
//! [`jobs`] is the crate `framewright-jobs-linux`: threads that help with multithreaded jobs and
//! use no more CPUs than their caller may use.
//!
//! ```no_run
//! use framewright::firmware::{MapBuilder, Topology};
//! use framewright_hosted::{HostedPlatform, Machine};
//!
//! let machine = Machine::this()?;
//! let (mut ranges, mut claims) = (machine.map_storage(), machine.topology_storage());
//! let (mut map, mut topology) = (MapBuilder::new(&mut ranges), Topology::new(&mut claims));
//! machine.load(&mut map, &mut topology)?;
//! let map = map.finish()?;
//! let platform = HostedPlatform::open(map, machine.cpu_count())?;
//! let platform = platform.with_cpu_nodes(&machine.cpu_nodes()).leak();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod platform;
pub mod reporting;
pub mod source;

pub use framewright_jobs_linux as jobs;
pub use framewright_jobs_linux::HostedHelpers;
pub use platform::{CpuToken, HostNodes, HostedError, HostedPlatform, Layout};
pub use reporting::{Advice, MadviseDevice};
pub use source::{Affinity, CpuAffinity, Machine, SizeError, SourceError, parse_size};
