//! Reads a Linux boot log: the firmware map (`BIOS-e820:` lines) and the affinity table (`SRAT:`
//! lines) as the kernel printed them.
//!
//! Other lines are skipped. A line that begins like one of these and cannot be read is an error,
//! because a map with a line missing is a wrong map. If a file has several boots, the first is
//! used.

use super::e820_line::{self, Entry};
use super::error::SourceError;
use super::log_line::message;
use super::machine::{Affinity, CpuAffinity, MAX_CPUS, Machine};
use super::reader::{Line, lines};
use super::srat_line::{self, Srat};
use framewright::firmware::MapRange;

/// Whether any line belongs to the firmware map or the affinity table.
pub(super) fn recognise(text: &str) -> bool {
    text.lines().map(message).any(|message| {
        e820_line::content(message).is_some() || srat_line::content(message).is_some()
    })
}

/// What the log of one boot says.
#[derive(Default)]
struct Boot {
    ranges: Vec<MapRange>,
    affinities: Vec<Affinity>,
    /// APIC IDs and nodes, in the order of the log.
    cpus: Vec<(u64, u32)>,
    brought_up: Option<u32>,
    remarks: Vec<String>,
}

/// Reads the first boot of a log.
pub(super) fn parse(name: &str, text: &str) -> Result<Machine, SourceError> {
    let mut boots = vec![Boot::default()];
    for line in lines(name, text) {
        read_line(&mut boots, line)?;
    }
    let count = boots.iter().filter(|boot| !boot.ranges.is_empty()).count();
    let mut with_map = boots.into_iter().filter(|boot| !boot.ranges.is_empty());
    let mut boot =
        with_map.next().ok_or_else(|| SourceError::NoMemory { name: name.to_owned() })?;
    let mut machine = Machine { name: name.to_owned(), ..Machine::default() };
    if count > 1 {
        // A console that replays lines it missed prints the map twice before the first affinity
        // line.
        let silent = boot.affinities.is_empty() && boot.cpus.is_empty();
        match with_map.next() {
            Some(again) if silent && again.ranges == boot.ranges => boot = again,
            _ => {}
        }
        machine.notes.push(format!("the log holds {count} memory maps; the first is used"));
    }
    machine.ranges = boot.ranges;
    machine.affinities = boot.affinities;
    machine.notes.append(&mut boot.remarks);
    // The log numbers CPUs by their APIC IDs. Linux's own numbers follow the same order except on
    // odd firmware.
    machine.cpus =
        (0..).zip(&boot.cpus).map(|(cpu, &(_, node))| CpuAffinity { cpu, node }).collect();
    if machine.cpus.is_empty() {
        match boot.brought_up {
            Some(cpus) => {
                machine.set_cpus(cpus)?;
                machine.notes.push(format!(
                    "the log says only that there are {cpus} CPUs; they are assigned to the nodes \
                     in turn"
                ));
            }
            None => machine.notes.push("the log names no CPU".to_owned()),
        }
    }
    Ok(machine)
}

fn read_line(boots: &mut Vec<Boot>, line: Line<'_>) -> Result<(), SourceError> {
    let message = message(line.text);
    let last = boots.len() - 1;
    let boot = &mut boots[last];
    if let Some(content) = e820_line::content(message) {
        let entry = e820_line::read(content).ok_or_else(|| {
            let is_reversed = e820_line::has_impossible_range(content);
            line.unreadable(if is_reversed { e820_line::ASCENDING } else { e820_line::EXPECTED })
        })?;
        if let Entry::Range(range) = entry {
            add_range(boots, range);
        }
    } else if let Some(content) = srat_line::content(message) {
        match srat_line::read(content).ok_or_else(|| line.unreadable(srat_line::EXPECTED))? {
            Srat::Memory(affinity) if !boot.affinities.contains(&affinity) => {
                boot.affinities.push(affinity)
            }
            Srat::Cpu { apic, node } => add_cpu(boot, apic, node, line)?,
            Srat::Remark if boot.remarks.len() < 16 => {
                boot.remarks.push(format!("Linux said: {message}"))
            }
            Srat::Memory(_) | Srat::Remark | Srat::Nothing => {}
        }
    } else if message.starts_with("Linux version ")
        || message.starts_with("BIOS-provided physical RAM map")
    {
        if !boot.ranges.is_empty() {
            boots.push(Boot::default());
        }
    } else if let Some(cpus) = brought_up(message) {
        boot.brought_up.get_or_insert(cpus);
    }
    Ok(())
}

/// Adds a range. A range that equals the first one begins a new boot. A line that is printed twice
/// in a row counts once.
fn add_range(boots: &mut Vec<Boot>, range: MapRange) {
    let last = boots.len() - 1;
    let known = &mut boots[last].ranges;
    if known.last() == Some(&range) {
        return;
    }
    if known.first() == Some(&range) {
        boots.push(Boot { ranges: vec![range], ..Boot::default() });
    } else {
        known.push(range);
    }
}

fn add_cpu(boot: &mut Boot, apic: u64, node: u32, line: Line<'_>) -> Result<(), SourceError> {
    match boot.cpus.iter().find(|known| known.0 == apic) {
        Some(&(_, known)) if known == node => Ok(()),
        Some(&(_, known)) => {
            Err(line
                .unreadable(&format!("APIC {apic:#x} on node {known}, as an earlier line says")))
        }
        None if boot.cpus.len() >= MAX_CPUS as usize => {
            Err(line.unreadable(&format!("at most {} CPUs", MAX_CPUS)))
        }
        None => {
            boot.cpus.push((apic, node));
            Ok(())
        }
    }
}

/// Returns the number in `smp: Brought up 2 nodes, 32 CPUs` and older forms of this line.
fn brought_up(message: &str) -> Option<u32> {
    let rest = message.split_once("Brought up ").or_else(|| message.split_once("Booted up "))?.1;
    let number = rest.split_once(" CPU")?.0;
    let number = number.rsplit(' ').next()?;
    super::size::parse_decimal(number).filter(|cpus| (1..=MAX_CPUS).contains(cpus))
}
