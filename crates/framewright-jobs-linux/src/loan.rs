//! Lets a helper run at its caller's priority for a while: [`Loan`].
//!
//! The state is one word: the number of the helper's current stint (one piece of work for one job),
//! and what was lent to that stint.
//!
//! ```text
//!           caller: lend              caller: raised, or sent
//!    stint n -----------> LENDING -------------------------------> LENT and/or MOVED
//!       |                    | refused: back to stint n                 |
//!       | helper: end_stint                    helper: end_stint lowers |
//!       +-------------------------> stint n + 1 <-----------------------+
//! ```
//!
//! The caller lends to a stint that it sees running. The helper gives the loan back after the
//! stint, when no caller waits for it any more. A loan that comes too late finds another stint
//! number and is not made.
//!
//! Memory ordering: every change of the word is an exchange with AcqRel or a store with Release,
//! and every load is an Acquire. Whichever side finds that a stint was lent to, or that it was
//! lowered again, therefore sees the priority that the other side has set. A failed exchange is
//! Relaxed, because the word is loaded again.

use std::sync::atomic::{AtomicU64, Ordering};

/// A caller is lending at this moment.
const LENDING: u64 = 1;
/// A priority was lent.
const LENT: u64 = 2;
/// The helper was moved to its caller's CPU.
const MOVED: u64 = 4;
const TAGS: u64 = LENDING | LENT | MOVED;
const NEXT: u64 = TAGS + 1;

/// What was lent to a helper; see the module documentation.
#[derive(Default)]
pub(super) struct Loan(AtomicU64);

impl Loan {
    /// Lends a priority to the stint that `done` is about, unless that stint is done or has one
    /// already. `raise` raises the priority and says whether it succeeded. Returns whether the
    /// stint has a loan.
    pub fn lend(&self, done: &dyn Fn() -> bool, raise: impl FnOnce() -> bool) -> bool {
        self.give(LENT, done, raise)
    }

    /// Moves the helper to its caller's CPU in the stint that `done` is about, unless that stint is
    /// done or the helper was already moved. `send` moves it and says whether it succeeded. Returns
    /// whether the helper was moved.
    pub fn lend_cpu(&self, done: &dyn Fn() -> bool, send: impl FnOnce() -> bool) -> bool {
        self.give(MOVED, done, send)
    }

    fn give(&self, what: u64, done: &dyn Fn() -> bool, give: impl FnOnce() -> bool) -> bool {
        loop {
            // Load the word before asking `done`: if the stint is not done after that, the word
            // holds its number or an older one, and with an older one the exchange fails.
            let word = self.0.load(Ordering::Acquire);
            if done() {
                return false;
            }
            if word & (what | LENDING) != 0 {
                return word & what != 0;
            }
            if self
                .0
                .compare_exchange(word, word | LENDING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                let given = give();
                self.0.store(word | if given { what } else { 0 }, Ordering::Release);
                return given;
            }
        }
    }

    /// Ends the helper's stint, after the caller was told. Calls `lower` if a priority was lent.
    /// Returns whether the helper was moved to its caller's CPU.
    pub fn end_stint(&self, lower: impl FnOnce()) -> bool {
        loop {
            let word = self.0.load(Ordering::Acquire);
            let next = (word & !TAGS).wrapping_add(NEXT);
            if word & LENDING != 0 {
                std::thread::yield_now();
                continue;
            }
            // While the priority is being given back, no caller may lend anything.
            let lent = word & LENT != 0;
            let held = if lent { word | LENDING } else { next };
            if self.0.compare_exchange(word, held, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                if lent {
                    lower();
                    self.0.store(next, Ordering::Release);
                }
                return word & MOVED != 0;
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

    #[test]
    fn a_cpu_is_lent_once_with_a_priority_or_without() {
        let loan = Loan::default();
        assert!(!loan.lend_cpu(&|| true, || unreachable!()));
        assert!(!loan.lend_cpu(&|| false, || false) && loan.lend_cpu(&|| false, || true));
        assert!(loan.lend_cpu(&|| false, || unreachable!()));
        assert!(loan.end_stint(|| unreachable!()) && !loan.end_stint(|| unreachable!()));
        // Each of them is lent independently.
        assert!(loan.lend(&|| false, || true) && loan.lend_cpu(&|| false, || true));
        assert!(
            loan.lend(&|| false, || unreachable!()) && loan.lend_cpu(&|| false, || unreachable!())
        );
        let mut lowered = false;
        assert!(loan.end_stint(|| lowered = true) && lowered);
        assert!(!loan.end_stint(|| unreachable!()));
    }

    /// A caller that is late does not move the helper in its next stint: it acts before the stint
    /// that it saw has ended, or not at all.
    #[test]
    fn no_helper_is_sent_in_another_stint() {
        const STINTS: u32 = 50_000;
        let (loan, over) = (Loan::default(), AtomicBool::new(false));
        let (begun, ended, left) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let stint = begun.load(Ordering::Acquire);
                    let done = || ended.load(Ordering::Acquire) >= stint;
                    let sent = || {
                        assert_eq!(left.load(Ordering::Acquire) + 1, stint);
                        (0..20).for_each(|_| std::hint::spin_loop());
                        assert_eq!(left.load(Ordering::Acquire) + 1, stint);
                        true
                    };
                    if stint % 2 == 0 {
                        loan.lend(&done, sent);
                    }
                    loan.lend_cpu(&done, sent);
                }
            });
            for stint in 1..=STINTS {
                begun.store(stint, Ordering::Release);
                (0..stint % 50).for_each(|_| std::hint::spin_loop());
                ended.store(stint, Ordering::Release);
                loan.end_stint(|| {});
                left.store(stint, Ordering::Release);
            }
            over.store(true, Ordering::Relaxed);
        });
    }

    /// A helper works stint after stint, and a caller lends to each: too early, in time or too
    /// late. Between stints the priority must be low.
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
