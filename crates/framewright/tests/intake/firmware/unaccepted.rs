//! EFI's table of unaccepted memory: units, bad tables, and accepting memory by the table.

use framewright::firmware::MemoryKind::{Conventional, Reserved, Unaccepted};
use framewright::firmware::{
    EfiAccept, MapBuilder, MapRange, UNACCEPTED_TABLE_GUID, UnacceptedTable, UnacceptedTableError,
};
use framewright::units::{PfnRange, PhysRange};
use framewright::{AcceptError, AcceptMemory};
use framewright_testkit::FakeMachine;
use std::sync::{Barrier, Mutex};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const UNIT: u64 = 2 * MIB;

/// A table with units of 2 MiB from `base` on.
fn table_at(base: u64, bits: &[u8]) -> Vec<u8> {
    let mut table = Vec::new();
    table.extend(1_u32.to_le_bytes());
    table.extend(u32::try_from(UNIT).expect("small").to_le_bytes());
    table.extend(base.to_le_bytes());
    table.extend((bits.len() as u64).to_le_bytes());
    table.extend(bits);
    table
}

fn set(bytes: &mut [u8], at: usize, value: u64, size: usize) {
    bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

#[test]
fn the_guid_is_the_one_that_is_written() {
    let [a, b, c, d, e, f, g, h, rest @ ..] = UNACCEPTED_TABLE_GUID;
    assert_eq!(u32::from_le_bytes([a, b, c, d]), 0xd5d1_de3c);
    assert_eq!((u16::from_le_bytes([e, f]), u16::from_le_bytes([g, h])), (0x105c, 0x44f9));
    assert_eq!(rest, [0x9e, 0xa9, 0xbc, 0xef, 0x98, 0x12, 0x00, 0x31]);
}

#[test]
fn ranges_touch_units() {
    let mut bytes = table_at(0, &[0xff, 0x03]);
    let table = UnacceptedTable::new(&mut bytes).expect("a table");
    assert_eq!((table.unit_bytes(), table.units()), (UNIT, 16));
    let units = |start, end| table.units_of(PhysRange::new(start, end), true);
    assert_eq!(units(0, 2 * MIB), 0..2, "and one that may be read behind it");
    assert_eq!(units(4 * KIB, 8 * KIB), 0..1);
    assert_eq!(units(2 * MIB, 4 * MIB - 4 * KIB), 1..2);
    assert_eq!(units(30 * MIB, 32 * MIB), 15..16, "the last one has none behind it");
    assert_eq!(units(40 * MIB, 50 * MIB), 16..16);
    assert_eq!(units(3 * MIB, 3 * MIB), 0..0);
    assert_eq!(table.units_of(PhysRange::new(0, 2 * MIB), false), 0..1);
    let mut bytes = table_at(64 * MIB, &[0xff]);
    let table = UnacceptedTable::new(&mut bytes).expect("a table");
    assert!(table.units_of(PhysRange::new(0, 63 * MIB), true).is_empty(), "below all of it");
    let right_below = |guards| table.units_of(PhysRange::new(0, 64 * MIB), guards);
    assert_eq!(right_below(true), 0..1, "a read past what is right below it touches the first");
    assert!(right_below(false).is_empty(), "right below it");
    assert_eq!(table.units_of(PhysRange::new(0, 65 * MIB), true), 0..1);
    assert_eq!(table.address(3), 70 * MIB);
}

#[test]
fn runs_are_found_and_cleared() {
    let bits = [0b1110_0110, 0xff, 0x00, 0b1000_0001];
    let mut bytes = table_at(0, &bits);
    let mut table = UnacceptedTable::new(&mut bytes).expect("a table");
    let mut runs = Vec::new();
    let mut from = 0;
    while let Some(run) = table.first_run(from..u64::MAX) {
        from = run.end;
        runs.push(run);
    }
    assert_eq!(runs, [1..3, 5..16, 24..25, 31..32]);
    assert_eq!(table.first_run(6..9), Some(6..9));
    assert_eq!(table.first_run(16..24), None);
    table.clear(2..12);
    assert_eq!(table.first_run(0..32), Some(1..2));
    assert_eq!(table.first_run(2..32), Some(12..16));
    table.clear(31..1000);
    assert!(table.is_unaccepted(24) && !table.is_unaccepted(31) && !table.is_unaccepted(1 << 40));
    assert_eq!(bytes[24..], [0b0000_0010, 0xf0, 0, 1], "in the table itself");
}

#[test]
fn bad_tables_are_refused() {
    use UnacceptedTableError::{Base, BeyondAddressSpace, Short, Unit, Version};
    let good = table_at(4 * MIB, &[0xff; 16]);
    let refused = |bytes: &[u8]| UnacceptedTable::new(&mut bytes.to_vec()).map(|_| ()).unwrap_err();
    for length in 0..good.len() {
        let needed_bytes = if length < 24 { 24 } else { 40 };
        assert_eq!(refused(&good[..length]), Short { bytes: length as u64, needed_bytes });
    }
    let changed = |at, value, size| {
        let mut bytes = good.clone();
        set(&mut bytes, at, value, size);
        refused(&bytes)
    };
    assert_eq!(changed(0, 2, 4), Version(2));
    assert_eq!(changed(4, 0, 4), Unit(0));
    assert_eq!(changed(4, 2048, 4), Unit(2048));
    assert_eq!(changed(4, 3 << 20, 4), Unit(3 << 20));
    assert_eq!(changed(8, 4 * MIB + 4096, 8), Base(4 * MIB + 4096));
    let bitmap_bytes = 16;
    let base = u64::MAX - UNIT + 1;
    assert_eq!(changed(8, base, 8), BeyondAddressSpace { base, bitmap_bytes });
    for bitmap_bytes in [u64::MAX, u64::MAX / 8 + 1, 1 << 60] {
        let base = 4 * MIB;
        assert_eq!(changed(16, bitmap_bytes, 8), BeyondAddressSpace { base, bitmap_bytes });
    }
    assert_eq!(changed(16, 17, 8), Short { bytes: 40, needed_bytes: 41 });
    // A table longer than it says is no error.
    let mut longer = good.clone();
    longer.push(0xff);
    assert_eq!(UnacceptedTable::new(&mut longer).expect("a table").units(), 128);
    assert!(!Version(2).to_string().is_empty());
}

#[test]
fn only_what_is_usable_becomes_unaccepted() {
    let mut bytes = table_at(2 * MIB, &[0b0001_1110, 0x80]);
    let table = UnacceptedTable::new(&mut bytes).expect("a table");
    let mut room = [MapRange::EMPTY; 32];
    let mut map = MapBuilder::new(&mut room);
    map.add(MIB, 5 * MIB, Conventional).expect("a range");
    map.add(7 * MIB, MIB, Reserved).expect("a range");
    map.add(8 * MIB, 8 * MIB, Conventional).expect("a range");
    table.mark(&mut map).expect("there is room");
    let found: Vec<_> =
        map.ranges().iter().map(|entry| (entry.range.start, entry.range.end, entry.kind)).collect();
    assert_eq!(
        found,
        [
            (MIB, 4 * MIB, Conventional),
            (4 * MIB, 6 * MIB, Unaccepted),
            (7 * MIB, 8 * MIB, Reserved),
            (8 * MIB, 12 * MIB, Unaccepted),
            (12 * MIB, 16 * MIB, Conventional),
        ]
    );
    // If there is no room for the pieces, nothing of a run is marked.
    let mut room = [MapRange::EMPTY; 2];
    let mut map = MapBuilder::new(&mut room);
    map.add(0, 64 * MIB, Conventional).expect("a range");
    assert!(table.mark(&mut map).is_err());
    assert_eq!(map.ranges().len(), 1);
}

/// A device that records what it is asked to accept, and fails at one frame.
#[derive(Default)]
struct Device {
    /// The machine whose interrupts must be off meanwhile.
    handled_on: Option<&'static FakeMachine>,
    asked: Mutex<Vec<PfnRange>>,
    failing: Option<u64>,
    slow: Option<Barrier>,
    forgets: bool,
}

// SAFETY: the memory is accepted from the start.
unsafe impl AcceptMemory for Device {
    fn accept(&self, range: PfnRange) -> Result<(), AcceptError> {
        self.asked.lock().expect("no panic").push(range);
        if let Some(machine) = self.handled_on {
            assert!(!machine.takes_interrupts(), "a handler may want a block of this unit");
        }
        if let Some(barrier) = &self.slow {
            barrier.wait();
        }
        match self.failing {
            Some(pfn) if range.start.0 <= pfn && pfn < range.end.0 => {
                Err(AcceptError { accepted_pages: pfn - range.start.0 })
            }
            _ => Ok(()),
        }
    }

    fn forgets(&self) -> bool {
        self.forgets
    }
}

fn efi(bits: &[u8], device: Device) -> EfiAccept<FakeMachine, Device> {
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 64 * MIB)).cpus(3).build();
    let table = UnacceptedTable::new(table_at(0, bits).leak()).expect("a table");
    EfiAccept::new(machine, table, device)
}

fn units(start: u64, end: u64) -> PfnRange {
    PfnRange::new(start * 512, end * 512)
}

#[test]
fn what_was_accepted_is_not_asked_for_again() {
    let efi = efi(&[0b1111_0111, 0xff], Device::default());
    efi.accept(units(0, 4)).expect("accepted");
    efi.accept(units(0, 4)).expect("accepted before");
    efi.accept(PfnRange::new(5 * 512 + 1, 5 * 512 + 2)).expect("a whole unit");
    efi.accept(units(2, 8)).expect("accepted");
    let asked = efi.device().asked.lock().expect("no panic").clone();
    assert_eq!(asked, [units(0, 3), units(5, 6), units(4, 5), units(6, 8)]);
    assert_eq!(efi.with_table(|table| table.first_run(0..64)), Some(8..16));
}

#[test]
fn what_is_outside_of_the_table_is_the_devices() {
    // 16 units, the last of which ends the table.
    let efi = efi(&[0, 0x80], Device { failing: Some(19 * 512 + 7), ..Device::default() });
    efi.accept(units(12, 17)).expect("a part of it");
    efi.accept(units(100, 108)).expect("added later");
    let error = efi.accept(units(10, 22)).expect_err("it fails");
    assert_eq!(error.accepted_pages, 9 * 512 + 7);
    let asked = efi.device().asked.lock().expect("no panic").clone();
    assert_eq!(asked, [units(15, 16), units(16, 17), units(100, 108), units(16, 22)]);
}

#[test]
fn what_a_host_had_that_forgets_is_asked_for_again() {
    let efi =
        efi(&[0xff], Device { forgets: true, failing: Some(6 * 512 + 1), ..Device::default() });
    assert!(efi.forgets());
    for _ in 0..2 {
        efi.accept(units(1, 4)).expect("accepted");
        assert_eq!(efi.with_table(|table| table.first_run(1..5)), Some(4..5));
    }
    let error = efi.accept(units(4, 8)).expect_err("it fails");
    assert_eq!(error.accepted_pages, 2 * 512 + 1);
    assert_eq!(efi.with_table(|table| table.first_run(1..8)), Some(6..8));
    let asked = efi.device().asked.lock().expect("no panic").clone();
    assert_eq!(asked, [units(1, 4), units(1, 4), units(4, 8)]);
}

#[test]
fn two_cpus_ask_for_each_unit_once() {
    // Both CPUs are in the device at the same time.
    let device = Device { slow: Some(Barrier::new(2)), ..Device::default() };
    let efi = efi(&[0x3f], device);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| efi.accept(units(0, 4)).is_ok());
        while efi.device().asked.lock().expect("no panic").is_empty() {
            std::thread::yield_now();
        }
        // It begins behind the range that the other CPU is accepting, and comes back once that is
        // done.
        assert!(efi.accept(units(2, 6)).is_ok());
        assert_eq!(efi.with_table(|table| table.first_run(2..6)), None);
        assert!(one.join().expect("no panic"));
    });
    let mut asked = efi.device().asked.lock().expect("no panic").clone();
    asked.sort_by_key(|range| range.start);
    assert_eq!(asked, [units(0, 4), units(4, 6)]);
    assert_eq!(efi.with_table(|table| table.first_run(0..64)), None);
}

#[test]
fn a_unit_that_fails_keeps_its_bit() {
    let efi = efi(&[0xff], Device { failing: Some(3 * 512 + 9), ..Device::default() });
    let error = efi.accept(units(1, 6)).expect_err("it fails");
    assert_eq!(error.accepted_pages, 2 * 512 + 9);
    assert_eq!(efi.with_table(|table| table.first_run(1..8)), Some(3..8));
    efi.accept(units(4, 6)).expect("others can be accepted");
    assert!(efi.accept(units(3, 4)).is_err());
}

/// Accepts the part at the start of the machine when it is told to, up to a failing unit if there
/// is one, but not the sixth unit.
struct Slow {
    entered: Barrier,
    go: Barrier,
    failing: Option<u64>,
}

// SAFETY: the memory is accepted from the start.
unsafe impl AcceptMemory for Slow {
    fn accept(&self, range: PfnRange) -> Result<(), AcceptError> {
        if range.start.0 == 0 {
            self.entered.wait();
            self.go.wait();
            return self
                .failing
                .map_or(Ok(()), |accepted_pages| Err(AcceptError { accepted_pages }));
        }
        let at = 5 * 512;
        if range.start.0 <= at && at < range.end.0 {
            return Err(AcceptError { accepted_pages: at - range.start.0 });
        }
        Ok(())
    }
}

#[test]
fn what_another_cpu_is_at_counts_as_accepted_once_it_is() {
    for (failing, accepted_units) in [(None, 3), (Some(3 * 512 + 7), 1), (Some(2 * 512), 0)] {
        let machine = FakeMachine::builder().ram(PhysRange::new(0, 64 * MIB)).cpus(3).build();
        let table = UnacceptedTable::new(table_at(0, &[0x3f]).leak()).expect("a table");
        let device = Slow { entered: Barrier::new(2), go: Barrier::new(2), failing };
        let efi = EfiAccept::new(machine, table, device);
        std::thread::scope(|scope| {
            let one = scope.spawn(|| efi.accept(units(0, 4)).is_ok());
            efi.device().entered.wait();
            let two = scope.spawn(|| efi.accept(units(2, 6)));
            // It fails at the last unit, and does not know yet what became of the first two.
            while efi.with_table(|table| table.first_run(4..6)) != Some(5..6) && !two.is_finished()
            {
                std::thread::yield_now();
            }
            let is_early = two.is_finished();
            efi.device().go.wait();
            assert!(!is_early, "others are at the first units of it");
            assert_eq!(one.join().expect("no panic"), failing.is_none());
            let error = two.join().expect("no panic").expect_err("the last unit fails");
            assert_eq!(error.accepted_pages, accepted_units * 512);
        });
    }
}

/// Units of 8 MiB, four blocks each.
fn large(bits: &[u8], device: Device) -> EfiAccept<FakeMachine, Device> {
    let mut bytes = table_at(0, bits);
    set(&mut bytes, 4, 4 * UNIT, 4);
    let table = UnacceptedTable::new(bytes.leak()).expect("a table");
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 64 * MIB)).cpus(3).build();
    EfiAccept::new(machine, table, Device { handled_on: Some(machine), ..device })
}

#[test]
fn a_large_unit_is_accepted_once_and_where_no_handler_waits_for_it() {
    let efi = large(&[0b0111], Device::default());
    efi.accept(units(1, 2)).expect("accepted");
    efi.accept(units(0, 1)).expect("accepted with it");
    efi.accept(units(3, 9)).expect("the next two");
    efi.accept(units(12, 16)).expect("never unaccepted");
    let asked = efi.device().asked.lock().expect("no panic").clone();
    assert_eq!(asked, [units(0, 4), units(4, 8), units(8, 12)]);
    assert_eq!(efi.with_table(|table| table.first_run(0..8)), None);
}

#[test]
fn what_is_accepted_of_a_large_unit_is_not_asked_for_again() {
    let pfn = 6 * 512 + 9;
    let efi = large(&[0xff], Device { failing: Some(pfn), ..Device::default() });
    let failed = efi.accept(units(6, 7)).expect_err("it fails");
    assert_eq!(failed.accepted_pages, 9);
    assert_eq!(efi.with_table(|table| table.first_run(0..8)), Some(0..8), "no unit is whole");
    efi.accept(units(5, 6)).expect("accepted before it failed");
    let failed = efi.accept(units(2, 8)).expect_err("it fails again");
    assert_eq!(failed.accepted_pages, 4 * 512 + 9);
    assert_eq!(efi.accept(units(7, 8)).expect_err("behind it").accepted_pages, 0);
    let asked = efi.device().asked.lock().expect("no panic").clone();
    let rest = PfnRange::new(pfn, 8 * 512);
    assert_eq!(asked, [units(4, 8), rest, units(0, 4), rest, rest]);
}

/// A range that failed in part has to be remembered; if there is no place for it, nothing is begun.
#[test]
fn no_more_large_units_fail_in_part_than_can_be_remembered() {
    struct Fails(Mutex<u64>);
    // SAFETY: nobody uses the memory.
    unsafe impl AcceptMemory for Fails {
        fn accept(&self, range: PfnRange) -> Result<(), AcceptError> {
            *self.0.lock().expect("no panic") += 1;
            assert!(range.pages().is_multiple_of(512), "all or nothing of a block");
            Err(AcceptError { accepted_pages: 512 })
        }
    }
    let mut bytes = table_at(0, &[0xff; 4]);
    set(&mut bytes, 4, 4 * UNIT, 4);
    let table = UnacceptedTable::new(bytes.leak()).expect("a table");
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 64 * MIB)).build();
    let efi = EfiAccept::new(machine, table, Fails(Mutex::new(0)));
    for unit in 0..32 {
        let accepted = efi.accept(units(4 * unit, 4 * unit + 4)).expect_err("it fails");
        assert_eq!(accepted.accepted_pages, if unit < 16 { 512 } else { 0 });
    }
    assert_eq!(*efi.device().0.lock().expect("no panic"), 16);
    assert_eq!(efi.with_table(|table| table.first_run(0..32)), Some(0..32));
}

/// Another system may have accepted a block of which only half is in the table.
#[test]
fn a_block_across_the_edge_of_the_table_is_asked_for_again_whole() {
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 64 * MIB)).cpus(3).build();
    // Eight units of 1 MiB from 1 MiB on: the table covers half of the blocks at 0 and at 8 MiB.
    let mut bytes = table_at(MIB, &[0xff]);
    set(&mut bytes, 4, MIB, 4);
    let table = UnacceptedTable::new(bytes.leak()).expect("a table");
    let device = Device { forgets: true, ..Device::default() };
    let efi = EfiAccept::new(machine, table, device);
    for block in [0, 4] {
        for time in 1..=2 {
            efi.accept(units(block, block + 1)).expect("accepted");
            let asked = std::mem::take(&mut *efi.device().asked.lock().expect("no panic"));
            let pages: u64 = asked.iter().map(|range| range.pages()).sum();
            assert_eq!(pages, 512, "block {block}, time {time}: {asked:?}");
        }
    }
}
