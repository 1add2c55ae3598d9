//! The distance between two CPUs of the host: the time in which a cache line moves from one to the
//! other.
//!
//! The times of rows with several threads consist of such moves, and a host may move its virtual
//! CPUs, from two threads of one core to two packages, while a benchmark runs. The distance that is
//! recorded beside a row shows whether it can be compared with another.

use crate::bench::host;
use framewright_cli::error::Error;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

/// The number of moves there and back that are timed.
const TURNS: u32 = 4000;

/// The time of one move between the first two CPUs on which this process may run; `None` if there
/// is only one.
///
/// # Errors
/// Fails if the system does not name its CPUs, or refuses to pin threads to them.
pub fn nanoseconds() -> Result<Option<f64>, Error> {
    let cpus = host::cpus()?;
    let [one, other, ..] = cpus[..] else { return Ok(None) };
    let (word, start) = (AtomicU32::new(0), Barrier::new(2));
    let bounce = |cpu: usize, side: u32| {
        let stays = host::stay_on(cpu);
        start.wait();
        let begun = Instant::now();
        for turn in 0..TURNS {
            // The line carries nothing but the turn; turns of one side are even and those of the
            // other odd.
            while word.load(Ordering::Relaxed) != 2 * turn + side {
                std::hint::spin_loop();
            }
            word.store(2 * turn + side + 1, Ordering::Relaxed);
        }
        stays.map(|()| begun.elapsed().as_nanos() as f64 / f64::from(2 * TURNS))
    };
    let times = thread::scope(|scope| {
        let bounce = &bounce;
        let sides =
            [(one, 0), (other, 1)].map(|(cpu, side)| scope.spawn(move || bounce(cpu, side)));
        sides.map(|side| side.join().expect("the thread did not panic"))
    });
    let [one, other] = times;
    Ok(Some(one?.max(other?)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_takes_some_time() {
        let several = crate::bench::host::cpus().expect("known").len() > 1;
        let time = super::nanoseconds().expect("threads stay on their CPUs");
        assert_eq!(time.is_some(), several);
        assert!(time.is_none_or(|ns| ns > 0.0));
    }
}
