//! Claims with poison: the poison of claimed memory is checked by the call that claimed it, and by
//! no other.

use crate::common::{Fake, blocks, bring_up_with, check, mib};
use framewright::Parameters;
use framewright::units::{PAGE_SIZE, PfnRange};
use framewright::vmemmap_space::BlockRange;
use framewright::zone::IsolateError;
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 500;

fn poisoned() -> Fake {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(3).build();
    let parameters = Parameters::parse("page_poison=1", &mut |problem| panic!("{problem}"));
    bring_up_with(machine, &[], &parameters).expect("bring-up")
}

/// Two threads claim the same block at once. The thread that gets it writes its last pages, from
/// the end backwards, and finds them as it left them; the other thread is refused.
#[test]
fn what_another_has_claimed_is_not_looked_at() {
    let manager = poisoned();
    let (block, barrier) = (blocks(16, 1), Barrier::new(2));
    let work = |mark: u64| {
        let (mut claimed, mut wrong) = (0, Vec::new());
        for _ in 0..ROUNDS {
            if mark == 1 {
                let _ = manager.isolation().isolate(block);
            }
            barrier.wait();
            match manager.isolation().claim(block) {
                Ok(range) => {
                    claimed += 1;
                    wrong.extend(use_and_give_back(&manager, range, mark));
                }
                Err(IsolateError::NotIsolated(_) | IsolateError::InUse(_)) => {}
                Err(other) => wrong.push(other.to_string()),
            }
            barrier.wait();
        }
        (claimed, wrong)
    };
    let work = &work;
    let done = thread::scope(|scope| {
        let threads = [1, 2].map(|mark| scope.spawn(move || work(mark)));
        threads.map(|thread| thread.join().expect("no panic"))
    });
    assert_eq!([&done[0].1[..], &done[1].1[..]].concat(), Vec::<String>::new());
    assert_eq!(done[0].0 + done[1].0, ROUNDS);
    assert_eq!(manager.debug().damage(), None);
    assert_eq!((manager.totals().allocated_pages, manager.totals().isolated_pages), (0, 0));
    check(&manager);
}

/// Uses the last pages of a claimed range and gives it back. Returns a description of any page that
/// another thread changed meanwhile.
fn use_and_give_back(manager: &Fake, range: PfnRange, mark: u64) -> Option<String> {
    let machine = manager.platform();
    let pages = || (range.end.0 - 64..range.end.0).rev().map(|page| page * PAGE_SIZE);
    // SAFETY: the pages were claimed, and nobody holds a reference into the machine's memory.
    pages().for_each(|address| unsafe { machine.store(address, address ^ mark) });
    let until = Instant::now() + Duration::from_micros(200);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    let other = pages().find(|&address| machine.load(address) != address ^ mark);
    manager.give_back(range).expect("claimed");
    other.map(|address| format!("somebody else wrote to {address:#x}"))
}

#[test]
fn a_claim_with_damage_leaves_all_isolated() {
    let manager = poisoned();
    let range: BlockRange = blocks(16, 8);
    let taken = |range: BlockRange| PfnRange { start: range.start.start(), end: range.end.start() };
    manager.isolation().isolate(range).expect("free");
    let free = manager.totals();
    let first = manager.isolation().claim(range).expect("isolated");
    manager.give_back_to_zone(first).expect("claimed");
    manager.isolation().isolate(range).expect("free");
    let address = taken(blocks(19, 1)).start.address() + 8;
    // SAFETY: nobody holds a reference into the machine's memory.
    unsafe { manager.platform().store(address, 0) };
    // Blocks that are not isolated are refused before any poison is checked.
    let more = manager.isolation().claim(blocks(16, 9));
    assert!(matches!(more, Err(IsolateError::NotIsolated(_))), "{more:?}");
    assert_eq!(manager.debug().damage(), None);
    let error = manager.isolation().claim(range).expect_err("it was written to");
    let IsolateError::Damaged(damage) = error else { panic!("{error}") };
    assert_eq!((damage.address, damage.found), (address, 0));
    assert_eq!(manager.debug().damage(), Some((1, damage)));
    check(&manager);
    assert_eq!(manager.totals(), free, "all of it is isolated still");
    // SAFETY: as above. The range was filled with poison again after the damage, and the next claim
    // checks all of it.
    unsafe { manager.platform().store(address + (1 << 21), 1) };
    assert!(matches!(manager.isolation().claim(range), Err(IsolateError::Damaged(_))));
    manager.isolation().unisolate(blocks(16, 4)).expect("isolated");
    let rest = manager.isolation().claim(blocks(20, 4)).expect("it was filled");
    manager.give_back_to_zone(rest).expect("claimed");
    assert_eq!(manager.totals().isolated_pages, 0);
    manager.isolation().isolate(range).expect("nothing counts as isolated");
    manager.isolation().unisolate(range).expect("isolated");
    check(&manager);
}

/// Another thread may isolate a claimed block while its poison is being checked; if there is
/// damage, the block stays isolated for that thread.
#[test]
fn who_isolates_what_has_damage_keeps_it() {
    let manager = poisoned();
    let (block, is_done) = (blocks(16, 1), AtomicBool::new(false));
    let address = block.start.start().address() + 8;
    let damaged = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let _ = manager.isolation().isolate(block);
                let _ = manager.isolation().unisolate(block);
            }
        });
        let mut damaged = 0;
        for _ in 0..ROUNDS {
            let _ = manager.isolation().isolate(block);
            // SAFETY: nobody holds a reference into the machine's memory.
            unsafe { manager.platform().store(address, 0) };
            match manager.isolation().claim(block) {
                Ok(range) => manager.give_back(range).expect("claimed"),
                Err(IsolateError::Damaged(_)) => damaged += 1,
                Err(_) => {}
            }
        }
        is_done.store(true, Ordering::Relaxed);
        damaged
    });
    assert_eq!(manager.debug().damage().map_or(0, |(times, _)| times), damaged);
    while manager.isolation().unisolate(block).is_ok() {}
    assert_eq!((manager.totals().allocated_pages, manager.totals().isolated_pages), (0, 0));
    check(&manager);
}
