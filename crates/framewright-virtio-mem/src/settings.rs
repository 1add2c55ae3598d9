//! How the driver should work.

/// How the driver should work. Times are measured on the clock that
/// [`work`](crate::VirtioMem::work) is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The smallest amount that the adopter can add or remove, a power of two. If it is larger than
    /// the device's block, memory comes and goes in multiples of this.
    pub grain_bytes: u64,
    /// Addresses from here on cannot be used, because they are not in the direct map: a device
    /// whose region extends beyond this limit is refused.
    pub limit_bytes: u64,
    /// The first wait after the answer BUSY, or if nothing could be removed, or if not all new
    /// memory could be used. The wait doubles each time this repeats.
    pub retry_least_ms: u32,
    /// The longest wait.
    pub retry_most_ms: u32,
    /// A device that takes longer than this for one request is called silent.
    pub answer_ms: u32,
}

impl Default for Settings {
    /// A grain of 2 MiB, all addresses, waits of 100 ms to 10 s, and 20 s for an answer.
    fn default() -> Self {
        Self {
            grain_bytes: 2 << 20,
            limit_bytes: u64::MAX,
            retry_least_ms: 100,
            retry_most_ms: 10_000,
            answer_ms: 20_000,
        }
    }
}

const NS_PER_MS: u64 = 1_000_000;

/// Converts milliseconds to nanoseconds.
pub fn ns(ms: u32) -> u64 {
    u64::from(ms) * NS_PER_MS
}

/// Waits that double each time.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next_ns: u64,
    least_ns: u64,
    most_ns: u64,
}

impl Backoff {
    pub fn new(settings: &Settings) -> Self {
        // A wait of 0 would never double.
        let least_ns = ns(settings.retry_least_ms.max(1));
        Self { next_ns: least_ns, least_ns, most_ns: ns(settings.retry_most_ms).max(least_ns) }
    }

    /// Starts again with the shortest wait.
    pub fn reset(&mut self) {
        self.next_ns = self.least_ns;
    }

    /// Returns the end of the next wait.
    pub fn until_ns(&mut self, now_ns: u64) -> u64 {
        let wait_ns = self.next_ns;
        self.next_ns = wait_ns.saturating_mul(2).min(self.most_ns);
        now_ns.saturating_add(wait_ns)
    }

    /// The shortest wait.
    pub fn least_ns(&self) -> u64 {
        self.least_ns
    }
}
