//! Memory that goes and comes under every interleaving: a concurrent allocation gets none of the
//! removed memory, a concurrent free is not lost, and of two callers that remove the same range
//! exactly one succeeds.

use crate::model::{BothWays, Model, Shape, explore, give, on, order, run, take_movable};
use framewright::Request;
use framewright::manager::{Budget, HotplugError};
use framewright::units::{NodeId, PfnRange, PhysRange};
use framewright::zone::{Grade, MigrateType, Presence};

fn block(number: u64) -> PhysRange {
    run(number * 512, 9).to_phys()
}

fn remove(model: &Model, number: u64) -> Result<(), HotplugError> {
    // SAFETY: nothing looks up descriptors by number.
    unsafe { model.hotplug().remove(block(number), Budget::runs(0)) }.map(|_| ())
}

fn add(model: &Model, number: u64) {
    // SAFETY: it went before, and nobody has had it since.
    let added = unsafe { model.hotplug().add(block(number), NodeId::ZERO, Grade::Any) };
    assert_eq!(added.map(|added| added.pages), Ok(512));
}

fn is_of(range: PfnRange, number: u64) -> bool {
    !range.intersection(run(number * 512, 9)).is_empty()
}

/// The first block, which whoever asks is given as long as it is there.
#[test]
fn a_block_goes_while_it_is_wanted() {
    static REMOVED: BothWays = BothWays::new();
    explore(Shape::new(3, 2), Some(2), |model| {
        let other = on(model, 1, move || model.allocate_past_caches(&Request::new(order(9))));
        let removed = remove(model, 0);
        let theirs = other.join().expect("no panic").expect("two stay");
        assert_eq!(removed.is_err(), is_of(theirs, 0), "{removed:?}, {theirs:?}");
        REMOVED.count(removed.is_ok());
        if removed.is_ok() {
            assert_eq!(model.hotplug().presence_of(block(0).start), Presence::Absent);
            add(model, 0);
        }
        vec![theirs]
    });
    REMOVED.assert_both();
}

#[test]
fn a_block_goes_while_a_cache_fills() {
    static REMOVED: BothWays = BothWays::new();
    explore(Shape::new(2, 2), Some(2), |model| {
        let other = on(model, 1, move || take_movable(model, 3));
        let removed = remove(model, 0);
        let theirs = other.join().expect("no panic").expect("one stays");
        assert!(removed.is_err() || !is_of(theirs, 0), "{removed:?}, {theirs:?}");
        REMOVED.count(removed.is_ok());
        // What its cache has of it comes out, now that nobody fills that.
        if removed.is_err() && !is_of(theirs, 0) {
            remove(model, 0).expect("nobody has any of it");
        }
        if model.hotplug().presence_of(block(0).start) == Presence::Absent {
            add(model, 0);
        }
        vec![theirs]
    });
    REMOVED.assert_both();
}

#[test]
fn the_last_page_of_a_block_is_freed_while_it_goes() {
    static REMOVED: BothWays = BothWays::new();
    explore(Shape::new(2, 2), Some(2), |model| {
        let page = model.allocate_at(run(512, 0).start, order(0), MigrateType::Movable);
        let page = page.expect("nobody has it");
        let other = on(model, 1, move || give(model, page));
        let removed = remove(model, 1);
        REMOVED.count(removed.is_ok());
        other.join().expect("no panic");
        if removed.is_err() {
            assert_eq!(model.hotplug().presence_of(block(1).start), Presence::Online);
            remove(model, 1).expect("nobody has any of it");
        }
        add(model, 1);
        vec![]
    });
    REMOVED.assert_both();
}

#[test]
fn a_block_comes_while_two_are_wanted() {
    static TWO: BothWays = BothWays::new();
    explore(Shape::new(3, 2), Some(2), |model| {
        remove(model, 1).expect("nobody has any of it");
        let want = move || model.allocate_past_caches(&Request::new(order(9))).ok();
        let other = on(model, 1, move || [want(), want()]);
        add(model, 1);
        let theirs = other.join().expect("no panic");
        assert!(theirs[0].is_some(), "two were there");
        TWO.count(theirs[1].is_some());
        theirs.into_iter().flatten().collect()
    });
    TWO.assert_both();
}

#[test]
fn two_take_the_same_block_out_of_use() {
    static MINE: BothWays = BothWays::new();
    explore(Shape::new(2, 3), Some(2), |model| {
        let other = on(model, 1, move || remove(model, 1));
        let mine = remove(model, 1);
        // Waits until no other thread changes anything.
        model.platform().ring();
        let theirs = other.join().expect("no panic");
        assert!(mine.is_ok() != theirs.is_ok(), "{mine:?}, {theirs:?}");
        MINE.count(mine.is_ok());
        let lost = mine.and(theirs);
        assert!(matches!(lost, Err(HotplugError::Absent(_))), "{lost:?}");
        add(model, 1);
        vec![]
    });
    MINE.assert_both();
}
