//! The supervision of QEMU, tested with a shell script in QEMU's place: how the program handles its
//! output and its exit, and that no process is left behind.

mod common;

use common::{Outcome, Scratch, finish, is_running, program, signal, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Writes a script that prints a version when asked for it; otherwise it records its arguments and
/// runs `body`.
fn script(folder: &Scratch, body: &str) -> String {
    let log = folder.path("calls").display().to_string();
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'QEMU emulator version 9.9.9 (fake)'; \
         exit 0; fi\n\
         echo $$ > '{log}.pid'; echo \"$*\" >> '{log}'\n{body}\n"
    );
    let path = folder.path("qemu-system-x86_64");
    fs::write(&path, text).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it may run");
    fs::write(folder.path("image"), "").expect("an image");
    log
}

/// Returns a command for the program that uses the script as QEMU.
fn with_fake(folder: &Scratch, words: &[&str]) -> Command {
    let mut command = program();
    let old = std::env::var("PATH").unwrap_or_default();
    let own = folder.path("").display().to_string();
    command
        .args(["boot", "--on", "qemu"])
        .args(words)
        .env("PATH", format!("{own}:{old}"))
        .env("FRAMEWRIGHT_GUEST", folder.path("image"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn boot(name: &str, body: &str, words: &[&str]) -> (Outcome, String) {
    let folder = Scratch::new(name);
    let log = script(&folder, body);
    let outcome = finish(&mut with_fake(&folder, words));
    (outcome, fs::read_to_string(log).unwrap_or_default())
}

const REPORT: &str = r#"printf '[    0.000000] Framewright guest\r\n[    0.000100] Zone ranges:\r\n'
printf '@json {"platform":"qemu","policy":"on-demand","threads":1,"nodes":[],'
printf '"zones":[],"totals":{}}\r\n@end\r\n'
exit 33"#;

#[test]
fn the_report_gets_the_log_and_how_qemu_ran() {
    let (outcome, calls) = boot(
        "report",
        REPORT,
        &["--accel", "tcg", "--json", "--memory", "256M", "--cpus", "2", "numa=off"],
    );
    let report = outcome.json();
    assert_eq!(report["platform"], "qemu");
    assert_eq!(
        report["log"],
        serde_json::json!(["[    0.000000] Framewright guest", "[    0.000100] Zone ranges:"])
    );
    assert_eq!(
        (report["qemu"]["version"].as_str(), report["qemu"]["accel"].as_str()),
        (Some("9.9.9"), Some("tcg"))
    );
    assert!(report["qemu"]["spawn_to_first_line_ms"].as_f64() > Some(0.0));
    assert!(
        calls.contains("-machine q35 -accel tcg,thread=multi -cpu max -m 256M -smp 2 "),
        "{calls}"
    );
    assert!(calls.contains(" -append numa=off report=json -kernel "), "{calls}");
    assert_eq!(outcome.stderr, "");
}

#[test]
fn an_open_quote_does_not_swallow_the_programs_own_words() {
    for (word, passed) in [
        ("mem=\"32M", "mem=\"32M\""),
        ("mem=\"32M\"", "mem=\"32M\""),
        ("a=\"b\" c=\"d e", "a=\"b\" c=\"d e\""),
    ] {
        let (outcome, calls) = boot("quote", REPORT, &["--accel", "tcg", "--json", word]);
        assert_eq!(outcome.code, Some(0), "{word}: {}", outcome.stderr);
        assert!(calls.contains(&format!(" -append {passed} report=json -kernel ")), "{calls}");
    }
}

#[test]
fn people_see_the_log_without_the_protocol() {
    let (outcome, calls) = boot("people", REPORT, &["--accel", "tcg"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        outcome
            .stdout
            .starts_with("[    0.000000] Framewright guest\n[    0.000100] Zone ranges:\n\n"),
        "{}",
        outcome.stdout
    );
    assert!(
        !outcome.stdout.contains('@') && outcome.stdout.contains("QEMU 9.9.9, accelerator tcg"),
        "{}",
        outcome.stdout
    );
    assert!(calls.contains(" -append report=json -kernel "), "{calls}");
}

#[test]
fn lines_are_shown_as_they_come() {
    use std::io::{BufRead, BufReader};
    let folder = Scratch::new("stream");
    script(&folder, "echo first; exec sleep 300");
    let mut child = with_fake(&folder, &["--accel", "tcg"]).spawn().expect("the program starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "first\n");
    signal(&child, "TERM");
    child.wait().expect("it ends");
}

#[test]
fn every_bad_end_is_explained() {
    for (name, body, expected) in [
        ("panicked", "echo panic at x; exit 35", &["panicked", "  panic at x"][..]),
        ("refused", "echo no memory; exit 37", &["refused", "  no memory"]),
        (
            "broken",
            "echo hello; echo 'qemu: bad option' >&2; exit 1",
            &["exit status 1", "bad option", "  hello"],
        ),
        ("zero", "echo hello; exit 0", &["exit status 0"]),
        ("killed", "echo hello; kill -ABRT $$", &["signal 6"]),
        ("silent", "exit 33", &["without a report", "said nothing"]),
        ("garbled", "echo '@json {\"a\":'; exit 33", &["not JSON"]),
        ("array", "echo '@json [1]'; exit 33", &["not a JSON object"]),
    ] {
        for json in [&[][..], &["--json"]] {
            let (outcome, _) = boot(name, body, &[&["--accel", "tcg"], json].concat());
            assert_eq!(outcome.code, Some(1), "{name}: {}", outcome.stderr);
            assert!(outcome.stderr.starts_with("framewright: "), "{name}: {}", outcome.stderr);
            for part in expected {
                assert!(outcome.stderr.contains(part), "{name}: no `{part}` in {}", outcome.stderr);
            }
            assert!(json.is_empty() || outcome.stdout.is_empty(), "{name}: {}", outcome.stdout);
        }
    }
}

#[test]
fn only_the_end_of_a_long_log_is_repeated() {
    let body = "i=0; while [ $i -lt 100 ]; do echo \"line $i\"; i=$((i+1)); done; exit 35";
    let (outcome, _) = boot("long", body, &["--accel", "tcg", "--json"]);
    assert!(
        outcome.stderr.contains("  line 99\n") && !outcome.stderr.contains("  line 80\n"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_time_out_is_kept_and_nothing_is_left() {
    // The last line has no line end; it must be shown all the same.
    for (name, body) in [
        ("hang", "printf 'begun\\nhalf a li'; exec sleep 300"),
        ("closed", "exec sleep 300 >/dev/null 2>&1"),
    ] {
        let folder = Scratch::new(name);
        let log = script(&folder, body);
        let start = Instant::now();
        let outcome =
            finish(&mut with_fake(&folder, &["--accel", "tcg", "--json", "--timeout", "5"]));
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("did not end within 5 s"), "{}", outcome.stderr);
        assert!(
            name == "closed" || outcome.stderr.ends_with("  begun\n  half a li\n"),
            "{}",
            outcome.stderr
        );
        assert!(!is_running(&fs::read_to_string(format!("{log}.pid")).expect("a number")));
    }
}

#[test]
fn signals_end_qemu_too() {
    for (name, status) in [("TERM", Some(143)), ("INT", Some(130)), ("KILL", None)] {
        let folder = Scratch::new(&format!("signal-{name}"));
        let log = format!("{}.pid", script(&folder, "echo begun; exec sleep 300"));
        let mut child =
            with_fake(&folder, &["--accel", "tcg", "--json"]).spawn().expect("the program starts");
        let pid = || fs::read_to_string(&log).unwrap_or_default();
        wait_until("QEMU starts", || pid().ends_with('\n'));
        signal(&child, name);
        assert_eq!(child.wait().expect("it ends").code(), status, "{name}");
        wait_until("QEMU is gone", || !is_running(&pid()));
        let (stdout, stderr) = common::rest(&mut child);
        assert_eq!(stdout, "");
        assert_eq!(stderr, if status.is_some() { "framewright: interrupted\n" } else { "" });
    }
}

#[test]
fn a_reader_that_goes_away_ends_qemu() {
    let folder = Scratch::new("pipe");
    let log = script(&folder, "while :; do echo again; sleep 0.01; done");
    let mut child = with_fake(&folder, &["--accel", "tcg"]).spawn().expect("the program starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(!is_running(&fs::read_to_string(format!("{log}.pid")).expect("a number")));
}

#[test]
fn without_kvm_the_machine_is_emulated_and_that_is_said() {
    let body = format!(
        "case \"$*\" in *'-accel kvm'*) echo 'qemu-system-x86_64: kvm: no luck' >&2; exit 1;; \
         esac\n{REPORT}"
    );
    for words in [&["--json"][..], &["--json", "--accel", "auto"]] {
        let (outcome, calls) = boot("kvm", &body, words);
        assert_eq!(outcome.json()["qemu"]["accel"], "tcg");
        // If the host has the KVM device, QEMU was tried with it and failed; otherwise it was not
        // tried.
        assert!(
            outcome.stderr.starts_with("framewright: note: ")
                && outcome.stderr.contains("emulated (tcg)"),
            "{}",
            outcome.stderr
        );
        if calls.contains("-accel kvm") {
            assert!(outcome.stderr.contains("(kvm: no luck)"), "{}", outcome.stderr);
        }
        assert!(calls.trim_end().ends_with("image") && calls.contains("-accel tcg"), "{calls}");
    }
    // A user who asks for KVM by name gets no other accelerator.
    let (outcome, calls) = boot("kvm", &body, &["--json", "--accel", "kvm"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("without --accel kvm the machine is emulated"),
        "{}",
        outcome.stderr
    );
    assert!(!calls.contains("-accel tcg"), "{calls}");
}

#[test]
fn what_qemu_refuses_is_not_laid_at_the_door_of_kvm() {
    let (outcome, calls) = boot(
        "refused",
        "echo 'qemu-system-x86_64: warning: more CPUs than are recommended by KVM (2)' >&2; \
         echo 'qemu-system-x86_64: no such device' >&2; exit 1",
        &["--json"],
    );
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no such device"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("KVM does not work"), "{}", outcome.stderr);
    assert_eq!(calls.matches("-accel").count(), 1, "{calls}");
}

#[test]
fn without_qemu_it_says_what_to_install() {
    let folder = Scratch::new("missing");
    fs::write(folder.path("image"), "").expect("an image");
    let mut command = with_fake(&folder, &[]);
    let outcome = finish(command.env("PATH", folder.path("")));
    assert_eq!(outcome.code, Some(1));
    for part in [
        "framewright: qemu-system-x86_64 is not installed",
        "apt-get install qemu-system-x86",
        "Fedora",
        "Arch",
    ] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
}

#[test]
fn an_image_that_is_not_there() {
    let folder = Scratch::new("no-image");
    let calls = script(&folder, REPORT);
    let mut command = with_fake(&folder, &["--accel", "tcg"]);
    let outcome = finish(command.env("FRAMEWRIGHT_GUEST", "/nonexistent/guest"));
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(
        outcome.stderr.starts_with("framewright: FRAMEWRIGHT_GUEST names /nonexistent/guest"),
        "{}",
        outcome.stderr
    );
    assert!(!std::path::Path::new(&calls).exists(), "no machine is started for nothing");
}
