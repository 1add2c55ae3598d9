//! Files that are written whole or not at all.

use crate::error::Error;
use serde_json::{Map, Value};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The version of the format of results and snapshots, which docs/usage.md describes.
pub const FORMAT: u64 = 1;

/// What a file holds. A file may only replace one of its own kind: any other file was made by the
/// user for a purpose that we do not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A page of `framewright report`.
    Page,
    /// A picture of `framewright report --pictures`.
    Picture,
    /// Results of a benchmark or a comparison.
    Results,
    /// A snapshot of memory.
    Snapshot,
}

/// The mark in the head of each page that this program writes.
pub const PAGE_MARK: &str = "<meta name=\"generator\" content=\"framewright report\">";
/// The mark in the head of each picture that this program writes.
pub const PICTURE_MARK: &str = "data-made-by=\"framewright report\"";
/// How to recognise pages and pictures from before the marks, or with the first version of them.
const OLD_PAGE: &str = "<title>Framewright: results</title>";
const OLD_PICTURES: [&str; 2] =
    ["<!--framewright report-->", "<style>:root{color-scheme:light dark;--bg:#fcfcfb;"];

/// How far into a page or a picture to look for its mark.
const HEAD_BYTES: u64 = 64 << 10;
/// The largest size of results and snapshots that is accepted.
pub const MOST_BYTES: u64 = 64 << 20;

impl Kind {
    /// Describes the kind in words.
    const fn words(self) -> &'static str {
        match self {
            Self::Page => "page of `framewright report`",
            Self::Picture => "picture of `framewright report`",
            Self::Results => "file of results",
            Self::Snapshot => "snapshot of memory",
        }
    }

    /// Whether a file has content of this kind. An empty file counts, as it has nothing to lose.
    fn is_in(self, file: fs::File) -> io::Result<bool> {
        let length = file.metadata()?.len();
        if length == 0 {
            return Ok(true);
        }
        if self != Self::Page && self != Self::Picture && length > MOST_BYTES {
            return Ok(false);
        }
        let mut content = Vec::new();
        let most = if matches!(self, Self::Page | Self::Picture) { HEAD_BYTES } else { MOST_BYTES };
        file.take(most).read_to_end(&mut content)?;
        let head = String::from_utf8_lossy(&content);
        let object = || serde_json::from_slice::<Map<String, Value>>(&content).ok();
        Ok(match self {
            Self::Page => {
                head.starts_with("<!doctype html>")
                    && [PAGE_MARK, OLD_PAGE].iter().any(|mark| head.contains(mark))
            }
            Self::Picture => {
                let is_old = || OLD_PICTURES.iter().any(|mark| head.contains(mark));
                head.starts_with("<svg ") && (head.contains(PICTURE_MARK) || is_old())
            }
            Self::Results => object().is_some_and(|object| object.contains_key("rows")),
            Self::Snapshot => object().is_some_and(|object| object.contains_key("snapshot")),
        })
    }
}

/// Refuses an option's value early if no file can be made there.
///
/// # Errors
/// Says why the file cannot be made.
pub fn check(option: &str, path: &Path) -> Result<(), Error> {
    let refuse = |why: &str| Err(Error::Usage(format!("{option} {}: {why}", path.display())));
    let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if is_folder || path.file_name().is_none() || path.is_dir() {
        return refuse("is a folder");
    }
    let tried = match descriptor(path) {
        // Nothing is written, but the system says whether something could be.
        Some(number) => opened(number).and_then(|mut file| file.write(&[]).map(drop)),
        None if is_device(path) => Ok(()),
        None => target(path).and_then(|target| Part::beside(&target)).map(drop),
    };
    tried.or_else(|error| refuse(&format!("cannot be written: {error}")))
}

/// Refuses to overwrite a file of another kind than `kind`.
///
/// # Errors
/// Says what is there instead, or why it cannot be read.
pub fn claim(option: &str, path: &Path, kind: Kind) -> Result<(), Error> {
    let refuse = |why: String| Err(Error::Usage(format!("{option} {}: {why}", path.display())));
    if descriptor(path).is_some() || is_device(path) {
        return Ok(());
    }
    match fs::File::open(path).and_then(|file| kind.is_in(file)) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(false) => refuse(format!(
            "the existing file is not a {} and is kept: name another, or remove it first",
            kind.words()
        )),
        Err(error) => refuse(format!("cannot be read to tell whether it may be replaced: {error}")),
    }
}

/// The text of a file that is to be continued; `None` if nothing is there, and for devices and
/// files that the process has open, whose text cannot be had back.
///
/// # Errors
/// The file cannot be read or has more than [`MOST_BYTES`].
pub fn earlier(path: &Path) -> io::Result<Option<String>> {
    if descriptor(path).is_some() || is_device(path) {
        return Ok(None);
    }
    let mut text = String::new();
    match fs::File::open(path) {
        Ok(file) => file.take(MOST_BYTES + 1).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    if text.len() as u64 > MOST_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Writes all of `content` to a file beside `path` and then renames it, so that nobody sees a
/// partial file. If `path` is a symbolic link, the file that it leads to is replaced. Devices and
/// files that the process has open, such as `/dev/stdout`, are written to.
///
/// # Errors
/// Says what failed; whatever was at `path` before is still there.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), Error> {
    let write = || {
        if let Some(number) = descriptor(path) {
            return opened(number)?.write_all(content);
        }
        if is_device(path) {
            return fs::write(path, content);
        }
        let target = target(path)?;
        let (part, mut file) = Part::beside(&target)?;
        file.write_all(content)?;
        // Keep the permissions of the file that is replaced.
        if let Ok(metadata) = fs::metadata(&target) {
            file.set_permissions(metadata.permissions())?;
        }
        // The content must reach the disk before the new name does.
        file.sync_all()?;
        fs::rename(&part.0, &target)?;
        // Not every file system can sync a folder, and the file is in place by now.
        let _ = fs::File::open(folder_of(&target)).and_then(|folder| folder.sync_all());
        Ok(())
    };
    write()
        .map_err(|error| Error::Failed(format!("{}: cannot be written: {error}", path.display())))
}

/// Follows symbolic links to their end, where a file need not exist yet.
///
/// # Errors
/// Fails if the links form a loop.
pub fn target(path: &Path) -> io::Result<PathBuf> {
    let mut places: Vec<PathBuf> = places(path).collect();
    // If anything is wrong with the last place, making the file there will show it.
    let end = places.pop().filter(|_| places.len() <= MOST_LINKS);
    end.ok_or_else(|| io::Error::from_raw_os_error(libc::ELOOP))
}

/// As many links as Linux follows.
const MOST_LINKS: usize = 40;

/// `path`, and where each symbolic link leads, up to one link too many.
fn places(path: &Path) -> impl Iterator<Item = PathBuf> {
    let next = |at: &PathBuf| {
        let next = fs::read_link(at).ok()?;
        Some(at.parent().unwrap_or(Path::new("")).join(next))
    };
    std::iter::successors(Some(path.to_owned()), next).take(MOST_LINKS + 2)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The number of the open file of this process that `path` stands for, as `/dev/stdout` and
/// `/dev/fd/3` do. What it leads to must not be replaced: other output goes to the same file.
fn descriptor(path: &Path) -> Option<RawFd> {
    let of_this_process = Path::new("/proc/self").canonicalize().ok()?;
    places(path).find_map(|at| {
        let folder = folder_of(&at).canonicalize().ok()?;
        let has_open_files = folder.starts_with(&of_this_process) && folder.ends_with("fd");
        at.file_name().filter(|_| has_open_files)?.to_str()?.parse().ok()
    })
}

/// Another handle of an open file, which shares its position.
fn opened(number: RawFd) -> io::Result<fs::File> {
    // SAFETY: no memory is involved; a number that is not open is refused.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number was just made, and nobody else has it.
    Ok(unsafe { fs::File::from_raw_fd(copy) })
}

/// Whether `path` is a device or a pipe, which is written to, not replaced.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// The longest name of a file, in bytes.
const LONGEST_NAME: usize = 255;

/// At most `most` bytes of a name, without a part of a character at the end.
fn beginning(name: &OsStr, most: usize) -> &OsStr {
    let bytes = name.as_bytes();
    let is_inside = |at: usize| bytes.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    let end = (0..=most.min(bytes.len())).rev().find(|&at| !is_inside(at)).unwrap_or(0);
    OsStr::from_bytes(&bytes[..end])
}

/// A temporary file that does not have its final name yet.
struct Part(PathBuf);

impl Part {
    /// Makes the file in the folder of `path`, and so on the same file system.
    fn beside(path: &Path) -> io::Result<(Self, fs::File)> {
        // If the name is too long, say so now and not when the file is renamed.
        if let Err(error) = fs::symlink_metadata(path)
            && error.kind() == io::ErrorKind::InvalidFilename
        {
            return Err(error);
        }
        let end = format!(".{}.part", std::process::id());
        let stem = path.file_name().unwrap_or_default();
        let mut name = OsString::from(".");
        name.push(beginning(stem, LONGEST_NAME - 1 - end.len()));
        name.push(end);
        let part = path.with_file_name(name);
        // Remove what an earlier process with our pid left, or a link that somebody put there.
        let _ = fs::remove_file(&part);
        let file = fs::OpenOptions::new().write(true).create_new(true).open(&part)?;
        Ok((Self(part), file))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After the rename there is nothing to remove.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_or_left_alone() {
        let folder = std::env::temp_dir().join(format!("framewright-file-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("a.json");
        replace(&path, b"one").expect("it can be written");
        replace(&path, b"two").expect("it can be written");
        assert_eq!(fs::read(&path).expect("it is there"), b"two");
        for (path, expected) in [
            (folder.clone(), "is a folder"),
            (folder.join("b.html/"), "is a folder"),
            (folder.join("y".repeat(256)), "cannot be written: File name too long (os error 36)"),
            (folder.join("none/a"), "cannot be written: No such file or directory (os error 2)"),
        ] {
            let expected = format!("--json {}: {expected}", path.display());
            assert!(
                matches!(check("--json", &path), Err(Error::Usage(why)) if why == expected),
                "{expected}"
            );
            assert!(matches!(replace(&path, b"x"), Err(Error::Failed(_))));
        }
        // Temporary names are longer, so their beginning is cut, between two characters.
        let longest = folder.join("x".to_owned() + &"\u{e4}".repeat(127));
        for fit in [&path, &folder.join("new"), &longest, Path::new("/dev/null")] {
            assert!(check("--json", fit).is_ok(), "{}", fit.display());
        }
        replace(&longest, b"long").expect("it can be written");
        assert_eq!(fs::read(&longest).expect("it is there"), b"long");
        fs::remove_file(&longest).expect("ours");
        for (most, expected) in [(0, ""), (1, "a"), (4, "a"), (5, "a\u{1f600}"), (9, "a\u{1f600}b")]
        {
            assert_eq!(beginning(OsStr::new("a\u{1f600}b"), most), expected, "{most}");
        }
        assert_eq!(fs::read(&path).expect("it is there"), b"two", "a check changes nothing");
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "no parts are left");
        fs::remove_dir_all(&folder).expect("ours");
    }
}
