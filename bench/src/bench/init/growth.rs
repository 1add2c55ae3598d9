//! Growth: one section that is initialised by the request that needs it.

use super::Scale;
use super::measure::DESCRIPTOR;
use crate::bench::common::{failed, synthetic};
use crate::rows::{Init, InitGrowth, Measured, Spread};
use framewright::units::Order;
use framewright::{Manager, Request};
use framewright_cli::error::Error;
use framewright_cli::hosted::{Session, Silent};
use framewright_hosted::HostedPlatform;
use std::time::Instant;

/// Times initialising one section because a request needs it, beside a section's share of the job.
///
/// # Errors
/// Fails if this process cannot emulate the machine.
pub fn row(scale: Scale) -> Result<Init, Error> {
    let machine = synthetic(scale.memory_bytes, 1, 1)?;
    let order = Order::new(15).ok_or_else(|| failed("order 15 is 128 MiB"))?;
    let mut session = Session::open(&machine, "memmap_init=deferred")?;
    let (mut by_request, mut by_job) = (Vec::new(), Vec::new());
    for _ in 0..=scale.repetitions / 4 {
        let pass = session.bring_up(&mut Silent)?;
        let node = &pass.report["deferred"][0];
        let sections = node["pages"].as_f64().unwrap_or(0.0) / order.pages() as f64;
        by_job.push(node["elapsed_ms"].as_f64().unwrap_or(0.0) / 1e3 / sections);
        let pass = pass.end_dirty()?.bring_up_withheld()?;
        by_request.extend(by_requests(pass.manager(), order));
        session = pass.end_dirty()?;
    }
    let (request, job) = (Spread::of(by_request), Spread::of(by_job));
    let ratio = request.middle.zip(job.middle).map(|(request, job)| request / job);
    Ok(Init {
        policy: "growth".into(),
        init: "zero".into(),
        threads: 1,
        pages: order.pages(),
        bytes: order.pages() * DESCRIPTOR,
        seconds: request,
        limit: None,
        growth: Some(InitGrowth { share_of_bulk_seconds: job, bulk_ratio: Measured(ratio) }),
        first_touch: false,
    })
}

/// The time, in seconds, of each request that brings up deferred memory of its own size, until no
/// memory is left.
pub fn by_requests(manager: &Manager<HostedPlatform>, order: Order) -> Vec<f64> {
    let mut times = Vec::new();
    loop {
        let before = manager.totals().deferred_pages;
        let started = Instant::now();
        if manager.allocate(&Request::new(order)).is_err() {
            return times;
        }
        let seconds = started.elapsed().as_secs_f64();
        if before - manager.totals().deferred_pages == order.pages() {
            times.push(seconds);
        }
    }
}
