//! Lines of a text with their numbers.

use super::error::{Place, SourceError};

/// One line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    /// The file, or the name that was given for the text.
    pub name: &'a str,
    /// The line number, from 1.
    pub number: usize,
    /// The line without its end.
    pub text: &'a str,
}

impl Line<'_> {
    /// Returns the error for this line, which cannot be read.
    pub fn unreadable(&self, expected: &str) -> SourceError {
        let place = Place {
            name: self.name.to_owned(),
            line: self.number,
            text: self.text.trim_end().to_owned(),
        };
        SourceError::Unreadable { place, expected: expected.to_owned() }
    }
}

/// Returns all lines of a text; line ends may be of either style.
pub(super) fn lines<'a>(name: &'a str, text: &'a str) -> impl Iterator<Item = Line<'a>> {
    text.lines().enumerate().map(move |(index, text)| Line { name, number: index + 1, text })
}
