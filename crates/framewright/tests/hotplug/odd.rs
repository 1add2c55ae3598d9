//! Unusual calls, and borders that few ranges touch.

use crate::add::{add, machine, node};
use crate::common::{Fake, bring_up_with, check, gib, mib, parameters, settled};
use framewright::manager::{
    Budget, HotplugError, HotplugEvent, HotplugNotifier, MovableRatio, ReleaseError, Removal,
    Shares, Veto,
};
use framewright::units::{Order, PHYSICAL_ADDRESS_END, Pfn, PfnRange, PhysRange};
use framewright::zone::{Grade, MigrateType, Presence};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Mutex;

fn remove(manager: &Fake, range: PhysRange) -> Result<u64, HotplugError> {
    // SAFETY: no test looks up descriptors meanwhile.
    let removed = unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) };
    removed.map(|removed| removed.pages)
}

fn release(manager: &Fake, range: PfnRange) -> Result<u64, ReleaseError> {
    // SAFETY: the call is refused.
    unsafe { manager.hotplug().release(range) }.map(|released| released.pages)
}

#[test]
fn absurd_arguments_are_refused() {
    let manager = machine(gib(4, 5), "");
    let hotplug = manager.hotplug();
    let before = settled(&manager);
    // Numbers of blocks have 32 bits.
    for address in [PHYSICAL_ADDRESS_END, 1 << 53, (1 << 53) + (64 << 20), u64::MAX] {
        assert_eq!(hotplug.presence_of(address), Presence::Absent, "{address:#x}");
    }
    let end = PHYSICAL_ADDRESS_END >> 12;
    for start in [end - 1, end, 1 << 41, (1 << 41) + 0x800, u64::MAX - 1] {
        for pages in [1, 513, 1 << 20] {
            let range = PfnRange { start: Pfn(start), end: Pfn(start.saturating_add(pages)) };
            let refused = release(&manager, range);
            assert!(matches!(refused, Err(ReleaseError::NotMemory(_))), "{range:?}: {refused:?}");
        }
    }
    let all = PhysRange::new(0, PHYSICAL_ADDRESS_END);
    for range in [
        all,
        PhysRange { start: 5 << 30, end: 4 << 30 },
        PhysRange::new(PHYSICAL_ADDRESS_END, u64::MAX),
        PhysRange::new(!0x1f_ffff, u64::MAX),
    ] {
        assert!(remove(&manager, range).is_err(), "{range:?}");
        assert!(hotplug.offline(range, Budget::UNLIMITED).is_err(), "{range:?}");
        assert!(hotplug.online(range, Grade::Any).is_err(), "{range:?}");
        let _ = hotplug.grade_for(range, node(1), framewright::parameters::OnlineType::Online);
        let _ = hotplug.shares_of(range);
        hotplug.for_each_run_in(range, &mut |_, _, _| ());
    }
    let most = Shares { kernel_pages: 0, movable_pages: u64::MAX };
    let one = || core::iter::once(most);
    let ratio = |percent, boot_kernel_pages, movable_pages| MovableRatio {
        percent,
        boot_kernel_pages,
        movable_pages,
    };
    assert!(!ratio(301, 1000, u64::MAX).allows(u64::MAX, u64::MAX, one()));
    let none = core::iter::empty();
    assert!(ratio(u64::MAX, u64::MAX, 0).allows(u64::MAX, u64::MAX, none));
    // Only holes, and pages at the bottom.
    let page = manager.allocate_order(Order::PAGE, MigrateType::Unmovable).expect("memory");
    for (most, align) in [(2 << 20, 2 << 20), (u64::MAX, 2 << 20), (1 << 60, 1 << 52)] {
        // SAFETY: nothing looks up descriptors.
        let some = unsafe {
            hotplug.remove_some(PhysRange::new(256 << 20, all.end), most, align, Budget::UNLIMITED)
        };
        assert_eq!(some, Ok(Removal::Nothing(None)), "{most:#x} {align:#x}");
    }
    manager.give_back_order(page, Order::PAGE).expect("ours");
    check(&manager);
    assert_eq!(settled(&manager), before);
}

/// One call concerns one node only.
#[test]
fn a_range_of_two_nodes_is_refused() {
    let machine = FakeMachine::builder()
        .node(gib(0, 4), 0)
        .node(gib(4, 8), 1)
        .ram(mib(0, 256))
        .ram(gib(4, 5))
        .spare(mib(4064, 4096))
        .build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    // Both ranges are in the zones where they would belong; node 0's zone is new.
    add(&manager, mib(4064, 4096), 0, Grade::Any).expect("added");
    let over = mib(4064, 4128);
    let refused = |result: Result<u64, HotplugError>| {
        assert!(matches!(result, Err(HotplugError::OtherNode(..))), "{result:?}");
        check(&manager);
    };
    refused(remove(&manager, over));
    let offline =
        |range| manager.hotplug().offline(range, Budget::UNLIMITED).map(|gone| gone.pages);
    refused(offline(over));
    offline(mib(4064, 4096)).expect("free");
    offline(mib(4096, 4128)).expect("free");
    refused(manager.hotplug().online(over, Grade::Any).map(|added| added.pages));
    manager.hotplug().online(mib(4096, 4128), Grade::Any).expect("there");
    check(&manager);
}

/// Tables that lie in the memory that they describe belong to nobody.
#[test]
fn tables_of_a_window_are_nobodys() {
    let range = gib(4, 28);
    let manager = machine(range, "");
    // SAFETY: the machine has this memory and nobody else uses it.
    let added = unsafe { manager.hotplug().add(range, node(0), Grade::Any) }.expect("added");
    assert!(added.table_bytes > 1 << 20, "{added:?}");
    let first = range.whole_frames().start;
    for pages in [1, 512] {
        let refused = release(&manager, PfnRange { start: first, end: first.add(pages) });
        assert_eq!(refused, Err(ReleaseError::Manager(first)));
    }
    // A part of a GiB is offline: the window's tables say so, and stay.
    let half = PhysRange::new(range.end - (512 << 20), range.end);
    manager.hotplug().offline(half, Budget::UNLIMITED).expect("free");
    let rest = PhysRange::new(range.end - (1 << 30), half.start);
    remove(&manager, rest).expect("free");
    let most = PhysRange::new(range.start, rest.start);
    let early = remove(&manager, most);
    assert!(matches!(early, Err(HotplugError::Tables(_))), "{early:?}");
    assert_eq!(manager.hotplug().presence_of(half.start), Presence::Offline);
    assert_eq!(remove(&manager, half), Ok(0));
    remove(&manager, most).expect("the last");
    // SAFETY: it was removed.
    unsafe { manager.platform().unplug(range) };
    check(&manager);
    assert_eq!(manager.hotplug().presence_of(half.start), Presence::Absent);
    assert_eq!(manager.hotplug().presence_of(range.start), Presence::Absent);
    assert!(matches!(remove(&manager, half), Err(HotplugError::Absent(_))));
}

/// Page owners keep records of the memory that bring-up knew. A range may lie partly in that memory
/// and partly in memory that was added later.
#[test]
fn page_owners_know_their_part_of_a_range() {
    for line in ["page_owner=on", "page_owner=on page_poison=1", "page_poison=1"] {
        // The window lies between two ranges of boot memory.
        let machine = FakeMachine::builder()
            .ram(mib(0, 64))
            .ram(mib(4096, 4352))
            .ram(mib(5120, 5376))
            .spare(mib(4352, 5120))
            .build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        add(&manager, mib(4352, 5120), 0, Grade::Any).expect("added");
        check(&manager);
        let before = settled(&manager);
        let range = mib(4300, 5200).whole_frames();
        let cuts = [4300, 4310, 4352, 4400, 5120, 5130, 5200];
        for _ in 0..2 {
            let take = || manager.moving().allocate_range(range, Budget::UNLIMITED).expect("free");
            manager.give_back_to_zone(take()).expect("in one piece");
            take();
            for (&start, &end) in cuts.iter().zip(&cuts[1..]) {
                let part = mib(start, end).whole_frames();
                manager
                    .give_back_to_zone(part)
                    .unwrap_or_else(|error| panic!("{line}: {part:?}: {error}"));
            }
            // A part of it was freed before.
            take();
            let last = mib(5130, 5132).whole_frames();
            manager.give_back_to_zone(last).expect("ours");
            assert!(manager.give_back_to_zone(range).is_err(), "{line}");
            for part in [mib(4300, 5130), mib(5132, 5200)] {
                manager.give_back_to_zone(part.whole_frames()).expect("still ours");
            }
            check(&manager);
            assert_eq!(settled(&manager), before);
        }
        remove(&manager, mib(4350, 5122)).expect("free");
        check(&manager);
        assert_eq!(add(&manager, mib(4350, 5122), 0, Grade::Any), Ok(mib(4350, 5122).size() >> 12));
        check(&manager);
    }
}

/// `careful` poisons one page of each 2 MiB where much is freed at once, and all pages where little
/// is.
#[test]
fn what_came_back_holds_poison_where_it_was_filled_only() {
    let manager = machine(gib(4, 5), "careful=3");
    let all = mib(64, 128);
    for block in (64..128).step_by(2) {
        remove(&manager, mib(block, block + 2)).expect("free");
    }
    crate::fill(&manager, all, 0x17);
    add(&manager, all, 0, Grade::Any).expect("again");
    for block in (64..128_u64).step_by(2) {
        let start = Pfn(block << 8);
        let taken = manager.allocate_at(start, Order::BLOCK, MigrateType::Movable);
        manager.give_back(taken.expect("nobody wrote there")).expect("ours");
    }
    assert!(manager.debug().damage().is_none());
    check(&manager);
}

#[derive(Default)]
struct Asker {
    manager: Mutex<Option<&'static Fake>>,
    seen: Mutex<Vec<HotplugEvent>>,
}

impl HotplugNotifier for Asker {
    fn notify(&self, event: HotplugEvent) -> Result<(), Veto> {
        self.seen.lock().expect("alive").push(event);
        let manager = self.manager.lock().expect("alive").expect("set");
        let page = manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("memory");
        manager.give_back_order(page, Order::PAGE).expect("ours");
        manager.drain().expect("good frames");
        check(manager);
        let _ = manager.hotplug().presence_of(4 << 30);
        manager.hotplug().for_each_run(&mut |_, _, _| ());
        let _ = manager.hotplug().settings();
        Ok(())
    }
}

#[test]
fn who_is_told_may_use_the_manager() {
    let manager: &'static Fake = Box::leak(Box::new(machine(gib(4, 5), "")));
    let asker: &'static Asker = Box::leak(Box::default());
    *asker.manager.lock().expect("alive") = Some(manager);
    manager.hotplug().set_notifier(Some(asker));
    add(manager, gib(4, 5), 1, Grade::Any).expect("added");
    remove(manager, gib(4, 5)).expect("free");
    assert_eq!(asker.seen.lock().expect("alive").len(), 8);
    manager.hotplug().set_notifier(None);
}
