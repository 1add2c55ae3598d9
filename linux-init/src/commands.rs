//! The commands of a script, one a line:
//!
//! * `mark WORDS` prints `@mark WORDS`.
//! * `load FILE` loads a kernel module.
//! * `exists FILE` prints `@exists FILE yes` or `no`.
//! * `write FILE VALUE` writes.
//! * `resize FILE COUNT` writes, reads back, and prints `@resize FILE COUNT REACHED NANOSECONDS`,
//!   with the time of the write.
//! * `time FILE VALUE` writes, and prints `@time FILE NANOSECONDS`.
//! * `sum FILE WORD` adds the numbers behind `WORD` where it begins a line, and prints
//!   `@sum FILE WORD SUM`.
//! * `log WORDS` prints the kernel's lines that have these words, as `@log LINE`.
//! * `dirty MIB SECONDS` writes to this much memory, prints `@dirty MIB`, waits, frees it, and
//!   prints `@freed MIB`.
//! * `fault huge|base SECONDS CPUS` takes page faults, see [`faults`](crate::faults).
//! * `scatter PERCENT ROUNDS SEED` leaves this part of memory in use, in single pages, see
//!   [`scatter`](crate::scatter).
//! * `follow FILE WORD KIB SECONDS` waits until the sum behind `WORD` has grown by `KIB` and prints
//!   `@grown FILE WORD KIB`, then waits until it has shrunk by as much again and prints
//!   `@shrunk FILE WORD KIB`; each wait lasts at most this many seconds.
//! * `sleep SECONDS` waits.
//!
//! A command that fails prints `@failed COMMAND: error N`, and the script goes on.

use crate::faults;
use crate::say;
use crate::scatter;
use crate::system::{self, EFBIG, ENOENT, ETIME, Errno, File, Mapping, Pages};

/// The most bytes that are read from a control file; the longest file, `zoneinfo`, has some 3000
/// for each node.
const FILE_BYTES: usize = 128 << 10;
/// The most bytes of the kernel's log that are read.
const LOG_BYTES: usize = 256 << 10;

/// Runs one line of a script.
pub fn run(line: &str) {
    let line = line.trim();
    let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut words = rest.split_ascii_whitespace();
    let mut next = || words.next().unwrap_or_default();
    let done = match command {
        "" => Ok(()),
        "mark" => {
            say!("@mark {rest}");
            Ok(())
        }
        "load" => File::read_only(rest).and_then(|file| file.load_as_module()),
        "exists" => {
            say!("@exists {rest} {}", if File::read_only(rest).is_ok() { "yes" } else { "no" });
            Ok(())
        }
        "write" => write(next(), next()).map(|_| ()),
        "resize" => resize(next(), next()),
        "time" => time(next(), next()),
        "sum" => sum(next(), next()),
        "follow" => follow(next(), next(), number(next()), number(next())),
        "log" => log(rest),
        "dirty" => dirty(number(next()), number(next())),
        "fault" => match next() {
            "huge" => faults::run("huge", Pages::Huge, number(next()), number(next())),
            "base" => faults::run("base", Pages::Base, number(next()), number(next())),
            _ => Err(ENOENT),
        },
        "scatter" => scatter::run(number(next()), number(next()), number(next())),
        "sleep" => {
            system::sleep(number(next()));
            Ok(())
        }
        _ => Err(ENOENT),
    };
    if let Err(Errno(number)) = done {
        say!("@failed {line}: error {number}");
    }
}

/// Parses a number; other text counts as zero.
fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// Writes in one piece. Returns the nanoseconds that this took.
fn write(name: &str, value: &str) -> Result<u64, Errno> {
    let file = File::write_only(name)?;
    let started = system::now_ns();
    file.write(value.as_bytes())?;
    Ok(system::now_ns() - started)
}

fn resize(name: &str, count: &str) -> Result<(), Errno> {
    let duration_ns = write(name, count)?;
    let mut reached = [0; 32];
    let length = File::read_only(name)?.read(&mut reached)?;
    let reached =
        core::str::from_utf8(reached.get(..length).unwrap_or_default()).unwrap_or_default().trim();
    say!("@resize {name} {count} {reached} {duration_ns}");
    Ok(())
}

fn time(name: &str, value: &str) -> Result<(), Errno> {
    let duration_ns = write(name, value)?;
    say!("@time {name} {duration_ns}");
    Ok(())
}

fn sum(name: &str, word: &str) -> Result<(), Errno> {
    let sum = summed(name, word)?;
    say!("@sum {name} {word} {sum}");
    Ok(())
}

/// The sum of the numbers behind `word` where it begins a line. Fails for a file that is too long
/// to be read whole.
pub fn summed(name: &str, word: &str) -> Result<u64, Errno> {
    let mut bytes = [0; FILE_BYTES];
    let file = File::read_only(name)?;
    let mut length = 0;
    loop {
        match file.read(bytes.get_mut(length..).unwrap_or_default())? {
            0 => break,
            more => length += more,
        }
    }
    if length == bytes.len() {
        return Err(EFBIG);
    }
    let lines = bytes.get(..length).unwrap_or_default().split(|&byte| byte == b'\n');
    let text = lines.filter_map(|line| core::str::from_utf8(line).ok());
    let numbers = text.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(word)).then(|| words.next().map_or(0, number))
    });
    let (found, sum) = numbers.fold((0, 0), |(found, sum), number| (found + 1, sum + number));
    if found == 0 { Err(ENOENT) } else { Ok(sum) }
}

/// Waits for memory to be added and removed.
fn follow(name: &str, word: &str, kib: u64, seconds: u64) -> Result<(), Errno> {
    let before = summed(name, word)?;
    let within = |done: &dyn Fn(u64) -> bool| {
        let end_ns = system::now_ns() + seconds * 1_000_000_000;
        loop {
            if done(summed(name, word)?) {
                return Ok(());
            }
            if system::now_ns() >= end_ns {
                return Err(ETIME);
            }
            system::sleep_ms();
        }
    };
    within(&|now| now >= before + kib)?;
    say!("@grown {name} {word} {kib}");
    within(&|now| now <= before)?;
    say!("@shrunk {name} {word} {kib}");
    Ok(())
}

fn log(words: &str) -> Result<(), Errno> {
    let mut bytes = [0; LOG_BYTES];
    let length = system::kernel_log(&mut bytes)?;
    for line in bytes.get(..length).unwrap_or_default().split(|&byte| byte == b'\n') {
        if let Ok(line) = core::str::from_utf8(line)
            && line.contains(words)
        {
            say!("@log {line}");
        }
    }
    Ok(())
}

fn dirty(mib: u64, seconds: u64) -> Result<(), Errno> {
    let bytes = usize::try_from(mib << 20).map_err(|_| ENOENT)?;
    let mut memory = Mapping::new(bytes, Pages::Huge)?;
    memory.touch();
    say!("@dirty {mib}");
    system::sleep(seconds);
    drop(memory);
    say!("@freed {mib}");
    Ok(())
}
