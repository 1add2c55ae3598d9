//! The C kernel of `examples/` in QEMU.

mod common;

use common::{archive, folder, is_there, run};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than any boot takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Builds the kernel with `compiler`. Tests run in parallel, so each has an image of its own.
fn kernel(compiler: &str, test: &str) -> PathBuf {
    let examples = folder().join("../../examples");
    // The path from the boot protocol to 64-bit mode is shared with the Rust kernel.
    let start = examples.join("minimal-kernel/src/boot.s");
    let script = examples.join("minimal-kernel/linker.ld");
    let image = format!("c-kernel-{compiler}-{test}");
    let image = Path::new(env!("CARGO_TARGET_TMPDIR")).join(image);
    let mut compile = Command::new(compiler);
    compile.args(["-ffreestanding", "-mno-red-zone", "-fno-pic", "-fno-stack-protector", "-O2"]);
    if compiler == "gcc" {
        compile.arg("-fno-tree-loop-distribute-patterns");
    } else {
        compile.arg("-fno-builtin");
    }
    compile.args(["-Wall", "-Wextra", "-Werror", "-nostdlib", "-static"]);
    compile.arg(format!("-Wl,-T,{}", script.display()));
    compile.args(["-Wl,-z,max-page-size=0x1000", "-Wl,--build-id=none", "-Wl,--gc-sections"]);
    compile.arg("-I").arg(folder().join("include"));
    compile.arg(start).arg(examples.join("c-kernel/kernel.c")).arg(archive());
    run(compile.arg("-o").arg(&image));
    image
}

/// A running QEMU, killed when the test ends, even by a panic.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots; returns QEMU's exit status and the output on the serial console.
fn boot(image: &Path, words: &[&str]) -> (Option<i32>, String) {
    let fixed = "-accel tcg -cpu max -display none -monitor none -serial stdio -no-reboot -device \
        isa-debug-exit,iobase=0xf4,iosize=4";
    let mut command = Command::new("qemu-system-x86_64");
    command.args(fixed.split(' ')).args(words).arg("-kernel").arg(image);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut machine = Machine(command.spawn().expect("qemu-system-x86_64 is installed"));
    let mut console = machine.0.stdout.take().expect("it is piped");
    // Read meanwhile, because a full pipe would stop the machine.
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        console.read_to_string(&mut text).expect("the kernel writes text");
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
    (status.code(), text.replace('\r', ""))
}

#[test]
fn it_boots_and_gives_all_back() {
    let compilers: Vec<_> = ["gcc", "clang"].into_iter().filter(|name| is_there(name)).collect();
    assert!(!compilers.is_empty(), "no C compiler: apt-get install gcc, dnf install gcc");
    for compiler in compilers {
        let image = kernel(compiler, "boots");
        for memory in ["64M", "256M", "5G"] {
            let (status, text) = boot(&image, &["-m", memory]);
            assert_eq!(status, Some(0x10 << 1 | 1), "{compiler}, {memory}: {text}");
            for words in [
                "a platform without irq_save: the platform lacks a function that it must have\n",
                "memory is up: ",
                "the RAM disk was given back: 512 pages\n",
                "all are back\n",
            ] {
                assert!(text.contains(words), "{compiler}, {memory}: no {words:?} in {text}");
            }
        }
    }
}

#[test]
fn what_is_wrong_with_the_command_line_is_logged() {
    let compiler = ["gcc", "clang"].into_iter().find(|name| is_there(name));
    let compiler = compiler.expect("no C compiler: apt-get install gcc, dnf install gcc");
    let image = kernel(compiler, "command-line");
    let (status, text) = boot(&image, &["-m", "128M", "-append", "min_free_kbytes=much"]);
    assert_eq!(status, Some(0x10 << 1 | 1), "{text}");
    assert!(text.contains("min_free_kbytes"), "{text}");
    // The memory that the tables need is missing.
    let (status, text) = boot(&image, &["-m", "128M", "-append", "mem=1M"]);
    assert_eq!(status, Some(0x12 << 1 | 1), "{text}");
    assert!(text.contains("bring-up: "), "{text}");
}
