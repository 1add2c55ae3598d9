//! Real machines whose zones Linux has counted.

use crate::common::{Count, count, machine_path, machine_text, pages};
use framewright_hosted::{Machine, SourceError};

const SUN: &str = "sun-x4600m2-128g-8node.dmesg";
const MICROVM: &str = "microvm-24g-1node.dmesg";
const Q35: &str = "qemu-q35-8g-2node.dmesg";

fn expected(file: &str) -> Vec<(usize, &'static str, u64)> {
    match file {
        SUN => {
            let mut all = vec![(0, "DMA", 3992), (0, "DMA32", 880_544), (0, "Normal", 3_309_568)];
            all.extend((1..8).map(|node| (node, "Normal", 4_194_304)));
            all
        }
        MICROVM => vec![(0, "DMA", 3998), (0, "DMA32", 782_336), (0, "Normal", 5_505_024)],
        _ => vec![
            (0, "DMA", 3998),
            (0, "DMA32", 520_159),
            (0, "Normal", 524_288),
            (1, "Normal", 1_048_576),
        ],
    }
}

#[test]
fn present_pages_are_those_of_linux() {
    for (file, total, cpus, nodes) in
        [(SUN, 33_554_232, 32, 8), (MICROVM, 6_291_358, 0, 1), (Q35, 2_097_021, 0, 2)]
    {
        let machine = Machine::from_file(&machine_path(file)).unwrap();
        let found = pages(&machine);
        assert_eq!(found, expected(file), "{file}");
        assert_eq!(found.iter().map(|zone| zone.2).sum::<u64>(), total, "{file}");
        assert_eq!(found.last().unwrap().0 + 1, nodes, "{file}");
        assert_eq!(machine.cpus.len(), cpus, "{file}");
        assert!(machine.name.ends_with(file));
    }
}

#[test]
fn spans_are_those_of_linux() {
    let q35 = count(&Machine::parse(Q35, &machine_text(Q35)).unwrap());
    assert_eq!(q35[&(0, "DMA")], Count { pages: 3998, start: 1, end: 4096 });
    assert_eq!(q35[&(0, "Normal")], Count { pages: 524_288, start: 1_048_576, end: 1_572_864 });
    assert_eq!(q35[&(1, "Normal")], Count { pages: 1_048_576, start: 1_572_864, end: 2_621_440 });
    let microvm = count(&Machine::parse(MICROVM, &machine_text(MICROVM)).unwrap());
    assert_eq!(microvm[&(0, "Normal")].start, 1_048_576);
}

/// The answers do not depend on how the log was recorded and transferred.
#[test]
fn decorations_change_nothing() {
    let decorate: [fn(&str) -> String; 6] = [
        |line| format!("[    0.000000] {line}"),
        |line| format!("> > [    0.000000] {line}"),
        |line| format!("Nov  3 10:00:00 host kernel: [    0.000000] {line}"),
        |line| format!("<6>[    0.000000][    T0] {line}\r"),
        |line| format!("kern  :info  : [    0.000000] {line}"),
        |line| format!("[    0.000000] {line}\n[    0.000000] {line}"),
    ];
    for file in [SUN, MICROVM, Q35] {
        let plain = Machine::parse(file, &machine_text(file)).unwrap();
        for decorate in decorate {
            let text: Vec<String> = machine_text(file).lines().map(decorate).collect();
            let head = decorate("BIOS-provided physical RAM map:");
            let tail = decorate("e820: update [mem 0x00000000-0x00000fff] usable ==> reserved");
            let modified =
                decorate("modified: [mem 0x0000000000000000-0x0000000000000fff] reserved");
            let text = format!(
                "a line of mail\n{head}\n{}\n{tail}\n{modified}\n-- \nme\n",
                text.join("\n")
            );
            let machine = Machine::parse(file, &text).unwrap();
            assert_eq!(machine, plain, "{text}");
            assert_eq!(pages(&machine), expected(file));
        }
    }
}

#[test]
fn a_log_of_several_boots_gives_the_first() {
    let (first, second) = (machine_text(Q35), machine_text(SUN));
    let machine =
        Machine::parse("log", &format!("Linux version 5\n{first}Linux version 6\n{second}"))
            .unwrap();
    assert_eq!(pages(&machine), expected(Q35));
    assert!(machine.notes.iter().any(|note| note.contains("2 memory maps")), "{:?}", machine.notes);
    // A second boot that is recognised only by its map, which starts again; only it has affinities.
    let (map, nodes) = first.split_at(first.find("ACPI: SRAT").unwrap());
    for text in [format!("{first}{first}"), format!("{map}{map}{nodes}")] {
        let machine = Machine::parse("log", &text).unwrap();
        assert_eq!(pages(&machine), expected(Q35));
        assert!(
            machine.notes.iter().any(|note| note.contains("2 memory maps")),
            "{:?}",
            machine.notes
        );
    }
}

#[test]
fn cpus_are_counted_when_the_table_names_none() {
    let text = format!("{}[    0.1] smp: Brought up 2 nodes, 4 CPUs\n", machine_text(Q35));
    let machine = Machine::parse("log", &text).unwrap();
    let nodes: Vec<u32> = machine.cpus.iter().map(|cpu| cpu.node).collect();
    assert_eq!(nodes, [0, 1, 0, 1]);
    let text = format!("{}Brought up 4 CPUs\n", machine_text(MICROVM));
    assert_eq!(Machine::parse("log", &text).unwrap().cpus.len(), 4);
    assert_eq!(Machine::parse("log", &machine_text(MICROVM)).unwrap().cpu_count(), 1);
}

#[test]
fn a_bad_line_is_an_error_that_shows_it() {
    let text =
        machine_text(Q35).replace("0x000000007ffdefff] usable", "0x000000007ffdefff] usab1e");
    let error = Machine::parse("q35", &text).unwrap_err();
    let place = error.place().unwrap();
    assert_eq!((place.line, place.name.as_str()), (4, "q35"));
    let message = error.to_string();
    assert!(
        message.contains("usab1e") && message.contains("expected a range and a type"),
        "{message}"
    );
    let text = machine_text(Q35).replace("Node 1 PXM 1", "Node one PXM 1");
    assert_eq!(Machine::parse("q35", &text).unwrap_err().place().unwrap().line, 14);
    let text = format!("{}SRAT: PXM 1 -> APIC 0x04 -> Node 1\n", machine_text(SUN));
    assert!(Machine::parse("sun", &text).unwrap_err().to_string().contains("on node 0"));
}

#[test]
fn old_boot_logs_read_the_same() {
    let text = "\
BIOS-provided physical RAM map:
 BIOS-e820: 0000000000000000 - 000000000009fc00 (usable)
 BIOS-e820: 000000000009fc00 - 00000000000a0000 (reserved)
 BIOS-e820: 00000000000f0000 - 0000000000100000 (reserved)
 BIOS-e820: 0000000000100000 - 000000007ffdf000 (usable)
 BIOS-e820: 000000007ffdf000 - 0000000080000000 (reserved)
 BIOS-e820: 0000000100000000 - 0000000280000000 (usable)
SRAT: PXM 0 -> APIC 0 -> Node 0
SRAT: PXM 1 -> APIC 1 -> Node 1
SRAT: Node 0 PXM 0 0-a0000
SRAT: Node 0 PXM 0 100000-80000000
SRAT: Node 0 PXM 0 100000000-180000000
SRAT: Node 1 PXM 1 180000000-280000000
";
    let machine = Machine::parse("old", text).unwrap();
    assert_eq!(pages(&machine), expected(Q35));
    assert_eq!(machine.cpus.len(), 2);
}

/// Loading reports overlaps and numbers beyond limits, in the library's words with the machine's
/// name.
#[test]
fn impossible_machines_are_refused() {
    let load = |text: &str| {
        use framewright::firmware::{MapBuilder, Topology};
        let machine = Machine::parse("odd", text).unwrap();
        let (mut ranges, mut claims) = (machine.map_storage(), machine.topology_storage());
        machine
            .load(&mut MapBuilder::new(&mut ranges), &mut Topology::new(&mut claims))
            .unwrap_err()
    };
    let memory = "memory 0 +4G usable\n";
    let error = load(&format!("{memory}node 0 memory 0 +2G\nnode 1 memory 1G +2G\n"));
    assert!(matches!(error, SourceError::Topology { .. }));
    assert!(error.to_string().starts_with("odd: nodes 0 and 1 both claim"), "{error}");
    let error = load(&format!("{memory}node 1024 cpus 0\n"));
    assert!(error.to_string().contains("node 1024 is beyond the limit of 1024"), "{error}");
    let error = load(&format!("{memory}distance 0 1 5\n"));
    assert!(error.to_string().contains("distance 5"), "{error}");
    let error = load("memory 0x10000000000000 +1G usable\n");
    assert!(matches!(error, SourceError::Map { .. }), "{error}");
}

#[test]
fn a_made_up_machine_is_a_q35() {
    let mut real = Machine::parse(Q35, &machine_text(Q35)).unwrap();
    real.set_cpus(4).unwrap();
    let made = Machine::synthetic(8 << 30, 2, 4).unwrap();
    assert_eq!(
        (&made.ranges, &made.affinities, &made.cpus),
        (&real.ranges, &real.affinities, &real.cpus)
    );
    assert_eq!(pages(&made), expected(Q35));
    for (bytes, nodes) in [
        (8 << 20, 1),
        (64 << 20, 2),
        (1 << 30, 3),
        (2 << 30, 1),
        (3 << 30, 64),
        (24 << 40, 8),
        (64 << 30, 1024),
    ] {
        let machine = Machine::synthetic(bytes, nodes, 5).unwrap();
        let total: u64 = pages(&machine).iter().map(|zone| zone.2).sum();
        // 96 frames of ROM, frame 0, the frame that is cut at 639 KiB, 33 frames of tables.
        assert_eq!(total, bytes / 4096 - 131, "{bytes} {nodes}");
        let with_memory = pages(&machine).iter().map(|zone| zone.0).max().unwrap() + 1;
        assert_eq!(with_memory, nodes as usize);
    }
    assert!(matches!(Machine::synthetic(1 << 20, 1, 1), Err(SourceError::MemorySize { .. })));
    assert!(matches!(Machine::synthetic(u64::MAX, 1, 1), Err(SourceError::MemorySize { .. })));
    assert!(matches!(Machine::synthetic(1 << 30, 0, 1), Err(SourceError::NodeCount { .. })));
    assert!(matches!(Machine::synthetic(1 << 30, 1025, 1), Err(SourceError::NodeCount { .. })));
    assert!(matches!(Machine::synthetic(1 << 30, 1, 0), Err(SourceError::CpuCount { .. })));
    let error = Machine::synthetic(16 << 20, 4, 1).unwrap_err().to_string();
    assert!(error.starts_with("too many nodes: 4 nodes"), "{error}");
}

#[test]
fn nodes_are_emulated_evenly() {
    let mut machine = Machine::from_file(&machine_path(SUN)).unwrap();
    let total = 33_554_232_u64;
    for nodes in [1_u32, 3, 8, 64, 1024] {
        machine.emulate_nodes(nodes).unwrap();
        let found = pages(&machine);
        assert_eq!(found.iter().map(|zone| zone.2).sum::<u64>(), total);
        for node in 0..nodes as usize {
            let own: u64 = found.iter().filter(|zone| zone.0 == node).map(|zone| zone.2).sum();
            assert!(
                own.abs_diff(total / u64::from(nodes)) <= 512,
                "node {node} of {nodes} has {own} pages"
            );
            assert_eq!(machine.affinities[node].range.start % (2 << 20), 0);
        }
        assert_eq!(machine.cpus[5].node, 5 % nodes);
    }
    machine.set_cpus(7).unwrap();
    assert_eq!(machine.cpus[6].node, 6);
    assert!(matches!(machine.set_cpus(0), Err(SourceError::CpuCount { cpus: 0 })));
    let before = machine.clone();
    assert!(matches!(machine.emulate_nodes(0), Err(SourceError::NodeCount { nodes: 0 })));
    assert!(matches!(machine.emulate_nodes(1025), Err(SourceError::NodeCount { nodes: 1025 })));
    assert_eq!(machine, before);
    let mut small = Machine::synthetic(128 << 20, 1, 1).unwrap();
    let error = small.emulate_nodes(4).unwrap_err().to_string();
    assert!(
        error.starts_with("too many nodes: 4 nodes of at least 32 MiB need 128 MiB"),
        "{error}"
    );
    small.emulate_nodes(3).unwrap();
}

#[test]
fn hot_pluggable_memory_stays_so_when_nodes_are_emulated() {
    let text = "memory 0 +4G usable\nnode 0 memory 0 +1G\nnode 1 memory 1G +3G hotplug\n";
    let mut machine = Machine::parse("hot", text).unwrap();
    machine.emulate_nodes(2).unwrap();
    assert_eq!(pages(&machine).iter().map(|zone| zone.2).sum::<u64>(), (4 << 18) - 97);
    let hot: u64 = machine
        .affinities
        .iter()
        .filter(|part| part.hot_pluggable)
        .map(|part| part.range.size())
        .sum();
    assert_eq!(hot, 3 << 30);
}

/// Every sample in the repository can be parsed and loaded.
#[test]
fn all_machines_load() {
    let folder = machine_path("");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension != "md") {
            let machine = Machine::from_file(&path).unwrap();
            assert!(!pages(&machine).is_empty(), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 5);
}

#[test]
fn files_that_cannot_be_read() {
    let error = Machine::from_file(&machine_path("absent")).unwrap_err();
    assert!(error.to_string().starts_with("cannot read "), "{error}");
    let error = Machine::from_file(std::path::Path::new("/dev/zero")).unwrap_err();
    assert!(matches!(error, SourceError::FileTooLarge { .. }), "{error}");
}
