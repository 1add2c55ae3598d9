//! Hotplug in a guest that has to accept its memory.

use crate::add::{add, node};
use crate::common::{
    Descriptors, Fake, bring_up_with, check, gib, is_careful, mib, parameters, settled,
};
use framewright::manager::{Budget, HotplugError, Removal};
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, MigrateType, Presence};
use framewright_jobs::NoHelpers;
use framewright_testkit::reporting::{Answer, FakeHost, Traits};
use framewright_testkit::{FakeAccept, FakeMachine, Owner};

const PER_MIB: u64 = 256;
/// The range that is added.
const ADDED: PhysRange = PhysRange::new(4 << 30, (4 << 30) + (256 << 20));

/// 256 MiB that are accepted, and more memory to be added.
/// A caller that accepts memory has to be pinned.
pub fn machine(line: &str) -> (Fake, &'static FakeAccept) {
    let builder = FakeMachine::builder().ram(mib(0, 256)).spare(gib(4, 9)).nodes(2).accepts();
    let machine = builder.build();
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    machine.accept().expect_pins();
    (manager, machine.accept())
}

fn remove(manager: &Fake, range: PhysRange) -> Result<u64, HotplugError> {
    // SAFETY: no test looks up descriptors meanwhile.
    let removed = unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) };
    removed.map(|removed| removed.pages)
}

/// Writes to all free memory, which faults where the memory is not accepted, and frees it again.
fn use_everything(manager: &Fake) -> u64 {
    let mut held = Vec::new();
    while let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Movable) {
        crate::fill(manager, PhysRange::with_size(page.address(), 4096), 7);
        held.push(page);
    }
    let pages = held.len() as u64;
    for page in held {
        manager.give_back_order(page, Order::PAGE).expect("ours");
    }
    check(manager);
    pages
}

#[test]
fn what_is_added_is_accepted_when_it_is_wanted() {
    for line in ["", "pages=inside", "pages=none", "page_poison=on", "init_on_free=1"] {
        let (manager, device) = machine(line);
        let before = settled(&manager);
        assert_eq!(add(&manager, ADDED, 0, Grade::Any), Ok(256 * PER_MIB), "{line}");
        check(&manager);
        let after = settled(&manager);
        assert_eq!(after.unaccepted_pages, 256 * PER_MIB, "{line}");
        assert_eq!(after.present_pages, before.present_pages + 256 * PER_MIB);
        assert_eq!(after.managed_pages, before.managed_pages);
        assert_eq!(device.calls(), []);
        let pages = use_everything(&manager);
        assert!(pages > 480 * PER_MIB, "{line}: {pages}");
        let end = settled(&manager);
        assert_eq!((end.unaccepted_pages, device.accepted_pages()), (0, 256 * PER_MIB), "{line}");
        assert_eq!(end.managed_pages, before.managed_pages + 256 * PER_MIB);
    }
}

#[test]
fn a_request_accepts_what_it_needs() {
    let (manager, device) = machine("");
    add(&manager, ADDED, 0, Grade::Any).expect("added");
    // One block by its number, and the block behind it, which may be read.
    let run = manager.allocate_at(Pfn(ADDED.start >> 12), Order::BLOCK, MigrateType::Movable);
    let run = run.expect("nobody has it");
    crate::fill(&manager, run.to_phys(), 3);
    assert_eq!(device.accepted_pages(), 4 * PER_MIB);
    let range = PhysRange::new(ADDED.start + (64 << 20), ADDED.start + (80 << 20));
    let taken = manager.moving().allocate_range(range.whole_frames(), Budget::UNLIMITED);
    taken.expect("nobody has it");
    crate::fill(&manager, range, 3);
    assert_eq!(device.accepted_pages(), (4 + 18) * PER_MIB);
    assert_eq!(settled(&manager).unaccepted_pages, (256 - 18) * PER_MIB);
    check(&manager);
    // SAFETY: just allocated, and nobody uses it.
    unsafe { manager.free(range.whole_frames()) }.expect("ours");
    manager.give_back(run).expect("ours");
    check(&manager);
}

#[test]
fn eagerly_what_is_added_is_accepted_at_once() {
    let (manager, device) = machine("accept_memory=eager");
    let failing = Pfn((ADDED.start + (100 << 20)) >> 12);
    device.fail_at(failing);
    // The block that fails, and the one before it, past whose end accesses may read.
    let lost = 2 * PAGES_PER_BLOCK;
    assert_eq!(add(&manager, ADDED, 1, Grade::Any), Ok(256 * PER_MIB - lost));
    check(&manager);
    let after = settled(&manager);
    assert_eq!((after.unaccepted_pages, manager.acceptance().lost_pages()), (0, lost));
    assert_eq!(manager.acceptance().events().last_failed, Some(failing));
    use_everything(&manager);
    // The range goes nevertheless, and nothing of it stays recorded: nobody could have allocated
    // what was lost.
    assert_eq!(remove(&manager, ADDED), Ok(256 * PER_MIB - lost));
    check(&manager);
    assert_eq!(manager.acceptance().lost_pages(), 0);
    // It comes back: what was accepted is accepted still.
    device.fail_no_more();
    let block = PhysRange::with_size(failing.address() / (2 << 20) * (2 << 20), 2 << 20);
    device.forget_asked(block);
    device.forget_calls();
    assert_eq!(add(&manager, ADDED, 1, Grade::Any), Ok(256 * PER_MIB));
    assert_eq!(device.calls(), [block.whole_frames()]);
    check(&manager);
}

#[test]
fn what_goes_and_comes_back_is_accepted_once() {
    let (manager, device) = machine("");
    let before = settled(&manager);
    add(&manager, ADDED, 0, Grade::Any).expect("added");
    use_everything(&manager);
    for _ in 0..3 {
        assert_eq!(remove(&manager, ADDED), Ok(256 * PER_MIB));
        check(&manager);
        assert_eq!(settled(&manager).present_pages, before.present_pages);
        assert_eq!(add(&manager, ADDED, 0, Grade::Any), Ok(256 * PER_MIB));
        check(&manager);
        assert_eq!(settled(&manager).unaccepted_pages, 0);
    }
    let offline = manager.hotplug().offline(ADDED, Budget::UNLIMITED);
    assert_eq!(offline.map(|removed| removed.pages), Ok(256 * PER_MIB));
    manager.hotplug().online(ADDED, Grade::Any).expect("online again");
    assert_eq!(settled(&manager).unaccepted_pages, 0);
    use_everything(&manager);
    assert_eq!(device.accepted_pages(), 256 * PER_MIB);
}

#[test]
fn what_the_host_had_meanwhile_is_accepted_again_where_it_forgets() {
    let all = [
        (Descriptors::None, false),
        (Descriptors::Inside, true),
        (Descriptors::Eager, true),
        (Descriptors::Deferred, true),
        (Descriptors::Eager, false),
    ];
    for (line, boot) in all {
        let builder = FakeMachine::builder().ram(mib(0, 256)).spare(gib(4, 9)).nodes(2);
        let machine = builder.accepts().build();
        let manager = line.bring_up_reserving(machine, &[]).expect("bring-up");
        let device = machine.accept();
        device.set_forgets(true);
        add(&manager, ADDED, 0, Grade::Any).expect("added");
        use_everything(&manager);
        // Either new memory, or memory that was there at boot.
        let goes = if boot { mib(128, 160) } else { ADDED };
        let pages = goes.size() >> 12;
        for round in 0..3 {
            assert_eq!(remove(&manager, goes), Ok(pages), "{line:?} {round}");
            device.forget(goes);
            let accepted = device.accepted_pages();
            add(&manager, goes, 0, Grade::Any).expect("added");
            check(&manager);
            assert!(settled(&manager).unaccepted_pages >= pages - PAGES_PER_BLOCK, "{line:?}");
            use_everything(&manager);
            assert_eq!(device.accepted_pages(), accepted + pages, "{line:?} {round}");
        }
        // Memory that stays in the machine stays accepted.
        manager.hotplug().offline(goes, Budget::UNLIMITED).expect("offline");
        manager.hotplug().online(goes, Grade::Any).expect("online");
        assert_eq!(settled(&manager).unaccepted_pages, 0);
        use_everything(&manager);
    }
}

#[test]
fn nothing_is_accepted_only_to_go() {
    let (manager, device) = machine("");
    let before = settled(&manager);
    add(&manager, ADDED, 0, Grade::Any).expect("added");
    // Some of the range is in use.
    let range = PhysRange::new(ADDED.start, ADDED.start + (2 << 20));
    let taken = manager.moving().allocate_range(range.whole_frames(), Budget::UNLIMITED);
    taken.expect("nobody has it");
    let accepted = device.accepted_pages();
    // The removal fails: everything is as before.
    let counts = settled(&manager);
    assert!(matches!(remove(&manager, ADDED), Err(HotplugError::Range(_))));
    check(&manager);
    assert_eq!((settled(&manager), device.accepted_pages()), (counts, accepted));
    // SAFETY: just allocated, and nobody uses it.
    unsafe { manager.free(range.whole_frames()) }.expect("ours");
    assert_eq!(remove(&manager, ADDED), Ok(256 * PER_MIB));
    check(&manager);
    assert_eq!(device.accepted_pages(), accepted);
    let after = settled(&manager);
    assert_eq!(after.unaccepted_pages, 0);
    assert_eq!(after.present_pages, before.present_pages);
    assert_eq!(after.reserved_pages, before.reserved_pages);
}

#[test]
fn a_host_that_wants_some_back_gets_what_is_not_accepted() {
    let (manager, device) = machine("");
    add(&manager, ADDED, 0, Grade::Any).expect("added");
    // SAFETY: no test looks up descriptors meanwhile.
    let gone =
        unsafe { manager.hotplug().remove_some(ADDED, 64 << 20, 2 << 20, Budget::UNLIMITED) };
    let expected = PhysRange::new(ADDED.end - (64 << 20), ADDED.end);
    assert_eq!(gone, Ok(framewright::manager::Removal::Run(expected)));
    assert_eq!((device.accepted_pages(), device.calls()), (0, Vec::new()));
    check(&manager);
}

#[test]
fn tables_in_added_memory_are_accepted_first_or_nothing_is_added() {
    let line = "hotplug_windows=4";
    let builder = FakeMachine::builder().ram(mib(0, 64)).spare(gib(4, 68)).nodes(2).accepts();
    let machine = builder.build();
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    let device = machine.accept();
    let before = settled(&manager);
    device.fail_at(Pfn(4 << 18));
    let refused = add(&manager, gib(4, 68), 0, Grade::Any);
    assert_eq!(refused, Err(HotplugError::NotAccepted(Pfn(4 << 18))));
    check(&manager);
    assert_eq!(settled(&manager), before);
    device.fail_no_more();
    device.forget_asked(gib(4, 5));
    let added = add(&manager, gib(4, 68), 0, Grade::Any).expect("added");
    check(&manager);
    let tables = (64 << 18) - added;
    assert!(tables > 0 && tables < 4 * PAGES_PER_BLOCK, "{tables}");
    assert_eq!(device.accepted_pages(), tables);
    assert_eq!(settled(&manager).unaccepted_pages, added);
    let block = manager.allocate_order(Order::BLOCK, MigrateType::Movable).expect("a block");
    crate::fill(&manager, PhysRange::with_size(block.address(), 2 << 20), 1);
    manager.give_back_order(block, Order::BLOCK).expect("ours");
    // The tables go with the whole range. Where the host does not forget, they come back without
    // being accepted again, and so do the block and the one behind it, behind which one more may be
    // read then.
    let accepted = device.accepted_pages();
    for round in 0..3 {
        assert_eq!(remove(&manager, gib(4, 68)), Ok(added));
        add(&manager, gib(4, 68), 0, Grade::Any).expect("added");
        assert_eq!(device.accepted_pages(), accepted + (round + 1) * PAGES_PER_BLOCK);
        check(&manager);
        let block = manager.allocate_order(Order::BLOCK, MigrateType::Movable).expect("a block");
        crate::fill(&manager, PhysRange::with_size(block.address(), 2 << 20), 1);
        manager.give_back_order(block, Order::BLOCK).expect("ours");
    }
    assert_eq!(device.accepted_pages(), accepted + 3 * PAGES_PER_BLOCK);
}

#[test]
fn memory_behind_such_as_is_in_use_is_accepted_to_be_read() {
    let (manager, device) = machine("");
    // Accepted and in use.
    let (first, second) = (mib(4096, 4160), mib(4160, 4224));
    add(&manager, first, 0, Grade::Any).expect("added");
    use_everything(&manager);
    device.forget_calls();
    add(&manager, second, 0, Grade::Any).expect("added");
    let block = PhysRange::with_size(second.start, 2 << 20).whole_frames();
    assert_eq!(device.calls(), [block]);
    // It waits to be used as unaccepted memory, like any other.
    assert_eq!(settled(&manager).unaccepted_pages, 64 * PER_MIB);
    use_everything(&manager);
    check(&manager);
}

const MS: u64 = 1_000_000;

#[test]
fn what_a_host_had_that_forgets_is_accepted_again() {
    let answers = [Answer::After(0), Answer::Fails(1), Answer::Refuses, Answer::Never];
    for (line, answer) in ["", "pages=inside"].iter().flat_map(|&line| answers.map(|it| (line, it)))
    {
        let builder = FakeMachine::builder().ram(mib(0, 256)).accepts();
        let machine = builder.build();
        let parameters = parameters(&format!("{line} page_reporting.page_reporting_order=5"));
        let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
        let device = machine.accept();
        device.set_forgets(true);
        device.set_reads_past_pages(false);
        let before = settled(&manager);
        let content =
            framewright_testkit::careful().map(|_| framewright::reporting::Content::Poison);
        let traits =
            Traits { content: content.unwrap_or(Traits::default().content), ..Traits::default() };
        let (host, reports) = FakeHost::new(machine, traits);
        host.answer(answer);
        let mut reporter =
            manager.register_reporting(reports).map_err(|(error, _)| error).expect("the only one");
        let mut now_ns = 1;
        for _ in 0..100 {
            now_ns = reporter.poll(now_ns).unwrap_or(now_ns + 1000 * MS).max(now_ns + MS);
        }
        check(&manager);
        let counts = settled(&manager);
        match answer {
            Answer::Refuses => assert_eq!(counts.unaccepted_pages, 0),
            Answer::Never => assert!(counts.reporting_pages > 0, "{counts:?}"),
            _ => assert!(counts.unaccepted_pages > 64 * PER_MIB, "{line} {answer:?}: {counts:?}"),
        }
        // Memory that is not accepted again faults.
        use_everything(&manager);
        if answer == Answer::Never {
            reporter.reset();
        }
        loop {
            match reporter.unregister() {
                Ok(_) => break,
                Err(again) => reporter = again,
            }
            now_ns = reporter.poll(now_ns).unwrap_or(now_ns + 1000 * MS).max(now_ns + MS);
        }
        check(&manager);
        use_everything(&manager);
        let after = settled(&manager);
        assert_eq!(after.unaccepted_pages, 0, "{line} {answer:?}");
        assert_eq!(after.managed_pages, before.managed_pages, "{line} {answer:?}");
        let again = device.accepted_pages();
        assert_eq!(again == 0, answer == Answer::Refuses, "{line} {answer:?}: {again}");
    }
}

/// Adds 64 MiB and accepts all that can be accepted. The device cannot accept one block. Returns
/// the manager, the device, the whole range and that block.
fn with_a_lost_block() -> (Fake, &'static FakeAccept, PhysRange, PhysRange) {
    let (manager, device) = machine("");
    let all = mib(4096, 4160);
    add(&manager, all, 0, Grade::Any).expect("added");
    let block = PhysRange::with_size(all.start + (16 << 20), 2 << 20);
    device.fail_at(Pfn::containing(block.start + 4096));
    manager.acceptance().accept_all(&NoHelpers);
    (manager, device, all, block)
}

/// Memory that a device refused to take never left: a block that could not be accepted stays lost,
/// and accepted memory stays accepted.
#[test]
fn what_failed_and_never_left_is_not_asked_for_again() {
    for goes_offline in [false, true] {
        let (manager, device, all, block) = with_a_lost_block();
        // The block before it is lost as well because accesses to it may read past its end.
        let lost = 2 * PAGES_PER_BLOCK;
        assert_eq!(manager.acceptance().lost_pages(), lost);
        device.forget_calls();
        device.fail_no_more();
        if goes_offline {
            manager.hotplug().offline(all, Budget::UNLIMITED).expect("free");
        }
        for _ in 0..2 {
            remove(&manager, all).expect("free");
            assert_eq!(manager.acceptance().lost_pages(), 0);
            // SAFETY: removed just now.
            unsafe { manager.hotplug().put_back(all, node(0), Some(Grade::Any)) }.expect("removed");
        }
        if manager.hotplug().presence_of(all.start) == Presence::Offline {
            manager.hotplug().online(all, Grade::Any).expect("offline");
        }
        check(&manager);
        manager.acceptance().accept_all(&NoHelpers);
        assert_eq!((device.calls(), manager.acceptance().lost_pages()), (vec![], lost));
        use_everything(&manager);
        // A block that really comes back is asked for as a whole.
        remove(&manager, all).expect("free");
        device.forget_asked(block);
        add(&manager, all, 0, Grade::Any).expect("removed");
        manager.acceptance().accept_all(&NoHelpers);
        assert_eq!(device.calls(), [block.whole_frames()]);
        assert_eq!(manager.acceptance().lost_pages(), 0);
        use_everything(&manager);
    }
}

/// A range that comes back in parts is handed out once all parts are there: memory before a block
/// that could not be accepted is not handed out alone.
#[test]
fn what_comes_back_in_parts_is_as_it_was() {
    let (manager, device, all, block) = with_a_lost_block();
    device.fail_no_more();
    let lost = manager.acceptance().lost_pages();
    manager.hotplug().offline(block, Budget::UNLIMITED).expect("nobody has it");
    let before = settled(&manager);
    device.forget_calls();
    for _ in 0..3 {
        remove(&manager, all).expect("free");
        let left = settled(&manager);
        // SAFETY: removed just now.
        let back =
            unsafe { manager.hotplug().put_back(all, node(0), Some(Grade::Any)) }.expect("removed");
        let counts = settled(&manager);
        check(&manager);
        assert_eq!(back.pages, counts.managed_pages - left.managed_pages);
        assert_eq!(counts, before);
        use_everything(&manager);
    }
    manager.hotplug().online(block, Grade::Any).expect("offline");
    manager.acceptance().accept_all(&NoHelpers);
    check(&manager);
    assert_eq!((device.calls(), manager.acceptance().lost_pages()), (vec![], lost));
    use_everything(&manager);
}

#[test]
fn what_could_not_be_accepted_goes_with_as_much_as_can_be_had() {
    let (manager, _, all, _) = with_a_lost_block();
    assert_eq!(manager.acceptance().lost_pages(), 2 * PAGES_PER_BLOCK);
    // SAFETY: nothing looks up descriptors by number.
    let some =
        || unsafe { manager.hotplug().remove_some(all, all.size(), 2 << 20, Budget::UNLIMITED) };
    assert_eq!(some(), Ok(Removal::Run(all)));
    check(&manager);
    assert_eq!(manager.acceptance().lost_pages(), 0);
    assert_eq!(some(), Ok(Removal::Nothing(None)));
}

#[test]
fn what_is_isolated_while_the_host_has_it_is_accepted_when_it_comes_back() {
    // A careful run poisons free memory, and this device does not keep the poison.
    if is_careful() {
        return;
    }
    for fails in [false, true] {
        let machine = FakeMachine::builder().ram(mib(0, 256)).accepts().build();
        let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
        let device = machine.accept();
        device.set_forgets(true);
        device.set_reads_past_pages(false);
        let traits = Traits { writes: false, ..Traits::default() };
        let (host, reports) = FakeHost::new(machine, traits);
        host.answer(Answer::Never);
        let registered = manager.register_reporting(reports);
        let mut reporter = registered.map_err(|(error, _)| error).expect("the first device");
        let mut now_ns = 1;
        while manager.totals().reporting_pages == 0 {
            now_ns = reporter.poll(now_ns).unwrap_or(now_ns + 1000 * MS).max(now_ns + MS);
        }
        // A part of the range, and the free memory around it.
        let out = host.take_submissions().concat();
        let first = out.iter().min_by_key(|range| range.start).expect("something is out");
        let start = BlockNumber::containing(Pfn::containing(first.start));
        let blocks = BlockRange { start, end: BlockNumber(start.0 + 1) };
        manager.isolation().isolate(blocks).expect("isolated");
        if fails {
            device.fail_at(start.start());
        }
        host.answer_now();
        host.answer(Answer::Refuses);
        for _ in 0..3 {
            now_ns = reporter.poll(now_ns).unwrap_or(now_ns + MS).max(now_ns + MS);
        }
        check(&manager);
        assert_eq!(device.calls(), [PfnRange { start: start.start(), end: blocks.end.start() }]);
        let counts = manager.totals();
        assert_eq!(counts.isolated_pages, if fails { 0 } else { PAGES_PER_BLOCK });
        let lost_pages = manager.acceptance().lost_pages();
        assert_eq!(lost_pages, if fails { PAGES_PER_BLOCK } else { 0 });
        let out_pages: u64 = out.iter().map(|range| range.size() >> 12).sum();
        assert_eq!(counts.unaccepted_pages, out_pages - PAGES_PER_BLOCK);
        assert_eq!(counts.reporting_pages, 0);
        manager.isolation().unisolate(blocks).expect("isolated");
        check(&manager);
        use_everything(&manager);
        assert_eq!(manager.totals().unaccepted_pages, 0);
    }
}

#[test]
fn nothing_is_reported_where_it_could_be_read_from_the_page_before() {
    // A careful run poisons free memory, which this device does not keep.
    if is_careful() {
        return;
    }
    let machine = FakeMachine::builder().ram(mib(0, 256)).accepts().build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    machine.accept().set_forgets(true);
    let (host, reports) = FakeHost::new(machine, Traits { writes: false, ..Traits::default() });
    let registered = manager.register_reporting(reports);
    let mut reporter = registered.map_err(|(error, _)| error).expect("the first device");
    manager.reporting().flush();
    let mut now_ns = 1;
    for _ in 0..500 {
        now_ns = reporter.poll(now_ns).unwrap_or(now_ns + 1000 * MS).max(now_ns + MS);
    }
    assert!(host.take_submissions().is_empty());
    check(&manager);
}
