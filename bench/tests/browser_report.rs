//! A report in a real browser: the browser reports no errors, plots and map are there, no text
//! leaves its picture, and nothing is wider than the window; light and dark, wide and narrow, and
//! printed. Screenshots go to `target/report/` for inspection.
//!
//! `cargo xtask test` installs the browser where it can; the test is never skipped.

#[path = "../../cli/tests/common/mod.rs"]
mod common;
mod fixture;

use common::{Outcome, Scratch, finish, run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names a browser to use instead of the one on the path.
const OVERRIDE: &str = "FRAMEWRIGHT_BROWSER";
const PROGRAMS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Measures the page once it is drawn and leaves the result in it.
const PROBE: &str = r#"<script>addEventListener("load", () => {
  const lost = [];
  for (const svg of document.querySelectorAll("svg.plot, svg.map")) {
    const box = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const own = text.getBoundingClientRect();
      if (own.left < box.left - 3 || own.right > box.right + 6
          || own.top < box.top - 3 || own.bottom > box.bottom + 3) {
        lost.push(svg.getAttribute("aria-label").slice(0, 40) + ": " + text.textContent);
      }
    }
  }
  const style = getComputedStyle(document.body);
  const all = document.documentElement;
  const cells = document.querySelectorAll("svg.map path").length;
  const drawn = [...document.querySelectorAll("svg.plot")]
    .filter((svg) => svg.getBoundingClientRect().height > 30).length;
  all.dataset.probe = JSON.stringify({ lost, wide: all.scrollWidth - all.clientWidth,
    back: style.backgroundColor, text: style.color,
    cells, drawn, tips: document.querySelectorAll("[data-tip]").length,
    titles: document.querySelectorAll("svg title").length });
});</script>"#;

fn browser() -> PathBuf {
    if let Some(path) = std::env::var_os(OVERRIDE) {
        return path.into();
    }
    let found =
        PROGRAMS.iter().find(|program| Command::new(program).arg("--version").output().is_ok());
    found.map(PathBuf::from).expect(
        "a browser is installed: `apt-get install chromium`, or `cargo xtask test`, which does it",
    )
}

/// The output of a run of the browser.
struct Seen {
    dom: String,
    complaints: Vec<String>,
}

fn look(page: &Path, scratch: &Scratch, options: &[&str]) -> Seen {
    let profile = scratch.path(&format!("profile-{}", options.join("").len()));
    let mut command = Command::new(browser());
    // Runs without the sandbox, because the user may be root in a container; the page is our own.
    command.args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ]);
    command.args([
        "--enable-logging=stderr",
        "--virtual-time-budget=5000",
        "--no-pdf-header-footer",
    ]);
    command.arg(format!("--user-data-dir={}", profile.display())).args(options);
    let output =
        command.arg(format!("file://{}", page.display())).output().expect("the browser starts");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    let complaints =
        log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    Seen { dom: String::from_utf8_lossy(&output.stdout).into_owned(), complaints }
}

/// Returns what the probe left in the page.
fn probed(seen: &Seen) -> Value {
    let text = seen
        .dom
        .split("data-probe=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("the probe ran");
    let text = text
        .replace("&quot;", "\"")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Makes a report of everything and returns its path.
fn report(folder: &Scratch) -> PathBuf {
    let path = |name: &str| folder.path(name).display().to_string();
    fs::write(folder.path("results.json"), fixture::results().to_string()).expect("a file");
    let commands = "echo 200 > /proc/sys/vm/nr_hugepages; alloc 9 300; alloc 0 40000; alloc 18; \
        alloc 3 5000; free 2; fragment 100M";
    for (name, machine) in [
        ("small.json", &["--memory", "256M"][..]),
        ("used.json", &["--memory", "8G", "--nodes", "2", "--exec", commands]),
        (
            "large.json",
            &[
                "--memory",
                "24T",
                "--nodes",
                "16",
                "--exec",
                "alloc 18 3000; alloc 9 100000",
                "memmap_init=on-demand",
            ],
        ),
    ] {
        let snapshot = path(name);
        let outcome = boot(&[&["--policy-table", "no", "--snapshot", &snapshot], machine].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    }
    let page = path("report.html");
    let outcome = run(&[
        "report",
        &path("results.json"),
        &path("small.json"),
        &path("used.json"),
        &path("large.json"),
        "-o",
        &page,
    ]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    PathBuf::from(page)
}

/// Returns the folder where screenshots are kept.
fn pictures() -> PathBuf {
    let target =
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it lies in the target folder");
    let folder = target.join("report");
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Boots with the other program, which is built first if it is missing.
fn boot(words: &[&str]) -> Outcome {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["run", "--quiet", "-p", "framewright-cli", "--bin", "framewright", "--", "boot"]);
    finish(cargo.args(words))
}

#[test]
fn a_report_is_as_it_should_be_in_every_light_and_width() {
    let folder = Scratch::new("browser");
    let page = report(&folder);
    let text = fs::read_to_string(&page).expect("it was written");
    let probe = folder.path("probe.html");
    fs::write(&probe, text.replace("</body>", &format!("{PROBE}</body>"))).expect("a file");
    let mut backgrounds = Vec::new();
    for (light, setting) in
        [("light", "preferredColorScheme=1"), ("dark", "preferredColorScheme=0")]
    {
        let setting = format!("--blink-settings={setting}");
        for (width, size) in
            [("wide", "--window-size=1280,1000"), ("narrow", "--window-size=500,900")]
        {
            let seen = look(&probe, &folder, &["--dump-dom", &setting, size]);
            assert_eq!(seen.complaints, [""; 0], "{light}, {width}");
            let found = probed(&seen);
            assert_eq!(found["lost"], Value::Array(Vec::new()), "{light}, {width}");
            assert_eq!(found["wide"], 0, "{light}, {width}");
            assert!(
                found["drawn"].as_u64() >= Some(20) && found["cells"].as_u64() >= Some(60),
                "{found}"
            );
            // The script has run.
            assert!(found["tips"].as_u64() > Some(200) && found["titles"] == 0, "{found}");
            backgrounds.push(found["back"].clone());
        }
        for (width, size) in
            [("wide", "--window-size=1280,15000"), ("narrow", "--window-size=500,15000")]
        {
            let picture = pictures().join(format!("{light}-{width}.png"));
            let seen = look(
                &page,
                &folder,
                &[&format!("--screenshot={}", picture.display()), &setting, size],
            );
            assert_eq!(seen.complaints, [""; 0]);
            let bytes = fs::read(&picture).expect("a picture");
            assert!(
                bytes.starts_with(b"\x89PNG") && bytes.len() > 100_000,
                "{} bytes",
                bytes.len()
            );
        }
    }
    assert_ne!(backgrounds[0], backgrounds[2], "dark is dark");
    let printed = pictures().join("print.pdf");
    let seen = look(&page, &folder, &[&format!("--print-to-pdf={}", printed.display())]);
    assert_eq!(seen.complaints, [""; 0]);
    let bytes = fs::read(&printed).expect("a document");
    assert!(bytes.starts_with(b"%PDF") && bytes.len() > 50_000, "{} bytes", bytes.len());
}

#[test]
fn what_a_page_does_wrong_would_be_noticed() {
    let folder = Scratch::new("browser-bad");
    let page = folder.path("bad.html");
    for bad in
        ["<script>throw new Error('lost')</script>", "<img src=\"https://example.invalid/x.png\">"]
    {
        let policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
            script-src 'unsafe-inline'\">";
        fs::write(
            &page,
            format!("<!doctype html><html><head>{policy}</head><body>{bad}</body></html>"),
        )
        .expect("a file");
        assert_eq!(look(&page, &folder, &["--dump-dom"]).complaints.len(), 1, "{bad}");
    }
    let body = "<div style=\"width:3000px\">a</div><svg class=\"plot\" aria-label=\"p\" \
        width=\"90\" height=\"90\"><text x=\"80\" y=\"20\">far too long</text></svg>";
    fs::write(&page, format!("<!doctype html><html><body>{body}{PROBE}</body></html>"))
        .expect("a file");
    let found = probed(&look(&page, &folder, &["--dump-dom", "--window-size=800,600"]));
    assert!(
        found["wide"].as_u64() > Some(1000) && found["lost"][0] == "p: far too long",
        "{found}"
    );
}
