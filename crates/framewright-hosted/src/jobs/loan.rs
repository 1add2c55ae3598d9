//! A helper that runs at its caller's priority for a while: [`Loan`].
//!
//! The word counts what the helper has done (stints) and says whether a priority was lent to the current one. The caller lends to a stint that it sees running; the
//! helper gives back after it, when nobody waits for it any more. A loan that comes too late finds another stint's number and is not made.
//!
//! Orders of memory: Every change of the word is an exchange with AcqRel or a store with Release,
//! every look an Acquire: who finds a stint lent or lowered finds the priority as it was left. A
//! failed exchange is Relaxed, for the word is loaded again.

use std::sync::atomic::{AtomicU64, Ordering};

const TAGS: u64 = 3;
const OWN: u64 = 0;
const LENDING: u64 = 1;
const LENT: u64 = 2;
const NEXT: u64 = TAGS + 1;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Loan(AtomicU64);

impl Loan {
    /// Lends to the stint that `done` is about, unless it is done or has a loan. `raise` says whether it could. Returns whether the loan stands.
    pub fn lend(&self, done: &dyn Fn() -> bool, raise: impl FnOnce() -> bool) -> bool {
        loop {
            // Before `done`: if the stint is not done then, this is its number or an older one, and with an older one the exchange fails.
            let word = self.0.load(Ordering::Acquire);
            if done() {
                return false;
            }
            if word & TAGS != OWN {
                return word & TAGS == LENT;
            }
            if self.0.compare_exchange(word, word | LENDING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let raised = raise();
                self.0.store(word | if raised { LENT } else { OWN }, Ordering::Release);
                return raised;
            }
        }
    }

    /// The helper's stint is over, and its caller knows. Calls `lower` if something was lent.
    pub fn end_stint(&self, lower: impl FnOnce()) {
        loop {
            let word = self.0.load(Ordering::Acquire);
            let next = (word & !TAGS).wrapping_add(NEXT);
            match word & TAGS {
                LENDING => std::thread::yield_now(),
                LENT => {
                    lower();
                    return self.0.store(next, Ordering::Release);
                }
                _ => {
                    if self.0.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};

    #[test]
    fn a_loan_is_made_once_and_given_back() {
        let loan = Loan::default();
        assert!(!loan.lend(&|| true, || unreachable!()));
        assert!(!loan.lend(&|| false, || false));
        assert!(loan.lend(&|| false, || true));
        assert!(loan.lend(&|| false, || unreachable!()));
        let mut lowered = false;
        loan.end_stint(|| lowered = true);
        assert!(lowered);
        loan.end_stint(|| unreachable!());
    }

    /// A helper does stint after stint; a caller lends to each, too early, in time or too late. Between stints the priority must be low.
    #[test]
    fn no_priority_is_left_behind() {
        const STINTS: u32 = 50_000;
        let (loan, level, ended, over) =
            (Loan::default(), AtomicI32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let stint = ended.load(Ordering::Acquire);
                    loan.lend(&|| ended.load(Ordering::Acquire) != stint, || {
                        level.fetch_add(1, Ordering::Relaxed);
                        true
                    });
                }
            });
            for stint in 0..STINTS {
                (0..stint % 50).for_each(|_| std::hint::spin_loop());
                ended.fetch_add(1, Ordering::AcqRel);
                loan.end_stint(|| {
                    level.fetch_sub(1, Ordering::Relaxed);
                });
                // The caller may have lent to the next stint already.
                assert!((0..=1).contains(&level.load(Ordering::Relaxed)));
            }
            over.store(true, Ordering::Relaxed);
        });
        loan.end_stint(|| {
            level.fetch_sub(1, Ordering::Relaxed);
        });
        assert_eq!(level.into_inner(), 0);
    }
}
