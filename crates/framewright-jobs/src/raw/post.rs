//! Where a helper is given work: one [`Post`] for each helper, owned by the platform, and
//! [`Recruits`], a job's hold on some of them.
//!
//! # Protocol
//!
//! The whole state of a post is one word: null, or the address of a job's entry on its caller's
//! stack and a tag.
//!
//! ```text
//!           caller: reserve          caller: offer            helper: serve
//!    idle ------------------> RESERVED ------------> OFFERED ----------------> RUNNING
//!     ^ ^                        |                      |                      |  |
//!     | +-- caller: withdraw ----+----------------------+                      |  | chunk failed or panicked
//!     +------------------ helper: ended well, left ----------------------------+  v
//!     +------------------ caller: has read what failed ------------ FAILED, PANICKED
//! ```
//!
//! A caller leaves only when no post names its entry: what was not started is taken back with a
//! compare-and-swap that either wins, and then the helper never sees the job, or loses, and then
//! the helper is running and is waited for. That a post names *this* entry needs no generation
//! number: the entry is alive, so no other job has its address, and only its caller posts it.
//!
//! # Memory ordering
//!
//! | store | load | carries |
//! |---|---|---|
//! | `offer`, Release | `serve_with`, compare-and-swap, Acquire | the entry and everything that the caller wrote before |
//! | end of `serve_with`, Release | `has_ended`, Acquire | everything that the helper's chunks wrote, and what failed |
//! | end of `serve_with`, Release | `reserve`, compare-and-swap, Acquire | that the last helper is out, to the next job; through it to the last job's caller, should it look only later |
//!
//! Orders of memory: The two SeqCst fences are partners: a caller offers and then looks who sleeps,
//! a helper says that it sleeps and then looks for an offer. Relaxed looks only choose which
//! exchange is tried, or follow an Acquire of the same word in `has_ended`.

use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::const_fn;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr;

const RESERVED: usize = 1;
const OFFERED: usize = 2;
const RUNNING: usize = 3;
const FAILED: usize = 4;
const PANICKED: usize = 5;
const TAGS: usize = 7;

/// The node word of a post when it does not matter where the helper runs.
const ANY_NODE: u32 = u32::MAX;

/// How a helper's part of a job ended.
pub(crate) enum Ended {
    /// There was nothing left to do, or others need the helper more.
    Well,
    /// This chunk returned an error.
    Failed(Range<u64>),
}

/// What a helper does for a job.
pub(crate) trait Work {
    /// Called on a helper's thread, at most once for each offer.
    fn help(&self) -> Ended;
}

/// A job on its caller's stack, with its type forgotten. The alignment leaves room for the tags.
#[repr(align(8))]
struct Entry {
    work: *const (),
    help: unsafe fn(*const ()) -> Ended,
}

/// # Safety
/// `work` is a `W` that lives until this returns.
unsafe fn help<W: Work>(work: *const ()) -> Ended {
    // SAFETY: the caller says so.
    let work = unsafe { &*work.cast::<W>() };
    work.help()
}

fn tag(word: *mut Entry) -> usize {
    word.addr() & TAGS
}

fn entry(word: *mut Entry) -> *mut Entry {
    word.map_addr(|address| address & !TAGS)
}

fn tagged(entry: *mut Entry, tag: usize) -> *mut Entry {
    entry.map_addr(|address| address | tag)
}

/// Where one helper finds work. The platform has one for each helper, in memory that outlives every
/// job: a static array, or a pool.
///
/// A helper's loop is
///
/// ```
/// # use framewright_jobs::Post;
/// # fn sleep_until_woken() {}
/// fn helper_turn(post: &Post) {
///     while post.serve() {}
///     // Say that this helper sleeps; then, because work may have come in between:
///     if !post.has_work() {
///         sleep_until_woken();
///     }
/// }
/// # helper_turn(&Post::new());
/// ```
///
/// One cache line, so that helpers do not disturb each other.
#[repr(align(64))]
pub struct Post {
    word: AtomicPtr<Entry>,
    node: AtomicU32,
    /// The chunk that failed; meaningful while the tag is `FAILED`.
    failed_start: AtomicU64,
    failed_end: AtomicU64,
}

impl Default for Post {
    fn default() -> Self {
        Self::new()
    }
}

impl Post {
    const_fn! {
        /// A post without work.
        #[must_use]
        pub fn new() -> Self {
            Self {
                word: AtomicPtr::new(ptr::null_mut()),
                node: AtomicU32::new(ANY_NODE),
                failed_start: AtomicU64::new(0),
                failed_end: AtomicU64::new(0),
            }
        }
    }

    /// Whether work waits here. For a helper about to sleep, after it has made known that it
    /// sleeps: this begins with a full fence, as does the way from an offer to
    /// [`Helpers::wake`](crate::Helpers::wake), so of the two at least one sees the other.
    #[must_use]
    pub fn has_work(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_offered()
    }

    pub(crate) fn is_offered(&self) -> bool {
        tag(self.word.load(Ordering::Relaxed)) == OFFERED
    }

    /// Whether no job has this post at this moment: nobody is asked here, and nobody works.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        // Acquire pairs with the Release at the end of `serve_with`.
        self.word.load(Ordering::Acquire).is_null()
    }

    /// On which node the work that waits here should run, when it matters. For the platform, in or
    /// after [`Helpers::wake`](crate::Helpers::wake).
    #[must_use]
    pub fn node(&self) -> Option<u32> {
        let node = self.node.load(Ordering::Relaxed);
        (node != ANY_NODE).then_some(node)
    }

    /// Does the work that waits here, if any; returns whether there was some. Called by the helper.
    /// A panic in the work comes out of this, after the job was told.
    pub fn serve(&self) -> bool {
        self.serve_with(|work| work())
    }

    /// [`serve`](Self::serve) inside `around`, which calls its argument, and where there is
    /// unwinding catches what comes out of it and keeps it for
    /// [`Helpers::resume_panic`](crate::Helpers::resume_panic). The job hears of the helper's end
    /// when `around` has returned. An `around` that does not call its argument has the helper do
    /// nothing.
    pub fn serve_with(&self, around: impl FnOnce(&mut dyn FnMut())) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let entry = entry(word);
        // Acquire pairs with the Release in `offer`.
        let taken = tag(word) == OFFERED
            && self
                .word
                .compare_exchange(
                    word,
                    tagged(entry, RUNNING),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_ok();
        if !taken {
            return false;
        }
        let mut finish = Finish { post: self, entry, state: Progress::NotCalled };
        around(&mut || {
            if !matches!(finish.state, Progress::NotCalled) {
                return;
            }
            finish.state = Progress::Inside;
            // SAFETY: the post says RUNNING for this entry until `finish` is dropped, and its
            // caller stays until then (invariant 25).
            let entry = unsafe { &*entry };
            // SAFETY: `Entry` was made of a living `W` together with `help::<W>`, and lives as
            // above (invariant 25).
            let ended = unsafe { (entry.help)(entry.work) };
            finish.state = Progress::Returned(ended);
        });
        true
    }
}

enum Progress {
    NotCalled,
    Inside,
    Returned(Ended),
}

/// Says that the helper is out of the job, however it came out. The job is not touched after that.
struct Finish<'a> {
    post: &'a Post,
    entry: *mut Entry,
    state: Progress,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let last = match &self.state {
            Progress::NotCalled | Progress::Returned(Ended::Well) => ptr::null_mut(),
            Progress::Inside => tagged(self.entry, PANICKED),
            Progress::Returned(Ended::Failed(range)) => {
                self.post.failed_start.store(range.start, Ordering::Relaxed);
                self.post.failed_end.store(range.end, Ordering::Relaxed);
                tagged(self.entry, FAILED)
            }
        };
        // Release pairs with the Acquire in `has_ended` and in `reserve`.
        self.post.word.store(last, Ordering::Release);
    }
}

/// Which of up to 256 posts.
#[derive(Clone, Copy, Default)]
struct PostSet([u64; 4]);

impl PostSet {
    fn is_empty(self) -> bool {
        self.0 == [0; 4]
    }

    fn insert(&mut self, post: usize) {
        if let Some(word) = self.0.get_mut(post / 64) {
            *word |= 1 << (post % 64);
        }
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(index, word)| {
            let rest =
                core::iter::successors(Some(word), |&word| Some(word & word.wrapping_sub(1)));
            rest.take_while(|&word| word != 0)
                .map(move |word| index * 64 + word.trailing_zeros() as usize)
        })
    }
}

/// How a caller waits for a helper: which one, and what to ask.
pub(crate) type Wait<'a> = &'a (dyn Fn(usize, &dyn Fn() -> bool) + 'a);

/// The posts that a job has or had. When this is dropped, none of them names the job.
pub(crate) struct Recruits<'a> {
    posts: &'a [Post],
    entry: *mut Entry,
    mine: PostSet,
    wait: Wait<'a>,
    /// Nothing here may go to another thread.
    not_send: PhantomData<*const ()>,
}

/// Calls `body` with the means to have others call `work.help()`. When this returns, or unwinds,
/// all of them have ended.
pub(crate) fn with_recruits<W: Work + Sync, R>(
    posts: &[Post],
    work: &W,
    wait: Wait<'_>,
    body: impl FnOnce(&mut Recruits<'_>) -> R,
) -> R {
    let mut entry = Entry { work: ptr::from_ref(work).cast(), help: help::<W> };
    let mut recruits = Recruits {
        posts,
        entry: &raw mut entry,
        mine: PostSet::default(),
        wait,
        not_send: PhantomData,
    };
    body(&mut recruits)
}

impl Recruits<'_> {
    /// Takes post `helper` if it is idle. Its helper hears nothing yet.
    pub(crate) fn reserve(&mut self, helper: usize) -> bool {
        let Some(post) = self.posts.get(helper) else { return false };
        if !post.word.load(Ordering::Relaxed).is_null() {
            return false;
        }
        // Acquire pairs with the Release at the end of `serve_with`.
        let ours = tagged(self.entry, RESERVED);
        let reserved = post
            .word
            .compare_exchange(ptr::null_mut(), ours, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if reserved {
            self.mine.insert(helper);
        }
        reserved
    }

    /// Says where the helper of a reserved post should run.
    pub(crate) fn place(&self, helper: usize, node: Option<u32>) {
        if let Some(post) = self.posts.get(helper) {
            post.node.store(node.unwrap_or(ANY_NODE), Ordering::Relaxed);
        }
    }

    /// Offers the work at every post that is reserved, then calls `offered` for each of these.
    /// Between the two is a full fence, the partner of that in [`Post::has_work`].
    pub(crate) fn offer_reserved(&mut self, offered: impl FnOnce(&mut dyn Iterator<Item = usize>)) {
        let mut fresh = PostSet::default();
        for (helper, post) in self.mine() {
            if post.word.load(Ordering::Relaxed) == tagged(self.entry, RESERVED) {
                // Release pairs with the Acquire in `serve_with`.
                post.word.store(tagged(self.entry, OFFERED), Ordering::Release);
                fresh.insert(helper);
            }
        }
        fence(Ordering::SeqCst);
        offered(&mut fresh.iter());
    }

    /// Takes back what was not started and waits for the others, one after the other.
    #[inline]
    pub(crate) fn settle(&self) {
        if !self.mine.is_empty() {
            self.settle_mine();
        }
    }

    #[inline(never)]
    fn settle_mine(&self) {
        for (_, post) in self.mine() {
            for unstarted in [RESERVED, OFFERED] {
                // Success orders nothing: the helper saw nothing of this job. But a load of this
                // null by somebody's `reserve` must see what the posts' last helper did, hence
                // Release.
                let ours = tagged(self.entry, unstarted);
                let _ = post.word.compare_exchange(
                    ours,
                    ptr::null_mut(),
                    Ordering::Release,
                    Ordering::Relaxed,
                );
            }
        }
        for (helper, post) in self.mine() {
            let ended = || self.has_ended(post);
            while !ended() {
                (self.wait)(helper, &ended);
            }
        }
    }

    /// Whether nobody works for this job at `post`, now that nothing is offered.
    fn has_ended(&self, post: &Post) -> bool {
        // Acquire pairs with the Release at the end of `serve_with`.
        post.word.load(Ordering::Acquire) != tagged(self.entry, RUNNING)
    }

    /// Of the helpers' chunks that failed the first that begins at or after `position`. After
    /// [`settle`](Self::settle).
    pub(crate) fn next_failed(&self, position: u64) -> Option<Range<u64>> {
        let failed = self.ended_as(FAILED).map(|(_, post)| {
            post.failed_start.load(Ordering::Relaxed)..post.failed_end.load(Ordering::Relaxed)
        });
        failed.filter(|range| range.start >= position).min_by_key(|range| range.start)
    }

    /// A helper that panicked. After [`settle`](Self::settle).
    #[inline]
    pub(crate) fn panicked(&self) -> Option<usize> {
        if self.mine.is_empty() {
            return None;
        }
        self.ended_as(PANICKED).next().map(|(helper, _)| helper)
    }

    fn ended_as(&self, end: usize) -> impl Iterator<Item = (usize, &Post)> {
        let wanted = tagged(self.entry, end);
        self.mine().filter(move |(_, post)| post.word.load(Ordering::Relaxed) == wanted)
    }

    fn mine(&self) -> impl Iterator<Item = (usize, &Post)> {
        self.mine.iter().filter_map(|helper| self.posts.get(helper).map(|post| (helper, post)))
    }
}

impl Drop for Recruits<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.mine.is_empty() {
            self.settle_mine();
            self.release();
        }
    }
}

impl Recruits<'_> {
    /// Gives back the posts that said how they ended.
    fn release(&self) {
        for (_, post) in self.mine() {
            let word = post.word.load(Ordering::Relaxed);
            // Another job may have the post by now.
            if entry(word) == self.entry {
                // What the helper left was read. Release: to the Acquire in the next `reserve`.
                post.word.store(ptr::null_mut(), Ordering::Release);
            }
        }
    }
}
