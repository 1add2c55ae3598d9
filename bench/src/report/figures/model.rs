//! The model's predictions beside measurements.

use super::super::svg::{Bars, Point, Residuals, Unit};
use super::{Group, Line, Section, WIDE, dots, drawn, names, point};
use crate::rows::{Measured, Model, Rows};
use crate::targets::words;

/// The most predictions for other machines that are shown.
const MOST: usize = 40;
/// The sources of measurements, in order of their signs.
const SOURCES: [&str; 2] = ["measured here", "published by others"];
/// How far a good prediction may be off.
const BAND_PERCENT: f64 = 25.0;

pub fn section(rows: &Rows) -> Section {
    let rows = &rows.model;
    let seconds = |ms: &Measured<f64>| ms.get().map(|ms| ms * 1e-3).filter(|&time| time > 0.0);
    let name = |row: &Model| words(&[&row.what, &row.machine]);
    let pair = |row: &Model| {
        let (measured, predicted) = (seconds(&row.measured_ms)?, seconds(&row.predicted_ms)?);
        let source = usize::from(row.source == "published");
        let series = (source, SOURCES[source].into());
        Some(Point { name: name(row), measured, predicted, series })
    };
    let points: Vec<Point> = rows.iter().filter_map(pair).collect();
    let has_published = points.iter().any(|point| point.series.0 == 1);
    let sources = if has_published { names(&SOURCES) } else { Vec::new() };
    let far = |error: f64| error.abs() > BAND_PERCENT;
    let worst = points
        .iter()
        .max_by(|one, other| one.error_percent().abs().total_cmp(&other.error_percent().abs()));
    let worst =
        worst.filter(|point| far(point.error_percent())).map_or_else(String::new, |point| {
            let count = points.iter().filter(|point| far(point.error_percent())).count();
            format!(
                " {count} of {} are farther off than that; farthest: {:+.0} %, {}.",
                points.len(),
                point.error_percent(),
                point.name
            )
        });
    let checked = (!points.is_empty()).then(|| {
        Residuals {
            title: format!("Errors of predictions; the band is {BAND_PERCENT:.0} %"),
            below: "measured".into(),
            unit: Unit::Time,
            band: BAND_PERCENT,
            points,
            width: WIDE,
            height: 320.0,
        }
        .draw()
    });
    let ahead = rows.iter().filter(|row| seconds(&row.measured_ms).is_none());
    let lines: Vec<Line> = ahead
        .filter_map(|row| Some((name(row), vec![point(seconds(&row.predicted_ms)?)])))
        .take(MOST)
        .collect();
    let predicted = Bars {
        first_sign: SOURCES.len(),
        width: WIDE,
        ..dots(
            "Predicted for machines that are not at hand",
            Unit::Time,
            &["predicted".into()],
            lines,
        )
    };
    Section {
        id: "model",
        title: "Model",
        lead: format!(
            "Bring-up, pools and flushes predicted from costs of a single CPU, bandwidth and the \
             chunk rule. At an error of zero, the prediction is what was measured; the model is \
             held to {BAND_PERCENT:.0} %.{worst}"
        ),
        benches: &["model"],
        groups: vec![
            Group::wide(sources, checked.into_iter().collect()),
            Group::wide(Vec::new(), drawn(&predicted).into_iter().collect()),
        ],
    }
}
