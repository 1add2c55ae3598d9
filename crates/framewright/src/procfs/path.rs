//! Paths, and patterns in which a `*` stands for a number and a `%` for a short name, which two
//! numbers hold.

use core::cmp::Ordering;
use core::fmt::{self, Write};

/// The longest name of a file or folder, in bytes. Longer ones are cut, and no path finds them.
const NAME_BYTES: usize = 64;
/// The characters that stand for numbers in a pattern.
const PLACES: [char; 2] = ['*', '%'];

/// Encodes a short name as the two numbers that stand for a `%`: its bytes in their order, then
/// zeros.
pub(super) fn name_numbers(name: &str) -> Option<[u64; 2]> {
    let mut bytes = [0; 16];
    bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    let (words, _) = bytes.as_chunks();
    Some([u64::from_le_bytes(*words.first()?), u64::from_le_bytes(*words.get(1)?)])
}

/// Calls `with` with the name that two numbers hold.
pub(super) fn with_name<R>(numbers: [u64; 2], with: impl FnOnce(&str) -> R) -> R {
    let [low, high] = numbers.map(u64::to_le_bytes);
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(low.into_iter().chain(high)).for_each(|(to, from)| *to = from);
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    with(bytes.get(..len).and_then(|name| str::from_utf8(name).ok()).unwrap_or(""))
}

/// One name on a path, made of a pattern and numbers.
#[derive(Clone, Copy)]
pub(super) struct Name {
    bytes: [u8; NAME_BYTES],
    len: usize,
}

impl Name {
    /// Makes a name of `pattern`, with each `*` replaced by the next of `numbers` and each `%` by
    /// the next two.
    fn new(pattern: &str, numbers: &mut &[u64]) -> Self {
        let mut name = Self { bytes: [0; NAME_BYTES], len: 0 };
        let mut rest = pattern;
        let mut next = || numbers.split_off_first().copied().unwrap_or(0);
        while let Some(at) = rest.find(PLACES) {
            let (before, after) = rest.split_at(at);
            // Text that does not fit is cut.
            let _ = name.write_str(before);
            let _ = if after.starts_with('*') {
                write!(name, "{}", next())
            } else {
                with_name([next(), next()], |own| name.write_str(own))
            };
            rest = &after[1..];
        }
        let _ = name.write_str(rest);
        name
    }

    pub(super) fn as_str(&self) -> &str {
        self.bytes.get(..self.len).and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or("")
    }

    /// Compares by bytes, which is the order of listings.
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

/// The names in a path. Empty ones and `.` are skipped.
pub(super) fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".")
}

/// How a path relates to the path of a file.
pub(super) enum Relation {
    /// The file itself.
    Same,
    /// A folder that the file is in. Has the next name on the way to the file, and whether that is
    /// the file's own name.
    Above(Name, bool),
    /// A path below the file, which has nothing inside.
    Below,
    /// None of these.
    Elsewhere,
}

/// How `path` relates to the file of `pattern` with `numbers`.
pub(super) fn relation(path: &str, pattern: &str, mut numbers: &[u64]) -> Relation {
    let mut rest = names(pattern).peekable();
    for name in names(path) {
        let Some(expected) = rest.next() else { return Relation::Below };
        let same = if expected.contains(PLACES) {
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
    fn a_name_stands_for_two_numbers() {
        for name in ["", "a", "reserved", "sixteen-letters!", "pernuma63"] {
            let numbers = name_numbers(name).expect("short");
            assert!(with_name(numbers, |own| own == name));
            let [low, high] = numbers;
            let found = shown("/cma", "/cma/%/x*", &[low, high, 7]);
            assert_eq!(found, ('d', name.into()));
            if !name.is_empty() {
                let path = std::format!("/cma/{name}/x7");
                assert_eq!(shown(&path, "/cma/%/x*", &[low, high, 7]), ('=', "".into()));
            }
        }
        assert_eq!(name_numbers("seventeen-letters"), None);
        assert_eq!(shown("/cma/other/x7", "/cma/%/x*", &[1, 2, 7]).0, ' ');
        assert!(with_name([0xff, 0], |name| name.is_empty()));
    }

    #[test]
    fn names_that_are_too_long_are_cut() {
        let long = "x".repeat(80) + "*";
        let name = Name::new(&long, &mut &[1][..]);
        assert!(name.as_str().len() <= NAME_BYTES);
    }
}
