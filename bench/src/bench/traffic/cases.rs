//! The cases to measure: which patterns, how full memory is, and how many threads.

use super::trace::{ALL_SIZES, Length, Trace};
use super::{MANAGED_GIB, boot, mixed, passing, server};
use crate::bench::alloc::thread_counts;
use crate::rows::Tail;
use framewright::units::PAGE_SHIFT;

/// The kind of traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Bursts of all sizes.
    Mixed,
    /// Pages that one thread allocates and another frees.
    Pages,
    /// Runs of all sizes that one thread allocates and another frees.
    AllSizes,
    /// Runs with very different lifetimes.
    Server,
    /// A kernel that boots.
    Boot,
}

impl Pattern {
    /// The pattern's name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Pages => "producer/consumer",
            Self::AllSizes => "producer/consumer, mix",
            Self::Server => "server",
            Self::Boot => "boot",
        }
    }
}

/// Traffic of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    pub pattern: Pattern,
    /// How full memory is kept.
    pub percent: u64,
    pub threads: usize,
}

/// All cases that a host with this many CPUs can measure, and what is left out.
pub fn cases(cpus: usize) -> (Vec<Case>, Vec<String>) {
    let counts = thread_counts(cpus);
    let (mut cases, mut left_out) = (Vec::new(), Vec::new());
    let mut add = |pattern, percent, threads: &[usize]| {
        cases.extend(threads.iter().map(|&threads| Case { pattern, percent, threads }));
    };
    for percent in [50, 80, 97] {
        add(Pattern::Mixed, percent, &counts);
    }
    if cpus > 1 {
        add(Pattern::Pages, 50, &[2]);
        add(Pattern::AllSizes, 50, &[2]);
    } else {
        left_out.push("several threads: the host has 1 CPU".into());
    }
    add(Pattern::Server, 80, &counts);
    add(Pattern::Boot, 0, &[1]);
    (cases, left_out)
}

impl Case {
    /// Records what each thread does.
    pub fn record(self, length: Length) -> Vec<Trace> {
        let pages = (MANAGED_GIB << 30 >> PAGE_SHIFT) * self.percent / 100 / self.threads as u64;
        match self.pattern {
            Pattern::Mixed => {
                let seeds = 0..self.threads as u64;
                seeds.map(|seed| mixed::record(seed, pages, length)).collect()
            }
            Pattern::Pages => passing::record(&passing::PAGES, pages, length),
            Pattern::AllSizes => passing::record(&ALL_SIZES, pages, length),
            Pattern::Server => server::record(self.threads, pages, length),
            Pattern::Boot => vec![boot::record(length)],
        }
    }

    /// A row of calls with this case's settings, without the calls.
    pub fn tail(self, allocator: &str) -> Tail {
        Tail {
            allocator: allocator.into(),
            managed_gib: MANAGED_GIB,
            pattern: self.pattern.name().into(),
            full: format!("{} %", self.percent),
            threads: self.threads as u64,
            ..Tail::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_are_for_hosts_with_several_cpus() {
        let (one, left_out) = cases(1);
        assert!(one.iter().all(|case| case.threads == 1) && left_out.len() == 1);
        let (four, left_out) = cases(4);
        assert!(left_out.is_empty() && four.len() == 3 * 3 + 2 + 3 + 1);
    }
}
