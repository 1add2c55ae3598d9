//! Where sockets are: in a folder that only the user may enter, one for each process, named by its
//! pid.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The suffixes of sockets: of those that answer for control files, and of QEMU's monitors.
const FILES: &str = ".sock";
const MONITOR: &str = ".qmp";

/// A process that can be watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running {
    /// The process's pid.
    pub pid: u32,
    /// The command that started the process.
    pub command: String,
}

/// A listening socket of this process. Dropping it removes the socket.
pub struct Listening {
    /// Clients connect here.
    pub listener: UnixListener,
    path: PathBuf,
}

impl Listening {
    /// Makes the socket.
    ///
    /// # Errors
    /// The system's errors; or the folder is not ours alone.
    pub fn open() -> io::Result<Self> {
        let folder = folder();
        make(&folder)?;
        let path = socket(&folder, std::process::id(), FILES);
        // A socket refuses clients from when it is bound until it listens, and nobody may see that:
        // it gets its name, which a process before us may have left, once it listens.
        let hidden = folder.join(format!(".{}{FILES}", std::process::id()));
        clear(&hidden)?;
        let mut listening = Self { listener: UnixListener::bind(&hidden)?, path: hidden };
        listening.listener.set_nonblocking(true)?;
        fs::rename(&listening.path, &path)?;
        listening.path = path;
        Ok(listening)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // The socket may have been removed already, and clients notice anyway that nobody listens.
        let _ = fs::remove_file(&self.path);
    }
}

/// Where QEMU listens for this process's machine. Dropping it removes the socket.
pub struct MonitorPlace {
    /// The socket, once QEMU has made it.
    pub path: PathBuf,
}

impl MonitorPlace {
    /// Reserves a path at which no socket is.
    ///
    /// # Errors
    /// The system's errors; or the folder is not ours alone.
    pub fn new() -> io::Result<Self> {
        let folder = folder();
        make(&folder)?;
        let path = socket(&folder, std::process::id(), MONITOR);
        clear(&path)?;
        Ok(Self { path })
    }
}

impl Drop for MonitorPlace {
    fn drop(&mut self) {
        // QEMU removes the socket if it ends by itself.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the socket of this process, for an end that drops nothing.
pub fn remove_own() {
    // Clients notice anyway that nobody listens.
    let _ = fs::remove_file(socket(&folder(), std::process::id(), FILES));
}

/// Removes what an earlier process with our pid may have left.
fn clear(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// All processes that can be watched, by pid. Sockets of processes that are gone are removed.
///
/// # Errors
/// Fails if the folder exists and is not ours alone: its owner could answer instead.
pub fn running() -> io::Result<Vec<Running>> {
    listening(FILES)
}

/// All processes with a machine whose monitor can be reached.
///
/// # Errors
/// The errors of [`running`].
pub fn with_monitors() -> io::Result<Vec<Running>> {
    listening(MONITOR)
}

fn listening(end: &str) -> io::Result<Vec<Running>> {
    let folder = folder();
    match check(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        checked => checked?,
    }
    let entries = fs::read_dir(&folder)?.flatten();
    let mut found: Vec<Running> = entries
        .filter_map(|entry| {
            let path = entry.path();
            let pid = path.file_name()?.to_str()?.strip_suffix(end)?.parse().ok()?;
            match UnixStream::connect(&path) {
                Ok(_) => Some(Running { pid, command: command(pid) }),
                Err(error) => {
                    // QEMU's socket may be one that does not listen yet.
                    let gone = !Path::new(&format!("/proc/{pid}")).exists();
                    if gone && error.kind() == ErrorKind::ConnectionRefused {
                        let _ = fs::remove_file(&path);
                    }
                    None
                }
            }
        })
        .collect();
    found.sort_by_key(|running| running.pid);
    Ok(found)
}

/// Connects to a process.
///
/// # Errors
/// The system's errors; or the folder is not ours alone.
pub fn connect(pid: u32) -> io::Result<UnixStream> {
    connect_to(pid, FILES)
}

/// Connects to the monitor of a process's machine.
///
/// # Errors
/// The system's errors; or the folder is not ours alone.
pub fn connect_monitor(pid: u32) -> io::Result<UnixStream> {
    connect_to(pid, MONITOR)
}

fn connect_to(pid: u32, end: &str) -> io::Result<UnixStream> {
    let folder = folder();
    check(&folder)?;
    UnixStream::connect(socket(&folder, pid, end))
}

fn socket(folder: &Path, pid: u32, end: &str) -> PathBuf {
    folder.join(format!("{pid}{end}"))
}

/// The folder, inside the user's runtime folder if there is one.
fn folder() -> PathBuf {
    let runtime =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    match runtime {
        // A socket's path must be short, at most 107 bytes.
        Some(path) if path.is_dir() && path.as_os_str().len() < 80 => path.join("framewright"),
        _ => Path::new("/tmp").join(format!("framewright-{}", user())),
    }
}

/// A folder in the system's place for temporary files that only the user may enter. It is made if
/// there is none.
///
/// # Errors
/// The system's errors; or the folder is not ours alone.
pub fn own_folder(name: &str) -> io::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("{name}-{}", user()));
    make(&folder)?;
    Ok(folder)
}

fn user() -> u32 {
    // SAFETY: a system call without arguments that cannot fail.
    unsafe { libc::geteuid() }
}

/// Makes the folder, and checks that it is a folder of ours which nobody else may enter.
fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    check(folder)
}

/// Checks that it is a folder of ours which nobody else may enter. In /tmp anybody could have made
/// it.
fn check(folder: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    if found.is_dir() && found.uid() == user() && found.mode() & 0o077 == 0 {
        Ok(())
    } else {
        Err(io::Error::new(
            ErrorKind::PermissionDenied,
            format!("{} is not a folder that only this user can enter", folder.display()),
        ))
    }
}

/// The command line of a process.
fn command(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = words.split(|&byte| byte == 0).filter(|word| !word.is_empty()).collect();
    let mut text = Vec::new();
    for (index, word) in words.into_iter().enumerate() {
        let name = word.rsplit(|&byte| byte == b'/').next().unwrap_or(word);
        text.push(String::from_utf8_lossy(if index == 0 { name } else { word }).into_owned());
    }
    text.join(" ")
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(100)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_that_others_may_enter_is_not_ours() {
        let folder = || own_folder(&format!("framewright-own-{}", std::process::id()));
        let path = folder().expect("it is made");
        assert_eq!(folder().ok(), Some(path.clone()));
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
        let error = folder().expect_err("others may enter");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        fs::remove_dir(&path).expect("it is empty");
    }
}
