//! Several CPUs on one manager: no block is handed out twice, nothing is lost, and all invariants
//! hold afterwards.

use super::HERE;
use crate::common::{check, gib, order, settled};
use framewright::units::PfnRange;
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::MigrateType;
use framewright::{Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A small generator, so that threads need no crate and a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn no_block_is_owned_twice() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).cpus(5).build());
    let free = manager.totals().free_pages;
    let owned: Vec<AtomicBool> = (0..6 * 512).map(|_| AtomicBool::new(false)).collect();
    let mark = |range: PfnRange, was: bool| {
        for block in BlockNumber::containing(range.start).0..BlockNumber::containing(range.end).0 {
            assert_eq!(owned[block as usize].swap(!was, Ordering::Relaxed), was, "block {block}");
        }
    };
    thread::scope(|scope| {
        for seed in 1..=4_u64 {
            let (manager, mark) = (&manager, &mark);
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let mut held: Vec<PfnRange> = Vec::new();
                for _ in 0..if crate::common::is_careful() { 400 } else { 4000 } {
                    if random.below(2) == 0 || held.is_empty() {
                        let of = order(9 + u8::try_from(random.below(10)).expect("small"));
                        let migrate_type =
                            MigrateType::ALL[usize::try_from(random.below(3)).expect("small")];
                        let request =
                            Request { migrate_type, reserves: Reserves::All, ..Request::new(of) };
                        if let Ok(taken) = manager.allocate(&request) {
                            mark(taken, false);
                            held.push(taken);
                        }
                    } else {
                        let index =
                            usize::try_from(random.below(held.len() as u64)).expect("small");
                        let range = held.swap_remove(index);
                        let blocks = range.pages() / 512;
                        // Often only a part is freed, and the rest is held as two pieces.
                        let first = random.below(blocks);
                        let count = 1 + random.below(blocks - first);
                        let piece = crate::common::part(range, first, count);
                        mark(piece, true);
                        manager.give_back(piece).expect("held");
                        let rest = [
                            PfnRange { start: range.start, end: piece.start },
                            PfnRange { start: piece.end, end: range.end },
                        ];
                        held.extend(rest.into_iter().filter(|rest| !rest.is_empty()));
                    }
                }
                for range in held {
                    mark(range, true);
                    manager.give_back(range).expect("held");
                }
            });
        }
    });
    check(&manager);
    assert_eq!(settled(&manager).free_pages, free);
}
