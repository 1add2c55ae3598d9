//! Files that are there whole or not at all.

use crate::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The version of the form of results and snapshots, which docs/results.md describes.
pub const FORMAT: u64 = 1;

/// Refuses the value of an option where no file can be made, before work is done for it.
///
/// # Errors
/// Why not.
pub fn check(option: &str, path: &Path) -> Result<(), Error> {
    let refuse = |why: &str| Err(Error::Usage(format!("{option} {}: {why}", path.display())));
    if path.file_name().is_none() || path.is_dir() {
        return refuse("is a folder");
    }
    if is_device(path) {
        return Ok(());
    }
    let part = Part::beside(path);
    fs::File::create(&part.0).map_or_else(|error| refuse(&format!("cannot be written: {error}")), |_| Ok(()))
}

/// Writes all of `content` to a file beside `path` and gives it that name then, so that nobody sees a part of it.
///
/// # Errors
/// What could not be done; what was at `path` before is still there.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), Error> {
    let write = || {
        if is_device(path) {
            return fs::write(path, content);
        }
        let part = Part::beside(path);
        let mut file = fs::File::create(&part.0)?;
        file.write_all(content)?;
        // The content is on disk before the name says so.
        file.sync_all()?;
        fs::rename(&part.0, path)
    };
    write().map_err(|error| Error::Failed(format!("{}: cannot be written: {error}", path.display())))
}

/// Devices and pipes, such as /dev/stdout, cannot be replaced, and take what they are given.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// A file that has not got its name yet.
struct Part(PathBuf);

impl Part {
    /// In the same folder, and so on the same file system.
    fn beside(path: &Path) -> Self {
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.part", std::process::id()));
        Self(path.with_file_name(name))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Once it has its name there is nothing to remove.
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
            (folder.join("none/a"), "cannot be written: No such file or directory (os error 2)"),
        ] {
            let expected = format!("--json {}: {expected}", path.display());
            assert!(matches!(check("--json", &path), Err(Error::Usage(why)) if why == expected), "{expected}");
            assert!(matches!(replace(&path, b"x"), Err(Error::Failed(_))));
        }
        for fit in [&path, &folder.join("new"), Path::new("/dev/null")] {
            assert!(check("--json", fit).is_ok(), "{}", fit.display());
        }
        assert_eq!(fs::read(&path).expect("it is there"), b"two", "a check changes nothing");
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "no parts are left");
        fs::remove_dir_all(&folder).expect("ours");
    }
}
