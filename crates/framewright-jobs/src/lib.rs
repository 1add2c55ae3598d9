//! Multithreaded jobs without a heap. A job is a range of units and a function that handles a piece
//! of it; idle helper threads or CPUs join in.
//!
#![doc = include_str!("../README.md")]
//!
//! ## How a job is divided
//!
//! With `min_chunk(n)` all chunks have the same size, by padata's rule ([`plan`]). With `.guided()`
//! chunks shrink as the remaining work does, so that workers finish together on uneven work. With
//! neither, the caller begins alone, times its chunks, and calls helpers once the remaining work is
//! worth their start cost: a small job costs little more than a plain loop. Ranges are disjoint,
//! cover the job exactly, have their borders on multiples of `align`, and are claimed in ascending
//! order, each with one atomic operation. A job of [parts](Job::of_parts) says which units are best
//! done on which node. The next section has the rules in full.
//!
//! A caller that runs similar jobs again and again can keep what they taught in a [`UnitCost`],
//! which may be a `static`. A job that is known to be small is then a single call that never reads
//! the clock, and a job that is worth helpers asks for them before its first chunk.
//!
//! ## The rules of division
//!
//! * `min_chunk(n)`: the job wants `size / max(n, align)` threads, at least 1 and at most
//!   `max_threads`. If it wants 1, there is one call for the whole range, unless the job has parts.
//!   Otherwise all chunks have one size: `size / (4 * threads)`, where `threads` are the caller and
//!   the helpers that it finds idle when it begins, raised to `n`, then to 1, then rounded up to
//!   `align`. So there are several chunks even if no helper is idle.
//! * `min_chunk(n).guided()`: the number of threads is as above. A chunk is an eighth of a thread's
//!   equal share of the remaining units, and at least `n`, so chunks shrink as the job proceeds.
//! * Neither: as many threads as pay off (see "Small jobs"). A chunk is an eighth of a thread's
//!   equal share of the remaining units, and at least `align`.
//!
//! Every border lies on an absolute multiple of `align` (in the first case: of the chunk size).
//! Ranges are disjoint, cover the job exactly, and are claimed in ascending order, each with one
//! atomic operation: a fetch-and-add in the first case, a compare-and-swap in the others. While the
//! caller is alone, plain loads and stores are enough.
//!
//! Guided chunks make workers finish together on uneven work: units of very different cost, holes,
//! a slow CPU. Each worker's chunks begin small and double. Where there is a clock, chunks do not
//! shrink below about a microsecond of work, and no chunk takes its worker longer than a quarter of
//! the time that the remaining work will take at the speed seen so far. A unit is never split, so
//! the worker that gets the most expensive unit last also finishes last.
//!
//! A job of [parts](Job::of_parts) says which units are best done on which node. A worker takes
//! from its own node's parts first and then from the part with the most units left. [`Placement`]
//! decides which nodes helpers are sent to; the cursor that spreads them over the nodes persists
//! from job to job.
//!
//! ## Small jobs
//!
//! Without a `min_chunk` the caller begins alone, times its chunks, and calls helpers when the
//! remaining work is worth their start cost:
//!
//! * The first chunk is a sixteenth of one thread's share, at most 16 units. No conclusion is drawn
//!   before 1 us of work has been timed.
//! * Cost of the remaining work = its units times the mean cost of a unit so far, with the last
//!   chunk counted twice.
//! * Helpers = that cost / (2 * start cost), so each helper gets at least twice the work that its
//!   start costs. The start cost is what the platform says, or else a moving average of the
//!   measured time from a call to the helper's first claim. It is assumed to be 20 us until
//!   something was measured.
//! * While the caller is alone, chunks grow so that, after the first few readings, the clock is
//!   read at most once for every 1.2 us of work, and no chunk has more than 31 times the units that
//!   are already done. The estimate is renewed after each chunk, and more helpers are called when
//!   it has grown by half.
//! * If no helper comes because their CPUs are busy, jobs ask less and less often: after jobs whose
//!   requests were not answered, the next 1, then 3, 7 and at most 15 jobs do not ask, until a
//!   helper comes. A job with 2 ms or more of remaining work always asks, since a wake-up call
//!   costs nothing compared with that. A request counts as not answered when the job went on for
//!   twice a helper's start time and no helper came.
//!
//! A job that stays alone and has no history ([`UnitCost`]) pays for two clock readings (three when
//! it has more than 500 units) and a few nanoseconds, then for one reading for every 1.2 us.
//! Nothing that helpers could see is set up before they are worth calling, unless the job is
//! watched: cancelled from outside, counted, or with statistics. The overhead is therefore a
//! twentieth of a job of 0.5 to 1 us, and a smaller part of longer ones; a reading takes 10 ns with
//! a bare time stamp counter, and 25 ns with a system's clock in a virtual machine. A job is a
//! single call, with no clock and no atomics and a few nanoseconds of overhead, if it has one unit
//! or a `min_chunk` that gives one thread. Unless it is cancelled from outside or counted, it is
//! one with `max_threads(1)`, too, and without helpers if it has no `min_chunk`. A job of parts is
//! never one.
//!
//! The estimate errs where the remaining work is unlike what was seen so far. After an expensive
//! beginning it calls helpers that find little to do, which costs the wake-up calls. A cheap
//! beginning (a hole) hides work: up to 31 times the units of a beginning that took less than a
//! microsecond may be done by the caller alone before it looks again. A job that is known to be
//! large or to have holes can say so with `min_chunk(n).guided()`, which calls helpers at once.
//! When CPUs become free again, up to 15 jobs of less than 2 ms do not notice. An interrupt during
//! a short first chunk looks like an expensive beginning.
//!
//! Without a clock nothing can be estimated, so helpers are called at once, as many as there are
//! multiples of `align`. Give a `min_chunk` on such platforms.
//!
//! ## How a job ends
//!
//! * **Error**: the first error is returned with its range. Nothing is claimed after it, and chunks
//!   that are already running finish. [`Job::run_or_undo`] then undoes every maximal range that
//!   succeeded, in ascending order, on the caller's thread. A chunk that fails cleans up after
//!   itself.
//! * **Cancelled** through a [`Cancel`]: nothing is claimed after that, chunks that are already
//!   running finish, and [`Job::run_or_undo`] undoes what succeeded. If everything was claimed
//!   already, the job succeeds.
//! * **Panic**: no chunk is claimed after it. When all workers have stopped, the panic continues in
//!   the caller with the payload that the platform kept. Nothing is undone.
//!
//! [`DoneCount`] counts units for a progress bar; [`WorkerStats`] tells what each worker did.
//!
//! ## Jobs inside and beside jobs
//!
//! A chunk may run jobs of its own: they get the helpers that are idle, or none. A job is *hungry*
//! if it has fewer helpers than its share, which is the number of helpers divided by the number of
//! jobs that asked for some. The caller of a hungry job looks for idle slots between its own
//! chunks, and helpers of jobs with more than their share leave those jobs between two chunks. A
//! single helper stays where it is. A helper waits only for the helpers of a job that it runs
//! itself, so waits cannot form a cycle.
//!
//! ## Memory ordering
//!
//! What the caller wrote before `run` is visible to every chunk. What a chunk wrote is visible to
//! the caller when `run` returns, to undo, and to the next worker with the same
//! [number](Worker::index). Chunks of one job are not ordered among themselves. The pairs are:
//!
//! * From the caller before `run` to a helper's chunks: Release store of the offer in the helper's
//!   slot; Acquire compare-and-swap with which the helper takes it.
//! * From a helper's chunks to the caller after `run` and to undo: Release store in the slot when
//!   the helper ends; Acquire load with which the caller finds that it has ended.
//! * From a helper's end to the next job at that slot, and through that job to a caller that looks
//!   at the slot late: Release store in the slot when the helper ends; Acquire compare-and-swap
//!   that reserves the slot.
//! * From a worker's chunks to the next worker with its number: Release when the number is given
//!   back; Acquire when it is taken.
//! * From an offer to a helper that is about to sleep: a full fence on both sides, before
//!   [`Helpers::wake`] and in [`WorkerSlot::has_work`].
//!
//! Everything else (positions, the stop flag, counts, hints) is Relaxed, because it needs only the
//! atomicity of one word. The source names the partner of each ordering. The protocol is model
//! checked with loom and run under random schedules with shuttle.
//!
//! ## Stack
//!
//! Everything lives on the caller's stack or in the slots: about 2 KiB below `run` in an optimised
//! build (6 KiB for a job of parts, 1 KiB for a job that is a single call), and a few hundred bytes
//! on a helper. Nothing depends on the number of helpers.
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
