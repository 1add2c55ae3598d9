//! Pages that are kept as long as nobody needs their memory, like a kernel's clean page cache,
//! which can be read again from files.
//!
//! They wait in queues, the oldest first. The queues lie in the pages themselves (`link`), so that
//! they need no memory of their own.
//!
//! ```text
//!   fill ──> newest ─ ... ─ oldest ──> given up: for a request, in the background, or by `clear`
//! ```
//!
//! Orders of memory: Relaxed: counters stand alone, and pages are written and read under the lock
//! of the queues.

use crate::link;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::units::{NodeId, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::{AllocateError, Manager, Platform, Reclaim, Request, Shortage, SpinLock};

/// How many queues there are. Nodes whose numbers are equal modulo this share one.
const QUEUES: usize = 64;
/// At least this many pages are given up at once, because each time is costly for the task that
/// waits (Linux: `SWAP_CLUSTER_MAX`).
const LEAST: u64 = 32;

#[derive(Clone, Copy, Default)]
struct Queue {
    oldest: Option<Pfn>,
    newest: Option<Pfn>,
}

/// Clean pages, which are given up when memory is short.
pub struct CleanPages<'m, P: Platform> {
    manager: &'m Manager<P>,
    queues: SpinLock<[Queue; QUEUES]>,
    pages: AtomicU64,
    given_up: AtomicU64,
    /// The last page found damaged, plus one; 0 if there is none.
    damaged: AtomicU64,
}

impl<'m, P: Platform> CleanPages<'m, P> {
    /// Makes empty queues.
    #[must_use]
    pub const fn new(manager: &'m Manager<P>) -> Self {
        Self {
            manager,
            queues: SpinLock::new([Queue { oldest: None, newest: None }; QUEUES]),
            pages: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
        }
    }

    /// Returns how many pages there are.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Returns how many pages were given up for requests or in the background.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Returns a page that another owner overwrote, if one was found. The pages behind it in its
    /// queue are lost.
    #[must_use]
    pub fn damaged(&self) -> Option<Pfn> {
        self.damaged.load(Ordering::Relaxed).checked_sub(1).map(Pfn)
    }

    /// Returns the page that is given up next, of the first queue that has pages.
    #[must_use]
    pub fn next(&self) -> Option<Pfn> {
        let platform = self.manager.platform();
        self.queues.with(platform, |queues| queues.iter().find_map(|queue| queue.oldest))
    }

    /// Adds a page, as if it had been read from a file. If memory is short, this gives up the
    /// oldest pages.
    ///
    /// # Errors
    /// There is no memory, not even from these pages.
    pub fn add(&self) -> Result<(), AllocateError> {
        let platform = self.manager.platform();
        let request = Request {
            migrate_type: MigrateType::Reclaimable,
            max_address: platform.direct_limit(),
            ..Request::pages(1)
        };
        let page = self.manager.allocate(&request)?.start;
        let queue = self.queue_of(page);
        self.queues.with(platform, |queues| {
            let queue = &mut queues[queue];
            let before = queue.newest;
            let is_last = |page| matches!(link::get(platform, page), Ok(None));
            if before == Some(page) || !before.is_none_or(is_last) {
                // Either page has another owner, or both are the same page.
                return self.note_damage(page);
            }
            link::set(platform, page, None);
            queue.newest = Some(page);
            match before {
                Some(before) => link::set(platform, before, Some(page)),
                None => queue.oldest = Some(page),
            }
            self.pages.fetch_add(1, Ordering::Relaxed);
        });
        Ok(())
    }

    fn note_damage(&self, page: Pfn) {
        self.damaged.store(page.0 + 1, Ordering::Relaxed);
    }

    /// Gives up all pages.
    pub fn clear(&self) {
        for queue in 0..QUEUES {
            while self.give_up(queue) {}
        }
    }

    /// Returns the queue for pages of this page's node.
    fn queue_of(&self, page: Pfn) -> usize {
        self.manager.numa().zone_of(page).map_or(0, |zone| zone.node.index() % QUEUES)
    }

    /// Frees the oldest page of a queue; false if the queue is empty. If the page's link is
    /// damaged, it is freed nevertheless, and all pages behind it are lost.
    fn give_up(&self, queue: usize) -> bool {
        let platform = self.manager.platform();
        let page = self.queues.with(platform, |queues| {
            let queue = &mut queues[queue];
            let page = queue.oldest?;
            let next = link::get(platform, page);
            let is_last = queue.newest == Some(page);
            let fits = |next: &Option<Pfn>| next.is_none() == is_last && *next != Some(page);
            let is_whole = next.as_ref().is_ok_and(fits);
            queue.oldest = next.ok().flatten().filter(|_| is_whole);
            if queue.oldest.is_none() {
                queue.newest = None;
            }
            self.pages.fetch_sub(1, Ordering::Relaxed);
            Some((page, is_whole))
        });
        let Some((page, is_whole)) = page else { return false };
        // SAFETY: allocated in `add` and taken out of its queue, so nobody else frees it or
        // accesses it (invariant 42).
        let freed = unsafe { self.manager.free(PfnRange::new(page.0, page.0 + 1)) };
        if !is_whole || freed.is_err() {
            self.note_damage(page);
        }
        true
    }
}

impl<P: Platform> Reclaim for CleanPages<'_, P> {
    /// Frees as many pages as are wanted, but at least `LEAST`, on the nodes that the request may
    /// use.
    fn reclaim(&self, wanted: &Shortage) -> u64 {
        let enough = wanted.pages.max(LEAST);
        let nodes = wanted.nodes.nodes().map(NodeId::index);
        let (mut freed, mut seen) = (0, 0_u64);
        for queue in nodes.map(|node| node % QUEUES) {
            if seen >> queue & 1 != 0 {
                continue;
            }
            seen |= 1 << queue;
            while freed < enough && self.give_up(queue) {
                freed += 1;
            }
        }
        self.given_up.fetch_add(freed, Ordering::Relaxed);
        freed
    }
}

impl<P: Platform> Drop for CleanPages<'_, P> {
    fn drop(&mut self) {
        self.clear();
    }
}
