//! What is compared: each section boots its machines and gives rows.

pub mod boot;
pub mod memory;
pub mod pools;
pub mod reporting;

use super::lab::{Lab, Shape};
use serde_json::{Map, Value, json};

/// What all rows of a machine share.
pub fn common(lab: &Lab, shape: &Shape) -> Map<String, Value> {
    let mut common = Map::new();
    common.insert("kernel".into(), lab.kernel().version.clone().into());
    common.insert("accel".into(), lab.accelerator().name().into());
    common.insert("cpus".into(), shape.cpus.into());
    common.insert("memory_bytes".into(), shape.memory_bytes.into());
    common.insert("nodes".into(), json!(shape.nodes));
    common
}

/// A time in words for those who wait.
fn shown(ms: Option<f64>) -> String {
    ms.map_or("-".into(), |ms| format!("{:.1} s", ms / 1e3))
}
