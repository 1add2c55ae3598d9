//! One measure against another of the same kind, both logarithmic: on the diagonal they agree.

use super::{Anchor, Picture, Scale, Short, Svg, Unit};

/// A pair.
pub struct Point {
    /// What it is.
    pub name: String,
    /// Across.
    pub across: f64,
    /// Upwards.
    pub up: f64,
    /// Which colour and sign.
    pub series: usize,
}

/// A plot of pairs.
pub struct Scatter {
    /// What it shows, in words.
    pub title: String,
    /// The axis below.
    pub below: String,
    /// The axis at the side.
    pub side: String,
    /// Of both.
    pub unit: Unit,
    /// How far from the diagonal is still good, as a share.
    pub band: f64,
    /// The pairs.
    pub points: Vec<Point>,
    /// Width and height.
    pub size: f64,
}

const HEAD: f64 = 40.0;
const FOOT: f64 = 38.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;

impl Scatter {
    /// The picture.
    pub fn draw(&self) -> Picture {
        let mut svg = Svg::new(self.size, self.size * 0.86);
        let scale = Scale::log(self.points.iter().flat_map(|point| [point.across, point.up]));
        let (right, bottom) = (self.size - RIGHT, self.size * 0.86 - FOOT);
        let x = |value: f64| LEFT + scale.place(value) * (right - LEFT);
        let y = |value: f64| bottom - scale.place(value) * (bottom - HEAD);
        svg.text("ti", Anchor::Start, (0.0, 13.0), &self.title);
        svg.text("tk", Anchor::Start, (0.0, 30.0), &self.side);
        for tick in scale.ticks(((right - LEFT) / 60.0).max(2.0)) {
            svg.line("gr", (x(tick), HEAD), (x(tick), bottom));
            svg.line("gr", (LEFT, y(tick)), (right, y(tick)));
            svg.text("tk", Anchor::Middle, (x(tick), bottom + 16.0), &self.unit.tick(tick));
            svg.text("tk", Anchor::End, (LEFT - 6.0, y(tick) + 4.0), &self.unit.tick(tick));
        }
        svg.text("tk", Anchor::Middle, (f64::midpoint(LEFT, right), self.size * 0.86 - 4.0), &self.below);
        // The band has the same width everywhere on logarithmic axes.
        if let Some(&first) = scale.ticks(2.0).first() {
            let wide = (scale.place(first * (1.0 + self.band)) - scale.place(first)) * (bottom - HEAD);
            let corner = |at: f64, by: f64| format!("{} {}", Short(at), Short(by));
            let path = format!(
                "M{}L{}L{}L{}L{}L{}z",
                corner(LEFT, bottom),
                corner(LEFT, bottom - wide),
                corner(right - wide * (right - LEFT) / (bottom - HEAD), HEAD),
                corner(right, HEAD),
                corner(right, HEAD + wide),
                corner(LEFT + wide * (right - LEFT) / (bottom - HEAD), bottom),
            );
            svg.path("band", &path);
        }
        svg.line("ideal", (LEFT, bottom), (right, HEAD));
        for point in &self.points {
            let error = (point.up / point.across - 1.0) * 100.0;
            let words = format!(
                "{}: predicted {}, measured {} ({error:+.0} %)",
                point.name,
                self.unit.value(point.up),
                self.unit.value(point.across)
            );
            svg.sign(point.series, (x(point.across), y(point.up)), &words);
        }
        svg.finish(self.title.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_their_words() {
        let point = |across: f64, up: f64| Point { name: "fill".into(), across, up, series: 0 };
        let points = vec![point(0.001, 0.0011), point(0.5, 0.4)];
        let plot = Scatter {
            title: "t".into(),
            below: "measured".into(),
            side: "predicted".into(),
            unit: Unit::Time,
            band: 0.25,
            points,
            size: 400.0,
        };
        let text = plot.draw().inline();
        assert!(text.contains("fill: predicted 1.10 ms, measured 1.00 ms (+10 %)") && !text.contains("NaN"), "{text}");
    }
}
