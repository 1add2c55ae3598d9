//! Devices and registers in a configuration space that the tests write.

extern crate std;

use super::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const BRIDGE: u32 = 0x0001_0000;

/// By bus, device, function and register.
type Words = BTreeMap<(u8, u8, u8, u8), u32>;

#[derive(Clone, Default)]
struct Buses {
    words: Rc<RefCell<Words>>,
    /// The writable bits of each word; all bits, if there is no entry.
    masks: Rc<RefCell<Words>>,
}

impl Buses {
    fn set(&self, place: (u8, u8, u8), register: u8, value: u32) {
        self.words.borrow_mut().insert((place.0, place.1, place.2, register), value);
    }

    fn device(&self, place: (u8, u8, u8), vendor: u16, device: u16) {
        self.set(place, 0, u32::from(device) << 16 | u32::from(vendor));
    }

    fn bridge(&self, place: (u8, u8, u8), behind: u8) {
        self.device(place, 0x1b36, 0x000c);
        self.set(place, 0x0c, BRIDGE);
        self.set(place, BUS_NUMBERS, u32::from(behind) << 8);
    }
}

impl ConfigurationAccess for Buses {
    fn read_word(&self, place: DeviceFunction, register: u8) -> u32 {
        let words = self.words.borrow();
        let absent = if register == 0 { u32::MAX } else { 0 };
        *words.get(&(place.bus, place.device, place.function, register)).unwrap_or(&absent)
    }

    fn write_word(&mut self, place: DeviceFunction, register: u8, value: u32) {
        let name = (place.bus, place.device, place.function, register);
        let mask = self.masks.borrow().get(&name).copied().unwrap_or(u32::MAX);
        let kept = self.read_word(place, register) & !mask;
        self.words.borrow_mut().insert(name, kept | value & mask);
    }

    unsafe fn unsafe_clone(&self) -> Self {
        self.clone()
    }
}

#[test]
fn devices_are_found_on_every_bus_that_a_bridge_leads_to() {
    let buses = Buses::default();
    assert_eq!(find(&buses, DeviceType::MemoryBalloon), None);
    // Another virtio device, another vendor's device with the same device number, a bridge that
    // leads to the bus of the device, and a bridge that leads nowhere.
    buses.device((0, 1, 0), 0x1af4, 0x1044);
    buses.device((0, 2, 0), 0x8086, 0x1045);
    buses.bridge((0, 3, 0), 0);
    buses.bridge((0, 4, 0), 255);
    assert_eq!(find(&buses, DeviceType::MemoryBalloon), None);
    buses.bridge((0, 5, 0), 3);
    buses.bridge((3, 0, 0), 2);
    buses.bridge((2, 31, 0), 3);
    assert_eq!(find(&buses, DeviceType::MemoryBalloon), None);
    for device in [0x1045, 0x1002] {
        buses.device((2, 7, 0), 0x1af4, device);
        assert_eq!(
            find(&buses, DeviceType::MemoryBalloon),
            Some(DeviceFunction { bus: 2, device: 7, function: 0 })
        );
    }
}

const DEVICE: (u8, u8, u8) = (0, 3, 0);
const PLACE: DeviceFunction = DeviceFunction { bus: 0, device: 3, function: 0 };

impl Buses {
    /// A device with 64-bit registers in memory, given as number, address and size in bytes (a
    /// power of two).
    fn with_bars(bars: &[(u8, u64, u64)]) -> Self {
        let buses = Self::default();
        buses.device(DEVICE, 0x1af4, 0x1045);
        for number in 0..6 {
            // Without registers no bit is writable.
            buses.masks.borrow_mut().insert((0, 3, 0, 0x10 + 4 * number), 0);
        }
        for &(number, address, bytes) in bars {
            let halves = |value: u64| [(value & 0xffff_fff0) as u32, (value >> 32) as u32];
            for (half, (value, mask)) in
                (0..).zip(halves(address).into_iter().zip(halves(!(bytes - 1))))
            {
                let register = 0x10 + 4 * (number + half);
                buses.set(DEVICE, register, if half == 0 { value | 0b1100 } else { value });
                buses.masks.borrow_mut().insert((0, 3, 0, register), mask);
            }
        }
        buses
    }
}

#[test]
fn registers_over_memory_are_refused_and_the_device_is_left_alone() {
    // Memory below 2 GiB and from 4 GiB to 6 GiB.
    let mut is_memory =
        |first: u64, last: u64| first < 2 << 30 || first < 6 << 30 && last >= 4 << 30;
    let at = |number, address, bytes| Registers { number, address, bytes };
    for (bars, expected) in [
        (
            &[(4, 0xfe00_0000, 0x4000)][..],
            Ok([None, None, None, None, Some(at(4, 0xfe00_0000, 0x4000)), None]),
        ),
        (
            &[(0, 6 << 30, 1 << 20), (4, 0xfe00_0000, 0x4000)],
            Ok([
                Some(at(0, 6 << 30, 1 << 20)),
                None,
                None,
                None,
                Some(at(4, 0xfe00_0000, 0x4000)),
                None,
            ]),
        ),
        // Firmware has assigned no address.
        (&[(4, 0, 0x4000)], Ok([None; 6])),
        (&[(4, 0x20_0000, 0x4000)], Err(RegistersError::OverMemory(at(4, 0x20_0000, 0x4000)))),
        (&[(4, 4 << 30, 0x4000)], Err(RegistersError::OverMemory(at(4, 4 << 30, 0x4000)))),
        // One range begins in memory and ends after it; another is smaller than a page and
        // shares its page with memory.
        (
            &[(0, 0, 16), (2, 4 << 30, 4 << 30)],
            Err(RegistersError::OverMemory(at(2, 4 << 30, 4 << 30))),
        ),
        (&[(2, (6 << 30) - 64, 16)], Err(RegistersError::OverMemory(at(2, (6 << 30) - 64, 16)))),
        (
            &[(0, 0xfe00_0000, 0x4000), (4, 0xfe00_2000, 0x1000)],
            Err(RegistersError::Overlap(at(0, 0xfe00_0000, 0x4000), at(4, 0xfe00_2000, 0x1000))),
        ),
        (
            &[(0, 0xffff_ffff_ffff_f000, 0x1000)],
            Err(RegistersError::Wrap { number: 0, address: 0xffff_ffff_ffff_f000, bytes: 0x1000 }),
        ),
    ] {
        let mut buses = Buses::with_bars(bars);
        let before = buses.words.borrow().clone();
        let found = registers(&mut buses, PLACE, &mut is_memory);
        assert_eq!(found, expected, "{bars:x?}");
        let mut after = buses.words.borrow().clone();
        after.retain(|name, _| before.contains_key(name));
        assert_eq!(after, before, "{bars:x?}: the device has changed");
    }
    let text = RegistersError::OverMemory(at(4, 0x20_0000, 0x4000));
    assert_eq!(
        std::format!("{text}"),
        "BAR 4 at 0x200000..=0x203fff lies over memory; the device is left alone"
    );
}

#[test]
fn registers_that_are_refused_stay_as_they_are() {
    let mut buses = Buses::with_bars(&[(0, 0xfd00_0000, 0x1000)]);
    // The last register says that it is the first half of two.
    buses.masks.borrow_mut().insert((0, 3, 0, 0x24), 0xffff_c000);
    buses.set(DEVICE, 0x24, 0xfe00_0004);
    buses.set(DEVICE, COMMAND, 0b110);
    let before = buses.words.borrow().clone();
    assert_eq!(
        registers(&mut buses, PLACE, &mut |_, _| false),
        Err(RegistersError::Pci(PciError::InvalidBarType))
    );
    let after = buses.words.borrow();
    assert!(before.iter().all(|(name, word)| after[name] == *word), "{before:x?} {after:x?}");
}

#[test]
fn a_list_of_capabilities_that_leads_back_into_itself_is_refused() {
    let places = |list: &[u8]| -> Buses {
        let buses = Buses::with_bars(&[(4, 0xfe00_0000, 0x4000)]);
        buses.set(DEVICE, COMMAND, HAS_CAPABILITIES);
        buses.set(DEVICE, CAPABILITIES, list[0].into());
        for pair in list.windows(2) {
            buses.set(DEVICE, pair[0], u32::from(pair[1]) << 8 | 9);
        }
        buses
    };
    let longest: std::vec::Vec<u8> = (64..=252).step_by(4).chain([0]).collect();
    for list in [&[64, 0][..], &[64, 84, 98], &[252, 64, 3], &longest] {
        assert!(registers(&mut places(list), PLACE, &mut |_, _| false).is_ok(), "{list:?}");
    }
    for list in [
        &[64, 64][..],
        &[64, 84, 128, 84],
        &longest[..longest.len() - 1].iter().copied().chain([64]).collect::<std::vec::Vec<_>>(),
    ] {
        let found = registers(&mut places(list), PLACE, &mut |_, _| false);
        assert_eq!(found, Err(RegistersError::EndlessCapabilities), "{list:?}");
    }
}

/// Finds the registers of a device with two ranges and a list of capabilities, each given as
/// its offset, its kind and length, the number of its base address register, and the offset and
/// length of its range.
fn with_capabilities(capabilities: &[(u8, [u8; 2], u8, u32, u32)]) -> Result<(), RegistersError> {
    let mut buses = Buses::with_bars(&[(2, 0xfd00_0000, 0x1000), (4, 0xfe00_0000, 8 << 30)]);
    buses.set(DEVICE, COMMAND, HAS_CAPABILITIES);
    buses.set(DEVICE, CAPABILITIES, capabilities.first().map_or(0, |first| first.0.into()));
    for (index, &(at, [kind, bytes], number, offset, length)) in capabilities.iter().enumerate() {
        let next = capabilities.get(index + 1).map_or(0, |next| next.0);
        buses.set(DEVICE, at, u32::from_le_bytes([VENDOR_CAPABILITY, next, bytes, kind]));
        for (register, value) in [(4, number.into()), (8, offset), (12, length)] {
            if let Some(register) = at.checked_add(register) {
                buses.set(DEVICE, register, value);
            }
        }
    }
    registers(&mut buses, PLACE, &mut |_, _| false).map(|_| ())
}

#[test]
fn capabilities_that_name_what_is_no_register_are_refused() {
    let cut = |at, bytes| Err(RegistersError::CapabilityCut { at, bytes });
    for (capability, expected) in [
        ((64, [1, 16], 2, 0, 0x1000), Ok(())),
        ((64, [1, 16], 4, 0xffff_e000, 0x1fff), Ok(())),
        // The configuration space ends after the capability, or within it.
        ((240, [1, 16], 2, 0, 64), Ok(())),
        ((236, [2, 20], 2, 0, 64), Ok(())),
        ((240, [2, 20], 2, 0, 64), cut(240, 20)),
        ((244, [1, 16], 2, 0, 64), cut(244, 16)),
        ((252, [9, 16], 2, 0, 64), cut(252, 16)),
        // The transport does not use these: they are too short, or of another kind.
        ((252, [1, 15], 255, 0, 64), Ok(())),
        ((64, [2, 16], 255, 0, 64), Ok(())),
        ((64, [0, 16], 255, 0, 64), Ok(())),
        ((64, [5, 20], 255, 0, 0), Ok(())),
    ] {
        assert_eq!(with_capabilities(&[capability]), expected, "{capability:x?}");
    }
    for kind in 1..=4 {
        for (number, offset, length) in [
            // A sum that wraps in 32 bits, one that does not, and a range that ends too late.
            (4, 0xffff_f000, 0x1038),
            (4, 0xffff_f000, 0x1000),
            (2, 0, 0x1001),
            (2, 0x1001, 0),
            (2, u32::MAX, u32::MAX),
            // No registers, the upper half of other registers, and no base address register at
            // all.
            (0, 0, 64),
            (3, 0, 64),
            (6, 0, 64),
            (60, 0, 64),
            (255, 0, 64),
        ] {
            let at = 96;
            let found = with_capabilities(&[
                (64, [5, 20], 0, 0, 0),
                (at, [kind, 20], number, offset, length),
            ]);
            let outside = RegistersError::CapabilityOutside { at, number, offset, length };
            assert_eq!(found, Err(outside), "kind {kind}");
        }
        // The transport uses the first capability of a kind.
        let first = (64, [kind, 20], 2, 0, 64);
        assert_eq!(with_capabilities(&[first, (96, [kind, 20], 255, 0, 64)]), Ok(()));
    }
    let outside = RegistersError::CapabilityOutside { at: 96, number: 6, offset: 16, length: 64 };
    assert_eq!(
        std::format!("{outside}"),
        "its capability at 0x60 names 0x40 bytes at 0x10 of BAR 6, which has no such \
         registers; the device is left alone"
    );
    assert_eq!(
        std::format!("{}", RegistersError::CapabilityCut { at: 252, bytes: 16 }),
        "its capability at 0xfc of 16 bytes reaches beyond the configuration space; the \
         device is left alone"
    );
}

#[test]
fn a_device_is_enabled_and_its_status_is_not_touched() {
    let mut buses = Buses::default();
    buses.set((0, 3, 0), COMMAND, 0xffff_0101);
    enable(&mut buses, DeviceFunction { bus: 0, device: 3, function: 0 });
    assert_eq!(buses.read_word(DeviceFunction { bus: 0, device: 3, function: 0 }, COMMAND), 0x0507);
}
