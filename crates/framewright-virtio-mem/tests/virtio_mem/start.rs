//! The start: what devices offer and report, and what the driver refuses.

use crate::common::{
    BLOCK, Driver, GIB, MIB, Memory, PLUG, START, UNPLUG_ALL, WithMemory as _, nothing,
    nothing_is_left, requests, settle, start,
};
use framewright_testkit::virtio_mem::{FakeHal, FakeVirtioMem, Offer};
use framewright_virtio_mem::{
    Features, HandshakeError, Obstacle, Region, Rule, Settings, StartError,
};
use virtio_drivers::transport::DeviceType;

fn refusal(host: &FakeVirtioMem) -> StartError {
    let refused = start(host).map(|_| ()).expect_err("refused");
    assert!(!host.is_running());
    assert!(host.asked().is_empty());
    nothing_is_left();
    refused
}

#[test]
fn a_device_that_is_well_starts_with_all_that_it_offers() {
    let host = FakeVirtioMem::offering(Offer { node: 3, ..Offer::USUAL });
    let device = start(&host).expect("a device that is well");
    assert!(host.is_running());
    assert_eq!(device.features(), Features::all());
    assert_eq!(host.accepted(), 1 << 32 | 0b111);
    let region =
        Region { block_bytes: BLOCK, start_bytes: START, size_bytes: 2 * GIB, node: Some(3) };
    assert_eq!((device.region(), device.unit_bytes()), (region, BLOCK));
    assert_eq!((device.fault(), device.plugged_bytes()), (None, 0));
    drop(device);
    assert!(!host.is_running());
    nothing_is_left();
}

#[test]
fn a_node_is_not_read_where_it_is_not_valid() {
    let host = FakeVirtioMem::offering(Offer { features: 1 << 32, node: 3, ..Offer::USUAL });
    let device = start(&host).expect("a device that is well");
    assert_eq!((device.region().node, host.accepted()), (None, 1 << 32));
}

#[test]
fn what_no_device_may_say_is_refused_with_a_message() {
    let unaligned = |bytes, block_bytes| Rule::Alignment { bytes, block_bytes };
    let offer = Offer::USUAL;
    for (offer, expected, text) in [
        (
            Offer { block_bytes: 0, ..offer },
            Rule::BlockSize { block_bytes: 0 },
            "blocks of 0 bytes: not a power of two, or less than a page",
        ),
        (
            Offer { block_bytes: 3 * MIB, ..offer },
            Rule::BlockSize { block_bytes: 3 * MIB },
            "blocks of 3145728 bytes: not a power of two, or less than a page",
        ),
        (
            Offer { block_bytes: 2048, ..offer },
            Rule::BlockSize { block_bytes: 2048 },
            "blocks of 2048 bytes: not a power of two, or less than a page",
        ),
        (
            Offer { address: START + MIB, ..offer },
            unaligned(START + MIB, BLOCK),
            "0x100100000 is not a multiple of the block's 0x200000 bytes",
        ),
        (
            Offer { region_bytes: GIB + 1, ..offer },
            unaligned(GIB + 1, BLOCK),
            "0x40000001 is not a multiple of the block's 0x200000 bytes",
        ),
        (
            Offer { address: u64::MAX - GIB + 1, ..offer },
            Rule::Wraps { start_bytes: u64::MAX - GIB + 1, size_bytes: 2 * GIB },
            "0x80000000 bytes at 0xffffffffc0000000 reach beyond the last address",
        ),
    ] {
        let refused = refusal(&FakeVirtioMem::offering(offer));
        assert_eq!(refused, StartError::Rule(expected));
        assert_eq!(refused.to_string(), format!("configuration of the virtio-mem device: {text}"));
    }
    let saying = |say: &dyn Fn(&FakeVirtioMem)| {
        let host = FakeVirtioMem::new();
        say(&host);
        refusal(&host)
    };
    assert_eq!(
        saying(&|host| host.say_usable(4 * GIB)),
        StartError::Rule(Rule::Usable { usable_bytes: 4 * GIB, region_bytes: 2 * GIB })
    );
    assert_eq!(
        saying(&|host| host.say_requested(4 * GIB)),
        StartError::Rule(Rule::Requested { requested_bytes: 4 * GIB, usable_bytes: 0 })
    );
    assert_eq!(
        saying(&|host| host.say_plugged(4 * GIB)),
        StartError::Rule(Rule::Plugged { plugged_bytes: 4 * GIB, region_bytes: 2 * GIB })
    );
    assert_eq!(saying(&|host| host.say_usable(4096)), StartError::Rule(unaligned(4096, BLOCK)));
    assert_eq!(saying(&|host| host.set_unsteady(true)), StartError::Unsteady);
}

#[test]
fn a_region_that_cannot_be_used_is_refused() {
    let host = FakeVirtioMem::new();
    let start_with = |settings: Settings, is_taken: &mut dyn FnMut(u64, u64) -> bool| {
        let refused = Driver::new(host.transport(), settings, is_taken).map(|_| ());
        nothing_is_left();
        refused
    };
    let settings = Settings { limit_bytes: 6 * GIB, ..Settings::default() };
    assert_eq!(start_with(settings, &mut nothing), Ok(()));
    let settings = Settings { limit_bytes: 6 * GIB - BLOCK, ..settings };
    let refused = start_with(settings, &mut nothing).expect_err("beyond the direct map");
    assert_eq!(
        refused.to_string(),
        "the region of the virtio-mem device ends at 0x180000000, beyond 0x17fe00000, \
         where usable addresses end"
    );
    // Memory up to 4 GiB is beside the region; one more byte is inside it.
    for (memory_end, is_taken) in [(4 * GIB, false), (4 * GIB + 1, true)] {
        let mut asked = Vec::new();
        let started = start_with(Settings::default(), &mut |first, last| {
            asked.push((first, last));
            first < memory_end
        });
        assert_eq!(asked, [(START, 6 * GIB - 1)]);
        let taken = StartError::Taken { start_bytes: START, end_bytes: 6 * GIB };
        assert_eq!(started, if is_taken { Err(taken) } else { Ok(()) });
    }
    let settings = Settings { grain_bytes: 3 << 20, ..Settings::default() };
    let refused = start_with(settings, &mut nothing);
    assert_eq!(refused, Err(StartError::BadGrain { grain_bytes: 3 << 20 }));
}

#[test]
fn the_largest_regions_are_counted_and_larger_ones_refused() {
    // 32 TiB by 2 MiB.
    let offer = Offer { address: 1 << 46, region_bytes: 32 << 40, ..Offer::USUAL };
    assert!(start(&FakeVirtioMem::offering(offer)).is_ok());
    let offer = Offer { region_bytes: (32 << 40) + BLOCK, ..offer };
    let units = (16 << 20) + 1;
    assert_eq!(refusal(&FakeVirtioMem::offering(offer)), StartError::TooLarge { units });
    // A grain that is too large for one request.
    let host = FakeVirtioMem::offering(Offer { block_bytes: 4096, ..Offer::USUAL });
    let settings = Settings { grain_bytes: GIB, ..Settings::default() };
    let refused = Driver::new(host.transport(), settings, &mut nothing).map(|_| ());
    assert_eq!(refused, Err(StartError::TooLarge { units: 2 }));
    nothing_is_left();
}

#[test]
fn other_devices_and_handshakes_that_fail_are_refused() {
    let host = FakeVirtioMem::new();
    let other = host.transport().disguised(DeviceType::MemoryBalloon);
    let refused = Driver::new(other, Settings::default(), &mut nothing).map(|_| ());
    assert_eq!(refused, Err(StartError::NotVirtioMem(DeviceType::MemoryBalloon)));
    for (features, error) in [
        (0b111, HandshakeError::Legacy),
        (1 << 33 | 1 << 32, HandshakeError::NeedsPlatform { access: true, order: false }),
    ] {
        let host = FakeVirtioMem::offering(Offer { features, ..Offer::USUAL });
        assert_eq!(refusal(&host), StartError::Handshake(error));
        assert_eq!(host.accepted(), 0);
    }
    let host = FakeVirtioMem::new();
    host.refuse_features();
    let asked = 1 << 32 | 0b111;
    let error = StartError::Handshake(HandshakeError::FeaturesRefused { asked });
    assert_eq!(refusal(&host), error);
    assert_eq!(
        error.to_string(),
        "the virtio-mem device rejects features 0x100000007 that it had offered"
    );
    for queue_size in [0, 1] {
        let host = FakeVirtioMem::offering(Offer { queue_size, ..Offer::USUAL });
        assert_eq!(refusal(&host), StartError::MissingQueue);
    }
    let host = FakeVirtioMem::offering(Offer { configuration_bytes: 52, ..Offer::USUAL });
    assert!(matches!(refusal(&host), StartError::Configuration(_)));
    let host = FakeVirtioMem::new();
    host.set_reset_looks(None);
    assert_eq!(start(&host).map(|_| ()), Err(StartError::ResetPending));
    nothing_is_left();
}

#[test]
fn memory_is_given_back_when_there_is_too_little() {
    let mut count = 0;
    loop {
        let host = FakeVirtioMem::new();
        FakeHal::fail_after(Some(count));
        let started = start(&host);
        FakeHal::fail_after(None);
        match started {
            Ok(_) => break,
            Err(error) => assert_eq!(error, StartError::OutOfMemory),
        }
        assert!(!host.is_running());
        nothing_is_left();
        count += 1;
    }
    // Allocations: the ring, the requests, the directory of the map.
    assert_eq!(count, 3);
}

#[test]
fn what_was_plugged_before_goes_first() {
    let host = FakeVirtioMem::new();
    host.leave_plugged(3..40);
    host.set_requested(64 * MIB);
    host.set_busy(true);
    let mut device = start(&host).expect("a device that is well");
    let mut memory = Memory::of(&host);
    let mut now_ns = 0;
    for tries in 1..=5 {
        let progress = settle(&mut device, &mut memory, now_ns);
        assert_eq!(progress.obstacle, Some(Obstacle::Busy));
        assert_eq!(requests(&host), vec![(UNPLUG_ALL, 0, 0); tries]);
        now_ns = progress.due_ns.expect("another try");
    }
    host.set_busy(false);
    let progress = settle(&mut device, &mut memory, now_ns);
    assert!(progress.is_settled());
    assert_eq!(requests(&host)[5..], [(UNPLUG_ALL, 0, 0), (PLUG, START, 32)]);
    assert_eq!((memory.bytes(), host.plugged_bytes()), (64 * MIB, 64 * MIB));
}

#[test]
fn queues_stay_where_they_are_when_the_device_does_not_let_go() {
    let host = FakeVirtioMem::new();
    let mut device = start(&host).expect("a device that is well");
    device.step(&mut Memory::of(&host), 0).expect("a device that is well");
    // The map is freed; ring and requests stay.
    host.set_reset_looks(None);
    drop(device);
    assert_eq!(FakeHal::pages(), 2, "the device may still write to them");
    assert_eq!(FakeHal::violations(), [""; 0]);
}
