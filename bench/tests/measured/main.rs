//! `framewright-bench all`: a results file that survives interruption, and rows of every section
//! that are complete, plausible and of the documented form. Most tests share one run of all
//! sections. Speed is not judged here, because the build may be unoptimised.

mod alloc;
#[path = "../../../cli/tests/common/mod.rs"]
mod common;
mod hugepages;
mod init;
mod jobs;
mod reporting;

use common::{Scratch, finish, program, run};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

/// Suffixes of measured fields (docs/usage.md); `seconds` also stands alone.
const TIMES: [&str; 6] = ["_ns", "_us", "_ms", "_seconds", "_s", "_mib"];
const OTHERS: [&str; 7] = ["_bytes", "_pages", "_percent", "_ratio", "_gib", "_kb", "_kib"];
/// Fields that share the unit of the field they belong to, or are shares without a unit.
const NAMED: [&str; 5] =
    ["deviation", "cpu_deviation", "against_off", "against_off_deviation", "reported_mib_per_s"];
/// Suffixes of the fields that give a field's spread: its minimum and maximum, and the ends of an
/// interval.
const SPREAD: [&str; 4] = ["_min", "_max", "_low", "_high"];

fn is_time(name: &str) -> bool {
    name == "seconds" || TIMES.iter().any(|unit| name.ends_with(unit))
}

/// Checks one row against docs/usage.md.
fn keeps_to_the_form(row: &Value) {
    let fields = row.as_object().unwrap_or_else(|| panic!("no object: {row}"));
    assert!(row["bench"].is_string(), "{row}");
    for (name, value) in fields {
        if let Some(number) = value.as_f64() {
            assert!(number.is_finite(), "{name}: {row}");
        }
        let is_spread = SPREAD.iter().any(|end| name.ends_with(end));
        if is_spread || !value.is_f64() {
            continue;
        }
        let has_unit = is_time(name)
            || OTHERS.iter().any(|unit| name.ends_with(unit))
            || NAMED.contains(&name.as_str());
        assert!(has_unit, "{name} has no unit: {row}");
        // A value that was chosen, simulated or derived from all runs has no spread.
        let has_spread = fields.contains_key(&format!("{name}_min"));
        let chosen =
            ["dirtied_mib", "before_mib", "run_seconds", "unit_ns", "predicted_ms", "calls_per_us"]
                .contains(&name.as_str());
        assert!(has_spread || chosen || !is_time(name), "{name} has no spread: {row}");
        if has_spread {
            let [least, most] = ["_min", "_max"].map(|end| row[format!("{name}{end}")].as_f64());
            assert!(
                least <= Some(value.as_f64().unwrap()) && value.as_f64() <= most,
                "{name}: {row}"
            );
        }
    }
}

#[test]
fn threads_are_shares_of_cpus() {
    let report = section("scaling on hosted");
    let rows = report["rows"].as_array().expect("rows");
    for what in ["deferred", "pool 2 MiB", "pool 1 GiB"] {
        let of: Vec<&Value> = rows.iter().filter(|row| row["what"] == what).collect();
        let threads: Vec<_> = of.iter().map(|row| row["threads"].as_u64().unwrap()).collect();
        assert!(
            threads.is_sorted_by(|one, next| one < next) && threads.contains(&1),
            "{threads:?}"
        );
        assert_eq!(threads[0] == 0, what == "deferred");
        assert_eq!(of.last().unwrap()["cpus_percent"], 100.0);
        assert!(of.iter().all(|row| row["managed_gib"] == 8));
        assert!(of.iter().all(|row| row["init_ms"].as_f64() > Some(0.0)
            && row["boot_ms"].as_f64() >= row["init_ms"].as_f64()));
        assert!(of.iter().all(|row| row["speedup_ratio"].as_f64() > Some(0.0)
            && row["init_deviation_percent"].is_number()));
    }
    let outcome = run(&["init", "--quick", "--table"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    for word in ["pool 2 MiB", "speedup", "(stdev)", "init_ms"] {
        assert!(outcome.stdout.contains(word), "{word}: {}", outcome.stdout);
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("there is one")).expect("is whole")
}

fn bench_all(path: &Path) -> Command {
    let mut command = program();
    // QEMU is not on the path, so sections that boot machines are left out.
    command.args(["all", "--quick", "--json"]).arg(path).env("PATH", "/nonexistent");
    command
}

/// Sends SIGTERM to a run as soon as its file has a section; returns both of its outputs.
fn interrupt_after_a_section(mut command: Command, path: &Path) -> [String; 2] {
    let pipes = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("the program starts");
    // An unoptimised build on a busy machine is slow.
    let patience = Instant::now() + Duration::from_secs(600);
    let has_section = || {
        let text = fs::read_to_string(path).ok()?;
        let sections = serde_json::from_str::<Value>(&text).ok()?["sections"].as_array()?.len();
        (sections > 0).then_some(())
    };
    while has_section().is_none() {
        if Instant::now() > patience || child.try_wait().expect("it was started").is_some() {
            // It may have exited already.
            let _ = child.kill();
            panic!("no section: {:?}", child.wait_with_output());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let told = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status()
        .expect("kill is there");
    assert!(told.success());
    let output = child.wait_with_output().expect("it was started");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into());
    assert_eq!(output.status.code(), Some(128 + 15), "{said:?}");
    said
}

/// The results of a whole run, which takes minutes.
struct Whole {
    /// The results file after the first section, after the go without a shell, and at the end.
    files: [Value; 3],
    /// How the second and third goes ended.
    codes: [Option<i32>; 2],
    /// The output of each of the three goes.
    said: [String; 3],
    /// The text output of all goes.
    shown: String,
}

static WHOLE: LazyLock<Whole> = LazyLock::new(|| {
    let scratch = Scratch::new("bench-all");
    let path = scratch.path("results.json");
    let [first_shown, first] = interrupt_after_a_section(bench_all(&path), &path);
    let before = read(&path);
    let files = fs::read_dir(scratch.path("")).expect("a folder");
    let names: Vec<_> = files.map(|file| file.expect("it can be read").file_name()).collect();
    assert_eq!(names, ["results.json"], "nothing that is half written is left");
    // The jobs section runs a shell that spins beside it, and no shell is on the path here: that
    // section fails and the others do not.
    let second = finish(&mut bench_all(&path));
    let failed = read(&path);
    // Only the failed section is run again.
    std::os::unix::fs::symlink("/bin/sh", scratch.path("sh")).expect("a link");
    let third = finish(bench_all(&path).env("PATH", scratch.path("")));
    // A failed section fails its own tests, not all tests that use this run.
    Whole {
        files: [before, failed, read(&path)],
        codes: [second.code, third.code],
        said: [first, second.stderr, third.stderr],
        shown: [first_shown, second.stdout, third.stdout].concat(),
    }
});

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name}"))
}

/// Returns whether a row belongs to this bench: some benches have tables besides the one of their
/// name.
fn is_of(row: &Value, bench: &str) -> bool {
    bench
        == match row["bench"].as_str().expect("a table") {
            "store" => "init",
            "tail" => "traffic",
            "series" | "fault" | "shuffle" => "reporting",
            own => own,
        }
}

/// Returns a section with its rows, as the bench alone prints it, by its name in the file.
fn section(name: &str) -> Value {
    let [.., whole] = &WHOLE.files;
    let found = list(whole, "sections").iter().find(|section| section["section"] == name);
    let mut section = found.unwrap_or_else(|| panic!("no section {name}")).clone();
    assert!(section["failed"].is_null(), "{section}");
    let bench = section["bench"].as_str().expect("a bench").to_owned();
    let rows = list(whole, "rows").iter().filter(|row| is_of(row, &bench));
    section["rows"] = rows.cloned().collect();
    section
}

/// Returns the text output of a section, by its name in the file.
fn shown(name: &str) -> String {
    // A line that holds only the section's name and how long it took.
    let begins = |line: &&str| {
        let seconds = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(", "));
        let seconds = seconds.and_then(|rest| rest.strip_suffix(" s"));
        seconds.is_some_and(|seconds| seconds.parse::<f64>().is_ok())
    };
    let is_another = |line: &&str| {
        let name = line.split([',', ':']).next().unwrap_or_default();
        list(&WHOLE.files[2], "sections").iter().any(|section| section["section"] == name)
    };
    let mut lines = WHOLE.shown.lines().skip_while(|line| !begins(line));
    assert!(lines.next().is_some(), "no {name}:\n{}", WHOLE.shown);
    lines.take_while(|line| !is_another(line)).map(|line| format!("{line}\n")).collect()
}

#[test]
fn an_interrupted_run_goes_on() {
    let [before, failed, after] = &WHOLE.files;
    let [_, second, third] = &WHOLE.said;
    assert_eq!(WHOLE.codes, [Some(1), Some(0)], "{second}\n{third}");
    assert_eq!((&before["format"], &before["command"]), (&json!(1), &json!("bench all --quick")));
    assert!(before["machine"]["cpus"].as_u64() > Some(0) && before["machine"]["qemu"].is_null());
    let done = list(before, "sections").len();
    assert!((1..17).contains(&done));
    assert!(second.contains(&format!("resumes; {done} of 17 sections are there")), "{second}");
    assert!(second.contains("1 of 17 sections failed: jobs"), "{second}");
    assert!(list(failed, "rows").iter().all(|row| row["bench"] != "jobs"));
    assert!(third.contains("resumes; 16 of 17 sections are there"), "{third}");
    let sections = list(after, "sections");
    assert_eq!((sections.len(), &sections[..done]), (17, list(before, "sections")));
    assert_eq!(after["started"], before["started"]);
    let rows = list(after, "rows");
    for section in sections {
        let on_qemu = section["on"] == "qemu";
        assert_eq!(section["left_out"] == json!(["QEMU is not installed"]), on_qemu, "{section}");
        assert!(on_qemu || section["seconds"].as_f64() > Some(0.0), "{section}");
        assert!(rows.iter().any(|row| row["bench"] == section["bench"]), "{section}");
    }
    rows.iter().for_each(keeps_to_the_form);
    let benches = sections.iter().map(|section| section["bench"].as_str().expect("a bench"));
    let benches: Vec<&str> = benches.collect();
    for row in rows {
        assert!(benches.iter().any(|bench| is_of(row, bench)), "{row}");
    }
}

/// Measured costs are used for other machines, for which nothing is measured.
#[test]
fn measured_costs_predict_other_machines() {
    assert!(section("model")["costs"].is_object());
    let [.., whole] = &WHOLE.files;
    let scratch = Scratch::new("bench-predicted");
    let [results, predicted] = ["results.json", "predicted.json"].map(|name| scratch.path(name));
    fs::write(&results, whole.to_string()).expect("a file");
    let results = results.display().to_string();
    let of = ["--memory", "24T", "--nodes", "16", "--cpus", "252", "--results", &results];
    let outcome = finish(program().arg("model").args(of).arg("--json").arg(&predicted));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        outcome.stdout.contains("flush of all CPUs")
            && outcome.stdout.contains("deferred, node 15")
    );
    list(&read(&predicted), "rows").iter().for_each(keeps_to_the_form);
}

#[test]
fn bad_files_are_refused_before_anything_is_measured() {
    let scratch = Scratch::new("bench-all-bad");
    let torn = scratch.path("torn.json");
    fs::write(&torn, "{\"format\":1,\"sections\":[").expect("a file");
    let folder = scratch.path("folder");
    fs::create_dir(&folder).expect("a folder");
    for (path, expected) in [
        (
            torn.clone(),
            "is not a file of results (EOF while parsing a list at line 1 column 24): name \
             another, or remove it first",
        ),
        (scratch.path("absent/results.json"), "cannot be written: No such file or directory"),
        (folder, "is a folder"),
    ] {
        let outcome = finish(&mut bench_all(&path));
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains(expected) && outcome.stdout.is_empty(),
            "{}",
            outcome.stderr
        );
    }
    let outcome = finish(bench_all(&torn).arg("--fresh"));
    assert!(
        outcome.code == Some(2) && outcome.stderr.contains("is not a file of results"),
        "{}",
        outcome.stderr
    );
    assert_eq!(fs::read_to_string(&torn).expect("it is there"), "{\"format\":1,\"sections\":[");
    for (words, expected) in [
        (&["all", "--fresh"][..], "--json"),
        (&["model"], "--machine"),
        (&["model", "--machine", "/nonexistent"], "/nonexistent"),
        (&["model", "--memory", "8G", "--results", "/nonexistent"], "/nonexistent: cannot be read"),
        (&["model", "--memory", "8G", "--results", torn.to_str().unwrap()], "is not JSON"),
    ] {
        let outcome = run(words);
        assert_eq!(outcome.code, Some(2), "{words:?}: {}", outcome.stderr);
        assert!(
            outcome.stderr.contains(expected) && outcome.stdout.is_empty(),
            "{words:?}: {}",
            outcome.stderr
        );
    }
}

#[test]
fn another_versions_file_is_kept_aside() {
    let scratch = Scratch::new("bench-all-version");
    let path = scratch.path("results.json");
    let text = json!({ "format": 1, "framewright": "0.0.1", "command": "bench all \
            --quick", "sections": [], "rows": [] })
    .to_string();
    fs::write(&path, &text).expect("a file");
    let [_, said] = interrupt_after_a_section(bench_all(&path), &path);
    assert!(said.contains("starts over, because it is from version 0.0.1"), "{said}");
    assert_eq!(fs::read_to_string(scratch.path("results.json.old")).expect("it was kept"), text);
    assert_eq!(read(&path)["framewright"], env!("CARGO_PKG_VERSION"));
}
