//! `cat`, `echo` and `ls`.

use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use framewright::Platform;
use framewright::procfs::{FileError, Kind};

pub(super) fn cat<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    if arguments.is_empty() {
        return Err(io.wrong(format_args!("which file?")));
    }
    each(arguments, io, |path, io| shell.files.read(path, io.out))
}

/// Calls `work` with each path; reports an error and goes on with the next path.
fn each(
    paths: &[&str],
    io: &mut Io<'_>,
    mut work: impl FnMut(&str, &mut Io<'_>) -> Result<(), FileError>,
) -> Result<(), Failed> {
    let mut result = Ok(());
    for path in paths {
        match work(path, io) {
            Ok(()) => {}
            // Nobody is left to read a message.
            Err(FileError::Output) => return Err(Failed::FAILURE),
            Err(error) => result = Err(io.fail(format_args!("{path}: {error}"))),
        }
    }
    result
}

pub(super) fn echo(arguments: &[&str], io: &mut Io<'_>) -> Result<(), Failed> {
    let (words, end) = match arguments.split_first() {
        Some((&"-n", words)) => (words, ""),
        _ => (arguments, "\n"),
    };
    for (index, word) in words.iter().enumerate() {
        write!(io.out, "{}{word}", if index == 0 { "" } else { " " })?;
    }
    Ok(write!(io.out, "{end}")?)
}

pub(super) fn ls<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (long, paths) = match arguments.split_first() {
        Some((&"-l", paths)) => (true, paths),
        _ => (false, arguments),
    };
    if let Some(option) = paths.iter().find(|path| path.starts_with('-')) {
        return Err(io.wrong(format_args!("{option}: the only option is -l")));
    }
    each(if paths.is_empty() { &["/"] } else { paths }, io, |path, io| {
        let mut result = Ok(());
        shell.files.list(path, &mut |name, kind| {
            if result.is_ok() {
                result = line(io, long, name, kind);
            }
        })?;
        result
    })
}

fn line(io: &mut Io<'_>, long: bool, name: &str, kind: Kind) -> Result<(), FileError> {
    let sign = if kind == Kind::Folder { "/" } else { "" };
    if long {
        let mode = match kind {
            Kind::Folder => "dr-xr-xr-x",
            Kind::File { readable: true, writable: true } => "-rw-r--r--",
            Kind::File { readable: true, writable: false } => "-r--r--r--",
            Kind::File { readable: false, writable: true } => "--w-------",
            Kind::File { readable: false, writable: false } => "----------",
        };
        write!(io.out, "{mode} ")?;
    }
    Ok(writeln!(io.out, "{name}{sign}")?)
}
