//! Runs that cross borders: of blocks with descriptors, which go with their block, and of zones,
//! where the old run is freed frame by frame after the move.

use crate::common::{Fake, bring_up_with, check, gib, mib, parameters, settled, with_pages};
use framewright::manager::{Budget, ObstacleKind, VacateError};
use framewright::parameters::Pages;
use framewright::units::{Order, PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant, Platform, Request};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Mutex;

/// Moves one run of any length, and may free a frame of the old run itself.
struct OneRun<'m> {
    manager: &'m Fake,
    run: Mutex<PfnRange>,
    frees: Option<Pfn>,
}

// SAFETY: the run was allocated by the test, and nobody uses what is in it.
unsafe impl Mover for OneRun<'_> {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        let run = *self.run.lock().unwrap();
        if run.contains(pfn) { Occupant::Movable(run) } else { Occupant::Unknown }
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        if run == *self.run.lock().unwrap() { Ok(MoveToken(0)) } else { Err(NotNow::Gone) }
    }

    unsafe fn relocate(
        &self,
        _: MoveToken,
        from: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        let at = |run: PfnRange| self.manager.platform().direct(run.start.address()).as_ptr();
        let bytes = usize::try_from(from.pages() * PAGE_SIZE).expect("small");
        // SAFETY: both are memory of the test's machine, in one piece, and nobody else's.
        unsafe { at(from).copy_to_nonoverlapping(at(to), bytes) };
        if let Some(frame) = self.frees {
            self.manager.give_back(PfnRange::of_order(frame, Order::PAGE)).expect("in use");
        }
        *self.run.lock().unwrap() = to;
        Ok(())
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}

/// A block that begins with the end of a run from the block before it is still vacated as a whole,
/// and the descriptors in it are in nobody's way.
#[test]
fn a_run_that_ends_in_a_block_does_not_keep_its_descriptors() {
    for pages in [Pages::None, Pages::Inside] {
        let machine = FakeMachine::builder().ram(mib(0, 64)).build();
        let manager = bring_up_with(machine, &[], &with_pages(pages)).expect("bring-up");
        let run = manager.allocate(&Request::pages(600)).expect("free");
        assert_eq!(run.start.0 % PAGES_PER_BLOCK, 0);
        let first = BlockNumber::containing(run.start);
        let range = BlockRange::new(first.0, first.0 + 2);
        let mover = OneRun { manager: &manager, run: Mutex::new(run), frees: None };
        let moving = manager.moving().by(&mover);
        moving.vacate(range, Budget::UNLIMITED).expect("all of it can be moved");
        manager.isolation().unisolate(range).expect("isolated");
        let now = *mover.run.lock().unwrap();
        assert_ne!(now, run);
        // The test again for frames that are taken by number.
        let first = BlockNumber::containing(now.start);
        let all = PfnRange { start: first.start(), end: BlockNumber(first.0 + 2).start() };
        let taken = moving.allocate_range(all, Budget::UNLIMITED).expect("all can be moved");
        manager.give_back(taken).expect("ours");
        manager.give_back(*mover.run.lock().unwrap()).expect("ours");
        check(&manager);
    }
}

/// A run of two allocations on both sides of a zone border. A frame that the mover freed itself is
/// reported as an error; all other frames come back.
#[test]
fn a_run_over_the_border_of_zones_is_freed_once_it_was_moved() {
    const BORDER: u64 = 4 << 18;
    for (line, frees) in [("", false), ("", true), ("page_owner=on", false)] {
        let machine = FakeMachine::builder().ram(gib(2, 6)).build();
        let line = format!("pages=none {line}");
        let manager = bring_up_with(machine, &[], &parameters(&line)).expect("bring-up");
        let before = settled(&manager);
        let [low, high] = [BORDER - 1, BORDER].map(|pfn| {
            manager.allocate_at(Pfn(pfn), Order::PAGE, MigrateType::Movable).expect("free")
        });
        let run = PfnRange { start: low.start, end: high.end };
        let frees = frees.then_some(low.start);
        let mover = OneRun { manager: &manager, run: Mutex::new(run), frees };
        let block = BlockNumber::containing(low.start);
        let range = BlockRange::new(block.0, block.0 + 1);
        match manager.moving().by(&mover).vacate(range, Budget::UNLIMITED) {
            Ok(_) => {
                assert_eq!(frees, None);
                manager.isolation().unisolate(range).expect("isolated");
            }
            Err(VacateError::Obstacles { obstacles, .. }) => {
                assert!(frees.is_some(), "{line} {obstacles:?}");
                assert_eq!((obstacles.first.run, obstacles.count), (run, 1));
                assert_eq!(obstacles.first.kind, ObstacleKind::Failed);
            }
            other => panic!("{line} {other:?}"),
        }
        let now = *mover.run.lock().unwrap();
        assert_ne!(now, run);
        manager.give_back(now).expect("ours");
        check(&manager);
        assert_eq!(settled(&manager), before, "{line}");
    }
}
