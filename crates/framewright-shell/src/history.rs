//! The last lines that were typed.

/// How many lines are kept.
const LINES: usize = 16;
/// Longer lines are not kept.
const BYTES: usize = 256;

/// A ring of lines.
pub(crate) struct History {
    lines: [[u8; BYTES]; LINES],
    lens: [usize; LINES],
    next: usize,
}

impl History {
    pub const EMPTY: Self = Self { lines: [[0; BYTES]; LINES], lens: [0; LINES], next: 0 };

    /// Adds a line, unless it equals the last one.
    pub fn add(&mut self, line: &[u8]) {
        if line.is_empty() || line.len() > BYTES || self.get(1) == Some(line) {
            return;
        }
        let slot = self.next % LINES;
        if let (Some(place), Some(len)) = (self.lines.get_mut(slot), self.lens.get_mut(slot)) {
            place.iter_mut().zip(line).for_each(|(place, &byte)| *place = byte);
            *len = line.len();
        }
        self.next = self.next.wrapping_add(1);
    }

    /// The line that was typed `back` lines ago; 1 is the last one.
    pub fn get(&self, back: usize) -> Option<&[u8]> {
        if back == 0 || back > LINES {
            return None;
        }
        let slot = self.next.checked_sub(back)? % LINES;
        let line = self.lines.get(slot)?.get(..*self.lens.get(slot)?)?;
        (!line.is_empty()).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn the_last_lines_are_kept() {
        let mut history = History::EMPTY;
        assert_eq!(history.get(1), None);
        for number in 0..20 {
            history.add(format!("line {number}").as_bytes());
            history.add(format!("line {number}").as_bytes());
        }
        history.add(b"");
        history.add(&[b'x'; BYTES + 1]);
        for back in 1..=LINES {
            assert_eq!(history.get(back), Some(format!("line {}", 20 - back).as_bytes()));
        }
        assert_eq!((history.get(0), history.get(LINES + 1)), (None, None));
    }
}
