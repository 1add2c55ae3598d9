//! What a job shares with code that watches it: [`Cancel`], [`DoneCount`] and [`WorkerStats`].

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::const_fn;

/// Stops a job: no chunk is claimed after [`cancel`](Self::cancel), and chunks that are running
/// finish. One token may be given to several jobs.
#[derive(Debug)]
pub struct Cancel(AtomicBool);

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}

impl Cancel {
    const_fn! {
        /// Creates a token that is not cancelled.
        #[must_use]
        pub fn new() -> Self {
            Self(AtomicBool::new(false))
        }
    }

    /// Cancels the jobs that have this token. May be called from any thread or interrupt handler.
    pub fn cancel(&self) {
        // Relaxed here and in the load: the flag carries no data.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts units of chunks that returned without error, for a progress bar. May be given to several
/// jobs, one after the other or at once.
#[derive(Debug)]
pub struct DoneCount(AtomicU64);

impl Default for DoneCount {
    fn default() -> Self {
        Self::new()
    }
}

impl DoneCount {
    const_fn! {
        /// Creates a count of 0.
        #[must_use]
        pub fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// The number of units done so far. While a job runs, this does not say which units: what a
    /// chunk wrote is visible only when the job has returned.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, units: u64) {
        self.0.fetch_add(units, Ordering::Relaxed);
    }
}

/// What one worker did. A job is given a slice of these, one for each worker; worker 0 is the
/// caller. Later jobs add to the same values.
///
/// The values are written when the worker ends, so they are meaningful once the job has returned. A
/// worker that panicked is not counted.
#[derive(Debug)]
pub struct WorkerStats {
    chunks: AtomicU64,
    units: AtomicU64,
    busy_ns: AtomicU64,
    node: AtomicU32,
}

impl Default for WorkerStats {
    fn default() -> Self {
        Self::new()
    }
}

impl WorkerStats {
    const_fn! {
        /// Creates the statistics of a worker that did nothing.
        #[must_use]
        pub fn new() -> Self {
            Self {
                chunks: AtomicU64::new(0),
                units: AtomicU64::new(0),
                busy_ns: AtomicU64::new(0),
                node: AtomicU32::new(0),
            }
        }
    }

    /// The number of chunks that the worker called, including a chunk that failed.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed)
    }

    /// The number of units in chunks that returned without error.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }

    /// Nanoseconds from the worker's first claim to the end of its last chunk; 0 without a clock.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns.load(Ordering::Relaxed)
    }

    /// The node on which the worker ran last.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.node.load(Ordering::Relaxed)
    }

    /// Adds what a worker did. Relaxed: the values become visible together with what the worker's
    /// chunks wrote.
    pub(crate) fn record(&self, tally: &Tally, busy_ns: u64, node: u32) {
        self.chunks.fetch_add(tally.chunks, Ordering::Relaxed);
        self.units.fetch_add(tally.units, Ordering::Relaxed);
        self.busy_ns.fetch_add(busy_ns, Ordering::Relaxed);
        self.node.store(node, Ordering::Relaxed);
    }
}

/// What a worker counts while it works.
#[derive(Default)]
pub(crate) struct Tally {
    pub chunks: u64,
    pub units: u64,
}
