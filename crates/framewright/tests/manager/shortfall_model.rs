//! Shortfall reasons against what can then be allocated, in random states: a request that should
//! succeed does, and one that should not fails for the reported reason.

use crate::common::{Fake, bring_up_with, gib, mib, order, parameters};
use framewright::manager::Shortfall;
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, PfnRange};
use framewright::zone::MigrateType;
use framewright::zone::ZoneKind;
use framewright::{AllocateError, Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};

const LEVELS: [Reserves; 4] = [Reserves::None, Reserves::Half, Reserves::Atomic, Reserves::All];

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % end
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::try_from(self.below(values.len() as u64)).expect("small")]
    }

    fn request(&mut self) -> Request {
        let node = NodeId::new(usize::try_from(self.below(2)).expect("small")).expect("a node");
        Request {
            node: self.of(&[NodeChoice::Any, NodeChoice::Preferred(node), NodeChoice::Exact(node)]),
            migrate_type: self.of(&[
                MigrateType::Movable,
                MigrateType::Unmovable,
                MigrateType::Reclaimable,
            ]),
            zone: self.of(&[ZoneKind::Dma, ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Normal]),
            max_address: self.of(&[
                u64::MAX,
                u64::MAX,
                1 << 32,
                0x13_4000,
                0x400_0000 - 0x5000,
                (4 << 30) + 0x63_7000,
            ]),
            zeroed: self.below(4) == 0,
            reserves: LEVELS[usize::try_from(self.below(4)).expect("small")],
            fail_fast: true,
            ..Request::new(order(self.of(&[0, 0, 1, 3, 6, 8, 9, 10, 13, 18])))
        }
    }
}

fn give_back(manager: &Fake, range: PfnRange) {
    manager.give_back(range).expect("was allocated");
    manager.drain().expect("nothing is wrong");
}

/// Whether the request would be served now.
fn is_to_be_had(manager: &Fake, request: &Request) -> bool {
    match manager.allocate(request) {
        Ok(range) => {
            give_back(manager, range);
            true
        }
        Err(AllocateError::OutOfMemory { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Checks what is reported for a request, and returns the index of the reason.
fn check(manager: &Fake, request: &Request) -> usize {
    let why = manager.shortfall(request).expect("is a request");
    let served = is_to_be_had(manager, request);
    assert_eq!(served, why == Shortfall::None, "{why:?}: {request:?}");
    let with_reserves = Request { reserves: Reserves::All, ..*request };
    let of = |of| Request { pages: 1_u64 << of, ..with_reserves };
    let had = is_to_be_had(manager, &with_reserves);
    match why {
        Shortfall::None => 0,
        Shortfall::NoZone { .. } | Shortfall::Address { .. } => {
            assert!(!is_to_be_had(manager, &of(0)), "{why:?}: {request:?}");
            1
        }
        Shortfall::Watermark { free_pages, kept_pages } => {
            assert!(had && request.reserves != Reserves::All, "{why:?}: {request:?}");
            assert!(
                free_pages >= request.pages && free_pages < kept_pages + request.pages * 4,
                "{why:?}: {request:?}"
            );
            2
        }
        Shortfall::Fragmented { free_pages, largest } => {
            assert!(!had && free_pages >= request.pages, "{why:?}: {request:?}");
            let largest = largest.map(|largest| largest.get());
            assert!(1_u64 << largest.unwrap_or(0) < request.pages.max(2), "{why:?}: {request:?}");
            assert!(
                largest.is_none_or(|largest| is_to_be_had(manager, &of(largest))),
                "{why:?}: {request:?}"
            );
            assert!(
                !is_to_be_had(manager, &of(largest.map_or(0, |largest| largest + 1))),
                "{why:?}: {request:?}"
            );
            3
        }
        Shortfall::Exhausted { free_pages } => {
            assert!(!had, "{why:?}: {request:?}");
            let mut all = Vec::new();
            while let Ok(page) = manager.allocate(&of(0)) {
                all.push(page);
            }
            assert_eq!(free_pages, all.len() as u64, "{why:?}: {request:?}");
            all.into_iter().for_each(|page| give_back(manager, page));
            4
        }
    }
}

fn states(seed: u64, words: &str) -> [u32; 5] {
    let mut random = Random(seed);
    let builder =
        FakeMachine::builder().ram(mib(0, 64)).ram(mib(4096, 4160)).cpus_on(0, 1).cpus_on(1, 1);
    let machine =
        builder.node(gib(0, 1), 0).node(gib(4, 5), 1).direct_limit((4 << 30) + 0x123_4000).build();
    let manager = bring_up_with(machine, &[], &parameters(words)).expect("comes up");
    let (mut held, mut seen): (Vec<PfnRange>, _) = (Vec::new(), [0; 5]);
    for _ in 0..12 {
        // Some free memory is allocated, and some held memory is freed.
        let wanted = Request { zeroed: false, ..random.request() };
        for _ in 0..random.below(12_000) {
            let Ok(range) = manager.allocate(&wanted) else { break };
            held.push(range);
        }
        let share = random.of(&[0, 0, 1, 20, 50]);
        for index in (0..held.len()).rev() {
            if random.below(100) < share {
                manager.give_back(held.swap_remove(index)).expect("was allocated");
            }
        }
        manager.drain().expect("nothing is wrong");
        for _ in 0..6 {
            seen[check(&manager, &random.request())] += 1;
        }
    }
    seen
}

#[test]
fn what_is_said_of_a_request_is_true() {
    let mut seen = [0; 5];
    for seed in 0..6 {
        for words in ["", "min_free_kbytes=20000"] {
            let some = states(seed, words);
            seen.iter_mut().zip(some).for_each(|(sum, some)| *sum += some);
        }
    }
    assert!(seen.iter().all(|&seen| seen > 5), "{seen:?}");
}
