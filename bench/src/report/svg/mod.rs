//! Plots. Their drawing tools are in [`framewright_cli::page::svg`].

mod axis;
mod bars;
mod lines;
mod residuals;

pub use axis::{Unit, three};
pub use bars::{Bars, Limit, Mark, Shape, legend};
pub use framewright_cli::page::svg::{MOST_SERIES, Picture};
pub use lines::{Line, Lines};
pub use residuals::{Point, Residuals};
