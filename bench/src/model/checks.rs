//! Predictions beside measurements on this machine, for machines and pools of other sizes than
//! those that calibrate the model.

use super::calibrate;
use super::costs::{Costs, Line};
use super::here::{self, Pool, Times};
use super::predict::{self, Maps, Resize};
use super::shape::Shape;
use crate::bench::common::synthetic;
use crate::bench::host;
use crate::progress;
use crate::rows::{Measured, Model, Signed};
use framewright::hugetlb::PoolSize;
use framewright_cli::error::Error;

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Scale {
    /// The number of runs of each row.
    pub runs: usize,
    /// The memory sizes of machines that are measured with all policies.
    pub memory_bytes: &'static [u64],
    /// The memory size of the machine with a vmemmap whose pools are resized.
    pub map_memory_bytes: u64,
}

/// The scale for a first look.
pub const QUICK: Scale = Scale { runs: 9, memory_bytes: &[8 << 30], map_memory_bytes: 8 << 30 };
/// The full scale.
pub const FULL: Scale =
    Scale { runs: 25, memory_bytes: &[8 << 30, 32 << 30], map_memory_bytes: 16 << 30 };

/// Machines whose bring-up is predicted: those of `framewright-bench bring-up`.
const MACHINES: [(&str, u64, u32); 3] =
    [("8G/1 node", 8 << 30, 1), ("768G/2 nodes", 768 << 30, 2), ("24T/16 nodes", 24 << 40, 16)];

/// If helpers get less of a CPU than this, rows of several threads would only measure the load by
/// others.
pub const LEAST_SHARE: f64 = 0.8;

/// All rows, and what is left out.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or a pool did not get its pages.
pub fn rows(costs: &Costs, scale: Scale) -> Result<(Vec<Model>, Vec<String>), Error> {
    let mut cpus = u32::try_from(host::cpus()?.len()).unwrap_or(u32::MAX);
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    if cpus > 1 && costs.helper_share < LEAST_SHARE {
        let percent = costs.helper_share * 100.0;
        left_out.push(format!(
            "several threads: a helper gets {percent:.0} % of a CPU here, since the machine is busy"
        ));
        rows.push(not_measured(cpus));
        cpus = 1;
    }
    // System calls that unmap memory also flush translations, so their rate includes the flushes.
    let mut costs = Costs { flush: Line::default(), ..*costs };
    for (name, memory_bytes, nodes) in MACHINES {
        progress::step(&format_args!("model: bring-up of {name}"))?;
        let (times, shape) = here::bring_up(&synthetic(memory_bytes, nodes, nodes)?, scale.runs)?;
        rows.push(row("bring-up", name, 1, predict::bring_up(&costs, &shape), times));
    }
    for &memory_bytes in scale.memory_bytes {
        let name = format!("{}G/1 node", memory_bytes >> 30);
        progress::step(&format_args!("model: memory map of {name}"))?;
        let machine = synthetic(memory_bytes, 1, cpus)?;
        let shape = Shape::of(&machine)?;
        rows.push(row(
            "eager",
            &name,
            1,
            predict::eager(&costs, &shape),
            here::all_memory(&machine, "eager", 1, scale.runs)?,
        ));
        for threads in all_or_one(cpus) {
            if threads > 1 {
                // Which host CPUs run this machine's CPUs, and so what they share, changes within
                // seconds.
                calibrate::together(&mut costs)?;
            }
            let predicted = predict::deferred(&costs, &shape, |_| threads, true);
            rows.push(row(
                "deferred",
                &name,
                threads,
                predicted,
                here::all_memory(&machine, "deferred", threads, scale.runs)?,
            ));
        }
    }
    let machine = synthetic(64 << 30, 1, cpus)?;
    let plain = Pool::open(&machine, false)?;
    for (size, pages) in [
        (PoolSize::TwoMib, 10_000),
        (PoolSize::TwoMib, 30_000),
        (PoolSize::OneGib, 12),
        (PoolSize::OneGib, 60),
    ] {
        let resize = Resize { size, pages, maps: Maps::Kept, most: 1, cpus, nodes: 1 };
        rows.extend(resized(&costs, resize, &plain, scale.runs * 3)?);
    }
    let machine = synthetic(scale.map_memory_bytes, 1, cpus)?;
    let mapped = Pool::open(&machine, true)?;
    let blocks = scale.map_memory_bytes >> 21;
    for (size, pages) in [(PoolSize::TwoMib, blocks / 8), (PoolSize::OneGib, blocks / 2048)] {
        for maps in [Maps::Lazy, Maps::Eager] {
            for most in all_or_one(cpus) {
                let resize = Resize { size, pages, maps, most, cpus, nodes: 1 };
                // What one thread does whatever is allowed was measured with one.
                if most > 1 && resize.empty_threads() == 1 {
                    continue;
                }
                calibrate::system(&mut costs)?;
                rows.extend(resized(&costs, resize, &mapped, scale.runs)?);
            }
        }
    }
    Ok((rows, left_out))
}

/// One row in place of all rows of several threads; the other rows cannot vouch for these.
pub fn not_measured(threads: u32) -> Model {
    Model {
        source: "here".into(),
        what: "several threads".into(),
        threads: threads.into(),
        ..Model::default()
    }
}

fn all_or_one(cpus: u32) -> Vec<u32> {
    if cpus > 1 { vec![1, cpus] } else { vec![1] }
}

/// Filling and emptying a pool, predicted and measured.
fn resized(
    costs: &Costs,
    resize: Resize,
    pool: &Pool<'_>,
    runs: usize,
) -> Result<[Model; 2], Error> {
    let Resize { size, pages, maps, most, .. } = resize;
    progress::step(&format_args!("model: {pages} pages of {size}, {}", maps.name()))?;
    let (fill, empty) = pool.resize(size, pages, maps, most, runs)?;
    let name = format!("{pages} pages");
    // The system takes memory back more slowly that several threads wrote.
    let filled = match resize.empty_threads() {
        1 => name.clone(),
        threads => format!("{name}, map by {threads} threads"),
    };
    let what = |action: &str| format!("pool {size}, {action}, {}", maps.name());
    Ok([
        row(&what("fill"), &filled, resize.fill_threads(), resize.fill(costs), fill),
        row(&what("empty"), &name, resize.empty_threads(), resize.empty(costs), empty),
    ])
}

fn row(what: &str, machine: &str, threads: u32, predicted_ns: f64, measured: Times) -> Model {
    let of = (measured.least, measured.most);
    Model { source: "here".into(), ..checked(what, machine, threads, predicted_ns / 1e6, of) }
}

/// A prediction beside the least and the greatest measurement.
pub fn checked(
    what: &str,
    machine: &str,
    threads: u32,
    predicted_ms: f64,
    (least, most): (f64, f64),
) -> Model {
    Model {
        what: what.into(),
        machine: machine.into(),
        threads: threads.into(),
        predicted_ms: predicted_ms.into(),
        measured_ms: least.into(),
        measured_ms_min: Some(least.into()),
        measured_ms_max: Some(most.into()),
        error_percent: Signed(Measured(Some((predicted_ms / least - 1.0) * 100.0))),
        ..Model::default()
    }
}
