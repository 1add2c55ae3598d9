//! Random jobs are covered exactly and without overlap, with any number of helpers, with none, and
//! with helpers that come late.

use crate::common::{Log, assert_covers, joined};
use framewright_jobs::{Cancel, DoneCount, Job, NoHelpers, Part, Placement, WorkerStats};
use framewright_testkit::HelperPool;
use proptest::prelude::*;
use std::convert::Infallible;
use std::hint::black_box;
use std::ops::Range;

#[derive(Clone, Debug)]
struct Shape {
    start: u64,
    size: u64,
    align: u64,
    min_chunk: Option<u64>,
    guided: bool,
    max_threads: u32,
    helpers: usize,
    allowance: usize,
    clock: bool,
    /// The chunk that releases helpers that are held back at first. It may be beyond the last
    /// chunk.
    late: Option<usize>,
    watched: bool,
    /// Rounds of work for each unit; unit `heavy` takes a thousand times as many.
    work: u32,
    heavy: u64,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let start = prop_oneof![0_u64..2000, Just(u64::MAX - 20_000)];
    let grain = (1_u64..200, proptest::option::of(0_u64..300), any::<bool>());
    let pool = (1_u32..8, 0_usize..5, 0_usize..6, any::<bool>(), proptest::option::of(0_usize..12));
    let work = (any::<bool>(), 0_u32..40, 0_u64..20_000);
    (start, 0_u64..20_000, grain, pool, work).prop_map(|(start, size, grain, pool, work)| Shape {
        start,
        size,
        align: grain.0,
        min_chunk: grain.1,
        guided: grain.2,
        max_threads: pool.0,
        helpers: pool.1,
        allowance: pool.2,
        clock: pool.3,
        late: pool.4,
        watched: work.0,
        work: work.1,
        heavy: work.2,
    })
}

impl Shape {
    fn job(&self) -> Job<'static> {
        self.cut(Job::with_size(self.start, self.size))
    }

    fn cut<'a>(&self, job: Job<'a>) -> Job<'a> {
        let job = job.align(self.align).max_threads(self.max_threads);
        let job = if self.guided { job.guided() } else { job };
        self.min_chunk.map_or(job, |units| job.min_chunk(units))
    }

    fn pool(&self) -> HelperPool {
        // Nodes 0, 2, 0, 2, and so on.
        let nodes: Vec<u32> = (0..2).map(|parity| parity * 2).cycle().take(self.helpers).collect();
        let pool = HelperPool::on_nodes(&nodes).with_allowance(self.allowance);
        if self.late.is_some() {
            pool.hold();
        }
        if self.clock { pool } else { pool.without_clock() }
    }

    fn work_on(&self, range: &Range<u64>) {
        let heavy = range.contains(&(self.start + self.heavy));
        let units = range.end - range.start + if heavy { 1000 } else { 0 };
        for turn in 0..units * u64::from(self.work) {
            black_box(turn);
        }
    }
}

/// Fails if a chunk is smaller than `min_chunk`, except at the ends.
fn assert_not_too_small(shape: &Shape, chunks: &[Range<u64>]) {
    let least = shape.min_chunk.unwrap_or(0).max(1);
    for chunk in chunks.iter().skip(1).rev().skip(1) {
        assert!(chunk.end - chunk.start >= least, "{chunk:?} is smaller than {least}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_unit_is_done_once(shape in shapes()) {
        let pool = shape.pool();
        let (cancel, done, log) = (Cancel::new(), DoneCount::new(), Log::default());
        let workers: Vec<_> = (0..shape.max_threads).map(|_| WorkerStats::new()).collect();
        let mut job = shape.job().recording_in(&workers).placement(Placement::Spread);
        if shape.watched {
            job = job.cancelled_by(&cancel).counting_in(&done);
        }
        let summary = job.run(&pool, |range, worker| {
            assert!(worker.index() < shape.max_threads);
            shape.work_on(&range);
            log.add(range);
            if shape.late == Some(log.len()) {
                pool.release();
            }
            Ok::<_, Infallible>(())
        }).expect("nothing fails");
        let chunks = log.sorted();
        assert_covers(&chunks, shape.start..shape.start + shape.size, shape.align);
        assert_not_too_small(&shape, &chunks);
        prop_assert_eq!((summary.chunks, summary.units), (chunks.len() as u64, shape.size));
        prop_assert_eq!(workers.iter().map(WorkerStats::units).sum::<u64>(), shape.size);
        prop_assert_eq!(workers.iter().map(WorkerStats::chunks).sum::<u64>(), summary.chunks);
        prop_assert_eq!(done.units(), if shape.watched { shape.size } else { 0 });
        let limit = 1 + shape.helpers.min(shape.allowance);
        prop_assert!(summary.threads as usize <= limit.min(shape.max_threads as usize));
        prop_assert!(pool.is_idle());
    }

    #[test]
    fn every_unit_of_every_part_is_done_once(
        shape in shapes(),
        // The gap before the part, its size, and its node.
        pieces in proptest::collection::vec((0_u64..50, 0_u64..3000, 0_u32..4), 0..12),
    ) {
        let mut at = shape.start.min(1000);
        let parts: Vec<Part> = pieces.iter().map(|&(gap, size, node)| {
            let start = at + gap;
            at = start + size;
            Part { node, range: start..at }
        }).collect();
        let (pool, log) = (shape.pool(), Log::default());
        let size: u64 = parts.iter().map(|part| part.range.end - part.range.start).sum();
        let summary = shape.cut(Job::of_parts(&parts)).run(&pool, |range, _| {
            shape.work_on(&range);
            log.add(range);
            if shape.late == Some(log.len()) {
                pool.release();
            }
            Ok::<_, Infallible>(())
        }).expect("nothing fails");
        prop_assert_eq!(summary.units, size);
        let chunks = log.sorted();
        let ranges = parts.iter().map(|part| part.range.clone());
        let wanted: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
        prop_assert_eq!(joined(chunks.clone()), joined(wanted.clone()));
        for part in wanted {
            let is_own = |chunk: &&Range<u64>| part.contains(&chunk.start);
            let own: Vec<_> = chunks.iter().filter(is_own).cloned().collect();
            assert_covers(&own, part, shape.align);
        }
    }

    #[test]
    fn without_helpers_all_is_done_here(shape in shapes()) {
        let log = Log::default();
        let caller = std::thread::current().id();
        let summary = shape.job().run(&NoHelpers, |range, worker| {
            assert_eq!((std::thread::current().id(), worker.index()), (caller, 0));
            log.add(range);
            Ok::<_, Infallible>(())
        }).expect("nothing fails");
        prop_assert_eq!(summary.threads, u32::from(shape.size > 0));
        let chunks = log.sorted();
        // The chunks were called in ascending order.
        assert_covers(&chunks, shape.start..shape.start + shape.size, shape.align);
        if shape.min_chunk.is_none() || shape.max_threads == 1 {
            prop_assert!(chunks.len() <= 1);
        }
    }
}
