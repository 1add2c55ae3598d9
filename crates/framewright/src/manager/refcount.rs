//! Reference counts of pages, of runs of pages, and of blocks that are allocated whole.
//!
//! The caller that allocated memory is its only user until it [starts](References::start) a count,
//! which is then 1. Others may [try to get](References::try_get) a reference to any page of that
//! memory at any time, by number alone, even if the page may be free by now or somebody else's:
//! this fails unless the count is above zero. The caller that [puts](References::put) the last
//! reference frees the memory. A count of zero is *frozen*: nobody gets a reference.
//!
//! The count of a single page is in its descriptor. The count of a run of pages is in the
//! descriptor of its first page, and the other descriptors say where that is. A block that is
//! allocated whole has its count, and an owner word of 32 bits, in its table entry, whether or not
//! pages have descriptors. Nothing here takes a lock, except to start the count of a block and to
//! free (invariants 22 and 23). Interrupt handlers may call all of it.
//!
//! Orders of memory: An owner word is stored with Release and loaded with Acquire: a CPU that sees
//! the word sees what its owner prepared before. Counts that are only read are Relaxed: they may
//! have changed already.

use crate::manager::facets::References;
use crate::page::{BlockPages, Page, PartOf};
use crate::platform::{Platform, with_interrupts_off};
use crate::sync::references;
use crate::sync::table_atomic::{AtomicU32, Ordering};
use crate::units::{PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{Counted, FreeError};
use core::fmt;

/// Why a reference count was not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReferenceError {
    /// No zone manages this frame.
    NotManaged(Pfn),
    /// Nothing counts references to this frame: it has no descriptor, and is in no block whose
    /// count was started.
    NotCounted(Pfn),
    /// The frame has no references: it is free, or its count is frozen.
    Frozen(Pfn),
    /// The frame has another number of references than was expected.
    Busy {
        /// The frame.
        pfn: Pfn,
        /// Its number of references.
        references: u32,
    },
    /// These frames cannot have a common count: they are neither a run of pages of one split block
    /// that all have descriptors and no count, nor a block that was allocated whole.
    NotARun(PfnRange),
    /// The count is frozen now, but the frames could not be freed: somebody freed them although
    /// they had references.
    NotFreed(FreeError),
}

impl fmt::Display for ReferenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotManaged(pfn) => write!(f, "no zone manages pfn {pfn}"),
            Self::NotCounted(pfn) => {
                write!(
                    f,
                    "nothing counts references to pfn {pfn}: it has no descriptor, or its block no \
                     count"
                )
            }
            Self::Frozen(pfn) => write!(f, "pfn {pfn} has no references: it is free or frozen"),
            Self::Busy { pfn, references } => write!(f, "pfn {pfn} has {references} references"),
            Self::NotARun(range) => {
                write!(
                    f,
                    "{range:?} cannot have one count: neither a whole block nor pages of one split \
                     block that have descriptors (`pages=inside`, or a vmemmap)"
                )
            }
            Self::NotFreed(error) => write!(f, "the last reference is gone, but {error}"),
        }
    }
}

impl core::error::Error for ReferenceError {}

/// The first page of the run that a page is part of, as an offset in the block, and the number of
/// pages in the run. `None` while the run is being changed.
fn run_of(map: &BlockPages<'_>, offset: usize) -> Option<(usize, usize)> {
    let (head, part) = match map.page(offset)?.part_of() {
        PartOf::Tail { pages_to_head } => {
            let head = offset.checked_sub(usize::try_from(pages_to_head).ok()?)?;
            (head, map.cold_page(head)?.part_of())
        }
        part => (offset, part),
    };
    let pages = match part {
        PartOf::Single => 1,
        PartOf::Head { pages } => usize::try_from(pages).ok()?,
        PartOf::Tail { .. } => return None,
    };
    (offset < head + pages).then_some((head, pages))
}

/// A count and what it counts.
struct Target<'a> {
    count: &'a AtomicU32,
    /// The owner word, if this is a block.
    owner: Option<&'a AtomicU32>,
    /// The descriptor of the first page, if these are pages.
    head: Option<&'a Page>,
    run: PfnRange,
}

impl Target<'_> {
    /// Clears the descriptor of a single page; runs are left alone.
    fn clear_single(&self) {
        if let Some(head) = self.head.filter(|_| self.run.pages() == 1) {
            head.clear();
        }
    }
}

/// Descriptors that are cleared at a time, with interrupts off.
const CLEARED_AT_ONCE: usize = 64;

/// The result of one attempt to get a reference.
enum Got {
    Reference,
    /// A reference to another run, which begins here: the page changed hands meanwhile.
    Another(Pfn),
    Nothing,
}

impl<P: Platform> References<'_, P> {
    /// Starts the count of memory that the caller allocated and owns alone, at 1. `range` is one
    /// page, a run of pages of one block that all have descriptors, or one block of order 9 or
    /// above as it was allocated.
    ///
    /// # Errors
    /// [`ReferenceError::NotARun`], [`NotManaged`](ReferenceError::NotManaged),
    /// [`Busy`](ReferenceError::Busy) when there is a count already. Nothing has then changed.
    ///
    /// # Safety
    /// See [*Owning memory*](crate::manager#owning-memory): the caller owns `range`. From now on
    /// the references to it own it.
    pub unsafe fn start(self, range: PfnRange) -> Result<(), ReferenceError> {
        let not_a_run = ReferenceError::NotARun(range);
        if range.is_empty() {
            return Err(not_a_run);
        }
        let (zone, segment, first) =
            self.manager.place_of(range.start).ok_or(ReferenceError::NotManaged(range.start))?;
        let index = segment.index_of(BlockNumber::containing(range.start));
        if range.pages() >= PAGES_PER_BLOCK {
            let order = range.as_order().ok_or(not_a_run)?;
            let started =
                zone.start_block_count(self.manager.platform, index, order).ok_or(not_a_run)?;
            return started
                .map_err(|references| ReferenceError::Busy { pfn: range.start, references });
        }
        let end = first + usize::try_from(range.pages()).map_err(|_| not_a_run)?;
        if end as u64 > PAGES_PER_BLOCK {
            return Err(not_a_run);
        }
        let started = with_interrupts_off(self.manager.platform, || {
            zone.look(index, |counted| match counted {
                Counted::Page { map, free } if free.first_free(first, end).is_none() => {
                    start_run(&map, first, end)
                }
                Counted::Page { .. } | Counted::Block { .. } => None,
            })
        });
        match started.flatten().ok_or(not_a_run)? {
            0 => Ok(()),
            references => Err(ReferenceError::Busy { pfn: range.start, references }),
        }
    }

    /// Gets a reference to the run or block that a page is part of, if that has references: the
    /// first page of a run holds the count, or the block's entry. A count that has reached its
    /// maximum stays there, and its memory is never freed.
    ///
    /// # Errors
    /// [`ReferenceError::Frozen`] when the memory is free or its count is frozen;
    /// [`NotCounted`](ReferenceError::NotCounted); [`NotManaged`](ReferenceError::NotManaged).
    pub fn try_get(self, pfn: Pfn) -> Result<(), ReferenceError> {
        loop {
            match self.try_get_once(pfn)? {
                Got::Reference => return Ok(()),
                Got::Nothing => return Err(ReferenceError::Frozen(pfn)),
                // SAFETY: this reference was just got, and nobody else knows of it (invariants 23
                // and 42).
                Got::Another(head) => unsafe { self.put(head) }?,
            }
        }
    }

    fn try_get_once(self, pfn: Pfn) -> Result<Got, ReferenceError> {
        let (zone, segment, offset) =
            self.manager.place_of(pfn).ok_or(ReferenceError::NotManaged(pfn))?;
        let block = BlockNumber::containing(pfn);
        let got = with_interrupts_off(self.manager.platform, || {
            zone.look(segment.index_of(block), |counted| match counted {
                Counted::Block { count, .. } if references::try_get(count) => Some(Got::Reference),
                Counted::Block { .. } => Some(Got::Nothing),
                Counted::Page { map, .. } => {
                    map.page(offset)?;
                    let Some(run) = run_of(&map, offset) else { return Some(Got::Nothing) };
                    if !references::try_get(map.page(run.0)?.count()) {
                        return Some(Got::Nothing);
                    }
                    // A reference to the run that the page was part of before is not one to this
                    // page.
                    let same = run_of(&map, offset) == Some(run);
                    Some(if same {
                        Got::Reference
                    } else {
                        Got::Another(block.start().add(run.0 as u64))
                    })
                }
            })
        });
        got.flatten().ok_or(ReferenceError::NotCounted(pfn))
    }

    /// Puts a reference. The last one clears the descriptors and frees the memory: single pages,
    /// orders 1 to 3 and blocks go into the CPU's cache.
    ///
    /// # Errors
    /// [`ReferenceError::Frozen`] when there is no reference to put;
    /// [`NotFreed`](ReferenceError::NotFreed); otherwise as for [`try_get`](Self::try_get).
    ///
    /// # Safety
    /// See [*Owning memory*](crate::manager#owning-memory): the caller has a reference, and does
    /// not use the memory through it any more.
    #[track_caller]
    pub unsafe fn put(self, pfn: Pfn) -> Result<(), ReferenceError> {
        let put = self.with_target(pfn, |target| {
            let last = references::put(target.count)?;
            if last {
                target.clear_single();
            }
            Ok(last.then_some(target.run))
        })?;
        match put.map_err(|references::NoReference| ReferenceError::Frozen(pfn))? {
            Some(run) => self.free_run(run),
            None => Ok(()),
        }
    }

    /// Puts a reference. If it was the last, returns the frames, which the caller then owns alone,
    /// frozen, with their descriptors unchanged, until it calls [`unfreeze`](Self::unfreeze) or
    /// [`free_frozen`](Self::free_frozen).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    ///
    /// # Safety
    /// As for [`put`](Self::put).
    pub unsafe fn put_testzero(self, pfn: Pfn) -> Result<Option<PfnRange>, ReferenceError> {
        let put = self.with_target(pfn, |target| {
            references::put(target.count).map(|last| last.then_some(target.run))
        })?;
        put.map_err(|_| ReferenceError::Frozen(pfn))
    }

    /// Frees frames that the caller owns alone because it froze their count, or put the last
    /// reference.
    ///
    /// # Errors
    /// [`ReferenceError::Busy`] when the count is not frozen; otherwise as for [`put`](Self::put).
    ///
    /// # Safety
    /// See [*Owning memory*](crate::manager#owning-memory): the caller owns the frames, because it
    /// froze their count or put the last reference, and nobody uses them any more.
    #[track_caller]
    pub unsafe fn free_frozen(self, pfn: Pfn) -> Result<(), ReferenceError> {
        let (references, run) = self.with_target(pfn, |target| {
            let references = target.count.load(Ordering::Relaxed);
            if references == 0 {
                target.clear_single();
            }
            (references, target.run)
        })?;
        if references == 0 {
            self.free_run(run)
        } else {
            Err(ReferenceError::Busy { pfn, references })
        }
    }

    /// Takes the count from `expected` to zero. The caller holds all of these references, and then
    /// owns the memory alone.
    ///
    /// # Errors
    /// [`ReferenceError::Busy`] when the count differs; otherwise as for
    /// [`try_get`](Self::try_get).
    ///
    /// # Safety
    /// See [*Owning memory*](crate::manager#owning-memory): all `expected` references are the
    /// caller's.
    pub unsafe fn freeze(self, pfn: Pfn, expected: u32) -> Result<(), ReferenceError> {
        let frozen = self.with_target(pfn, |target| references::freeze(target.count, expected))?;
        frozen.map_err(|references| ReferenceError::Busy { pfn, references })
    }

    /// Takes a frozen count from zero to `count` again.
    ///
    /// # Errors
    /// [`ReferenceError::Busy`] when the count is not frozen; [`Frozen`](ReferenceError::Frozen)
    /// when `count` is zero, which changes nothing.
    ///
    /// # Safety
    /// See [*Owning memory*](crate::manager#owning-memory): the caller owns the frames, because it
    /// froze their count or put the last reference. From now on the `count` references own them.
    pub unsafe fn unfreeze(self, pfn: Pfn, count: u32) -> Result<(), ReferenceError> {
        match self.with_target(pfn, |target| references::unfreeze(target.count, count))? {
            Ok(()) => Ok(()),
            Err(0) => Err(ReferenceError::Frozen(pfn)),
            Err(references) => Err(ReferenceError::Busy { pfn, references }),
        }
    }

    /// Returns the number of references at some moment.
    ///
    /// # Errors
    /// As for [`try_get`](Self::try_get), but a count of zero is no error.
    pub fn count(self, pfn: Pfn) -> Result<u32, ReferenceError> {
        self.with_target(pfn, |target| target.count.load(Ordering::Relaxed))
    }

    /// Returns the frames that share one count with a page. For callers that have a reference to
    /// it.
    ///
    /// # Errors
    /// As for [`count`](Self::count).
    pub fn run(self, pfn: Pfn) -> Result<PfnRange, ReferenceError> {
        self.with_target(pfn, |target| target.run)
    }

    /// Returns the owner word of a block whose count was started. For callers that have a reference
    /// to it.
    ///
    /// # Errors
    /// [`ReferenceError::NotCounted`] for anything else;
    /// [`NotManaged`](ReferenceError::NotManaged).
    pub fn owner_word(self, pfn: Pfn) -> Result<u32, ReferenceError> {
        self.with_target(pfn, |target| target.owner.map(|word| word.load(Ordering::Acquire)))?
            .ok_or(ReferenceError::NotCounted(pfn))
    }

    /// Sets the owner word, which is zero when the count starts.
    ///
    /// # Errors
    /// As for [`owner_word`](Self::owner_word).
    pub fn set_owner_word(self, pfn: Pfn, word: u32) -> Result<(), ReferenceError> {
        self.with_target(pfn, |target| {
            target.owner.map(|owner| owner.store(word, Ordering::Release))
        })?
        .ok_or(ReferenceError::NotCounted(pfn))
    }

    /// Frees frames whose count just became zero, so that the caller owns them alone. The
    /// descriptor of a single page is cleared already.
    #[track_caller]
    fn free_run(self, run: PfnRange) -> Result<(), ReferenceError> {
        if (2..PAGES_PER_BLOCK).contains(&run.pages()) {
            self.clear_run(run);
        }
        // SAFETY: by the promise of the caller that put the last reference or froze the count,
        // nobody else has these frames (invariants 23 and 42).
        unsafe { self.manager.free(run) }.map_err(ReferenceError::NotFreed)
    }

    /// Clears the descriptors of a run of pages, a few at a time.
    fn clear_run(self, run: PfnRange) {
        let Some((zone, segment, first)) = self.manager.place_of(run.start) else { return };
        let index = segment.index_of(BlockNumber::containing(run.start));
        let end = first + usize::try_from(run.pages()).unwrap_or(0);
        for start in (first..end).step_by(CLEARED_AT_ONCE) {
            with_interrupts_off(self.manager.platform, || {
                zone.look(index, |counted| {
                    if let Counted::Page { map, .. } = counted {
                        let pages = (start..end.min(start + CLEARED_AT_ONCE))
                            .filter_map(|offset| map.cold_page(offset));
                        pages.for_each(|page| {
                            page.clear();
                            page.set_part_of(PartOf::Single);
                        });
                    }
                })
            });
        }
    }

    /// Calls `look` with the count of the run or block that a page is part of. For callers that
    /// have a reference or own it alone, so that the run stays as it is.
    fn with_target<R>(
        self,
        pfn: Pfn,
        look: impl FnOnce(Target<'_>) -> R,
    ) -> Result<R, ReferenceError> {
        let (zone, segment, offset) =
            self.manager.place_of(pfn).ok_or(ReferenceError::NotManaged(pfn))?;
        let block = BlockNumber::containing(pfn);
        let seen = with_interrupts_off(self.manager.platform, || {
            zone.look(segment.index_of(block), |counted| match counted {
                Counted::Block { run, count, owner } => {
                    Some(look(Target { count, owner: Some(owner), head: None, run }))
                }
                Counted::Page { map, .. } => {
                    let (head, pages) = run_of(&map, offset)?;
                    let start = block.start().add(head as u64);
                    let run = PfnRange { start, end: start.add(pages as u64) };
                    let head = map.page(head)?;
                    Some(look(Target { count: head.count(), owner: None, head: Some(head), run }))
                }
            })
        });
        seen.flatten().ok_or(ReferenceError::NotCounted(pfn))
    }
}

/// Makes `first..end` of a block a run with one reference, and returns 0. If there are references
/// already, returns their number. Returns `None` when this cannot be a run.
fn start_run(map: &BlockPages<'_>, first: usize, end: usize) -> Option<u32> {
    let head = map.cold_page(first)?;
    let (mut references, mut alone) = (head.references(), head.part_of() == PartOf::Single);
    for offset in first + 1..end {
        let page = map.cold_page(offset)?;
        references = page.references().max(references);
        alone &= page.part_of() == PartOf::Single;
    }
    if references != 0 || !alone {
        return (references != 0).then_some(references);
    }
    let pages = u32::try_from(end - first).ok()?;
    if pages > 1 {
        head.set_part_of(PartOf::Head { pages });
        for (offset, pages_to_head) in (first + 1..end).zip(1..) {
            map.cold_page(offset)?.set_part_of(PartOf::Tail { pages_to_head });
        }
    }
    references::unfreeze(head.count(), 1).err().or(Some(0))
}
