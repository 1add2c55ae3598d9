//! One way of making the memory map, measured beside its limit.

use super::Scale;
use super::limit::{Buffer, Fill, has_clzero};
use crate::bench::common::Spread;
use crate::bench::host::cpu_seconds;
use crate::error::Error;
use crate::hosted::{Session, Silent};
use framewright::Request;
use framewright::parameters::Policy;
use framewright::units::Order;
use framewright_hosted::Machine;
use serde_json::{Value, json};

/// What descriptors begin as when it is not zero.
const TEMPLATE: [u64; 7] = [7; 7];
/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 64;

/// What a row is about.
#[derive(Clone, Copy)]
pub struct Title {
    pub policy: Policy,
    pub template: bool,
    pub threads: usize,
    pub first_touch: bool,
}

/// What one bring-up took.
struct Run {
    seconds: f64,
    cpu_seconds: f64,
    pages: u64,
    limit_seconds: f64,
}

/// Measures one row.
///
/// # Errors
/// A machine that this process cannot stand in for.
pub fn row(title: Title, scale: Scale) -> Result<Value, Error> {
    crate::progress::step(&format_args!("init: {}, {} threads", title.policy.name(), title.threads))?;
    let cpus = u32::try_from(title.threads).unwrap_or(1);
    let machine = Machine::synthetic(scale.memory_bytes, 1, cpus).map_err(|error| Error::Failed(error.to_string()))?;
    let line = format!("memmap_init={} memmap_init_threads={cpus}", title.policy.name());
    let session = Session::open(&machine, &line)?.with_template(title.template.then_some(TEMPLATE));
    if !session.has_page_array() {
        return Err(Error::Failed("this host has too little memory for the page array".into()));
    }
    // The first one touches everything.
    let pass = session.bring_up(&mut Silent)?;
    let pages = described(&pass.report);
    let mut session = pass.end_dirty()?;
    let bytes = usize::try_from(pages * DESCRIPTOR).unwrap_or(0).next_multiple_of(4096);
    let mut buffer = Buffer::new(bytes.max(4096))?;
    let mut runs = Vec::new();
    for _ in 0..scale.repetitions {
        if title.first_touch {
            session.forget_page_array()?;
        }
        let before = cpu_seconds();
        let pass = session.bring_up(&mut Silent)?;
        let cpu_seconds = cpu_seconds() - before;
        let seconds = pass.report["totals"]["all_memory_us"].as_f64().unwrap_or(0.0) / 1e6;
        let pages = described(&pass.report);
        let limit_seconds = if bytes == 0 { 0.0 } else { limit(&mut buffer, title)? };
        runs.push(Run { seconds, cpu_seconds, pages, limit_seconds });
        session = pass.end_dirty()?;
    }
    Ok(value(title, &runs))
}

/// The fastest of the plain fills, over memory that is dirty or never was touched.
fn limit(buffer: &mut Buffer, title: Title) -> Result<f64, Error> {
    let fills = match (title.template, has_clzero()) {
        (true, _) => &[Fill::Movnti][..],
        (false, false) => &[Fill::Stosb, Fill::Memset],
        (false, true) => &[Fill::Stosb, Fill::Memset, Fill::Clzero],
    };
    let mut best = f64::INFINITY;
    for &fill in fills {
        if title.first_touch {
            buffer.forget();
        } else {
            buffer.dirty();
        }
        best = best.min(buffer.fill(fill, title.threads)?);
    }
    Ok(best)
}

/// Pages whose descriptors were written: all that can be handed out.
fn described(report: &Value) -> u64 {
    if report["totals"]["memory_map_bytes"].as_u64() == Some(0) {
        return 0;
    }
    report["totals"]["managed_pages"].as_u64().unwrap_or(0)
}

fn value(title: Title, runs: &[Run]) -> Value {
    let pages = runs.last().map_or(0, |run| run.pages);
    let mut row = json!({
        "bench": "init",
        "policy": title.policy.name(),
        "init": if title.template { "template" } else { "zero" },
        "threads": title.threads,
        "pages": pages,
        "bytes": pages * DESCRIPTOR,
        "first_touch": title.first_touch,
    });
    let spread = |get: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(get));
    // A policy that writes no descriptor has no limit.
    let limited = |get: &dyn Fn(&Run) -> f64| if pages == 0 { Spread::default() } else { spread(get) };
    spread(&|run| run.seconds).put(&mut row, "seconds");
    spread(&|run| run.cpu_seconds).put(&mut row, "cpu_seconds");
    limited(&|run| run.limit_seconds).put(&mut row, "limit_seconds");
    limited(&|run| run.limit_seconds / run.seconds).put(&mut row, "limit_ratio");
    row
}

/// Bringing up one section because a request wants it, beside its share of the same by the job.
///
/// # Errors
/// As [`row`].
pub fn growth(scale: Scale) -> Result<Value, Error> {
    let machine = Machine::synthetic(scale.memory_bytes, 1, 1).map_err(|error| Error::Failed(error.to_string()))?;
    let order = Order::new(15).ok_or_else(|| Error::Failed("order 15 is 128 MiB".into()))?;
    let mut session = Session::open(&machine, "memmap_init=deferred")?;
    let (mut by_request, mut by_job) = (Vec::new(), Vec::new());
    for _ in 0..=scale.repetitions {
        let pass = session.bring_up(&mut Silent)?;
        let node = &pass.report["deferred"][0];
        let sections = node["pages"].as_f64().unwrap_or(0.0) / order.pages() as f64;
        by_job.push(node["elapsed_ms"].as_f64().unwrap_or(0.0) / 1e3 / sections);
        let pass = pass.end_dirty()?.bring_up_withheld()?;
        let manager = pass.manager();
        loop {
            let before = manager.totals().deferred_pages;
            let started = std::time::Instant::now();
            if manager.allocate(&Request::new(order)).is_err() {
                break;
            }
            let seconds = started.elapsed().as_secs_f64();
            if before - manager.totals().deferred_pages == order.pages() {
                by_request.push(seconds);
            }
        }
        session = pass.end_dirty()?;
    }
    let job = Spread::of(by_job);
    let mut row = json!({
        "bench": "init", "policy": "growth", "init": "zero", "threads": 1, "pages": order.pages(),
        "bytes": order.pages() * DESCRIPTOR, "first_touch": false,
    });
    let ratios = by_request.iter().map(|seconds| seconds / job.middle.unwrap_or(f64::NAN));
    Spread::of(ratios).put(&mut row, "bulk_ratio");
    Spread::of(by_request).put(&mut row, "seconds");
    job.put(&mut row, "share_of_bulk_seconds");
    Ok(row)
}
