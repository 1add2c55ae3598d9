//! Reserved frames whose owner frees them like any other frames.

use crate::common::{Descriptors, check, mib, settled};
use framewright::manager::ReleaseError;
use framewright::units::{Pfn, PfnRange, PhysRange};
use framewright_testkit::FakeMachine;

#[test]
fn adopted_frames_are_allocated_until_they_are_freed_in_any_pieces() {
    for descriptors in Descriptors::ALL {
        // Part of a block, a whole block, and part of another.
        let boot = PhysRange::new(0x1f_d000, 0x40_5000);
        let machine = FakeMachine::builder().ram(mib(0, 512)).build();
        let manager = descriptors.bring_up_reserving(machine, &[boot]).expect("bring-up");
        let before = settled(&manager);
        let frames = boot.whole_frames();
        manager.hotplug().adopt(frames).expect("reserved, all of it");
        check(&manager);
        let adopted = settled(&manager);
        assert_eq!(adopted.managed_pages, before.managed_pages + frames.pages(), "{descriptors:?}");
        assert_eq!(adopted.reserved_pages, before.reserved_pages - frames.pages());
        assert_eq!(adopted.free_pages, before.free_pages);
        assert_eq!(
            manager.hotplug().adopt(frames),
            Err(ReleaseError::Managed(frames.start)),
            "once"
        );
        // Frees single pages and runs of three and of four, at places where nothing was allocated.
        let (mut next, mut sizes) = (frames.start, [1, 3, 4, 1, 1].into_iter().cycle());
        while next < frames.end {
            let pages = sizes.next().expect("endless").min(frames.end.0 - next.0);
            // SAFETY: nobody uses them.
            unsafe { manager.free_pages(next, pages) }.expect("adopted");
            next = next.add(pages);
        }
        check(&manager);
        let after = settled(&manager);
        assert_eq!(after.managed_pages, adopted.managed_pages);
        let freed = after.free_pages - before.free_pages;
        // Descriptors inside blocks take eight frames of each split block: there may be up to three
        // more such blocks than before, or up to two fewer.
        let (most, least) = (frames.pages() + 16, frames.pages() - 24);
        let has_none = matches!(descriptors, Descriptors::None | Descriptors::InParts);
        let allowed = if has_none { frames.pages()..=frames.pages() } else { least..=most };
        assert!(allowed.contains(&freed), "{descriptors:?}: {freed}");
    }
}

#[test]
fn what_is_not_reserved_is_not_adopted() {
    let machine = FakeMachine::builder().ram(mib(0, 512)).build();
    let boot = PhysRange::new(0x20_0000, 0x40_0000);
    let manager = Descriptors::None.bring_up_reserving(machine, &[boot]).expect("bring-up");
    let before = settled(&manager);
    let adopt = |start, end| manager.hotplug().adopt(PfnRange::new(start, end));
    assert_eq!(adopt(0x1ff, 0x400), Err(ReleaseError::Managed(Pfn(0x1ff))));
    assert_eq!(adopt(0x300, 0x401), Err(ReleaseError::Managed(Pfn(0x400))));
    assert_eq!(adopt(0x300, 0x300), Err(ReleaseError::Empty(PfnRange::new(0x300, 0x300))));
    assert!(matches!(adopt(0x30000, 0x30001), Err(ReleaseError::NotMemory(_))));
    assert_eq!(settled(&manager), before);
}

#[test]
fn limits_follow_what_is_adopted() {
    let machine = FakeMachine::builder().ram(mib(0, 512)).build();
    let boot = mib(16, 400);
    let manager = Descriptors::None.bring_up_reserving(machine, &[boot]).expect("bring-up");
    let low = || manager.views().map(|zone| zone.watermarks().low_pages).sum::<u64>();
    let before = low();
    manager.hotplug().adopt(boot.whole_frames()).expect("reserved");
    assert!(low() > before, "{} and {before}", low());
    check(&manager);
}
