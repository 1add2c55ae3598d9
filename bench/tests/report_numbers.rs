//! The numbers and symbols in a report's plots and tables, read back from the page.

#[path = "../../cli/tests/common/mod.rs"]
mod common;
mod fixture;

use common::{Scratch, run};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

/// Returns the page for these rows.
fn page(name: &str, file: &Value) -> String {
    let folder = Scratch::new(name);
    let (results, page) = (folder.path("results.json"), folder.path("report.html"));
    fs::write(&results, file.to_string()).expect("a file");
    let outcome =
        run(&["report", &results.display().to_string(), "-o", &page.display().to_string()]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    fs::read_to_string(&page).expect("it was written")
}

fn rows(rows: &[Value]) -> Value {
    json!({ "format": 1, "rows": rows })
}

/// Returns a section of the page.
fn section<'a>(page: &'a str, id: &str) -> &'a str {
    let rest = page
        .split(&format!("<section id=\"{id}\">"))
        .nth(1)
        .unwrap_or_else(|| panic!("no part {id}"));
    rest.split("</section>").next().expect("it ends")
}

/// Returns the plot whose title begins with `title`.
fn plot<'a>(page: &'a str, title: &str) -> &'a str {
    let at = page
        .find(&format!("class=\"ti\" x=\"0\" y=\"13\">{title}"))
        .unwrap_or_else(|| panic!("no plot {title}"));
    let rest = &page[at..];
    rest.split("</svg>").next().expect("it ends")
}

/// Returns an attribute of an element.
fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    element.split(&format!(" {name}=\"")).nth(1)?.split('"').next()
}

/// Returns a limit's row in the table of limits.
fn limit<'a>(page: &'a str, id: &str) -> &'a str {
    let rest = page
        .split(&format!("id=\"limit-{id}\">"))
        .nth(1)
        .unwrap_or_else(|| panic!("no limit {id}"));
    rest.split("</tr>").next().expect("it ends")
}

fn fault(config: &str, ratio: f64) -> Value {
    json!({ "bench": "fault", "on": "hosted", "workload": "page_fault1", "cpus": 1,
        "config": config, "iterations_per_s": 1e7,
            "against_off": ratio, "against_off_low": ratio - 0.001,
            "against_off_high": ratio + 0.001 })
}

#[test]
fn the_number_beside_reportings_cost_is_that_of_reporting() {
    let page = page(
        "cost",
        &rows(&[
            fault("off", 1.0),
            fault("off, again", 1.0642),
            fault("on", 0.997),
            fault("on+shuffle", 0.95),
        ]),
    );
    let plot = plot(&page, "Page faults per CPU second");
    let numbers: Vec<&str> = plot
        .split("<text class=\"vl")
        .skip(1)
        .filter_map(|part| part.split('>').nth(1)?.split('<').next())
        .collect();
    assert_eq!(numbers, ["-0.30 %"], "{plot}");
    assert!(
        plot.contains("page_fault1, 1 CPU, off, again: 6.42 %"),
        "the benchmark's own error is there, too"
    );
    assert!(plot.contains(">on</text>"), "whose number it is stands above it");
}

#[test]
fn a_sign_has_one_meaning_in_all_plots_of_a_section() {
    let mut file = fixture::results();
    let more = file["rows"].as_array_mut().expect("rows");
    // Another set of curves in another order, and a plot with fewer curves.
    for (system, pace) in [("linux", "fixed"), ("framewright", "fixed")] {
        more.push(json!({ "bench": "series", "what": "another", "system": system, "on": "qemu",
            "pace": pace,
                          "at_seconds": [0, 1, 2], "rss_mib": [30, 20, 10] }));
    }
    more.push(fault("off, again", 1.01));
    for threads in [0, 2, 4] {
        more.push(json!({ "bench": "scaling", "what": "another", "threads": threads,
            "cpus_percent": threads * 25, "init_ms": 700.0 }));
    }
    let page = page("signs", &file);
    let mut plots = 0;
    for part in page.split("<section id=\"").skip(1) {
        let id = part.split('"').next().expect("a name");
        let mut meanings: BTreeMap<&str, &str> = BTreeMap::new();
        for element in part.split('<').filter(|element| element.contains(" data-series=\"")) {
            let class = attribute(element, "class")
                .and_then(|class| class.split_once(' '))
                .expect("a class")
                .1;
            let meaning = attribute(element, "data-series").expect("a meaning");
            let known = *meanings.entry(class).or_insert(meaning);
            assert_eq!(known, meaning, "{id}: the sign {class}");
            plots += 1;
        }
    }
    assert!(plots > 100, "{plots}");
}

/// Returns where a horizontal line starts and ends.
fn across<'a>(plot: &'a str, place: &str) -> (&'a str, &'a str) {
    let mut lines = plot.split('<').filter(|element| element.starts_with("line class=\"ref\""));
    let line = lines.rfind(|line| attribute(line, "x1") == Some(place)).expect("a line");
    (attribute(line, "y1").expect("a place"), attribute(line, "y2").expect("a place"))
}

/// Returns the position of a limit's label.
fn words_at<'a>(plot: &'a str, words: &str) -> &'a str {
    let mut texts = plot.split('<').filter(|element| element.starts_with("text class=\"rf\""));
    attribute(texts.rfind(|text| text.ends_with(&format!(">{words}"))).expect("words"), "x")
        .expect("a place")
}

fn fall(on: &str, pace: &str, mib: f64, t95: f64) -> Value {
    json!({ "bench": "reporting", "on": on, "pace": pace, "dirtied_mib": mib, "t50_s": t95 / 2.0,
        "t95_s": t95 })
}

fn beside_linux(mib: f64, linux: f64, ours: f64) -> Value {
    json!({ "bench": "compare", "what": "freed memory: 95 % \
        back", "pace": "fixed", "dirtied_mib": mib, "linux_seconds": linux,
            "ours_seconds": ours, "ratio": linux / ours, "cpus": 2 })
}

#[test]
fn a_target_judges_rows_of_its_own_size_only() {
    let small = [
        fall("qemu", "adaptive", 512.0, 0.1),
        fall("qemu", "fixed", 512.0, 4.0),
        fall("hosted", "adaptive", 2048.0, 0.1),
        beside_linux(512.0, 9.0, 4.0),
    ];
    let text = page("small", &rows(&small));
    let plot_of = |page: &'_ str| plot(page, "Until memory is back").to_owned();
    for id in ["reporting-adaptive", "reporting-linux-pace", "reporting-fixed"] {
        assert!(limit(&text, id).contains("not measured"), "{}", limit(&text, id));
    }
    assert!(!plot_of(&text).contains("class=\"ref\"") && !plot_of(&text).contains(">must<"));
    // With rows of that size, the limits' lines cross their plots, and only those; they are drawn
    // first.
    let all = [
        &small[..],
        &[fall("qemu", "fixed", 2048.0, 11.6), fall("qemu", "adaptive", 2048.0, 0.42)],
    ]
    .concat();
    let text = page("both", &rows(&all));
    assert!(
        limit(&text, "reporting-adaptive").contains("<td class=\"n is\">420 ms</td>"),
        "{}",
        limit(&text, "reporting-adaptive")
    );
    let plot = plot_of(&text);
    assert_eq!(across(&plot, words_at(&plot, "must")), ("36", "63"), "one row of 24 from 39 on");
    assert_eq!(across(&plot, words_at(&plot, "Linux, elsewhere")), ("36", "87"), "two rows");
    // 1785.7 ms were measured on a machine of 768 GiB.
    let machine = |name: &str| {
        json!({ "bench": "bring-up", "machine": name, "threads": 1,
        "tables": "backed", "bring_up_us": 5.0, "metadata_ratio": 1e-4 })
    };
    let text = page(
        "sizes",
        &rows(&[machine("8G/1 node"), machine("768G/2 nodes"), machine("24T/16 nodes")]),
    );
    let plot = plot_of_bring_up(&text);
    let line =
        plot.split('<').find(|element| element.starts_with("line class=\"ref\"")).expect("a line");
    assert_eq!((attribute(line, "y1"), attribute(line, "y2")), (Some("63"), Some("87")), "{line}");
}

fn plot_of_bring_up(page: &str) -> &str {
    plot(page, "All memory available")
}

#[test]
fn linux_is_what_was_measured_beside_ours() {
    let judged = [fall("qemu", "fixed", 2048.0, 15.0), beside_linux(2048.0, 12.4, 11.6)];
    let text = page("linux", &rows(&judged));
    let row = limit(&text, "reporting-linux-pace");
    assert!(
        row.contains("12.4 s") && row.contains("measured in these files") && row.contains("missed"),
        "{row}"
    );
    let plot = plot(&text, "Until memory is back");
    assert!(plot.contains(">Linux</text>") && !plot.contains("elsewhere"), "{plot}");
    let text = page("no-linux", &rows(&judged[..1]));
    assert!(
        limit(&text, "reporting-linux-pace").contains("18 s")
            && limit(&text, "reporting-linux-pace").contains("met")
    );
}

#[test]
fn what_the_model_is_off_by_is_seen() {
    let row = |what: &str, predicted: f64, measured: f64| {
        json!({ "bench": "model", "source": "here", "what": what, "predicted_ms": predicted,
            "measured_ms": measured,
                "error_percent": (predicted / measured - 1.0) * 100.0 })
    };
    let text = page(
        "model",
        &rows(&[row("fill", 1.0, 1.1), row("flush", 17.6, 10.0), row("eager", 300.0, 320.0)]),
    );
    let part = section(&text, "model");
    assert!(part.contains(">+76 %</text>"), "the number stands beside its point: {part}");
    assert!(part.contains("1 of 3 are farther off than that; farthest: +76 %, flush"));
}

#[test]
fn a_busy_machine_is_said_first_and_large() {
    let of = |load: f64| {
        let mut file = rows(&[fall("qemu", "fixed", 2048.0, 15.0)]);
        file["machine"] = json!({ "cpus": 4, "load_average": load });
        file
    };
    for (load, is_busy) in [(0.3, false), (2.0, false), (2.1, true)] {
        let text = page("busy", &of(load));
        let header = text
            .split("<header>")
            .nth(1)
            .and_then(|rest| rest.split("</header>").next())
            .expect("a head");
        assert_eq!(header.contains("<p class=\"busy\" role=\"alert\">"), is_busy, "{load}");
        assert_eq!(header.contains("2.1 other tasks were running on 4 CPUs"), is_busy, "{load}");
    }
    let folder = Scratch::new("busy-text");
    fs::write(folder.path("a.json"), of(3.0).to_string()).expect("a file");
    let outcome = run(&["report", "--text", &folder.path("a.json").display().to_string()]);
    assert!(outcome.stdout.starts_with("BUSY MACHINE: a.json"), "{}", outcome.stdout);
}

#[test]
fn times_have_the_unit_that_people_use() {
    let shuffle = json!({ "bench": "bring-up", "machine": "768G/2 \
        nodes", "threads": 1, "tables": "backed", "bring_up_us": 39.7 });
    let text = page("units", &rows(&[shuffle]));
    let row = limit(&text, "bring-up-768g");
    assert!(
        row.contains("39.7 \u{b5}s") && row.contains("1 ms") && !row.contains("0.0397"),
        "{row}"
    );
}

#[test]
fn page_faults_are_in_no_picture() {
    let page = page("faults", &fixture::results());
    let part = section(&page, "linux");
    let (pictures, table) = part.split_once("<details>").expect("a table");
    assert!(pictures.contains("spawn to prompt") && !pictures.contains("page_fault"), "{pictures}");
    assert!(table.contains("page_fault1"));
}
