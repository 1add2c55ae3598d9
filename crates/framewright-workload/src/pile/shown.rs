//! Access to the pages of a pile through a window.
//!
//! Orders of memory: Relaxed: what other CPUs read or write of pages, the caller has written before
//! they begin, or reads when they are done; whoever runs the CPUs orders both.

use super::{Pile, PileError, STAMP, stamp};
use crate::random::mix;
use crate::stamp::word;
use crate::window::Window;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::Platform;
use framewright::units::{PAGE_SIZE, Pfn, PfnRange};

/// The word in the first page of a run that says where the run is shown.
const SHOWN: u64 = 2;
/// The word in every page that is written through the window.
const WRITTEN: u64 = 5;

/// Makes every CPU do something, and waits for all.
type OnEachCpu<'a> = &'a dyn Fn(&(dyn Fn(u32) + Sync));

impl<P: Platform> Pile<'_, P> {
    /// Shows all runs in `window`, `shift` places after their positions in the pile. There all CPUs
    /// check the stamps of all pages, then it writes to all pages, checks the result, and hides
    /// them again. `on_each_cpu` calls its argument on each CPU.
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
        // SAFETY: all CPUs are done looking, and the window is ours alone: the caller says so.
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
        // One more than the first frame that some CPU saw wrong; 0 for none.
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

    /// A word of a page of a run, as the window shows it.
    fn shown(&self, start: Pfn, pfn: Pfn, place: u64) -> &AtomicU64 {
        let base = word(self.platform(), start, SHOWN).load(Ordering::Relaxed)
            + (pfn.0 - start.0) * PAGE_SIZE
            + 8 * place;
        let address = core::ptr::with_exposed_provenance_mut(usize::try_from(base).unwrap_or(0));
        let address = NonNull::new(address).unwrap_or(NonNull::dangling());
        // SAFETY: the window shows all of the run from the address that `show_all` noted, until
        // `hide_all`, which comes later (invariant 40); the run is the pile's, any content is a
        // value, and it is reached as atomics only.
        unsafe { AtomicU64::from_ptr(address.as_ptr()) }
    }
}
