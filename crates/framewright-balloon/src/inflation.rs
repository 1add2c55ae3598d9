//! Inflates and deflates towards the host's target, one request of up to 4 MiB at a time.

use crate::error::DeviceFault;
use crate::ledger::{Ledger, Run};
use framewright_virtio::{Buffer, DmaPage, PrivateMemory, Ring, Used};
use virtio_drivers::transport::Transport;
use virtio_drivers::{BufferDirection, Hal};

/// Frame numbers have 32 bits in the queue, so memory from 16 TiB on cannot go into a balloon.
pub const END_PFN: u64 = 1 << 32;
/// The order of a 2 MiB block.
const LARGE_ORDER: u32 = 9;
const LARGE_PAGES: u32 = 1 << LARGE_ORDER;
/// The number of frame numbers in one request: as many as a page holds.
const LIST_PAGES: u32 = 1024;
const PFN_BYTES: u32 = 4;

/// The memory that the balloon's frames come from.
///
/// # Safety
/// Nobody uses a frame that [`take`](Self::take) has returned until it comes back through
/// [`give_back`](Self::give_back): the host may discard it at any time.
pub unsafe trait BalloonMemory {
    /// Takes `1 << order` contiguous frames of 4 KiB, aligned to their number, all below `end_pfn`,
    /// and returns the first one. `order` is 9 or 0. `None` if there are none to spare: the driver
    /// continues with smaller ones, or tries again at the next call of
    /// [`Balloon::work`](crate::Balloon::work).
    fn take(&mut self, order: u32, end_pfn: u64) -> Option<u64>;

    /// Takes frames back, which may be a part of a block that was taken as a whole. Their content
    /// is undefined: an allocator that keeps free frames cleared or filled must do that again for
    /// these.
    ///
    /// # Safety
    /// [`take`](Self::take) of this memory gave the frames to the caller, who gives them back once
    /// and does not use them any more (invariant 42).
    unsafe fn give_back(&mut self, first_pfn: u64, pages: u32);
}

/// What the device has been asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    /// Give this many frames, the newest in the ledger, to the host.
    Inflate(u32),
    /// Get this many frames, the newest in the ledger, back.
    Deflate(u32),
}

impl Request {
    const fn pages(self) -> u32 {
        match self {
            Self::Inflate(pages) | Self::Deflate(pages) => pages,
        }
    }
}

/// The two queues for pages, and the record of what is in the balloon.
pub struct Inflation<H: PrivateMemory> {
    inflate: Ring<H>,
    deflate: Ring<H>,
    /// The frame numbers of the request in flight.
    list: DmaPage<H>,
    ledger: Ledger<H>,
    request: Option<Request>,
}

impl<H: PrivateMemory> Inflation<H> {
    /// `None` if there is no memory.
    pub fn new(inflate: Ring<H>, deflate: Ring<H>) -> Option<Self> {
        let list = DmaPage::new(BufferDirection::DriverToDevice)?;
        Some(Self { inflate, deflate, list, ledger: Ledger::new(), request: None })
    }

    pub fn rings(&mut self) -> [&mut Ring<H>; 2] {
        [&mut self.inflate, &mut self.deflate]
    }

    /// The number of frames that the host has.
    pub fn held_pages(&self) -> u32 {
        let unanswered = match self.request {
            Some(Request::Inflate(pages)) => pages,
            _ => 0,
        };
        // The target has 32 bits, and the balloon never holds more than the target.
        u32::try_from(self.ledger.pages() - u64::from(unanswered)).unwrap_or(u32::MAX)
    }

    pub fn is_waiting(&self) -> bool {
        self.request.is_some()
    }

    /// Repeats the request that the device had not answered when it was reset. Sending it twice
    /// does no harm.
    pub fn repeat<T: Transport>(&mut self, transport: &mut T) {
        if let Some(request) = self.request {
            self.send(request, transport);
        }
    }

    /// Polls for the answer. Returns true if there was one.
    ///
    /// # Safety
    /// `memory` is the memory that all frames in the balloon came from.
    pub unsafe fn finish(&mut self, memory: &mut dyn BalloonMemory) -> Result<bool, DeviceFault> {
        // Only one queue has a request: an answer in the other one is an error.
        let inflated = self.inflate.poll()?.map(|used| (used, self.inflate.queue()));
        let deflated = self.deflate.poll()?.map(|used| (used, self.deflate.queue()));
        let Some((Used { written, room, .. }, queue)) = inflated.or(deflated) else {
            return Ok(false);
        };
        if u64::from(written) > room {
            return Err(DeviceFault::TooLong { queue, written });
        }
        match self.request.take() {
            Some(Request::Deflate(pages)) => {
                // SAFETY: the caller keeps this function's promise; the device has answered for
                // these frames.
                unsafe { self.give_back_newest(pages, memory) };
            }
            Some(Request::Inflate(_)) | None => {}
        }
        Ok(true)
    }

    /// Begins the next request towards `goal_pages`, unless one is in flight. Returns false if
    /// there was no memory.
    pub fn approach<T: Transport>(
        &mut self,
        goal_pages: u32,
        memory: &mut dyn BalloonMemory,
        transport: &mut T,
    ) -> bool {
        if self.request.is_some() {
            return true;
        }
        let held = self.held_pages();
        let request = if goal_pages > held {
            Request::Inflate(self.fill((goal_pages - held).min(LIST_PAGES), memory))
        } else if goal_pages < held {
            Request::Deflate(self.choose((held - goal_pages).min(LIST_PAGES)))
        } else {
            return true;
        };
        if request.pages() == 0 {
            return false;
        }
        self.request = Some(request);
        self.send(request, transport);
        true
    }

    /// Gives all frames back.
    ///
    /// # Safety
    /// The frames came from `memory`, and the device has been reset.
    pub unsafe fn empty(&mut self, memory: &mut dyn BalloonMemory) {
        self.request = None;
        while let Some(run) = self.ledger.pop(u32::MAX) {
            // SAFETY: the ledger names only frames that `memory` gave and that are not given back
            // yet, and the device does not have them any more (invariant 42).
            unsafe { memory.give_back(run.first_pfn, run.pages) };
        }
    }

    fn send<T: Transport>(&mut self, request: Request, transport: &mut T) {
        let ring = match request {
            Request::Inflate(_) => &mut self.inflate,
            Request::Deflate(_) => &mut self.deflate,
        };
        let bytes = request.pages() * PFN_BYTES;
        let list = Buffer { address: self.list.physical(), bytes, device_writes: false };
        // Only one request is in flight at a time, so there is room.
        // SAFETY: the page belongs to the driver, and the device only reads it (invariant 32).
        let added = unsafe { ring.add([list].into_iter(), 0) };
        debug_assert!(added, "room for one request");
        ring.notify(transport);
    }

    /// Takes up to `wanted` frames, 2 MiB at a time while that is possible, and adds them to the
    /// ledger and the list.
    fn fill(&mut self, wanted: u32, memory: &mut dyn BalloonMemory) -> u32 {
        let mut taken = 0;
        let mut large = true;
        while taken < wanted {
            large &= wanted - taken >= LARGE_PAGES;
            let order = if large { LARGE_ORDER } else { 0 };
            match memory.take(order, END_PFN) {
                Some(first_pfn) => {
                    let run = Run { first_pfn, pages: 1 << order };
                    if !self.is_usable(run) || !self.ledger.push(run) {
                        // SAFETY: the frames were just taken; neither device nor ledger has them
                        // (invariant 42).
                        unsafe { memory.give_back(run.first_pfn, run.pages) };
                        break;
                    }
                    self.write(taken, run);
                    taken += run.pages;
                }
                None if large => large = false,
                None => break,
            }
        }
        taken
    }

    /// Whether the queue can name these frames, and whether they are aligned as requested.
    fn is_usable(&self, run: Run) -> bool {
        let end = run.first_pfn.checked_add(u64::from(run.pages));
        run.first_pfn.is_multiple_of(u64::from(run.pages)) && end.is_some_and(|end| end <= END_PFN)
    }

    /// Lists up to `wanted` frames from the top of the ledger.
    fn choose(&mut self, wanted: u32) -> u32 {
        let mut listed = 0;
        for run in self.ledger.top() {
            let pages = run.pages.min(wanted - listed);
            if pages == 0 {
                break;
            }
            let skipped = u64::from(run.pages - pages);
            write_list(&self.list, listed, Run { first_pfn: run.first_pfn + skipped, pages });
            listed += pages;
        }
        listed
    }

    /// Gives back the newest `pages` frames of the ledger.
    ///
    /// # Safety
    /// The frames came from `memory`, and the device does not have them any more.
    unsafe fn give_back_newest(&mut self, pages: u32, memory: &mut dyn BalloonMemory) {
        let mut left = pages;
        while left > 0 {
            let Some(run) = self.ledger.pop(left) else { return };
            // SAFETY: the ledger names only frames that `memory` gave and that are not given back
            // yet, and the device does not have them any more (invariant 42).
            unsafe { memory.give_back(run.first_pfn, run.pages) };
            left -= run.pages;
        }
    }

    fn write(&self, at: u32, run: Run) {
        write_list(&self.list, at, run);
    }
}

/// Writes the frame numbers of `run` into a list, from index `at` on.
fn write_list<H: Hal>(list: &DmaPage<H>, at: u32, run: Run) {
    for (index, pfn) in (at..LIST_PAGES).zip(run.first_pfn..run.first_pfn + u64::from(run.pages)) {
        // The ledger holds only frames below `END_PFN`.
        list.store_u32((index * PFN_BYTES) as usize, u32::try_from(pfn).unwrap_or(u32::MAX));
    }
}
