//! Another process that keeps one CPU busy: [`Spinner`].

use crate::bench::common::failed;
use crate::bench::host;
use framewright_cli::error::Error;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Spins on one CPU until it is dropped, at the priority of this process. It ends by itself when
/// this process is gone.
pub struct Spinner(Child);

impl Spinner {
    /// Starts it.
    ///
    /// # Errors
    /// There is no shell, or it cannot be kept on the CPU.
    pub fn on(cpu: usize) -> Result<Self, Error> {
        // A child stays where the thread is that starts it.
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
        // It has begun by then.
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
