//! Random use of machines that have to accept their memory and cannot accept some of it: every page
//! that is handed out is written to, which faults if it is not accepted, and all books are checked
//! against what the device and the callers know.

use crate::common::{Fake, bring_up_with, check, order, parameters};
use framewright::firmware::MemoryKind;
use framewright::units::{BLOCK_ORDER, Order, Pfn, PfnRange, PhysRange, PoolSize};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{MigrateType, State, ZoneKind};
use framewright::{AcceptMemory, Request};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};

const BLOCK: u64 = 512;

struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A machine with some runs of memory that have odd ends; two in three runs are unaccepted.
fn machine(chance: &mut Chance) -> &'static FakeMachine {
    let mut builder = FakeMachine::builder().ram(PhysRange::new(0, 24 << 20)).accepts();
    let mut start = (24 << 20) + chance.below(3) * 4096;
    for _ in 0..2 + chance.below(6) {
        if chance.below(8) == 0 {
            start = start.next_multiple_of(4 << 30);
        }
        let pages = match chance.below(3) {
            0 => chance.below(4 * BLOCK) + 1,
            1 => chance.below(200) * BLOCK + BLOCK,
            _ => chance.below(60_000) + 1,
        };
        let range = PhysRange::new(start, start + pages * 4096);
        builder = match chance.below(3) {
            0 => builder.ram(range),
            _ => builder.memory(range, MemoryKind::Unaccepted),
        };
        let gaps = [0, 0, 0, 1, 77, 512, 40_000];
        start = range.end + gaps[usize::try_from(chance.below(7)).expect("small")] * 4096;
    }
    builder.build()
}

struct Run {
    manager: Fake,
    held: Vec<PfnRange>,
    touched: u64,
}

impl Run {
    /// Writes to the first and last page of a range that was handed out, and reads what lies right
    /// behind it.
    fn touch(&mut self, range: PfnRange) {
        let machine = self.manager.platform();
        let (first, last) = (range.start.address(), range.end.address() - 4096);
        for address in [first, last, last + 4088] {
            // SAFETY: the test holds the range.
            unsafe { machine.store(address, self.touched) };
        }
        let device = machine.accept();
        for pfn in [range.start, Pfn(range.end.0 - 1)] {
            assert!(device.is_accepted(pfn), "{range:?}");
        }
        if device.reads_past_pages() && machine.is_usable(range.end.address()) {
            // Memory behind the range that was reserved was accepted by whoever reserved it.
            let state = self.manager.block_state(BlockNumber::containing(range.end));
            let is_nobodys = state.is_none_or(|state| state.is(State::Reserved));
            if !is_nobodys && device.is_accepted(range.end) {
                let _ = machine.load(range.end.address());
            } else {
                assert!(is_nobodys, "{range:?} is followed by what is not accepted");
            }
        }
        self.touched += 1;
    }

    fn take(&mut self, range: PfnRange) {
        for other in &self.held {
            assert!(range.intersection(*other).is_empty(), "{range:?} and {other:?}");
        }
        self.touch(range);
        self.held.push(range);
    }

    fn step(&mut self, chance: &mut Chance) {
        let spans = self.manager.zones().iter().map(|zone| zone.span());
        let end = spans.map(|span| span.end.0).max().expect("there is memory");
        match chance.below(16) {
            0..=6 => {
                let of = match chance.below(4) {
                    0 => 0,
                    1 => chance.below(10),
                    _ => chance.below(13),
                };
                let types = [MigrateType::Movable, MigrateType::Unmovable];
                let request = Request {
                    migrate_type: types[usize::try_from(chance.below(2)).expect("small")],
                    zone: if chance.below(4) == 0 { ZoneKind::Dma32 } else { ZoneKind::Normal },
                    max_address: if chance.below(4) == 0 {
                        chance.below(end) << 12
                    } else {
                        u64::MAX
                    },
                    ..Request::new(order(u8::try_from(of).expect("small")))
                };
                let max = request.max_address;
                let found = if chance.below(5) == 0 {
                    self.manager.platform().interrupt(|| self.manager.allocate(&request))
                } else {
                    self.manager.allocate(&request)
                };
                if let Ok(range) = found {
                    assert!(range.end.address() <= max);
                    self.take(range);
                }
            }
            7..=10 => {
                if !self.held.is_empty() {
                    let index = chance.below(self.held.len() as u64);
                    let range = self.held.swap_remove(usize::try_from(index).expect("small"));
                    self.touch(range);
                    self.manager.give_back(range).expect("held");
                }
            }
            11 => {
                let start = Pfn(chance.below(end) / BLOCK * BLOCK);
                let of = order(u8::try_from(chance.below(10)).expect("small"));
                if let Ok(range) = self.manager.allocate_at(start, of, MigrateType::Movable) {
                    self.take(range);
                }
            }
            12 => {
                let start = BlockNumber(u32::try_from(chance.below(end) / BLOCK).expect("small"));
                let blocks = u32::try_from(chance.below(9)).expect("small") + 1;
                let range = BlockRange { start, end: BlockNumber(start.0 + blocks) };
                if self.manager.isolation().isolate(range).is_ok() {
                    if let Ok(claimed) = self.manager.isolation().claim(range) {
                        self.take(claimed);
                    } else {
                        self.manager.isolation().unisolate(range).expect("isolated");
                    }
                }
            }
            13 => {
                let pool = self.manager.pool(PoolSize::TwoMib);
                let resized = pool.resize(chance.below(8), &NoHelpers);
                assert!(resized.is_ok());
            }
            14 => {
                let mut acceptor = self.manager.acceptance().acceptor();
                acceptor.poll(0);
            }
            _ => {
                let pfn = Pfn(chance.below(end));
                self.manager.platform().accept().fail_at(pfn);
            }
        }
    }
}

#[test]
fn random_use_touches_nothing_that_is_not_accepted() {
    let lines =
        ["", "accept_memory=background pages=inside", "memmap_init=deferred", "zone_parts=2"];
    for seed in 1..=60_u64 {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let line = lines[usize::try_from(seed % 4).expect("small")];
        let machine = machine(&mut chance);
        machine.accept().set_reads_past_pages(seed % 3 != 0);
        if line.starts_with("memmap") {
            FakeVmemmap::install(machine);
        }
        let manager = match bring_up_with(machine, &[], &parameters(line)) {
            Ok(manager) => manager,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        let mut run = Run { manager, held: Vec::new(), touched: 1 };
        for step in 0..400 {
            run.step(&mut chance);
            if step % 50 == 0 {
                check(&run.manager);
            }
        }
        check(&run.manager);
        let device = machine.accept();
        let acceptance = run.manager.acceptance();
        assert_eq!(acceptance.events().accepted_pages, device.accepted_pages());
        if seed % 2 == 0 {
            run.manager.vmemmap().initialise_deferred(&NoHelpers);
            run.manager.acceptance().accept_all(&NoHelpers);
            assert_eq!(run.manager.acceptance().unaccepted_pages(), 0);
            check(&run.manager);
        }
        let held = core::mem::take(&mut run.held);
        held.into_iter().for_each(|range| run.manager.give_back(range).expect("held"));
        run.manager.pool(PoolSize::TwoMib).resize(0, &NoHelpers).expect("an empty pool");
        // All memory that can be allocated can be touched.
        for of in (0..=BLOCK_ORDER + 4).rev() {
            while let Ok(range) = run.manager.allocate(&Request {
                reserves: framewright::Reserves::All,
                ..Request::new(Order::new(of).expect("an order"))
            }) {
                run.touch(range);
            }
        }
        check(&run.manager);
        let totals = run.manager.totals();
        assert_eq!(totals.unaccepted_pages, 0, "seed {seed}: {totals:?}");
        assert!(totals.free_pages < 32, "seed {seed}: {totals:?}");
    }
}
