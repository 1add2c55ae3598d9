//! Jobs over indices: parts of slices, undo of them, and a state for each worker.

use framewright_jobs::{Cancel, InvalidJob, Job, JobError, NoHelpers, Part, Worker};
use framewright_testkit::HelperPool;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::error::Error;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Sets how the job may be cut.
fn cut(job: Job<'_>, min_chunk: Option<u64>, align: u64, guided: bool) -> Job<'_> {
    let job = if guided { job.guided() } else { job };
    min_chunk.map_or(job, |units| job.min_chunk(units)).align(align)
}

/// Takes long enough for helpers to come.
fn work_on(range: &Range<usize>) {
    for turn in 0..range.len() * 20 {
        std::hint::black_box(turn);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn each_element_is_written_once_and_no_other(
        len in 0_usize..5000,
        start in 0_usize..5000,
        size in 0_usize..5000,
        min_chunk in proptest::option::of(0_u64..600),
        align in 1_u64..70,
        guided: bool,
        helpers in 0_usize..4,
    ) {
        let (start, pool) = (start.min(len), HelperPool::new(helpers));
        let end = len.min(start + size);
        let job = cut(Job::indices(start..end), min_chunk, align, guided);
        let mut slice = vec![0_usize; len];
        job.for_slice_mut(&pool, &mut slice, |range, part, _| {
            assert_eq!(range.len(), part.len());
            work_on(&range);
            range.zip(part).for_each(|(index, element)| *element += index + 1);
        }).expect("nothing fails");
        for (index, element) in slice.iter().enumerate() {
            prop_assert_eq!(*element, if (start..end).contains(&index) { index + 1 } else { 0 });
        }
        let mut mapped = vec![usize::MAX; len];
        job.map_into(&pool, &mut mapped, |index| 2 * index).expect("nothing fails");
        for (index, &element) in mapped.iter().enumerate() {
            let is_unit = (start..end).contains(&index);
            prop_assert_eq!(element, if is_unit { 2 * index } else { usize::MAX });
        }
        let sum = AtomicUsize::new(0);
        job.for_each(&pool, |range, _| {
            sum.fetch_add(range.sum(), Ordering::Relaxed);
        }).expect("nothing fails");
        prop_assert_eq!(sum.into_inner(), (start..end).sum::<usize>());
    }

    #[test]
    fn what_succeeded_is_undone_with_its_elements(
        len in 1_usize..4000,
        bad in proptest::collection::vec(0_usize..4000, 1..4),
        min_chunk in proptest::option::of(1_u64..600),
        guided: bool,
        helpers in 0_usize..4,
    ) {
        let bad: Vec<usize> = bad.into_iter().map(|index| index % len).collect();
        let (pool, mut slice) = (HelperPool::new(helpers), vec![0_u32; len]);
        let job = cut(Job::indices(0..len), min_chunk, 1, guided);
        let mut undone: Vec<Range<usize>> = Vec::new();
        let result = job.for_slice_mut_or_undo(
            &pool,
            &mut slice,
            |range, part, _| {
                work_on(&range);
                match bad.iter().find(|index| range.contains(index)) {
                    Some(&index) => Err(index),
                    None => {
                        part.iter_mut().for_each(|element| *element += 1);
                        Ok(())
                    }
                }
            },
            |range, part| {
                assert_eq!(range.len(), part.len());
                part.iter_mut().for_each(|element| *element -= 1);
                undone.push(range);
            },
        );
        let Err(JobError::Failed { error, range }) = result else { panic!("{result:?}") };
        prop_assert!(bad.contains(&error) && range.contains(&(error as u64)));
        prop_assert!(slice.iter().all(|&element| element == 0), "something was left done");
        let ascend = undone.windows(2).all(|pair| pair[0].end < pair[1].start);
        prop_assert!(ascend, "{undone:?}");
    }

    #[test]
    fn no_two_workers_have_one_state(
        len in 0_usize..5000,
        states in 1_usize..6,
        min_chunk in proptest::option::of(1_u64..600),
        helpers in 0_usize..5,
    ) {
        let pool = HelperPool::new(helpers);
        let mut sums: Vec<(AtomicUsize, usize)> =
            (0..states).map(|_| (AtomicUsize::new(0), 0)).collect();
        let job = cut(Job::indices(0..len), min_chunk, 1, false);
        let summary = job.reduce(
            &pool,
            &mut sums,
            |(inside, sum), range| {
                assert_eq!(inside.swap(1, Ordering::Relaxed), 0, "two workers at once");
                work_on(&range);
                *sum += range.sum::<usize>();
                inside.store(0, Ordering::Relaxed);
            },
            |(_, sum), (_, other)| *sum += *other,
        ).expect("nothing fails");
        prop_assert_eq!(sums[0].1, (0..len).sum::<usize>());
        prop_assert_eq!(summary.units, len as u64);
    }
}

#[test]
fn workers_that_meet_have_states_of_their_own() {
    let pool = HelperPool::new(1);
    let (inside, places) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    let mut states = [0_u64; 4];
    let job = Job::indices(0..2).min_chunk(1);
    job.with_states(&pool, &mut states, |state, _, worker| {
        inside.fetch_add(1, Ordering::Relaxed);
        // Waits until both workers are in a chunk.
        while inside.load(Ordering::Relaxed) < 2 {
            std::thread::yield_now();
        }
        *state += 1;
        let place = (worker.index(), std::ptr::from_mut(state).addr());
        places.lock().unwrap_or_else(PoisonError::into_inner).insert(place);
        Ok::<_, Infallible>(())
    })
    .expect("nothing fails");
    let places = places.into_inner().unwrap_or_else(PoisonError::into_inner);
    let apart: BTreeSet<usize> = places.iter().map(|&(_, place)| place).collect();
    assert_eq!((places.len(), apart.len()), (2, 2), "{places:?}");
    assert_eq!(states, [1, 1, 0, 0]);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_called() {
    let mut slice = [0; 10];
    let called =
        |_: Range<usize>, _: &mut [i32], _: &Worker<'_>| -> Result<(), ()> { panic!("called") };
    let beyond = Err(JobError::Invalid(InvalidJob::BeyondSlice { end: 11, len: 10 }));
    let parts = [Part { node: 0, range: 0..2 }, Part { node: 0, range: 5..11 }];
    for job in [Job::indices(3..11), Job::of_parts(&parts), Job::new(2..11), Job::with_size(10, 1)]
    {
        assert_eq!(job.try_for_slice_mut(&NoHelpers, &mut slice, called), beyond);
        assert_eq!(job.for_slice_mut_or_undo(&NoHelpers, &mut slice, called, |_, _| ()), beyond);
    }
    let reversed = Err(JobError::Invalid(InvalidJob::RangeReversed { start: 7, end: 3 }));
    let job = Job::new(Range { start: 7, end: 3 });
    assert_eq!(job.try_for_slice_mut(&NoHelpers, &mut slice, called), reversed);
    let none = Job::indices(0..5).with_states(&NoHelpers, &mut [(); 0], |_, _, _| Ok::<_, ()>(()));
    assert_eq!(none, Err(JobError::Invalid(InvalidJob::NoStates)));
    let cancel = Cancel::new();
    let far = Job::new(0..u64::MAX).cancelled_by(&cancel);
    assert!(far.for_slice_mut(&NoHelpers, &mut slice, |_, _, _| ()).is_err());
}

#[test]
fn parts_of_a_job_are_parts_of_a_slice() {
    let parts = [Part { node: 0, range: 1..3 }, Part { node: 2, range: 5..6 }];
    let mut slice = [0; 7];
    let pool = HelperPool::on_nodes(&[0, 2]);
    Job::of_parts(&parts)
        .for_slice_mut(&pool, &mut slice, |_, part, _| part.fill(1))
        .expect("nothing fails");
    assert_eq!(slice, [0, 1, 1, 0, 0, 1, 0]);
}

#[test]
fn elements_of_no_size_are_counted_as_others() {
    let (mut slice, count) = ([(); 1000], AtomicUsize::new(0));
    let add = |_: Range<usize>, part: &mut [()], _: &Worker<'_>| {
        count.fetch_add(part.len(), Ordering::Relaxed);
    };
    Job::indices(0..1000).for_slice_mut(&HelperPool::new(1), &mut slice, add).expect("well");
    assert_eq!(count.into_inner(), 1000);
}

#[test]
fn an_error_has_a_source() {
    let fail = |_: Range<u64>, _: &Worker<'_>| Err(std::io::Error::other("no disk"));
    let error = Job::new(0..4).run(&NoHelpers, fail).expect_err("it fails");
    assert_eq!(error.to_string(), "units 0..4: no disk");
    let error: Box<dyn Error + Send + Sync> = Box::new(error);
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    assert_eq!(source.map(ToString::to_string).as_deref(), Some("no disk"));
    let invalid = Job::new(0..4).align(0).for_each(&NoHelpers, |_, _| ()).expect_err("no align");
    assert_eq!(
        invalid.source().and_then(|source| source.downcast_ref()),
        Some(&InvalidJob::AlignZero)
    );
}
