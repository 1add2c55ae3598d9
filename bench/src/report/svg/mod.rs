//! Plots. What they are drawn with is [`framewright_cli::page::svg`].

mod axis;
mod bars;
mod lines;
mod residuals;

pub use axis::{Scale, Unit, three};
pub use bars::{Bars, Limit, Mark, Shape, legend};
pub use framewright_cli::page::svg::{Anchor, MOST_SERIES, Picture, Short, Svg, class};
pub use lines::{Line, Lines};
pub use residuals::{Point, Residuals};
