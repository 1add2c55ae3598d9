//! Topologies with known answers, and every fault that the tables which describe them can have.

use crate::common::*;
use framewright::firmware::{MemoryAffinity, Topology, TopologyError};
use framewright::units::{MAX_NODES, NodeId};
use framewright_arch::acpi::{
    AcpiError, Fault, Signature, Tables, count_cpus, hpet_address, power_timer, read_topology,
};

const GIB: u64 = 1 << 30;
const ENABLED: u32 = 1;

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("below the limit")
}

/// Reads the firmware's topology, passes it to `check`, and returns the parser's result.
fn read(memory: &Memory, check: impl FnOnce(&Topology<'_>)) -> Result<(), AcpiError> {
    let mut storage = vec![MemoryAffinity::EMPTY; MAX_NODES];
    let mut topology = Topology::new(&mut storage);
    let mut copies = room();
    let result = Tables::open(memory, RSDP, &mut copies)
        .and_then(|tables| read_topology(&tables, &mut topology));
    check(&topology);
    result
}

fn cpus(topology: &Topology<'_>) -> Vec<u32> {
    topology.nodes().map(|node| topology.cpus(node)).collect()
}

fn claims(topology: &Topology<'_>) -> Vec<(u64, u64, usize, bool)> {
    let claim = |claim: &MemoryAffinity| {
        (claim.range.start, claim.range.end, claim.node.index(), claim.hot_pluggable)
    };
    topology.memory().iter().map(claim).collect()
}

/// Two nodes with two CPUs each, as QEMU describes them.
fn two_nodes() -> [Vec<u8>; 3] {
    [
        madt(&[local_apic(0, 1), local_apic(1, 1), local_apic(2, 1), local_apic(3, 1), io_apic()]),
        srat(
            1,
            &[
                cpu_affinity(0, 0, ENABLED),
                cpu_affinity(1, 0, ENABLED),
                cpu_affinity(2, 1, ENABLED),
                cpu_affinity(3, 1, ENABLED),
                memory_affinity(0, 0xa_0000, 0, ENABLED),
                memory_affinity(0x10_0000, 2 * GIB - 0x10_0000, 0, ENABLED),
                memory_affinity(4 * GIB, 2 * GIB, 0, ENABLED),
                memory_affinity(6 * GIB, 4 * GIB, 1, ENABLED),
                memory_affinity(0, 0, 0, 0),
            ],
        ),
        slit(&[&[10, 21], &[21, 10]]),
    ]
}

#[test]
fn two_nodes_come_out_through_both_roots() {
    for root in [Root::Rsdt, Root::Xsdt] {
        read(&firmware(root, &two_nodes()), |topology| {
            assert_eq!(cpus(topology), [2, 2]);
            assert_eq!(topology.distance(node(0), node(1)), 21);
            assert_eq!(
                claims(topology),
                [
                    (0, 0xa_0000, 0, false),
                    (0x10_0000, 2 * GIB, 0, false),
                    (4 * GIB, 6 * GIB, 0, false),
                    (6 * GIB, 10 * GIB, 1, false),
                ]
            );
        })
        .expect("the tables are right");
    }
}

#[test]
fn without_affinities_there_is_one_node() {
    read(
        &firmware(Root::Xsdt, &[madt(&[local_apic(0, 1), local_apic(5, 1), local_apic(6, 0)])]),
        |topology| {
            assert_eq!(cpus(topology), [2]);
            assert!(topology.memory().is_empty());
        },
    )
    .expect("the table is right");
    read(&firmware(Root::Rsdt, &[]), |topology| assert_eq!(cpus(topology), [1]))
        .expect("no table is no fault");
}

#[test]
fn only_enabled_cpus_count() {
    // Disabled, online-capable, and the broadcast identifier.
    let entries = [
        local_apic(0, 1),
        local_apic(1, 0),
        local_apic(2, 2),
        local_apic(0xff, 1),
        local_x2apic(u32::MAX, 1),
    ];
    let memory = firmware(Root::Xsdt, &[madt(&entries)]);
    read(&memory, |topology| assert_eq!(cpus(topology), [1])).expect("the table is right");
    let mut copies = room();
    let tables = Tables::open(&memory, RSDP, &mut copies).expect("the root is right");
    let madt = tables.find(Signature::MADT).expect("is right").expect("is there");
    let listed: Vec<_> =
        framewright_arch::acpi::cpus(madt).expect("long enough").flatten().collect();
    let seen: Vec<_> =
        listed.iter().map(|cpu| (cpu.apic_id, cpu.enabled, cpu.online_capable)).collect();
    assert_eq!(seen, [(0, true, false), (1, false, false), (2, false, true)]);
}

#[test]
fn cpus_beyond_eight_bits_and_cpus_listed_twice() {
    let tables = [
        madt(&[
            local_apic(7, 1),
            local_x2apic(7, 1),
            local_x2apic(0x400, 1),
            local_x2apic(0x401, 0),
        ]),
        srat(
            3,
            &[
                x2apic_affinity(0x400, 0x0012_3456, ENABLED),
                cpu_affinity(7, 0x0065_4321, ENABLED),
                memory_affinity(0, GIB, 0x0065_4321, ENABLED),
                memory_affinity(GIB, GIB, 0x0012_3456, ENABLED),
            ],
        ),
    ];
    read(&firmware(Root::Xsdt, &tables), |topology| {
        assert_eq!(cpus(topology), [1, 1]);
        assert_eq!((topology.domain(node(0)), topology.domain(node(1))), (0x12_3456, 0x65_4321));
        assert_eq!(topology.owner(0).node, node(1));
    })
    .expect("the tables are right");
    // Without 8-bit entries, the x2APIC entries below 255 count.
    read(&firmware(Root::Xsdt, &[madt(&[local_x2apic(0, 1), local_x2apic(1, 1)])]), |topology| {
        assert_eq!(cpus(topology), [2]);
    })
    .expect("the table is right");
}

#[test]
fn the_first_revision_has_domains_of_eight_bits() {
    let affinities =
        [cpu_affinity(0, 0xabcd_ef03, ENABLED), memory_affinity(0, GIB, 0x1234_0005, ENABLED)];
    let domains = |revision| {
        let mut seen = Vec::new();
        let tables = [madt(&[local_apic(0, 1)]), srat(revision, &affinities)];
        read(&firmware(Root::Xsdt, &tables), |topology| {
            seen.extend(topology.nodes().map(|node| topology.domain(node)));
        })
        .expect("the tables are right");
        seen
    };
    assert_eq!(domains(1), [3, 5]);
    assert_eq!(domains(2), [0xabcd_ef03, 0x1234_0005]);
}

#[test]
fn sparse_domains_become_dense_nodes_and_keep_their_distances() {
    let mut rows = [[20u8; 8]; 8];
    for (index, row) in rows.iter_mut().enumerate() {
        row[index] = 10;
    }
    (rows[7][2], rows[2][7], rows[7][4]) = (31, 32, 255);
    let tables = [
        madt(&[local_apic(0, 1), local_apic(1, 1), local_apic(2, 1)]),
        srat(
            2,
            &[
                // Memory comes before CPUs here, but the domains of CPUs are still numbered first.
                memory_affinity(0, GIB, 4, ENABLED),
                memory_affinity(GIB, GIB, 2, ENABLED | 2),
                cpu_affinity(0, 7, ENABLED),
                cpu_affinity(1, 2, ENABLED),
                cpu_affinity(9, 6, 0),
            ],
        ),
        slit(&rows.iter().map(|row| &row[..]).collect::<Vec<_>>()),
    ];
    read(&firmware(Root::Xsdt, &tables), |topology| {
        let domains: Vec<_> = topology.nodes().map(|node| topology.domain(node)).collect();
        assert_eq!(domains, [7, 2, 4], "7 has no memory, 4 no CPU, 6 was not enabled");
        // CPU 2 has no entry and goes to node 0.
        assert_eq!(cpus(topology), [2, 1, 0]);
        assert_eq!(claims(topology), [(0, GIB, 2, false), (GIB, 2 * GIB, 1, true)]);
        assert_eq!(topology.distance(node(0), node(1)), 31);
        assert_eq!(topology.distance(node(1), node(0)), 32);
        assert_eq!(topology.distance(node(0), node(2)), 255);
    })
    .expect("the tables are right");
}

#[test]
fn distances_may_know_fewer_domains_than_there_are() {
    let mut tables = two_nodes();
    tables[2] = slit(&[&[10]]);
    read(&firmware(Root::Xsdt, &tables), |topology| {
        assert_eq!(topology.distance(node(0), node(1)), 20)
    })
    .expect("the tables are right");
}

/// Expects `fault` in the tables, one node, and `cpu_count` CPUs.
fn refused(tables: &[Vec<u8>], cpu_count: u32, table: Signature, offset: usize, fault: Fault) {
    let error = read(&firmware(Root::Xsdt, tables), |topology| {
        assert_eq!(cpus(topology), [cpu_count], "{fault:?}");
        assert!(topology.memory().is_empty(), "{fault:?}");
        assert_eq!(topology.domain(NodeId::ZERO), 0);
    })
    .expect_err("the tables are wrong");
    assert_eq!((error.table, error.offset, error.fault), (table, offset, fault));
}

/// Overwrites bytes of a table and fixes up the checksum.
fn patched(mut bytes: Vec<u8>, at: usize, with: &[u8]) -> Vec<u8> {
    bytes[at..at + with.len()].copy_from_slice(with);
    fix_checksum(&mut bytes, 9);
    bytes
}

#[test]
fn malformed_tables_leave_one_node_with_all_cpus() {
    let [madt, srat, slit] = two_nodes();
    let with_srat = |srat: Vec<u8>| vec![madt.clone(), srat, slit.clone()];

    let mut wrong = srat.clone();
    wrong[60] ^= 1;
    let sum = wrong.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
    refused(&with_srat(wrong), 4, Signature::SRAT, 9, Fault::WrongChecksum { sum });

    // The first CPU's entry is at offset 48, the first memory entry at 112.
    let left = srat.len() - 48;
    let fault = |length, least| Fault::WrongEntryLength { kind: 0, length, least, left };
    refused(&with_srat(patched(srat.clone(), 49, &[0])), 4, Signature::SRAT, 48, fault(0, 2));
    refused(&with_srat(patched(srat.clone(), 49, &[1])), 4, Signature::SRAT, 48, fault(1, 2));
    refused(&with_srat(patched(srat.clone(), 49, &[15])), 4, Signature::SRAT, 48, fault(15, 16));
    let last = srat.len() - 40;
    refused(
        &with_srat(patched(srat.clone(), last + 1, &[41])),
        4,
        Signature::SRAT,
        last,
        Fault::WrongEntryLength { kind: 1, length: 41, least: 2, left: 40 },
    );
    refused(
        &with_srat(patched(srat.clone(), 112 + 8, &u64::MAX.to_le_bytes())),
        4,
        Signature::SRAT,
        112,
        Fault::MemoryWraps { start: u64::MAX, size_bytes: 0xa_0000 },
    );
    let overlap = framewright::units::PhysRange::new(6 * GIB, 6 * GIB + 4096);
    refused(
        &with_srat(patched(srat.clone(), 112 + 80 + 16, &(2 * GIB + 4096).to_le_bytes())),
        4,
        Signature::SRAT,
        112 + 120,
        Fault::Contradiction(TopologyError::OverlappingNodes {
            first: node(0),
            second: node(1),
            range: overlap,
        }),
    );

    let short = Fault::WrongLength { length: 40, least: 48, most: 1 << 20 };
    refused(&with_srat(table(b"SRAT", 1, &[0; 4])), 4, Signature::SRAT, 4, short);
    let long = Fault::WrongLength { length: 0xffff_ffff, least: 36, most: 1 << 20 };
    refused(&with_srat(patched(srat.clone(), 4, &[0xff; 4])), 4, Signature::SRAT, 4, long);
    let missing = Fault::Unreadable { length: srat.len() + 1 };
    let one_more = u32::try_from(srat.len() + 1).expect("small").to_le_bytes();
    refused(&with_srat(patched(srat.clone(), 4, &one_more)), 4, Signature::SRAT, 0, missing);
}

/// Expects `fault` in the SLIT; everything but the distances is as without a SLIT.
fn distances_refused(tables: &[Vec<u8>], offset: usize, fault: Fault) {
    let known = |topology: &Topology<'_>| (cpus(topology), claims(topology));
    let mut without = None;
    let others: Vec<_> = tables.iter().filter(|table| table[..4] != *b"SLIT").cloned().collect();
    read(&firmware(Root::Xsdt, &others), |topology| without = Some(known(topology)))
        .expect("the others are right");
    let error = read(&firmware(Root::Xsdt, tables), |topology| {
        assert_eq!(Some(known(topology)), without, "{fault:?}");
        for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let expected = if from == to { 10 } else { 20 };
            assert_eq!(
                topology.distance(node(from), node(to)),
                expected,
                "{fault:?}: from {from} to {to}"
            );
        }
    })
    .expect_err("the distances are wrong");
    assert_eq!((error.table, error.offset, error.fault), (Signature::SLIT, offset, fault));
}

#[test]
fn malformed_distances_leave_the_nodes() {
    let [madt, srat, slit] = two_nodes();
    let with_slit = |slit: Vec<u8>| vec![madt.clone(), srat.clone(), slit];
    let bad = |from, to, distance| {
        Fault::Contradiction(TopologyError::BadDistance {
            from: node(from),
            to: node(to),
            distance,
        })
    };
    distances_refused(&with_slit(patched(slit.clone(), 44, &[11])), 44, bad(0, 0, 11));
    // Distances from before the fault are dropped, too.
    distances_refused(&with_slit(patched(slit.clone(), 46, &[9])), 46, bad(1, 0, 9));
    for (count, least) in [(3u64, 53), (1 << 33, usize::MAX), (u64::MAX, usize::MAX)] {
        let fault = Fault::WrongLength { length: 48, least, most: 1 << 20 };
        distances_refused(&with_slit(patched(slit.clone(), 36, &count.to_le_bytes())), 36, fault);
    }
    let mut wrong = slit.clone();
    wrong[9] = wrong[9].wrapping_add(1);
    distances_refused(&with_slit(wrong), 9, Fault::WrongChecksum { sum: 1 });
    let short = Fault::WrongLength { length: 40, least: 44, most: 1 << 20 };
    distances_refused(&with_slit(table(b"SLIT", 1, &[0; 4])), 4, short);
}

#[test]
fn faults_that_cost_the_nodes_are_named_before_those_of_distances() {
    let [madt, srat, slit] = two_nodes();
    let tables = [madt, patched(srat, 49, &[0]), patched(slit, 44, &[11])];
    let fault =
        Fault::WrongEntryLength { kind: 0, length: 0, least: 2, left: tables[1].len() - 48 };
    refused(&tables, 4, Signature::SRAT, 48, fault);
}

#[test]
fn malformed_cpus() {
    let [madt, srat, _] = two_nodes();
    // CPUs before the fault count; without any there is still one CPU.
    let fault = |length| Fault::WrongEntryLength { kind: 0, length, least: 2, left: 28 };
    let tables = [patched(madt.clone(), 61, &[0]), srat.clone()];
    refused(&tables, 2, Signature::MADT, 60, fault(0));
    let mut wrong = madt.clone();
    wrong[9] = wrong[9].wrapping_add(1);
    refused(&[wrong], 1, Signature::MADT, 9, Fault::WrongChecksum { sum: 1 });
}

#[test]
fn too_many_of_anything_is_refused() {
    let most = u32::try_from(MAX_NODES).expect("few");
    let many: Vec<_> = (0..=most)
        .map(|domain| memory_affinity(u64::from(domain) * GIB, GIB, domain, ENABLED))
        .collect();
    let offset = 48 + MAX_NODES * 40;
    let fault = Fault::Contradiction(TopologyError::TooManyDomains { domain: most });
    refused(&[madt(&[local_apic(0, 1)]), srat(2, &many)], 1, Signature::SRAT, offset, fault);

    let cpus: Vec<_> = (0..8193).map(|cpu| local_x2apic(cpu, 1)).collect();
    refused(&[madt(&cpus)], 8192, Signature::MADT, 0, Fault::TooManyEntries { most: 8192 });

    let cpus: Vec<_> = (0..8193).map(|cpu| x2apic_affinity(cpu, 0, 1)).collect();
    let fault = Fault::TooManyEntries { most: 8192 };
    refused(
        &[madt(&[local_apic(0, 1)]), srat(2, &cpus)],
        1,
        Signature::SRAT,
        48 + 8192 * 24,
        fault,
    );
}

#[test]
fn as_many_cpus_as_are_believed_are_placed_at_once() {
    let cpus: Vec<_> = (0..8192).map(|cpu| local_x2apic(cpu, 1)).collect();
    let affinities: Vec<_> = (0..8192).map(|cpu| x2apic_affinity(cpu, cpu / 128, 1)).collect();
    read(&firmware(Root::Xsdt, &[madt(&cpus), srat(3, &affinities)]), |topology| {
        assert_eq!(self::cpus(topology), [128; 64]);
    })
    .expect("the tables are right");
}

#[test]
fn malformed_roots_name_the_place() {
    let open = |memory: &Memory| {
        let error =
            Tables::open(memory, RSDP, &mut room()).map(|_| ()).expect_err("the root is wrong");
        (error.table, error.offset, error.fault)
    };
    let good = firmware(Root::Xsdt, &two_nodes());
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut memory = good.clone();
        change(memory.pieces.get_mut(&RSDP).expect("is there"));
        memory
    };
    assert_eq!(open(&Memory::default()).2, Fault::Unreadable { length: 20 });
    assert_eq!(open(&changed(&|rsdp| rsdp[0] = b'r')).2, Fault::WrongSignature);
    assert_eq!(open(&changed(&|rsdp| rsdp[8] ^= 1)).1, 8);
    assert_eq!(
        open(&changed(&|rsdp| rsdp[33] ^= 1)),
        (Signature::RSDP, 32, Fault::WrongChecksum { sum: 1 })
    );
    assert_eq!(open(&changed(&|rsdp| rsdp.truncate(30))).2, Fault::Unreadable { length: 36 });
    let length = |length: u64| Fault::WrongLength { length, least: 36, most: 4096 };
    assert_eq!(open(&changed(&|rsdp| rsdp[20] = 35)).2, length(35));
    assert_eq!(open(&changed(&|rsdp| rsdp[22] = 1)).2, length(0x1_0024));
    let elsewhere = changed(&|rsdp| {
        rsdp[24..32].copy_from_slice(&0x7ff0_0000u64.to_le_bytes());
        fix_checksum(rsdp, 32);
    });
    assert_eq!(open(&elsewhere), (Signature::XSDT, 0, Fault::WrongSignature));

    // A root table entry that leads nowhere is a fault; a null entry is not.
    for (address, ok) in [(0u64, true), (0x5000, false)] {
        let mut memory = good.clone();
        let root = *memory.pieces.keys().next_back().expect("is there");
        let bytes = memory.pieces.get_mut(&root).expect("is there");
        bytes[36..44].copy_from_slice(&address.to_le_bytes());
        fix_checksum(bytes, 9);
        let mut copies = room();
        let tables = Tables::open(&memory, RSDP, &mut copies).expect("the root is right");
        let found = tables.find(Signature::SLIT);
        assert_eq!(found.is_ok_and(|table| table.is_some()), ok, "{address:#x}");
        assert_eq!(count_cpus(&tables), 1);
    }
}

#[test]
fn errors_read_well() {
    let [madt, srat, slit] = two_nodes();
    let memory = firmware(Root::Xsdt, &[madt, patched(srat, 49, &[0]), slit]);
    let error = read(&memory, |_| {}).expect_err("the table is wrong");
    assert_eq!(
        error.to_string(),
        "ACPI: SRAT at 0x80000000, byte 48: an entry of kind 0 has 0 bytes (it must have 2 to 264)"
    );
}

#[test]
fn clocks_are_where_the_tables_say() {
    let mut hpet = vec![0; 20];
    hpet[8..16].copy_from_slice(&0xfed0_0000u64.to_le_bytes());
    let mut fadt = vec![0; 80];
    fadt[40..44].copy_from_slice(&0x608u32.to_le_bytes());
    fadt[55] = 4;
    let memory = firmware(Root::Xsdt, &[table(b"HPET", 1, &hpet), table(b"FACP", 3, &fadt)]);
    let mut copies = room();
    let tables = Tables::open(&memory, RSDP, &mut copies).expect("the root is right");
    assert_eq!(hpet_address(&tables), Ok(Some(0xfed0_0000)));
    assert_eq!(power_timer(&tables).expect("is right").map(|timer| timer.port), Some(0x608));

    for (address, expected) in [
        (0xfed0_0002u64, None),
        (0xfed0_0004, None),
        (0xfed0_0401, None),
        (0xfed0_0400, Some(0xfed0_0400)),
        (0, None),
    ] {
        hpet[8..16].copy_from_slice(&address.to_le_bytes());
        let memory = firmware(Root::Xsdt, &[table(b"HPET", 1, &hpet)]);
        let mut copies = room();
        let tables = Tables::open(&memory, RSDP, &mut copies).expect("the root is right");
        assert_eq!(hpet_address(&tables), Ok(expected), "{address:#x}");
    }

    hpet[8..16].copy_from_slice(&0xfed0_0000u64.to_le_bytes());
    hpet[4] = 1; // in port space
    fadt[55] = 0; // of no length
    let memory = firmware(Root::Rsdt, &[table(b"HPET", 1, &hpet), table(b"FACP", 3, &fadt)]);
    let mut copies = room();
    let tables = Tables::open(&memory, RSDP, &mut copies).expect("the root is right");
    assert_eq!(hpet_address(&tables), Ok(None));
    assert_eq!(power_timer(&tables), Ok(None));

    let memory = firmware(Root::Rsdt, &[table(b"HPET", 1, &[0; 19]), table(b"FACP", 3, &[0; 55])]);
    let mut copies = room();
    let tables = Tables::open(&memory, RSDP, &mut copies).expect("the root is right");
    assert!(hpet_address(&tables).is_err());
    assert!(power_timer(&tables).is_err());
}
