//! Free memory scattered in single pages: how both compact it on request, and how many huge pages
//! they get afterwards.

use super::common;
use crate::compare::lab::{Heard, Lab, Words};
use crate::compare::linux::{self, Resize};
use crate::compare::ours;
use crate::compare::plan::Plan;
use crate::compare::rows::{Demand, Row, Unit};
use framewright_cli::error::Error;
use serde_json::Value;

const MEMORY_GIB: u64 = 1;
const REPETITIONS: usize = 5;
const BUDGET_SECONDS: u64 = 150;
/// The percentage of memory in use, and how often all free memory is filled and scattered anew.
const PERCENT_USED: u64 = 80;
const ROUNDS: u64 = 3;
/// More huge pages than memory can hold.
const ALL: u64 = 1 << 20;
const HUGE_PAGE_KIB: u64 = 2 << 10;
/// Turns background compaction off in both, so that only the requested compaction counts.
const PROACTIVE: &str = "/proc/sys/vm/compaction_proactiveness";
/// Sets how much both keep free. With transparent huge pages, Linux keeps ten times as much free as
/// without (`set_recommended_min_free_kbytes` in `mm/khugepaged.c`), and its pool would be smaller
/// for that reason alone.
const KEPT_FREE: &str = "/proc/sys/vm/min_free_kbytes";
const COMPACT: &str = "/proc/sys/vm/compact_memory";
const POOL: &str = "/proc/sys/vm/nr_hugepages";
/// Pages in CPU caches are free but not part of MemFree.
const ZONES: &str = "/proc/zoneinfo";
const CACHED: &str = "count:";
const MOVED: &str = "pgmigrate_success";

/// Compacts both, and fills a pool with all huge pages that can be allocated.
///
/// # Errors
/// Fails if a machine did not do its task.
pub fn run(lab: &Lab, plan: &Plan) -> Result<Vec<Value>, Error> {
    let shape = plan.shape(MEMORY_GIB, 1, false);
    let mut table = Table::new();
    let mut repetitions = plan.repetitions(REPETITIONS, BUDGET_SECONDS);
    while let Some(repetition) = repetitions.another() {
        let seed = repetition as u64;
        let theirs = lab.linux(&shape, "", &script(shape.memory_bytes >> 10, seed))?;
        linux::failures(&theirs).iter().for_each(|failure| plan.tell(&format!("Linux: {failure}")));
        let guest = lab.ours(&shape, "", Words::Commands(&commands(seed)))?;
        let (theirs, guest) = (of_linux(&theirs), of_ours(&guest));
        plan.tell(&format!(
            "compaction, {}: Linux {}, ours {}",
            repetitions.shown(),
            shown(theirs.as_ref()),
            shown(guest.as_ref())
        ));
        table.add(theirs.as_ref(), guest.as_ref());
    }
    let common = common(lab, &shape);
    Ok(table.rows().iter().map(|row| row.value(&common)).collect())
}

/// The script for Linux's program.
fn script(memory_kib: u64, seed: u64) -> String {
    let sums = format!("sum /proc/vmstat {MOVED}\n");
    let kept = (memory_kib * 16).isqrt();
    format!(
        "write {PROACTIVE} 0\nwrite {KEPT_FREE} {kept}\n\
         scatter {PERCENT_USED} {ROUNDS} {seed}\nsum /proc/meminfo MemFree:\n\
         sum {ZONES} {CACHED}\n{sums}time {COMPACT} 1\n{sums}resize {POOL} {ALL}\n{sums}"
    )
}

/// The commands for the guest's shell.
fn commands(seed: u64) -> String {
    let fill = |round| format!("movable fill {PERCENT_USED} seed {}; ", seed * ROUNDS + round);
    let fills: String = (0..ROUNDS).map(fill).collect();
    format!(
        "echo 0 > {PROACTIVE}; {fills}cat /proc/meminfo; compact; resize 2M {ALL}; movable check"
    )
}

/// The results of one of the two.
#[derive(PartialEq, Debug)]
struct Done {
    free_kib: u64,
    compact_ms: f64,
    moved_pages: u64,
    pool: Resize,
}

impl Done {
    fn total_ms(&self) -> f64 {
        self.compact_ms + self.pool.ms
    }

    fn page_ms(&self) -> Option<f64> {
        (self.moved_pages != 0).then(|| self.compact_ms / self.moved_pages as f64)
    }

    /// The percentage of the memory free before that is in no huge page afterwards.
    fn not_got_percent(&self) -> f64 {
        let got = self.pool.reached * HUGE_PAGE_KIB;
        self.free_kib.saturating_sub(got) as f64 / self.free_kib.max(1) as f64 * 100.0
    }
}

fn shown(done: Option<&Done>) -> String {
    done.map_or("did not print all results".into(), |done| {
        format!(
            "{} pages of 2 MiB of {} MiB free, {:.2} s and {:.2} s, {} pages moved",
            done.pool.reached,
            done.free_kib >> 10,
            done.compact_ms / 1e3,
            done.pool.ms / 1e3,
            done.moved_pages
        )
    })
}

/// Parses Linux's results. The pages are those that the request moved; filling the pool may move
/// more.
fn of_linux(heard: &Heard) -> Option<Done> {
    let &[before, after, ..] = &*linux::sums(heard, "/proc/vmstat", MOVED) else { return None };
    let cached_kib = linux::sum(heard, ZONES, CACHED)? * 4;
    Some(Done {
        free_kib: linux::sum(heard, "/proc/meminfo", "MemFree:")? + cached_kib,
        compact_ms: linux::time_ms(heard, COMPACT)?,
        moved_pages: after.saturating_sub(before),
        pool: linux::resizes(heard, POOL).first().copied()?,
    })
}

/// Parses our results; `None` if the moved memory was not intact.
fn of_ours(heard: &Heard) -> Option<Done> {
    if !heard.text().any(|line| line.ends_with(": all intact")) {
        return None;
    }
    let (moved_pages, compact_ms) = ours::compacted(heard)?;
    Some(Done {
        free_kib: ours::meminfo_kib(heard, "MemFree:")?,
        compact_ms,
        moved_pages,
        pool: ours::resizes(heard, "2.00 MiB").first().copied()?,
    })
}

/// The rows of the comparison.
struct Table {
    compact: Row,
    page: Row,
    fill: Row,
    total: Row,
    got: Row,
    not_got: Row,
}

impl Table {
    fn new() -> Self {
        let row = |what: &str, unit| Row::new(&format!("compaction: {what}"), unit);
        Self {
            compact: row("on request", Unit::Milliseconds),
            page: row("a moved page", Unit::Milliseconds),
            fill: row("pool of all 2 MiB pages after it", Unit::Milliseconds),
            total: row("both", Unit::Milliseconds).demanding(Demand::Ratio(1.0)),
            got: row("2 MiB pages got", Unit::Pages),
            not_got: row("free memory not got in 2 MiB pages", Unit::Percent)
                .demanding(Demand::Ratio(1.0)),
        }
    }

    /// Adds the measurements of one repetition.
    fn add(&mut self, linux: Option<&Done>, ours: Option<&Done>) {
        let missing =
            [("Linux", linux), ("ours", ours)].into_iter().find(|(_, done)| done.is_none());
        let add = |row: &mut Row, of: &dyn Fn(&Done) -> Option<f64>| match missing {
            Some((who, _)) => row.skipped = Some(format!("{who} did not print all results")),
            None => row.add(linux.and_then(of), ours.and_then(of)),
        };
        add(&mut self.compact, &|done| Some(done.compact_ms));
        add(&mut self.page, &Done::page_ms);
        add(&mut self.fill, &|done| Some(done.pool.ms));
        add(&mut self.total, &|done| Some(done.total_ms()));
        add(&mut self.got, &|done| Some(done.pool.reached as f64));
        add(&mut self.not_got, &|done| Some(done.not_got_percent()));
    }

    fn rows(self) -> [Row; 6] {
        [self.compact, self.page, self.fill, self.total, self.got, self.not_got]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Compare;

    fn linux_said() -> Heard {
        Heard::of(&[
            "@scatter 200000 40000",
            "@sum /proc/meminfo MemFree: 203776",
            "@sum /proc/zoneinfo count: 256",
            "@sum /proc/vmstat pgmigrate_success 10",
            "@time /proc/sys/vm/compact_memory 30000000",
            "@sum /proc/vmstat pgmigrate_success 30010",
            "@resize /proc/sys/vm/nr_hugepages 1048576 80 10000000",
            "@sum /proc/vmstat pgmigrate_success 30500",
        ])
    }

    fn ours_said(last: &str) -> Heard {
        Heard::of(&[
            "MemFree:         204800 kB",
            "90 blocks made whole, moved 20000 pages in 19000 runs, 0 runs refused in 10000 us",
            "2.00 MiB: 90 pages to stay, 0 surplus, 10000000 ns",
            last,
        ])
    }

    #[test]
    fn both_are_read_and_compared() {
        let linux = of_linux(&linux_said()).expect("all of it");
        assert_eq!((linux.free_kib, linux.moved_pages, linux.compact_ms), (204_800, 30_000, 30.0));
        let ours = of_ours(&ours_said("5 handles, 20.0 KiB: all intact")).expect("all of it");
        assert_eq!((ours.moved_pages, ours.page_ms()), (20_000, Some(0.0005)));
        let mut table = Table::new();
        table.add(Some(&linux), Some(&ours));
        let [compact, .., total, got, not_got] =
            table.rows().map(|row| row.value(&Compare::default()));
        assert_eq!((&compact["ratio"], &total["ratio"]), (&3.0.into(), &2.0.into()));
        assert_eq!((&got["linux_pages"], &got["ours_pages"]), (&80.0.into(), &90.0.into()));
        // 20 % and 10 % of 200 MiB.
        assert_eq!((&not_got["ours_percent"], &not_got["met"]), (&10.0.into(), &true.into()));
    }

    #[test]
    fn damage_and_silence_are_not_compared() {
        let ours = of_ours(&ours_said("movable: 1 of 5 handles are damaged"));
        assert_eq!(ours, None);
        let mut table = Table::new();
        table.add(of_linux(&linux_said()).as_ref(), ours.as_ref());
        for row in table.rows() {
            let value = row.value(&Compare::default());
            assert_eq!(value["skipped"], "ours did not print all results", "{value}");
        }
        assert_eq!(of_linux(&Heard::of(&["@init"])), None);
    }

    #[test]
    fn rounds_have_seeds_of_their_own() {
        let (one, two) = (commands(1), commands(2));
        let seeds = |text: &str| -> Vec<String> {
            let parts = text.split("; ").filter(|part| part.starts_with("movable fill"));
            parts.map(str::to_owned).collect()
        };
        assert_eq!(seeds(&one).len(), 3);
        assert!(seeds(&one).iter().all(|part| !seeds(&two).contains(part)));
    }
}
