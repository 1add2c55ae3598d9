//! Lends free pages of pools to the hypervisor. Free page reporting counts as their user meanwhile,
//! so every rule of the accounting holds.
//!
//! As many unreported pages as are reserved always stay. At most half of the others are lent at
//! once, so that one that is free stays free for requests; never pages that are isolated or have a
//! memory error, or pages of a node with surplus pages, as these would leave the pool when they are
//! freed. A page that comes back is freed as by any user but goes to the end of a list: the list of
//! reported pages, which are handed out after the unreported ones, or, if the device refused it,
//! the unreported ones. A page keeps its mark as long as it is free in its pool.

use crate::block::list::NONE;
use crate::block::{Chain, IN_USE, LENT, PageList};
use crate::manager::facets::Hugetlb;
use crate::manager::hugetlb::allocate::Place;
use crate::platform::Platform;
use crate::units::{Order, PhysRange, PoolSize};
use crate::zone::{MOST_PIECES, Zone};

/// Free pages of one list that the hypervisor has or is about to get.
pub(crate) struct Loan {
    /// The number of the list.
    number: usize,
    /// The pages, by index.
    indices: [u32; MOST_PIECES],
    len: usize,
    /// For a single page that is reported in parts: where the next part begins, and how long a part
    /// is. In frames.
    part: Option<(u64, u64)>,
}

impl Loan {
    pub(crate) const EMPTY: Self =
        Self { number: 0, indices: [NONE; MOST_PIECES], len: 0, part: None };

    /// Returns how many pages the loan has.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<'m, P: Platform> Hugetlb<'m, P> {
    /// Returns the number of lists of free pages: one for each zone and size.
    pub(crate) fn lists(self) -> usize {
        self.manager.zones().len() * PoolSize::COUNT
    }

    /// Returns the list of this number.
    #[inline(never)]
    pub(crate) fn list(self, number: usize) -> Option<(PoolSize, usize, &'static Zone)> {
        let slot = number / PoolSize::COUNT;
        Some((PoolSize::ALL[number % PoolSize::COUNT], slot, self.manager.zones().get(slot)?))
    }

    /// Returns how much of a list is free, and how much of that is unreported and may be lent, in
    /// frames.
    pub(crate) fn free_frames(self, number: usize) -> (u64, u64) {
        let Some((size, slot, zone)) = self.list(number) else { return (0, 0) };
        let mut accounting = self.accounting();
        let lendable = accounting.lendable(size, zone.id().node);
        let list = accounting.list(size, slot);
        (list.pages() * size.frames(), list.unreported_pages().min(lendable) * size.frames())
    }

    /// Returns the least amount that was free and unreported in a list since the last call, in
    /// frames.
    pub(crate) fn floor(self, number: usize) -> u64 {
        let Some((size, slot, _)) = self.list(number) else { return 0 };
        self.accounting().list(size, slot).take_floor() * size.frames()
    }

    /// Returns whether a list has pages of at least `order` that may be lent.
    pub(crate) fn has_pages_to_report(self, order: Order) -> bool {
        let fits =
            |number: &usize| self.list(*number).is_some_and(|(size, _, _)| size.order() >= order);
        (0..self.lists()).filter(fits).any(|number| self.free_frames(number).1 != 0)
    }

    /// Lends unreported pages of a list: at most `most_frames` and `most_pages`. Of 1 GiB pages it
    /// lends one, of which `most_frames` are reported at once.
    pub(crate) fn lend(self, number: usize, most_frames: u64, most_pages: usize) -> Loan {
        let mut loan = Loan { number, ..Loan::EMPTY };
        let Some((size, slot, zone)) = self.list(number) else { return loan };
        let node = zone.id().node;
        let most = if size.is_gigantic() { 1 } else { most_frames / size.frames() };
        let mut accounting = self.accounting();
        let most = most
            .min(accounting.lendable(size, node).div_ceil(2))
            .min(most_pages.min(MOST_PIECES) as u64);
        // A single step of a search: isolated pages go to the end of the list, so that the next
        // call gets further.
        let mut search = accounting.list(size, slot).search();
        for place in &mut loan.indices[..usize::try_from(most).unwrap_or(0)] {
            let good = |index| zone.is_good_in_pool(index);
            let Some(index) =
                accounting.list(size, slot).take_unreported(zone.table(), &good, &mut search)
            else {
                break;
            };
            accounting.use_free(size, node);
            zone.table().set_next(index, NONE);
            zone.table().set_previous(index, IN_USE | LENT);
            *place = index;
            loan.len += 1;
        }
        if size.is_gigantic() {
            loan.part = Some((0, most_frames.clamp(1, size.frames())));
        }
        loan
    }

    /// Returns the ranges of a loan to report next, in the order of its pages.
    pub(crate) fn loan_ranges<'a>(self, loan: &'a Loan) -> impl Iterator<Item = PhysRange> + 'a {
        let list = self.list(loan.number);
        loan.indices[..loan.len].iter().filter_map(move |&index| {
            let (size, _, zone) = list?;
            let mut frames = zone.frames_of(index, size.order())?;
            if let Some((from, most)) = loan.part {
                frames.start.0 += from;
                frames.end.0 = frames.end.0.min(frames.start.0 + most);
            }
            Some(frames.to_phys())
        })
    }

    /// Notes that these ranges were reported. Returns whether more of the same pages is left.
    pub(crate) fn advance_loan(self, loan: &mut Loan) -> bool {
        let Some((size, _, _)) = self.list(loan.number) else { return false };
        match &mut loan.part {
            Some((from, most)) => {
                *from += *most;
                *from < size.frames()
            }
            None => false,
        }
    }

    /// Takes a loan back and leaves it empty; `reported` says for each page whether all of it was
    /// reported.
    pub(crate) fn return_loan(self, loan: &mut Loan, reported: &dyn Fn(usize) -> bool) {
        let pages = core::mem::replace(loan, Loan::EMPTY);
        let Some((size, slot, zone)) = self.list(pages.number) else { return };
        let pool = self.manager.pool(size);
        for (position, &index) in pages.indices[..pages.len].iter().enumerate() {
            let reported = reported(position);
            if pool.end_use(&Place { zone, slot, index }, LENT, reported) {
                pool.give_back_list(zone, PageList::of(Chain::one(index, reported)));
            }
        }
    }

    /// Returns how many frames of reported pages were handed out again.
    pub(crate) fn reused_frames(self) -> u64 {
        self.accounting().reused_frames()
    }
}
