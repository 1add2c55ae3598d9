//! What measured numbers depend on: the machine, the system, the programs and the time.

use framewright_cli::error::Error;
use serde_json::{Value, json};
use std::fs;
use std::time::SystemTime;

/// Describes this machine, with QEMU in this version, in the form of docs/usage.md. Unknown values
/// are null.
pub fn describe(qemu: Option<&str>) -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = crate::bench::host::cpus().map(|cpus| cpus.len()).ok();
    json!({
        "cpu": cpu(&read("/proc/cpuinfo")),
        "cpus": cpus,
        "memory_bytes": memory_bytes(&read("/proc/meminfo")),
        "kernel": kernel(&read("/proc/sys/kernel/ostype"), &read("/proc/sys/kernel/osrelease")),
        "qemu": qemu,
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "load_average": load_average(&read("/proc/loadavg")),
    })
}

/// Identifies this build of the program: FNV-1a of its file.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn program() -> Result<String, Error> {
    // This name leads to the running program even if another file has replaced it.
    let file = fs::read("/proc/self/exe").map_err(|error| {
        Error::Failed(format!("the build of this program cannot be identified: {error}"))
    })?;
    let hash = file.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    Ok(format!("{hash:016x}"))
}

/// Date and time, to the second, in UTC.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

fn cpu(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start().strip_prefix(':')?.trim().to_owned())
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn kernel(name: &str, release: &str) -> Option<String> {
    (!release.trim().is_empty())
        .then(|| format!("{} {}", name.trim(), release.trim()).trim().to_owned())
}

fn load_average(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_files_are_read() {
        assert_eq!(
            cpu("processor\t: 0\nmodel name\t: AMD EPYC 9B45\n").as_deref(),
            Some("AMD EPYC 9B45")
        );
        assert_eq!(cpu("nothing of it"), None);
        assert_eq!(memory_bytes("MemFree: 1 kB\nMemTotal:       24576 kB\n"), Some(24 << 20));
        assert_eq!(memory_bytes("MemTotal: 99999999999999999999 kB"), None);
        assert_eq!(kernel("Linux\n", "6.18.1\n").as_deref(), Some("Linux 6.18.1"));
        assert_eq!(
            (kernel("Linux", ""), load_average("0.25 1 2 3/4 5\n"), load_average("")),
            (None, Some(0.25), None)
        );
    }

    #[test]
    fn this_machine_has_cpus() {
        assert!(describe(None)["cpus"].as_u64() > Some(0));
    }
}
