//! QEMU's monitor: questions and answers of one line of JSON each (QMP).

use super::peer::{Peer, Silence};
use super::place;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::time::Duration;

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most lines of events and old answers to skip before the wanted answer.
const MOST_LINES: usize = 10_000;

/// A connection to the monitor of a machine, which accepts one at a time.
pub struct Monitor {
    peer: BufReader<Peer<'static>>,
}

/// Why a question has no answer.
#[derive(Debug)]
pub enum MonitorError {
    /// QEMU refused, and says why.
    Refused(String),
    /// QEMU is gone.
    Gone,
    /// QEMU does not answer; another client may be connected.
    Silent,
    /// An error of the system.
    Failed(io::Error),
}

impl From<io::Error> for MonitorError {
    fn from(error: io::Error) -> Self {
        match Silence::of(&error) {
            Some(Silence::Gone) => Self::Gone,
            Some(Silence::Late) => Self::Silent,
            None => Self::Failed(error),
        }
    }
}

impl Monitor {
    /// Connects to the monitor of the machine of process `pid`.
    ///
    /// # Errors
    /// Fails if there is no monitor or it does not answer.
    pub fn connect(pid: u32) -> Result<Self, MonitorError> {
        let peer = Peer::new(place::connect_monitor(pid)?, None, PATIENCE)?;
        let mut monitor = Self { peer: BufReader::new(peer) };
        // The greeting is skipped, as it is no answer to this command.
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// The value of a property of an object.
    ///
    /// # Errors
    /// See [`MonitorError`].
    pub fn get(&mut self, path: &str, property: &str) -> Result<Value, MonitorError> {
        self.ask("qom-get", &json!({ "path": path, "property": property }))
    }

    /// Sets a property of an object.
    ///
    /// # Errors
    /// See [`MonitorError`].
    pub fn set(&mut self, path: &str, property: &str, value: &Value) -> Result<(), MonitorError> {
        let arguments = json!({ "path": path, "property": property, "value": value });
        self.ask("qom-set", &arguments).map(|_| ())
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, MonitorError> {
        self.peer.get_mut().have_patience(PATIENCE);
        let question = json!({ "execute": command, "arguments": arguments });
        self.peer.get_mut().write_all(format!("{question}\n").as_bytes())?;
        for _ in 0..MOST_LINES {
            let mut line = String::new();
            if self.peer.read_line(&mut line)? == 0 {
                return Err(MonitorError::Gone);
            }
            if let Some(answer) = answer(&line) {
                return answer.map_err(MonitorError::Refused);
            }
        }
        Err(MonitorError::Silent)
    }
}

/// The content of a line if it is an answer, not an event or a greeting.
fn answer(line: &str) -> Option<Result<Value, String>> {
    let mut line: Value = serde_json::from_str(line).ok()?;
    if let Some(error) = line.get("error") {
        let why = error["desc"].as_str().unwrap_or("no reason given");
        return Some(Err(why.to_owned()));
    }
    line.get_mut("return").map(|value| Ok(value.take()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_everything_else() {
        assert_eq!(answer("{\"return\": 7}\r\n"), Some(Ok(json!(7))));
        assert_eq!(answer("{\"return\": {}}"), Some(Ok(json!({}))));
        let error = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"too large\"}}";
        assert_eq!(answer(error), Some(Err("too large".to_owned())));
        assert_eq!(answer("{\"error\": {}}"), Some(Err("no reason given".to_owned())));
        for other in ["{\"QMP\": {}}", "{\"event\": \"STOP\"}", "noise", ""] {
            assert_eq!(answer(other), None);
        }
    }
}
