//! Frames whose owner is just freeing them: a call waits for such frames once if there is no other
//! place.

use crate::common::{Fake, blocks, bring_up_with, check, filled, mib, with_pages};
use framewright::manager::{AreaError, AreaName, Budget, ContiguousRequest};
use framewright::parameters::Pages;
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Mutex;

/// An owner that has given a frame up, and frees it after being asked about it `left` times.
struct Frees {
    manager: &'static Fake,
    frame: PfnRange,
    left: Mutex<u32>,
}

// SAFETY: nothing is moved, and the frame is the mover's until it frees it.
unsafe impl Mover for Frees {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        if pfn != self.frame.start {
            return Occupant::Unknown;
        }
        let mut left = self.left.lock().unwrap();
        if *left == 1 {
            self.manager.give_back(self.frame).expect("ours");
        }
        *left = left.saturating_sub(1);
        Occupant::Free
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        Err(NotNow::Gone)
    }

    unsafe fn relocate(&self, _: MoveToken, _: PfnRange, _: PfnRange) -> Result<(), MoveFailed> {
        Err(MoveFailed)
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}

/// All memory is in use except for four blocks and some scattered frames; the second of the four
/// blocks has one frame that is being freed.
fn one_place(asked: u32) -> (&'static Fake, Frees) {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let manager: &'static Fake = Box::leak(Box::new(
        bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up"),
    ));
    let range = blocks(16, 4);
    manager.isolation().isolate(range).expect("free");
    filled(manager, 1 << 17, |pfn| pfn % 16 != 0);
    manager.isolation().unisolate(range).expect("isolated");
    manager.drain().expect("in order");
    let at = Pfn(17 * PAGES_PER_BLOCK + 7);
    let frame = manager.allocate_at(at, Order::PAGE, MigrateType::Movable).expect("free");
    (manager, Frees { manager, frame, left: Mutex::new(asked) })
}

const PLACE: PfnRange = PfnRange::new(16 * PAGES_PER_BLOCK, 20 * PAGES_PER_BLOCK);

#[test]
fn the_only_place_of_an_area_is_waited_for() {
    // Each attempt asks about the frame twice: before anything is moved, and at the move.
    for (asked, is_had) in [(3, true), (100, false)] {
        let (manager, frees) = one_place(asked);
        let name = AreaName::new("area").expect("a name");
        let number = manager.moving().create_area(name, blocks(16, 4)).expect("movable");
        let moving = manager.moving().by(&frees);
        let got = moving.allocate_in_area(number, PLACE.pages(), Order::BLOCK, Budget::UNLIMITED);
        if is_had {
            let run = got.expect("free by then");
            assert_eq!(run, PLACE);
            // SAFETY: the run was just allocated, and nobody uses it.
            unsafe { moving.release_to_area(number, run) }.expect("ours");
        } else {
            assert_eq!(got, Err(AreaError::NoRun { pages: PLACE.pages() }));
            manager.give_back(frees.frame).expect("ours");
        }
        check(manager);
    }
}

#[test]
fn the_only_place_of_a_contiguous_run_is_waited_for() {
    // One more question, before the place is tried.
    for (asked, is_had) in [(4, true), (100, false)] {
        let (manager, frees) = one_place(asked);
        let request = ContiguousRequest::new(PLACE.pages());
        let moving = manager.moving().by(&frees);
        match moving.allocate_contiguous(&request, Budget::UNLIMITED) {
            Ok(run) => {
                assert!(is_had);
                assert_eq!(run, PLACE);
                manager.give_back_to_zone(run).expect("ours");
            }
            Err(error) => {
                assert!(!is_had, "{error:?}");
                manager.give_back(frees.frame).expect("ours");
            }
        }
        check(manager);
    }
}
