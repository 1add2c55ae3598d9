//! Escapes text for HTML.

use std::fmt::{self, Write};

/// Text that appears literally, whatever it contains, in elements and in quoted attributes.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Control characters are not allowed in HTML at all.
                character if character.is_control() && !matches!(character, '\n' | '\t') => {
                    f.write_char('\u{fffd}')?
                }
                character => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Appends formatted text to a string, which never fails.
#[macro_export]
macro_rules! put {
    ($out:expr, $($argument:tt)*) => {{
        use std::fmt::Write as _;
        let _ = write!($out, $($argument)*);
    }};
}
pub use crate::put;

#[cfg(test)]
mod tests {
    use super::Escaped;

    #[test]
    fn nothing_ends_an_element_or_an_attribute() {
        assert_eq!(
            Escaped("<a b='c' d=\"e\">&\0").to_string(),
            "&lt;a b=&#39;c&#39; d=&quot;e&quot;&gt;&amp;\u{fffd}"
        );
    }
}
