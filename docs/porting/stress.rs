//! Random traffic that accounts for every page (step 18 of `docs/porting.md`), on one CPU. With
//! more each has a `Worker` with a seed of its own over one `Shared`; all stop, one calls `account`
//! with the sum of their pages, all finish, and one calls `settle`.

use framewright::{Manager, Platform};
use framewright_workload::{Failure, Held, Shared, Tally, Worker};

/// On one CPU.
///
/// # Errors
/// What is wrong, and with which frame.
pub fn stress<P: Platform>(manager: &Manager<P>, operations: u64) -> Result<Tally, Failure> {
    let shared = Shared::new(manager);
    let mut held = [Held::NOTHING; 64];
    let mut worker = Worker::new(manager, &shared, &mut held, 1); // one for each CPU; its seed
    worker.run(operations)?;
    shared.account(manager, worker.pages())?; // while no worker works
    let tally = worker.finish()?;
    shared.settle(manager)?;
    Ok(tally)
}
