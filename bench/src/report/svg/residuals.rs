//! The error of one measure relative to another, plotted over the size, so that large errors are
//! seen at any size.

use super::axis::{Scale, Unit};
use framewright_cli::page::svg::{Anchor, Picture, Svg};

/// A pair of measured and predicted values.
pub struct Point {
    /// What the pair is about.
    pub name: String,
    /// The measured value.
    pub measured: f64,
    /// The predicted value.
    pub predicted: f64,
    /// The series, which chooses colour and sign, and its name.
    pub series: (usize, String),
}

impl Point {
    /// The error in percent of the measured value.
    pub fn error_percent(&self) -> f64 {
        (self.predicted / self.measured - 1.0) * 100.0
    }
}

/// A plot of errors.
pub struct Residuals {
    /// What the plot shows, in words.
    pub title: String,
    /// The title of the lower axis, which is logarithmic.
    pub below: String,
    /// The unit of the lower axis.
    pub unit: Unit,
    /// The largest good error, in percent.
    pub band: f64,
    /// The pairs.
    pub points: Vec<Point>,
    /// The width of the picture.
    pub width: f64,
    /// The height of the picture.
    pub height: f64,
}

const HEAD: f64 = 40.0;
const FOOT: f64 = 38.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 48.0;
/// The most errors that are written beside their points; the largest ones are.
const MOST_NAMED: usize = 8;

impl Residuals {
    /// Draws the plot.
    pub fn draw(&self) -> Picture {
        let mut svg = Svg::new(self.width, self.height);
        let across = Scale::log(self.points.iter().map(|point| point.measured));
        let errors = self.points.iter().map(Point::error_percent);
        let up = Scale::linear(errors.chain([-self.band, self.band]));
        let (right, bottom) = (self.width - RIGHT, self.height - FOOT);
        let x = |value: f64| LEFT + across.place(value) * (right - LEFT);
        let y = |value: f64| bottom - up.place(value) * (bottom - HEAD);
        svg.text("ti", Anchor::Start, (0.0, 13.0), &self.title);
        svg.text("tk", Anchor::Start, (0.0, 30.0), "error of the prediction");
        svg.rectangle("band", (LEFT, y(self.band)), (right - LEFT, y(-self.band) - y(self.band)));
        for tick in up.ticks(((bottom - HEAD) / 34.0).max(2.0)) {
            svg.line("gr", (LEFT, y(tick)), (right, y(tick)));
            let sign = if tick > 0.0 { "+" } else { "" };
            svg.text(
                "tk",
                Anchor::End,
                (LEFT - 6.0, y(tick) + 4.0),
                &format!("{sign}{}", Unit::Percent.tick(tick)),
            );
        }
        for tick in across.ticks(((right - LEFT) / 60.0).max(2.0)) {
            svg.line("gr", (x(tick), HEAD), (x(tick), bottom));
            svg.text("tk", Anchor::Middle, (x(tick), bottom + 16.0), &self.unit.tick(tick));
        }
        svg.text(
            "tk",
            Anchor::Middle,
            (f64::midpoint(LEFT, right), self.height - 4.0),
            &self.below,
        );
        svg.line("ax", (LEFT, y(0.0)), (right, y(0.0)));
        for point in &self.points {
            let words = format!(
                "{}: predicted {}, measured {} ({:+.0} %)",
                point.name,
                self.unit.value(point.predicted),
                self.unit.value(point.measured),
                point.error_percent()
            );
            let (series, meaning) = &point.series;
            svg.sign((*series, meaning), (x(point.measured), y(point.error_percent())), &words);
        }
        let mut far: Vec<&Point> =
            self.points.iter().filter(|point| point.error_percent().abs() > self.band).collect();
        far.sort_by(|one, other| other.error_percent().abs().total_cmp(&one.error_percent().abs()));
        for point in far.into_iter().take(MOST_NAMED) {
            let place = (x(point.measured) + 8.0, y(point.error_percent()) + 4.0);
            svg.text("vl", Anchor::Start, place, &format!("{:+.0} %", point.error_percent()));
        }
        svg.finish(self.title.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_off_stands_out_and_says_by_how_much() {
        let point = |measured: f64, predicted: f64| Point {
            name: "fill".into(),
            measured,
            predicted,
            series: (0, "here".into()),
        };
        let points = vec![point(0.001, 0.0011), point(0.5, 0.4), point(20.0, 35.2)];
        let plot = Residuals {
            title: "t".into(),
            below: "measured".into(),
            unit: Unit::Time,
            band: 25.0,
            points,
            width: 400.0,
            height: 300.0,
        };
        let text = plot.draw().inline();
        assert!(
            text.contains("fill: predicted 1.10 ms, measured 1.00 ms (+10 %)")
                && !text.contains("NaN"),
            "{text}"
        );
        // Only a point beyond the band has its number beside it.
        assert_eq!(text.matches("class=\"vl\"").count(), 1);
        assert!(text.contains(">+76 %</text>"), "{text}");
        // The point is far from the line of no error.
        let heights: Vec<f64> = text
            .split("class=\"m s0\"")
            .skip(1)
            .map(|part| {
                let path =
                    part.split(" d=\"M").nth(1).and_then(|path| path.split(['a', '"']).next());
                path.and_then(|path| path.split(' ').nth(1))
                    .and_then(|y| y.parse().ok())
                    .expect("a place")
            })
            .collect();
        assert!(
            (heights[2] - heights[0]).abs() > 4.0 * (heights[1] - heights[0]).abs() / 2.0,
            "{heights:?}"
        );
    }
}
