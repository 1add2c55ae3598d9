//! Parses what the guest said: its log, its report and its shell.

use super::lab::Heard;
use super::linux::Resize;

/// The time for each node's memory map: `deferred` of the report. If nothing was deferred, the time
/// for the whole node.
pub fn map_ms(heard: &Heard) -> Vec<f64> {
    let times = |list: &str, name: &str| -> Vec<f64> {
        let nodes = heard.report[list].as_array().map_or(&[][..], Vec::as_slice);
        nodes.iter().filter_map(|node| node[name].as_f64()).collect()
    };
    let deferred = times("deferred", "elapsed_ms");
    if deferred.is_empty() { times("nodes", "init_ms") } else { deferred }
}

/// A number in the report's totals.
pub fn total(heard: &Heard, name: &str) -> Option<f64> {
    heard.report["totals"][name].as_f64()
}

/// The bytes that the log calls available: `Memory: 8254680K/8388084K available`.
pub fn available_bytes(heard: &Heard) -> Option<f64> {
    let find = |line: &str| line.split_once("Memory: ")?.1.split_once("K/")?.0.parse::<u64>().ok();
    heard.text().find_map(find).map(|kib| (kib << 10) as f64)
}

/// A value of `/proc/meminfo`, in bytes.
pub fn meminfo_bytes(heard: &Heard, name: &str) -> Option<f64> {
    meminfo_kib(heard, name).map(|kib| (kib << 10) as f64)
}

/// A value of `/proc/meminfo`, in KiB.
pub fn meminfo_kib(heard: &Heard, name: &str) -> Option<u64> {
    heard.text().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok())
}

/// The pages that `compact` moved, and the milliseconds:
/// `9 blocks made whole, moved 2000 pages in 19 runs, 0 runs refused in 1500 us`.
pub fn compacted(heard: &Heard) -> Option<(u64, f64)> {
    heard.text().find_map(|line| {
        let (_, moved) = line.split_once(" made whole, moved ")?;
        let us: u64 = moved.rsplit_once(" refused in ")?.1.strip_suffix(" us")?.parse().ok()?;
        Some((moved.split_once(" page")?.0.parse().ok()?, us as f64 / 1e3))
    })
}

/// The output of the shell's `resize` for a size:
/// `2.00 MiB: 100 pages to stay, 0 surplus, 2500629 ns`.
pub fn resizes(heard: &Heard, size: &str) -> Vec<Resize> {
    heard
        .text()
        .filter_map(|line| resize(line.trim_start().strip_prefix(size)?.strip_prefix(": ")?))
        .collect()
}

fn resize(line: &str) -> Option<Resize> {
    let (reached, rest) = line.split_once(" to stay, ")?;
    let reached = reached.split_once(" page")?.0.parse().ok()?;
    let ns: u64 = rest.strip_suffix(" ns")?.rsplit(' ').next()?.parse().ok()?;
    // The command does not repeat the wanted number.
    Some(Resize { wanted: reached, reached, ms: ns as f64 / 1e6 })
}

/// The time for filling pools at boot: `HugeTLB: allocation took 1.250ms with`.
pub fn pools_at_boot_ms(heard: &Heard) -> Option<f64> {
    heard.text().find_map(|line| {
        line.split_once("HugeTLB: allocation took ")?.1.split_once("ms ")?.0.parse().ok()
    })
}

/// The time for starting the other CPUs: `smp: Brought up 1 node, 16 CPUs in 3.922 ms`.
pub fn cpus_up_ms(heard: &Heard) -> Option<f64> {
    heard.text().find_map(|line| {
        line.split_once("smp: Brought up ")?
            .1
            .split_once(" in ")?
            .1
            .strip_suffix(" ms")?
            .parse()
            .ok()
    })
}

/// The iterations a second: `page_fault1 cpus 1: 10240743 iterations/s`.
pub fn fault(heard: &Heard, name: &str, cpus: u32) -> Option<f64> {
    let start = format!("{name} cpus {cpus}: ");
    heard
        .text()
        .find_map(|line| line.strip_prefix(&start)?.split_once(" iterations/s")?.0.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_found() {
        let mut heard = Heard::of(&[
            "[    0.050020] Memory: 2061820K/2096628K available (2040K reserved, 32946K of it \
             tables)",
            "[    0.050900] HugeTLB: allocation took 1.250ms with hugepage_allocation_threads=2",
            "2.00 MiB: 100 pages to stay, 0 surplus, 2500629 ns",
            "[    0.526164] smp: Brought up 2 nodes, 4 CPUs in 3.922 ms",
            "MemTotal:        2094588 kB",
            "MemFree:         1857020 kB",
            "1.00 GiB: 0 pages to stay, 0 surplus, 1160851 ns",
            "page_fault1 cpus 1: 10240743 iterations/s, deviation 0.0 %, 1 round",
        ]);
        assert_eq!(available_bytes(&heard), Some(f64::from(2_061_820) * 1024.0));
        assert_eq!(meminfo_bytes(&heard, "MemFree:"), Some(f64::from(1_857_020) * 1024.0));
        assert_eq!(resize("1 page to stay, 0 surplus, 5 ns").map(|one| one.reached), Some(1));
        assert_eq!(
            resizes(&heard, "2.00 MiB"),
            [Resize { wanted: 100, reached: 100, ms: 2.500629 }]
        );
        assert_eq!((pools_at_boot_ms(&heard), cpus_up_ms(&heard)), (Some(1.25), Some(3.922)));
        assert_eq!(
            (fault(&heard, "page_fault1", 1), fault(&heard, "page_fault1", 2)),
            (Some(10_240_743.0), None)
        );
        heard.report = json!({
            "nodes": [{ "init_ms": 1.5 }], "deferred": [{ "elapsed_ms": 2.5 }, {
                "elapsed_ms": 3.5 }], "totals": { "metadata_bytes": 7 },
        });
        assert_eq!((map_ms(&heard), total(&heard, "metadata_bytes")), (vec![2.5, 3.5], Some(7.0)));
        heard.report["deferred"] = json!([]);
        assert_eq!((map_ms(&heard), total(&heard, "none")), (vec![1.5], None));
    }
}
