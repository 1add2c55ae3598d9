//! Curves over an axis, each with its name at its end.

use super::axis::{Scale, Unit};
use framewright_cli::page::html::put;
use framewright_cli::page::svg::{Anchor, Picture, Short, Svg, class};

/// A curve.
pub struct Line {
    /// The curve's name.
    pub name: String,
    /// The points, ascending in x.
    pub points: Vec<(f64, f64)>,
    /// The series, which chooses colour and sign.
    pub series: usize,
}

/// A plot of curves.
pub struct Lines {
    /// What the plot shows, in words.
    pub title: String,
    /// The title and unit of the lower axis.
    pub below: (String, Unit),
    /// The unit of the side axis.
    pub side: Unit,
    /// Whether the lower axis is logarithmic.
    pub is_log: bool,
    /// Whether points have signs, which suits few points.
    pub has_signs: bool,
    /// The curves.
    pub lines: Vec<Line>,
    /// A curve that is the ideal, such as a speed-up that grows with the threads.
    pub ideal: Option<Line>,
    /// The width of the picture.
    pub width: f64,
    /// The height of the picture.
    pub height: f64,
}

const HEAD: f64 = 26.0;
const FOOT: f64 = 38.0;
const LEFT: f64 = 52.0;
/// The approximate width of a character of a name, which is bold.
const CHARACTER: f64 = 7.6;

impl Lines {
    /// Draws the plot.
    pub fn draw(&self) -> Picture {
        let mut svg = Svg::new(self.width, self.height);
        let points = || self.lines.iter().chain(&self.ideal).flat_map(|line| line.points.iter());
        let across = points().map(|point| point.0);
        let across = if self.is_log { Scale::log(across) } else { Scale::linear(across) };
        let up = Scale::linear(points().map(|point| point.1));
        let names = self
            .lines
            .iter()
            .chain(&self.ideal)
            .map(|line| line.name.chars().count())
            .max()
            .unwrap_or(0);
        let names = (names as f64 * CHARACTER + 14.0).min(self.width * 0.4);
        let (right, bottom) = (self.width - names, self.height - FOOT);
        let x = |value: f64| LEFT + across.place(value) * (right - LEFT);
        let y = |value: f64| bottom - up.place(value) * (bottom - HEAD);
        svg.text("ti", Anchor::Start, (0.0, 13.0), &self.title);
        for tick in up.ticks(((bottom - HEAD) / 40.0).max(2.0)) {
            svg.line("gr", (LEFT, y(tick)), (right, y(tick)));
            svg.text("tk", Anchor::End, (LEFT - 6.0, y(tick) + 4.0), &self.side.tick(tick));
        }
        for tick in across.ticks(((right - LEFT) / 56.0).max(2.0)) {
            svg.line("tm", (x(tick), bottom), (x(tick), bottom + 4.0));
            svg.text("tk", Anchor::Middle, (x(tick), bottom + 17.0), &self.below.1.tick(tick));
        }
        svg.line("ax", (LEFT, bottom), (right, bottom));
        svg.text(
            "tk",
            Anchor::Middle,
            (f64::midpoint(LEFT, right), self.height - 4.0),
            &self.below.0,
        );
        let path = |points: &[(f64, f64)]| {
            let mut path = String::new();
            for (index, point) in points.iter().enumerate() {
                put!(
                    path,
                    "{}{} {}",
                    if index == 0 { "M" } else { "L" },
                    Short(x(point.0)),
                    Short(y(point.1))
                );
            }
            path
        };
        if let Some(ideal) = &self.ideal {
            svg.path("ideal", &path(&ideal.points));
        }
        for line in &self.lines {
            svg.curve((line.series, &line.name), &path(&line.points));
            if self.has_signs {
                for &(at, value) in &line.points {
                    let words = format!(
                        "{}, {}: {}",
                        line.name,
                        self.below.1.tick(at),
                        self.side.value(value)
                    );
                    svg.sign((line.series, &line.name), (x(at), y(value)), &words);
                }
            }
        }
        self.names(&mut svg, right, bottom, &y);
        let names: Vec<&str> = self.lines.iter().map(|line| line.name.as_str()).collect();
        svg.finish(format!("{}: {}", self.title, names.join(", ")))
    }

    /// Puts names at the ends of curves, moved apart where they would overlap.
    fn names(&self, svg: &mut Svg, right: f64, bottom: f64, y: &impl Fn(f64) -> f64) {
        const APART: f64 = 14.0;
        let ends = self.lines.iter().chain(&self.ideal).enumerate();
        let mut ends: Vec<(f64, usize)> = ends
            .filter_map(|(index, line)| line.points.last().map(|point| (y(point.1), index)))
            .collect();
        ends.sort_by(|one, other| one.0.total_cmp(&other.0));
        for index in 1..ends.len() {
            ends[index].0 = ends[index].0.max(ends[index - 1].0 + APART);
        }
        // Names that were pushed below the axis push the others back up.
        let mut limit = bottom;
        for end in ends.iter_mut().rev() {
            end.0 = end.0.min(limit);
            limit = end.0 - APART;
        }
        for (place, index) in ends {
            match self.lines.get(index) {
                Some(line) => svg.text(
                    &class("nm", line.series),
                    Anchor::Start,
                    (right + 8.0, place + 4.0),
                    &line.name,
                ),
                None => svg.text(
                    "tk",
                    Anchor::Start,
                    (right + 8.0, place + 4.0),
                    self.ideal.as_ref().map_or("", |line| &line.name),
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_drawn_and_their_names_lie_apart() {
        let line = |name: &str, last: f64, series| Line {
            name: name.into(),
            points: vec![(1.0, 1.0), (2.0, last)],
            series,
        };
        let text = Lines {
            title: "Speed-up".into(),
            below: ("threads".into(), Unit::Number),
            side: Unit::Ratio,
            is_log: false,
            has_signs: true,
            lines: vec![line("a", 1.9, 0), line("b", 1.9, 1), line("c", 0.0, 2)],
            ideal: Some(line("ideal", 2.0, 5)),
            width: 400.0,
            height: 240.0,
        }
        .draw()
        .inline();
        let places: Vec<f64> = text
            .split("<text class=\"nm")
            .skip(1)
            .map(|part| {
                part.split("y=\"")
                    .nth(1)
                    .and_then(|part| part.split('"').next())
                    .and_then(|y| y.parse().ok())
                    .expect("a place")
            })
            .collect();
        assert!(places.len() == 3 && (places[0] - places[1]).abs() >= 13.9, "{places:?}");
        assert!(text.contains("a, 2: 1.90\u{d7}") && !text.contains("NaN"));
    }
}
