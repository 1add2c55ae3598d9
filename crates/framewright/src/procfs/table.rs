//! Tables of files, with which a module defines its files.

use super::FileError;
use core::fmt::Write;

/// Makes a file's text. The numbers are those that stand for the `*` in its path.
pub type Read<T> = fn(&T, &[u64], &mut dyn Write) -> Result<(), FileError>;
/// Takes the text that is written to a file. It takes all of it, or fails and changes nothing.
pub type Put<T> = fn(&T, &[u64], &str) -> Result<(), FileError>;
/// Calls the function with each group of numbers for which there is a file now.
pub type Numbers<T> = fn(&T, &mut dyn FnMut(&[u64]));

/// One file of a `T`; if its path has a `*`, one file for each number that exists.
pub struct File<T> {
    path: &'static str,
    numbers: Numbers<T>,
    read: Option<Read<T>>,
    write: Option<Put<T>>,
}

impl<T> File<T> {
    const fn new(path: &'static str, read: Option<Read<T>>, write: Option<Put<T>>) -> Self {
        Self { path, numbers: |_, visit| visit(&[]), read, write }
    }

    /// A file that can be read. Its text is made in one go, and no lock is held while it is written
    /// to `out`, which may be slow.
    #[must_use]
    pub const fn read_only(path: &'static str, read: Read<T>) -> Self {
        Self::new(path, Some(read), None)
    }

    /// A file that can also be written.
    #[must_use]
    pub const fn read_write(path: &'static str, read: Read<T>, write: Put<T>) -> Self {
        Self::new(path, Some(read), Some(write))
    }

    /// A file that can only be written.
    #[must_use]
    pub const fn write_only(path: &'static str, write: Put<T>) -> Self {
        Self::new(path, None, Some(write))
    }

    /// Makes this, for a path with a `*`, one file for each group of numbers that `numbers` names.
    /// Groups may come and go. A `%` stands for a name of up to 16 bytes, which two numbers hold,
    /// eight bytes each.
    #[must_use]
    pub const fn numbered(self, numbers: Numbers<T>) -> Self {
        Self { numbers, ..self }
    }
}

/// The files of any owner; usually a [`Table`]. They may be read on any CPU, and on several at
/// once.
pub trait Source: Sync {
    /// How many entries the source has.
    fn entries(&self) -> usize;
    /// The path of an entry, with a `*` for each number.
    fn path(&self, entry: usize) -> &'static str;
    /// Whether an entry can be read and whether it can be written.
    fn access(&self, entry: usize) -> (bool, bool);
    /// Calls `visit` with each group of numbers for which there is a file.
    fn numbers(&self, entry: usize, visit: &mut dyn FnMut(&[u64]));
    /// Reads a file.
    ///
    /// # Errors
    /// [`FileError::NotPermitted`] if it cannot be read; otherwise the file's own error.
    fn read(&self, entry: usize, numbers: &[u64], out: &mut dyn Write) -> Result<(), FileError>;
    /// Writes to a file.
    ///
    /// # Errors
    /// [`FileError::NotPermitted`] if it cannot be written; otherwise the file's own error.
    fn write(&self, entry: usize, numbers: &[u64], text: &str) -> Result<(), FileError>;
}

/// The files of one owner.
pub struct Table<'a, T> {
    owner: &'a T,
    files: &'a [File<T>],
}

impl<'a, T> Table<'a, T> {
    /// Makes a table of the `files` of `owner`.
    #[must_use]
    pub const fn new(owner: &'a T, files: &'a [File<T>]) -> Self {
        Self { owner, files }
    }
}

impl<T: Sync> Source for Table<'_, T> {
    fn entries(&self) -> usize {
        self.files.len()
    }

    fn path(&self, entry: usize) -> &'static str {
        self.files.get(entry).map_or("", |file| file.path)
    }

    fn access(&self, entry: usize) -> (bool, bool) {
        self.files
            .get(entry)
            .map_or((false, false), |file| (file.read.is_some(), file.write.is_some()))
    }

    fn numbers(&self, entry: usize, visit: &mut dyn FnMut(&[u64])) {
        if let Some(file) = self.files.get(entry) {
            (file.numbers)(self.owner, visit);
        }
    }

    fn read(&self, entry: usize, numbers: &[u64], out: &mut dyn Write) -> Result<(), FileError> {
        let read = self
            .files
            .get(entry)
            .ok_or(FileError::NotFound)?
            .read
            .ok_or(FileError::NotPermitted)?;
        read(self.owner, numbers, out)
    }

    fn write(&self, entry: usize, numbers: &[u64], text: &str) -> Result<(), FileError> {
        let write = self
            .files
            .get(entry)
            .ok_or(FileError::NotFound)?
            .write
            .ok_or(FileError::NotPermitted)?;
        write(self.owner, numbers, text)
    }
}
