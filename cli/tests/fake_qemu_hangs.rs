//! A QEMU that hangs or whose KVM fails, played by a shell script.

mod common;
#[path = "common/terminal.rs"]
mod terminal;

use common::{Outcome, Scratch, finish, is_running, program, signal, wait_until};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use terminal::Terminal;

fn write_script(folder: &Scratch, name: &str, text: &str) {
    let path = folder.path(name);
    fs::write(&path, text).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it may run");
}

/// Boots with a script as QEMU. The script runs `version` when asked for its version and `body`
/// otherwise. Also returns the arguments with which the script was called.
fn boot(name: &str, (version, body): (&str, &str), words: &[&str]) -> (Outcome, String) {
    let folder = Scratch::new(name);
    let calls = folder.path("calls");
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then {version}; exit 0; fi\necho \"$*\" >> \
         '{}'\n{body}\n",
        calls.display()
    );
    write_script(&folder, "qemu-system-x86_64", &text);
    fs::write(folder.path("image"), "").expect("an image");
    let old = std::env::var("PATH").unwrap_or_default();
    let mut command = program();
    command
        .args(["boot", "--on", "qemu"])
        .args(words)
        .env("PATH", format!("{}:{old}", folder.path("").display()))
        .env("FRAMEWRIGHT_GUEST", folder.path("image"));
    let outcome = finish(&mut command);
    (outcome, fs::read_to_string(calls).unwrap_or_default())
}

const VERSION: &str = "echo 'QEMU emulator version 9.9.9 (fake)'";
const REPORT: &str = r#"printf '[    0.000000] Framewright guest\r\n'
printf '@json {"platform":"qemu","policy":"on-demand","threads":1,"nodes":[],'
printf '"zones":[],"totals":{}}\r\n@end\r\n'
exit 33"#;

#[test]
fn a_machine_that_kvm_gives_up_is_emulated_and_that_is_said() {
    for (name, said) in
        [("silent", ""), ("begun", "printf '[    0.000000] Framewright guest\\r\\n';")]
    {
        for complaint in ["KVM internal error. Suberror: 3", "error: kvm run failed Bad address"] {
            let dies = format!(
                "{said} printf '{complaint}\\nRAX=0000000000000000\\n' >&2; exec sleep 300"
            );
            let body = format!("case \"$*\" in *'-accel kvm'*) {dies};; esac\n{REPORT}");
            let (outcome, calls) = boot(name, (VERSION, &body), &["--json", "--timeout", "60"]);
            assert_eq!(outcome.json()["qemu"]["accel"], "tcg", "{}", outcome.stderr);
            assert!(outcome.stderr.contains("emulated (tcg)"), "{}", outcome.stderr);
            // Without the KVM device, QEMU was not tried with it.
            if calls.contains("-accel kvm") {
                assert!(outcome.stderr.contains(&format!("({complaint})")), "{}", outcome.stderr);
            }
            assert!(calls.contains("-accel tcg"), "{calls}");
        }
    }
}

#[test]
fn what_its_shell_did_is_not_done_again_by_a_second_machine() {
    let dies = "printf '@shell\\r\\n'; sleep 1; echo 'KVM internal error. Suberror: 1' >&2; exec \
        sleep 300";
    let body = format!("case \"$*\" in *'-accel kvm'*) {dies};; esac\n{REPORT}");
    let words = ["--json", "--timeout", "60", "--exec", "alloc 0"];
    let (outcome, calls) = boot("shell", (VERSION, &body), &words);
    if !calls.contains("-accel kvm") {
        common::not_possible("a machine that KVM gives up (/dev/kvm)");
        return;
    }
    assert_eq!((outcome.code, calls.lines().count()), (Some(1), 1), "{calls}");
    assert!(
        outcome.stderr.contains("KVM failed while running the machine")
            && outcome.stderr.contains("Suberror: 1"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_version_that_does_not_come_is_not_waited_for() {
    // The script would sleep for longer than any test may take.
    for version in
        ["exec sleep 86400", "exec sleep 86400 >/dev/null 2>&1", "while :; do echo again; done"]
    {
        let (outcome, calls) =
            boot("version", (version, REPORT), &["--accel", "tcg", "--json", "--timeout", "2"]);
        assert_eq!((outcome.code, calls.as_str()), (Some(1), ""), "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains("--version` did not answer within 2 s"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn every_node_has_a_cpu_unless_somebody_says_otherwise() {
    for (words, smp) in [
        (&["--nodes", "3"][..], "-smp 3 "),
        (&["--nodes", "3", "--cpus", "1"], "-smp 1 "),
        (&[], "-smp 1 "),
    ] {
        let (outcome, calls) =
            boot("cpus", (VERSION, REPORT), &[&["--accel", "tcg", "--json"], words].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        assert!(calls.contains(smp), "{words:?}: {calls}");
    }
    // The number of CPUs of a machine in a process.
    let cpus = |words: &[&str]| {
        let report = common::run(&[&["boot", "--json"], words].concat()).json();
        let nodes = report["nodes"].as_array().expect("nodes").clone();
        nodes.iter().map(|node| node["cpus"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(cpus(&["--memory", "24T", "--nodes", "16", "memmap_init=on-demand"]), [1; 16]);
    assert_eq!(cpus(&["--memory", "1G", "--nodes", "2", "--cpus", "1"]), [1, 0]);
    assert_eq!(cpus(&["--memory", "1G"]), [1]);
    let help = common::run(&["boot", "--help"]);
    assert!(
        help.stdout.contains("with --memory and on QEMU one for each node")
            && help.stdout.contains("FRAMEWRIGHT_GUEST")
    );
}

#[test]
fn without_a_toolchain_it_says_how_to_do_without() {
    let folder = Scratch::new("no-cargo");
    let path = folder.path("qemu-system-x86_64");
    fs::write(&path, format!("#!/bin/sh\n{VERSION}\n")).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it may run");
    for cargo in ["/nonexistent/cargo", "/bin/false"] {
        let mut command = program();
        command
            .args(["boot", "--on", "qemu", "--accel", "tcg"])
            .env_remove("FRAMEWRIGHT_GUEST")
            .env("CARGO", cargo);
        let outcome =
            finish(command.env("PATH", format!("{}:/usr/bin:/bin", folder.path("").display())));
        assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains("set FRAMEWRIGHT_GUEST to the path of a built one"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn a_build_of_the_guest_is_announced_and_can_be_interrupted() {
    for name in ["INT", "TERM"] {
        let folder = Scratch::new("slow-cargo");
        let pid = folder.path("pid");
        let cargo = format!(
            "#!/bin/sh\necho '   Compiling guest v0.1.0' >&2\necho '   Compiling more' >&2\n\
             echo $$ > '{0}.new' && mv '{0}.new' '{0}'\nexec sleep 120\n",
            pid.display()
        );
        let qemu = format!("#!/bin/sh\n{VERSION}\n");
        write_script(&folder, "qemu-system-x86_64", &qemu);
        write_script(&folder, "cargo", &cargo);
        let mut command = program();
        command
            .args(["boot", "--on", "qemu", "--accel", "tcg"])
            .env_remove("FRAMEWRIGHT_GUEST")
            .env("CARGO", folder.path("cargo"))
            .env("PATH", format!("{}:/usr/bin:/bin", folder.path("").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut said = String::new();
        stderr.read_line(&mut said).expect("text");
        assert!(said.contains("note: building the guest"), "{said}");
        wait_until("cargo runs", || pid.exists());
        let cargo = fs::read_to_string(&pid).expect("a number");
        signal(&child, name);
        let code = child.wait().expect("it ends").code();
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).expect("text");
        let expected = if name == "INT" { 130 } else { 143 };
        assert_eq!((code, rest.as_str()), (Some(expected), "framewright: interrupted\n"));
        assert!(!is_running(&cargo));
    }
}

/// Writes a script in QEMU's place, which does `body` after its shell has begun, and an image.
/// Returns the search path and the path of the image.
fn hanging_shell(folder: &Scratch, body: &str) -> (String, String) {
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then {VERSION}; exit 0; fi\n\
         printf '@shell\\r\\nframewright> '\n{body}\n"
    );
    write_script(folder, "qemu-system-x86_64", &script);
    fs::write(folder.path("image"), "").expect("an image");
    (
        format!("{}:/usr/bin:/bin", folder.path("").display()),
        folder.path("image").display().to_string(),
    )
}

const SHELL: [&str; 5] = ["shell", "--on", "qemu", "--accel", "tcg"];

#[test]
fn a_shell_that_hangs_can_be_left() {
    for body in ["exec sleep 86400", "exec sleep 86400 >/dev/null 2>&1"] {
        let folder = Scratch::new("hangs");
        let (path, image) = hanging_shell(&folder, body);
        let environment = [("PATH", path.as_str()), ("FRAMEWRIGHT_GUEST", image.as_str())];
        let mut terminal = Terminal::run_with(&SHELL, &environment);
        terminal.expect("Ctrl-] stops the machine");
        terminal.expect("framewright> ");
        // What the guest would take for keys stays its own.
        terminal.send(b"exit\r\x03\x04");
        terminal.send(b"\x1d");
        terminal.expect("\r\nframewright: interrupted\r\n");
        assert_eq!(terminal.end(), Some(130));
    }
}

#[test]
fn input_that_cannot_be_read_does_not_end_like_a_script() {
    let folder = Scratch::new("unreadable");
    let (path, image) = hanging_shell(&folder, "exec sleep 120");
    let mut command = program();
    command.args(SHELL).env("PATH", path).env("FRAMEWRIGHT_GUEST", image);
    // A folder can be opened but not read.
    let unreadable = fs::File::open(folder.path("")).expect("a folder");
    let outcome = finish(command.stdin(unreadable));
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("standard input cannot be read: "), "{}", outcome.stderr);
}
