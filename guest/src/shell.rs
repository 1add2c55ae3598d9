//! Runs shell commands from the command line (`exec=`) or from the serial line (`shell`).
//!
//! The shell's output lies between a line `@shell` and a line `@status N`, so that programs find
//! it. An output line that begins with `@` gets a second `@` in front, so that nothing else looks
//! like those lines. Lines `@memory ...` before the last line are a snapshot of what memory is used
//! for (`snapshot=1`).

use crate::balloon::Driver;
use crate::console::{Console, plain_line, show_log};
use crate::files;
use crate::mapping::GuestMapping;
use crate::options::{CAPACITY, Input, Options};
use crate::platform::{GuestPlatform, PLATFORM};
use crate::smp;
use crate::storage::Once;
use crate::typed::{AHEAD, Typed};
use crate::virtio_mem;
use crate::watch::Watch;
use crate::window::GuestWindow;
use core::cell::Cell;
use core::fmt::{self, Write};
use framewright::manager::{Acceptor, Compactor};
use framewright::platform::Platform;
use framewright::procfs::{FileSystem, Source};
use framewright::{Manager, Reclaim, SpinLock};
use framewright_shell::{Editor, Event, Host, MovableMemory, Run, Shell};
use framewright_workload::{Relay, Window};

/// How many groups of runs the shell can hold.
const ROOM: usize = 2048;
/// The byte that ends a program's input.
const END: u8 = 4;
/// `ESCAPE` precedes a byte that is part of a program's input but would be a key on the line. That
/// byte follows with the bits of `ESCAPED` flipped.
const ESCAPE: u8 = 16;
const ESCAPED: u8 = 64;
/// Sent when typed input was lost.
const BELL: char = '\x07';
/// The file that shows what every part of memory is used for.
const MEMORY: &str = "/sys/kernel/debug/framewright/memory";

static HELD: Once<[Run; ROOM]> = Once::new([Run::NOTHING; ROOM]);
/// Passes calls on to the mover of the memory that `movable` maps.
static RELAY: Relay = Relay::new();
/// Passes calls on to the reclaim hook of the memory that `cache` keeps.
static RECLAIM_RELAY: Relay<dyn Reclaim> = Relay::new();
static COMMANDS: Once<[u8; CAPACITY]> = Once::new([0; CAPACITY]);

/// Runs the shell that the options ask for, if any. `driver` and `memory` are polled meanwhile,
/// also while commands run.
pub fn run(
    options: &Options<'_>,
    manager: &Manager<GuestPlatform>,
    driver: Option<&mut Driver<'_>>,
    memory: Option<&mut virtio_mem::Driver<'_>>,
) {
    if options.exec.is_none() && options.shell.is_none() {
        return;
    }
    let (of_manager, of_machine) = (manager.files(), files::table());
    let pools = manager.hugetlb().files(&smp::GuestHelpers);
    let of_pools = pools.table();
    let sources: [&dyn Source; 3] = [&of_manager, &of_pools, &of_machine];
    let files = FileSystem::new(&sources);
    let host = Line {
        typed: SpinLock::new(Typed::NOTHING),
        can_wait: options.shell == Some(Input::Plain),
        background: SpinLock::new(Some(Background {
            driver,
            memory,
            acceptor: manager.acceptance().acceptor(),
            accept_ns: 0,
            compactor: manager.moving().compactor(),
            compact_ns: 0,
            manager,
            watch: Watch::begin(),
            files,
        })),
        window: GuestWindow::new(manager),
        mapping: GuestMapping::new(manager),
    };
    // SAFETY: whoever types at the machine's own line owns the machine, and the window was just
    // made for this shell (invariants 40 and 42).
    let mut shell = unsafe { Shell::new(manager, files, &host, HELD.take()) };
    plain_line(format_args!("@shell"));
    let at_start = Cell::new(true);
    let (mut out, mut errors) = (Words(&at_start), Words(&at_start));
    if let Some(commands) = options.exec {
        let commands = decode(commands, COMMANDS.take());
        shell.run(commands, &mut out, &mut errors);
    } else if let Some(input) = options.shell {
        converse(&mut shell, input, &host, &mut out, &mut errors);
    }
    if !at_start.get() {
        plain_line(format_args!(""));
    }
    if options.snapshot {
        snapshot(manager);
    }
    let status = shell.status();
    shell.free_all();
    plain_line(format_args!("@status {status}"));
}

/// Writes what memory is used for, while the shell still holds what its commands allocated.
fn snapshot(manager: &Manager<GuestPlatform>) {
    let of_manager = manager.files();
    let at_start = Cell::new(true);
    // The reader of the output notices if the last line is missing.
    let _ = FileSystem::new(&[&of_manager]).read(MEMORY, &mut Prefixed(&at_start));
}

/// Reads and runs lines until `exit` or the end of input.
fn converse(
    shell: &mut Shell<'_, GuestPlatform, Line<'_, '_, '_, '_>>,
    input: Input,
    host: &Line<'_, '_, '_, '_>,
    out: &mut Words<'_>,
    errors: &mut Words<'_>,
) {
    let mut editor = match input {
        Input::Terminal => Editor::terminal(),
        Input::Plain => Editor::plain(),
    };
    editor.prompt(out);
    while !shell.is_over() {
        let mut byte = host.next();
        let is_end = input == Input::Plain && byte == END;
        if input == Input::Plain && byte == ESCAPE {
            byte = host.next() ^ ESCAPED;
        }
        let event = if is_end { editor.finish() } else { editor.take(byte, out) };
        match event {
            Event::More => continue,
            Event::Line => {
                shell.run(editor.line(), out, errors);
            }
            Event::TooLong => shell.refuse_long_line(errors),
            Event::NotText => {
                shell.refuse("a line must be UTF-8 text; this one was not run", errors)
            }
            Event::Interrupted => {}
            Event::End => return,
        }
        if is_end {
            return;
        }
        if !shell.is_over() {
            if host.typed.with(&PLATFORM, Typed::has_lost) {
                // Writing to the serial port cannot fail.
                let _ = out.write_char(BELL);
            }
            editor.prompt(out);
        }
    }
}

/// Decodes `text`: each `%` with two hexadecimal digits stands for the byte that they encode.
fn decode<'a>(text: &str, room: &'a mut [u8; CAPACITY]) -> &'a str {
    let mut rest = text.as_bytes();
    let mut len = 0;
    for place in room.iter_mut() {
        let digit = |at: usize| rest.get(at).and_then(|&byte| char::from(byte).to_digit(16));
        let (byte, used) = match (rest.first(), digit(1), digit(2)) {
            (None, ..) => break,
            (Some(b'%'), Some(high), Some(low)) => (u8::try_from(high * 16 + low).unwrap_or(0), 3),
            (Some(&byte), ..) => (byte, 1),
        };
        *place = byte;
        len += 1;
        rest = rest.get(used..).unwrap_or(&[]);
    }
    core::str::from_utf8(&room[..len]).unwrap_or("echo 'exec= is not UTF-8'; exit 2")
}

/// The serial line for output. The flag says whether it is at the beginning of a line.
struct Words<'a>(&'a Cell<bool>);

impl Write for Words<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive('\n') {
            if self.0.get() && piece.starts_with('@') {
                Console.write_str("@")?;
            }
            Console.write_str(piece)?;
            self.0.set(piece.ends_with('\n'));
        }
        Ok(())
    }
}

/// The serial line for a snapshot: each line begins with `@memory `.
struct Prefixed<'a>(&'a Cell<bool>);

impl Write for Prefixed<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive('\n') {
            if self.0.get() {
                Console.write_str("@memory ")?;
            }
            Console.write_str(piece)?;
            self.0.set(piece.ends_with('\n'));
        }
        Ok(())
    }
}

/// The work that is done in the background.
struct Background<'a, 'b, 'c, 'd> {
    driver: Option<&'a mut Driver<'b>>,
    memory: Option<&'a mut virtio_mem::Driver<'d>>,
    acceptor: Acceptor<'c, GuestPlatform>,
    /// When `acceptor` is due.
    accept_ns: u64,
    compactor: Compactor<'c, GuestPlatform>,
    /// When `compactor` is due.
    compact_ns: u64,
    manager: &'c Manager<GuestPlatform>,
    watch: Watch,
    files: FileSystem<'c>,
}

/// The serial line, as the shell's host.
struct Line<'a, 'b, 'c, 'd> {
    typed: SpinLock<Typed>,
    /// Whether a program types. Its bytes wait on the line until there is room.
    can_wait: bool,
    /// `None` while a CPU does the background work.
    background: SpinLock<Option<Background<'a, 'b, 'c, 'd>>>,
    window: GuestWindow<'a>,
    mapping: GuestMapping<'a>,
}

impl Line<'_, '_, '_, '_> {
    /// Does background work that is due, on the first CPU. It does not hold the lock meanwhile,
    /// because that would turn interrupts off.
    fn background(&self) {
        if smp::index() != 0 {
            return;
        }
        let background = self.background.with(&PLATFORM, Option::take);
        if let Some(mut background) = background {
            if let Some(driver) = &mut background.driver {
                driver.poll();
            }
            if let Some(memory) = &mut background.memory {
                memory.poll(Some(&self.mapping));
            }
            background.manager.pressure().reclaim_in_background();
            if let Some(now_ns) = PLATFORM.now_ns() {
                if now_ns >= background.accept_ns {
                    background.accept_ns = background.acceptor.poll(now_ns);
                }
                if now_ns >= background.compact_ns {
                    background.compact_ns = background.compactor.poll(now_ns);
                }
            }
            background.watch.poll(&background.files);
            self.background.with(&PLATFORM, |place| *place = Some(background));
        }
    }

    /// Waits for the next byte.
    fn next(&self) -> u8 {
        loop {
            self.background();
            let next = self.typed.with(&PLATFORM, |typed| typed.next().or_else(Console::receive));
            if let Some(byte) = next {
                return byte;
            }
            PLATFORM.relax();
        }
    }
}

impl Host for Line<'_, '_, '_, '_> {
    /// Polls the line, on the first CPU only. Other input is kept for later if there is room. If
    /// another CPU is asked to stop, it does so here.
    fn is_interrupted(&self) -> bool {
        smp::park_if_asked();
        self.background();
        let cpu = PLATFORM.pin();
        let interrupted = self.typed.with(&PLATFORM, |typed| {
            // At most as many bytes as there is room for: other CPUs may wait, and a line may never
            // be empty.
            for _ in 0..AHEAD {
                if cpu.index() != 0 || self.can_wait && typed.is_full() {
                    break;
                }
                let Some(byte) = Console::receive() else { break };
                typed.take(byte);
            }
            typed.is_interrupted()
        });
        // SAFETY: pinned above by this task, and not unpinned since.
        unsafe { PLATFORM.unpin(cpu) };
        interrupted
    }

    /// The background work is taken out meanwhile, so that nobody does it.
    fn undisturbed(&self, work: &mut dyn FnMut()) {
        let mut background = self.background.with(&PLATFORM, Option::take);
        if let Some(driver) = background.as_mut().and_then(|work| work.driver.as_mut()) {
            driver.end_report();
        }
        work();
        if background.is_some() {
            self.background.with(&PLATFORM, |place| *place = background);
        }
    }

    fn on_each_cpu(&self, work: &(dyn Fn(u32) + Sync)) {
        smp::run_on(smp::others(), &|| work(smp::index()), || work(smp::index()));
    }

    fn beside(&self, others: &(dyn Fn(u32) + Sync), own: &mut dyn FnMut()) {
        smp::run_on(smp::others(), &|| others(smp::index()), own);
    }

    fn stop_cpu(&self, cpu: u32) -> bool {
        smp::park(cpu)
    }

    fn start_cpu(&self, cpu: u32) -> bool {
        smp::unpark(cpu)
    }

    fn log(&self, out: &mut dyn Write) -> Result<bool, fmt::Error> {
        show_log(out).map(|()| true)
    }

    fn window(&self) -> Option<&dyn Window> {
        self.window.exists().then_some(&self.window)
    }

    fn mapping(&self) -> Option<&dyn MovableMemory> {
        Some(&self.mapping)
    }

    fn relay(&self) -> Option<&'static Relay> {
        Some(&RELAY)
    }

    fn reclaim_relay(&self) -> Option<&'static Relay<dyn Reclaim>> {
        Some(&RECLAIM_RELAY)
    }

    fn begin_command(&self) {
        self.typed.with(&PLATFORM, Typed::forget_interrupt);
    }
}
