//! Published results of others, predicted from the part of them that calibrates the model: the
//! patch series for Linux by Daniel Jordan (`padata: parallelize deferred page init`, 2020), Gang
//! Li (`hugetlb: parallelize hugetlb page init on boot`, 2024) and Mike Kravetz
//! (`Batch hugetlb vmemmap modification operations`, 2023).
//!
//! Their machines are described by memory, nodes and threads. Nothing is measured here.

use super::checks::checked;
use super::costs::{Costs, Line, Rate};
use super::predict::{self, SECTION_PAGES, flush};
use super::shape::Node;
use crate::rows::Model;
use framewright::units::PfnRange;

/// A table of deferred initialisation by threads (Jordan, 2020).
struct Deferred {
    machine: &'static str,
    /// The memory of a node.
    node_gib: u32,
    /// Numbers of threads and milliseconds of the slowest node; the first entry has one thread.
    times: &'static [(u32, f64)],
}

const DEFERRED: [Deferred; 6] = [
    Deferred {
        machine: "Skylake 8167M, 768 GiB, 2 nodes of 52 CPUs",
        node_gib: 384,
        times: &[
            (1, 1717.7),
            (6, 359.3),
            (13, 157.0),
            (19, 172.0),
            (26, 173.7),
            (39, 190.0),
            (52, 138.0),
        ],
    },
    Deferred {
        machine: "Broadwell 2699C, KVM, 192 GiB, 32 CPUs",
        node_gib: 192,
        times: &[
            (1, 1092.7),
            (4, 287.0),
            (8, 177.0),
            (12, 144.7),
            (16, 134.0),
            (24, 130.3),
            (32, 125.7),
        ],
    },
    Deferred {
        machine: "Haswell 2699v3, 256 GiB, 2 nodes of 36 CPUs",
        node_gib: 128,
        times: &[
            (1, 628.0),
            (4, 201.0),
            (9, 114.3),
            (13, 100.3),
            (18, 101.0),
            (27, 97.3),
            (36, 90.0),
        ],
    },
    Deferred {
        machine: "EPYC 7551, KVM, 64 GiB, 16 CPUs",
        node_gib: 64,
        times: &[(1, 246.0), (2, 133.0), (4, 90.0), (6, 74.3), (8, 65.3), (12, 48.7), (16, 47.0)],
    },
    Deferred {
        machine: "EPYC 7551, KVM, 16 GiB, 4 CPUs",
        node_gib: 16,
        times: &[(1, 51.7), (2, 28.3), (3, 25.0), (4, 22.0)],
    },
    Deferred {
        machine: "Haswell, KVM, 14 GiB, 4 CPUs",
        node_gib: 14,
        times: &[(1, 125.3), (2, 76.3), (3, 61.3), (4, 53.3)],
    },
];

/// Times of parallel pools at boot by threads (Li, 2024). No time of one thread was published, so
/// the first and the last entry calibrate the model.
const POOLS: [(&str, &[(u32, f64)]); 5] = [
    ("256 GiB, 2 nodes", &[(2, 358.0), (4, 215.0), (6, 157.0), (8, 134.0), (10, 126.0)]),
    ("2 TiB, 4 nodes", &[(4, 979.0), (8, 679.0), (12, 543.0), (16, 489.0), (20, 481.0)]),
    ("50 GiB, 2 nodes", &[(2, 71.0), (4, 44.0), (6, 37.0), (8, 30.0), (10, 31.0)]),
    ("Skylake, 144 CPUs", &[(8, 44e3), (16, 22e3), (32, 16e3), (64, 19e3), (128, 20e3)]),
    ("Cascade Lake, 192 CPUs", &[(8, 39e3), (16, 20e3), (32, 11e3), (64, 10e3), (128, 9e3)]),
];

/// Seconds to fill and to empty a pool of 524288 pages of 2 MiB on 252 virtual CPUs: without giving
/// up the map, and with two flushes for each page (Kravetz, 2023).
const FLUSHED: [(&str, f64, f64); 2] = [("fill", 2.463, 147.609), ("empty", 2.931, 149.924)];
const FLUSHED_PAGES: f64 = 524_288.0;
const FLUSHED_CPUS: u32 = 252;
const FLUSHES_OF_A_PAGE: f64 = 2.0;

/// All rows.
pub fn rows() -> Vec<Model> {
    let mut rows = Vec::new();
    for table in &DEFERRED {
        let (Some(&(_, single_ms)), Some(&(all, all_ms))) =
            (table.times.first(), table.times.last())
        else {
            continue;
        };
        let node = node(table.node_gib, all);
        let single = node.deferred_pages() as f64 * 64.0 / single_ms * 1e3;
        let alone = Rate { each: single, limit: None };
        let both = Rate::through((1, single), (all, single * single_ms / all_ms));
        for (write, calibration, calibrated) in
            [(alone, "1 thread".to_owned(), 1), (both, format!("1 and {all} threads"), all)]
        {
            let costs = Costs { write, ..Costs::NONE };
            for &(threads, published_ms) in
                table.times.iter().filter(|&&(threads, _)| threads != 1 && threads != calibrated)
            {
                let predicted_ms = predict::node_job(&costs, &node, threads, 0.0) / 1e6;
                rows.push(row(
                    "deferred",
                    table.machine,
                    threads,
                    &calibration,
                    predicted_ms,
                    published_ms,
                ));
            }
        }
    }
    for (machine, times) in POOLS {
        let (Some(&first), Some(&last)) = (times.first(), times.last()) else { continue };
        let rate = Rate::through((first.0, 1.0 / first.1), (last.0, 1.0 / last.1));
        let calibration = format!("{} and {} threads", first.0, last.0);
        for &(threads, published_ms) in &times[1..times.len() - 1] {
            rows.push(row(
                "pool 2 MiB at boot",
                machine,
                threads,
                &calibration,
                1.0 / rate.of(f64::from(threads)),
                published_ms,
            ));
        }
    }
    let [(_, off_s, on_s), empty] = FLUSHED;
    // Filling gives the cost of a flush, from which the time of emptying follows.
    let flush_ns = (on_s - off_s) * 1e9 / FLUSHED_PAGES / FLUSHES_OF_A_PAGE;
    let costs = Costs {
        flush: Line { call_ns: 0.0, unit_ns: flush_ns / f64::from(FLUSHED_CPUS - 1) },
        ..Costs::NONE
    };
    let flushes_ms = FLUSHED_PAGES * FLUSHES_OF_A_PAGE * flush(&costs, FLUSHED_CPUS) / 1e6;
    let calibration = "filling, two flushes a page";
    let what = "pool 2 MiB, empty, two flushes a page";
    rows.push(row(
        what,
        "EPYC 7J13, 252 virtual CPUs",
        FLUSHED_CPUS,
        calibration,
        empty.1 * 1e3 + flushes_ms,
        empty.2 * 1e3,
    ));
    rows
}

/// A node all of whose memory is deferred.
fn node(gib: u32, threads: u32) -> Node {
    let sections = gib * 8;
    let pages = u64::from(sections) * SECTION_PAGES;
    Node { number: 0, threads, pages, deferred: 0..sections, runs: vec![PfnRange::new(0, pages)] }
}

fn row(
    what: &str,
    machine: &str,
    threads: u32,
    calibration: &str,
    predicted_ms: f64,
    published_ms: f64,
) -> Model {
    Model {
        source: "published".into(),
        calibration: Some(calibration.into()),
        ..checked(what, machine, threads, predicted_ms, (published_ms, published_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_what_was_published_follows_from_its_ends() {
        let rows = rows();
        let errors = |has_both: bool| {
            let chosen = rows.iter().filter(move |row| {
                row.calibration.as_ref().is_some_and(|text| (text != "1 thread") == has_both)
            });
            chosen
                .map(|row| row.error_percent.0.get().expect("a number").abs())
                .collect::<Vec<f64>>()
        };
        let (with, without) = (errors(true), errors(false));
        let good = |errors: &[f64]| errors.iter().filter(|&&error| error <= 25.0).count();
        assert!(good(&with) * 10 >= with.len() * 9, "{with:?}");
        // A calibration with one thread alone does not show the limit of memory.
        assert!(good(&without) * 2 < without.len(), "{without:?}");
    }
}
