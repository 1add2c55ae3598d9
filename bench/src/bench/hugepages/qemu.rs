//! Huge-page pools in the reference guest: one boot for each setting of HVO, in which the guest's
//! shell fills and empties pools and reads the guest's own clock and counters.

use super::{Case, Reclaim, Times, row};
use crate::bench::common::failed;
use crate::rows::Hugepages;
use framewright::hugetlb::PoolSize;
use framewright_cli::args::{Accel, Target};
use framewright_cli::error::Error;
use framewright_cli::qemu::attempts::Attempts;
use framewright_cli::qemu::command::Accelerator;
use framewright_cli::qemu::encoding::encode;
use framewright_cli::qemu::run::Watch;
use std::fmt::Write;

const MEMORY_BYTES: u64 = 8 << 30;
const QUICK_MEMORY_BYTES: u64 = 1 << 30;
const CPUS: u32 = 2;
const REPETITIONS: usize = 7;
const QUICK_REPETITIONS: usize = 3;
/// How long a boot and its runs may take.
const PATIENCE_SECONDS: u64 = 300;

/// Separates the guest's output of one run from that of the next.
const COUNTERS: &str = "cat /proc/vmstat /proc/interrupts";
const OPTIMIZE: &str = "/proc/sys/vm/hugetlb_optimize_vmemmap";
const RESTORE: &str = "/sys/module/framewright/parameters/hugetlb_restore";

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
fill: writing nr_hugepages of an empty pool in the guest's shell; empty: writing 0; times by the \
guest's clock, each row the median of its runs, fill and empty in turn, one boot for each way of \
HVO. The guest's memory was taken from the host before the guest began (-mem-prealloc). HVO: pages \
in the pool give up their part of the vmemmap, which becomes free memory; restore lazy: a page \
that is freed has its descriptors inside when it is split, eager: it gets its part of the array \
back while the pool is emptied. flushes and ipis: of one fill and one empty, by the guest's \
counters. off: a fill with HVO against the fill without it just before; off, empty: an empty \
likewise";

/// Measures everything. Returns the rows, the number of runs of a row, and what was timed.
///
/// # Errors
/// Anything that can go wrong with QEMU, or a pool that did not get its pages.
pub fn rows(quick: bool) -> Result<(Vec<Hugepages>, usize, String), Error> {
    let (memory_bytes, repetitions) =
        if quick { (QUICK_MEMORY_BYTES, QUICK_REPETITIONS) } else { (MEMORY_BYTES, REPETITIONS) };
    // Pools take half of the memory, as in the measurements of Linux.
    let mut counts = vec![(PoolSize::TwoMib, memory_bytes >> 22)];
    if !quick {
        counts.push((PoolSize::OneGib, memory_bytes >> 31));
    }
    let mut rows = Vec::new();
    let mut accel = Accel::Auto;
    for reclaim in [Reclaim::Off, Reclaim::Lazy, Reclaim::Eager] {
        for &(size, pages) in &counts {
            let case = Case { size, pages, threads: CPUS, tables: "backed", reclaim };
            crate::progress::step(&format_args!("hugepages: guest, {pages} pages of {size}"))?;
            let (times, used) = measure(case, memory_bytes, repetitions, accel)?;
            // If KVM does not work, it is tried only once.
            accel = if used == Accelerator::Kvm { Accel::Kvm } else { Accel::Tcg };
            rows.push(row("qemu", "deferred", case, &times));
        }
    }
    let accel = if accel == Accel::Kvm { Accelerator::Kvm } else { Accelerator::Tcg }.name();
    Ok((
        rows,
        repetitions,
        format!("{TIMED}. {CPUS} CPUs, {} GiB, accelerator {accel}", memory_bytes >> 30),
    ))
}

/// Boots, fills and empties.
fn measure(
    case: Case,
    memory_bytes: u64,
    repetitions: usize,
    accel: Accel,
) -> Result<(Times, Accelerator), Error> {
    let target = Target {
        accel: Some(accel),
        cpus: Some(CPUS),
        qemu: vec!["-mem-prealloc".to_owned()],
        ..Target::on_qemu(memory_bytes, PATIENCE_SECONDS)
    };
    let attempts = Attempts::prepare(&target)?;
    let words = format!("exec={}", encode(&commands(case, repetitions)));
    let mut heard = Heard(Vec::new());
    let (used, ended) = attempts.run(&words, false, &mut heard)?;
    attempts.check(&ended, false)?;
    let said = String::from_utf8_lossy(&heard.0).replace("\r\n", "\n");
    match ended.transcript.status {
        Some(0) => times(&said, case, repetitions)
            .map(|times| (times, used))
            .map_err(|why| failed(format!("{why}; the guest said:\n{said}"))),
        _ => Err(failed(format!("the guest's commands failed:\n{said}"))),
    }
}

/// The commands for the guest's shell. Only timed commands print something.
fn commands(case: Case, repetitions: usize) -> String {
    let Case { pages, reclaim, .. } = case;
    let size = if case.size.is_gigantic() { "1G" } else { "2M" };
    let optimize = u8::from(reclaim != Reclaim::Off);
    let restore = if reclaim == Reclaim::Eager { "eager" } else { "lazy" };
    let set = format!("echo {optimize} > {OPTIMIZE}; echo {restore} > {RESTORE}");
    let fill = format!("resize {size} {pages}");
    let mut text = format!("{set}; {COUNTERS}; {fill}; {COUNTERS}; resize {size} 0; {COUNTERS}");
    for _ in 1..repetitions {
        if reclaim == Reclaim::Lazy {
            // Restore the pages' descriptors for the next run, also for the comparison without HVO.
            let file =
                format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", case.size.kbytes());
            let _ = write!(text, ";echo eager > {RESTORE};echo {pages} > {file};echo 0 > {file}");
            let _ = write!(text, ";echo 0 > {OPTIMIZE};{fill};resize {size} 0;{set}");
        }
        let _ = write!(text, ";{fill};resize {size} 0");
    }
    text
}

/// Parses what the guest said.
fn times(said: &str, case: Case, repetitions: usize) -> Result<Times, String> {
    let mut times = Times::default();
    let resizes = resizes(said)?;
    let mut without = None;
    for (number, run) in resizes.chunks(2).enumerate() {
        let [(reached, fill_ns), (left, empty_ns)] = *run else {
            return Err("a run has no end".into());
        };
        if (reached, left) != (case.pages, 0) {
            return Err(format!("the pool got {reached} pages and kept {left}"));
        }
        if case.reclaim == Reclaim::Lazy && number % 2 == 1 {
            without = Some((fill_ns, empty_ns));
            continue;
        }
        if let Some((fill_without, empty_without)) = without.take() {
            times.reclaim_ratio.push(ms(fill_ns) / ms(fill_without).max(1e-6));
            times.empty_reclaim_ratio.push(ms(empty_ns) / ms(empty_without).max(1e-6));
        }
        times.fill.push(ms(fill_ns));
        times.empty.push(ms(empty_ns));
    }
    if times.fill.len() != repetitions {
        return Err(format!("{} of {repetitions} runs", times.fill.len()));
    }
    let [before, filled, emptied] = counters(said, "memmap_pool_flush ")?[..] else {
        return Err("no counters".into());
    };
    times.flushes = emptied - before;
    debug_assert!(filled >= before && filled <= emptied, "a counter never falls");
    let [before, _, emptied] = counters(said, "IPI: ")?[..] else {
        return Err("no interrupts are counted".into());
    };
    times.ipis = Some(emptied - before);
    let [before, filled, _] = counters(said, "memmap_saved_pages ")?[..] else {
        return Err("no savings".into());
    };
    times.saved_bytes = filled.saturating_sub(before) * framewright::units::PAGE_SIZE;
    Ok(times)
}

/// The pages to stay and the nanoseconds, for each resize.
fn resizes(said: &str) -> Result<Vec<(u64, u64)>, String> {
    let lines = said.lines().filter(|line| line.contains(" to stay, "));
    let parse = |line: &str| {
        let (_, rest) = line.split_once(": ")?;
        let pages = rest.split(' ').next()?.parse().ok()?;
        Some((pages, rest.strip_suffix(" ns")?.rsplit(' ').next()?.parse().ok()?))
    };
    lines.map(|line| parse(line).ok_or_else(|| format!("{line:?}"))).collect()
}

/// All numbers behind a name, line by line, summed over a line with several numbers.
fn counters(said: &str, name: &str) -> Result<Vec<u64>, String> {
    let lines = said.lines().filter_map(|line| line.trim_start().strip_prefix(name));
    let sum = |rest: &str| {
        let numbers = rest.split_whitespace().map_while(|word| word.parse::<i64>().ok());
        // The sum is negative if only page tables are left of the savings.
        u64::try_from(numbers.sum::<i64>().max(0)).map_err(|_| format!("{name}: {rest:?}"))
    };
    lines.map(sum).collect()
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Keeps what the shell prints.
struct Heard(Vec<u8>);

impl Watch for Heard {
    fn output(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.extend(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case {
        size: PoolSize::TwoMib,
        pages: 8,
        threads: 2,
        tables: "backed",
        reclaim: Reclaim::Lazy,
    };

    fn look(flushes: u64, sent: u64, saved: i64) -> String {
        format!(
            "memmap_saved_pages {saved}\nmemmap_pool_flush {flushes}\nIPI: {sent} 1   Interrupts \
             sent\n"
        )
    }

    #[test]
    fn what_the_guest_says_becomes_times() {
        let pair = |fill, empty| {
            format!(
                "2.00 MiB: 8 pages to stay, 0 surplus, {fill} ns\n2.00 MiB: 0 pages to stay, 0 \
                 surplus, {empty} ns\n"
            )
        };
        let said = format!(
            "{}2.00 MiB: 8 pages to stay, 0 surplus, 3000000 ns\n{}2.00 MiB: 0 pages to stay, 0 \
             surplus, 500000 ns\n{}{}{}",
            look(5, 10, -3),
            look(7, 12, 61),
            look(7, 14, 61),
            pair(800_000, 100_000),
            pair(1_000_000, 250_000),
        );
        let times = times(&said, CASE, 2);
        let Ok(times) = times else { panic!("{:?}", times.err()) };
        assert_eq!((times.fill, times.empty), (vec![3.0, 1.0], vec![0.5, 0.25]));
        assert_eq!((times.reclaim_ratio, times.empty_reclaim_ratio), (vec![1.25], vec![2.5]));
        assert_eq!((times.flushes, times.ipis, times.saved_bytes), (2, Some(4), 61 << 12));
        assert!(super::times(&said, CASE, 3).is_err() && super::times("", CASE, 1).is_err());
    }

    #[test]
    fn commands_fit_on_the_kernels_command_line() {
        for reclaim in [Reclaim::Off, Reclaim::Lazy, Reclaim::Eager] {
            let text = encode(&commands(Case { reclaim, pages: 2048, ..CASE }, REPETITIONS));
            assert!(text.len() < 4000, "{}", text.len());
        }
    }
}
