//! One large machine: the memory map, the memory that is left, pools at run time, page faults.

use super::{common, shown};
use crate::compare::lab::{Heard, Lab, Words};
use crate::compare::linux::{self, Resize};
use crate::compare::plan::Plan;
use crate::compare::rows::{Demand, Row, Unit};
use crate::compare::{ours, pool};
use crate::rows::Compare;
use framewright_cli::error::Error;
use pool::{Pool, Reclaim};
use serde_json::Value;

const MEMORY_GIB: u64 = 8;
const NODES: u32 = 2;
const REPETITIONS: usize = 5;
const BUDGET_SECONDS: u64 = 210;
/// The size of Linux's `struct page`.
const STRUCT_PAGE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;

/// Our policies for the memory map, and how many times faster than Linux each must be.
const POLICIES: [(&str, f64); 2] = [("deferred", 3.0), ("on-demand", 50.0)];
/// Linux's words for both kinds of pages, and our names for the workloads with them.
const FAULTS: [(&str, &str); 2] = [("huge", "page_fault1"), ("base", "page_fault2")];

/// Why page faults are shown side by side and not compared.
const NOT_THE_SAME_PATH: &str = "not comparable: Linux takes a page fault, clears the page and \
    enters it into page tables; ours allocates, writes and frees";
/// A caveat about Linux's times of the memory map.
const TICKS: &str = "Linux's clock goes in ticks here, 4 ms each at its 250 a second: its number \
    is a multiple of them";

/// The shell command that shows the state of memory.
const LOOK: &str = "cat /proc/meminfo";

/// Measures everything.
///
/// # Errors
/// Fails if a machine did not do its task.
pub fn run(lab: &Lab, plan: &Plan) -> Result<Vec<Value>, Error> {
    let shape = plan.shape(MEMORY_GIB, NODES, false);
    let pools = pool::all(shape.memory_bytes);
    let cpu_counts = if plan.cpus == 1 { vec![1] } else { vec![1, plan.cpus] };
    let linux_script = linux_script(&pools, &cpu_counts, plan.quick);
    let commands = commands(&pools, plan.quick);
    let mut tables = POLICIES.map(|(policy, demanded)| OfPolicy::new(policy, demanded));
    let mut resizes: Vec<(Pool, Reclaim, [Row; 2])> = Vec::new();
    for &pool in &pools {
        for reclaim in Reclaim::ALL {
            resizes.push((pool, reclaim, pool.rows(reclaim, "run time", pool::Measured::RunTime)));
        }
    }
    let mut faults: Vec<Row> = Vec::new();
    for (_, name) in FAULTS {
        for &cpus in &cpu_counts {
            faults.push(Row::new(name, Unit::IterationsPerSecond).with(|row| {
                row.cpus_used = Some(cpus.into());
                row.comparable = Some(false);
                row.remark = Some(NOT_THE_SAME_PATH.to_owned().into());
            }));
        }
    }
    let mut repetitions = plan.repetitions(REPETITIONS, BUDGET_SECONDS);
    while repetitions.another().is_some() {
        let linux = lab.linux(&shape, "", &linux_script)?;
        let mut first = None;
        for (index, table) in tables.iter_mut().enumerate() {
            let text = if index == 0 { commands.as_str() } else { LOOK };
            let heard =
                lab.ours(&shape, &format!("memmap_init={}", table.policy), Words::Commands(text))?;
            table.add(&linux, &heard);
            if first.is_none() {
                first = Some(heard);
            }
        }
        let Some(first) = first else { continue };
        for (pool, reclaim, rows) in &mut resizes {
            let (of_linux, of_ours) =
                (linux::resizes(&linux, pool.linux_file()), ours::resizes(&first, pool.our_name()));
            let part = |all| reclaim.part(all, cycles(plan.quick));
            match (part(&of_linux), part(&of_ours)) {
                (Ok(linux), Ok(ours)) => pool.add(rows, linux, ours),
                (Err(why), _) => Pool::leave_out(rows, &format!("Linux {why}")),
                (_, Err(why)) => Pool::leave_out(rows, &format!("ours {why}")),
            }
        }
        let mut rows = faults.iter_mut();
        for (linux_name, name) in FAULTS {
            for &cpus in &cpu_counts {
                if let Some(row) = rows.next() {
                    row.add(
                        linux::fault(&linux, linux_name, cpus),
                        ours::fault(&first, name, cpus),
                    );
                }
            }
        }
        linux::failures(&linux).iter().for_each(|failure| plan.tell(&format!("Linux: {failure}")));
        let (theirs, first) = (shown(linux.prompt_ms()), shown(first.prompt_ms()));
        plan.tell(&format!(
            "memory, pools and faults, {}: boot of Linux {theirs}, ours {first}",
            repetitions.shown()
        ));
    }
    let mut rows: Vec<Row> = tables.into_iter().flat_map(OfPolicy::rows).collect();
    rows.extend(pool::skipped(shape.memory_bytes));
    rows.extend(resizes.into_iter().flat_map(|(.., rows)| rows));
    rows.extend(faults);
    let common = common(lab, &shape);
    Ok(rows.iter().map(|row| row.value(&common)).collect())
}

/// The rows of one policy.
struct OfPolicy {
    policy: &'static str,
    map: Row,
    boot: Row,
    all: Row,
    available: Row,
    free: Row,
    metadata: Row,
}

impl OfPolicy {
    fn new(policy: &'static str, demanded: f64) -> Self {
        let row =
            |what: &str, unit| Row::new(what, unit).with(|row| row.policy = Some(policy.into()));
        let in_ticks = |row: &mut Compare| row.remark = Some(TICKS.to_owned().into());
        Self {
            policy,
            map: row("memory map, slowest node", Unit::Milliseconds)
                .with(in_ticks)
                .demanding(Demand::Ratio(demanded)),
            all: row("memory map beside our whole bring-up", Unit::Milliseconds).with(in_ticks),
            boot: row("boot total", Unit::Milliseconds),
            available: row("memory available", Unit::Bytes),
            free: row("memory free once booted", Unit::Bytes),
            metadata: row("page metadata", Unit::Bytes),
        }
    }

    /// Adds the measurements of one repetition.
    fn add(&mut self, linux: &Heard, ours: &Heard) {
        let slowest = |times: Vec<f64>| times.into_iter().reduce(f64::max);
        let kib =
            |word: &str| linux::sum(linux, "/proc/meminfo", word).map(|kib| (kib << 10) as f64);
        let linux_map = slowest(linux::deferred_ms(linux));
        if linux_map.is_none() {
            for row in [&mut self.map, &mut self.all] {
                row.skipped = Some(
                    "this Linux does not report it; with little memory it defers nothing"
                        .to_owned(),
                );
            }
        }
        self.map.add(linux_map, slowest(ours::map_ms(ours)));
        self.all.add(linux_map, ours::total(ours, "all_memory_us").map(|us| us / 1e3));
        self.boot.add(linux.prompt_ms(), ours.prompt_ms());
        self.available.add(kib("MemTotal:"), ours::available_bytes(ours));
        self.free.add(kib("MemFree:"), ours::meminfo_bytes(ours, "MemFree:"));
        self.metadata.add(linux_metadata(linux), ours::total(ours, "metadata_bytes"));
    }

    fn rows(self) -> [Row; 6] {
        [self.map, self.all, self.boot, self.available, self.free, self.metadata]
    }
}

/// The memory of Linux's `struct page` array: as Linux counts it, or, in older versions, by its
/// size.
fn linux_metadata(linux: &Heard) -> Option<f64> {
    let pages = |word: &str| linux::sum(linux, "/proc/vmstat", word);
    let counted =
        pages("nr_memmap_boot_pages").map(|boot| boot + pages("nr_memmap_pages").unwrap_or(0));
    let bytes = match counted {
        Some(pages) => pages * PAGE_BYTES,
        None => linux::sum(linux, "/proc/zoneinfo", "present")? * STRUCT_PAGE_BYTES,
    };
    Some(bytes as f64)
}

/// The script for Linux's program.
fn linux_script(pools: &[Pool], cpu_counts: &[u32], quick: bool) -> String {
    let mut script = String::new();
    for word in ["MemTotal:", "MemFree:"] {
        script += &format!("sum /proc/meminfo {word}\n");
    }
    // Versions before 6.11 do not count the memory of `struct page`.
    script += "sum /proc/zoneinfo present\nsum /proc/vmstat nr_memmap_boot_pages\nsum /proc/vmstat \
        nr_memmap_pages\n";
    for pool in pools {
        for reclaim in Reclaim::ALL {
            script += &pool.linux_script(reclaim, cycles(quick));
        }
    }
    for (name, _) in FAULTS {
        for cpus in cpu_counts {
            script += &format!("fault {name} {} {cpus}\n", seconds(quick));
        }
    }
    script
}

/// The commands for the guest's shell.
fn commands(pools: &[Pool], quick: bool) -> String {
    let mut commands = LOOK.to_owned();
    for pool in pools {
        for reclaim in Reclaim::ALL {
            commands += &pool.commands(reclaim, cycles(quick));
        }
    }
    for (_, name) in FAULTS {
        commands += &format!("; {name} {}", seconds(quick));
    }
    commands
}

/// How often a pool is filled and emptied in one boot.
fn cycles(quick: bool) -> usize {
    if quick { 1 } else { 2 }
}

/// How long each workload runs.
fn seconds(quick: bool) -> u64 {
    if quick { 1 } else { 2 }
}

impl Reclaim {
    /// The half of all resizes that belongs to this variant: first those without HVO, then those
    /// with it, in this many cycles each. If one is missing, the halves cannot be told apart.
    fn part(self, resizes: &[Resize], cycles: usize) -> Result<&[Resize], String> {
        let (made, wanted) = (resizes.len(), 2 * 2 * cycles);
        if made != wanted {
            return Err(format!("resized {made} of {wanted} times"));
        }
        let (without, with) = resizes.split_at(wanted / 2);
        Ok(if self == Self::Off { without } else { with })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_fit_on_the_guests_command_line() {
        let pools = pool::all(8 << 30);
        assert!(framewright_cli::qemu::encoding::encode(&commands(&pools, false)).len() < 3800);
        assert!(linux_script(&pools, &[1, 16], false).len() < 8000);
    }

    #[test]
    fn halves_belong_to_ways() {
        let resize = |ms| Resize { wanted: 1, reached: 1, ms };
        let all: Vec<Resize> = [1.0, 2.0, 3.0, 4.0].map(resize).to_vec();
        assert_eq!(Reclaim::Off.part(&all, 1), Ok(&[1.0, 2.0].map(resize)[..]));
        assert_eq!(Reclaim::On.part(&all, 1), Ok(&[3.0, 4.0].map(resize)[..]));
        // Halves of an incomplete list would mix both variants.
        for few in [&all[1..], &all[..2], &[]] {
            let why = format!("resized {} of 4 times", few.len());
            assert_eq!(Reclaim::On.part(few, 1), Err(why));
        }
    }

    #[test]
    fn a_linux_that_defers_nothing_is_not_compared_in_that() {
        let mut table = OfPolicy::new("deferred", 3.0);
        let mut ours = Heard::of(&[]);
        ours.report = serde_json::json!({ "deferred": [{ "elapsed_ms": 2.5 }], "totals": {
            "all_memory_us": 4000.0 } });
        table.add(&Heard::of(&["@init"]), &ours);
        let value = table.map.value(&Compare::default());
        assert!(value["skipped"].is_string() && value.get("met").is_none(), "{value}");
        table.add(&Heard::of(&["[ 0.1] node 0 deferred pages initialised in 5ms"]), &ours);
        assert_eq!(table.map.value(&Compare::default())["met"], false);
    }

    #[test]
    fn metadata_is_counted_or_computed() {
        let counted = Heard::of(&[
            "@sum /proc/vmstat nr_memmap_boot_pages 100",
            "@sum /proc/vmstat nr_memmap_pages 1",
        ]);
        assert_eq!(linux_metadata(&counted), Some(f64::from(101 << 12)));
        assert_eq!(
            linux_metadata(&Heard::of(&["@sum /proc/zoneinfo present 1000"])),
            Some(64000.0)
        );
        assert_eq!(linux_metadata(&Heard::of(&[])), None);
    }
}
