//! `framewright-bench model` and `framewright-bench check-model`: predict times on a machine that
//! is not at hand from the costs of operations on this one, and show how far such predictions are
//! off.
//!
//! `costs` has the constants and `calibrate` measures them; `shape` has the properties of a machine
//! that count, `predict` the model. `checks` compares predictions with measurements of this machine
//! (`here`), `published` with measurements by others of theirs. docs/log/model.md has the terms and
//! their errors.

mod calibrate;
mod checks;
mod costs;
mod here;
mod predict;
mod published;
mod shape;

use crate::args::ModelOptions;
use crate::bench::section::{Column, Section, Table, shown, table};
use crate::progress;
use crate::rows::{Measured, Model, Rows, Signed};
use costs::Costs;
use framewright::hugetlb::PoolSize;
use framewright_cli::error::{self, Error};
use framewright_cli::file::{self, Kind};
use framewright_cli::grid::microseconds;
use framewright_cli::page::files;
use framewright_hosted::Machine;
use predict::{Maps, Resize};
use serde_json::Value;
use shape::Shape;
use std::path::Path;

/// Describes the rows of the benchmark, for readers of the numbers.
const CHECKED: &str = "\
costs are measured first: plain fills, releases and first touches of memory by one and by all \
threads, bring-up of machines of 2 GiB to 8 TiB with one node, two and eight, one section brought \
up by a request, the start of a helper, a flush of one page with and without other CPUs, pools of \
1 to 16384 pages; then other machines and pools are predicted and measured, what the system does \
to memory and what threads reach together is measured again beside them. measured: the minimum of \
the runs, since other load only adds, and where one thread resizes a pool with HVO its CPU time; \
published: others' tables, predicted from their times with one thread, or with the fewest and the \
most threads; error: predicted against measured";

/// Describes the predictions for a machine.
const PREDICTED: &str = "\
predicted from costs of this machine: its processor, its memory and its system; each node is taken \
to have as much bandwidth as this machine, and all nodes work at the same time. Pools take half of \
the memory; giving up and restoring their map costs what this system's madvise and page faults \
take. error: the largest of the same kind measured on the machine that the costs are from, or what \
the file of the costs says";

/// Measures the costs and how far predictions are off.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or a pool did not get its pages.
pub fn check(quick: bool) -> Result<Section, Error> {
    let scale = if quick { checks::QUICK } else { checks::FULL };
    let costs = calibrate::measure()?;
    let (mut rows, left_out) = checks::rows(&costs, scale)?;
    rows.extend(published::rows());
    Ok(Section { left_out, ..section(&costs, scale.runs, CHECKED, &rows) })
}

fn section(costs: &Costs, repetitions: usize, timed: &str, rows: &[Model]) -> Section {
    let mut section = Section::of(repetitions, timed, rows);
    section.further.insert("costs".into(), costs.to_json());
    section
}

/// Predicts times for one machine.
///
/// # Errors
/// Fails if the machine or the file of results cannot be read, or this process cannot emulate the
/// machine.
pub fn run(options: &ModelOptions) -> Result<(), Error> {
    let machine = machine(options)?;
    if let Some(path) = &options.json {
        file::check("--json", path)?;
        file::claim("--json", path, Kind::Results)?;
    }
    // Read the file first, so that its errors show before anything is measured.
    let known = options.results.as_deref().map(read).transpose()?;
    progress::begin(0);
    let shape = Shape::of(&machine)?;
    let (costs, checked) = match known {
        Some(known) => known,
        None => {
            let costs = calibrate::measure()?;
            (costs, checks::rows(&costs, checks::QUICK)?.0)
        }
    };
    if costs.helper_share < checks::LEAST_SHARE {
        let percent = costs.helper_share * 100.0;
        error::note(&format!(
            "the costs were measured on a busy machine (a helper got {percent:.0} % of a CPU): \
             figures for several threads and for flushes mean little"
        ));
    }
    let rows = predictions(&costs, &shape, &checked);
    let section = section(&costs, 1, PREDICTED, &rows);
    if let Some(path) = &options.json {
        file::replace(path, format!("{}\n", section.to_json()).as_bytes())?;
    }
    section.print(false, tables)
}

fn machine(options: &ModelOptions) -> Result<Machine, Error> {
    let bad = |error: framewright_hosted::SourceError| Error::Usage(error.to_string());
    let Some(path) = &options.machine else {
        let nodes = options.nodes.unwrap_or(1);
        return Machine::synthetic(
            options.memory.unwrap_or(0),
            nodes,
            options.cpus.unwrap_or(nodes),
        )
        .map_err(bad);
    };
    let mut machine = Machine::from_file(path).map_err(bad)?;
    if let Some(nodes) = options.nodes {
        machine.emulate_nodes(nodes).map_err(bad)?;
    }
    if let Some(cpus) = options.cpus {
        machine.set_cpus(cpus).map_err(bad)?;
    }
    Ok(machine)
}

/// Reads costs and checks from a file of results.
fn read(path: &Path) -> Result<(Costs, Vec<Model>), Error> {
    let bad = |why: String| Error::Usage(format!("{}: {why}", path.display()));
    files::load(path).and_then(|file| costs_in(&file)).map_err(bad)
}

/// Reads the costs in a file of results, or in the object of the benchmark alone, and the rows of
/// its checks.
fn costs_in(file: &Value) -> Result<(Costs, Vec<Model>), String> {
    let sections = file["sections"].as_array().map_or(&[][..], Vec::as_slice);
    let section = sections
        .iter()
        .chain([file])
        .find(|section| section["bench"] == "model" && section["costs"].is_object());
    let section = section.ok_or(
        "has no costs; `framewright-bench check-model` and `framewright-bench all` measure them",
    )?;
    let costs = Costs::from_json(&section["costs"])?;
    let rows = file["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = Rows::of(rows).model.into_iter().filter(|row| row.source == "here");
    Ok((costs, rows.collect()))
}

/// All predictions for one machine.
fn predictions(costs: &Costs, shape: &Shape, checked: &[Model]) -> Vec<Model> {
    // On that machine, helpers have the CPUs to themselves.
    let costs = &Costs { helper_share: 1.0, ..*costs };
    let mut rows = Vec::new();
    let mut add = |what: &str, threads: u32, chunk_sections: Option<u64>, ns: f64| {
        rows.push(Model {
            source: "predicted".into(),
            what: what.into(),
            machine: shape.name.clone(),
            threads: threads.into(),
            chunk_sections: Some(Measured(chunk_sections)),
            predicted_ms: (ns / 1e6).into(),
            error_percent: Signed(Measured(worst(checked, what))),
            ..Model::default()
        });
    };
    add("bring-up", 1, None, predict::bring_up(costs, shape));
    add("eager", 1, None, predict::eager(costs, shape));
    let threads = |node: &shape::Node| node.threads;
    add("deferred", shape.cpus, None, predict::deferred(costs, shape, threads, false));
    for node in shape.nodes.iter().filter(|node| !node.deferred.is_empty()) {
        let division = predict::division(node, node.threads);
        let name = format!("deferred, node {}", node.number);
        let ns = predict::node_job(costs, node, node.threads, 0.0);
        add(&name, division.threads, Some(division.chunk_sections), ns);
    }
    let nodes = u32::try_from(shape.nodes.len()).unwrap_or(u32::MAX);
    for size in PoolSize::ALL {
        let pages = shape.pages() / 2 / size.frames();
        for maps in Maps::ALL.into_iter().filter(|_| pages != 0) {
            let resize = Resize { size, pages, maps, most: shape.cpus, cpus: shape.cpus, nodes };
            let what = |action: &str| format!("pool {size}, {action}, {}", maps.name());
            add(&what("fill"), resize.fill_threads(), None, resize.fill(costs));
            add(&what("empty"), resize.empty_threads(), None, resize.empty(costs));
        }
    }
    add("flush of all CPUs", shape.cpus, None, predict::flush(costs, shape.cpus));
    rows
}

/// The greatest error among the checks of one kind.
fn worst(checked: &[Model], what: &str) -> Option<f64> {
    let kind = what.split_once(", node").map_or(what, |(kind, _)| kind);
    let same = checked.iter().filter(|row| row.what == kind);
    let errors = same.filter_map(|row| row.error_percent.0.get());
    errors.max_by(|one, other| one.abs().total_cmp(&other.abs()))
}

fn time(ms: &Measured<f64>) -> String {
    shown(ms.get(), |ms| microseconds(ms * 1e3))
}

fn error(row: &Model) -> String {
    shown(row.error_percent.0.get(), |percent| format!("{percent:+.0} %"))
}

fn sections(row: &Model) -> Option<u64> {
    row.chunk_sections.as_ref()?.get()
}

const PREDICTIONS: [Column<Model>; 5] = [
    ("<what", |row| row.what.clone()),
    (">threads", |row| row.threads.to_string()),
    (">sections a chunk", |row| shown(sections(row), |sections| sections.to_string())),
    (">predicted", |row| time(&row.predicted_ms)),
    (">error", error),
];

const CHECKS: [Column<Model>; 7] = [
    ("<what", |row| row.what.clone()),
    ("<machine", |row| row.machine.clone()),
    (">threads", |row| row.threads.to_string()),
    ("<calibrated by", |row| row.calibration.clone().unwrap_or_else(|| "this machine".into())),
    (">predicted", |row| time(&row.predicted_ms)),
    (">measured", |row| time(&row.measured_ms)),
    (">error", error),
];

/// Tables for people: what is predicted, what was measured here, and what others published.
pub fn tables(rows: &Rows) -> Vec<Table> {
    let of = |source: &str| -> Vec<&Model> {
        rows.model.iter().filter(|row| row.source == source).collect()
    };
    let titled = |columns: &[Column<Model>], rows: &[&Model], title: String| {
        Some(Table { title: Some(title), ..table(columns, rows.iter().copied())? })
    };
    let (predicted, here, published) = (of("predicted"), of("here"), of("published"));
    let machine = predicted.first().map_or_else(String::new, |row| row.machine.clone());
    let tables = [
        titled(&PREDICTIONS, &predicted, machine),
        titled(&CHECKS, &here, format!("Measured here: {}", summary(&here))),
        titled(&CHECKS, &published, format!("Published by others: {}", summary(&published))),
    ];
    tables.into_iter().flatten().collect()
}

/// Says how many predictions are good.
fn summary(rows: &[&Model]) -> String {
    let errors: Vec<f64> =
        rows.iter().filter_map(|row| row.error_percent.0.get()).map(f64::abs).collect();
    let good = errors.iter().filter(|&&error| error <= 25.0).count();
    let worst = errors.iter().copied().fold(0.0, f64::max);
    format!("{good} of {} within 25 %; the worst is off by {worst:.0} %", errors.len())
}

#[cfg(test)]
mod tests;
