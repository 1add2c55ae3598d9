//! Firmware tables that are wrong about anything but nodes: machines in QEMU whose ACPI tables are
//! all made here. QEMU builds none itself (`acpi=off`); its firmware places our tables by the same
//! list of commands by which it would place QEMU's.

mod common;

use common::{Scratch, check_sums, finish, program};
use serde_json::Value;
use std::fs;

/// An ACPI table as it will be in memory.
#[derive(Clone)]
struct Table {
    bytes: Vec<u8>,
    /// Whether firmware makes the bytes sum to zero.
    is_summed: bool,
}

/// Builds a table whose header is right but for the checksum, which firmware fills in.
fn table(signature: &str, body: &[u8]) -> Table {
    let mut bytes = vec![0; 36];
    bytes[..4].copy_from_slice(signature.as_bytes());
    bytes.extend(body);
    let length = u32::try_from(bytes.len()).expect("a small table");
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes[8] = 1;
    Table { bytes, is_summed: true }
}

impl Table {
    fn with_length(mut self, length: u32) -> Self {
        self.bytes[4..8].copy_from_slice(&length.to_le_bytes());
        self
    }

    fn with_wrong_sum(mut self) -> Self {
        self.is_summed = false;
        self
    }
}

/// Builds a MADT of these entries.
fn madt(entries: &[Vec<u8>]) -> Table {
    let head = [0xfee0_0000u32, 1].into_iter().flat_map(u32::to_le_bytes);
    table("APIC", &head.chain(entries.concat()).collect::<Vec<_>>())
}

fn cpu(apic_id: u8) -> Vec<u8> {
    vec![0, 8, apic_id, apic_id, 1, 0, 0, 0]
}

/// The file that holds everything but the root pointer.
const TABLES: &str = "etc/acpi/tables";
const POINTER: &str = "etc/acpi/rsdp";

/// Commands for firmware, 128 bytes each.
struct Commands(Vec<u8>);

impl Commands {
    fn add(&mut self, command: u32, files: &[&str], numbers: &[u8]) {
        let end = self.0.len() + 128;
        self.0.extend(command.to_le_bytes());
        for file in files {
            self.0.extend(file.as_bytes());
            self.0.extend(vec![0; 56 - file.len()]);
        }
        self.0.extend(numbers);
        self.0.resize(end, 0);
    }

    /// Allocates memory for a file, either below 4 GiB or where the root pointer is searched for.
    fn allocate(&mut self, file: &str, near_the_bios: bool) {
        self.add(1, &[file], &[64, 0, 0, 0, 1 + u8::from(near_the_bios)]);
    }

    /// Adds the address of the tables to 4 bytes of a file.
    fn relocate(&mut self, file: &str, offset: usize) {
        self.add(2, &[file, TABLES], &[&le(offset)[..], &[4]].concat());
    }

    fn sum(&mut self, file: &str, at: usize, start: usize, length: usize) {
        self.add(3, &[file], &[le(at), le(start), le(length)].concat());
    }
}

fn le(number: usize) -> [u8; 4] {
    u32::try_from(number).expect("a small number").to_le_bytes()
}

/// Boots a machine of two CPUs with these tables and a root table that lists them, followed by
/// `addresses`.
fn boot_with(
    name: &str,
    tables: &[Table],
    addresses: &[u32],
    root: impl FnOnce(Table) -> Table,
    more: &[&str],
) -> Value {
    let folder = Scratch::new(name);
    let count = tables.len() + addresses.len();
    let mut body = vec![0; 4 * count];
    for (entry, address) in body.chunks_exact_mut(4).skip(tables.len()).zip(addresses) {
        entry.copy_from_slice(&address.to_le_bytes());
    }
    let mut commands = Commands(Vec::new());
    commands.allocate(POINTER, true);
    commands.allocate(TABLES, false);
    let mut blob = root(table("RSDT", &body));
    let root_bytes = blob.bytes.len();
    let mut sums = vec![];
    for (index, table) in tables.iter().enumerate() {
        let offset = blob.bytes.len();
        blob.bytes[36 + 4 * index..][..4].copy_from_slice(&le(offset));
        commands.relocate(TABLES, 36 + 4 * index);
        if table.is_summed {
            sums.push((offset, table.bytes.len()));
        }
        blob.bytes.extend(&table.bytes);
    }
    if blob.is_summed {
        sums.push((0, root_bytes));
    }
    for (start, length) in sums {
        commands.sum(TABLES, start + 9, start, length);
    }
    commands.relocate(POINTER, 16);
    commands.sum(POINTER, 8, 0, 20);
    let mut pointer = b"RSD PTR ".to_vec();
    pointer.resize(20, 0);

    let mut words: Vec<String> = [
        "boot",
        "--on",
        "qemu",
        "--accel",
        "tcg",
        "--timeout",
        "300",
        "--json",
        "--memory=512M",
        "--cpus=2",
    ]
    .map(str::to_owned)
    .into();
    words.extend(["--qemu=-machine".to_owned(), "--qemu=q35,acpi=off".to_owned()]);
    for (file, bytes) in
        [(POINTER, &pointer), (TABLES, &blob.bytes), ("etc/table-loader", &commands.0)]
    {
        let path = folder.path(file.rsplit('/').next().expect("a name"));
        fs::write(&path, bytes).expect("a file");
        words.push("--qemu=-fw_cfg".to_owned());
        words.push(format!("--qemu=name={file},file={}", path.display()));
    }
    let report = finish(program().args(words).args(more)).json();
    check_sums(&report);
    report
}

fn boot(name: &str, tables: &[Table]) -> Value {
    boot_with(name, tables, &[], |root| root, &[])
}

/// Returns the lines of a report's log that contain `text`, without time stamps.
fn lines<'a>(report: &'a Value, text: &str) -> Vec<&'a str> {
    let log = report["log"].as_array().expect("a log");
    let lines = log
        .iter()
        .filter_map(Value::as_str)
        .filter_map(|line| line.split_once("] "))
        .map(|(_, line)| line);
    lines.filter(|line| line.contains(text)).collect()
}

/// Checks the number of CPUs and that the log says `expected`, at most once.
fn expect(report: &Value, cpus: &str, expected: &str) {
    let found = lines(report, "smp: Brought up");
    assert!(
        found.len() == 1 && found[0].starts_with(&format!("smp: Brought up 1 node, {cpus} in ")),
        "{found:?}"
    );
    if !expected.is_empty() {
        assert_eq!(lines(report, expected).len(), 1, "no {expected}: {}", report["log"]);
    }
}

#[test]
fn tables_of_our_own_are_used() {
    let report = boot("good", &[madt(&[cpu(0), cpu(1)])]);
    expect(&report, "2 CPUs", "");
    assert!(lines(&report, "going on with").is_empty(), "{}", report["log"]);
    // Only the CPU that the table lists is brought up.
    expect(&boot("one", &[madt(&[cpu(0)])]), "1 CPU", "");
}

#[test]
fn a_list_of_cpus_that_is_wrong_leaves_what_comes_before() {
    let two = || madt(&[cpu(0), cpu(1)]);
    let cut = |length| {
        let mut table = two();
        table.bytes.truncate(length);
        table.with_length(u32::try_from(length).expect("small"))
    };
    for (name, table, cpus, expected) in [
        ("madt-sum", two().with_wrong_sum(), "1 CPU", "byte 9: the checksum is wrong"),
        (
            "madt-short",
            cut(40),
            "1 CPU",
            "byte 4: a length of 40 bytes is invalid (it must be 44 to",
        ),
        (
            "madt-cut",
            cut(44 + 8 + 5),
            "1 CPU",
            "byte 52: an entry of kind 0 has 8 bytes (it must have 2 to 5)",
        ),
        (
            "madt-still",
            madt(&[cpu(0), vec![0, 0], cpu(1)]),
            "1 CPU",
            "byte 52: an entry of kind 0 has 0 bytes",
        ),
        (
            "madt-thin",
            madt(&[cpu(0), vec![0, 4, 1, 1]]),
            "1 CPU",
            "byte 52: an entry of kind 0 has 4 bytes",
        ),
        ("madt-tiny", two().with_length(7), "1 CPU", "byte 4: a length of 7 bytes is invalid"),
        (
            "madt-huge",
            two().with_length(u32::MAX),
            "1 CPU",
            "byte 4: a length of 4294967295 bytes is invalid",
        ),
    ] {
        let report = boot(name, &[table]);
        expect(&report, cpus, expected);
        let said = lines(&report, "going on with one node");
        assert!(said.len() == 1 && said[0].starts_with("ACPI: APIC at 0x"), "{name}: {said:?}");
    }
    // Entries of unknown kinds are skipped, and disabled CPUs are not counted.
    let off = vec![0, 8, 7, 7, 0, 0, 0, 0];
    expect(&boot("madt-odd", &[madt(&[vec![0x7f, 3, 1], cpu(0), off, cpu(1)])]), "2 CPUs", "");
}

#[test]
fn missing_tables() {
    // A machine with no tables at all, then one with every table but the CPUs'.
    let report = boot("nothing", &[]);
    expect(&report, "1 CPU", "");
    expect(&boot("no-madt", &[table("SSDT", &[0; 9])]), "1 CPU", "");
}

#[test]
fn a_root_table_that_is_wrong() {
    let good = [madt(&[cpu(0), cpu(1)])];
    let report = boot_with("root-sum", &good, &[], Table::with_wrong_sum, &[]);
    expect(&report, "1 CPU", "ACPI: RSDT at 0x");
    let report = boot_with("root-short", &good, &[], |root| root.with_length(20), &[]);
    expect(&report, "1 CPU", "a length of 20 bytes is invalid");
    // An entry of the root table is null or points beyond the first 4 GiB; the tables before it are
    // found all the same.
    expect(&boot_with("root-null", &good, &[0, 0], |root| root, &[]), "2 CPUs", "");
    let report = boot_with("root-end", &[], &[0xffff_fff0], |root| root, &[]);
    expect(&report, "1 CPU", "going on with one node");
}

#[test]
fn clocks_that_are_wrong() {
    let cpus = madt(&[cpu(0), cpu(1)]);
    // The table's address lies in RAM; it is the last eight bytes of the generic address.
    let mut over_memory = [0; 20];
    over_memory[8..12].copy_from_slice(&0x100_0000u32.to_le_bytes());
    for (name, bad, expected) in [
        (
            "hpet-memory",
            table("HPET", &over_memory),
            "ACPI: HPET at 0x1000000 lies over memory; it is left alone",
        ),
        ("hpet-short", table("HPET", &[0; 4]), "ACPI: HPET at 0x"),
        ("hpet-sum", table("HPET", &[0; 20]).with_wrong_sum(), "ACPI: HPET at 0x"),
    ] {
        let report = boot(name, &[cpus.clone(), bad]);
        expect(&report, "2 CPUs", expected);
        assert_eq!(lines(&report, "measured against").len(), 1, "{name}: {}", report["log"]);
    }
    // Without the better clock the kernel tries the next one, and then the one that every machine
    // has.
    let no_hpet = ["--qemu=-machine", "--qemu=hpet=off"];
    let report =
        boot_with("fadt-short", &[cpus, table("FACP", &[0; 40])], &[], |root| root, &no_hpet);
    expect(&report, "2 CPUs", "ACPI: FACP at 0x");
    assert_eq!(lines(&report, "measured against the interval timer").len(), 1, "{}", report["log"]);
}

#[test]
fn more_cpus_than_there_is_room_for() {
    // All 255 identifiers of eight bits, each twice; most of these CPUs do not exist.
    let ids: Vec<_> = (0..=254).chain(0..=254).map(cpu).collect();
    let report = boot("many", &[madt(&ids)]);
    expect(&report, "2 CPUs", "");
    assert_eq!(lines(&report, "did not start").len(), 253, "{:?}", lines(&report, "smp"));
    assert_eq!(lines(&report, "left out: listed twice").len(), 8, "{:?}", lines(&report, "smp"));
    assert_eq!(lines(&report, "smp: and 247 more").len(), 1, "{:?}", lines(&report, "smp"));
}
