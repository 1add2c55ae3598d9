//! Memory that the host adds and removes through virtio-mem while none of it is in use.

use super::common;
use crate::bench::common::failed;
use crate::compare::lab::{Heard, Lab, VIRTIO_MEM_MODULE, Words};
use crate::compare::linux;
use crate::compare::plan::Plan;
use crate::compare::rows::{Demand, Row, Unit};
use framewright_cli::attach::{Monitor, MonitorError};
use framewright_cli::error::Error;
use framewright_cli::qemu::command::VIRTIO_MEM_PATH;
use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const MEMORY_GIB: u64 = 1;
const MORE_BYTES: u64 = 2 << 30;
const REPETITIONS: usize = 5;
const BUDGET_SECONDS: u64 = 120;
/// How long a machine may take to fulfil a request of the host.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between the two requests.
const PAUSE: Duration = Duration::from_millis(500);
/// How long our guest stays up.
const OURS_SECONDS: u64 = 5;
const DEMANDED_RATIO: f64 = 10.0;
const DEMANDED_REQUESTS: f64 = 4.0;
/// Such memory can be removed only if everything in it is movable.
const LINUX_WORDS: &str = "memhp_default_state=online_movable";

const READY: &str = "mark ready";
const MEMINFO: &str = "/proc/meminfo MemTotal:";
const DRIVER: &str = "/sys/bus/virtio/drivers/virtio_mem";

/// Adds memory to both and removes it, in turn.
///
/// # Errors
/// Fails if a machine did not do its task.
pub fn run(lab: &Lab, plan: &Plan) -> Result<Vec<Value>, Error> {
    let mut shape = plan.shape(MEMORY_GIB, 1, false);
    (shape.preallocated, shape.more_bytes) = (false, MORE_BYTES);
    let row = |what: &str, unit| Row::new(&format!("virtio-mem: {what}"), unit);
    let mut come = row("2 GiB come", Unit::Milliseconds).demanding(Demand::Ratio(DEMANDED_RATIO));
    let mut go = row("2 GiB go", Unit::Milliseconds).demanding(Demand::Ratio(DEMANDED_RATIO));
    let mut requests = row("requests for both", Unit::Requests)
        .demanding(Demand::AtMost(Unit::Requests, DEMANDED_REQUESTS));
    let mut repetitions = plan.repetitions(REPETITIONS, BUDGET_SECONDS);
    while repetitions.another().is_some() {
        let theirs = followed(lab, &LINUX, || lab.linux(&shape, LINUX_WORDS, &script()));
        let theirs = match theirs {
            Err(Error::Failed(why)) if lab.kernel().virtio_mem.is_none() => {
                let why = why.lines().next().unwrap_or_default();
                return Err(failed(format!("no virtio-mem driver is at hand ({why})")));
            }
            theirs => theirs?,
        };
        let shell = format!("echo {READY}; sleep {OURS_SECONDS}");
        let ours = followed(lab, &OURS, || lab.ours(&shape, "", Words::Commands(&shell)))?;
        plan.tell(&format!(
            "virtio-mem, {}: Linux {}, ours {}",
            repetitions.shown(),
            theirs.shown(),
            ours.shown()
        ));
        come.add([theirs.come_ms], [ours.come_ms]);
        go.add([theirs.go_ms], [ours.go_ms]);
        requests.add([theirs.requests as f64], [ours.requests as f64]);
    }
    let common = common(lab, &shape);
    Ok([come, go, requests].map(|row| row.value(&common)).into())
}

/// The script for Linux's program.
fn script() -> String {
    let (kib, seconds) = (MORE_BYTES >> 10, PATIENCE.as_secs());
    format!(
        "load {VIRTIO_MEM_MODULE}\nexists {DRIVER}\n{READY}\nfollow {MEMINFO} {kib} {seconds}\n"
    )
}

/// How a machine says that memory was added, and removed.
struct Signs {
    came: &'static str,
    went: &'static str,
}

const LINUX: Signs = Signs { came: "@grown ", went: "@shrunk " };
const OURS: Signs =
    Signs { came: "virtio-mem: 2048 MiB plugged, ", went: "virtio-mem: 0 MiB plugged, " };

/// What the host measured.
struct Seen {
    come_ms: f64,
    go_ms: f64,
    requests: u64,
}

impl Seen {
    fn shown(&self) -> String {
        format!("{:.1} and {:.1} ms, {} requests", self.come_ms, self.go_ms, self.requests)
    }
}

/// Runs a machine, sends it two requests, and times how long it takes to fulfil each.
fn followed(
    lab: &Lab,
    signs: &Signs,
    run: impl FnOnce() -> Result<Heard, Error>,
) -> Result<Seen, Error> {
    let (ears, heard) = channel();
    thread::scope(|scope| {
        let host = scope.spawn(move || wish(&heard, signs));
        let ran = lab.heard_by(ears, run);
        let seen = host.join().unwrap_or_else(|_| Err("the host's part failed".into()));
        let said = ran?;
        linux::failures(&said).first().map_or(Ok(()), |failure| Err(failed(failure)))?;
        let (come_ms, go_ms) = seen.map_err(|why| failed(&why))?;
        Ok(Seen { come_ms, go_ms, requests: lab.requests() })
    })
}

/// The host's part: the milliseconds for adding memory, and for removing it.
fn wish(heard: &Receiver<String>, signs: &Signs) -> Result<(f64, f64), String> {
    until(heard, &|line| line.ends_with(READY))?;
    let mut monitor = Monitor::connect(std::process::id()).map_err(because)?;
    let mut have = |bytes: u64, sign: &str| -> Result<f64, String> {
        let began = Instant::now();
        monitor.set(VIRTIO_MEM_PATH, "requested-size", &json!(bytes)).map_err(because)?;
        until(heard, &|line| line.contains(sign))?;
        // Linux takes memory offline before it gives it back.
        while monitor.get(VIRTIO_MEM_PATH, "size").map_err(because)? != json!(bytes) {
            if began.elapsed() > PATIENCE {
                return Err(format!("the device never had {} MiB", bytes >> 20));
            }
        }
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    let come_ms = have(MORE_BYTES, signs.came)?;
    thread::sleep(PAUSE);
    Ok((come_ms, have(0, signs.went)?))
}

fn because(error: MonitorError) -> String {
    match error {
        MonitorError::Refused(why) => format!("QEMU refuses: {why}"),
        MonitorError::Gone => "the machine has ended".into(),
        MonitorError::Silent => "QEMU does not answer".into(),
        MonitorError::Failed(error) => format!("cannot query QEMU: {error}"),
    }
}

/// Receives lines until `is_it` accepts one.
fn until(heard: &Receiver<String>, is_it: &dyn Fn(&str) -> bool) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match heard.recv_timeout(left) {
            Ok(line) if is_it(&line) => return Ok(()),
            Ok(_) => {}
            Err(_) => {
                return Err("a machine did not report that it has what the host requested".into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_heard_in_their_order() {
        let (ears, heard) = channel();
        for line in ["[ 1.0] noise", "@mark ready", "@grown /proc/meminfo MemTotal: 5"] {
            ears.send(line.to_owned()).expect("somebody hears");
        }
        drop(ears);
        assert_eq!(until(&heard, &|line| line.ends_with(READY)), Ok(()));
        assert_eq!(until(&heard, &|line| line.contains(LINUX.came)), Ok(()));
        assert!(until(&heard, &|line| line.contains(LINUX.went)).is_err());
    }

    #[test]
    fn a_machine_without_a_monitor_is_an_error() {
        let (ears, heard) = channel();
        ears.send("mark ready".to_owned()).expect("somebody hears");
        assert!(wish(&heard, &OURS).is_err());
    }
}
