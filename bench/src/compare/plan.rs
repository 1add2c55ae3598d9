//! How much to measure, and on machines of which shape.

use super::lab::Shape;
use crate::args::CompareLinux;
use framewright_cli::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;
/// The number of CPUs unless the user chooses it.
const CPUS: u32 = 2;
/// With less memory, Linux has no room for its initial RAM disk and the measurements.
const LEAST_BYTES: u64 = 512 << 20;
/// How much memory the host keeps when QEMU preallocates a machine's memory.
const HOST_KEEPS: u64 = 4 * GIB;

/// After this time nothing more is begun: a comparison should take at most ten minutes even if both
/// are emulated.
const LONGEST: Duration = Duration::from_secs(540);

/// The user's choices, with defaults for the rest.
pub struct Plan {
    memory_bytes: Option<u64>,
    nodes: Option<u32>,
    pub cpus: u32,
    pub quick: bool,
    host_bytes: u64,
    started: Instant,
}

impl Plan {
    /// Reads the options.
    ///
    /// # Errors
    /// Fails if the machine is too small for a comparison, or too large for this host.
    pub fn new(options: &CompareLinux) -> Result<Self, Error> {
        let host_bytes = available_bytes().unwrap_or(u64::MAX);
        match options.memory {
            Some(bytes) if bytes < LEAST_BYTES => {
                let least = LEAST_BYTES >> 20;
                return Err(Error::Usage(format!(
                    "--memory {}M: Linux needs at least {least} MiB here",
                    bytes >> 20
                )));
            }
            Some(bytes) if bytes > host_bytes => {
                return Err(Error::Usage(format!(
                    "--memory {}M: QEMU takes all of it before the machine begins, and only {} MiB \
                     are available",
                    bytes >> 20,
                    host_bytes >> 20
                )));
            }
            _ => {}
        }
        Ok(Self {
            memory_bytes: options.memory,
            nodes: options.nodes,
            cpus: options.cpus.unwrap_or(CPUS),
            quick: options.quick,
            host_bytes,
            started: Instant::now(),
        })
    }

    /// A machine with this much memory and this many nodes, unless the user chose others or the
    /// host has less. QEMU preallocates its memory, unless a balloon is to give it back.
    pub fn shape(&self, memory_gib: u64, nodes: u32, balloon: bool) -> Shape {
        let mut bytes = memory_gib * GIB;
        while bytes > LEAST_BYTES && bytes > self.host_bytes.saturating_sub(HOST_KEEPS) {
            bytes /= 2;
        }
        let nodes = self.nodes.unwrap_or(nodes);
        Shape {
            memory_bytes: self.memory_bytes.unwrap_or(bytes),
            nodes,
            cpus: self.cpus,
            balloon,
            preallocated: !balloon,
            more_bytes: 0,
        }
    }

    /// The repetitions of a section: at most `most`, as long as its time budget lasts.
    pub fn repetitions(&self, most: usize, budget_seconds: u64) -> Repetitions {
        let most = if self.quick { 1 } else { most };
        let left = LONGEST.saturating_sub(self.started.elapsed());
        let budget = Duration::from_secs(budget_seconds).min(left);
        Repetitions { most, done: 0, budget, started: Instant::now() }
    }

    /// Tells waiting users about the progress.
    pub fn tell(&self, what: &str) {
        // If standard error is gone, there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "[{:4} s] {what}", self.started.elapsed().as_secs());
    }
}

/// Counts repetitions.
pub struct Repetitions {
    most: usize,
    done: usize,
    budget: Duration,
    started: Instant,
}

impl Repetitions {
    /// The number of the next repetition, if there is one. There is always a first.
    pub fn another(&mut self) -> Option<usize> {
        let elapsed = self.started.elapsed();
        let each = elapsed / u32::try_from(self.done.max(1)).unwrap_or(u32::MAX);
        if self.done > 0 && (self.done == self.most || elapsed + each > self.budget) {
            return None;
        }
        self.done += 1;
        Some(self.done)
    }

    /// Whether no time is left, so that the rest of a repetition is left out.
    pub fn is_late(&self) -> bool {
        self.started.elapsed() >= self.budget
    }

    /// The progress in words.
    pub fn shown(&self) -> String {
        format!("{} of at most {}", self.done, self.most)
    }
}

/// The memory that is available to programs on this machine.
fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(memory_bytes: Option<u64>, host_bytes: u64) -> Plan {
        Plan {
            memory_bytes,
            nodes: None,
            cpus: CPUS,
            quick: false,
            host_bytes,
            started: Instant::now(),
        }
    }

    #[test]
    fn machines_fit_the_host_unless_the_user_knows_better() {
        assert_eq!(plan(None, 16 * GIB).shape(8, 2, false).memory_bytes, 8 * GIB);
        assert_eq!(plan(None, 11 * GIB).shape(8, 2, false).memory_bytes, 4 * GIB);
        assert_eq!(plan(None, 0).shape(8, 2, false).memory_bytes, LEAST_BYTES);
        let shape = plan(Some(3 * GIB), 0).shape(8, 2, true);
        assert_eq!(
            shape,
            Shape {
                memory_bytes: 3 * GIB,
                nodes: 2,
                cpus: 2,
                balloon: true,
                preallocated: false,
                more_bytes: 0
            }
        );
    }

    #[test]
    fn there_is_always_one_repetition_and_time_ends_them() {
        let plan = plan(None, 0);
        let mut none = plan.repetitions(5, 0);
        assert_eq!((none.another(), none.another()), (Some(1), None));
        let mut many = plan.repetitions(3, 1 << 30);
        assert_eq!(
            [many.another(), many.another(), many.another(), many.another()],
            [Some(1), Some(2), Some(3), None]
        );
        let quick = Plan { quick: true, ..plan };
        let mut one = quick.repetitions(5, 1 << 30);
        assert_eq!((one.another(), one.another(), one.is_late()), (Some(1), None, false));
        assert!(quick.repetitions(5, 0).is_late());
    }
}
