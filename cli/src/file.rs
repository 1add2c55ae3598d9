//! Files that are there whole or not at all.

use crate::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Refuses a path where no file can be made, before work is done for it.
///
/// # Errors
/// Why not.
pub fn check(path: &Path) -> Result<(), Error> {
    let refuse = |why: &str| Err(Error::Usage(format!("{}: {why}", path.display())));
    if path.file_name().is_none() || path.is_dir() {
        return refuse("it is a folder");
    }
    if !folder(path).is_dir() {
        return refuse("there is no such folder");
    }
    Ok(())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes all of `content` to a file beside `path` and gives it that name then, so that nobody sees a part of it.
///
/// # Errors
/// What could not be done; what was at `path` before is still there.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), Error> {
    check(path)?;
    // Devices and pipes, such as /dev/stdout, cannot be replaced, and take what they are given.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return fs::write(path, content).map_err(|error| cannot(path, &error));
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    let part = Part(folder(path).join(name));
    let write = || {
        let mut file = fs::File::create(&part.0)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&part.0, path)
    };
    write().map_err(|error| cannot(path, &error))
}

fn cannot(path: &Path, error: &std::io::Error) -> Error {
    Error::Failed(format!("{}: cannot be written: {error}", path.display()))
}

/// A file that has not got its name yet.
struct Part(PathBuf);

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
        assert!(matches!(replace(&folder, b"x"), Err(Error::Usage(_))));
        assert!(matches!(replace(&folder.join("none/a"), b"x"), Err(Error::Usage(_))));
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "no parts are left");
        fs::remove_dir_all(&folder).expect("ours");
    }
}
