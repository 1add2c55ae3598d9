//! Drawing of SVG pictures. Colours are CSS classes, so that a page decides what they look like in
//! light and dark mode.

use super::html::{Escaped, put};
use std::fmt;

/// A picture that is being drawn.
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// How a text is aligned at its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    /// The text begins at the position.
    Start,
    /// The text is centred on the position.
    Middle,
    /// The text ends at the position.
    End,
}

/// A number with at most one decimal.
pub struct Short(pub f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = (self.0 * 10.0).round() / 10.0;
        if rounded == 0.0 { f.write_str("0") } else { write!(f, "{rounded}") }
    }
}

/// The number of colours and shapes of series. A second set of as many series has hollow signs and
/// dashed lines.
pub const COLOURS: usize = 6;
/// The number of series that look different from one another.
pub const MOST_SERIES: usize = 2 * COLOURS;

/// The CSS class of an element of this `kind` that belongs to a series.
pub fn class(kind: &str, series: usize) -> String {
    let hollow = if series / COLOURS % 2 == 1 { " ho" } else { "" };
    format!("{kind}{hollow} s{}", series % COLOURS)
}

impl Svg {
    /// Starts an empty picture.
    pub fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    /// Draws a line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(Short);
        put!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"
        );
    }

    /// Draws a rectangle, given its upper left corner.
    pub fn rectangle(&mut self, class: &str, corner: (f64, f64), size: (f64, f64)) {
        let [x, y, w, h] = [corner.0, corner.1, size.0.max(0.0), size.1.max(0.0)].map(Short);
        put!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"/>"
        );
    }

    /// Draws a path, closed or not.
    pub fn path(&mut self, class: &str, path: &str) {
        put!(self.body, "<path class=\"{class}\" d=\"{path}\"/>");
    }

    /// Draws a bar of a series, given its upper left corner.
    pub fn bar(&mut self, (series, meaning): (usize, &str), corner: (f64, f64), size: (f64, f64)) {
        let [x, y, w, h] = [corner.0, corner.1, size.0.max(0.0), size.1.max(0.0)].map(Short);
        let (class, meaning) = (class("br", series), Escaped(meaning));
        put!(
            self.body,
            "<rect class=\"{class}\" data-series=\"{meaning}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" \
             height=\"{h}\"/>"
        );
    }

    /// Draws a curve of a series.
    pub fn curve(&mut self, (series, meaning): (usize, &str), path: &str) {
        let (class, meaning) = (class("ln", series), Escaped(meaning));
        put!(self.body, "<path class=\"{class}\" data-series=\"{meaning}\" d=\"{path}\"/>");
    }

    /// Draws a text.
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

    /// Draws the sign of a series. Each series has a shape of its own, so that nobody needs to see
    /// colours. `meaning` is the name of the series.
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

    /// Opens a group with a tooltip. [`end`](Self::end) closes it.
    pub fn begin(&mut self, title: &str) {
        put!(self.body, "<g><title>{}</title>", Escaped(title));
    }

    /// Closes the group that `begin` opened.
    pub fn end(&mut self) {
        self.body.push_str("</g>");
    }

    /// Inserts elements that were drawn elsewhere, moved to `place`.
    pub fn part(&mut self, place: (f64, f64), elements: &str) {
        put!(
            self.body,
            "<g transform=\"translate({} {})\">{elements}</g>",
            Short(place.0),
            Short(place.1)
        );
    }

    /// Finishes the picture; `label` describes it for readers who cannot see it.
    pub fn finish(self, label: impl Into<String>) -> Picture {
        Picture { body: self.body, width: self.width, height: self.height, label: label.into() }
    }
}

/// A finished picture.
pub struct Picture {
    /// The picture's elements.
    pub body: String,
    /// The picture's width.
    pub width: f64,
    /// The picture's height.
    pub height: f64,
    /// What the picture shows, in words.
    pub label: String,
}

impl Picture {
    /// Renders the picture as a part of a page.
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
