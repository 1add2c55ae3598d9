//! The shell on a machine in this process.
//!
//! Orders of memory: Relaxed: the set of stopped CPUs is a hint; commands are correct on any CPU.

use crate::args::Target;
use crate::attach::with_watchers;
use crate::error::{self, Error};
use crate::grid::{counted, size};
use crate::hosted::{Lines, Quiet, Session, available_bytes, with_background, with_reports};
use crate::interrupt;
use crate::output::{Errors, Output};
use crate::snapshot;
use crate::target::{self, Deadline};
use crate::terminal::Terminal;
use framewright::procfs::{FileSystem, Source};
use framewright::units::{PAGE_SIZE, PhysRange};
use framewright::{Manager, Parameters, Platform, Reclaim};
use framewright_hosted::{HostedHelpers, HostedPlatform};
use framewright_shell::{Editor, Event, Host, Run, Shell, SpareMemory};
use framewright_workload::Relay;
use std::fmt::Write;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How many groups of runs the shell can hold.
const ROOM: usize = 1 << 16;
/// How many threads work at once, however many CPUs the machine has.
const MOST_THREADS: u32 = 64;
/// How often a command checks whether it has to end.
const GLANCE: Duration = Duration::from_millis(10);

/// A host whose CPUs are threads.
struct Threads<'a> {
    platform: &'static HostedPlatform,
    /// The log lines of bring-up.
    log: &'a [String],
    /// Whether the user may interrupt a command and go on with another.
    is_interactive: bool,
    /// A bit for each CPU that is stopped.
    stopped: AtomicU64,
    /// Lock held by work in the background.
    quiet: &'a Quiet,
    /// The relay of this shell's manager.
    relay: &'static Relay,
    reclaim_relay: &'static Relay<dyn Reclaim>,
}

impl Threads<'_> {
    /// The CPUs from number `first` on that take part, which are those that are not stopped.
    fn taking_part(&self, first: u32) -> impl Iterator<Item = u32> {
        let stopped = self.stopped.load(Ordering::Relaxed);
        let count = self.platform.cpus().min(MOST_THREADS);
        (first..count).filter(move |cpu| stopped >> cpu & 1 == 0)
    }
}

// SAFETY: the machine's memory is the platform's mapping, which only the machine's manager knows
// (invariant 1).
unsafe impl SpareMemory for Threads<'_> {
    fn has(&self, range: PhysRange) -> bool {
        self.platform.is_memory(range)
    }
}

impl Host for Threads<'_> {
    fn pause(&self, nanoseconds: u64) {
        std::thread::sleep(Duration::from_nanos(nanoseconds).min(GLANCE));
    }

    fn is_interrupted(&self) -> bool {
        // A command on all CPUs leaves none to the threads that work in the background.
        self.platform.lend_cpu();
        interrupt::has_come()
    }

    /// What the host has available, less an eighth, and what this process has taken already, less
    /// what is in use. The limits of control groups are not known here: what they count goes away
    /// in part when memory is short.
    fn backing(&self, used_bytes: u64) -> Option<u64> {
        let available = available_bytes()?;
        let counts = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let resident = counts.split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
        let taken = resident.unwrap_or(0) * PAGE_SIZE;
        Some(available - available / 8 + taken.saturating_sub(used_bytes))
    }

    fn log(&self, out: &mut dyn Write) -> Result<bool, std::fmt::Error> {
        self.log.iter().try_for_each(|line| writeln!(out, "{line}")).map(|()| true)
    }

    fn begin_command(&self) {
        if self.is_interactive {
            interrupt::forget_keyboard();
        }
    }

    fn undisturbed(&self, work: &mut dyn FnMut()) {
        let _quiet = self.quiet.hold();
        work();
    }

    fn relay(&self) -> Option<&'static Relay> {
        Some(self.relay)
    }

    fn reclaim_relay(&self) -> Option<&'static Relay<dyn Reclaim>> {
        Some(self.reclaim_relay)
    }

    fn spare_memory(&self) -> Option<&dyn SpareMemory> {
        Some(self)
    }

    /// Marks the CPU as stopped. A thread finishes what it has begun, bypassing the CPU's cache.
    fn stop_cpu(&self, cpu: u32) -> bool {
        let bit = 1_u64.checked_shl(cpu).unwrap_or(0);
        self.stopped.fetch_or(bit, Ordering::Relaxed);
        true
    }

    fn start_cpu(&self, cpu: u32) -> bool {
        let bit = 1_u64.checked_shl(cpu).unwrap_or(0);
        self.stopped.fetch_and(!bit, Ordering::Relaxed);
        true
    }

    fn beside(&self, others: &(dyn Fn(u32) + Sync), own: &mut dyn FnMut()) {
        std::thread::scope(|scope| {
            for cpu in self.taking_part(1) {
                scope.spawn(move || {
                    let _cpu = self.platform.enter_cpu(cpu);
                    others(cpu);
                });
            }
            own();
        });
    }

    fn on_each_cpu(&self, work: &(dyn Fn(u32) + Sync)) {
        std::thread::scope(|scope| {
            for cpu in self.taking_part(0) {
                scope.spawn(move || {
                    // If another thread is this CPU, this one borrows CPU numbers as it needs them.
                    let _cpu = self.platform.enter_cpu(cpu);
                    work(cpu);
                });
            }
        });
    }
}

/// Runs commands and returns the status of the last one. If the caller wants a snapshot, `memory`
/// receives it before the memory that the commands allocated is freed.
///
/// # Errors
/// Fails if a signal comes or the machine does not allow reports.
pub fn execute(
    (manager, log): (&Manager<HostedPlatform>, &[String]),
    target: &Target,
    commands: &str,
    memory: Option<&mut String>,
    out: &mut dyn Write,
    errors: &mut dyn Write,
) -> Result<u8, Error> {
    interrupt::watch();
    let (status, read) = with_shell((manager, log), target, false, |shell| {
        let status = shell.run(commands, out, errors);
        let read = memory
            .map_or(Ok(()), |text| FileSystem::new(&[&manager.files()]).read(snapshot::FILE, text));
        shell.free_all();
        (status, read)
    })?;
    interrupt::check()?;
    read.map_err(|error| Error::Failed(format!("{}: {error}", snapshot::FILE)))?;
    Ok(status)
}

/// Reads commands from standard input, with line editing if it is a terminal.
///
/// # Errors
/// Fails if the machine cannot be brought up, a signal comes, or nobody takes the output.
pub fn run(target: &Target) -> Result<u8, Error> {
    let deadline = Deadline::start(target.timeout);
    let machine = target::machine(target)?;
    let command_line = target::command_line(target);
    // The log is shown only on request, but the user must see complaints about parameters.
    Parameters::parse(&command_line, &mut |problem| error::note(&problem.to_string()));
    let mut log = Lines::new();
    let session = Session::open(&machine, &command_line)?;
    let pass = session.with_accept_delay(target::accept_delay(target)).bring_up(&mut log)?;
    let log = log.into_lines();
    pass.verify()?;
    drop(deadline);
    interrupt::watch();
    let manager = pass.manager();
    let terminal = Terminal::open();
    let mut output = Output::new();
    if terminal.is_some() {
        let memory = size(manager.totals().managed_pages * PAGE_SIZE);
        let nodes = counted(manager.nodes().len() as u64, "node");
        let cpus = counted(u64::from(manager.platform().cpus()), "CPU");
        output.line(&format!(
            "Framewright: {memory}, {nodes}, {cpus}; `help` shows commands, `dmesg` the boot log"
        ))?;
    }
    with_shell((manager, &log), target, terminal.is_some(), |shell| {
        converse(shell, terminal.as_ref(), &mut output).map(|()| shell.status())
    })?
}

/// Runs `work` with a shell that others may watch, and reports free memory if `target` says so.
fn with_shell<T>(
    (manager, log): (&Manager<HostedPlatform>, &[String]),
    target: &Target,
    is_interactive: bool,
    used: impl FnOnce(&mut Shell<'_, HostedPlatform, Threads<'_>>) -> T,
) -> Result<T, Error> {
    let (stopped, quiet) = (AtomicU64::new(0), Quiet::default());
    let host = Threads {
        platform: manager.platform(),
        log,
        is_interactive,
        stopped,
        quiet: &quiet,
        // The manager may use the relays for ever.
        relay: Box::leak(Box::default()),
        reclaim_relay: Box::leak(Box::default()),
    };
    let (ours, pools) = (manager.files(), manager.hugetlb().files(HostedHelpers::shared()));
    let pools = pools.table();
    let sources: [&dyn Source; 2] = [&ours, &pools];
    let files = FileSystem::new(&sources);
    let mut room = vec![Run::NOTHING; ROOM];
    // SAFETY: nothing in this process uses the machine's memory except the commands, and there is
    // no window (invariant 42).
    let mut shell = unsafe { Shell::new(manager, files, &host, &mut room) };
    with_watchers(&|path, out| read(files, path, out), || {
        let advice = target.reporting.map(Into::into);
        Ok(with_reports(manager, advice, &error::note, &quiet, || {
            with_background(manager, &quiet, || used(&mut shell))
        })?)
    })
}

/// Reads a file for a watching process.
fn read(files: FileSystem<'_>, path: &str, out: &mut dyn Write) -> Result<(), String> {
    files.read(path, out).map_err(|error| error.to_string())
}

/// Runs line after line, until there are no more.
fn converse(
    shell: &mut Shell<'_, HostedPlatform, Threads<'_>>,
    terminal: Option<&Terminal>,
    output: &mut Output,
) -> Result<(), Error> {
    let mut editor = if terminal.is_some() { Editor::terminal() } else { Editor::plain() };
    let unreadable =
        |error: &std::io::Error| Error::Failed(format!("standard input cannot be read: {error}"));
    let stdin =
        std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| unreadable(&error))?;
    let mut stdin = BufReader::new(File::from(stdin));
    let mut byte = [0];
    let prompt = |editor: &Editor, output: &mut Output| {
        if let Some(terminal) = terminal {
            terminal.take_keys();
            editor.prompt(output);
        }
        output.settle()
    };
    prompt(&editor, output)?;
    loop {
        if stdin.buffer().is_empty() {
            interrupt::wait_for(stdin.get_ref())?;
        }
        let event = match stdin.read(&mut byte) {
            Ok(0) => editor.finish(),
            Ok(_) => editor.take(byte[0], output),
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                interrupt::check()?;
                continue;
            }
            Err(error) => return Err(unreadable(&error)),
        };
        match event {
            Event::More => {
                if terminal.is_some() {
                    output.settle()?;
                }
                continue;
            }
            Event::Line => {
                if let Some(terminal) = terminal {
                    terminal.be_as_usual();
                }
                shell.run(editor.line(), output, &mut Errors);
            }
            Event::TooLong => shell.refuse_long_line(&mut Errors),
            Event::NotText => {
                shell.refuse("a line must be UTF-8 text; this one was not run", &mut Errors)
            }
            Event::Interrupted => {}
            Event::End => break,
        }
        output.settle()?;
        if terminal.is_some() {
            interrupt::forget_keyboard();
        }
        interrupt::check()?;
        if shell.is_over() {
            break;
        }
        prompt(&editor, output)?;
    }
    output.settle()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosted::Silent;
    use framewright_hosted::Machine;
    use std::sync::atomic::AtomicBool;

    /// Fails by waiting for ever, as background work would.
    #[test]
    fn other_threads_have_their_turn_while_a_command_runs_on_all_cpus() {
        let machine = Machine::synthetic(64 << 20, 1, 2).expect("a machine");
        let session = Session::open(&machine, "").expect("memory");
        let pass = session.bring_up(&mut Silent).expect("bring-up");
        let host = Threads {
            platform: pass.manager().platform(),
            log: &[],
            is_interactive: false,
            stopped: AtomicU64::new(0),
            quiet: &Quiet::default(),
            relay: Box::leak(Box::default()),
            reclaim_relay: Box::leak(Box::default()),
        };
        let (all, is_done) = (std::sync::Barrier::new(3), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                all.wait();
                drop(pass.manager().frames(&framewright::Request::pages(1)).expect("memory"));
                is_done.store(true, Ordering::Relaxed);
            });
            host.on_each_cpu(&|_| {
                all.wait();
                while !is_done.load(Ordering::Relaxed) {
                    assert!(!host.is_interrupted());
                }
            });
        });
    }
}
