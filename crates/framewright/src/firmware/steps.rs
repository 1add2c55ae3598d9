//! Counts the steps of the intake in its own tests. Steps show how the work grows; time does not on
//! a busy machine.

/// A counter; empty outside unit tests.
#[derive(Debug)]
pub(super) struct Steps {
    #[cfg(all(test, not(loom)))]
    counted: core::cell::Cell<u64>,
}

impl Steps {
    pub(super) const fn new() -> Self {
        Self {
            #[cfg(all(test, not(loom)))]
            counted: core::cell::Cell::new(0),
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn count(&self, steps: u64) {
        self.counted.set(self.counted.get() + steps);
    }

    #[cfg(not(all(test, not(loom))))]
    #[expect(clippy::unused_self, reason = "it counts in tests")]
    pub(super) const fn count(&self, _steps: u64) {}

    #[cfg(all(test, not(loom)))]
    pub(super) const fn counted(&self) -> u64 {
        self.counted.get()
    }
}
