//! `framewright plug`: sets how much of its additional memory a running machine has.

use crate::args::Plug;
use crate::attach::{Monitor, MonitorError, Sort, with_monitors};
use crate::error::{self, Error};
use crate::interrupt;
use crate::output::Output;
use crate::qemu::command::VIRTIO_MEM_PATH;
use serde_json::json;
use std::thread;
use std::time::{Duration, Instant};

/// How often to ask a machine how far it has got.
const GLANCE: Duration = Duration::from_millis(20);

/// Tells QEMU the wanted size, and waits until the machine has it or the time is over.
///
/// # Errors
/// Fails if there is no such machine or the choice is ambiguous, if QEMU refuses, if the machine
/// got less far, or if a signal comes.
pub fn run(plug: &Plug) -> Result<u8, Error> {
    interrupt::watch();
    let pid = MACHINES.find(plug.pid, with_monitors())?;
    let tell = |error| cannot(pid, error);
    let mut monitor = Monitor::connect(pid).map_err(tell)?;
    monitor.set(VIRTIO_MEM_PATH, "requested-size", &json!(plug.bytes)).map_err(tell)?;
    let end = Instant::now() + Duration::from_secs(plug.wait);
    let plugged = loop {
        interrupt::check()?;
        let plugged = monitor.get(VIRTIO_MEM_PATH, "size").map_err(tell)?;
        let plugged = plugged.as_u64().unwrap_or(0);
        if plugged == plug.bytes || Instant::now() >= end {
            break plugged;
        }
        thread::sleep(GLANCE);
    };
    let mut output = Output::new();
    output.line(&format!("{} MiB requested, {} MiB plugged", plug.bytes >> 20, plugged >> 20))?;
    if plugged != plug.bytes {
        error::note("the machine keeps trying to reach that size");
        return Ok(1);
    }
    Ok(0)
}

/// Messages about the choice of a machine.
const MACHINES: Sort = Sort {
    none: "none of your running machines can be given memory; `framewright shell --on qemu \
           --virtio-mem SIZE` starts one",
    other: "is not a machine of yours that can be given memory",
    several: "several machines are running; choose one by its process ID",
};

fn cannot(pid: u32, error: MonitorError) -> Error {
    Error::Failed(match error {
        MonitorError::Refused(why) => format!("QEMU refuses: {why}"),
        MonitorError::Gone => format!("the machine of process {pid} has ended"),
        MonitorError::Silent => {
            format!(
                "QEMU of process {pid} does not answer; another `framewright plug` may be using it"
            )
        }
        MonitorError::Failed(error) => format!("cannot query QEMU: {error}"),
    })
}
