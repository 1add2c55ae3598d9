//! The sections of a comparison: each boots its machines and returns rows.

pub mod boot;
pub mod compaction;
pub mod memory;
pub mod pools;
pub mod reporting;
pub mod virtio_mem;

use super::lab::{Lab, Shape};
use crate::rows::Compare;

/// The fields that all rows of a machine share.
pub fn common(lab: &Lab, shape: &Shape) -> Compare {
    Compare {
        kernel: lab.kernel().version.clone(),
        accel: lab.accelerator().name().into(),
        cpus: shape.cpus.into(),
        memory_bytes: shape.memory_bytes,
        nodes: shape.nodes.into(),
        ..Compare::default()
    }
}

/// A time in words for users who wait.
fn shown(ms: Option<f64>) -> String {
    ms.map_or("-".into(), |ms| format!("{:.1} s", ms / 1e3))
}
