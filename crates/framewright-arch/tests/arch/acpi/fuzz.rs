//! Tables of random bytes: the parser always ends without a panic, and the nodes it returns make
//! sense.

use crate::common::*;
use framewright::firmware::{LOCAL_DISTANCE, MemoryAffinity, REMOTE_DISTANCE, Topology};
use framewright_arch::acpi::{
    Signature, Tables, count_cpus, hpet_address, power_timer, read_topology,
};
use proptest::prelude::*;

/// Reads every table and checks what must hold for any bytes.
fn read_everything(memory: &Memory) {
    let mut room = room();
    let Ok(tables) = Tables::open(memory, RSDP, &mut room) else { return };
    let mut storage = [MemoryAffinity::EMPTY; 16];
    let mut topology = Topology::new(&mut storage);
    let result = read_topology(&tables, &mut topology);
    let cpu_sum: u32 = topology.nodes().map(|node| topology.cpus(node)).sum();
    assert_eq!(cpu_sum as usize, count_cpus(&tables), "no CPU is lost");
    for from in topology.nodes() {
        assert_eq!(topology.distance(from, from), LOCAL_DISTANCE);
    }
    if let Err(error) = result {
        for from in topology.nodes() {
            for to in topology.nodes().filter(|&to| to != from) {
                assert_eq!(topology.distance(from, to), REMOTE_DISTANCE, "{error}");
            }
        }
        if matches!(error.table, Signature::MADT | Signature::SRAT) {
            assert_eq!(topology.node_count(), 1, "{error}");
            assert!(topology.memory().is_empty(), "{error}");
        }
    }
    let _ = hpet_address(&tables);
    let _ = power_timer(&tables);
    assert!(tables.headers().count() <= 1 << 18);
}

fn tables() -> Vec<Vec<u8>> {
    let apics: Vec<_> = (0..4)
        .map(|cpu| local_apic(cpu, 1))
        .chain((4..8).map(|cpu| local_x2apic(cpu + 300, 1)))
        .collect();
    let affinities: Vec<_> = (0..4u8)
        .map(|cpu| cpu_affinity(cpu, u32::from(cpu % 3), 1))
        .chain((304..308).map(|cpu| x2apic_affinity(cpu, cpu % 5, 1)))
        .chain((0..5).map(|domain| {
            memory_affinity(u64::from(domain) << 30, 1 << 30, domain, 1 | (domain & 1) << 1)
        }))
        .collect();
    let rows = [
        [10, 20, 20, 20, 20],
        [20, 10, 20, 20, 20],
        [20, 20, 10, 20, 20],
        [20, 20, 20, 10, 20],
        [20, 20, 20, 20, 10],
    ];
    let mut clock = vec![0; 100];
    clock[8..16].copy_from_slice(&0xfed0_0000u64.to_le_bytes());
    vec![
        madt(&apics),
        srat(3, &affinities),
        slit(&rows.iter().map(|row| &row[..]).collect::<Vec<_>>()),
        table(b"HPET", 1, &clock),
        table(b"FACP", 3, &clock),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Valid tables with some bytes changed; checksums are fixed up, so that the parser reaches the
    /// changes.
    #[test]
    fn mutations_of_right_tables(
        changes in prop::collection::vec(
            (
                0usize..5,
                any::<prop::sample::Index>(),
                prop_oneof![any::<u8>(), Just(0), Just(0xff)],
            ),
            1..12,
        ),
        cut in prop::option::of((0usize..5, any::<prop::sample::Index>())),
    ) {
        let mut tables = tables();
        if let Some((table, length)) = cut {
            let length = 36 + length.index(tables[table].len() - 36);
            tables[table].truncate(length);
            let claimed = u32::try_from(length).expect("small").to_le_bytes();
            tables[table][4..8].copy_from_slice(&claimed);
        }
        for (table, at, byte) in changes {
            let at = at.index(tables[table].len());
            tables[table][at] = byte;
        }
        for table in &mut tables {
            fix_checksum(table, 9);
        }
        read_everything(&firmware(Root::Xsdt, &tables));
        read_everything(&firmware(Root::Rsdt, &tables));
    }

    /// The headers are valid and the bodies are noise.
    #[test]
    fn bodies_of_noise(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 5),
        revision in 0u8..5,
    ) {
        let names = [b"APIC", b"SRAT", b"SLIT", b"HPET", b"FACP"];
        let tables: Vec<_> =
            names.iter().zip(&bodies).map(|(name, body)| table(name, revision, body)).collect();
        read_everything(&firmware(Root::Xsdt, &tables));
    }

    /// Entries have plausible kinds and lengths, so the parser gets further into the noise.
    #[test]
    fn entries_of_noise(
        entries in prop::collection::vec(
            (
                0u8..12,
                prop_oneof![Just(8u8), Just(16), Just(24), Just(40), any::<u8>()],
                any::<u64>(),
            ),
            0..60,
        ),
    ) {
        let entries: Vec<Vec<u8>> = entries
            .into_iter()
            .map(|(kind, length, seed)| {
                let noise = (0..u32::from(length)).map(|at| {
                    (seed.rotate_left(at * 7) & 0xff) as u8 & if at % 3 == 0 { 1 } else { 0xff }
                });
                let mut bytes: Vec<u8> = noise.collect();
                bytes.resize(bytes.len().max(2), 0);
                (bytes[0], bytes[1]) = (kind, length);
                bytes
            })
            .collect();
        read_everything(&firmware(Root::Xsdt, &[madt(&entries), srat(2, &entries)]));
    }

    /// The root pointer itself is noise.
    #[test]
    fn roots_of_noise(
        rsdp in prop::collection::vec(any::<u8>(), 0..64),
        root in prop::collection::vec(any::<u8>(), 0..200),
        fix in any::<bool>(),
    ) {
        let mut memory = firmware(Root::Xsdt, &[]);
        let address = *memory.pieces.keys().next_back().expect("is there");
        if fix {
            memory.pieces.insert(address, table(b"XSDT", 1, &root));
        } else {
            memory.pieces.insert(address, root);
            memory.pieces.insert(RSDP, rsdp);
        }
        read_everything(&memory);
    }
}
