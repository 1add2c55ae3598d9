//! `framewright-bench report`: what it writes, and what it says about files that it cannot use.

#[path = "../../cli/tests/common/mod.rs"]
mod common;
mod fixture;

use common::{Scratch, run};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn words(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_page_has_everything_and_nothing_from_elsewhere() {
    let folder = Scratch::new("page");
    let (results, page) = (folder.path("results.json"), folder.path("report.html"));
    fs::write(&results, fixture::results().to_string()).expect("a file");
    let outcome = run(&["report", &words(&results), "-o", &words(&page)]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let text = fs::read_to_string(&page).expect("it was written");
    assert!(text.len() < 2 << 20);
    for id in [
        "limits",
        "linux",
        "allocation",
        "traffic",
        "bring-up",
        "memory-map",
        "scaling",
        "jobs",
        "huge-pages",
        "reporting",
        "model",
        "others",
        "files",
    ] {
        assert!(text.contains(&format!("<section id=\"{id}\">")), "{id}");
    }
    assert_eq!(text.matches("</script>").count(), 1, "what comes from files is escaped");
    assert!(
        !text.contains("<img")
            && !text.contains("a <CPU>")
            && text.contains("a &lt;CPU&gt; &amp; &quot;more&quot;")
    );
    for outside in ["http://", "https://", "src=\"", "@import", "//fonts"] {
        assert!(!text.contains(outside), "{outside}");
    }
    assert!(!text.contains("NaN") && !text.contains(">inf"));
    // The text output holds the limits, too.
    let outcome = run(&["report", "--text", &words(&results)]);
    assert!(
        outcome.code == Some(0)
            && outcome.stdout.contains("Every row: time over that of the faster")
            && outcome.stdout.contains("not measured")
    );
}

#[test]
fn files_that_cannot_be_used_are_named_and_nothing_is_written() {
    let folder = Scratch::new("bad");
    let (bad, page) = (folder.path("bad.json"), folder.path("report.html"));
    fs::write(&page, "as it was").expect("a file");
    let row =
        |row: Value| json!({ "bench": "alloc", "rows": [{ "alloc_ns": 1.0 }, row] }).to_string();
    for (text, expected) in [
        ("".to_owned(), "bad.json: is not JSON: EOF"),
        (
            "{\"rows\": [{\"bench\": \"a\", \"x_ns\": NaN}]}".into(),
            "bad.json: is not JSON: expected value at line 1 column 34",
        ),
        (
            "{\"rows\": [{\"bench\": \"a\", \"x_ns\": 1e999}]}".into(),
            "bad.json: is not JSON: number out of range",
        ),
        (
            "{\"format\": 7, \"rows\": []}".into(),
            "bad.json: has format 7; this program reads format 1",
        ),
        ("[]".into(), "bad.json: is not a JSON object"),
        ("{}".into(), "bad.json: has neither"),
        ("{\"rows\": []}".into(), "bad.json: rows is empty"),
        (
            row(json!({ "alloc_ns": -1 })),
            "bad.json: rows[1].alloc_ns is -1, which cannot be negative",
        ),
        (
            row(json!({ "at_seconds": [1, 2], "rss_mib": [3] })),
            "bad.json: rows[1].rss_mib has 1 values and at_seconds has 2",
        ),
        (
            "{\"snapshot\": {\"cell_blocks\": 1, \"zones\": [{}]}}".into(),
            "bad.json: snapshot.zones[0].runs is not a list",
        ),
    ] {
        fs::write(&bad, &text).expect("a file");
        let outcome = run(&["report", &words(&bad), "-o", &words(&page)]);
        assert_eq!(
            (outcome.code, outcome.stdout.as_str()),
            (Some(2), ""),
            "{text}: {}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains(expected) && outcome.stderr.lines().count() == 1,
            "{text}: {}",
            outcome.stderr
        );
        assert_eq!(fs::read_to_string(&page).expect("it is there"), "as it was");
    }
    let outcome = run(&["report", &words(&folder.path("none.json")), "-o", &words(&page)]);
    assert!(
        outcome.code == Some(2)
            && outcome.stderr.contains("none.json: cannot be read: No such file"),
        "{}",
        outcome.stderr
    );
    fs::write(&bad, fixture::results().to_string()).expect("a file");
    let outcome = run(&["report", "--snapshot", &words(&bad), "-o", &words(&page)]);
    assert!(
        outcome.code == Some(2) && outcome.stderr.contains("it has results and no snapshot"),
        "{}",
        outcome.stderr
    );
    let outcome = run(&["report"]);
    assert!(
        outcome.code == Some(2) && outcome.stderr.contains("framewright-bench alloc --json"),
        "{}",
        outcome.stderr
    );
    // A page of snapshots alone is the other program's work.
    fs::write(&bad, fixture::snapshot().to_string()).expect("a file");
    let outcome = run(&["report", &words(&bad), "-o", &words(&page)]);
    assert!(
        outcome.code == Some(2) && outcome.stderr.contains("`framewright report`"),
        "{}",
        outcome.stderr
    );
    assert_eq!(fs::read_dir(folder.path("")).expect("a folder").count(), 2, "nothing is left over");
}
