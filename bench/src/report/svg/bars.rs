//! Rows with a mark or a bar for each series, which is how most tables are shown.

use super::axis::{Scale, Unit};
use framewright_cli::page::html::{Escaped, put};
use framewright_cli::page::svg::{Anchor, Picture, Svg, class};
use std::ops::Range;

/// How values are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A bar for each value, from zero.
    Bars,
    /// A mark for each value, all in one row.
    Dots,
}

/// A value and its spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mark {
    /// The median.
    pub value: f64,
    /// The least and the greatest value.
    pub spread: Option<(f64, f64)>,
}

/// A limit, drawn as a line across rows.
#[derive(Clone, PartialEq, Debug)]
pub struct Limit {
    /// The value of the limit.
    pub value: f64,
    /// What the limit means.
    pub meaning: String,
    /// The rows that the limit is for.
    pub rows: Range<usize>,
}

impl Limit {
    /// A limit for all rows.
    pub fn all(value: f64, meaning: &str) -> Self {
        Self { value, meaning: meaning.into(), rows: 0..usize::MAX }
    }
}

/// A plot of rows.
pub struct Bars {
    /// What the plot shows, in words.
    pub title: String,
    /// The unit of all values.
    pub unit: Unit,
    /// How the values are shown.
    pub shape: Shape,
    /// Whether the axis is logarithmic.
    pub is_log: bool,
    /// The names of the series.
    pub series: Vec<String>,
    /// The rows: a name, and a value for each series that has one.
    pub rows: Vec<(String, Vec<Option<Mark>>)>,
    /// The limits.
    pub limits: Vec<Limit>,
    /// The sign of the first series; the others have the next signs. Throughout a section, a sign
    /// has one meaning.
    pub first_sign: usize,
    /// The width of the picture.
    pub width: f64,
}

const HEAD: f64 = 26.0;
/// The most characters that fit above the numbers at the right.
const LONGEST_HEADING: usize = 12;
/// The height of the line that names limits.
const MEANING: f64 = 13.0;
/// The approximate width of a character of a name.
const CHARACTER: f64 = 6.7;
const FOOT: f64 = 24.0;
const VALUES: f64 = 62.0;
const DOT_ROW: f64 = 24.0;
const BAR: f64 = 12.0;

impl Bars {
    /// Draws the plot.
    pub fn draw(&self) -> Picture {
        let each = match self.shape {
            Shape::Dots => DOT_ROW,
            Shape::Bars => 10.0 + BAR * self.series.len().max(1) as f64,
        };
        let has_meaning = self.limits.iter().any(|limit| !limit.meaning.is_empty());
        let head = HEAD + if has_meaning { MEANING } else { 0.0 };
        let bottom = head + each * self.rows.len() as f64;
        let mut svg = Svg::new(self.width, bottom + FOOT);
        let marks = || self.rows.iter().flat_map(|(_, marks)| marks.iter().flatten());
        let spreads = marks().flat_map(|mark| {
            let (least, most) = mark.spread.unwrap_or((mark.value, mark.value));
            [mark.value, least, most]
        });
        let all = spreads.chain(self.limits.iter().map(|limit| limit.value));
        let scale = if self.is_log { Scale::log(all) } else { Scale::linear(all) };
        let longest = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let left = (longest as f64 * CHARACTER + 16.0).clamp(64.0, self.width * 0.5);
        let right = self.width - VALUES;
        let x = |value: f64| left + scale.place(value) * (right - left);
        svg.text("ti", Anchor::Start, (0.0, 13.0), &self.title);
        for tick in scale.ticks(((right - left) / 58.0).max(2.0)) {
            svg.line("gr", (x(tick), head), (x(tick), bottom));
            svg.text("tk", Anchor::Middle, (x(tick), bottom + 14.0), &self.unit.tick(tick));
        }
        // Name the series whose numbers stand at the right.
        if let (Shape::Dots, [first, _, ..]) = (self.shape, self.series.as_slice())
            && first.chars().count() <= LONGEST_HEADING
        {
            // The line above the names of limits, which may reach as far to the right.
            svg.text("tk", Anchor::End, (self.width, HEAD - 6.0), first);
        }
        for (row, (name, marks)) in self.rows.iter().enumerate() {
            let top = head + each * row as f64;
            svg.text("lb", Anchor::End, (left - 8.0, top + each / 2.0 + 4.0), name);
            match self.shape {
                Shape::Dots => self.dots(&mut svg, (name, marks), top + each / 2.0, &x),
                Shape::Bars => self.bars(&mut svg, (name, marks), top + 5.0, &x),
            }
        }
        for Limit { value, meaning, rows } in &self.limits {
            let (from, to) = (rows.start.min(self.rows.len()), rows.end.min(self.rows.len()));
            let is_first = from == 0;
            let top = if is_first { head - 3.0 } else { head + each * from as f64 };
            let place = scale.place(*value);
            svg.line("ref", (x(*value), top), (x(*value), head + each * to as f64));
            if meaning.is_empty() {
                continue;
            }
            // A name to the left of its line leaves room at the right for the next one.
            let is_alone = self.limits.len() == 1;
            let is_left =
                self.limits.iter().any(|other| other.rows.start == 0 && other.value > *value);
            let anchor = match place {
                _ if !is_first || is_alone && place > 0.6 => Anchor::End,
                _ if is_left && place > 0.3 => Anchor::End,
                _ if place < 0.12 => Anchor::Start,
                _ => Anchor::Middle,
            };
            let (aside, below) =
                if is_first { (0.0, head - 6.0) } else { (5.0, top + each / 2.0 + 4.0) };
            svg.text("rf", anchor, (x(*value) - aside, below), meaning);
        }
        let base = x(self.base());
        svg.line("ax", (base, head), (base, bottom));
        svg.finish(format!(
            "{}: {}",
            self.title,
            self.rows.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
        ))
    }

    /// The value at which bars begin.
    const fn base(&self) -> f64 {
        if self.is_log { f64::MIN_POSITIVE } else { 0.0 }
    }

    fn words(&self, name: &str, series: usize, mark: Mark) -> String {
        let spread = mark
            .spread
            .filter(|(least, most)| least < most)
            .map_or_else(String::new, |(least, most)| {
                format!(" ({} to {})", self.unit.value(least), self.unit.value(most))
            });
        let which =
            self.series.get(series).map_or_else(String::new, |series| format!(", {series}"));
        format!("{name}{which}: {}{spread}", self.unit.value(mark.value))
    }

    fn dots(
        &self,
        svg: &mut Svg,
        (name, marks): (&str, &[Option<Mark>]),
        y: f64,
        x: &impl Fn(f64) -> f64,
    ) {
        let places: Vec<f64> = marks.iter().flatten().map(|mark| x(mark.value)).collect();
        if let (Some(least), Some(most)) =
            (places.iter().copied().reduce(f64::min), places.iter().copied().reduce(f64::max))
        {
            svg.line("tie", (least, y), (most, y));
        }
        // The first series is drawn last, so that it is on top.
        for (series, mark) in marks.iter().enumerate().rev() {
            let Some(mark) = *mark else { continue };
            if let Some((least, most)) = mark.spread {
                svg.line(&class("sp", self.first_sign + series), (x(least), y), (x(most), y));
            }
            let meaning = self.series.get(series).map_or("", String::as_str);
            svg.sign(
                (self.first_sign + series, meaning),
                (x(mark.value), y),
                &self.words(name, series, mark),
            );
        }
        if let Some(Some(first)) = marks.first() {
            svg.text(
                &class("vl", self.first_sign),
                Anchor::End,
                (self.width, y + 4.0),
                &self.unit.value(first.value),
            );
        }
    }

    fn bars(
        &self,
        svg: &mut Svg,
        (name, marks): (&str, &[Option<Mark>]),
        top: f64,
        x: &impl Fn(f64) -> f64,
    ) {
        let base = x(self.base());
        for (series, mark) in marks.iter().enumerate() {
            let Some(mark) = *mark else { continue };
            let (y, end) = (top + BAR * series as f64, x(mark.value));
            svg.begin(&self.words(name, series, mark));
            let meaning = self.series.get(series).map_or("", String::as_str);
            svg.bar(
                (self.first_sign + series, meaning),
                (base.min(end), y + 1.0),
                ((end - base).abs().max(0.7), BAR - 2.0),
            );
            let mut reach = end;
            if let Some((least, most)) = mark.spread.filter(|(least, most)| least < most) {
                svg.line("wh", (x(least), y + BAR / 2.0), (x(most), y + BAR / 2.0));
                reach = reach.max(x(most));
            }
            svg.text(
                "vl",
                Anchor::Start,
                (reach + 4.0, y + BAR / 2.0 + 4.0),
                &self.unit.value(mark.value),
            );
            svg.end();
        }
    }
}

/// The signs of the series with their names.
pub fn legend(series: &[String], first_sign: usize) -> String {
    let mut items = String::new();
    for (index, name) in series.iter().enumerate() {
        let mut svg = Svg::new(14.0, 14.0);
        svg.sign((first_sign + index, name), (7.0, 7.0), "");
        let sign = svg.finish("").body;
        let name = Escaped(name);
        put!(
            items,
            "<li><svg class=\"sign\" viewBox=\"0 0 14 14\" \
             aria-hidden=\"true\">{sign}</svg>{name}</li>"
        );
    }
    format!("<ul class=\"legend\">{items}</ul>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(shape: Shape, is_log: bool) -> String {
        let mark = |value: f64| Some(Mark { value, spread: Some((value * 0.9, value * 1.2)) });
        Bars {
            title: "a <title>".into(),
            unit: Unit::Time,
            shape,
            is_log,
            series: vec!["ours".into(), "theirs".into()],
            rows: vec![
                ("order 0".into(), vec![mark(4e-9), mark(3e-8)]),
                ("order 9".into(), vec![None, mark(1e-6)]),
            ],
            limits: vec![Limit::all(6e-9, "limit")],
            first_sign: 0,
            width: 400.0,
        }
        .draw()
        .inline()
    }

    #[test]
    fn every_value_has_its_words_and_nothing_leaves_the_picture() {
        for (shape, is_log) in [(Shape::Dots, true), (Shape::Bars, false), (Shape::Bars, true)] {
            let text = plot(shape, is_log);
            assert!(
                text.contains("order 0, ours: 4.00 ns (3.60 ns to 4.80 ns)")
                    && text.contains("order 9, theirs: 1.00 \u{b5}s")
            );
            assert!(
                !text.contains("NaN") && !text.contains("inf") && text.contains("a &lt;title&gt;")
            );
            for part in text.split(" x=\"").skip(1) {
                let x: f64 = part
                    .split('"')
                    .next()
                    .and_then(|number| number.parse().ok())
                    .expect("a number");
                assert!((-0.1..=400.1).contains(&x), "{x}");
            }
        }
    }

    #[test]
    fn words_of_limits_have_a_line_without_the_heading_of_numbers() {
        let row = |half: f64| {
            vec![
                Some(Mark { value: half, spread: None }),
                Some(Mark { value: 2.0 * half, spread: None }),
            ]
        };
        let limit = |value: f64, meaning: &str, rows: usize| Limit {
            value,
            meaning: meaning.into(),
            rows: 0..rows,
        };
        let text = Bars {
            title: "Until memory is back".into(),
            unit: Unit::Time,
            shape: Shape::Dots,
            is_log: true,
            series: vec!["half".into(), "95 %".into()],
            rows: vec![
                ("guest, adaptive, 2 GiB".into(), row(0.2)),
                ("guest, fixed, 2 GiB".into(), row(6.2)),
            ],
            limits: vec![limit(3.0, "must", 1), limit(18.0, "Linux, elsewhere", 2)],
            first_sign: 0,
            width: 520.0,
        }
        .draw()
        .inline();
        let element = |words: &str| {
            let end = text.find(&format!(">{words}</text>")).expect("it is there");
            let start = text[..end].rfind('<').expect("it begins");
            text[start..end].to_owned()
        };
        let number = |words: &str, name: &str| {
            let element = element(words);
            let value = element
                .split(&format!(" {name}=\""))
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            value.and_then(|value| value.parse::<f64>().ok()).expect("a number")
        };
        let (heading, linux) = (number("half", "y"), number("Linux, elsewhere", "y"));
        assert!(linux - heading >= 12.0, "{text}");
        // One name ends at its line; the middle of the other is at its own line.
        let room = number("Linux, elsewhere", "x") - number("must", "x");
        assert!(element("must").contains("end"), "{}", element("must"));
        assert!(room >= 16.0 / 2.0 * CHARACTER, "{room}");
    }
}
