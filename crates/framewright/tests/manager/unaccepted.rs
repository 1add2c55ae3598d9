//! Memory that a confidential guest has to accept: no memory is accepted before it is wanted and no
//! frame twice, and a page is handed out only after it, and what may be read past its end, have
//! been accepted. Touching unaccepted memory faults.

use crate::common::{
    Fake, bring_up_with, check, gib, is_careful, mib, order, parameters, settled, unmovable,
};
use framewright::firmware::MemoryKind;
use framewright::manager::{Budget, ContiguousRequest};
use framewright::parameters::AcceptPolicy;
use framewright::units::{NodeId, Order, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{MigrateType, State, ZoneKind, pages_to_accept};
use framewright::{AllocateError, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{Builder, FakeMachine, FakeVmemmap, HelperPool, Owner};
use std::sync::Barrier;
use std::time::Duration;

pub const BLOCK: u64 = 512;

pub fn machine(accepted: PhysRange, unaccepted: PhysRange) -> Builder {
    FakeMachine::builder().ram(accepted).memory(unaccepted, MemoryKind::Unaccepted).accepts()
}

fn up(machine: &'static FakeMachine, line: &str) -> Fake {
    bring_up_with(machine, &[], &parameters(line)).expect("bring-up")
}

/// Checks that memory in use, and what may be read past its end, can be touched.
fn assert_accepted(manager: &Fake, range: PfnRange) {
    let device = manager.platform().accept();
    for pfn in (range.start.0..range.end.0).map(Pfn) {
        assert!(device.is_accepted(pfn), "pfn {pfn} is in use and not accepted");
    }
    let behind = range.end;
    let is_memory = manager.platform().is_usable(behind.address());
    if is_memory && manager.platform().accept_memory_reads() {
        assert!(device.is_accepted(behind), "pfn {behind} can be read from the page before it");
    }
    // SAFETY: the caller owns the range.
    unsafe { manager.platform().store(range.start.address(), range.start.0) };
    // SAFETY: as above.
    unsafe { manager.platform().store(range.end.address() - 8, range.end.0) };
}

trait Reads {
    fn accept_memory_reads(&self) -> bool;
}

impl Reads for FakeMachine {
    fn accept_memory_reads(&self) -> bool {
        framewright::AcceptMemory::reads_past_pages(self.accept())
    }
}

/// Number of blocks that are accepted and wait for their turn.
fn ahead(manager: &Fake) -> u64 {
    let segments = manager.zones().iter().flat_map(|zone| zone.segments());
    let blocks = segments.flat_map(|segment| (segment.start.0..segment.end().0).map(BlockNumber));
    let is_ahead = |&block: &BlockNumber| {
        manager.block_state(block).is_some_and(|state| {
            state.is(State::Unaccepted) && state.has(framewright::zone::BlockState::AHEAD)
        })
    };
    let found = blocks.filter(is_ahead);
    found.count() as u64
}

/// Checks that accepted and unaccepted memory add up, and that everything else is right.
pub fn check_all(manager: &Fake, unaccepted: PhysRange) {
    check(manager);
    let device = manager.platform().accept();
    let all = unaccepted.size() / 4096;
    let acceptance = manager.acceptance();
    let lost = acceptance.lost_pages();
    let left = acceptance.unaccepted_pages();
    if lost == 0 {
        assert_eq!(device.accepted_pages() + left, all + ahead(manager) * BLOCK);
    }
    assert_eq!(acceptance.events().accepted_pages, device.accepted_pages());
    assert_eq!(acceptance.events().calls, device.calls().len() as u64);
    assert_eq!(manager.totals().unaccepted_pages, left);
}

fn take(manager: &Fake, request: &Request) -> PfnRange {
    let range = manager.allocate(request).expect("there is memory");
    assert_accepted(manager, range);
    range
}

fn give_back(manager: &Fake, range: PfnRange) {
    manager.give_back(range).expect("allocated");
}

/// Allocates all pages one by one, and returns their number.
pub fn take_all(manager: &Fake) -> u64 {
    let all = Request { reserves: Reserves::All, ..Request::new(Order::PAGE) };
    let mut taken = Vec::new();
    while let Ok(range) = manager.allocate(&all) {
        taken.push(range);
    }
    check(manager);
    if manager.acceptance().events().calls != 0 {
        let device = manager.platform().accept();
        assert!(taken.iter().all(|range| device.is_accepted(range.start)));
    }
    let pages = taken.len() as u64;
    taken.into_iter().for_each(|range| give_back(manager, range));
    pages
}

#[test]
fn bring_up_and_first_page_accept_one_block() {
    let unaccepted = PhysRange::new(512 << 20, 64 << 30);
    for reads_past_pages in [true, false] {
        let machine = machine(mib(0, 512), unaccepted).build();
        machine.accept().set_reads_past_pages(reads_past_pages);
        let manager = up(machine, "");
        let border = PfnRange::new(512 << 8, 514 << 8);
        // What may be read past the end of memory that was accepted from the start.
        let first = if reads_past_pages { vec![border] } else { vec![] };
        assert_eq!(machine.accept().calls(), first);
        check_all(&manager, unaccepted);
        // Where there is accepted memory a page costs nothing; elsewhere it costs a block.
        let low = Request { zone: ZoneKind::Dma32, ..Request::new(Order::PAGE) };
        let page = take(&manager, &low);
        assert_eq!(machine.accept().calls(), first);
        let first_anywhere = take(&manager, &Request::new(Order::PAGE));
        let more = if reads_past_pages { 2 } else { 1 };
        assert_eq!(machine.accept().calls().len(), first.len() + more);
        assert_eq!(
            machine.accept().accepted_pages(),
            (first.len() + more) as u64 * BLOCK,
            "one block, and one that may be read behind it"
        );
        check_all(&manager, unaccepted);
        give_back(&manager, page);
        give_back(&manager, first_anywhere);
    }
}

#[test]
fn what_runs_short_accepts_a_block_at_a_time() {
    let unaccepted = gib(4, 8);
    let machine = machine(mib(0, 512), unaccepted).build();
    let manager = up(machine, "");
    // The zone above 4 GiB has no accepted memory.
    assert_eq!(machine.accept().calls(), []);
    let normal = manager.zones().last().expect("a zone");
    assert_eq!((normal.free_pages(), normal.managed_pages()), (0, 0));
    assert!(normal.watermarks().min_pages != 0, "marks are of all memory");
    let page = take(&manager, &Request::new(Order::PAGE));
    // One block, and the block behind it.
    let start = 4 << 18;
    let blocks = |from: u64, to: u64| PfnRange::new(start + from * BLOCK, start + to * BLOCK);
    assert_eq!(machine.accept().calls(), [blocks(0, 1), blocks(1, 2)]);
    assert_eq!(ahead(&manager), 1);
    check_all(&manager, unaccepted);
    let mut held = vec![page];
    while normal.free_pages() != 0 || manager.caches().pages() != 0 {
        held.push(take(&manager, &Request::new(Order::PAGE)));
    }
    assert_eq!(held.len() as u64, BLOCK);
    machine.accept().forget_calls();
    held.push(take(&manager, &Request::new(Order::PAGE)));
    // The second block was accepted already. A request that may wait accepts as much again, from
    // the end of the zone, for requests that may not wait.
    let more = blocks(2047, 2048);
    assert_eq!(machine.accept().calls(), [blocks(2, 3), more]);
    for _ in 0..30_000 {
        held.push(take(&manager, &Request::new(Order::PAGE)));
    }
    // Accepts up to Linux's mark, in larger and larger steps.
    let (calls, promo) = (machine.accept().calls().len(), normal.watermarks().promo_pages);
    assert!(calls < 45 && normal.free_pages() < promo + 16 * BLOCK, "{calls} calls");
    check(&manager);
    held.into_iter().for_each(|range| give_back(&manager, range));
    check(&manager);
}

#[test]
fn all_of_it_can_be_had_and_no_reclaim_comes_before() {
    for line in ["", "memmap_init=eager", "memmap_init=deferred", "pages=inside", "zone_parts=2"] {
        let unaccepted = mib(1024, 1536);
        let machine = machine(mib(0, 64), unaccepted).build();
        if line.starts_with("memmap") {
            FakeVmemmap::install(machine);
        }
        let manager = up(machine, line);
        manager.vmemmap().initialise_deferred(&NoHelpers);
        check_all(&manager, unaccepted);
        let before = manager.totals();
        assert!(before.unaccepted_pages > 400 << 8, "{line}: {before:?}");
        let all = before.managed_pages - before.allocated_pages + before.unaccepted_pages;
        let mut held = Vec::new();
        // Above the ordinary watermarks no request waits for memory.
        for _ in 0..unaccepted.size() / 4096 / 2 {
            held.push(take(&manager, &Request::new(Order::PAGE)));
        }
        let events = manager.pressure().events();
        assert_eq!((events.failures, events.reclaim_calls, events.stalls), (0, 0, [0; 3]));
        assert!(manager.pressure().background().is_none());
        held.into_iter().for_each(|range| give_back(&manager, range));
        check_all(&manager, unaccepted);
        let taken = take_all(&manager);
        assert!(taken > all - all / 50, "{line}: {taken} of {all}");
        check_all(&manager, unaccepted);
        assert_eq!(manager.totals().unaccepted_pages, 0);
    }
}

#[test]
fn whole_gigabytes_accept_themselves_and_what_is_behind_them() {
    let unaccepted = gib(4, 12);
    let machine = machine(gib(0, 1), unaccepted).build();
    let manager = up(machine, "");
    machine.accept().forget_calls();
    let first = take(&manager, &Request::new(Order::MAX));
    assert_eq!(
        machine.accept().calls(),
        [PfnRange::new(4 << 18, 5 << 18), PfnRange::new(5 << 18, (5 << 18) + BLOCK)]
    );
    // The next GiB is not the one that was begun.
    machine.accept().forget_calls();
    let second = take(&manager, &Request::new(Order::MAX));
    assert_eq!(second.start, Pfn(6 << 18));
    assert_eq!(machine.accept().accepted_pages(), 2 * ((1 << 18) + BLOCK));
    check(&manager);
    for range in [first, second] {
        give_back(&manager, range);
    }
    check(&manager);
}

#[test]
fn a_range_accepts_what_it_touches_and_one_block_behind() {
    let unaccepted = gib(1, 6);
    let machine = machine(gib(0, 1), unaccepted).build();
    let manager = up(machine, "");
    machine.accept().forget_calls();
    let accepted = machine.accept().accepted_pages();
    // An unaligned range of 1 GiB in the middle.
    let range = BlockRange { start: BlockNumber(2 * 512 + 100), end: BlockNumber(3 * 512 + 100) };
    let pages = manager.isolation().isolate(range).expect("it comes up");
    assert_eq!(pages.free_pages, 1 << 18);
    assert_eq!(machine.accept().accepted_pages() - accepted, (1 << 18) + BLOCK);
    let behind = PfnRange::new(range.end.start().0, range.end.start().0 + BLOCK);
    assert_eq!(machine.accept().calls()[1], behind, "right after what is before it");
    check(&manager);
    let claimed = manager.isolation().claim(range).expect("all of it is free");
    assert_accepted(&manager, claimed);
    give_back(&manager, claimed);
    // A place by itself, behind which nothing was accepted yet.
    let place = Pfn(5 << 18);
    let taken = manager.allocate_at(place, order(3), MigrateType::Movable).expect("it comes up");
    assert_accepted(&manager, taken);
    assert_eq!(machine.accept().accepted_pages() - accepted, (1 << 18) + 3 * BLOCK);
    give_back(&manager, taken);
    check(&manager);
}

#[test]
fn contiguous_runs_accept_themselves_where_nothing_else_has_room() {
    let unaccepted = gib(4, 8);
    let machine = machine(mib(0, 512), unaccepted).build();
    let manager = up(machine, "");
    let pages = 1 << 18;
    let request = ContiguousRequest::new(pages);
    let budget = Budget::UNLIMITED;
    let first = manager.moving().allocate_contiguous(&request, budget).expect("it comes up");
    assert_accepted(&manager, first);
    assert_eq!(machine.accept().accepted_pages(), pages + BLOCK);
    // Accepted memory is preferred to unaccepted memory.
    give_back(&manager, first);
    let again = manager.moving().allocate_contiguous(&request, budget).expect("it is free");
    assert_eq!((again, machine.accept().accepted_pages()), (first, pages + BLOCK));
    let odd = ContiguousRequest::new(3 * BLOCK + 5);
    let second = manager.moving().allocate_contiguous(&odd, budget).expect("it comes up");
    assert_accepted(&manager, second);
    assert!(machine.accept().accepted_pages() <= pages + 6 * BLOCK);
    let range = PfnRange::new((7 << 18) + 100, (7 << 18) + 1700);
    let third = manager.moving().allocate_range(range, budget).expect("it comes up");
    assert_accepted(&manager, third);
    check_all(&manager, unaccepted);
    [again, second, third].into_iter().for_each(|range| give_back(&manager, range));
    check(&manager);
}

#[test]
fn pools_accept_what_they_hold() {
    for line in ["hugepages=100", "hugepagesz=1G hugepages=2", "hugetlb_cma=1G", "cma=256M"] {
        let unaccepted = gib(4, 8);
        let machine = machine(gib(0, 1), unaccepted).build();
        let parameters = parameters(line);
        let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
        let fill = manager.hugetlb().fill(&parameters, &NoHelpers);
        check_all(&manager, unaccepted);
        let got: u64 = fill.pools.iter().map(|pool| pool.got * pool.size.frames()).sum();
        let wanted: u64 = fill.pools.iter().map(|pool| pool.wanted * pool.size.frames()).sum();
        assert_eq!(got, wanted, "{line}");
        let area = manager.moving().area_pages();
        assert!(area != 0 || got != 0, "{line}");
        // Also accepted is what may be read past the end of each GiB.
        let most = got + area + 4 * BLOCK;
        // Tables of page owners and random placement take more.
        let accepted = machine.accept().accepted_pages();
        assert!(accepted <= most || is_careful(), "{line}: {accepted} of {most}");
    }
}

#[test]
fn interrupts_accept_what_they_need() {
    let unaccepted = gib(4, 6);
    let machine = machine(mib(0, 128), unaccepted).cpus(2).build();
    let manager = up(machine, "");
    let taken: Vec<_> =
        (0..600).map(|_| machine.interrupt(|| take(&manager, &Request::new(order(3))))).collect();
    check_all(&manager, unaccepted);
    assert!(machine.accept().accepted_pages() <= 11 * BLOCK);
    taken.into_iter().for_each(|range| give_back(&manager, range));
}

#[test]
fn eager_leaves_nothing() {
    for cpus in [1, 6] {
        let unaccepted = gib(1, 7);
        let machine = machine(gib(0, 1), unaccepted).cpus(cpus).build();
        let manager = up(machine, "accept_memory=eager");
        assert_eq!(manager.acceptance().policy(), AcceptPolicy::Eager);
        if cpus != 1 {
            assert_ne!(manager.acceptance().unaccepted_pages(), 0);
            manager.vmemmap().initialise_deferred(&HelperPool::on_nodes(&[0; 5]));
        }
        assert_eq!(manager.acceptance().unaccepted_pages(), 0);
        check_all(&manager, unaccepted);
        assert_eq!(machine.accept().accepted_pages(), unaccepted.size() / 4096);
        machine.accept().forget_calls();
        let taken = take(&manager, &Request::new(Order::MAX));
        assert_eq!(machine.accept().calls(), []);
        give_back(&manager, taken);
    }
}

#[test]
fn sixteen_cpus_accept_at_once() {
    let unaccepted = gib(4, 20);
    for line in ["", "zone_parts=4"] {
        let machine = machine(gib(0, 1), unaccepted).cpus(16).build();
        let manager = up(machine, line);
        machine.accept().forget_calls();
        let pool = HelperPool::on_nodes(&[0; 15]);
        // All sixteen calls must meet in the device before the first one returns; otherwise this
        // never ends.
        machine.accept().meet(16);
        machine.accept().set_delay(Duration::from_micros(100));
        let start = std::time::Instant::now();
        manager.acceptance().accept_all(&pool);
        println!("16 GiB on 16 CPUs: {:?}, serially 819.2 ms", start.elapsed());
        check_all_of(&manager);
        assert_eq!(machine.accept().accepted_pages(), unaccepted.size() / 4096);
        let calls = machine.accept().calls();
        // The largest pieces, but no CPU has more than its share at once.
        assert!(calls.len() < 700, "{} calls", calls.len());
        assert!(calls.iter().all(|range| range.pages() <= unaccepted.size() / 4096 / 16));
    }
}

#[test]
fn one_cpu_accepts_gigabytes_whole() {
    let machine = machine(gib(0, 1), gib(1, 9)).build();
    let manager = up(machine, "");
    machine.accept().forget_calls();
    manager.acceptance().accept_all(&NoHelpers);
    check_all_of(&manager);
    let calls = machine.accept().calls();
    let whole = calls.iter().filter(|range| range.pages() == 1 << 18).count();
    // The first GiB was begun at bring-up, and the rest for the last calls is less.
    assert!(whole >= 3 && calls.len() < 60, "{calls:?}");
}

fn check_all_of(manager: &Fake) {
    check(manager);
    assert_eq!(manager.acceptance().unaccepted_pages(), 0);
}

#[test]
fn an_acceptor_works_in_the_background_until_all_is_accepted() {
    let unaccepted = gib(1, 3);
    let machine = machine(gib(0, 1), unaccepted).clock_step_ns(100_000).build();
    let manager = up(machine, "accept_memory=background");
    let mut acceptor = manager.acceptance().acceptor();
    let (mut now, mut polls) = (0, 0);
    while manager.acceptance().unaccepted_pages() != 0 {
        let before = manager.acceptance().unaccepted_pages();
        let next = acceptor.poll(now);
        assert!(manager.acceptance().unaccepted_pages() < before && next > now);
        (now, polls) = (next, polls + 1);
    }
    assert!(polls > 4, "a little at a time");
    check_all(&manager, unaccepted);
    let rest = acceptor.poll(now);
    assert!(rest - now >= 1_000_000_000);
    // The acceptor works only if the command line asks for it.
    let lazy = up(self::machine(gib(0, 1), unaccepted).build(), "");
    lazy.acceptance().acceptor().poll(0);
    assert_eq!(lazy.acceptance().unaccepted_pages(), (2 << 18));
}

#[test]
fn a_block_that_fails_is_lost_and_another_serves() {
    let unaccepted = gib(4, 5);
    let machine = machine(mib(0, 512), unaccepted).build();
    let manager = up(machine, "");
    let start = 4 << 18;
    // In the second block, which is accepted because it lies behind the first: the first is lost,
    // too.
    machine.accept().fail_at(Pfn(start + BLOCK + 7));
    let page = take(&manager, &Request::new(Order::PAGE));
    assert!(page.start.0 >= start + 2 * BLOCK, "{page:?}");
    check(&manager);
    let acceptance = manager.acceptance();
    assert_eq!(acceptance.lost_pages(), 2 * BLOCK);
    let events = acceptance.events();
    assert_eq!((events.failures, events.last_failed), (1, Some(Pfn(start + BLOCK + 7))));
    for block in [start / BLOCK, start / BLOCK + 1] {
        let block = BlockNumber(u32::try_from(block).expect("small"));
        assert!(manager.block_state(block).is_some_and(|state| state.is(State::Reserved)));
        let place = manager.allocate_at(block.start(), Order::PAGE, MigrateType::Movable);
        assert!(matches!(place, Err(AllocateError::NotFree(_))), "{place:?}");
    }
    give_back(&manager, page);
    // In the middle of a large run; the memory after it is accepted.
    machine.accept().fail_at(Pfn(start + 300 * BLOCK));
    acceptance.accept_all(&NoHelpers);
    check_all_of(&manager);
    assert_eq!(acceptance.lost_pages(), 4 * BLOCK);
    assert_eq!(manager.zones().last().expect("a zone").managed_pages(), (1 << 18) - 4 * BLOCK);
    let place = Pfn(start + 301 * BLOCK);
    let taken = manager.allocate_at(place, Order::BLOCK, MigrateType::Movable).expect("good");
    assert_accepted(&manager, taken);
    give_back(&manager, taken);
    settled(&manager);
    check(&manager);
}

#[test]
fn where_all_fails_requests_fail() {
    let unaccepted = mib(4096, 4224);
    let machine = machine(mib(0, 64), unaccepted).build();
    let manager = up(machine, "");
    (0..64).for_each(|block| machine.accept().fail_at(Pfn((4 << 18) + block * BLOCK)));
    let all = take_all(&manager);
    assert!(all < 64 << 8);
    check(&manager);
    assert_eq!(manager.acceptance().lost_pages(), unaccepted.size() / 4096);
}

#[test]
fn reserves_for_movable_memory_are_not_accepted_for_it() {
    let unaccepted = gib(1, 5);
    let machine = machine(gib(0, 1), unaccepted).build();
    let manager = up(machine, "movablecore=2G");
    assert!(machine.accept().accepted_pages() < 8 * BLOCK);
    check_all(&manager, unaccepted);
    let unmovable = Request { migrate_type: MigrateType::Unmovable, ..Request::new(order(10)) };
    let mut held: Vec<PfnRange> =
        core::iter::from_fn(|| manager.allocate(&unmovable).ok()).collect();
    let start = manager.moving().start_on_node(NodeId::ZERO).expect("there is such memory");
    assert!(held.iter().all(|range| range.end <= start), "what cannot move is below {start}");
    check_all(&manager, unaccepted);
    held.extend(core::iter::from_fn(|| manager.allocate(&Request::new(order(10))).ok()));
    assert!(held.iter().any(|range| range.start >= start));
    held.into_iter().for_each(|range| {
        assert_accepted(&manager, range);
        give_back(&manager, range);
    });
    check_all(&manager, unaccepted);
}

#[test]
fn several_cpus_accept_different_blocks() {
    let unaccepted = gib(4, 6);
    for line in ["", "memmap_init=deferred", "zone_parts=4"] {
        let machine = machine(mib(0, 512), unaccepted).cpus(7).build();
        if line.starts_with("memmap") {
            FakeVmemmap::install(machine);
        }
        machine.accept().set_delay(Duration::from_micros(20));
        let manager = up(machine, line);
        let (start, manager) = (Barrier::new(6), &manager);
        let all: Vec<PfnRange> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6_u8)
                .map(|number| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        let wanted = Request::new(order(if number < 3 { 0 } else { 9 }));
                        let mut taken: Vec<PfnRange> = Vec::new();
                        for round in 0..200 {
                            taken.push(take(manager, &wanted));
                            if number == 5 && round % 50 == 0 {
                                let block = BlockNumber(4 * 512 + 700 + round);
                                let range =
                                    BlockRange { start: block, end: BlockNumber(block.0 + 3) };
                                if manager.isolation().isolate(range).is_ok() {
                                    manager.isolation().unisolate(range).expect("isolated");
                                }
                            }
                        }
                        taken
                    })
                })
                .collect();
            let taken = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            taken.flatten().collect()
        });
        check_all(manager, unaccepted);
        all.into_iter().for_each(|range| give_back(manager, range));
        manager.vmemmap().initialise_deferred(&NoHelpers);
        check_all(manager, unaccepted);
    }
}

#[test]
fn linuxs_rule_for_how_much_to_accept() {
    // 26 blocks of 4 MiB.
    assert_eq!(pages_to_accept(30_000, 40_000, 35_840).div_ceil(1024), 26);
    assert_eq!(pages_to_accept(0, 40_000, 35_840), BLOCK, "one where there are no marks");
    assert_eq!(pages_to_accept(30_000, 70_000, 35_840), 0);
    assert_eq!(pages_to_accept(30_000, 100, 100), 100, "no more than there is");
    assert_eq!(pages_to_accept(30_000, 100, 0), 0);
}

#[test]
fn without_a_device_it_stays_reserved() {
    let machine =
        FakeMachine::builder().ram(mib(0, 256)).memory(gib(1, 2), MemoryKind::Unaccepted).build();
    let manager = up(machine, "accept_memory=eager");
    assert_eq!(manager.acceptance().unaccepted_pages(), 0);
    assert!(manager.totals().reserved_pages >= 1 << 18);
    assert!(take_all(&manager) < 256 << 8);
    let range = BlockRange { start: BlockNumber(600), end: BlockNumber(700) };
    let pages = manager.isolation().isolate(range).expect("nothing is free there");
    assert_eq!(pages.reserved_pages, 100 * BLOCK);
    manager.isolation().unisolate(range).expect("nothing was isolated");
}

/// Withheld memory that counts as available still counts once it has come up.
#[test]
fn many_pages_at_a_time_keep_the_marks_while_memory_comes_up() {
    let manager = up(machine(mib(0, 32), mib(32, 96)).build(), "min_free_kbytes=8192");
    let mut pages = vec![Pfn(0); 96 << 8];
    let request = Request { fail_fast: true, ..Request::new(Order::PAGE) };
    let got = manager.allocate_bulk(&request, &mut pages).expect("there is memory");
    let totals = manager.totals();
    let min_pages: u64 = manager.views().map(|zone| zone.watermarks().min_pages).sum();
    let left = totals.free_pages + totals.unaccepted_pages;
    assert!(min_pages > 1000 && left + 64 >= min_pages, "{left} of {min_pages}");
    check(&manager);
    manager.give_back_bulk(&pages[..got]).expect("allocated");
    check(&manager);
}

/// Unaccepted graded memory is no memory that an unmovable request could have: the request keeps
/// the watermark of the memory that it can have.
#[test]
fn marks_do_not_count_what_is_not_accepted_and_for_others() {
    let line = "kernelcore=48M min_free_kbytes=8192";
    let manager = up(machine(mib(0, 32), mib(32, 512)).build(), line);
    let graded =
        |manager: &Fake| -> u64 { manager.views().map(|zone| zone.graded_free_pages()).sum() };
    let request = Request { fail_fast: true, ..unmovable(Order::PAGE) };
    let mut held = Vec::new();
    while let Ok(page) = manager.allocate(&request) {
        held.push(page);
    }
    manager.drain().expect("only good frames are cached");
    // Unaccepted memory without a grade comes up when it is wanted, so it counts as available, too.
    let start = manager.moving().start_on_node(NodeId::ZERO).expect("most of it is movable");
    let kernels = (start.0.min(512 << 8) / BLOCK).saturating_sub(16);
    let device = manager.platform().accept();
    let waiting = (16..16 + kernels).filter(|block| !device.is_accepted(Pfn(block * BLOCK)));
    let left = manager.totals().free_pages - graded(&manager) + waiting.count() as u64 * BLOCK;
    let min_pages: u64 = manager.views().map(|zone| zone.watermarks().min_pages).sum();
    assert!(manager.totals().unaccepted_pages > min_pages, "much of it is for others");
    assert!(left + 64 >= min_pages, "{left} of {min_pages}");
    check(&manager);
    held.into_iter().for_each(|page| manager.give_back(page).expect("allocated"));
    check(&manager);
}
