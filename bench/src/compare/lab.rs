//! The machines on which both run: one QEMU configuration, two kernels.

use super::cpio::Archive;
use super::kernel::Kernel;
use framewright_cli::args::{Accel, Addition, Model};
use framewright_cli::attach::MonitorPlace;
use framewright_cli::error::{self, Error};
use framewright_cli::qemu::attempts::explained;
use framewright_cli::qemu::command::{Accelerator, Machine};
use framewright_cli::qemu::protocol::Transcript;
use framewright_cli::qemu::run::{self, End, Ended, Limits, Watch};
use framewright_cli::qemu::{guest_image, guest_image::Package};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::fs::{self, DirBuilder};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ChildStdin;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Parameters for both: memory is not cleared on allocation or free.
pub const SAME_FOR_BOTH: &str = "init_on_alloc=0 init_on_free=0";
/// Further parameters for Linux. (Without `no_timer_check` it gives up if a busy host keeps the
/// emulator from a timer interrupt for too long.)
pub const LINUX_WORDS: &str =
    "mitigations=off console=ttyS0 no_timer_check oops=panic panic=-1 rdinit=/init";
/// Linux's drivers in the initial RAM disk.
pub const BALLOON_MODULE: &str = "/virtio_balloon.ko";
pub const VIRTIO_MEM_MODULE: &str = "/virtio_mem.ko";
/// QEMU's trace events for requests about additional memory.
const TRACED: [&str; 2] = ["virtio_mem_plug_request", "virtio_mem_unplug_request"];

/// How long one run may take.
const LONGEST_RUN: Duration = Duration::from_secs(180);
/// The emulated CPU for both. In QEMU 7.2, Linux 6.12 dies now and then at a random place, after a
/// `cmpxchg16b` that left a part of a pointer in the flags; without the instruction it uses another
/// way (performance.md has the numbers).
pub const EMULATED_CPU: &str = "max,-cx16";
/// How often Linux may die for no reason of its own before it counts as a failure.
const DEATHS: usize = 2;
/// Under KVM, a machine that is silent for this long does not run at all.
const KVM_SILENCE: Duration = Duration::from_secs(10);
/// How many names are tried for a folder.
const MOST_NAMES: u32 = 100;
/// The guest's exit status if all went well.
const GUEST_DONE: i32 = 33;
/// The first line that the program in Linux prints, and its last.
pub const FIRST: &str = "@init";
const LAST: &str = "@over";

/// A machine's shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub memory_bytes: u64,
    pub nodes: u32,
    pub cpus: u32,
    /// Whether the machine has a balloon that takes reports.
    pub balloon: bool,
    /// Whether QEMU allocates all memory before the machine starts, rather than on first touch.
    pub preallocated: bool,
    /// The memory that may be added; if it is not zero, there is a monitor.
    pub more_bytes: u64,
}

/// Everything that runs need.
pub struct Lab {
    kernel: Kernel,
    guest: PathBuf,
    init: Vec<u8>,
    accelerator: Accelerator,
    qemu: String,
    folder: Folder,
    deaths: Cell<usize>,
    /// Receives lines as they arrive.
    ears: RefCell<Option<Sender<String>>>,
}

/// What the guest's shell is used for.
#[derive(Clone, Copy)]
pub enum Words<'a> {
    /// To wait for its prompt, and exit.
    Prompt,
    /// To run these commands.
    Commands(&'a str),
}

/// What a machine said, and when.
pub struct Heard {
    spawned: Instant,
    first_line: Option<Duration>,
    /// When the shell's prompt, or the first line of Linux's program, arrived.
    prompt: Option<Instant>,
    /// The lines of log and shell, in order of arrival.
    pub lines: Vec<(Instant, String)>,
    /// The guest's report.
    pub report: Value,
}

impl Heard {
    /// A machine that said exactly these lines.
    #[cfg(test)]
    pub fn of(lines: &[&str]) -> Self {
        let now = Instant::now();
        let lines = lines.iter().map(|line| (now, (*line).to_owned())).collect();
        Self { spawned: now, first_line: None, prompt: None, lines, report: Value::Null }
    }

    /// The milliseconds from the start of QEMU to the first line.
    pub fn first_line_ms(&self) -> Option<f64> {
        self.first_line.map(|time| time.as_secs_f64() * 1e3)
    }

    /// The milliseconds from the start of QEMU to the shell, or to Linux's first program.
    pub fn prompt_ms(&self) -> Option<f64> {
        Some(self.prompt?.saturating_duration_since(self.spawned).as_secs_f64() * 1e3)
    }

    /// All lines.
    pub fn text(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(|line| line.1.as_str())
    }

    /// When a line arrived.
    pub fn time_of(&self, line: &str) -> Option<Instant> {
        self.lines.iter().find(|(_, said)| said == line).map(|(time, _)| *time)
    }
}

impl Lab {
    /// Finds QEMU and both kernels, and tests whether KVM works.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn new(kernel: Kernel, accel: Accel) -> Result<Self, Error> {
        let qemu = run::version(run::LONGEST_ANSWER)?;
        let guest = guest_image::provide(&Package::GUEST)?;
        let program = guest_image::provide(&Package::LINUX_INIT)?;
        let init = fs::read(&program)
            .map_err(|error| Error::Failed(format!("{}: {error}", program.display())))?;
        let mut lab = Self {
            kernel,
            guest,
            init,
            accelerator: Accelerator::Tcg,
            qemu,
            folder: Folder::new()?,
            deaths: Cell::new(0),
            ears: RefCell::new(None),
        };
        if accel != Accel::Tcg {
            lab.accelerator = Accelerator::Kvm;
            let shape = Shape {
                memory_bytes: 256 << 20,
                nodes: 1,
                cpus: 1,
                balloon: false,
                preallocated: true,
                more_bytes: 0,
            };
            let device = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").map(|_| ());
            let works =
                device.map_err(|why| why.to_string()).and_then(|()| lab.runs_at_all(&shape));
            if let Err(why) = works {
                lab.accelerator = Accelerator::Tcg;
                error::note(&format!("no KVM ({why}): both are emulated (tcg)"));
            }
        }
        Ok(lab)
    }

    fn runs_at_all(&self, shape: &Shape) -> Result<(), String> {
        match self.ours(shape, "", Words::Commands("echo")) {
            Ok(_) => Ok(()),
            Err(Error::Failed(why)) => Err(why.lines().take(2).collect::<Vec<_>>().join(" ")),
            Err(_) => Err("no run".into()),
        }
    }

    /// How QEMU runs both.
    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// QEMU's version.
    pub fn qemu(&self) -> &str {
        &self.qemu
    }

    /// The Linux kernel for the comparison.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Boots Linux, lets its only program run a script, and powers off. `words` are further boot
    /// parameters.
    ///
    /// # Errors
    /// Fails if QEMU did not run, or the script did not run to its end.
    pub fn linux(&self, shape: &Shape, words: &str, script: &str) -> Result<Heard, Error> {
        let disk = self.folder.0.join("initrd");
        fs::write(&disk, self.initial_disk(script))
            .map_err(|error| Error::Failed(format!("{}: {error}", disk.display())))?;
        let mut more = vec!["-initrd".to_owned(), disk.display().to_string()];
        more.extend(memory(shape));
        let line = format!("{SAME_FOR_BOTH} {LINUX_WORDS} {words}");
        for deaths in 1.. {
            let (heard, ended) =
                self.run(shape, &self.kernel.path, line.trim_end(), &more, self.listener(None))?;
            let done = matches!(ended.how, End::Exit(status) if status.success());
            if done && heard.text().any(|line| line == LAST) {
                return Ok(heard);
            }
            let failed = failed("Linux did not reach the end of its script", &ended);
            if deaths > DEATHS || !is_dead(&heard) {
                return Err(failed);
            }
            self.deaths.set(self.deaths.get() + 1);
            error::note("Linux died; trying again");
        }
        unreachable!("one of the runs is the last")
    }

    /// How often Linux died and was started again.
    pub fn deaths(&self) -> usize {
        self.deaths.get()
    }

    /// Boots the guest. `words` are further boot parameters.
    ///
    /// # Errors
    /// Fails if QEMU did not run, or the guest did not run to its end.
    pub fn ours(&self, shape: &Shape, words: &str, shell: Words<'_>) -> Result<Heard, Error> {
        let (mode, input) = match shell {
            Words::Prompt => ("shell".to_owned(), Some(None)),
            Words::Commands(commands) => (
                format!("report=json exec={}", framewright_cli::qemu::encoding::encode(commands)),
                None,
            ),
        };
        let line = format!("{SAME_FOR_BOTH} {words} {mode}").replace("  ", " ");
        let (heard, ended) =
            self.run(shape, &self.guest, &line, &memory(shape), self.listener(input))?;
        let done = matches!(ended.how, End::Exit(status) if status.code() == Some(GUEST_DONE));
        if done { Ok(heard) } else { Err(failed("the guest did not finish", &ended)) }
    }

    fn run(
        &self,
        shape: &Shape,
        image: &std::path::Path,
        line: &str,
        more: &[String],
        mut listener: Listener,
    ) -> Result<(Heard, Ended), Error> {
        let mut machine = Machine::new(Model::Q35, shape.memory_bytes, shape.nodes, shape.cpus)?;
        if shape.balloon {
            machine.add_balloon("");
        }
        let mut more = more.to_vec();
        let mut monitor = None;
        if shape.more_bytes != 0 {
            let place = MonitorPlace::new()
                .map_err(|error| Error::Failed(format!("no socket for QEMU's monitor: {error}")))?;
            let addition = Addition { bytes: shape.more_bytes, properties: String::new() };
            machine.add_virtio_mem(&addition, Some(&place.path));
            monitor = Some(place);
            let traced = TRACED.iter().flat_map(|event| ["-trace", event]).map(str::to_owned);
            more.extend(traced);
            more.extend(["-D".to_owned(), self.trace().display().to_string()]);
        }
        if self.accelerator == Accelerator::Tcg {
            more.extend(["-cpu".to_owned(), EMULATED_CPU.to_owned()]);
        }
        let arguments = machine.arguments(self.accelerator, image, line, &more);
        let silence = (self.accelerator == Accelerator::Kvm).then_some(KVM_SILENCE);
        let limits = Limits { whole: LONGEST_RUN, first_line: silence, endless_shell: false };
        let spawned = Instant::now();
        let mut ended = run::run(&arguments, limits, &mut listener)?;
        let report = ended.transcript.report.take().and_then(Result::ok).unwrap_or_default();
        drop(monitor);
        listener.end();
        let Listener { lines, prompt, .. } = listener;
        Ok((Heard { spawned, first_line: ended.first_line, prompt, lines, report }, ended))
    }

    fn listener(&self, input: Option<Option<ChildStdin>>) -> Listener {
        Listener::new(input, self.ears.borrow().clone())
    }

    fn trace(&self) -> PathBuf {
        self.folder.0.join("trace")
    }

    /// How many requests about additional memory the last machine sent.
    pub fn requests(&self) -> u64 {
        let trace = fs::read_to_string(self.trace()).unwrap_or_default();
        let is_one = |line: &&str| TRACED.iter().any(|event| line.contains(event));
        trace.lines().filter(is_one).count() as u64
    }

    /// Sends the lines of machines to `ears` as they arrive, while `run` runs.
    pub fn heard_by<T>(&self, ears: Sender<String>, run: impl FnOnce() -> T) -> T {
        *self.ears.borrow_mut() = Some(ears);
        let result = run();
        *self.ears.borrow_mut() = None;
        result
    }

    fn initial_disk(&self, script: &str) -> Vec<u8> {
        let mut archive = Archive::default();
        ["dev", "proc", "sys"].iter().for_each(|folder| archive.folder(folder));
        archive.character_device("dev/console", (5, 1));
        archive.program("init", &self.init);
        archive.file("script", script.as_bytes());
        let kernel = &self.kernel;
        let modules = [(BALLOON_MODULE, &kernel.balloon), (VIRTIO_MEM_MODULE, &kernel.virtio_mem)];
        for (name, module) in modules {
            if let Some(module) = module {
                archive.file(name.trim_start_matches('/'), module);
            }
        }
        archive.finish()
    }
}

/// The QEMU arguments that preallocate memory, if the shape wants that.
fn memory(shape: &Shape) -> Vec<String> {
    if shape.preallocated { vec!["-mem-prealloc".to_owned()] } else { Vec::new() }
}

/// Whether a kernel says that something in it broke.
fn is_dead(heard: &Heard) -> bool {
    heard
        .text()
        .any(|line| ["Kernel panic - ", "Oops: ", "BUG: "].iter().any(|words| line.contains(words)))
}

fn failed(what: &str, ended: &Ended) -> Error {
    let how = match ended.how {
        End::TimeOut => format!("no end within {} s", LONGEST_RUN.as_secs()),
        End::Silence => "it printed nothing".to_owned(),
        End::KvmFailed => "KVM failed while running the machine".to_owned(),
        // The status may show that the system's OOM killer ended QEMU.
        End::Exit(status) => format!("QEMU: {status}"),
    };
    Error::Failed(explained(&format!("{what} ({how})"), ended, false))
}

/// The most lines of one machine, and the most bytes of a line, so that a machine that has gone
/// astray cannot use up our memory.
const MOST_LINES: usize = 1 << 17;
const LONGEST_LINE: usize = 1 << 20;

/// Records what arrives and when.
struct Listener {
    lines: Vec<(Instant, String)>,
    prompt: Option<Instant>,
    /// The shell's output since its last line.
    partial: Vec<u8>,
    /// If the shell has a terminal: the input to it, once it exists.
    input: Option<Option<ChildStdin>>,
    ears: Option<Sender<String>>,
}

impl Listener {
    fn new(input: Option<Option<ChildStdin>>, ears: Option<Sender<String>>) -> Self {
        Self { lines: Vec::new(), prompt: None, partial: Vec::new(), input, ears }
    }

    /// Records a line that arrives now.
    fn keep(&mut self, now: Instant, line: String) -> Result<(), Error> {
        if self.lines.len() == MOST_LINES {
            return Err(Error::Failed(format!("a machine printed more than {MOST_LINES} lines")));
        }
        if let Some(ears) = &self.ears {
            // A receiver that has heard enough may have gone.
            let _ = ears.send(line.clone());
        }
        self.lines.push((now, line));
        Ok(())
    }

    fn end(&mut self) {
        if !self.partial.is_empty() {
            let _ = self.output(b"\n");
        }
    }
}

impl Watch for Listener {
    fn line(&mut self, line: &str) -> Result<(), Error> {
        let now = Instant::now();
        if line == FIRST {
            self.prompt.get_or_insert(now);
        }
        self.keep(now, line.to_owned())
    }

    fn has_input(&self) -> bool {
        self.input.is_some()
    }

    fn shell(
        &mut self,
        _: &Transcript,
        _: Option<Duration>,
        input: Option<ChildStdin>,
    ) -> Result<(), Error> {
        if self.input.is_some() {
            self.input = Some(input);
        } else {
            self.prompt = Some(Instant::now());
        }
        Ok(())
    }

    fn output(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let now = Instant::now();
        if let Some(input) = &mut self.input {
            self.prompt.get_or_insert(now);
            if let Some(mut input) = input.take() {
                // If the guest is gone, its exit status shows it.
                let _ = input.write_all(b"exit\r");
            }
        }
        for &byte in bytes {
            if byte == b'\n' {
                let line = String::from_utf8_lossy(&self.partial).trim_end_matches('\r').to_owned();
                self.partial.clear();
                self.keep(now, line)?;
            } else if self.partial.len() < LONGEST_LINE {
                self.partial.push(byte);
            }
        }
        Ok(())
    }
}

/// A folder that only this user may enter, and that is removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Error> {
        let mut number = 0;
        loop {
            let name = format!("framewright-compare-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            number += 1;
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                // It may be another user's, who foresaw the name.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MOST_NAMES => {}
                Err(error) => {
                    return Err(Error::Failed(format!("{}: {error}", path.display())));
                }
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Leaving the folder behind would be untidy, not wrong.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn a_folder_is_new_and_nobody_else_may_enter_it() {
        let first = Folder::new().expect("a folder");
        // A link to where somebody else would like our files.
        let trap = first.0.with_file_name(format!("framewright-compare-{}-1", std::process::id()));
        symlink(&first.0, &trap).expect("a link");
        let second = Folder::new().expect("a folder");
        assert!(second.0 != first.0 && second.0 != trap && !second.0.is_symlink());
        assert_eq!(second.0.metadata().expect("it is there").mode() & 0o777, 0o700);
        fs::remove_file(trap).expect("ours");
    }
}
