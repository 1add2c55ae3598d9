//! Accesses the pages of a pile through a window.
//!
//! Orders of memory: Relaxed: the caller has written what other CPUs read before they begin, and
//! reads what they wrote after they are done. The code that runs the CPUs orders both.

use super::{Pile, PileError, STAMP, stamp};
use crate::random::mix;
use crate::stamp::word;
use crate::window::Window;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::Platform;
use framewright::units::{PAGE_SIZE, Pfn, PfnRange};

/// The word in a run's first page that holds the address where the window maps the run.
const SHOWN: u64 = 2;
/// The word in every page that is written through the window.
const WRITTEN: u64 = 5;

/// Calls its argument on every CPU, and waits for all.
type OnEachCpu<'a> = &'a dyn Fn(&(dyn Fn(u32) + Sync));

impl<P: Platform> Pile<'_, P> {
    /// Maps all runs in `window`, `shift` places after their positions in the pile. Then every CPU
    /// checks the stamps of all pages through the window, and CPU 0 writes to all pages. Unmaps the
    /// runs and checks what was written. `on_each_cpu` calls its argument on each CPU.
    ///
    /// # Errors
    /// [`PileError::Window`], [`PileError::Tables`], [`PileError::Damaged`]: a CPU saw another
    /// page's memory.
    ///
    /// # Safety
    /// Nobody else uses the window until this returns.
    pub unsafe fn use_through(
        &self,
        window: &dyn Window,
        shift: u64,
        on_each_cpu: OnEachCpu<'_>,
    ) -> Result<(), PileError> {
        let result =
            self.show_all(window, shift).and_then(|()| self.look_and_write(shift, on_each_cpu));
        // SAFETY: all CPUs are done with the window, and the caller vouches that it is ours alone.
        let tables = unsafe { window.hide_all() };
        result?;
        if tables != 0 {
            return Err(PileError::Tables(tables));
        }
        let is_missing = |&pfn: &Pfn| {
            word(self.platform(), pfn, WRITTEN).load(Ordering::Relaxed) != mix(pfn.0 ^ mix(shift))
        };
        self.each(|start| {
            match (start.0..start.0 + self.pages_of_run()).map(Pfn).find(is_missing) {
                Some(pfn) => Err(PileError::Damaged(pfn)),
                None => Ok(()),
            }
        })
    }

    fn show_all(&self, window: &dyn Window, shift: u64) -> Result<(), PileError> {
        let mut place = shift;
        self.each(|start| {
            let run = PfnRange { start, end: start.add(self.pages_of_run()) };
            let address =
                window.show(place % self.runs().max(1), run).map_err(PileError::Window)?;
            word(self.platform(), start, SHOWN)
                .store(address.expose_provenance().get() as u64, Ordering::Relaxed);
            place += 1;
            Ok(())
        })
    }

    fn look_and_write(&self, shift: u64, on_each_cpu: OnEachCpu<'_>) -> Result<(), PileError> {
        // One more than a frame that some CPU saw wrong; 0 for none.
        let wrong = AtomicU64::new(0);
        on_each_cpu(&|cpu| {
            let looked = self.each(|start| {
                let pages = start.0..start.0 + self.pages_of_run();
                let differs = |&pfn: &u64| {
                    self.shown(start, Pfn(pfn), STAMP).load(Ordering::Relaxed) != stamp(pfn)
                };
                let found = pages.clone().find(differs);
                if cpu == 0 && found.is_none() {
                    pages.for_each(|pfn| {
                        self.shown(start, Pfn(pfn), WRITTEN)
                            .store(mix(pfn ^ mix(shift)), Ordering::Relaxed)
                    });
                }
                found.map_or(Ok(()), |pfn| Err(PileError::Damaged(Pfn(pfn))))
            });
            if let Err(PileError::Damaged(pfn)) = looked {
                wrong.store(pfn.0 + 1, Ordering::Relaxed);
            }
        });
        match wrong.into_inner().checked_sub(1) {
            Some(pfn) => Err(PileError::Damaged(Pfn(pfn))),
            None => Ok(()),
        }
    }

    /// Returns a word of a page of a run, at its address in the window.
    fn shown(&self, start: Pfn, pfn: Pfn, place: u64) -> &AtomicU64 {
        let base = word(self.platform(), start, SHOWN).load(Ordering::Relaxed)
            + (pfn.0 - start.0) * PAGE_SIZE
            + 8 * place;
        let address = core::ptr::with_exposed_provenance_mut(usize::try_from(base).unwrap_or(0));
        let address = NonNull::new(address).unwrap_or(NonNull::dangling());
        // SAFETY: the window maps all of the run from the address that `show_all` recorded until
        // `hide_all`, which comes later (invariant 40). The run is the pile's, any content is a
        // value, and it is accessed only as atomics.
        unsafe { AtomicU64::from_ptr(address.as_ptr()) }
    }
}
