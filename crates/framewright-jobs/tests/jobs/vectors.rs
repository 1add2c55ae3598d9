//! The rule that divides a job with a smallest chunk, against known answers: its pure functions,
//! and jobs that run.

use crate::common::{Log, assert_covers};
use framewright_jobs::plan::{Grid, chunk_units, threads_wanted};
use framewright_jobs::{Job, NoHelpers};
use framewright_testkit::HelperPool;
use std::convert::Infallible;
use std::ops::Range;

struct Vector {
    start: u64,
    size: u64,
    align: u64,
    min_chunk: u64,
    max_threads: u32,
    slots: u32,
    threads: u32,
    /// `None`: one call for the whole range.
    chunk: Option<u64>,
    chunks: u64,
    first: Range<u64>,
    last: Range<u64>,
}

const fn vector(
    job: (u64, u64, u64, u64, u32, u32),
    plan: (u32, Option<u64>, u64),
    ends: [(u64, u64); 2],
) -> Vector {
    let (start, size, align, min_chunk, max_threads, slots) = job;
    let (threads, chunk, chunks) = plan;
    let [first, last] = ends;
    let (first, last) = (first.0..first.1, last.0..last.1);
    Vector {
        start,
        size,
        align,
        min_chunk,
        max_threads,
        slots,
        threads,
        chunk,
        chunks,
        first,
        last,
    }
}

const VECTORS: [Vector; 9] = [
    vector(
        (1_081_344, 16_744_448, 32_768, 32_768, 16, 15),
        (16, Some(262_144), 64),
        [(1_081_344, 1_310_720), (17_563_648, 17_825_792)],
    ),
    vector((0, 4, 1, 2, 2, 8), (2, Some(2), 2), [(0, 2), (2, 4)]),
    vector((0, 10, 1, 0, 4, 8), (4, Some(1), 10), [(0, 1), (9, 10)]),
    vector(
        (1000, 3_276_800, 32_768, 32_768, 8, 7),
        (8, Some(131_072), 26),
        [(1000, 131_072), (3_276_800, 3_277_800)],
    ),
    vector((0, 1000, 1, 10, 8, 0), (1, Some(250), 4), [(0, 250), (750, 1000)]),
    vector((5, 3, 1, 10, 8, 8), (1, None, 1), [(5, 8), (5, 8)]),
    vector((0, 1000, 1, 10, 8, 2), (3, Some(83), 13), [(0, 83), (996, 1000)]),
    vector((0, 1024, 1, 128, 8, 31), (8, Some(128), 8), [(0, 128), (896, 1024)]),
    vector((7, 1000, 10, 25, 3, 9), (3, Some(90), 12), [(7, 90), (990, 1007)]),
];

#[test]
fn the_plan_is_that_of_the_vectors() {
    for v in &VECTORS {
        let wanted = threads_wanted(v.size, v.align, v.min_chunk, v.max_threads);
        let threads = 1 + (wanted - 1).min(v.slots);
        assert_eq!(threads, v.threads);
        let chunk =
            if wanted == 1 { u64::MAX } else { chunk_units(v.size, threads, v.align, v.min_chunk) };
        assert_eq!((wanted > 1).then_some(chunk), v.chunk);
        let grid = Grid::new(v.start..v.start + v.size, chunk);
        assert_eq!(grid.count(), v.chunks);
        assert_eq!(grid.piece(0), Some(v.first.clone()));
        assert_eq!(grid.piece(v.chunks - 1), Some(v.last.clone()));
        assert_eq!(grid.piece(v.chunks), None);
        let pieces: Vec<_> = (0..v.chunks).filter_map(|index| grid.piece(index)).collect();
        assert_covers(&pieces, v.start..v.start + v.size, v.align);
    }
}

#[test]
fn jobs_are_cut_as_the_vectors_say() {
    for v in &VECTORS {
        for clock in [true, false] {
            let pool = HelperPool::new(v.slots as usize);
            let pool = if clock { pool } else { pool.without_clock() };
            let log = Log::default();
            let job = Job::with_size(v.start, v.size)
                .align(v.align)
                .min_chunk(v.min_chunk)
                .max_threads(v.max_threads);
            // Twice, because running a job must not change it.
            for _ in 0..2 {
                let log = Log::default();
                let summary = job.run(&pool, |range, worker| {
                    assert!(worker.index() < v.threads);
                    log.add(range);
                    Ok::<_, Infallible>(())
                });
                let summary = summary.expect("nothing fails");
                assert_eq!((summary.chunks, summary.units), (v.chunks, v.size));
                assert!((1..=v.threads).contains(&summary.threads));
                let chunks = log.sorted();
                assert_eq!(chunks.len() as u64, v.chunks);
                assert_eq!((chunks.first(), chunks.last()), (Some(&v.first), Some(&v.last)));
                assert_covers(&chunks, v.start..v.start + v.size, v.align);
            }
            assert_eq!(log.len(), 0);
            assert!(pool.is_idle());
        }
    }
}

#[test]
fn the_pool_of_slots_may_be_dry() {
    let v = &VECTORS[4];
    let log = Log::default();
    let job = Job::with_size(v.start, v.size)
        .align(v.align)
        .min_chunk(v.min_chunk)
        .max_threads(v.max_threads);
    let done = job.run(&NoHelpers, |range, _| {
        log.add(range);
        Ok::<_, Infallible>(())
    });
    assert_eq!(done.expect("nothing fails").threads, 1);
    assert_eq!(log.sorted(), [0..250, 250..500, 500..750, 750..1000]);
}

#[test]
fn planning_has_an_answer_for_every_number() {
    for size in [0, 1, 7, u64::MAX] {
        for align in [0, 1, 3, u64::MAX] {
            for min_chunk in [0, 1, u64::MAX] {
                for threads in [0, 1, u32::MAX] {
                    assert!(threads_wanted(size, align, min_chunk, threads) >= 1);
                    assert!(chunk_units(size, threads, align, min_chunk) >= 1);
                }
            }
        }
    }
    assert_eq!(chunk_units(100, 1, 64, 30), 64);
    let whole = Grid::new(0..u64::MAX, 0);
    assert_eq!(
        (whole.count(), whole.piece(u64::MAX - 1)),
        (u64::MAX, Some(u64::MAX - 1..u64::MAX))
    );
    assert_eq!(Grid::new(u64::MAX - 3..u64::MAX, 1 << 40).piece(0), Some(u64::MAX - 3..u64::MAX));
    let reversed = Range { start: 7, end: 5 };
    assert_eq!(
        (Grid::new(reversed.clone(), 1).count(), Grid::new(reversed, 1).piece(0)),
        (0, None)
    );
}
