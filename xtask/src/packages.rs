//! System programs that tests need: finds them, or installs them if that is possible without
//! asking.

use crate::command::Run;
use crate::step::Failure;
use std::fs;
use std::path::Path;

/// A program.
struct Program {
    /// The program's names, of which one is enough.
    names: &'static [&'static str],
    /// The packages of Debian and Ubuntu that contain it.
    debian: &'static [&'static str],
    /// What to do if it is missing and cannot be installed.
    missing: &'static str,
}

/// The emulator, its firmware, and the option ROM of the network card in QEMU's default machines.
const QEMU: Program = Program {
    names: &["qemu-system-x86_64"],
    debian: &["qemu-system-x86", "seabios", "ipxe-qemu"],
    missing: "\
qemu-system-x86_64 is missing, and the tests of whole machines need it. Install it with
  apt-get install qemu-system-x86 seabios ipxe-qemu    (Debian, Ubuntu)
  dnf install qemu-system-x86-core                     (Fedora)
  pacman -S qemu-system-x86                            (Arch)
",
};

/// A boot loader, for a CD that a BIOS starts.
const GRUB: Program = Program {
    names: &["grub-mkrescue", "grub2-mkrescue"],
    debian: &["grub-pc-bin", "grub-common", "xorriso"],
    missing: "\
grub-mkrescue with its modules for a BIOS is missing, and it makes the CD of the hobby kernel.
Install it with
  apt-get install grub-pc-bin grub-common xorriso            (Debian, Ubuntu)
  dnf install grub2-tools-extra grub2-pc-modules xorriso     (Fedora)
  pacman -S grub libisoburn                                  (Arch)
",
};
/// GRUB's modules, which are packages of their own, and the program that writes CDs.
const GRUB_MODULES: &str = "/usr/lib/grub/i386-pc";
const WRITER: &str = "xorriso";

/// The browser, and fonts for it.
const BROWSER: Program = Program {
    names: &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"],
    debian: &["chromium", "fonts-dejavu-core"],
    missing: "\
Chromium is missing, and the tests of reports look at them in it. Install it with
  apt-get install chromium fonts-dejavu-core    (Debian)
  dnf install chromium                          (Fedora)
  pacman -S chromium                            (Arch)
",
};

/// Makes sure that QEMU is there and returns its version.
///
/// # Errors
/// What to install, if it is missing and cannot be installed.
pub fn qemu() -> Result<String, Failure> {
    provide(&QEMU).map(|version| version.replace("QEMU emulator version", "QEMU"))
}

/// Makes sure that GRUB is there and returns its version.
///
/// # Errors
/// What to install, if it is missing and cannot be installed.
pub fn grub() -> Result<String, Failure> {
    let is_whole =
        Path::new(GRUB_MODULES).is_dir() && Run::program(WRITER, &["--version"]).output().is_ok();
    if is_whole { provide(&GRUB) } else { install(&GRUB) }
}

/// Makes sure that the toolchain in use can compile for `target`.
///
/// # Errors
/// Why it cannot be installed.
pub fn target(target: &str) -> Result<(), Failure> {
    let root = Run::program("rustc", &["--print", "sysroot"]).output()?;
    if Path::new(root.trim()).join("lib/rustlib").join(target).is_dir() {
        return Ok(());
    }
    Run::program("rustup", &["target", "add", target]).output().map(drop)
}

/// Makes sure that a browser is there and returns its version.
///
/// # Errors
/// What to install, if it is missing and cannot be installed.
pub fn browser() -> Result<String, Failure> {
    provide(&BROWSER)
}

fn provide(program: &Program) -> Result<String, Failure> {
    match version(program) {
        Some(version) => Ok(version),
        None => install(program),
    }
}

fn install(program: &Program) -> Result<String, Failure> {
    if !is_debian() {
        return Err(Failure::new(program.missing));
    }
    let apt = |arguments: &[&str]| {
        let run = if is_root() {
            Run::program("apt-get", arguments)
        } else {
            // -n: fail rather than ask for a password, as nobody may be there to type one.
            Run::program("sudo", &["-n", "apt-get"]).args(arguments)
        };
        let explained = |mut failure: Failure| {
            failure.output.push_str(program.missing);
            failure
        };
        run.env("DEBIAN_FRONTEND", "noninteractive").output().map_err(explained)
    };
    apt(&["update"])?;
    apt(&[&["install", "-y", "--no-install-recommends"][..], program.debian].concat())?;
    version(program)
        .map(|version| format!("{version}, just installed"))
        .ok_or_else(|| Failure::new(program.missing))
}

fn version(program: &Program) -> Option<String> {
    let output =
        program.names.iter().find_map(|name| Run::program(name, &["--version"]).output().ok())?;
    // Wrapper scripts may complain about something first.
    output.lines().find(|line| !line.starts_with('/')).map(|line| line.trim().to_owned())
}

fn is_debian() -> bool {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let names =
        release.lines().filter(|line| line.starts_with("ID=") || line.starts_with("ID_LIKE="));
    names
        .flat_map(|line| line.split(['=', ' ', '"']))
        .any(|word| word == "debian" || word == "ubuntu")
}

fn is_root() -> bool {
    Run::program("id", &["-u"]).output().is_ok_and(|output| output.trim() == "0")
}
