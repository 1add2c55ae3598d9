//! Pictures: what plots are drawn with. Colours are classes, so that a page decides what they are,
//! light or dark.

use super::html::{Escaped, put};
use std::fmt;

/// A picture that is being drawn.
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// Where a text is in relation to its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// It is centred.
    Middle,
    /// It ends there.
    End,
}

/// A number with at most one digit behind the point.
pub struct Short(pub f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = (self.0 * 10.0).round() / 10.0;
        if rounded == 0.0 { f.write_str("0") } else { write!(f, "{rounded}") }
    }
}

/// Colours and forms of series. As many further series have hollow signs and broken lines.
pub const COLOURS: usize = 6;
/// Series that look different from one another.
pub const MOST_SERIES: usize = 2 * COLOURS;

/// The class of what is drawn as `kind` for a series.
pub fn class(kind: &str, series: usize) -> String {
    let hollow = if series / COLOURS % 2 == 1 { " ho" } else { "" };
    format!("{kind}{hollow} s{}", series % COLOURS)
}

impl Svg {
    /// An empty picture.
    pub fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    /// A line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(Short);
        put!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"
        );
    }

    /// A rectangle from its upper left corner.
    pub fn rectangle(&mut self, class: &str, corner: (f64, f64), size: (f64, f64)) {
        let [x, y, w, h] = [corner.0, corner.1, size.0.max(0.0), size.1.max(0.0)].map(Short);
        put!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"/>"
        );
    }

    /// A path, closed or not.
    pub fn path(&mut self, class: &str, path: &str) {
        put!(self.body, "<path class=\"{class}\" d=\"{path}\"/>");
    }

    /// A bar of a series, from its upper left corner.
    pub fn bar(&mut self, (series, meaning): (usize, &str), corner: (f64, f64), size: (f64, f64)) {
        let [x, y, w, h] = [corner.0, corner.1, size.0.max(0.0), size.1.max(0.0)].map(Short);
        let (class, meaning) = (class("br", series), Escaped(meaning));
        put!(
            self.body,
            "<rect class=\"{class}\" data-series=\"{meaning}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" \
             height=\"{h}\"/>"
        );
    }

    /// A curve of a series.
    pub fn curve(&mut self, (series, meaning): (usize, &str), path: &str) {
        let (class, meaning) = (class("ln", series), Escaped(meaning));
        put!(self.body, "<path class=\"{class}\" data-series=\"{meaning}\" d=\"{path}\"/>");
    }

    /// Words.
    pub fn text(&mut self, class: &str, anchor: Anchor, place: (f64, f64), words: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let (x, y) = (Short(place.0), Short(place.1));
        put!(
            self.body,
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}>{}</text>",
            Escaped(words)
        );
    }

    /// The sign of a series: a form of its own for each, so that nobody needs colours. `meaning`
    /// is the series' name.
    pub fn sign(&mut self, (series, meaning): (usize, &str), place: (f64, f64), title: &str) {
        let (x, y) = place;
        let form = match series % COLOURS {
            0 => format!("M{} {}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z", Short(x - 5.0), Short(y)),
            1 => format!("M{} {}l5 5l-5 5l-5 -5z", Short(x), Short(y - 5.0)),
            2 => format!("M{} {}h8v8h-8z", Short(x - 4.0), Short(y - 4.0)),
            3 => format!("M{} {}l5 9h-10z", Short(x), Short(y - 5.5)),
            4 => format!("M{} {}l5 -9h-10z", Short(x), Short(y + 5.5)),
            _ => format!("M{} {}h10v4h-10z", Short(x - 5.0), Short(y - 2.0)),
        };
        let (class, meaning) = (class("m", series), Escaped(meaning));
        put!(self.body, "<path class=\"{class}\" data-series=\"{meaning}\" d=\"{form}\"");
        if title.is_empty() {
            self.body.push_str("/>");
        } else {
            put!(self.body, "><title>{}</title></path>", Escaped(title));
        }
    }

    /// Opens a part that has a text for whoever points at it. Ends with [`end`](Self::end).
    pub fn begin(&mut self, title: &str) {
        put!(self.body, "<g><title>{}</title>", Escaped(title));
    }

    /// Ends what was begun.
    pub fn end(&mut self) {
        self.body.push_str("</g>");
    }

    /// Elements that were drawn elsewhere, moved.
    pub fn part(&mut self, place: (f64, f64), elements: &str) {
        put!(
            self.body,
            "<g transform=\"translate({} {})\">{elements}</g>",
            Short(place.0),
            Short(place.1)
        );
    }

    /// The picture; `label` says what it shows to whoever cannot see it.
    pub fn finish(self, label: impl Into<String>) -> Picture {
        Picture { body: self.body, width: self.width, height: self.height, label: label.into() }
    }
}

/// A picture that is done.
pub struct Picture {
    /// Its elements.
    pub body: String,
    /// Its width.
    pub width: f64,
    /// Its height.
    pub height: f64,
    /// What it shows, in words.
    pub label: String,
}

impl Picture {
    /// As a part of a page.
    pub fn inline(&self) -> String {
        let (width, height) = (Short(self.width), Short(self.height));
        format!(
            "<svg class=\"plot\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{}\">{}</svg>",
            Escaped(&self.label),
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_small_and_safe() {
        let mut svg = Svg::new(10.0, 20.04);
        svg.line("ax", (0.0, -0.01), (1.26, 3.0));
        svg.text("lb", Anchor::End, (1.0, 2.0), "<b>");
        svg.sign((1, "s"), (5.0, 5.0), "a & b");
        let text = svg.finish("\"quoted\"").inline();
        assert!(text.starts_with(
            "<svg class=\"plot\" viewBox=\"0 0 10 20\" role=\"img\" \
                 aria-label=\"&quot;quoted&quot;\">"
        ));
        assert!(
            text.contains("x1=\"0\" y1=\"0\" x2=\"1.3\" y2=\"3\"") && text.contains(">&lt;b&gt;<")
        );
        assert!(text.contains("<title>a &amp; b</title>"));
    }
}
