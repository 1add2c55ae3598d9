//! How the memory of a QEMU machine falls, as the host sees it: a thread reads the machine's
//! resident memory while the guest runs a script.

use super::fall::{Fall, Sample};
use super::{FULL, Scale};
use crate::bench::common::failed;
use framewright::reporting::Pace;
use framewright_cli::args::Target;
use framewright_cli::error::Error;
use framewright_cli::qemu::attempts::Attempts;
use framewright_cli::qemu::command::PROGRAM;
use framewright_cli::qemu::encoding::encode;
use framewright_cli::qemu::run::Watch;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two samples.
const STEP: Duration = Duration::from_millis(20);
/// How long a machine may take.
const PATIENCE_SECONDS: u64 = 300;
/// How many seconds the guest is idle at the end.
const IDLE_SECONDS: u64 = 4;
/// What the guest says at each stage.
const MARKS: [&str; 4] = ["mark ready", "mark freed", "mark fallen", "mark over"];

/// Measures one course.
///
/// # Errors
/// Fails if QEMU is missing, or the guest did not do its task.
pub fn fall(scale: Scale, pace: Pace) -> Result<Fall, Error> {
    let target = Target {
        balloon: Some(String::new()),
        parameters: vec![format!("page_reporting.pace={}", pace.name())],
        ..Target::on_qemu(scale.memory_bytes, PATIENCE_SECONDS)
    };
    let script = script(scale, pace);
    let (followed, samples) = watched(scale.memory_bytes, || follow(&target, &script));
    let script = followed?;
    fall_of(&script, &samples, scale, pace).ok_or_else(|| {
        let (said, count) = (&script.said, samples.len());
        failed(format!(
            "the guest was not seen to free its memory (in {count} samples); it printed:\n{said}"
        ))
    })
}

/// The guest's script. It first flushes everything, twice, because the first flush may come in the
/// middle of a pass.
fn script(scale: Scale, pace: Pace) -> String {
    let mib = scale.dirtied_bytes >> 20;
    let seconds = match pace {
        Pace::Adaptive if scale.dirtied_bytes < FULL.dirtied_bytes => 5,
        Pace::Adaptive => 8,
        Pace::Fixed => 40,
    };
    let [ready, freed, fallen, over] = MARKS;
    format!(
        "reporting flush; reporting flush; sleep 1; cat /proc/vmstat; echo {ready}; sleep 1; \
         memhog {mib}M hold 1; echo {freed}; \
         sleep {seconds}; cat /proc/vmstat; echo {fallen}; sleep {IDLE_SECONDS}; cat /proc/vmstat; \
         echo {over}"
    )
}

fn follow(target: &Target, script: &str) -> Result<Script, Error> {
    let attempts = Attempts::prepare(target)?;
    let mut follower = Script { said: String::new(), times: [None; MARKS.len()] };
    let (_, ended) = attempts.run(&format!("exec={}", encode(script)), false, &mut follower)?;
    attempts.check(&ended, false)?;
    Ok(follower)
}

/// What the guest has said, and when it reached each mark.
struct Script {
    said: String,
    times: [Option<Instant>; MARKS.len()],
}

impl Script {
    /// A counter of the guest at each of the three marks after which the guest shows its counters.
    fn counter(&self, name: &str) -> impl Iterator<Item = u64> {
        self.said
            .lines()
            .filter_map(move |line| line.trim().strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }
}

impl Watch for Script {
    fn output(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.said.push_str(&String::from_utf8_lossy(bytes));
        for (time, mark) in self.times.iter_mut().zip(MARKS) {
            if time.is_none() && self.said.contains(mark) {
                *time = Some(Instant::now());
            }
        }
        Ok(())
    }
}

fn fall_of(script: &Script, samples: &[Sample], scale: Scale, pace: Pace) -> Option<Fall> {
    let [ready, freed, fallen, _] = script.times;
    let (ready, freed, fallen) = (ready?, freed?, fallen?);
    let before_bytes = samples.iter().rfind(|sample| sample.at <= ready)?.bytes;
    // The guest freed everything slightly before its message arrived.
    let top = samples
        .iter()
        .filter(|sample| (ready..=freed).contains(&sample.at))
        .max_by_key(|sample| sample.bytes)?;
    let after = samples.iter().filter(|sample| sample.at > freed && sample.at <= fallen);
    let samples = [Sample { at: freed, ..*top }].into_iter().chain(after.copied()).collect();
    let mut reported = script.counter("page_reporting_pages");
    let (first, second, third) = (reported.next()?, reported.next()?, reported.next()?);
    let early: Vec<u64> = script.counter("page_reporting_reused_early").collect();
    Some(Fall {
        on: "qemu",
        pace,
        dirtied_bytes: scale.dirtied_bytes,
        before_bytes,
        freed,
        samples,
        reported_pages: third - first,
        idle_pages: third - second,
        reused_early_pages: early.last()?.checked_sub(*early.first()?)?,
    })
}

/// Runs `work` while a thread samples the memory of the machine that `work` starts. Returns the
/// result of `work`, and the resident bytes over time.
pub fn watched<T>(memory_bytes: u64, work: impl FnOnce() -> T) -> (T, Vec<Sample>) {
    let over = AtomicBool::new(false);
    let watch = || {
        let (mut pid, mut samples) = (None, Vec::new());
        while !over.load(Ordering::Relaxed) {
            pid = pid.or_else(machine_process);
            // If there is none, the process does not exist yet, or was replaced by another one.
            match pid.and_then(|pid| resident_bytes(pid, memory_bytes)) {
                Some(bytes) => samples.push(Sample { at: Instant::now(), bytes }),
                None => pid = None,
            }
            thread::sleep(STEP);
        }
        samples
    };
    thread::scope(|scope| {
        let watcher = scope.spawn(watch);
        let done = work();
        over.store(true, Ordering::Relaxed);
        (done, watcher.join().unwrap_or_default())
    })
}

/// The process of a machine that this process has started.
fn machine_process() -> Option<u32> {
    let ours = std::process::id();
    let is_ours = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The parent is the second word after the name, which is cut to 15 bytes and in
        // parentheses.
        let name = stat.split_once('(').map_or("", |(_, rest)| rest);
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parent == Some(ours) && name.starts_with(&PROGRAM[..15])
    };
    let processes = fs::read_dir("/proc").ok()?;
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).find(is_ours)
}

/// How much of a process's mapping of this size is resident.
fn resident_bytes(pid: u32, memory_bytes: u64) -> Option<u64> {
    share(&fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?, memory_bytes)
}

fn share(smaps: &str, memory_bytes: u64) -> Option<u64> {
    let number = |text| u64::from_str_radix(text, 16).ok();
    let mut sum_kib = None;
    let mut is_memory = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            is_memory = number(start)
                .zip(number(end))
                .is_some_and(|(start, end)| end - start == memory_bytes);
        } else if first == "Rss:" && is_memory {
            let kib: u64 = words.next()?.parse().ok()?;
            sum_kib = Some(sum_kib.unwrap_or(0) + kib);
        }
    }
    sum_kib.map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_known_by_its_size() {
        let smaps = "1000-3000 rw-p 0 00:00 0\nSize: 8 kB\nRss:  4 kB\n7f00000000-7f40000000 rw-p \
            0 00:00 0 \nRss:   1000 kB\nPss: 3 kB\n";
        assert_eq!(share(smaps, 1 << 30), Some(1000 << 10));
        assert_eq!(share(smaps, 2 << 30), None);
    }

    #[test]
    fn what_the_guest_says_is_put_into_order() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let script = Script {
            said: "page_reporting_pages 10\r\npage_reporting_reused_early \
                2\r\nx\npage_reporting_pages 30\npage_reporting_pages \
                31\npage_reporting_reused_early 5\n"
                .into(),
            times: [Some(at(2)), Some(at(5)), Some(at(9)), Some(at(10))],
        };
        let mib = [1, 2, 3, 80, 100, 90, 50, 5, 4, 4, 3];
        let samples: Vec<_> = (0..)
            .zip(mib)
            .map(|(second, mib)| Sample { at: at(second), bytes: mib << 20 })
            .collect();
        let scale = Scale { dirtied_bytes: 16 << 12, ..super::super::QUICK };
        let fall = fall_of(&script, &samples, scale, Pace::Adaptive).expect("complete");
        assert_eq!((fall.before_bytes, fall.samples.len()), (3 << 20, 5));
        assert_eq!(
            (fall.samples[0].bytes, fall.samples[0].at, fall.samples[4].bytes),
            (100 << 20, at(5), 4 << 20)
        );
        assert_eq!((fall.reported_pages, fall.idle_pages, fall.reused_early_pages), (21, 1, 3));
    }
}
