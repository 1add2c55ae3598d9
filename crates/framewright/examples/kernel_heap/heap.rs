//! A bump heap over the manager: the kind that a kernel uses for what lives until the end of a
//! phase, such as boot or one request.
//!
//! Pieces are cut off the end of a *chunk*, which is memory of the manager; when it is full the
//! heap takes another. A chunk begins with a header that names the chunk before it, so the heap
//! needs no array of its own and grows for as long as there is memory.

use framewright::units::{PAGE_SIZE, PAGES_PER_BLOCK, PfnRange};
use framewright::zone::MigrateType;
use framewright::{AllocateError, Manager, Platform, Request};
use std::alloc::Layout;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// What stands at the start of a chunk.
struct Chunk {
    range: PfnRange,
    previous: Option<NonNull<Chunk>>,
}

/// The heap. What it hands out lives until [`reset`](Self::reset) or until the heap is dropped;
/// nothing in it is dropped.
pub struct BumpHeap<'m, P: Platform> {
    manager: &'m Manager<P>,
    newest: Cell<Option<NonNull<Chunk>>>,
    /// Bytes of the newest chunk in use, its header among them.
    used: Cell<usize>,
}

impl<'m, P: Platform> BumpHeap<'m, P> {
    /// An empty heap, which holds no memory.
    pub const fn new(manager: &'m Manager<P>) -> Self {
        Self { manager, newest: Cell::new(None), used: Cell::new(0) }
    }

    /// Room for one value.
    #[expect(clippy::mut_from_ref, reason = "every call returns other memory")]
    pub fn value<T>(&self) -> Result<&mut MaybeUninit<T>, AllocateError> {
        let place = self.raw(Layout::new::<T>())?.cast::<MaybeUninit<T>>();
        // SAFETY: as in `slice`, for one value.
        Ok(unsafe { &mut *place.as_ptr() })
    }

    /// Room for `count` values.
    #[expect(clippy::mut_from_ref, reason = "every call returns other memory")]
    pub fn slice<T>(&self, count: usize) -> Result<&mut [MaybeUninit<T>], AllocateError> {
        let layout =
            Layout::array::<T>(count).map_err(|_| AllocateError::BadSize { pages: u64::MAX })?;
        let place = self.raw(layout)?.cast::<MaybeUninit<T>>();
        // SAFETY: `raw` gave memory of this layout to nobody else, and it stays until `reset`,
        // which needs the heap for itself; content that was never written is what MaybeUninit is
        // for.
        Ok(unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), count) })
    }

    /// Memory of `layout`, with any content.
    pub fn raw(&self, layout: Layout) -> Result<NonNull<u8>, AllocateError> {
        if let Some(piece) = self.cut(layout) {
            return Ok(piece);
        }
        self.grow(layout)?;
        Ok(self.cut(layout).expect("the chunk was made large enough"))
    }

    /// The next piece of the newest chunk, if it has room.
    fn cut(&self, layout: Layout) -> Option<NonNull<u8>> {
        let chunk = self.newest.get()?;
        // SAFETY: `newest` is a chunk that was not given back, and its header was written.
        let bytes = bytes_of(unsafe { chunk.as_ref() }.range);
        let start = chunk
            .addr()
            .get()
            .checked_add(self.used.get())?
            .checked_next_multiple_of(layout.align())?;
        let offset = start - chunk.addr().get();
        let end = offset.checked_add(layout.size()).filter(|&end| end <= bytes)?;
        self.used.set(end);
        // SAFETY: `offset` is within the chunk, whose memory is linear at `direct` (invariant 15).
        Some(unsafe { chunk.cast::<u8>().add(offset) })
    }

    /// Takes a chunk in which `layout` fits: one block, or more for a large piece. What is left of
    /// the chunk before stays unused.
    fn grow(&self, layout: Layout) -> Result<(), AllocateError> {
        // Frames are aligned in physical memory; where `direct` shows them only to pages. So room
        // for the alignment is added.
        let bytes = size_of::<Chunk>().saturating_add(layout.align()).saturating_add(layout.size());
        let pages = (bytes as u64).div_ceil(PAGE_SIZE).max(PAGES_PER_BLOCK);
        // What the direct map does not show yet, the heap cannot use.
        let max_address = self.manager.platform().direct_limit();
        let migrate_type = MigrateType::Unmovable;
        let range = self.manager.allocate(&Request {
            migrate_type,
            max_address,
            ..Request::pages(pages)
        })?;
        let chunk = self.manager.platform().direct(range.start.address()).cast::<Chunk>();
        // SAFETY: the frames are ours alone, and writable below the direct limit (invariant 1); a
        // page is aligned enough for a header.
        unsafe { chunk.write(Chunk { range, previous: self.newest.get() }) };
        self.newest.set(Some(chunk));
        self.used.set(size_of::<Chunk>());
        Ok(())
    }

    /// Forgets everything and gives all memory back. `&mut` is the proof that nobody holds a piece.
    pub fn reset(&mut self) {
        self.used.set(0);
        while let Some(chunk) = self.newest.get() {
            // SAFETY: a chunk that was not given back; the header is read before its memory goes.
            let Chunk { range, previous } = unsafe { chunk.read() };
            self.newest.set(previous);
            // SAFETY: the chunk is off the list, and `&mut self` says that nobody holds a piece of
            // it.
            unsafe { self.manager.free(range) }.expect("the heap gives back what it was given");
        }
    }

    /// Chunks in use.
    pub fn chunks(&self) -> usize {
        let mut count = 0;
        let mut next = self.newest.get();
        while let Some(chunk) = next {
            count += 1;
            // SAFETY: chunks in the list were not given back.
            next = unsafe { chunk.as_ref() }.previous;
        }
        count
    }
}

impl<P: Platform> Drop for BumpHeap<'_, P> {
    fn drop(&mut self) {
        self.reset();
    }
}

fn bytes_of(range: PfnRange) -> usize {
    usize::try_from(range.to_phys().size()).expect("memory in the direct map has addresses")
}
