//! The minimal kernel of `examples/` in QEMU. `FRAMEWRIGHT_MINIMAL_KERNEL` names the image; without
//! it one is built.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longer than any boot takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        std::env::var_os("FRAMEWRIGHT_MINIMAL_KERNEL").map_or_else(build, PathBuf::from)
    })
}

fn build() -> PathBuf {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "-p", "minimal-kernel", "--message-format", "json"])
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

/// QEMU while it runs; killed when the test is over, however that ends.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots with these words for QEMU; gives its exit status and what came over the serial line.
fn boot(words: &[&str]) -> (Option<i32>, Vec<String>) {
    let fixed = "-accel tcg -display none -monitor none -serial stdio -no-reboot -device \
        isa-debug-exit,iobase=0xf4,iosize=4";
    let mut command = Command::new("qemu-system-x86_64");
    command.args(fixed.split(' ')).args(words).arg("-kernel").arg(image());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut machine = Machine(command.spawn().expect("qemu-system-x86_64 is installed"));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = machine.0.try_wait().expect("a child can be waited for") {
            break status;
        }
        assert!(start.elapsed() < LIMIT, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    machine.0.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
    (status.code(), text.lines().map(str::to_owned).collect())
}

/// All numbers of a line.
fn numbers(line: &str) -> Vec<u64> {
    let words = line.split(|letter: char| !letter.is_ascii_alphanumeric());
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    words.filter_map(number).collect()
}

/// A boot that went well on a machine of so many MiB.
fn memory_comes_up(words: &[&str], mib: u64) {
    let (code, lines) = boot(&[&["-cpu", "max", "-m", &format!("{mib}M")], words].concat());
    assert_eq!((code, lines.len()), (Some(33), 5), "{lines:?}");
    let pages = numbers(&lines[0]);
    assert!(
        lines[0].starts_with("memory is up: ") && lines[0].ends_with(" pages are free"),
        "{lines:?}"
    );
    // All but what firmware keeps below 1 MiB and at the end of low memory; and of that all but
    // image and tables.
    assert!(pages[1] <= mib * 256 && pages[1] + 500 > mib * 256, "{lines:?}");
    assert!(pages[0] < pages[1] && pages[0] + 500 > pages[1], "{lines:?}");
    // The hole below 4 GiB has 2 GiB at most.
    let end = (mib << 20) + (2 << 30);
    for (line, bytes) in [(&lines[1], 4096), (&lines[2], 2 << 20)] {
        let range = numbers(line);
        assert!(
            range[0] != 0
                && range[0].is_multiple_of(bytes)
                && range[1] == range[0] + bytes - 1
                && range[1] < end,
            "{line}"
        );
    }
    assert!(lines[1].starts_with("a page: ") && lines[2].starts_with("a huge page: "), "{lines:?}");
    assert!(lines[3].starts_with("1000 pages at once, the first at 0x"), "{lines:?}");
    assert!(lines[4].ends_with(" pages were in the cache, all are back: true"), "{lines:?}");
}

#[test]
fn it_boots_on_small_and_large_machines() {
    memory_comes_up(&["-machine", "q35"], 64);
    memory_comes_up(&["-machine", "pc"], 256);
    // Memory on both sides of the hole below 4 GiB.
    memory_comes_up(&["-machine", "q35"], 5 << 10);
    // No ACPI, no firmware worth the name.
    memory_comes_up(&["-machine", "microvm,acpi=off,isa-serial=on"], 128);
}

#[test]
fn its_command_line_is_the_managers() {
    let words = ["-cpu", "max", "-m", "1G", "-append", "mem=128M frobnicate careful=7"];
    let (code, lines) = boot(&words);
    assert_eq!((code, lines.len()), (Some(33), 6), "{lines:?}");
    assert!(lines[0].contains("frobnicate"), "{lines:?}");
    assert!((31_000..=32_768).contains(&numbers(&lines[1])[1]), "{lines:?}");
}

#[test]
fn what_it_cannot_do_it_says() {
    // Too little for a huge page.
    let (code, lines) = boot(&["-cpu", "max", "-m", "4M"]);
    assert_eq!(code, Some(37), "{lines:?}");
    assert_eq!(
        lines.last().map(String::as_str),
        Some("cannot go on: out of memory: no run of order 9 to be had where it was wanted")
    );
    // No memory that the manager could have at all.
    let (code, lines) = boot(&["-cpu", "max", "-m", "64M", "-append", "mem=1M"]);
    assert_eq!(code, Some(37), "{lines:?}");
    assert!(lines.last().is_some_and(|line| line.starts_with("cannot go on: ")), "{lines:?}");
    let (code, lines) = boot(&["-cpu", "qemu64", "-m", "64M"]);
    assert_eq!(
        (code, lines.as_slice()),
        (Some(37), &["this CPU has no pages of 1 GiB".to_owned()][..])
    );
}
