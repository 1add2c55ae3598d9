//! Assembles answers from bytes as they come in.

/// More text than any file has; a longer answer is an error, not a cut file.
const LONGEST_TEXT: usize = 1 << 24;
/// The longest line.
const LONGEST_LINE: usize = 1 << 16;

/// The answer to one request, assembled from bytes. The remains of earlier answers are skipped.
pub struct Answer {
    number: u64,
    line: Vec<u8>,
    text: Option<String>,
}

impl Answer {
    /// Expects the answer to the request with this number.
    pub fn to(number: u64) -> Self {
        Self { number, line: Vec::new(), text: None }
    }

    /// Takes bytes; returns the file's text, or why there is none, once the answer is complete.
    /// Bytes after its end are dropped.
    pub fn take(&mut self, bytes: &[u8]) -> Option<Result<String, String>> {
        bytes.iter().find_map(|&byte| {
            if byte != b'\n' {
                self.line.push(byte);
                return (self.line.len() > LONGEST_LINE)
                    .then(|| Err("a line of the answer is too long".to_owned()));
            }
            let line = std::mem::take(&mut self.line);
            // The text may end up on a terminal, which it must not control.
            let harmless = |letter: char| if letter.is_control() { ' ' } else { letter };
            let line: String = String::from_utf8_lossy(&line).chars().map(harmless).collect();
            self.end_line(&line)
        })
    }

    fn end_line(&mut self, line: &str) -> Option<Result<String, String>> {
        let (mark, rest) = line.split_at_checked(1)?;
        let mine = |text: &str| text.parse() == Ok(self.number);
        match (mark, &mut self.text) {
            // Number 0 answers what could not be understood, such as our request with noise in it.
            ("=", text) if mine(rest) || rest == "0" => *text = Some(String::new()),
            ("+", Some(text)) => {
                if text.len() + rest.len() > LONGEST_TEXT {
                    return Some(Err("the answer is too long".to_owned()));
                }
                text.push_str(rest);
                text.push('\n');
            }
            (".", text @ Some(_)) if mine(rest) => return text.take().map(Ok),
            ("!", Some(_)) => {
                let (number, why) = rest.split_once(' ').unwrap_or((rest, ""));
                if mine(number) || number == "0" {
                    return Some(Err(why.to_owned()));
                }
                self.text = None;
            }
            // An answer to another request.
            ("=" | ".", text) => *text = None,
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_among_others_however_it_is_cut() {
        let all =
            b"+rest\n.3\n=4\n+old\n+x\n=5\n+a\n++b\n+\n.4\n=6\n+z\n.6\n=5\n+a\n++b\n+\n.5\n=7\n";
        for step in 1..all.len() {
            let mut answer = Answer::to(5);
            let got = all.chunks(step).find_map(|bytes| answer.take(bytes));
            assert_eq!(got, Some(Ok("a\n+b\n\n".to_owned())), "{step}");
        }
        assert_eq!(Answer::to(9).take(all), None);
    }

    #[test]
    fn errors_are_told() {
        let take = |bytes: &[u8]| Answer::to(1).take(bytes);
        assert_eq!(
            take(b"=1\n+half\n!1 No such file or directory\n"),
            Some(Err("No such file or directory".into()))
        );
        assert_eq!(
            take(b"=0\n!0 the request is too long\n"),
            Some(Err("the request is too long".into()))
        );
        assert_eq!(take(b"=1\n+a\x1b[2J\xc2\x9bb\n.1\n"), Some(Ok("a [2J b\n".into())));
        assert_eq!(take(b"!1 early\n\n\xff\n"), None);
        assert!(matches!(take(&[b'x'; LONGEST_LINE + 1]), Some(Err(_))));
        let endless =
            [&b"=1\n"[..], &[&b"+"[..], &[b'x'; 60_000], b"\n"].concat().repeat(300)].concat();
        assert_eq!(take(&endless), Some(Err("the answer is too long".into())));
    }
}
