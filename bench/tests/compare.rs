//! `framewright-bench compare linux` without Linux: a shell script in QEMU's place that plays both
//! kernels, wrong options, and the init program for Linux, run here as an ordinary process.

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use common::{Outcome, Scratch, finish, is_running, program, run, signal, wait_until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Writes a fake kernel: only the first bytes, which are all that the program examines here.
fn kernel(folder: &Scratch) -> PathBuf {
    let mut bytes = vec![0; 0x400];
    bytes[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    bytes[0x202..0x206].copy_from_slice(b"HdrS");
    bytes[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
    bytes[0x300..0x30b].copy_from_slice(b"6.99-fake x");
    let path = folder.path("vmlinuz");
    fs::write(&path, bytes).expect("a file");
    path
}

/// The output of Linux and of the guest, chosen by their command lines.
const BOTH: &str = r#"
case "$*" in
*initcall_debug*) pages=$(echo "$*" | sed 's/.*hugepages=\([0-9]*\) .*/\1/')
    printf '[ 0.1] Linux\r\n@init\r\n@log <7>[ 0.500] calling  hugetlb_init+0x0\r\n'
    printf '@log <6>[ 0.520] HugeTLB: registered 2.00 MiB page size, pre-allocated '
    printf '%s pages\r\n@over\r\n' "$pages" ;;
*quiet*) printf '@init\r\n@over\r\n' ;;
*rdinit=*) printf '[ 0.1] Linux version 6.99\r\n'
    printf '[ 0.2] node 0 deferred pages initialised in 40ms\r\n'
    printf '[ 0.3] node 1 deferred pages initialised in 60ms\r\n@init\r\n'
    printf '@sum /proc/meminfo MemTotal: 1000\r\n@sum /proc/meminfo MemFree: 900\r\n'
    printf '@sum /proc/vmstat nr_memmap_boot_pages 4\r\n@sum /proc/zoneinfo count: 25\r\n'
    printf '@sum /proc/vmstat pgmigrate_success 0\r\n@time /proc/sys/vm/compact_memory 9000000\r\n'
    printf '@sum /proc/vmstat pgmigrate_success 100\r\n'
    printf '@resize /proc/sys/vm/nr_hugepages 1048576 0 1000000\r\n'
    pool=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
    for ms in 30 150; do
        printf "@resize $pool 256 256 ${ms}000000\r\n"
        printf "@resize $pool 0 0 ${ms}000000\r\n"
    done
    printf '@fault huge 1 90\r\n@fault base 1 40\r\n@over\r\n' ;;
*hugepages=*) pages=$(echo "$*" | sed 's/.*hugepages=\([0-9]*\) .*/\1/')
    printf '[ 0.1] HugeTLB: allocation took 2.000ms with x\r\n[ 0.1] HugeTLB: registered '
    printf '2.00 MiB page size, pre-allocated %s pages\r\n' "$pages"
    printf '@shell\r\n@status 0\r\n@end\r\n'; exit 33 ;;
*exec=*) printf '[ 0.1] Memory: 990K/1024K available\r\n'
    printf '@json {"nodes":[{"init_ms":0.5}],"deferred":[{"elapsed_ms":30.0}],'
    printf '"totals":{"metadata_bytes":4096,"all_memory_us":3000.0}}\r\n'
    printf '@shell\r\nMemFree: 980 kB\r\n'
    printf '1 block made whole, moved 50 pages in 50 runs, 0 runs refused in 1500 us\r\n'
    for ns in 1000000 2000000; do
        printf '2.00 MiB: 256 pages to stay, 0 surplus, %s ns\r\n' $ns
        printf '2.00 MiB: 0 pages to stay, 0 surplus, %s ns\r\n' $ns
    done
    printf 'page_fault1 cpus 1: 900 iterations/s\r\npage_fault2 cpus 1: 400 iterations/s\r\n'
    printf '1 handle, 4.00 KiB: all intact\r\n@status 0\r\n@end\r\n'; exit 33 ;;
*) printf '[ 0.1] Framewright\r\n@shell\r\nframewright> '; read -r word
    printf '\r\n@status 0\r\n@end\r\n'; exit 33 ;;
esac
exit 0"#;

/// Returns a command for the program with a script as QEMU; the script's arguments go to `calls`.
fn with_fake(folder: &Scratch, body: &str, words: &[&str]) -> Command {
    let calls = folder.path("calls").display().to_string();
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'QEMU emulator version 9.9.9 (fake)'; \
         exit 0; fi\necho \"$*\" >> '{calls}'\n{body}\n"
    );
    let path = folder.path("qemu-system-x86_64");
    fs::write(&path, text).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it may run");
    fs::write(folder.path("image"), "program").expect("a file");
    let mut command = program();
    let old = std::env::var("PATH").unwrap_or_default();
    command
        .args([
            "compare", "linux", "--quick", "--accel", "tcg", "--cpus", "1", "--memory", "1G",
            "--kernel",
        ])
        .arg(kernel(folder))
        .args(words)
        .env("PATH", format!("{}:{old}", folder.path("").display()))
        .env("FRAMEWRIGHT_GUEST", folder.path("image"))
        .env("FRAMEWRIGHT_LINUX_INIT", folder.path("image"));
    command
}

fn compare(folder: &Scratch, body: &str) -> (Outcome, Value, String) {
    let file = folder.path("results.json");
    let outcome = finish(&mut with_fake(folder, body, &["--json", &file.display().to_string()]));
    let results = fs::read_to_string(&file)
        .map_or(Value::Null, |text| serde_json::from_str(&text).expect("JSON"));
    (outcome, results, fs::read_to_string(folder.path("calls")).unwrap_or_default())
}

fn row<'a>(results: &'a Value, what: &str, details: &[(&str, &str)]) -> &'a Value {
    let rows = results["rows"].as_array().expect("rows");
    let fits = |row: &&Value| {
        row["what"] == what && details.iter().all(|(name, value)| row[name] == *value)
    };
    rows.iter().find(fits).unwrap_or_else(|| panic!("no {what} {details:?} in {results:#}"))
}

#[test]
fn both_are_compared_and_what_falls_short_is_marked() {
    let folder = Scratch::new("compare-both");
    let (outcome, results, calls) = compare(&folder, BOTH);
    // A script has no guest memory that could be watched.
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("reporting: a machine did not report freeing its memory"),
        "{}",
        outcome.stderr
    );
    assert_eq!((&results["format"], &results["machine"]["qemu"]), (&1.into(), &"9.9.9".into()));
    let map = row(&results, "memory map, slowest node", &[("policy", "deferred")]);
    assert_eq!(
        (&map["linux_ms"], &map["ours_ms"], &map["ratio"]),
        (&60.0.into(), &30.0.into(), &2.0.into())
    );
    assert_eq!(
        (&map["demanded_ratio"], &map["met"], &map["kernel"]),
        (&3.0.into(), &false.into(), &"6.99-fake".into())
    );
    let fill = |reclaim, when| {
        row(&results, "pool of 2 MiB, fill", &[("reclaim", reclaim), ("when", when)])
    };
    assert_eq!(
        (&fill("off", "run time")["ratio"], &fill("off", "run time")["met"]),
        (&30.0.into(), &true.into())
    );
    assert_eq!(
        (&fill("on", "run time")["ratio"], &fill("on", "run time")["pages"]),
        (&75.0.into(), &256.into())
    );
    assert!((fill("on", "boot")["linux_ms"].as_f64().expect("a time") - 20.0).abs() < 1e-9);
    assert_eq!(fill("on", "boot")["ours_ms"], 2.0);
    let large = row(&results, "pool of 1 GiB, fill", &[]);
    assert_eq!(large["skipped"], "1024 MiB of memory are too little: at least 4 GiB are needed");
    assert_eq!(row(&results, "page_fault1", &[])["ours_iterations_per_s"], 900.0);
    assert_eq!(row(&results, "page metadata", &[("policy", "on-demand")])["linux_bytes"], 16384.0);
    assert!(row(&results, "spawn to prompt", &[])["ratio"].as_f64() > Some(0.0));
    // The report finds limits in the written results.
    let report = run(&["report", "--text", &folder.path("results.json").display().to_string()]);
    assert_eq!(report.code, Some(0), "{}", report.stderr);
    for limit in
        ["Spawn to prompt", "Memory map deferred", "Memory map on demand", "HVO off:", "HVO on:"]
    {
        let line =
            report.stdout.lines().find(|line| line.contains(limit)).expect("there is such a limit");
        assert!(!line.contains("not measured"), "{line}");
    }
    for part in [
        "FALLS SHORT",
        "init_on_alloc=0",
        "mitigations=off",
        "pool of 1 GiB, fill: not compared: 1024 MiB",
    ] {
        assert!(outcome.stdout.contains(part), "no {part}: {}", outcome.stdout);
    }
    // Both kernels get the same configuration and memory that is allocated before they start,
    // except where only the time to the prompt counts.
    let machine = |call: &str| {
        call.split(" -append ").next().unwrap_or_default().replace(" -initrd ", "").len() > 40
    };
    assert!(
        calls.lines().all(|call| machine(call)
            && call.contains("-cpu max,-cx16")
            && (call.contains("-m 1024M -smp 1") || call.contains("-m 1024M,maxmem=3072M -smp 1"))),
        "{calls}"
    );
    let comes_and_goes = ["virtio-balloon", "virtio-mem"];
    let is_plain = |call: &&str| !comes_and_goes.iter().any(|device| call.contains(device));
    let plain: Vec<&str> = calls.lines().filter(is_plain).collect();
    let later = plain
        .iter()
        .position(|call| call.contains("-smp 16 "))
        .expect("many CPUs come after the prompt");
    let is_taken = |call: &&str| call.contains("-mem-prealloc");
    assert!(plain.len() >= 10 && later > 0 && !plain[..later].iter().any(is_taken), "{calls}");
    assert!(plain[later..].iter().all(is_taken), "{calls}");
    assert_eq!(calls.lines().filter(|call| call.contains("virtio-balloon")).count(), 1, "{calls}");
}

#[test]
fn a_kernel_that_dies_is_explained_and_the_rest_goes_on() {
    let folder = Scratch::new("compare-dies");
    let body = format!(
        "case \"$*\" in *rdinit=*) echo '[ 0.1] Kernel panic - not syncing: no luck'; exit 0;; \
         esac\n{BOTH}"
    );
    let (outcome, results, _) = compare(&folder, &body);
    assert_eq!((outcome.code, results), (Some(1), Value::Null));
    for part in [
        "boot: Linux did not reach the end of its script (QEMU: exit status: 0)",
        "  [ 0.1] Kernel panic - not syncing: no luck",
        "not everything could be compared",
    ] {
        assert!(outcome.stderr.contains(part), "no {part}: {}", outcome.stderr);
    }
}

#[test]
fn an_interrupt_ends_it_and_nothing_is_left() {
    let folder = Scratch::new("compare-interrupt");
    let pid = folder.path("pid");
    let body = format!("echo $$ > '{}'; echo '[ 0.1] begun'; exec sleep 300", pid.display());
    let mut child = with_fake(&folder, &body, &[])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let pid = || fs::read_to_string(&pid).unwrap_or_default();
    wait_until("QEMU starts", || pid().ends_with('\n'));
    signal(&child, "INT");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    wait_until("QEMU is gone", || !is_running(&pid()));
    let (stdout, stderr) = common::rest(&mut child);
    assert!(
        stdout.is_empty() && stderr.ends_with("framewright-bench: interrupted\n"),
        "{stdout}{stderr}"
    );
}

#[test]
fn wrong_options_are_refused_before_anything_runs() {
    let folder = Scratch::new("compare-wrong");
    let text = folder.path("text");
    fs::write(&text, "no kernel").expect("a file");
    let text = text.display().to_string();
    for (words, expected) in [
        (
            &["--kernel", "/nowhere/vmlinuz"][..],
            "--kernel /nowhere/vmlinuz: cannot be read: No such file",
        ),
        (&["--kernel", &text], "not a Linux kernel for PCs: it needs a bzImage"),
        (&["--memory", "64M"], "--memory 64M: Linux needs at least 512 MiB here"),
        (&["--memory", "900T"], "QEMU takes all of it before the machine begins"),
        (&["--only", "moon"], "--only moon: the sections are boot, memory, reporting, pools"),
        (&["--cpus", "0"], "a machine needs at least one CPU"),
        (
            &["--json", "/nowhere/results.json"],
            "--json /nowhere/results.json: cannot be written: No such file or directory",
        ),
        (&["--json", "/tmp"], "--json /tmp: is a folder"),
    ] {
        let mut command = program();
        let outcome = finish(command.args(["compare", "linux"]).args(words));
        assert_eq!(outcome.code, Some(2), "{words:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{words:?}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "");
    }
}

#[test]
fn without_apt_it_says_how_to_get_a_kernel() {
    let folder = Scratch::new("compare-no-apt");
    let mut command = program();
    command
        .args(["compare", "linux", "--quick"])
        .env("PATH", folder.path(""))
        .env("XDG_CACHE_HOME", folder.path("cache"));
    let outcome = finish(&mut command);
    // A Debian system without the tools, or no Debian at all.
    assert!(matches!(outcome.code, Some(1 | 2)), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("give a kernel with --kernel"), "{}", outcome.stderr);
}

/// Builds the program that runs as init in Linux.
fn linux_init() -> PathBuf {
    if let Some(path) = std::env::var_os("FRAMEWRIGHT_LINUX_INIT") {
        return path.into();
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = Command::new(cargo)
        .args(["build", "--release", "-p", "linux-init", "--message-format", "json"])
        .current_dir(root)
        .output();
    let messages = String::from_utf8(built.expect("cargo runs").stdout).expect("text");
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = messages
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    program.expect("cargo names what it built")
}

/// Runs it on a script as an ordinary process.
fn follow(folder: &Scratch, script: &str) -> Outcome {
    let path = folder.path("script");
    fs::write(&path, script).expect("a file");
    finish(Command::new(linux_init()).arg(path))
}

#[test]
fn the_program_in_linux_follows_scripts() {
    let folder = Scratch::new("compare-init");
    let number = folder.path("number").display().to_string();
    let words = folder.path("words").display().to_string();
    fs::write(&number, "0").expect("a file");
    fs::write(&words, "node 1\n  present 12\nspanned 9\n  present 30 kB\npresents 5\n")
        .expect("a file");
    let script = format!(
        "mark a few words\n\nresize {number} 42\nwrite {number} 7\nsum {words} present\nsum \
         {words} absent\nexists {words}\nexists {number}x\n\
         dirty 3 0\nfault huge 0 1\nfault base 0 2\nresize {number}x 1\nload {words}\nbogus\nmark \
         last"
    );
    let outcome = follow(&folder, &script);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines[..2], ["@init", "@mark a few words"]);
    let resized = lines[2].strip_prefix(&format!("@resize {number} 42 42 ")).expect("a resize");
    assert!(resized.parse::<u64>().expect("nanoseconds") > 0);
    assert_eq!(fs::read_to_string(&number).expect("a file"), "72", "a write does not shorten");
    assert_eq!(lines[3], format!("@sum {words} present 42"));
    assert_eq!(lines[4], format!("@failed sum {words} absent: error 2"));
    assert_eq!(lines[5..7], [format!("@exists {words} yes"), format!("@exists {number}x no")]);
    assert_eq!(lines[7..9], ["@dirty 3", "@freed 3"]);
    for (line, start) in [(9, "@fault huge 1 "), (10, "@fault base 2 ")] {
        let rate = lines[line].strip_prefix(start).unwrap_or_else(|| panic!("{}", outcome.stdout));
        assert!(rate.parse::<u64>().expect("a rate") > 0);
    }
    assert_eq!(lines[11], format!("@failed resize {number}x 1: error 2"));
    assert!(lines[12].starts_with(&format!("@failed load {words}: error ")), "{}", outcome.stdout);
    assert_eq!(lines[13..], ["@failed bogus: error 2", "@mark last", "@over"]);
}

#[test]
fn the_program_in_linux_does_not_take_a_part_for_the_whole() {
    let folder = Scratch::new("compare-parts");
    let long = folder.path("long").display().to_string();
    fs::write(&long, "present 1\n".repeat(20_000)).expect("a file");
    let script = folder.path("script");
    fs::write(&script, format!("sum {long} present\nfault base 0 2\nmark end")).expect("a file");
    // Too little memory for what each child maps.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 65536; exec \"$@\"", "sh"]).arg(linux_init()).arg(&script);
    let outcome = finish(&mut limited);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let too_long = format!("@failed sum {long} present: error {}", libc::EFBIG);
    let no_memory = format!("@failed fault base 0 2: error {}", libc::ENOMEM);
    assert_eq!(lines, ["@init", &too_long, &no_memory, "@mark end", "@over"]);
}

#[test]
fn the_program_in_linux_sees_memory_come_and_go() {
    let folder = Scratch::new("compare-follow");
    let file = folder.path("meminfo");
    let total = |kib: u64| {
        let next = folder.path("next");
        fs::write(&next, format!("MemFree: 1 kB\nMemTotal: {kib} kB\n")).expect("a file");
        fs::rename(next, &file).expect("ours");
    };
    let name = format!("{} MemTotal:", file.display());
    let started = folder.path("started").display().to_string();
    fs::write(&started, "0").expect("a file");
    total(1000);
    let outcome = std::thread::scope(|scope| {
        let path = folder.path("script");
        let script = format!("write {started} 1\nfollow {name} 500 20\nfollow {name} 1 0\n");
        fs::write(&path, script).expect("a file");
        let program = scope.spawn(move || finish(Command::new(linux_init()).arg(path)));
        while fs::read_to_string(&started).expect("a file") != "1" {
            std::thread::yield_now();
        }
        // Wherever in the rise the program first looks, it sees the value grow and then fall.
        for kib in (1000..=6000).step_by(500) {
            total(kib);
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        total(1000);
        program.join().expect("it ran")
    });
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let [_, grown, shrunk, late, _] = *lines else { panic!("{}", outcome.stdout) };
    assert_eq!(grown, format!("@grown {name} 500"));
    assert_eq!(shrunk, format!("@shrunk {name} 500"));
    assert_eq!(late, format!("@failed follow {name} 1 0: error 62"));
}

#[test]
fn only_the_first_program_fills_all_memory() {
    let folder = Scratch::new("compare-scatter");
    let number = folder.path("number").display().to_string();
    fs::write(&number, "0").expect("a file");
    let outcome = follow(&folder, &format!("time {number} 42\nscatter 80 1 1"));
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let ns = lines[1].strip_prefix(&format!("@time {number} ")).expect("a time");
    assert!(ns.parse::<u64>().expect("nanoseconds") > 0);
    assert_eq!(fs::read_to_string(&number).expect("a file"), "42");
    assert_eq!(lines[2..], ["@failed scatter 80 1 1: error 1", "@over"]);
}

#[test]
fn one_section_is_measured_alone() {
    let folder = Scratch::new("compare-only");
    let file = folder.path("results.json").display().to_string();
    let outcome = finish(&mut with_fake(&folder, BOTH, &["--json", &file, "--only", "compaction"]));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let results = fs::read_to_string(&file).expect("results");
    let results: Value = serde_json::from_str(&results).expect("JSON");
    assert_eq!(results["command"], "compare linux --quick --only compaction");
    assert_eq!(results["sections"].as_array().map(Vec::len), Some(1));
    let compaction = row(&results, "compaction: on request", &[]);
    assert_eq!((&compaction["ours_ms"], &compaction["ratio"]), (&1.5.into(), &6.0.into()));
    assert_eq!(row(&results, "compaction: 2 MiB pages got", &[])["ours_pages"], 256.0);
}

#[test]
fn the_program_in_linux_says_what_is_wrong_with_its_script() {
    let folder = Scratch::new("compare-init-wrong");
    let none = finish(&mut Command::new(linux_init()));
    assert_eq!(
        (none.code, none.stdout.as_str()),
        (Some(1), "@init\n@failed: the first argument names a script\n")
    );
    let long = follow(&folder, &"mark x\n".repeat(3000));
    assert!(long.code == Some(1) && long.stdout.contains("too long"), "{}", long.stdout);
    let absent = finish(Command::new(linux_init()).arg(folder.path("absent")));
    assert!(absent.code == Some(1) && absent.stdout.contains("error 2"), "{}", absent.stdout);
    // A long line is cut, not lost.
    let wide = follow(&folder, &format!("mark {}\nmark end", "x".repeat(2000)));
    assert_eq!(wide.stdout.lines().nth(1).map(str::len), Some(511));
    assert!(wide.stdout.ends_with("@mark end\n@over\n"));
}
