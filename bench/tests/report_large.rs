//! Reports of files that are small and ask for much, or large and ask for little: what is too much
//! is refused with its place, before anything is drawn.

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use common::{Outcome, Scratch, program};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::process::CommandExt;

/// Seconds of a CPU and bytes of memory that a report may take. Its work is what is bounded; a slow
/// machine takes longer and not more of it.
const CPU_SECONDS: u64 = 60;
const MEMORY_BYTES: u64 = 2 << 30;

/// Makes a report of one file; the system ends a program that takes more than the limits.
fn report(folder: &Scratch, value: &Value) -> Outcome {
    let (file, page) = (folder.path("in.json"), folder.path("out.html"));
    fs::write(&file, value.to_string()).expect("a file");
    let mut command = program();
    command.args(["report", &file.display().to_string(), "-o", &page.display().to_string()]);
    let limit = |which, most| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: setrlimit reads the structure and touches nothing else.
        if unsafe { libc::setrlimit(which, &limit) } == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            limit(libc::RLIMIT_CPU, CPU_SECONDS).and_then(|()| limit(libc::RLIMIT_AS, MEMORY_BYTES))
        })
    };
    common::finish(&mut command)
}

#[test]
fn results_of_many_kinds_take_time_in_step_with_their_number() {
    const MANY: u64 = 50_000;
    let folder = Scratch::new("kinds");
    let rows = |make: &dyn Fn(u64) -> Value| (0..MANY).map(make).collect::<Vec<Value>>();
    let alloc = |field: &str, of: u64| {
        let mut row = json!({ "bench": "alloc", "allocator": "framewright", "managed_gib": 8,
            "order": of, "pattern": "bulk", "threads": 1, "alloc_ns": 1 });
        row[field] = if field == "order" { of.into() } else { format!("{of}").into() };
        row
    };
    for value in [
        json!({ "rows": rows(&|of| json!({ "bench": format!("b{of}"), "x_ns": 1 })) }),
        json!({ "rows": rows(&|of| json!({ "bench": "b", format!("f{of}"): 1 })) }),
        json!({ "rows": rows(&|of| json!({ "bench": "b", "kind": of, "x_ns": 1 })) }),
        json!({ "rows": rows(&|of| alloc("allocator", of)) }),
        json!({ "rows": rows(&|of| alloc("order", of)) }),
        json!({ "rows": rows(&|of| json!({ "bench": "jobs", "case": "uniform",
            "engine": if of % 2 == 0 { "serial" } else { "framewright" }, "units": of / 2,
            "unit_ns": 1, "seconds": 1 })) }),
        json!({ "rows": rows(&|of| json!({ "bench": "fault", "config": if of % 2 == 0 {
            "off" } else { "on" }, "on": "hosted", "workload": "w", "cpus": of / 2,
            "against_off": 1 })) }),
        json!({ "rows": [{ "bench": "b", "x_ns": 1 }], "sections": rows(&|of| json!({
            "bench": format!("s{of}"), "timed": "t" })) }),
    ] {
        let outcome = report(&folder, &value);
        // A page that would be too large is refused, soon.
        let is_refused =
            outcome.code == Some(2) && outcome.stderr.contains("2048 at most are sensible");
        assert!(outcome.code == Some(0) || is_refused, "{:?}: {}", outcome.code, outcome.stderr);
    }
    // Tables that nobody knows are cut, and that is said.
    let tables: Vec<Value> =
        (0..70).map(|of| json!({ "bench": format!("b{of}"), "x_ns": 1 })).collect();
    assert_eq!(report(&folder, &json!({ "rows": tables })).code, Some(0));
    let page = fs::read_to_string(folder.path("out.html")).expect("it was written");
    assert!(page.contains("6 more tables are in the files") && page.matches("<h3>").count() == 64);
}
