//! Understands enough of Rust's grammar to tell code from comments and strings.

/// Blanks all comments and the inside of all string and character literals of `text`; lines stay
/// where they are.
pub fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let literal = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => quoted(rest),
            'r' | 'b' | 'c' if !ends_in_word(&out) => prefixed(rest),
            '\'' => character(rest),
            _ => 0,
        };
        if literal == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            out.extend(rest[..literal].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[literal..];
        }
    }
    out
}

fn ends_in_word(text: &str) -> bool {
    text.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_')
}

/// The length of a block comment, which may be nested.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of a string literal with escapes, from its opening quote.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a literal with a prefix, such as a raw or a byte string; 0 if it is none.
fn prefixed(text: &str) -> usize {
    let letters = text.bytes().take_while(|byte| b"rbc".contains(byte)).count();
    let (prefix, rest) = text.split_at(letters);
    let hashes = rest.bytes().take_while(|&byte| byte == b'#').count();
    let body = &rest[hashes..];
    if !matches!(prefix, "r" | "b" | "c" | "br" | "cr") || !body.starts_with('"') {
        return 0;
    }
    if prefix.ends_with('r') {
        let end = format!("\"{}", "#".repeat(hashes));
        let body_length = body[1..].find(&end).map_or(body.len(), |at| 1 + at + end.len());
        letters + hashes + body_length
    } else if hashes == 0 {
        letters + quoted(body)
    } else {
        0
    }
}

/// The length of a character literal; 0 if the quote begins a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            // The escaped character may itself be a quote.
            chars.next();
            chars.find(|&(_, c)| c == '\'').map_or(0, |(at, _)| at + 1)
        }
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::code;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_kept() {
        assert_eq!(code("a // b\nc"), "a     \nc");
        assert_eq!(code("a /* b /* c */\n d */ e"), "a             \n      e");
        assert_eq!(code(r#"f("a\"{", '"', b"{")"#).replace(' ', ""), "f(,,)");
        assert_eq!(code(r###"f(r#"a " { "#, br"{")"###).replace(' ', ""), "f(,)");
    }

    #[test]
    fn lifetimes_and_names_are_code() {
        let text = "fn f<'a>(r: &'a str, b: char) -> &'static str { car!(r) }";
        assert_eq!(code(text), text);
        assert_eq!(code(r"if c == '\'' { x }").replace(' ', ""), "ifc=={x}");
    }
}
