//! The time for shuffling a machine's free memory.

use crate::bench::common::{failed, synthetic};
use crate::rows::{Shuffle, Spread};
use framewright_cli::error::Error;
use framewright_cli::hosted::{Session, Silent};
use std::time::Instant;

const MANAGED_GIB: u64 = 1024;

/// Shuffles all zones of 1 TiB repeatedly, on this thread.
///
/// # Errors
/// Fails if this process cannot emulate the machine.
pub fn row(repetitions: usize) -> Result<Shuffle, Error> {
    let machine = synthetic(MANAGED_GIB << 30, 1, 1)?;
    let pass = Session::open(&machine, "memmap_init=on-demand pages=none page_alloc.shuffle=1")?
        .bring_up(&mut Silent)?;
    let manager = pass.manager();
    // Bring-up has shuffled once, so all tables are backed.
    let once = || {
        let start = Instant::now();
        let all = manager.views().all(|zone| zone.shuffle());
        all.then(|| start.elapsed().as_secs_f64() * 1e3)
    };
    let times: Option<Vec<f64>> = (0..repetitions).map(|_| once()).collect();
    let times = times.ok_or_else(|| failed("a zone was not shuffled"))?;
    pass.verify()?;
    Ok(Shuffle { managed_gib: MANAGED_GIB, threads: 1, shuffle_ms: Spread::of(times) })
}
