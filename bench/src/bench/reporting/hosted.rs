//! How the memory of a machine in this process falls.

use super::Scale;
use super::fall::{Fall, Sample, has_settled, patience};
use crate::bench::common::{failed, synthetic};
use framewright::reporting::Pace;
use framewright::units::{Order, PfnRange};
use framewright::{Manager, Request};
use framewright_cli::error::Error;
use framewright_cli::hosted::{Quiet, Session, Silent, with_reports};
use framewright_hosted::{Advice, HostedPlatform};
use std::time::{Duration, Instant};

/// The time between two samples.
const STEP: Duration = Duration::from_millis(10);
/// How long the machine is idle at the end.
const IDLE: Duration = Duration::from_secs(3);
/// How long a flush may take.
const FLUSH: Duration = Duration::from_secs(60);
const FILL: u8 = 0x5a;

/// Measures one course.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or has too little memory.
pub fn fall(scale: Scale, pace: Pace) -> Result<Fall, Error> {
    let machine = synthetic(scale.memory_bytes, 1, 1)?;
    let line = format!("memmap_init=on-demand page_reporting.pace={}", pace.name());
    let pass = Session::open(&machine, &line)?.bring_up(&mut Silent)?;
    let manager = pass.manager();
    let (advice, quiet) = (Some(Advice::DontNeed), Quiet::default());
    let fall = with_reports(manager, advice, &|_| {}, &quiet, || course(manager, scale, pace))??;
    pass.verify()?;
    Ok(fall)
}

fn course(manager: &Manager<HostedPlatform>, scale: Scale, pace: Pace) -> Result<Fall, Error> {
    flush(manager)?;
    let reported = || manager.reporting_counters().reported_pages;
    let (before_bytes, before_pages) = (sample(manager)?.bytes, reported());
    let held = dirty(manager, scale.dirtied_bytes)?;
    let top = sample(manager)?;
    for &range in &held {
        // SAFETY: allocated by `dirty`, which was the last to touch it (invariant 42).
        unsafe { manager.free(range) }.map_err(failed)?;
    }
    let freed = Instant::now();
    let mut samples = vec![Sample { at: freed, ..top }];
    let (quiet, most) = patience(pace);
    while freed.elapsed() < most && !has_settled(&samples, quiet) {
        std::thread::sleep(STEP);
        samples.push(sample(manager)?);
    }
    let fallen_pages = reported();
    std::thread::sleep(IDLE);
    let idle_pages = reported() - fallen_pages;
    let reported_pages = fallen_pages + idle_pages - before_pages;
    let dirtied_bytes = scale.dirtied_bytes;
    let reused_early_pages = manager.reporting_counters().reused_early_pages;
    Ok(Fall {
        on: "hosted",
        pace,
        dirtied_bytes,
        before_bytes,
        freed,
        samples,
        reported_pages,
        idle_pages,
        reused_early_pages,
    })
}

fn sample(manager: &Manager<HostedPlatform>) -> Result<Sample, Error> {
    let bytes = manager.platform().resident_bytes().map_err(failed)?;
    Ok(Sample { at: Instant::now(), bytes })
}

/// Waits until all free memory has been reported.
pub(super) fn flush(manager: &Manager<HostedPlatform>) -> Result<(), Error> {
    let start = Instant::now();
    let before = manager.reporting_counters().flushes;
    manager.reporting().flush();
    while manager.reporting_counters().flushes == before {
        if start.elapsed() > FLUSH {
            return Err(failed("a flush of free page reports does not end"));
        }
        std::thread::sleep(STEP);
    }
    Ok(())
}

/// Allocates this many bytes and writes to them.
fn dirty(manager: &Manager<HostedPlatform>, bytes: u64) -> Result<Vec<PfnRange>, Error> {
    let blocks = bytes / PfnRange::new(0, Order::BLOCK.pages()).to_phys().size();
    let mut held = Vec::new();
    for _ in 0..blocks {
        let range = manager.allocate(&Request::new(Order::BLOCK)).map_err(failed)?;
        // SAFETY: the frames were allocated just now, and nobody else has them.
        unsafe { manager.platform().prefault(range.to_phys(), FILL) }.map_err(failed)?;
        held.push(range);
    }
    Ok(held)
}
