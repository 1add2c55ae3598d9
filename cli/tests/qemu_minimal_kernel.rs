//! The minimal kernel of `examples/` in QEMU. `FRAMEWRIGHT_MINIMAL_KERNEL` names the image; without
//! it the test builds one.

#[path = "common/kernel.rs"]
mod kernel;

use kernel::numbers;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

fn image() -> &'static str {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    let image = IMAGE.get_or_init(|| {
        std::env::var_os("FRAMEWRIGHT_MINIMAL_KERNEL")
            .map_or_else(|| kernel::build("minimal-kernel", &[]), PathBuf::from)
    });
    image.to_str().expect("text")
}

fn boot(words: &[&str]) -> (Option<i32>, Vec<String>) {
    kernel::boot(&[words, &["-kernel", image()]].concat())
}

/// Checks a successful boot on a machine of `mib` MiB.
fn memory_comes_up(words: &[&str], mib: u64) {
    let (code, lines) = boot(&[&["-cpu", "max", "-m", &format!("{mib}M")], words].concat());
    assert_eq!((code, lines.len()), (Some(33), 5), "{lines:?}");
    let pages = numbers(&lines[0]);
    assert!(
        lines[0].starts_with("memory is up: ") && lines[0].ends_with(" pages are free"),
        "{lines:?}"
    );
    // All memory but what firmware keeps below 1 MiB and at the end of low memory, less the kernel
    // image and its tables.
    assert!(pages[1] <= mib * 256 && pages[1] + 500 > mib * 256, "{lines:?}");
    assert!(pages[0] < pages[1] && pages[0] + 500 > pages[1], "{lines:?}");
    // The hole below 4 GiB is at most 2 GiB.
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
    // A machine without ACPI and with hardly any firmware.
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
    // Too little memory for a huge page.
    let (code, lines) = boot(&["-cpu", "max", "-m", "4M"]);
    assert_eq!(code, Some(37), "{lines:?}");
    assert_eq!(
        lines.last().map(String::as_str),
        Some("cannot go on: out of memory: no run of order 9 where the request allows")
    );
    // The parameter leaves no memory for the manager.
    let (code, lines) = boot(&["-cpu", "max", "-m", "64M", "-append", "mem=1M"]);
    assert_eq!(code, Some(37), "{lines:?}");
    assert!(lines.last().is_some_and(|line| line.starts_with("cannot go on: ")), "{lines:?}");
    for cpu in ["qemu64", "max,-nx"] {
        let (code, lines) = boot(&["-cpu", cpu, "-m", "64M"]);
        assert_eq!(
            (code, lines.as_slice()),
            (Some(37), &["this CPU lacks pages of 1 GiB or the no-execute bit".to_owned()][..])
        );
    }
}

/// The page tables of `framewright-arch` forbid execution, and an absent page must not be written
/// to.
#[test]
fn the_cpu_heeds_all_that_page_tables_forbid() {
    // QEMU keeps running, so the test can ask its monitor (Ctrl-A c) where the CPU halts.
    let words = "120 qemu-system-x86_64 -accel tcg -cpu max -m 64M -display none -no-reboot \
        -serial mon:stdio -kernel";
    let mut command = Command::new("timeout");
    command.args(words.split(' ')).arg(image()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut machine = command.spawn().expect("timeout is installed");
    let mut output = BufReader::new(machine.stdout.take().expect("a pipe"));
    let is_up = output.by_ref().lines().any(|line| line.expect("text").ends_with("back: true"));
    assert!(is_up, "it did not come up");
    let mut input = machine.stdin.take().expect("a pipe");
    input.write_all(b"\x01cinfo registers\nquit\n").expect("QEMU listens");
    let mut text = String::new();
    output.read_to_string(&mut text).expect("text");
    machine.wait().expect("it ends");
    for register in ["CR0=80010013", "EFER=0000000000000d00"] {
        assert!(text.contains(register), "no {register} in {text}");
    }
}
