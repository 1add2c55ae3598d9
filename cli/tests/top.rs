//! Watches a shell in a process: with `framewright top` on a pipe and on a terminal, and with other
//! clients on its socket.

mod common;
#[path = "common/terminal.rs"]
mod terminal;

use common::{Outcome, Scratch, finish, program, signal, wait_until};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;
use terminal::Terminal;

/// Stops background moves.
const STILL: &str = "echo 0 > /proc/sys/vm/compaction_proactiveness; echo still";

/// The folder of the sockets on which a test's shells listen.
struct Place(Scratch);

impl Place {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    fn path(&self) -> PathBuf {
        self.0.path("")
    }

    fn socket(&self, pid: u32) -> PathBuf {
        self.0.path(&format!("framewright/{pid}.sock"))
    }

    fn top(&self, words: &[&str]) -> Outcome {
        finish(program().arg("top").args(words).env("XDG_RUNTIME_DIR", self.path()))
    }

    fn shell(&self) -> Shell {
        self.shell_with(&[])
    }

    /// Starts a shell with boot parameters.
    fn shell_with(&self, parameters: &[&str]) -> Shell {
        let mut child = program()
            .args(["shell", "--memory", "64M", "--nodes", "2", "--cpus", "2"])
            .args(parameters)
            .env("XDG_RUNTIME_DIR", self.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the program starts");
        let socket = self.socket(child.id());
        wait_until("a socket", || socket.exists());
        let keys = child.stdin.take().expect("a pipe");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Shell { child, keys: Some(keys), said, socket }
    }
}

/// A shell that takes commands.
struct Shell {
    child: Child,
    keys: Option<ChildStdin>,
    said: BufReader<std::process::ChildStdout>,
    socket: PathBuf,
}

impl Shell {
    /// Returns the output of a command that prints one line.
    fn run(&mut self, command: &str) -> String {
        writeln!(self.keys.as_mut().expect("it runs"), "{command}").expect("it reads");
        let mut line = String::new();
        self.said.read_line(&mut line).expect("it speaks");
        line
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
        stream
    }

    fn end(mut self) {
        drop(self.keys.take());
        assert!(self.child.wait().expect("it ends").success());
        assert!(!self.socket.exists());
    }
}

/// Returns the answer up to its last line. Asks again if the shell timed out on a busy machine.
fn answer(shell: &Shell, request: &[u8]) -> String {
    for _ in 0..20 {
        let mut stream = shell.connect();
        if stream.write_all(request).is_err() {
            continue;
        }
        let mut said = String::new();
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            said.push_str(&line);
            said.push('\n');
            if line.starts_with(['.', '!']) {
                return said;
            }
        }
    }
    panic!("no whole answer to {:?}", String::from_utf8_lossy(request))
}

#[test]
fn one_table_of_the_only_shell() {
    let place = Place::new("top-once");
    let outcome = place.top(&["--once"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    assert!(
        outcome.stderr.starts_with("framewright: you have no shell running"),
        "{}",
        outcome.stderr
    );
    let mut shell = place.shell();
    assert!(shell.run("echo 3 > /proc/sys/vm/nr_hugepages; echo done").starts_with("done"));
    let outcome = place.top(&["--once"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines[0].starts_with(&format!("process {}: ", shell.child.id())), "{}", lines[0]);
    let words = |beginning: &str| -> Vec<&str> {
        let line = lines.iter().find(|line| line.trim_start().starts_with(beginning));
        line.unwrap_or_else(|| panic!("{beginning}\n{}", outcome.stdout))
            .split_whitespace()
            .collect()
    };
    assert_eq!(words("0  DMA")[..2], ["0", "DMA"]);
    assert_eq!(words("1  DMA32")[..2], ["1", "DMA32"]);
    assert_eq!(words("2.00 MiB ")[..6], ["2.00", "MiB", "3", "3", "0", "0"]);
    assert!(
        words("pages to CPUs' caches").ends_with(&["-"])
            && words("free page reporting:").contains(&"passes,")
    );
    assert!(!outcome.stdout.contains('\x1b'));
    // Now the shell is given by name, and polled until it ends.
    let pid = shell.child.id().to_string();
    let mut watcher = program()
        .args(["top", "--interval", "0.1", &pid])
        .env("XDG_RUNTIME_DIR", place.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut tables = BufReader::new(watcher.stdout.take().expect("a pipe")).lines();
    for _ in 0..3 {
        assert!(tables.any(|line| line.expect("text").starts_with(&format!("process {pid}: "))));
    }
    shell.end();
    assert!(tables.all(|line| line.is_ok()));
    assert_eq!(watcher.wait().expect("it ends").code(), Some(0));
    let (_, stderr) = common::rest(&mut watcher);
    assert_eq!(stderr, format!("framewright: note: process {pid} has ended\n"));
}

#[test]
fn what_can_be_moved_and_what_was_is_told() {
    let place = Place::new("top-moving");
    let mut shell = place.shell_with(&["movablecore=16M", "cma=8M"]);
    assert!(shell.run(STILL).contains("still"));
    assert!(shell.run("movable fill 40").contains("handles with runs of order 0"));
    assert!(shell.run("compact").contains("blocks made whole"));
    let outcome = place.top(&["--once"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let line = |beginning: &str| {
        let line = lines.iter().find(|line| line.starts_with(beginning));
        *line.unwrap_or_else(|| panic!("{beginning}\n{}", outcome.stdout))
    };
    let number = |line: &str, at: usize| -> f64 {
        let word = line.split_whitespace().nth(at).expect("a word");
        word.parse().unwrap_or_else(|_| panic!("{word}: {line}"))
    };
    let moving = line("moving: ");
    assert!(number(moving, 1) > 100.0, "{moving}");
    assert!(number(line("blocks emptied by compaction"), 4) > 0.0);
    let pieces = line("free memory: ");
    assert!(number(pieces, 2) < 60.0 && pieces.contains("; 8.00 MiB lent, "), "{pieces}");
    // The zone has watermarks, and all pages in it are movable.
    let movable = lines.iter().find(|line| line.contains(" Movable ")).expect("a zone");
    let words: Vec<&str> = movable.split_whitespace().collect();
    let marks = [17, 15, 13].map(|at| number(movable, words.len() - at));
    assert!(marks[0] < marks[1] && marks[1] < marks[2], "{movable}");
    assert_eq!(words[words.len() - 11], "enough", "{movable}");
    assert_eq!(words[words.len() - 10..][..2], ["0", "KiB"], "{movable}");
    assert_eq!(words[words.len() - 6..], ["0", "KiB"].repeat(3), "{movable}");
    shell.end();
}

#[test]
fn of_several_one_must_be_named_and_dead_sockets_go() {
    let place = Place::new("top-several");
    let (first, second) = (place.shell(), place.shell());
    let mode = fs::metadata(first.socket.parent().expect("a folder"))
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    // The socket of a killed shell.
    let dead = place.socket(999_999_999);
    drop(UnixListener::bind(&dead).expect("a socket"));
    // That of a process which does not listen yet.
    let early = place.socket(std::process::id());
    drop(UnixListener::bind(&early).expect("a socket"));
    let outcome = place.top(&["--once"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
    for shell in [&first, &second] {
        let line = format!("\n  {}  framewright shell --memory 64M", shell.child.id());
        assert!(outcome.stderr.contains(&line), "{}", outcome.stderr);
    }
    assert!(!dead.exists() && early.exists());
    let outcome = place.top(&["--once", &second.child.id().to_string()]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let outcome = place.top(&["--once", "999999999"]);
    assert_eq!(outcome.code, Some(2));
    assert!(
        outcome.stderr.contains("process 999999999 is not a shell of yours"),
        "{}",
        outcome.stderr
    );
    for wrong in [&["--interval", "0"][..], &["--interval", "x"], &["--interval", "1e9"], &["one"]]
    {
        assert_eq!(place.top(wrong).code, Some(2), "{wrong:?}");
    }
    first.end();
    second.end();
}

#[test]
fn strangers_neither_write_nor_stop_the_shell() {
    let place = Place::new("top-strangers");
    let mut shell = place.shell();
    // One client connects and sends nothing, one leaves in the middle, one asks for much and reads
    // nothing.
    let silent = shell.connect();
    shell.connect().write_all(b"1 /proc/mem").expect("it listens");
    let deaf = shell.connect();
    deaf.set_nonblocking(true).expect("a setting");
    while (&deaf).write(&b"1 /proc/zoneinfo\n".repeat(100)).is_ok() {}
    assert!(shell.run("echo still").starts_with("still"));
    let free = answer(&shell, b"5 /proc/buddyinfo\n");
    assert!(free.starts_with("=5\n+Node 0, zone") && free.ends_with("\n.5\n"), "{free}");
    assert_eq!(answer(&shell, b"6 /proc/nothing\n"), "=6\n!6 No such file or directory\n");
    assert_eq!(answer(&shell, b"7 /proc\n"), "=7\n!7 Is a directory\n");
    assert_eq!(
        answer(&shell, b"echo 1 > /proc/sys/vm/nr_hugepages\n"),
        "=0\n!0 a request must begin with a number\n"
    );
    assert_eq!(answer(&shell, b"\xff\xfe\n"), "=0\n!0 the request is not text\n");
    let long = [&b"8 /"[..], &[b'x'; 100_000], b"\n"].concat();
    assert_eq!(answer(&shell, &long), "=0\n!0 the request is too long\n");
    assert!(answer(&shell, b"9 /proc/meminfo\n").starts_with("=9\n+MemTotal:"));
    assert!(shell.run("echo again").starts_with("again"));
    shell.end();
    drop((silent, deaf));
}

#[test]
fn where_no_socket_can_be_the_shell_goes_on_without() {
    let place = Place::new("top-nowhere");
    fs::write(place.path().join("framewright"), "a file").expect("a file");
    let outcome = finish(
        program()
            .args(["boot", "--memory", "64M", "--json", "--exec", "echo x"])
            .env("XDG_RUNTIME_DIR", place.path()),
    );
    assert_eq!(outcome.json()["exec"]["output"], "x\n");
    assert!(
        outcome.stderr.contains("note: `framewright top` cannot watch this process: "),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_folder_that_others_may_enter_is_not_trusted() {
    let place = Place::new("top-open");
    let folder = place.path().join("framewright");
    fs::create_dir(&folder).expect("a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("ours");
    let expected = format!(
        "framewright: {} is not a folder that only this user can enter\n",
        folder.display()
    );
    for words in [&["top", "--once"][..], &["plug", "512M"]] {
        let outcome = finish(program().args(words).env("XDG_RUNTIME_DIR", place.path()));
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), expected.as_str()));
    }
}

fn live(place: &Path, words: &[&str]) -> Terminal {
    let words = [&["top", "--interval", "0.1"], words].concat();
    Terminal::run_with(
        &words,
        &[("TERM", "xterm"), ("XDG_RUNTIME_DIR", place.to_str().expect("text"))],
    )
}

/// The terminal's cursor and former content are back.
const LEAVES: [&str; 2] = ["\x1b[?25h", "\x1b[?1049l"];

#[test]
fn a_terminal_is_written_over_and_put_back() {
    let place = Place::new("top-live");
    let mut shell = place.shell();
    // From then on most memory in use is of node 1.
    assert!(shell.run("alloc pages=2000 node=1").contains("2000 pages"));
    let first_zone = |node| format!("\x1b[7;1H   {node}  DMA");
    for keys in [&b"q"[..], b"\x03", b"\x1b"] {
        let mut terminal = live(&place.path(), &[]);
        terminal.expect("\x1b[?1049h");
        terminal.expect(&format!("process {}: ", shell.child.id()));
        terminal.expect("node");
        terminal.expect(&first_zone(0));
        terminal.expect("since the beginning");
        // By node, by memory used, by memory free, by node; the other key means nothing.
        terminal.send(b"xs");
        terminal.expect(&first_zone(1));
        terminal.send(b"ss");
        terminal.expect(&first_zone(0));
        terminal.send(keys);
        LEAVES.iter().for_each(|text| terminal.expect(text));
        assert_eq!(terminal.end(), Some(0));
    }
    // A signal restores the terminal, too.
    let mut terminal = live(&place.path(), &[]);
    terminal.expect("since the beginning");
    signal(&terminal.child, "TERM");
    LEAVES.iter().for_each(|text| terminal.expect(text));
    assert_eq!(terminal.end(), Some(143));
    // So does the end of the shell.
    let mut terminal = live(&place.path(), &[]);
    terminal.expect("since the beginning");
    assert!(shell.run("echo x").starts_with('x'));
    let pid = shell.child.id();
    shell.end();
    LEAVES.iter().for_each(|text| terminal.expect(text));
    terminal.expect(&format!("process {pid} has ended"));
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn a_terminal_that_can_do_nothing_gets_plain_tables() {
    let place = Place::new("top-dumb");
    let shell = place.shell();
    let words = ["top", "--once"];
    let mut terminal =
        Terminal::run_with(&words, &[("XDG_RUNTIME_DIR", place.path().to_str().expect("text"))]);
    terminal.expect("free page reporting");
    assert_eq!(terminal.end(), Some(0));
    shell.end();
}

#[test]
fn a_boot_that_takes_too_long_leaves_no_socket() {
    let place = Scratch::new("late");
    let words = ["boot", "--memory", "64M", "--timeout", "3", "--exec", "sleep 86400"];
    let outcome = finish(program().args(words).env("XDG_RUNTIME_DIR", place.path("")));
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("did not end within 3 s"), "{}", outcome.stderr);
    let left = std::fs::read_dir(place.path("framewright")).into_iter().flatten().flatten();
    assert_eq!(
        left.map(|entry| entry.path()).collect::<Vec<_>>(),
        Vec::<std::path::PathBuf>::new()
    );
}
