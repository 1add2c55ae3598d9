//! Multithreaded jobs without a heap: a range of units, a function, and helpers if some are idle.
//!
#![doc = include_str!("../README.md")]
//!
//! ## How a job is divided
//!
//! With `min_chunk(n)` chunks have one size, by padata's rule ([`plan`]); with `.guided()` they
//! shrink as the rest does, so that workers end together on uneven work. With neither, the caller
//! begins alone, times its chunks, and calls helpers once the rest is worth their start: a small
//! job costs little more than a loop. Ranges are disjoint, cover the job exactly, have their
//! borders on multiples of `align`, and are claimed in ascending order, each with one atomic
//! operation. A job of [parts](Job::of_parts) says which units are best done on which node. The
//! list below has the rules in full.
//!
//! A caller whose jobs are alike keeps what they taught in a [`UnitCost`], which may be a `static`.
//! A job that is known to be small is then one call without a look at the clock, and one that is
//! worth helpers asks for them before its first chunk.
//!
//! ## The rules of division
//!
//! * `min_chunk(n)`: threads are `size / max(n, align)`, at least 1, at most `max_threads`. Chunks
//!   have one size: `size / (4 * threads)`, raised to `n`, then to 1, then rounded up to `align`.
//!   One thread is one call for the whole range.
//! * `min_chunk(n).guided()`: threads as above. A chunk is an eighth of an equal share of the rest,
//!   at least `n`: chunks shrink as the rest does.
//! * Neither: as many threads as pay, see below. A chunk is an eighth of an equal share of the
//!   rest, at least `align`.
//!
//! Every border lies on an absolute multiple of `align` (in the first case: of the chunk size).
//! Ranges are disjoint, cover the job exactly, and are claimed in ascending order, each with one
//! atomic operation: a fetch-and-add in the first case, a compare-and-swap in the others. While the
//! caller is alone these are plain loads and stores.
//!
//! Guided chunks make workers end together on uneven work: units of very different cost, holes, a
//! slow CPU. A worker's chunks begin small and double. Where there is a clock, they do not shrink
//! below about a microsecond of work, and none takes a worker longer than a quarter of the time
//! that the rest will take at the speed seen so far. A unit is never split: the worker that gets
//! the dearest unit last ends last.
//!
//! A job of [parts](Job::of_parts) says which units are best done on which node. A worker takes
//! from its own node's parts first and then from the part with most left. Helpers are sent to nodes
//! by [`Placement`]; the cursor that spreads them survives from job to job.
//!
//! ## Small jobs
//!
//! Without a `min_chunk` the caller begins alone, times its chunks, and calls helpers when the rest
//! is worth their start:
//!
//! * The first chunk is a sixteenth of one thread's share, at most 16 units. Nothing is concluded
//!   until 1 us of work was timed.
//! * Cost of the rest = its units times the mean cost of a unit so far, the last chunk counted
//!   twice.
//! * Helpers = that cost / (2 * start cost): each gets at least twice the work that its start
//!   costs. The start cost is what the platform says, or a moving average of what was measured from
//!   a call to the first claim; 20 us before anything was measured.
//! * While the caller is alone, chunks grow so that the clock is read at most once for every 1.2 us
//!   of work after the first readings, and no chunk has more than 31 times the units that are done
//!   already. The estimate is renewed after each chunk, and more helpers are called when it has
//!   grown by half.
//! * If no helper comes, because their CPUs are busy, jobs ask less and less: after a job whose
//!   request was not answered 1, then 3, 7 and at most 15 jobs ask for none, until a helper comes.
//!   A job whose rest takes 2 ms or more always asks, since a wake-up call costs nothing beside
//!   that. A request counts as not answered when the job went on for twice a helper's start.
//!
//! A job that stays alone, and was not done before ([`UnitCost`]), pays for two clock readings
//! (three when it has more than 500 units) and a few nanoseconds, then for one reading for every
//! 1.2 us. Nothing that helpers could see is made before they are worth calling, unless the job is
//! watched: cancelled from outside, counted, or with statistics. So it costs a twentieth of a job
//! of 0.5 to 1 us, and less of longer ones; a reading takes 10 ns with a bare time stamp counter,
//! 25 ns with a system's clock in a virtual machine. A job of one unit, with `max_threads(1)`,
//! without helpers, or whose `min_chunk` gives one thread is one call: no clock, no atomics, a few
//! nanoseconds.
//!
//! It errs where the rest is unlike what it saw. After a dear beginning it calls helpers that find
//! little to do, which costs the wake-up calls. A cheap beginning (a hole) hides work: up to 31
//! times the units of a beginning that took less than a microsecond may be done by the caller alone
//! before it looks again. A job that is known to be large or to have holes can say so with
//! `min_chunk(n).guided()`, which calls helpers at once. When CPUs become free again, up to 15 jobs
//! of less than 2 ms do not notice. An interrupt during a short first chunk looks like a dear
//! beginning.
//!
//! Without a clock nothing can be estimated: helpers are called at once, as many as there are
//! multiples of `align`. Give a `min_chunk` on such platforms.
//!
//! ## How a job ends
//!
//! * **Error**: the first error is returned with its range. Nothing is claimed after it, running
//!   chunks finish, and [`Job::run_or_undo`] undoes every maximal range that succeeded, ascending,
//!   on the caller's thread. A chunk that fails cleans up after itself.
//! * **Cancelled** through a [`Cancel`]: nothing is claimed after it, running chunks finish, and
//!   [`Job::run_or_undo`] undoes what succeeded. If everything was claimed already, the job
//!   succeeds.
//! * **Panic**: no chunk is claimed after it. When all workers have stopped, it goes on in the
//!   caller with the payload that the platform kept. Nothing is undone.
//!
//! [`DoneCount`] counts units for a progress bar; [`WorkerStats`] tell what each worker did.
//!
//! ## Jobs inside and beside jobs
//!
//! A chunk may run jobs of its own: they get the helpers that are idle, or none. A job that has
//! fewer helpers than its share, the number of helpers divided by the number of jobs that asked for
//! some, is *hungry*: it looks for idle slots between its caller's chunks, and helpers of jobs with
//! more than their share leave these between two chunks. A single helper stays where it is. A
//! helper waits only for the helpers of a job that it runs itself, so no waits form a circle.
//!
//! ## Memory ordering
//!
//! What the caller wrote before `run` is visible to every chunk; what a chunk wrote is visible to
//! the caller when `run` returns, to undo, and to the next worker with the same
//! [number](Worker::index). Chunks of one job are not ordered among themselves. How:
//!
//! * The caller's past, to a helper's chunks: Release store of the offer in the helper's slot;
//!   Acquire compare-and-swap with which the helper takes it.
//! * A helper's chunks, to the caller after `run` and to undo: Release store at the end in the
//!   slot; Acquire load with which the caller finds it ended.
//! * A helper's end, to the next job at that slot, and through it to a caller that looks late:
//!   Release store at the end in the slot; Acquire compare-and-swap that reserves the slot.
//! * A worker's chunks, to the next worker with its number: Release when the number is given back;
//!   Acquire when it is taken.
//! * An offer, to a helper that is about to sleep: a full fence on both sides, before
//!   [`Helpers::wake`] and in [`WorkerSlot::has_work`].
//!
//! Everything else (positions, the stop flag, counts, hints) is Relaxed, because it needs only the
//! atomicity of one word. The source names the partner of each ordering. The protocol is model
//! checked with loom, and run under random schedules with shuttle.
//!
//! ## Stack
//!
//! Everything lives on the caller's stack or in the slots: about 2 KiB below `run` in an optimised
//! build (6 KiB for a job of parts, 1 KiB for a job that is one call), a few hundred bytes on a
//! helper. Nothing depends on the number of helpers.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod cost;
mod engine;
mod error;
mod helpers;
mod job;
#[cfg(doctest)]
mod misuse;
mod nodes;
pub mod plan;
#[expect(unsafe_code, reason = "the one place where what is borrowed is handed to other threads")]
mod raw;
mod scheduler;
mod slices;
mod sync;
mod token;
mod worker;

pub use cost::UnitCost;
pub use error::{InvalidJob, JobError, Summary};
pub use helpers::{Helpers, NoHelpers};
pub use job::{Job, Placement};
pub use nodes::{MAX_NODES, MAX_PARTS, NodeSet, Part};
pub use raw::WorkerSlot;
pub use scheduler::{MAX_HELPERS, SchedulerState, Workers};
pub use token::{Cancel, DoneCount, WorkerStats};
pub use worker::Worker;
