//! Sizes and counts in readable form.

use core::fmt;
use framewright::units::PAGE_SIZE;

/// A number of things: `1 run`, `2 runs`. A format width applies to the number.
pub struct Counted(pub u64, pub &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(0);
        write!(f, "{:width$} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// A number of bytes, rounded to tenths of the largest unit that it reaches, from 100 on to whole
/// ones.
pub struct Size(u64);

impl Size {
    pub const fn of_pages(pages: u64) -> Self {
        Self(pages.saturating_mul(PAGE_SIZE))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        // What rounds to 1024 of a unit is 1 of the next.
        let reaches = |shift: u32| self.0.saturating_add(1 << shift >> 11) >> shift != 0;
        let (shift, unit) =
            units.into_iter().find(|&(shift, _)| reaches(shift)).unwrap_or((10, "KiB"));
        let rounded = |parts: u128| (u128::from(self.0) * parts + (1 << shift >> 1)) >> shift;
        let tenths = rounded(10);
        let mut text = crate::io::Text::<24>::new();
        let _ = if shift == 10 || tenths.is_multiple_of(10) || tenths >= 1000 {
            fmt::write(&mut text, format_args!("{} {unit}", rounded(1)))
        } else {
            fmt::write(&mut text, format_args!("{}.{} {unit}", tenths / 10, tenths % 10))
        };
        f.pad(text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sizes_are_short() {
        for (pages, text) in [
            (0, "0 KiB"),
            (1, "4 KiB"),
            (512, "2 MiB"),
            (700, "2.7 MiB"),
            (375 << 10, "1.5 GiB"),
            ((1 << 19) - 4096, "2 GiB"),
            ((1 << 18) - 129, "1023 MiB"),
            ((1 << 18) - 128, "1 GiB"),
            ((100 << 8) - 10, "100 MiB"),
            ((100 << 8) + 128, "101 MiB"),
            (1 << 18, "1 GiB"),
            (3 << 27, "1.5 TiB"),
        ] {
            assert_eq!(format!("{}", Size::of_pages(pages)), text);
        }
        assert_eq!(format!("{:>8}|", Size::of_pages(1)), "   4 KiB|");
        assert_eq!(format!("{}", Size::of_pages(u64::MAX)), "16777216 TiB");
    }
}
