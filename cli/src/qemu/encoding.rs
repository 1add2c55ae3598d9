//! Encodes commands as one word of a kernel's command line.

use std::fmt::Write;

/// Encodes `text`, with each byte that would end the word or have a meaning in it as `%` and two
/// hexadecimal digits.
pub fn encode(text: &str) -> String {
    let mut word = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && !matches!(byte, b'%' | b'"' | b'\'') {
            word.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(word, "%{byte:02x}");
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::encode;

    #[test]
    fn nothing_ends_the_word() {
        assert_eq!(
            encode("cat /proc/vmstat; echo 'a b' \"c\" 5%\n\u{e4}"),
            "cat%20/proc/vmstat;%20echo%20%27a%20b%27%20%22c%22%205%25%0a%c3%a4"
        );
        assert_eq!(encode(""), "");
    }
}
