//! Random traffic on the memory that was just brought up (`stress=`, `stress_operations=` on the command line).

use crate::console::log;
use crate::platform::GuestPlatform;
use crate::storage::Once;
use framewright::Manager;
use framewright::platform::Platform;
use framewright_stress::{Failure, Held, Shared, Tally, Worker};

/// Runs that are held at most.
const CAPACITY: usize = 512;
/// Operations between two looks at the clock and two accounts of every page.
const ROUND: u64 = 5000;

static HELD: Once<[Held; CAPACITY]> = Once::new([Held::NOTHING; CAPACITY]);

/// How long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// By the clock; without one a single round.
    Seconds(u64),
    /// Exactly so many operations.
    Operations(u64),
}

/// What the command line asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stress {
    /// When it ends.
    pub length: Length,
    /// `stress_seed=`: what the choices follow from.
    pub seed: u64,
}

impl Stress {
    /// Runs on this CPU, accounts for every page in between and at the end, and says what came of it. False when something was found wrong.
    pub fn run(self, manager: &Manager<GuestPlatform>) -> bool {
        let free_before = manager.totals().free_pages + manager.cached_pages();
        let started_ns = manager.platform().now_ns();
        log!("Framewright: stress with seed {}", self.seed);
        match self.traffic(manager) {
            Ok(tally) => {
                let totals = manager.totals();
                let all_back = totals.free_pages == free_before;
                let ended_ns = manager.platform().now_ns();
                let ms = started_ns.zip(ended_ns).map_or(0, |(start, end)| (end - start) / 1_000_000);
                log!("Framewright: stress: {tally}, {ms} ms");
                log!(
                    "Framewright: stress: {}, {} of {} managed pages free",
                    if all_back { "every page accounted for" } else { "PAGES LOST" },
                    totals.free_pages,
                    totals.managed_pages,
                );
                all_back
            }
            Err(failure) => {
                log!("Framewright: stress failed: {failure}");
                false
            }
        }
    }

    fn traffic(self, manager: &Manager<GuestPlatform>) -> Result<Tally, Failure> {
        let shared = Shared::new(manager);
        let mut worker = Worker::new(manager, &shared, HELD.take(), self.seed);
        let clock = || manager.platform().now_ns();
        let started_ns = clock();
        loop {
            let round = match self.length {
                Length::Operations(operations) => ROUND.min(operations - worker.tally().operations),
                Length::Seconds(_) => ROUND,
            };
            worker.run(round)?;
            shared.account(manager, worker.pages())?;
            let is_over = match self.length {
                Length::Operations(operations) => worker.tally().operations == operations,
                Length::Seconds(seconds) => started_ns
                    .zip(clock())
                    .is_none_or(|(start, now)| now.saturating_sub(start) >= seconds.saturating_mul(1_000_000_000)),
            };
            if is_over {
                break;
            }
        }
        let tally = worker.finish()?;
        shared.settle(manager)?;
        Ok(tally)
    }
}
