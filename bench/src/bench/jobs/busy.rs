//! Another process that keeps one CPU busy: [`Spinner`].

use crate::bench::common::failed;
use crate::bench::host;
use framewright_cli::error::Error;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Spins on one CPU until it is dropped, at the priority of this process. It ends by itself once
/// this process is gone.
pub struct Spinner(Child);

impl Spinner {
    /// Starts spinning on a CPU.
    ///
    /// # Errors
    /// Fails if there is no shell, or it cannot be pinned to the CPU.
    pub fn on(cpu: usize) -> Result<Self, Error> {
        // A child process inherits the affinity of the thread that starts it.
        let start = move || {
            host::stay_on(cpu)?;
            let mut shell = Command::new("sh");
            shell.args(["-c", "while kill -0 $PPID; do :; done"]);
            shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            shell
                .spawn()
                .map_err(|error| failed(format!("a shell that spins cannot be started: {error}")))
        };
        let child =
            thread::scope(|scope| scope.spawn(start).join().expect("the thread did not panic"))?;
        // Wait until the shell has begun.
        thread::sleep(Duration::from_millis(50));
        Ok(Self(child))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
