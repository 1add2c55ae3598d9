//! QEMU: found, or installed where that can be done without asking.

use crate::command::Run;
use crate::step::Failure;
use std::fs;

const PROGRAM: &str = "qemu-system-x86_64";
/// The emulator, its firmware, and the option ROM of the network card that QEMU's default machines have.
const DEBIAN_PACKAGES: [&str; 3] = ["qemu-system-x86", "seabios", "ipxe-qemu"];

/// Makes sure that QEMU is there and gives its version.
///
/// # Errors
/// Where it is missing and cannot be installed: what to install.
pub fn provide() -> Result<String, Failure> {
    if let Some(version) = version() {
        return Ok(version);
    }
    if !is_debian() {
        return Err(Failure::new(MISSING));
    }
    let apt = |arguments: &[&str]| {
        let run = if is_root() {
            Run::program("apt-get", arguments)
        } else {
            // -n: without a password, or not at all; nobody may be there to type one.
            Run::program("sudo", &["-n", "apt-get"]).args(arguments)
        };
        let explained = |mut failure: Failure| {
            failure.output.push_str(MISSING);
            failure
        };
        run.env("DEBIAN_FRONTEND", "noninteractive").output().map_err(explained)
    };
    apt(&["update"])?;
    apt(&[&["install", "-y", "--no-install-recommends"][..], &DEBIAN_PACKAGES].concat())?;
    version().map(|version| format!("{version}, just installed")).ok_or_else(|| Failure::new(MISSING))
}

const MISSING: &str = "\
qemu-system-x86_64 is missing, and the tests of whole machines need it. Install it with
  apt-get install qemu-system-x86 seabios ipxe-qemu    (Debian, Ubuntu)
  dnf install qemu-system-x86-core                     (Fedora)
  pacman -S qemu-system-x86                            (Arch)
";

fn version() -> Option<String> {
    let output = Run::program(PROGRAM, &["--version"]).output().ok()?;
    output.lines().next().map(|line| line.replace("QEMU emulator version", "QEMU"))
}

fn is_debian() -> bool {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let names = release.lines().filter(|line| line.starts_with("ID=") || line.starts_with("ID_LIKE="));
    names.flat_map(|line| line.split(['=', ' ', '"'])).any(|word| word == "debian" || word == "ubuntu")
}

fn is_root() -> bool {
    Run::program("id", &["-u"]).output().is_ok_and(|output| output.trim() == "0")
}
