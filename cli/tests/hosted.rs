//! Machines that the program brings up in its own process: memory maps of real machines with known
//! answers, made-up maps, and the map of the machine that runs the test.

mod common;

use common::{check_sums, machine, present, program, run};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

fn boot(words: &[&str]) -> Value {
    let report = run(&[&["boot", "--json"], words].concat()).json();
    assert_eq!(report["platform"], "hosted");
    // Initialisation is deferred unless the vmemmap would be too large for this host.
    let deferred = report["policy"] == "deferred";
    assert!(deferred || report["policy"] == "on-demand", "{}", report["policy"]);
    assert_eq!(report["totals"]["vmemmap_bytes"].as_u64() > Some(0), deferred);
    assert_eq!(report["totals"]["deferred_pages"], 0);
    assert!(
        report["first_touch"]["bring_up_us"].as_f64() > Some(0.0)
            && report["first_touch"]["first_alloc_us"].is_f64()
    );
    assert!(report.get("qemu").is_none());
    check_sums(&report);
    report
}

/// Checks the present pages by node and zone against those that Linux counted on the real machine.
fn expect(report: &Value, zones: &[(u64, &str, u64)]) {
    for &(node, zone, pages) in zones {
        assert_eq!(present(report, node, zone), Some(pages), "node {node}, zone {zone}");
    }
    assert_eq!(report["zones"].as_array().map(Vec::len), Some(zones.len()), "{}", report["zones"]);
    let total: u64 = zones.iter().map(|&(.., pages)| pages).sum();
    assert_eq!(report["totals"]["present_pages"], total);
}

/// Returns the first frame and the spanned frames of a zone.
fn span(report: &Value, node: u64, zone: &str) -> Option<(u64, u64)> {
    let zones = report["zones"].as_array()?;
    let zone = zones.iter().find(|entry| entry["node"] == node && entry["zone"] == zone)?;
    Some((zone["start_pfn"].as_u64()?, zone["spanned_pages"].as_u64()?))
}

#[test]
fn sun_fire_x4600_m2() {
    let report = boot(&["--map", &machine("sun-x4600m2-128g-8node.dmesg")]);
    let mut zones = vec![(0, "DMA", 3992), (0, "DMA32", 880_544), (0, "Normal", 3_309_568)];
    zones.extend((1..8).map(|node| (node, "Normal", 4_194_304)));
    expect(&report, &zones);
    assert_eq!(report["totals"]["present_pages"], 33_554_232);
    assert_eq!(report["nodes"].as_array().map(Vec::len), Some(8));
}

#[test]
fn a_microvm() {
    let report = boot(&["--map", &machine("microvm-24g-1node.dmesg")]);
    expect(&report, &[(0, "DMA", 3998), (0, "DMA32", 782_336), (0, "Normal", 5_505_024)]);
    assert_eq!(span(&report, 0, "Normal").map(|(start, _)| start), Some(1_048_576));
}

#[test]
fn qemus_q35() {
    let report = boot(&["--map", &machine("qemu-q35-8g-2node.dmesg")]);
    let zones =
        [(0, "DMA", 3998), (0, "DMA32", 520_159), (0, "Normal", 524_288), (1, "Normal", 1_048_576)];
    expect(&report, &zones);
    assert_eq!(span(&report, 0, "DMA"), Some((1, 4095)));
    assert_eq!(span(&report, 0, "DMA32"), Some((4096, 1_044_480)));
    assert_eq!(span(&report, 0, "Normal"), Some((1_048_576, 524_288)));
    assert_eq!(span(&report, 1, "Normal"), Some((1_572_864, 1_048_576)));
}

#[test]
fn a_made_up_machine_is_the_q35() {
    let report = boot(&["--memory", "8G", "--nodes", "2", "--cpus", "4"]);
    let zones =
        [(0, "DMA", 3998), (0, "DMA32", 520_159), (0, "Normal", 524_288), (1, "Normal", 1_048_576)];
    expect(&report, &zones);
    let cpus: Vec<_> = report["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| node["cpus"].clone())
        .collect();
    assert_eq!(cpus, [2, 2]);
}

#[test]
fn this_machine() {
    let report = boot(&[]);
    // The difference is what the kernel keeps for itself and what the map rounds away.
    let told = std::fs::read_to_string("/proc/meminfo").expect("Linux");
    let kib = told.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    let (kib, present) =
        (kib.expect("a total"), report["totals"]["present_pages"].as_u64().expect("a count") * 4);
    assert!(
        present > kib / 10 * 9 && present < kib / 2 * 3,
        "{present} KiB present, the kernel says {kib} KiB"
    );
}

#[test]
fn this_machine_with_other_nodes() {
    let report = boot(&["--nodes", "2", "--cpus", "3"]);
    assert_eq!(report["nodes"].as_array().map(Vec::len), Some(2));
    let cpus: Option<u64> =
        report["nodes"].as_array().expect("nodes").iter().map(|node| node["cpus"].as_u64()).sum();
    assert_eq!(cpus, Some(3));
}

#[test]
fn boot_parameters_work() {
    let flat = boot(&["--memory", "8G", "--nodes", "2", "numa=off"]);
    expect(&flat, &[(0, "DMA", 3998), (0, "DMA32", 520_159), (0, "Normal", 1_572_864)]);
    let small = boot(&["--memory", "8G", "--nodes", "2", "numa=off", "mem=1G"]);
    assert_eq!(small["totals"]["present_pages"], (1 << 18) - 98);
}

#[test]
fn mirrored_memory_is_the_kernels() {
    let path = std::env::temp_dir().join(format!("mirrored-{}.machine", std::process::id()));
    let text = "memory 0 +3G usable\nmemory 4G +4G usable\nmirrored 0 +3G\nmirrored 4G +1G\n";
    std::fs::write(&path, text).expect("a file");
    let report = boot(&["--map", path.to_str().expect("text"), "kernelcore=mirror"]);
    std::fs::remove_file(&path).expect("ours");
    let log = report["log"].as_array().expect("lines");
    let says =
        |text: &str| log.iter().any(|line| line.as_str().is_some_and(|line| line.ends_with(text)));
    assert!(says("efi: Memory: 4096M/7168M mirrored memory"), "{log:?}");
    assert!(says("  Node 0: 0x0000000140000000"), "{log:?}");
    let none = boot(&["--memory", "8G", "kernelcore=mirror"]);
    let log = none["log"].as_array().expect("lines");
    let ignored = "The system has no mirror memory, ignore kernelcore=mirror.";
    assert!(log.iter().any(|line| line.to_string().contains(ignored)), "{log:?}");
}

#[test]
fn a_terabyte_and_more() {
    let report = boot(&["--memory", "24T", "--nodes", "16", "--cpus", "16"]);
    assert_eq!(report["nodes"].as_array().map(Vec::len), Some(16));
    assert!(report["totals"]["present_pages"].as_u64() > Some((24 << 28) - 1000));
}

#[test]
fn people_see_a_log_and_tables() {
    let outcome = run(&["boot", "--map", &machine("qemu-q35-8g-2node.dmesg")]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let stamp = lines[0].split_once("] ").map(|(stamp, _)| stamp).unwrap_or_default();
    assert!(stamp.starts_with("[    0.") && stamp.len() == "[    0.000123".len(), "{}", lines[0]);
    for expected in [
        "BIOS-e820: [mem 0x0000000000100000-0x000000007ffdefff] usable",
        "Zone ranges:",
        "  DMA32    [mem 0x0000000001000000-0x00000000ffffffff]",
        "Early memory node ranges",
        "  node   1: [mem 0x0000000180000000-0x000000027fffffff]",
    ] {
        assert!(
            lines.iter().any(|line| line.starts_with('[') && line.ends_with(expected)),
            "{expected}\n{}",
            outcome.stdout
        );
    }
    assert!(lines.iter().any(|line| {
        line.split_whitespace()
            .eq(["node", "zone", "start", "spanned", "present", "managed", "reserved", "free"])
    }));
    assert!(lines.iter().any(|line| line.starts_with("first touch: ")));
    assert!(!outcome.stdout.contains('\x1b'), "no colour in a pipe");
}

#[test]
fn debug_aids_are_in_the_log_and_in_the_metadata() {
    let lines = |words: &[&str]| {
        let report = boot(&[&["--memory", "256M"], words].concat());
        let lines: Vec<_> =
            report["log"].as_array().expect("lines").iter().map(|line| line.to_string()).collect();
        (lines.join("\n"), report["totals"]["metadata_bytes"].as_u64().expect("a count"))
    };
    let (plain, plain_bytes) = lines(&[]);
    assert!(plain.contains("mem auto-init: stack:off, heap alloc:off, heap free:off"), "{plain}");
    assert!(!plain.contains("page_owner") && !plain.contains("poison"), "{plain}");
    let (clearing, bytes) = lines(&["init_on_alloc=1", "init_on_free=on"]);
    assert!(
        clearing.contains("mem auto-init: stack:off, heap alloc:on, heap free:on"),
        "{clearing}"
    );
    assert_eq!(bytes, plain_bytes);
    let (owners, bytes) = lines(&["page_owner=on", "page_poison=1", "init_on_alloc=1"]);
    for expected in [
        "page_owner is enabled",
        "page_poison is enabled, pattern 0xaa",
        "take precedence",
        "heap alloc:off",
    ] {
        assert!(owners.contains(expected), "{owners}");
    }
    assert!(bytes > plain_bytes + (1 << 20), "{bytes} {plain_bytes}");
    let (careful, _) = lines(&["careful=7"]);
    assert!(careful.contains("careful mode, random placement (seed 7)"), "{careful}");
    let (wrong, _) = lines(&["page_owner=maybe"]);
    assert!(wrong.contains("ignored: page_owner= is on or off"), "{wrong}");
}

/// The report times the first allocation of a whole block, which this machine does not have.
#[test]
fn a_machine_without_a_whole_block() {
    let outcome = run(&["boot", "--memory", "8M", "mem=1M"]);
    let expected = ": first allocation after - (no 2 MiB block is whole), all memory after";
    assert!(outcome.stdout.contains(expected), "{}", outcome.stdout);
}

/// Returns how a program ends when its output is not read, and what it writes to standard error.
fn unread(command: &mut Command) -> (Option<i32>, String) {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    drop(child.stdout.take());
    let (_, stderr) = common::rest(&mut child);
    (child.wait().expect("it ends").code(), stderr)
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for words in
        [&["boot", "--memory", "1G"][..], &["boot", "--memory", "1G", "--json"], &["--help"]]
    {
        assert_eq!(unread(program().args(words)), (Some(0), String::new()), "{words:?}");
    }
}

#[test]
fn commands_run_whether_or_not_somebody_reads() {
    for more in [&[][..], &["--json"]] {
        let mut boot = program();
        boot.args(["boot", "--memory", "64M", "--exec", "exit 7"]).args(more);
        assert_eq!(unread(&mut boot), (Some(7), String::new()), "{more:?}");
    }
}

/// After the snapshot comes more text than the pipe has room for, so the program still runs when
/// the signal comes.
#[test]
fn a_signal_after_the_snapshot_ends_a_boot() {
    let folder = common::Scratch::new("signal");
    let path = folder.path("memory.json");
    for (name, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        // SAFETY: no memory is involved, and the pipe is open.
        let room = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
        assert_eq!(room, 4096);
        let mut boot = program();
        boot.args(["boot", "--memory", "4G", "--nodes", "64", "--snapshot"]).arg(&path);
        let mut child = boot.stdout(writer).stderr(Stdio::piped()).spawn().expect("it starts");
        // The parent's end of the pipe is in here.
        drop(boot);
        let mut lines = BufReader::with_capacity(128, reader).lines();
        while !path.exists() {
            lines.next().expect("the snapshot is there before the last line").expect("text");
        }
        common::signal(&child, name);
        assert!(lines.all(|line| !line.expect("text").contains("median of")));
        let (_, stderr) = common::rest(&mut child);
        assert_eq!(
            (child.wait().expect("it ends").code(), stderr.as_str()),
            (Some(status), "framewright: interrupted\n"),
            "{name}"
        );
        std::fs::remove_file(&path).expect("it was written");
    }
}

#[test]
fn a_snapshot_is_made_whether_or_not_somebody_reads() {
    let folder = common::Scratch::new("unread");
    for (name, more, status) in [
        ("plain", &[][..], 0),
        ("commands", &["--exec", "cat /proc/nothing; alloc 9 3"], 0),
        ("status", &["--exec", "alloc 9 3; cat /proc/nothing"], 1),
        ("json", &["--json", "--exec", "alloc 9 3"], 0),
    ] {
        let path = folder.path(name);
        let mut boot = program();
        boot.args(["boot", "--memory", "1G", "--snapshot"]).arg(&path).args(more);
        let (code, stderr) = unread(&mut boot);
        assert_eq!(code, Some(status), "{name}: {stderr}");
        let text = std::fs::read_to_string(&path).expect("it was written");
        let is_there = text.contains("alloc 9 3");
        assert_eq!(is_there, name != "plain", "{name}: {text}");
    }
}

#[test]
fn policies_of_the_memory_map() {
    let boot = |policy: &str, more: &[&str]| {
        let line = format!("memmap_init={policy}");
        let report = run(&[
            &["boot", "--json", "--memory", "4G", "--nodes", "2", "--cpus", "2", &line],
            more,
        ]
        .concat());
        let report = report.json();
        check_sums(&report);
        assert_eq!(report["policy"], policy);
        report
    };
    for policy in ["eager", "deferred"] {
        let report = boot(policy, &[]);
        // 64 bytes for each of 2^20 pages, rounded up to whole sections.
        let bytes = report["totals"]["vmemmap_bytes"].as_u64().expect("a number");
        assert!((64 << 20..=72 << 20).contains(&bytes), "{bytes}");
        let nodes = report["deferred"].as_array().expect("a list").len();
        assert_eq!(nodes, if policy == "deferred" { 2 } else { 0 });
    }
    let report = boot("deferred", &["memmap_init_threads=1"]);
    for node in report["deferred"].as_array().expect("a list") {
        assert!(
            node["pages"].as_u64() > Some(400_000)
                && node["threads"] == 1
                && node["elapsed_ms"].as_f64() > Some(0.0)
        );
    }
    let log = report["log"].to_string();
    assert!(
        log.contains("node 0 deferred pages initialised in") && log.contains("the slowest, took"),
        "{log}"
    );
    let report = boot("on-demand", &[]);
    assert_eq!(
        (&report["totals"]["vmemmap_bytes"], &report["deferred"]),
        (&0.into(), &Value::Array(Vec::new()))
    );
    assert!(report["totals"]["metadata_bytes"].as_u64() < Some(2 << 20));
}

#[test]
fn boot_ends_with_the_policies_side_by_side() {
    let words = ["boot", "--memory", "1G", "--cpus", "1"];
    let outcome = run(&words);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let rows = |text: &str| {
        let begins = |line: &&str| {
            ["eager ", "deferred ", "on-demand "].iter().any(|name| line.starts_with(name))
        };
        text.lines().filter(begins).count()
    };
    assert_eq!(rows(&outcome.stdout), 3, "{}", outcome.stdout);
    let outcome = run(&[&words[..], &["--policy-table=no"]].concat());
    assert_eq!((outcome.code, rows(&outcome.stdout)), (Some(0), 0), "{}", outcome.stdout);
    for none in [&["--json"][..], &["--exec", "echo hi"], &["--on", "qemu"]] {
        let outcome = run(&[&words[..], &["--policy-table=yes"], none].concat());
        assert_eq!(outcome.code, Some(2), "{none:?}");
        assert!(outcome.stderr.contains("--policy-table=yes needs"), "{}", outcome.stderr);
    }
    let outcome = run(&[
        &words[..],
        &["memmap_init=sometimes", "memmap_init_threads=0", "--policy-table=no"],
    ]
    .concat());
    assert!(
        outcome.stdout.contains("memmap_init= is eager, deferred or on-demand"),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome.stdout.contains("memmap_init_threads= takes a number of threads"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn memory_that_a_guest_has_to_accept() {
    let words = ["boot", "--json", "--memory", "4G", "--unaccepted", "75%", "pages=none"];
    let report = run(&words).json();
    let totals = &report["totals"];
    let unaccepted = totals["unaccepted_pages"].as_u64().expect("a count");
    assert!((2900 << 8..3072 << 8).contains(&unaccepted), "{totals}");
    let count = |name: &str| totals[name].as_u64().expect("a count");
    assert_eq!(
        count("present_pages"),
        count("managed_pages") + count("reserved_pages") + unaccepted
    );
    let eager = [&words[..], &["accept_memory=eager"]].concat();
    let report = run(&eager).json();
    assert_eq!(report["totals"]["unaccepted_pages"], 0);
    check_sums(&report);
    let line = |report: &Value, text: &str| {
        let log = report["log"].as_array().expect("a log");
        log.iter().any(|line| line.as_str().is_some_and(|line| line.contains(text)))
    };
    assert!(line(&report, "accept_memory=eager, 31"), "{}", report["log"]);
    // These commands touch the memory that they allocate.
    let exec = "alloc 18 2; alloc 0 100; cat /proc/meminfo; cat /proc/vmstat; cat /proc/zoneinfo";
    let outcome = run(&[&words[..1], &words[2..], &["--exec", exec]].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    for text in ["Unaccepted: ", "nr_unaccepted ", "accept_fail 0"] {
        assert!(outcome.stdout.contains(text), "{text} in {}", outcome.stdout);
    }
    for (words, why) in [
        (["--unaccepted", "100%"], "must be 0% to 99%"),
        (["--accept-delay", "soon"], "soon"),
        (["--accept-delay", "100"], "add --unaccepted"),
    ] {
        let refused = run(&[&["boot", "--memory", "4G"][..], &words].concat());
        assert!(refused.code == Some(2) && refused.stderr.contains(why), "{}", refused.stderr);
    }
}
