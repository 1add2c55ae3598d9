//! Kernels of `examples/` in QEMU: builds them if no image is named, boots them and reads their
//! output.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than any boot takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Builds a package; `more` holds further arguments for cargo.
pub fn build(package: &str, more: &[&str]) -> PathBuf {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "-p", package, "--message-format", "json"])
        .args(more)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages =
        messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let program = messages
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    program.expect("cargo names the program")
}

/// A running QEMU, killed when the test ends, even by a panic.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots QEMU with these arguments; returns its exit status and the lines of the serial console.
pub fn boot(words: &[&str]) -> (Option<i32>, Vec<String>) {
    let fixed = "-accel tcg -display none -monitor none -serial stdio -no-reboot -device \
        isa-debug-exit,iobase=0xf4,iosize=4";
    let mut command = Command::new("qemu-system-x86_64");
    command.args(fixed.split(' ')).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut machine = Machine(command.spawn().expect("qemu-system-x86_64 is installed"));
    let mut console = machine.0.stdout.take().expect("a pipe");
    // Read meanwhile, because a full pipe would stop the machine.
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        console.read_to_string(&mut text).expect("text");
        text
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = machine.0.try_wait().expect("a child can be waited for") {
            break Some(status);
        }
        if start.elapsed() > LIMIT {
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    drop(machine);
    let text = reader.join().expect("text");
    let status = status.unwrap_or_else(|| panic!("it does not end: {text}"));
    (status.code(), text.lines().map(str::to_owned).collect())
}

/// Returns all numbers in a line.
pub fn numbers(line: &str) -> Vec<u64> {
    let words = line.split(|letter: char| !letter.is_ascii_alphanumeric());
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    words.filter_map(number).collect()
}
