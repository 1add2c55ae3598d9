//! Inflation with a manager's frames.
#![cfg(feature = "reporting")]

use crate::common::start;
use framewright::manager::Budget;
use framewright::units::{NodeId, PhysRange};
use framewright::zone::Grade;
use framewright::{BringUp, Manager, Parameters};
use framewright_balloon::{BalloonMemory, ManagedFrames};
use framewright_testkit::FakeMachine;
use framewright_testkit::balloon::FakeBalloon;

const GIB: u64 = 1 << 30;

/// Balloon pages cannot be moved: in removable memory they would block its removal for good.
#[test]
fn frames_in_the_balloon_do_not_keep_removable_memory() {
    let window = PhysRange::new(4 * GIB, 5 * GIB);
    let machine = FakeMachine::builder().ram(PhysRange::new(0, GIB)).spare(window).build();
    let input = BringUp { parameters: &Parameters::default(), started_ns: None };
    let manager = Manager::bring_up(machine.memblock(&[]), &input);
    let manager = manager.map_err(|failed| failed.error).expect("bring-up");
    // SAFETY: the machine has this memory and nobody else uses it.
    unsafe { manager.hotplug().add(window, NodeId::ZERO, Grade::Removable) }.expect("added");
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    host.set_target(64 * 256);
    let mut frames = ManagedFrames::new(&manager);
    loop {
        // SAFETY: there is one manager.
        let progress = unsafe { balloon.work(&mut frames, &mut |_| None) };
        let progress = progress.expect("a device that is well");
        if !progress.waiting && progress.held_pages == progress.goal_pages {
            break;
        }
    }
    assert_eq!(host.balloon().len(), 64 * 256);
    assert!(host.balloon().into_iter().all(|pfn| u64::from(pfn) < window.start / 4096));
    // SAFETY: nobody looks at descriptors.
    let removed = unsafe { manager.hotplug().remove(window, Budget::UNLIMITED) };
    assert!(removed.is_ok(), "{removed:?}");
}

/// Frames that come back from a host that forgets acceptance could not be touched.
#[test]
fn a_balloon_takes_nothing_where_the_host_forgets_acceptance() {
    for forgets in [false, true] {
        let builder = FakeMachine::builder().ram(PhysRange::new(0, GIB)).accepts();
        let machine = builder.build();
        machine.accept().set_forgets(forgets);
        let input = BringUp { parameters: &Parameters::default(), started_ns: None };
        let manager = Manager::bring_up(machine.memblock(&[]), &input);
        let manager = manager.map_err(|failed| failed.error).expect("bring-up");
        let mut frames = ManagedFrames::new(&manager);
        let taken = frames.take(0, 1 << 20);
        assert_eq!(taken.is_none(), forgets);
        if let Some(pfn) = taken {
            // SAFETY: nobody uses the frame.
            unsafe { frames.give_back(pfn, 1) };
        }
        assert_eq!(frames.take_error(), None);
    }
}
