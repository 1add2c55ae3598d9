//! Tables whose memory changes while they are read: the parser reads every byte once, so the
//! checked value is the value it uses, and later changes have no effect.

use crate::common::*;
use framewright::firmware::{MemoryAffinity, Topology};
use framewright_arch::PhysicalMemory;
use framewright_arch::acpi::{
    Fault, Signature, Tables, hpet_address, power_timer, read_topology, visit_cpus,
};
use framewright_arch::x86_64::pvh::{MAGIC, PvhError, StartInfo};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Memory whose host inverts every byte after it was read.
struct Hostile {
    memory: RefCell<Memory>,
    /// How often each byte was read, by address.
    reads: RefCell<BTreeMap<u64, u32>>,
}

impl Hostile {
    fn new(memory: Memory) -> Self {
        Self { memory: RefCell::new(memory), reads: RefCell::default() }
    }

    fn most_reads(&self) -> u32 {
        self.reads.borrow().values().copied().max().unwrap_or(0)
    }
}

impl PhysicalMemory for Hostile {
    fn copy(&self, address: u64, to: &mut [u8]) -> bool {
        let mut memory = self.memory.borrow_mut();
        if !memory.copy(address, to) {
            return false;
        }
        for at in address..address + to.len() as u64 {
            *self.reads.borrow_mut().entry(at).or_default() += 1;
        }
        let (start, piece) = memory.pieces.range_mut(..=address).next_back().expect("it was read");
        let offset = usize::try_from(address - start).expect("small");
        piece[offset..offset + to.len()].iter_mut().for_each(|byte| *byte = !*byte);
        true
    }
}

fn tables() -> Vec<Vec<u8>> {
    let mut clock = vec![0; 100];
    clock[8..16].copy_from_slice(&0xfed0_0000u64.to_le_bytes());
    vec![
        madt(&[local_apic(0, 1), local_apic(1, 1), local_x2apic(300, 1)]),
        table(b"SSDT", 1, &[7; 5000]),
        srat(
            3,
            &[cpu_affinity(0, 0, 1), x2apic_affinity(300, 1, 1), memory_affinity(0, 1 << 30, 1, 1)],
        ),
        slit(&[&[10, 21], &[21, 10]]),
        table(b"HPET", 1, &clock),
        table(b"FACP", 3, &clock),
    ]
}

#[test]
fn acpi_tables_are_read_once() {
    for root in [Root::Rsdt, Root::Xsdt] {
        let memory = Hostile::new(firmware(root, &tables()));
        let mut copies = room();
        let tables =
            Tables::open(&memory, RSDP, &mut copies).expect("they were right when they were read");
        let mut storage = [MemoryAffinity::EMPTY; 8];
        let mut topology = Topology::new(&mut storage);
        read_topology(&tables, &mut topology).expect("they were right when they were read");
        assert_eq!(topology.nodes().map(|node| topology.cpus(node)).collect::<Vec<_>>(), [2, 1]);
        let mut seen = Vec::new();
        visit_cpus(&tables, &topology, &mut |apic_id, node| seen.push((apic_id, node.index())));
        assert_eq!(seen, [(0, 0), (1, 0), (300, 1)]);
        assert_eq!(hpet_address(&tables), Ok(Some(0xfed0_0000)));
        assert!(power_timer(&tables).is_ok());
        assert_eq!(tables.headers().flatten().count(), 6);
        assert_eq!(memory.most_reads(), 1, "{root:?}: a byte was read again");
    }
}

#[test]
fn too_little_room_for_tables_is_an_error_that_says_so() {
    let memory = firmware(Root::Xsdt, &tables());
    let mut complete = 0;
    for bytes in 0..2048 {
        let mut copies = vec![0; bytes];
        let mut storage = [MemoryAffinity::EMPTY; 8];
        let mut topology = Topology::new(&mut storage);
        match Tables::open(&memory, RSDP, &mut copies) {
            Err(error) => assert!(matches!(error.fault, Fault::NoRoom { .. }), "{error}"),
            Ok(tables) => match read_topology(&tables, &mut topology) {
                Err(error) => assert!(matches!(error.fault, Fault::NoRoom { .. }), "{error}"),
                Ok(()) => {
                    complete +=
                        u32::from(hpet_address(&tables).is_ok() && power_timer(&tables).is_ok())
                }
            },
        }
    }
    assert!(complete > 0);
    let mut copies = [0; 600];
    let tables = Tables::open(&memory, RSDP, &mut copies).expect("room for the root");
    let error = tables.find(Signature::FADT).expect_err("no room");
    assert!(error.to_string().contains("there is no room to copy 136 bytes"), "{error}");
}

#[test]
fn start_information_is_read_once() {
    let mut head: Vec<u8> = [MAGIC, 1, 0, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    head.extend([0x9000u64, 0x3000, 0xf_5000, 0x2000].into_iter().flat_map(u64::to_le_bytes));
    head.extend([2u32, 0].into_iter().flat_map(u32::to_le_bytes));
    let entry = |start: u64, size: u64| [start, size, 1].map(u64::to_le_bytes).concat();
    let mut memory = Memory::default();
    memory.pieces.insert(0x1000, head);
    memory.pieces.insert(0x2000, [entry(0, 0x9_f000), entry(1 << 20, 1 << 30)].concat());
    memory.pieces.insert(0x3000, b"mem=1G stress=3\0".to_vec());
    memory.pieces.insert(0x9000, [0x50_0000u64, 0x1234, 0, 0].map(u64::to_le_bytes).concat());
    for room in [0, 40, 80, 90] {
        let mut copies = vec![0; room];
        let refused =
            StartInfo::read(&memory, 0x1000, &mut copies).map(|_| ()).expect_err("too little room");
        assert!(matches!(refused, PvhError::NoRoom { .. }), "{refused}");
    }
    let memory = Hostile::new(memory);
    let mut copies = [0; 4096];
    let info =
        StartInfo::read(&memory, 0x1000, &mut copies).expect("it was right when it was read");
    for _ in 0..2 {
        assert_eq!(info.command_line(), Ok("mem=1G stress=3"));
        assert_eq!(
            info.memory_map().map(|entry| entry.size_bytes).collect::<Vec<_>>(),
            [0x9_f000, 1 << 30]
        );
        assert_eq!(info.modules().count(), 1);
    }
    assert_eq!(memory.most_reads(), 1, "a byte was read again");
}
