//! Inflation, deflation and statistics.

use crate::common::{Memory, WithMemory as _, as_told, nothing_is_left, settle, start};
use framewright_balloon::{DeviceFault, Statistic};
use framewright_testkit::balloon::{Answers, FakeBalloon, FakeHal, Lie, Offer};

#[test]
fn the_balloon_follows_its_target() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    let mut memory = Memory::of(0..20_000);
    for target in [1, 512, 5000, 4999, 100, 1025, 20_000, 3, 0] {
        host.set_target(target);
        let progress = settle(&mut balloon, &mut memory);
        assert_eq!((progress.held_pages, progress.short), (target, false));
        assert_eq!(host.actual(), target);
        assert_eq!(host.balloon(), as_told(&memory.taken));
        assert_eq!(memory.taken.len(), target as usize);
        assert!(!host.interrupts(), "interrupts are acknowledged");
    }
    drop(balloon);
    nothing_is_left();
}

#[test]
fn large_pieces_go_first_and_in_few_requests() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    let mut memory = Memory::of(512..512 * 9);
    host.set_target(512 * 5 + 7);
    settle(&mut balloon, &mut memory);
    assert_eq!(host.inflations(), [1024, 1024, 512 + 7]);
    // At most 4 MiB in one request, also without 2 MiB blocks.
    memory.no_large = true;
    host.set_target(512 * 8);
    settle(&mut balloon, &mut memory);
    assert_eq!(host.inflations()[3..], [1024, 512 - 7]);
}

#[test]
fn a_ledger_of_many_pages_comes_back_whole() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    // No two frames are adjacent, so each is a run of its own.
    let mut memory = Memory { free: (0..6000).map(|n| 2 * n).collect(), ..Memory::default() };
    let pages = FakeHal::pages();
    host.set_target(6000);
    settle(&mut balloon, &mut memory);
    assert_eq!(FakeHal::pages() - pages, 6000usize.div_ceil(509));
    for target in [5999, 2000, 4500, 0] {
        host.set_target(target);
        settle(&mut balloon, &mut memory);
        assert_eq!(host.balloon(), as_told(&memory.taken));
    }
    assert_eq!((memory.free.len(), FakeHal::pages()), (6000, pages));
}

#[test]
fn frames_beyond_the_numbers_of_the_queue_stay_out() {
    let end = 1 << 32;
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    let mut memory = Memory::of(end - 700..end + 3000);
    host.set_target(3000);
    let progress = settle(&mut balloon, &mut memory);
    assert_eq!((progress.held_pages, progress.short), (700, true));
    assert_eq!(host.balloon(), as_told(&memory.taken));
    assert!(host.balloon().contains(&u32::MAX));
    // Frames other than those that were requested are not used.
    for (pfn, target) in [(end, 701), (end - 1, 2000), (u64::MAX, 701), (end + 512, 2000)] {
        memory.instead = Some(pfn);
        host.set_target(target);
        let progress = balloon.work_with(&mut memory, &mut |_| None).expect("well");
        assert_eq!((progress.held_pages, progress.short), (700, true), "{pfn:#x}");
        assert_eq!(memory.given_back_instead.pop().map(|(first, _)| first), Some(pfn));
    }
}

#[test]
fn short_memory_is_no_error() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    let mut memory = Memory::of(0..1500);
    host.set_target(4000);
    let progress = settle(&mut balloon, &mut memory);
    assert_eq!((progress.held_pages, progress.short), (1500, true));
    assert_eq!(host.actual(), 1500);
    memory.free.extend(10_000..20_000);
    assert_eq!(settle(&mut balloon, &mut memory).held_pages, 4000);
    // The driver has no memory in which to record frames.
    host.set_target(0);
    settle(&mut balloon, &mut memory);
    FakeHal::fail_after(Some(0));
    host.set_target(10);
    let progress = settle(&mut balloon, &mut memory);
    assert_eq!((progress.held_pages, progress.short, memory.taken.len()), (0, true, 0));
    FakeHal::fail_after(None);
    assert_eq!(settle(&mut balloon, &mut memory).held_pages, 10);
}

#[test]
fn frames_come_back_after_the_host_was_told() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    let mut memory = Memory::of(0..4096);
    host.set_target(2048);
    settle(&mut balloon, &mut memory);
    host.set_answers(Answers::OnDemand);
    host.set_target(1948);
    for _ in 0..3 {
        let progress = balloon.work_with(&mut memory, &mut |_| None).expect("well");
        assert!(progress.waiting && memory.taken.len() == 2048, "the host does not know yet");
    }
    // The host changes its target meanwhile; the driver finishes one request before the next.
    host.set_target(4096);
    assert_eq!(
        (
            balloon.work_with(&mut memory, &mut |_| None).map(|progress| progress.held_pages),
            host.answer(1)
        ),
        (Ok(2048), 1)
    );
    assert_eq!(
        balloon.work_with(&mut memory, &mut |_| None).map(|progress| progress.held_pages),
        Ok(1948)
    );
    assert_eq!(host.actual(), 1948);
    host.set_answers(Answers::AtOnce);
    assert_eq!(host.answer(1), 1);
    assert_eq!(settle(&mut balloon, &mut memory).held_pages, 4096);
}

#[test]
fn a_reset_in_the_middle_loses_no_frame() {
    for target in [0, 300, 1200, 3000] {
        let host = FakeBalloon::new();
        let mut balloon = start(&host).expect("a device that is well");
        let mut memory = Memory::of(0..8192);
        host.set_target(1200);
        settle(&mut balloon, &mut memory);
        host.set_answers(Answers::OnDemand);
        host.set_target(target);
        balloon.work_with(&mut memory, &mut |_| None).expect("well");
        let held = memory.taken.len();
        balloon.reset().expect("it starts again");
        assert_eq!(memory.taken.len(), held);
        // The device could not answer before; it is asked again.
        assert_eq!(host.requests_waiting(), usize::from(target != 1200));
        host.set_answers(Answers::AtOnce);
        host.answer(1);
        assert_eq!(settle(&mut balloon, &mut memory).held_pages, target);
        assert_eq!(host.balloon(), as_told(&memory.taken));
    }
}

#[test]
fn stopping_gives_every_frame_back_once_the_device_is_reset() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    let mut memory = Memory::of(0..8192);
    host.set_target(3000);
    settle(&mut balloon, &mut memory);
    host.set_answers(Answers::OnDemand);
    host.set_target(4000);
    balloon.work_with(&mut memory, &mut |_| None).expect("well");
    host.set_reset_looks(None);
    assert!(!balloon.stop_with(&mut memory) && !balloon.stop_with(&mut memory));
    assert_eq!(memory.taken.len(), 4000);
    host.end_reset();
    assert!(balloon.stop_with(&mut memory) && balloon.stop_with(&mut memory));
    assert_eq!((memory.taken.len(), memory.free.len()), (0, 8192));
    assert_eq!(balloon.work_with(&mut memory, &mut |_| None), Err(DeviceFault::Stopped));
    host.set_answers(Answers::AtOnce);
    balloon.reset().expect("it starts again");
    assert_eq!(settle(&mut balloon, &mut memory).held_pages, 4000);
}

#[test]
fn lies_about_pages_are_found() {
    for lie in [
        Lie::OtherDescriptor,
        Lie::NoDescriptor,
        Lie::Ahead(1),
        Lie::Ahead(-2),
        Lie::Twice,
        Lie::Wrote(4001),
        Lie::Wrote(u32::MAX),
    ] {
        let host = FakeBalloon::new();
        let mut balloon = start(&host).expect("a device that is well");
        let mut memory = Memory::of(0..8192);
        host.lie(lie);
        host.set_target(1000);
        balloon.work_with(&mut memory, &mut |_| None).expect("asked, not answered");
        let fault = balloon.work_with(&mut memory, &mut |_| None).expect_err("found out");
        assert_eq!((balloon.fault(), memory.taken.len()), (Some(fault), 1000), "{lie:?}");
        balloon.reset().expect("it starts again");
        assert_eq!(settle(&mut balloon, &mut memory).held_pages, 1000, "{lie:?}");
        host.set_target(0);
        settle(&mut balloon, &mut memory);
        assert_eq!(memory.taken.len(), 0, "{lie:?}");
    }
}

#[test]
fn the_guest_may_have_pages_back_where_the_host_allows_it() {
    let host = FakeBalloon::offering(Offer::with(1 << 2));
    let mut balloon = start(&host).expect("a device that is well");
    let mut memory = Memory::of(0..8192);
    host.set_target(2000);
    settle(&mut balloon, &mut memory);
    assert!(balloon.relieve(600));
    let progress = settle(&mut balloon, &mut memory);
    assert_eq!(
        (progress.target_pages, progress.goal_pages, progress.held_pages),
        (2000, 1400, 1400)
    );
    assert!(balloon.relieve(1300) && balloon.relieve(1300));
    assert_eq!(settle(&mut balloon, &mut memory).held_pages, 0);
    // The state stays until the host asks for something else.
    assert_eq!(settle(&mut balloon, &mut memory).held_pages, 0);
    host.set_target(1000);
    assert_eq!(settle(&mut balloon, &mut memory).held_pages, 1000);
    let host = FakeBalloon::offering(Offer::with(0));
    assert!(!start(&host).expect("a device that is well").relieve(1));
}

#[test]
fn statistics_are_answered_when_they_are_asked_for() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    let mut memory = Memory::default();
    let mut free = 7u64 << 40;
    let mut work = || {
        free += 1;
        let value = |tag| match tag {
            Statistic::Free => Some(free),
            Statistic::Total => Some(u64::MAX),
            Statistic::DirectReclaimed => Some(3),
            _ => None,
        };
        balloon.work_with(&mut memory, &mut { value }).map(|_| free)
    };
    for round in 1..200 {
        let free = work().expect("well");
        let (values, received) = host.statistics();
        assert_eq!((received, values), (round, [(4, free), (5, u64::MAX), (15, 3)].into()));
        work().expect("well");
        assert_eq!(host.statistics().1, round, "not asked");
        assert!(host.ask_for_statistics() && !host.ask_for_statistics());
    }
    host.lie(Lie::Wrote(31));
    work().expect("well");
    assert!(host.ask_for_statistics());
    assert_eq!(work(), Err(DeviceFault::TooLong { queue: 2, written: 31 }));
    for (number, tag) in (0u16..).zip(Statistic::ALL) {
        assert_eq!(tag as u16, number);
    }
}

#[test]
fn a_guest_that_knows_nothing_still_answers() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    balloon.work_with(&mut Memory::default(), &mut |_| None).expect("well");
    assert_eq!(host.statistics(), ([(0, 0)].into(), 1));
}
