//! All tables together as one tree of paths.

use super::path::{Name, Relation, relation};
use super::{FileError, Source};
use core::fmt::Write;

/// How many names of a folder one pass over all files finds.
const NAMES_AT_ONCE: usize = 32;
/// The longest text that one write takes, in bytes; Linux takes a page.
const LONGEST_WRITE: usize = 4096;

/// Called with a file (its source, entry and numbers) and how a path relates to it.
type Visit<'a> = dyn FnMut(&dyn Source, usize, &[u64], Relation) + 'a;

/// What a path names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A folder.
    Folder,
    /// A file.
    File {
        /// Whether it can be read.
        readable: bool,
        /// Whether it can be written.
        writable: bool,
    },
}

/// The files of several sources as one tree. See the [module documentation](super).
#[derive(Clone, Copy)]
pub struct FileSystem<'a> {
    sources: &'a [&'a dyn Source],
}

impl<'a> FileSystem<'a> {
    /// Makes a tree of these sources. For a file that is in several, the order of the sources
    /// counts.
    #[must_use]
    pub const fn new(sources: &'a [&'a dyn Source]) -> Self {
        Self { sources }
    }

    /// Calls `visit` for each file that exists now, with how `path` relates to it.
    fn each(&self, path: &str, visit: &mut Visit<'_>) {
        for &source in self.sources {
            for entry in 0..source.entries() {
                let pattern = source.path(entry);
                source.numbers(entry, &mut |numbers| {
                    visit(source, entry, numbers, relation(path, pattern, numbers));
                });
            }
        }
    }

    /// What `path` names.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotFolder`].
    pub fn kind(&self, path: &str) -> Result<Kind, FileError> {
        let mut found = Err(FileError::NotFound);
        // The root exists even if nothing is in it.
        if super::path::names(path).next().is_none() && path.starts_with('/') {
            return Ok(Kind::Folder);
        }
        self.each(path, &mut |source, entry, _, relation| match (relation, &mut found) {
            (Relation::Same, Ok(Kind::File { readable, writable })) => {
                let (read, write) = source.access(entry);
                *readable |= read;
                *writable |= write;
            }
            (Relation::Same, found) => {
                let (readable, writable) = source.access(entry);
                *found = Ok(Kind::File { readable, writable });
            }
            (Relation::Above(..), found) => *found = Ok(Kind::Folder),
            (Relation::Below, found @ Err(FileError::NotFound)) => {
                *found = Err(FileError::NotFolder)
            }
            _ => {}
        });
        if path.is_empty() { Err(FileError::NotFound) } else { found }
    }

    /// Writes a file's text to `out`.
    ///
    /// # Errors
    /// See [`FileError`]; a part of the text may have been written.
    pub fn read(&self, path: &str, out: &mut dyn Write) -> Result<(), FileError> {
        match self.kind(path)? {
            Kind::Folder => return Err(FileError::IsFolder),
            Kind::File { readable: false, .. } => return Err(FileError::NotPermitted),
            Kind::File { .. } => {}
        }
        let mut result = Ok(());
        self.each(path, &mut |source, entry, numbers, relation| {
            if matches!(relation, Relation::Same) && source.access(entry).0 && result.is_ok() {
                result = source.read(entry, numbers, out);
            }
        });
        result
    }

    /// Checks that a path leads to a file that can be written to.
    ///
    /// # Errors
    /// Why [`write`](Self::write) would refuse any text.
    pub fn check_writable(&self, path: &str) -> Result<(), FileError> {
        match self.kind(path)? {
            Kind::Folder => Err(FileError::IsFolder),
            Kind::File { writable: false, .. } => Err(FileError::NotPermitted),
            Kind::File { .. } => Ok(()),
        }
    }

    /// Writes `text` to a file, which takes all of it or changes nothing.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn write(&self, path: &str, text: &str) -> Result<(), FileError> {
        self.check_writable(path)?;
        if text.len() > LONGEST_WRITE {
            return Err(FileError::Invalid);
        }
        let mut result = None;
        self.each(path, &mut |source, entry, numbers, relation| {
            if matches!(relation, Relation::Same) && source.access(entry).1 && result.is_none() {
                result = Some(source.write(entry, numbers, text));
            }
        });
        result.unwrap_or(Err(FileError::NotFound))
    }

    /// Calls `visit` once for each name in a folder, in the order of bytes. For a file, calls it
    /// with the last name of the path.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotFolder`].
    pub fn list(&self, path: &str, visit: &mut dyn FnMut(&str, Kind)) -> Result<(), FileError> {
        let kind = self.kind(path)?;
        if kind != Kind::Folder {
            visit(super::path::names(path).last().unwrap_or(path), kind);
            return Ok(());
        }
        let mut last: Option<Name> = None;
        loop {
            let next = self.next(path, last.as_ref());
            for (name, kind) in next.iter().flatten() {
                visit(name.as_str(), *kind);
            }
            let [.., Some((name, _))] = next else { return Ok(()) };
            last = Some(name);
        }
    }

    /// Finds the first names in a folder after `last`. Each call goes through all files.
    fn next(&self, path: &str, last: Option<&Name>) -> [Option<(Name, Kind)>; NAMES_AT_ONCE] {
        let mut best = [const { None }; NAMES_AT_ONCE];
        self.each(path, &mut |source, entry, _, relation| {
            let Relation::Above(name, is_file) = relation else { return };
            if last.is_some_and(|last| name.cmp(last).is_le()) {
                return;
            }
            let (readable, writable) = source.access(entry);
            let kind = if is_file { Kind::File { readable, writable } } else { Kind::Folder };
            let is_before = |found: &Option<(Name, Kind)>| {
                found.as_ref().is_some_and(|(found, _)| name.cmp(found).is_gt())
            };
            let at = best.partition_point(is_before);
            match best.get_mut(at) {
                None => {}
                Some(Some((found, Kind::File { readable: read, writable: write })))
                    if name.cmp(found).is_eq() =>
                {
                    *read |= readable;
                    *write |= writable;
                }
                Some(Some((found, folder))) if name.cmp(found).is_eq() => *folder = kind,
                Some(_) => {
                    best[at..].rotate_right(1);
                    best[at] = Some((name, kind));
                }
            }
        });
        best
    }
}
