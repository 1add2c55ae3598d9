//! Makes reports under limits on CPU time and memory.

use super::{Outcome, Scratch, finish, program};
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;

/// The CPU seconds and bytes of memory that a report may take. The limit is on CPU time, not
/// elapsed time, because a slow machine takes longer but does no more work.
const CPU_SECONDS: u64 = 60;
const MEMORY_BYTES: u64 = 2 << 30;

/// Makes a report of one file; the system kills a program that exceeds the limits.
pub fn report(folder: &Scratch, value: &Value) -> Outcome {
    let (file, page) = (folder.path("in.json"), folder.path("out.html"));
    fs::write(&file, value.to_string()).expect("a file");
    let mut command = program();
    command.args(["report", &file.display().to_string(), "-o", &page.display().to_string()]);
    let limit = |which, most| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: setrlimit reads the structure and touches nothing else.
        if unsafe { libc::setrlimit(which, &limit) } == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            limit(libc::RLIMIT_CPU, CPU_SECONDS).and_then(|()| limit(libc::RLIMIT_AS, MEMORY_BYTES))
        })
    };
    finish(&mut command)
}
