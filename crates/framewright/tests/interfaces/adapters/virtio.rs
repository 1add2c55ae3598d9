//! The adapter for the crate `virtio-drivers`: its memory is zeroed, disjoint, within the device's
//! reach and accounted for, and a real driver runs on it.
//!
//! Runs with `cargo test -p framewright --all-features`.

use crate::common::{Fake, bring_up, check, gib, in_use, mib, settled};
use framewright::Platform;
use framewright::adapters::virtio::Dma;
use framewright::units::PAGE_SIZE;
use framewright::zone::FreeError;
use framewright_testkit::FakeMachine;
use std::ptr::NonNull;
use std::sync::OnceLock;
use virtio_drivers::device::rng::VirtIORng;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::{BufferDirection, Error, Hal, PhysAddr};

const FOUR_GIB: u64 = 4 << 30;

/// Takes `pages`, checks them, and leaves them dirty.
fn take(dma: Dma<'_, FakeMachine>, machine: &FakeMachine, pages: usize) -> Option<PhysAddr> {
    let (paddr, vaddr) = dma.allocate(pages)?;
    assert!(paddr != 0 && paddr.is_multiple_of(PAGE_SIZE));
    assert_eq!(vaddr, machine.direct(paddr), "device and driver see one memory");
    // SAFETY: `allocate` gave us this memory, and zeroed it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(vaddr.as_ptr(), pages * 4096) };
    assert!(bytes.iter().all(|&byte| byte == 0), "{pages} pages at {paddr:#x} are not zero");
    bytes.fill(0xff);
    Some(paddr)
}

/// Calls [`Dma::free`] for memory that a test took.
fn give_back(dma: Dma<'_, FakeMachine>, start: PhysAddr, pages: usize) -> Result<(), FreeError> {
    // SAFETY: the tests look at memory only right after they took it, and no device knows of it
    // (invariant 42).
    unsafe { dma.free(start, pages) }
}

/// Calls [`Dma::dma_dealloc`] for such memory.
fn dealloc(
    dma: Dma<'_, FakeMachine>,
    (paddr, vaddr): (PhysAddr, NonNull<u8>),
    pages: usize,
) -> i32 {
    // SAFETY: as above (invariant 42).
    unsafe { dma.dma_dealloc(paddr, vaddr, pages) }
}

#[test]
fn any_count_is_zeroed_every_time() {
    let machine = FakeMachine::builder().ram(mib(1, 65)).build();
    let manager = bring_up(machine);
    let (dma, before) = (Dma::new(&manager), settled(&manager));
    // The test runs twice, so that the second round gets the memory that the first left dirty.
    for _ in 0..2 {
        let counts = [1, 2, 3, 5, 8, 17, 100, 511, 512, 513, 1000];
        let taken: Vec<_> = counts
            .iter()
            .map(|&pages| (take(dma, machine, pages).expect("there is memory"), pages))
            .collect();
        let pages: usize = counts.iter().sum();
        assert_eq!(in_use(&manager), pages as u64, "exactly what was asked for is in use");
        for (index, &(start, pages)) in taken.iter().enumerate() {
            let end = start + pages as u64 * PAGE_SIZE;
            let apart = taken[..index]
                .iter()
                .all(|&(other, count)| end <= other || other + count as u64 * PAGE_SIZE <= start);
            assert!(apart, "{pages} pages at {start:#x} overlap others");
        }
        check(&manager);
        taken
            .iter()
            .for_each(|&(start, pages)| give_back(dma, start, pages).expect("it is in use"));
        check(&manager);
        assert_eq!(settled(&manager), before);
    }
}

#[test]
fn exhaustion_gives_address_zero_and_changes_nothing() {
    let machine = FakeMachine::builder().ram(mib(1, 33)).build();
    let manager = bring_up(machine);
    let (dma, before) = (Dma::new(&manager), settled(&manager));
    let mut taken = Vec::new();
    while let Some(start) = take(dma, machine, 300) {
        taken.push(start);
    }
    assert!(taken.len() >= 15, "{} pieces of 300 pages of 32 MiB", taken.len());
    check(&manager);
    assert_eq!(dma.dma_alloc(300, BufferDirection::Both).0, 0);
    taken.into_iter().for_each(|start| give_back(dma, start, 300).expect("it is in use"));
    for impossible in [0, 32 << 8, 1 << 30, usize::MAX] {
        assert_eq!(dma.dma_alloc(impossible, BufferDirection::Both).0, 0, "{impossible} pages");
    }
    check(&manager);
    assert_eq!(settled(&manager), before);
}

#[test]
fn devices_with_32_address_bits_get_what_they_reach() {
    let machine = FakeMachine::builder().ram(mib(3968, 4096)).ram(gib(4, 6)).build();
    let manager = bring_up(machine);
    let high = take(Dma::new(&manager), machine, 4).expect("there is memory");
    assert!(high >= FOUR_GIB, "who reaches everything leaves low memory to others: {high:#x}");
    let low = Dma::below_4_gib(&manager);
    let mut taken = Vec::new();
    while let Some(start) = take(low, machine, 512) {
        assert!(start + (2 << 20) <= FOUR_GIB, "{start:#x} is out of reach");
        taken.push(start);
    }
    assert!(taken.len() > 50, "{} blocks of 128 MiB", taken.len());
    taken.into_iter().for_each(|start| give_back(low, start, 512).expect("it is in use"));
    give_back(low, high, 4).expect("only allocation is limited");
    check(&manager);
    assert_eq!(in_use(&manager), 0);
}

#[test]
fn only_what_the_direct_map_shows_is_handed_out() {
    // Memory beyond the limit would make FakeMachine panic.
    let machine = FakeMachine::builder().ram(gib(0, 1)).direct_limit(64 << 20).build();
    let manager = bring_up(machine);
    let dma = Dma::new(&manager);
    let mut taken = Vec::new();
    while let Some(start) = take(dma, machine, 512) {
        assert!(start + (2 << 20) <= 64 << 20);
        taken.push(start);
    }
    assert!(!taken.is_empty(), "there is free memory below the limit");
    machine.raise_direct_limit(1 << 30);
    taken.push(take(dma, machine, 512).expect("more is shown now"));
    taken.into_iter().for_each(|start| give_back(dma, start, 512).expect("it is in use"));
    check(&manager);
}

#[test]
fn memory_that_is_not_in_use_is_refused() {
    let machine = FakeMachine::builder().ram(mib(1, 65)).build();
    let manager = bring_up(machine);
    let (dma, before) = (Dma::new(&manager), settled(&manager));
    let (start, vaddr) = dma.dma_alloc(3, BufferDirection::Both);
    assert_eq!(dealloc(dma, (start, vaddr), 3), 0);
    for (paddr, pages) in
        [(start, 3), (start, 0), (0, 1), (1 << 40, 1), (u64::MAX, 1), (start, usize::MAX)]
    {
        assert_ne!(dealloc(dma, (paddr, vaddr), pages), 0, "{pages} pages at {paddr:#x}");
    }
    check(&manager);
    assert_eq!(settled(&manager), before);
}

static MACHINE: OnceLock<&'static FakeMachine> = OnceLock::new();
static MANAGER: OnceLock<Fake> = OnceLock::new();

fn dma() -> Dma<'static, FakeMachine> {
    Dma::below_4_gib(MANAGER.get().expect("devices come after memory"))
}

/// As in a kernel: no state, and a static manager.
struct FakeHal;

// SAFETY: DMA memory is zeroed and handed out once. No device exists, so buffers need no
// translation.
unsafe impl Hal for FakeHal {
    fn dma_alloc(pages: usize, direction: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        dma().dma_alloc(pages, direction)
    }

    unsafe fn dma_dealloc(paddr: PhysAddr, vaddr: NonNull<u8>, pages: usize) -> i32 {
        assert_eq!(vaddr, MACHINE.get().expect("set first").direct(paddr));
        // SAFETY: passed on to the caller.
        unsafe { dma().dma_dealloc(paddr, vaddr, pages) }
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        unreachable!("the device's registers are not on PCI")
    }

    unsafe fn share(_: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        unreachable!("no request is made of the device")
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {
        unreachable!("no request is made of the device")
    }
}

/// The registers of a virtio device on MMIO that remembers what is written and does nothing: enough
/// for a driver to come up.
const REGISTER_BYTES: usize = 0x100;

#[repr(C, align(4096))]
struct Registers([u32; REGISTER_BYTES / 4]);

impl Registers {
    const QUEUE_DESC_LOW: usize = 0x80;
    const QUEUE_DEVICE_LOW: usize = 0xa0;

    /// A random number generator (device 4) of version 2 with a queue of at most 8 entries.
    fn rng() -> Self {
        let mut registers = Self([0; REGISTER_BYTES / 4]);
        for (offset, value) in [(0x00, 0x7472_6976), (0x04, 2), (0x08, 4), (0x34, 8)] {
            registers.0[offset / 4] = value;
        }
        registers
    }

    /// A register and the one above it, which hold an address.
    ///
    /// # Safety
    /// `registers` is such a block, in use by this thread only.
    unsafe fn address(registers: NonNull<Self>, offset: usize) -> PhysAddr {
        let word = |index: usize| {
            let place = registers.as_ptr().cast::<u32>().wrapping_add(index);
            // SAFETY: a word within the block.
            u64::from(unsafe { place.read_volatile() })
        };
        word(offset / 4) | word(offset / 4 + 1) << 32
    }
}

#[test]
fn a_real_driver_comes_up_on_it_and_leaves_nothing_behind() {
    let machine = FakeMachine::builder().ram(mib(1, 65)).cpus(2).build();
    assert!(
        MACHINE.set(machine).is_ok() && MANAGER.set(bring_up(machine)).is_ok(),
        "this test alone uses them"
    );
    let manager = MANAGER.get().expect("just set");
    let before = settled(manager);

    let registers = NonNull::from(Box::leak(Box::new(Registers::rng())));
    let device = || {
        // SAFETY: the block is as large as a header, was initialised, and is never freed.
        unsafe { MmioTransport::new(registers.cast::<VirtIOHeader>(), REGISTER_BYTES) }
            .expect("a device")
    };
    for _ in 0..3 {
        let driver = VirtIORng::<FakeHal, _>::new(device()).expect("the driver comes up");
        // Only the queue's two parts, each rounded up to pages, are in use, and the device was told
        // where they are.
        assert_eq!(in_use(manager), 2);
        for offset in [Registers::QUEUE_DESC_LOW, Registers::QUEUE_DEVICE_LOW] {
            // SAFETY: a block of registers.
            let address = unsafe { Registers::address(registers, offset) };
            assert!(
                address.is_multiple_of(PAGE_SIZE) && machine.is_usable(address),
                "{address:#x}"
            );
        }
        check(manager);
        drop(driver);
        check(manager);
        assert_eq!(settled(manager), before, "the driver gave its queue back");
    }

    // With all memory in use the driver returns an error.
    let mut taken = Vec::new();
    while let Some((start, _)) = dma().allocate(1) {
        taken.push(start);
    }
    assert!(matches!(VirtIORng::<FakeHal, _>::new(device()), Err(Error::DmaError)));
    taken.into_iter().for_each(|start| give_back(dma(), start, 1).expect("it is in use"));
    check(manager);
    assert_eq!(settled(manager), before);
}
