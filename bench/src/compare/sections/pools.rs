//! Pools that boot parameters fill.

use super::common;
use crate::compare::lab::{Lab, Words};
use crate::compare::plan::Plan;
use crate::compare::pool::{self, Measured, Pool, Reclaim};
use crate::compare::rows::Row;
use crate::compare::{linux, ours};
use framewright_cli::error::Error;
use serde_json::Value;

const MEMORY_GIB: u64 = 8;
const NODES: u32 = 2;
const REPETITIONS: usize = 3;
const BUDGET_SECONDS: u64 = 100;

/// Makes Linux note, only in its own log, when it begins to make pools.
const LINUX_NOTES: &str = "initcall_debug";
const LINUX_SCRIPT: &str = "log hugetlb_init\nlog HugeTLB: registered\n";

/// Boots both with each pool.
///
/// # Errors
/// Fails if a machine did not do its task.
pub fn run(lab: &Lab, plan: &Plan) -> Result<Vec<Value>, Error> {
    let shape = plan.shape(MEMORY_GIB, NODES, false);
    let mut cases: Vec<(Pool, Reclaim, Row)> = Vec::new();
    for pool in pool::all(shape.memory_bytes) {
        for reclaim in Reclaim::ALL {
            let [fill, _] = pool.rows(reclaim, "boot", Measured::Boot);
            cases.push((pool, reclaim, fill));
        }
    }
    let mut repetitions = plan.repetitions(REPETITIONS, BUDGET_SECONDS);
    while !cases.is_empty() && repetitions.another().is_some() {
        for (pool, reclaim, row) in &mut cases {
            // When the time is up, the remaining cases of the repetition are left out.
            if repetitions.is_late() {
                if row.linux.is_empty() {
                    row.skipped = Some("no time was left".into());
                }
                continue;
            }
            let words = pool.boot_words(*reclaim);
            let theirs = lab.linux(&shape, &format!("{LINUX_NOTES} {words}"), LINUX_SCRIPT)?;
            let guest = lab.ours(&shape, &words, Words::Commands("echo"))?;
            let got = |heard| linux::allocated_at_boot(heard, pool.our_name()).unwrap_or(0);
            let short = [("Linux", got(&theirs)), ("ours", got(&guest))]
                .into_iter()
                .find(|(_, got)| *got != pool.pages);
            match short {
                Some((who, got)) => {
                    row.skipped = Some(format!("{who} got {got} of {} pages", pool.pages))
                }
                None => row.add(linux::pools_at_boot_ms(&theirs), ours::pools_at_boot_ms(&guest)),
            }
        }
        plan.tell(&format!("pools at boot, {}", repetitions.shown()));
    }
    let common = common(lab, &shape);
    Ok(cases.iter().map(|(.., row)| row.value(&common)).collect())
}
