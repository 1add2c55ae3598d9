//! Paths, and patterns in which a `*` stands for a number.

use core::cmp::Ordering;
use core::fmt::{self, Write};

/// The longest name of a file or folder, in bytes. Longer ones are cut, and found by nobody.
const NAME_BYTES: usize = 64;

/// One name, made of a pattern and a number.
#[derive(Clone, Copy)]
pub(super) struct Name {
    bytes: [u8; NAME_BYTES],
    len: usize,
}

impl Name {
    /// `pattern` with each `*` replaced by the next of `numbers`.
    fn new(pattern: &str, numbers: &mut &[u64]) -> Self {
        let mut name = Self { bytes: [0; NAME_BYTES], len: 0 };
        let mut rest = pattern;
        while let Some((before, after)) = rest.split_once('*') {
            let number = numbers.split_off_first().copied().unwrap_or(0);
            // What does not fit is cut.
            let _ = write!(name, "{before}{number}");
            rest = after;
        }
        let _ = name.write_str(rest);
        name
    }

    pub(super) fn as_str(&self) -> &str {
        self.bytes.get(..self.len).and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or("")
    }

    /// In the order of bytes, as a listing has them.
    pub(super) fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// The names of a path. Empty ones and `.` mean nothing.
pub(super) fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".")
}

/// What a path is to the path of a file.
pub(super) enum Relation {
    /// The file itself.
    Same,
    /// A folder that the file is in; the next name on the way to it, and whether that is the file's
    /// own.
    Above(Name, bool),
    /// Something inside the file, which has no inside.
    Below,
    /// Nothing.
    Elsewhere,
}

/// What `path` is to the file of `pattern` with `numbers`.
pub(super) fn relation(path: &str, pattern: &str, mut numbers: &[u64]) -> Relation {
    let mut rest = names(pattern).peekable();
    for name in names(path) {
        let Some(expected) = rest.next() else { return Relation::Below };
        let same = if expected.contains('*') {
            Name::new(expected, &mut numbers).as_str() == name
        } else {
            expected == name
        };
        if !same {
            return Relation::Elsewhere;
        }
    }
    match rest.next() {
        None if path.ends_with('/') => Relation::Below,
        None => Relation::Same,
        Some(next) => Relation::Above(Name::new(next, &mut numbers), rest.peek().is_none()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str, pattern: &str, numbers: &[u64]) -> (char, std::string::String) {
        match relation(path, pattern, numbers) {
            Relation::Same => ('=', "".into()),
            Relation::Above(name, last) => (if last { 'f' } else { 'd' }, name.as_str().into()),
            Relation::Below => ('<', "".into()),
            Relation::Elsewhere => (' ', "".into()),
        }
    }

    #[test]
    fn paths_are_related_to_patterns() {
        let pattern = "/sys/node*/huge-*kB/free";
        for (path, kind, name) in [
            ("/", 'd', "sys"),
            ("", 'd', "sys"),
            ("/sys", 'd', "node12"),
            ("//sys/./", 'd', "node12"),
            ("/sys/node12", 'd', "huge-2048kB"),
            ("/sys/node12/huge-2048kB", 'f', "free"),
            ("/sys/node12/huge-2048kB/free", '=', ""),
            ("/sys/node12/huge-2048kB/free/", '<', ""),
            ("/sys/node12/huge-2048kB/free/x", '<', ""),
            ("/sys/node012", ' ', ""),
            ("/sys/node1", ' ', ""),
            ("/sys/node12/..", ' ', ""),
            ("/sys/node*", ' ', ""),
        ] {
            assert_eq!(shown(path, pattern, &[12, 2048]), (kind, name.into()), "{path}");
        }
    }

    #[test]
    fn names_that_are_too_long_are_cut() {
        let long = "x".repeat(80) + "*";
        let name = Name::new(&long, &mut &[1][..]);
        assert!(name.as_str().len() <= NAME_BYTES);
    }
}
