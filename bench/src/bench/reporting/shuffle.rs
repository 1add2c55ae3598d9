//! How long the shuffle of a machine's free memory takes.

use crate::bench::common::Spread;
use framewright_cli::error::Error;
use framewright_cli::hosted::{Session, Silent};
use framewright_hosted::Machine;
use serde_json::{Value, json};
use std::time::Instant;

const MANAGED_GIB: u64 = 1024;

/// Shuffles all zones of 1 TiB, again and again, on this thread.
///
/// # Errors
/// A machine that this process cannot stand in for.
pub fn row(repetitions: usize) -> Result<Value, Error> {
    let machine = Machine::synthetic(MANAGED_GIB << 30, 1, 1)
        .map_err(|error| Error::Failed(error.to_string()))?;
    let pass = Session::open(&machine, "memmap_init=on-demand pages=none page_alloc.shuffle=1")?
        .bring_up(&mut Silent)?;
    let manager = pass.manager();
    // Bring-up has shuffled once, so that all is backed.
    let once = || {
        let start = Instant::now();
        let all = manager.views().all(|zone| zone.shuffle());
        all.then(|| start.elapsed().as_secs_f64() * 1e3)
    };
    let times: Option<Vec<f64>> = (0..repetitions).map(|_| once()).collect();
    let times = times.ok_or_else(|| Error::Failed("a zone was not shuffled".into()))?;
    pass.verify()?;
    let mut row = json!({ "bench": "shuffle", "managed_gib": MANAGED_GIB, "threads": 1 });
    Spread::of(times).put(&mut row, "shuffle_ms");
    Ok(row)
}
