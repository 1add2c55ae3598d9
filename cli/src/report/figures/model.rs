//! What a model predicts, beside what was measured.

use super::super::svg::{Bars, Mark, Point, Scatter, Shape, Unit};
use super::{Group, NARROW, Section, WIDE, number, text};
use crate::targets::Rows;
use serde_json::Value;

/// Predictions for other machines that are shown at most.
const MOST: usize = 40;

pub(super) fn section(rows: &Rows<'_>) -> Section {
    let rows = rows.bench("model");
    let seconds = |row: &Value, field: &str| number(row, field).map(|ms| ms * 1e-3).filter(|&seconds| seconds > 0.0);
    let name = |row: &Value| {
        let words = [text(row, "what"), text(row, "machine")];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
    };
    let pair = |row: &Value| {
        let (across, up) = (seconds(row, "measured_ms")?, seconds(row, "predicted_ms")?);
        Some(Point { name: name(row), across, up, series: usize::from(text(row, "source") == "published") })
    };
    let points: Vec<Point> = rows.iter().filter_map(pair).collect();
    let has_published = points.iter().any(|point| point.series == 1);
    let sources = if has_published { vec!["measured here".into(), "published by others".into()] } else { Vec::new() };
    let checked = (!points.is_empty()).then(|| {
        Scatter {
            title: "Predicted and measured; the band is 25 %".into(),
            below: "measured".into(),
            side: "predicted".into(),
            unit: Unit::Time,
            band: 0.25,
            points,
            size: NARROW,
        }
        .draw()
    });
    let ahead = rows.iter().filter(|row| seconds(row, "measured_ms").is_none());
    let lines: Vec<(String, Vec<Option<Mark>>)> = ahead
        .filter_map(|row| Some((name(row), vec![Some(Mark { value: seconds(row, "predicted_ms")?, spread: None })])))
        .take(MOST)
        .collect();
    let predicted = Bars {
        title: "Predicted for machines that are not at hand".into(),
        unit: Unit::Time,
        shape: Shape::Dots,
        is_log: true,
        series: vec!["predicted".into()],
        rows: lines,
        limits: Vec::new(),
        width: WIDE,
    };
    let predicted = if predicted.rows.is_empty() { Vec::new() } else { vec![predicted.draw()] };
    Section {
        id: "model",
        title: "Model",
        lead: "Bring-up, pools and flushes predicted from costs of a single CPU, bandwidth and the chunk rule. On the diagonal prediction and measurement agree.".into(),
        benches: &["model"],
        groups: vec![Group::new(sources, checked.into_iter().collect()), Group::wide(Vec::new(), predicted)],
    }
}
