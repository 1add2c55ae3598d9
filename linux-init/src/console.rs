//! Lines of text on standard output, each written with one call, so that the kernel's lines do not
//! mix with them.

use crate::system;
use core::fmt::{self, Write};

const LINE_BYTES: usize = 512;

/// A line that is being composed; text that does not fit is dropped.
pub struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Line {
    /// Prints one line.
    pub fn print(text: fmt::Arguments<'_>) {
        let mut line = Self { bytes: [0; LINE_BYTES], length: 0 };
        // This cannot fail, because text that does not fit is dropped.
        let _ = line.write_fmt(text);
        let end = line.length.min(LINE_BYTES - 1);
        line.bytes[end] = b'\n';
        system::print(&line.bytes[..=end]);
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = byte;
                self.length += 1;
            }
        }
        Ok(())
    }
}

/// Prints a line.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => { $crate::console::Line::print(format_args!($($words)*)) };
}
