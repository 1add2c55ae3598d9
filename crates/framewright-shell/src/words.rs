//! Splits text into commands: words, quotes, comments and redirection.

use core::fmt::{self, Write};

/// The longest line, in bytes.
pub const LONGEST_LINE: usize = 1000;
/// The most words of a command, its name included.
pub const MOST_WORDS: usize = 32;

/// Why a text is not a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyntaxError {
    /// A quote is not closed.
    OpenQuote(char),
    /// A character has a meaning in other shells only.
    NotSupported(char),
    /// `>` has no file behind it, or occurs twice.
    Redirection,
    /// A backslash ends the text.
    OpenBackslash,
    /// A command has more than [`LONGEST_LINE`] bytes.
    TooLong,
    /// A command has more than [`MOST_WORDS`] words.
    TooManyWords,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenQuote(quote) => write!(f, "the closing {quote} is missing"),
            Self::NotSupported(sign) => {
                write!(f, "`{sign}` has no meaning here; quote it to use it as text")
            }
            Self::Redirection => f.write_str("exactly one file must follow `>`"),
            Self::OpenBackslash => f.write_str("nothing follows the backslash"),
            Self::TooLong => write!(f, "a command has at most {LONGEST_LINE} bytes"),
            Self::TooManyWords => write!(f, "a command has at most {MOST_WORDS} words"),
        }
    }
}

/// One command: its words, without quotes, and where its output goes.
pub struct Words {
    bytes: [u8; LONGEST_LINE],
    len: usize,
    /// Where each word ends and the next one begins.
    ends: [usize; MOST_WORDS + 1],
    count: usize,
    /// The index of the word that is the file behind `>`.
    target: Option<usize>,
}

impl Words {
    fn new() -> Self {
        Self { bytes: [0; LONGEST_LINE], len: 0, ends: [0; MOST_WORDS + 1], count: 0, target: None }
    }

    fn push(&mut self, text: &str) -> Result<(), SyntaxError> {
        let room =
            self.bytes.get_mut(self.len..self.len + text.len()).ok_or(SyntaxError::TooLong)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }

    fn push_char(&mut self, char: char) -> Result<(), SyntaxError> {
        self.push(char.encode_utf8(&mut [0; 4]))
    }

    fn end_word(&mut self) -> Result<(), SyntaxError> {
        *self.ends.get_mut(self.count).ok_or(SyntaxError::TooManyWords)? = self.len;
        self.count += 1;
        Ok(())
    }

    fn word(&self, index: usize) -> &str {
        let start =
            index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let bytes = self.ends.get(index).and_then(|&end| self.bytes.get(start..end)).unwrap_or(&[]);
        // Only whole characters were pushed.
        str::from_utf8(bytes).unwrap_or("")
    }

    /// Stores the words, except the file behind `>`, in `words`, and returns their number.
    pub fn take<'a>(&'a self, words: &mut [&'a str; MOST_WORDS]) -> usize {
        let others = (0..self.count).filter(|&index| Some(index) != self.target);
        words.iter_mut().zip(others).map(|(word, index)| *word = self.word(index)).count()
    }

    /// The file behind `>`.
    pub fn target(&self) -> Option<&str> {
        self.target.map(|index| self.word(index))
    }
}

/// Takes the next command off `text`; `status` is the value of `$?`. Returns `None` if no command
/// is left. An error skips the rest of the line.
pub fn next(text: &mut &str, status: u8) -> Result<Option<Words>, SyntaxError> {
    let mut parser =
        Parser { rest: text, words: Words::new(), in_word: false, wants_file: false, status };
    let result = parser.command();
    let Parser { rest, words, .. } = parser;
    match result {
        Ok(()) => {
            *text = rest;
            Ok(if words.count == 0 { None } else { Some(words) })
        }
        Err(error) => {
            *text = rest.split_once('\n').map_or("", |(_, rest)| rest);
            Err(error)
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    words: Words,
    in_word: bool,
    /// `>` was read, but no file yet.
    wants_file: bool,
    status: u8,
}

impl Parser<'_> {
    fn char(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let char = chars.next();
        self.rest = chars.as_str();
        char
    }

    /// Reads to the end of a non-empty command, or to the end of the text.
    fn command(&mut self) -> Result<(), SyntaxError> {
        loop {
            let before = self.rest;
            let Some(char) = self.char() else { break };
            match char {
                ';' | '\n' => {
                    if let Err(error) = self.end_command() {
                        // A newline that was read would no longer end the line that is skipped.
                        self.rest = before;
                        return Err(error);
                    }
                    if self.words.count != 0 {
                        return Ok(());
                    }
                }
                ' ' | '\t' | '\r' => self.end_word()?,
                '#' if !self.in_word => {
                    // The end of the line, which stays in `rest`, still ends the command.
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = self.rest.get(end..).unwrap_or("");
                }
                '>' => {
                    self.end_word()?;
                    self.rest = self.rest.strip_prefix('>').unwrap_or(self.rest);
                    if self.wants_file || self.words.target.is_some() {
                        return Err(SyntaxError::Redirection);
                    }
                    self.wants_file = true;
                }
                '|' | '&' | '<' | '(' | ')' | '`' => return Err(SyntaxError::NotSupported(char)),
                _ => self.part_of_word(char)?,
            }
        }
        self.end_command()
    }

    fn part_of_word(&mut self, char: char) -> Result<(), SyntaxError> {
        self.in_word = true;
        match char {
            '\'' | '"' => self.quoted(char),
            '\\' => {
                let char = self.char().ok_or(SyntaxError::OpenBackslash)?;
                self.words.push_char(char)
            }
            '$' => self.dollar(),
            _ => self.words.push_char(char),
        }
    }

    fn quoted(&mut self, quote: char) -> Result<(), SyntaxError> {
        while let Some(char) = self.char() {
            match char {
                _ if char == quote => return Ok(()),
                '\\' if quote == '"' && self.rest.starts_with(['"', '\\', '$']) => {
                    let char = self.char().ok_or(SyntaxError::OpenBackslash)?;
                    self.words.push_char(char)?;
                }
                '$' if quote == '"' => self.dollar()?,
                _ => self.words.push_char(char)?,
            }
        }
        Err(SyntaxError::OpenQuote(quote))
    }

    fn dollar(&mut self) -> Result<(), SyntaxError> {
        match self.rest.strip_prefix('?') {
            Some(rest) => {
                self.rest = rest;
                let status = self.status;
                write!(self.words, "{status}").map_err(|_| SyntaxError::TooLong)
            }
            None => self.words.push("$"),
        }
    }

    fn end_command(&mut self) -> Result<(), SyntaxError> {
        self.end_word()?;
        if self.wants_file { Err(SyntaxError::Redirection) } else { Ok(()) }
    }

    fn end_word(&mut self) -> Result<(), SyntaxError> {
        if core::mem::take(&mut self.in_word) {
            if core::mem::take(&mut self.wants_file) {
                self.words.target = Some(self.words.count);
            }
            self.words.end_word()?;
        }
        let most = MOST_WORDS + usize::from(self.words.target.is_some());
        if self.words.count > most { Err(SyntaxError::TooManyWords) } else { Ok(()) }
    }
}

impl Write for Words {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text).map_err(|_| fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};
    use std::vec::Vec;

    /// The words of each command, with `>FILE` last if there is one, and errors as `!`.
    fn parse(mut text: &str) -> Vec<Vec<String>> {
        let mut commands = Vec::new();
        loop {
            match next(&mut text, 7) {
                Ok(None) => return commands,
                Ok(Some(words)) => {
                    let mut room = [""; MOST_WORDS];
                    let count = words.take(&mut room);
                    let mut all: Vec<String> =
                        room[..count].iter().map(ToString::to_string).collect();
                    all.extend(words.target().map(|file| std::format!(">{file}")));
                    commands.push(all);
                }
                Err(error) => commands.push(std::vec![std::format!("!{error:?}")]),
            }
        }
    }

    #[test]
    fn texts_are_commands() {
        for (text, expected) in [
            ("", &[][..]),
            (" ;; \n ; # nothing", &[]),
            ("cat /proc/vmstat", &[&["cat", "/proc/vmstat"][..]]),
            ("a;b c\nd\r\n", &[&["a"], &["b", "c"], &["d"]]),
            ("echo 1 > /f; x", &[&["echo", "1", ">/f"], &["x"]]),
            ("echo 1>>/f", &[&["echo", "1", ">/f"]]),
            (">/f echo 1", &[&["echo", "1", ">/f"]]),
            (
                "echo 'a  b;#' \"c '$?' \\\" \\n\" d\\ e a#b # x",
                &[&["echo", "a  b;#", "c '7' \" \\n", "d e", "a#b"]],
            ),
            ("echo '' \"\"", &[&["echo", "", ""]]),
            ("echo $? $x $ '$?'", &[&["echo", "7", "$x", "$", "$?"]]),
            ("echo a\"b c\"'d'", &[&["echo", "ab cd"]]),
            ("a 'b\nc' # d\ne", &[&["a", "b\nc"], &["e"]]),
            ("a | b\nc", &[&["!NotSupported('|')"], &["c"]]),
            ("a && b", &[&["!NotSupported('&')"]]),
            ("a 'b", &[&["!OpenQuote('\\'')"]]),
            ("a > ; b", &[&["!Redirection"]]),
            ("a > b > c\nd", &[&["!Redirection"], &["d"]]),
            ("a >", &[&["!Redirection"]]),
            ("a >\nb\nc", &[&["!Redirection"], &["b"], &["c"]]),
            ("a > # c\nb", &[&["!Redirection"], &["b"]]),
            ("a \\", &[&["!OpenBackslash"]]),
            ("echo \u{e4}\u{1f600}", &[&["echo", "\u{e4}\u{1f600}"]]),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let words = "a ".repeat(MOST_WORDS);
        assert_eq!(parse(&words)[0].len(), MOST_WORDS);
        assert_eq!(parse(&std::format!("{words}> f"))[0].len(), MOST_WORDS + 1);
        assert_eq!(parse(&std::format!("{words}a")), [["!TooManyWords"]]);
        assert_eq!(parse(&std::format!("{words}> f a")), [["!TooManyWords"]]);
        assert_eq!(parse(&std::format!("{words}a\nb")), [["!TooManyWords"], ["b"]]);
        assert_eq!(parse(&"x".repeat(LONGEST_LINE))[0][0].len(), LONGEST_LINE);
        assert_eq!(parse(&("x".repeat(LONGEST_LINE + 1) + "\ny")), [["!TooLong"], ["y"]]);
        assert_eq!(parse(&("x".repeat(LONGEST_LINE) + "$?")), [["!TooLong"]]);
    }
}
