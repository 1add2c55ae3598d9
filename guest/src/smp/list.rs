//! Finds out which CPUs there are, and which of them are left out.
//!
//! Orders of memory: Relaxed: written before other CPUs run.

use super::{COUNT, CPUS, MAX_CPUS, count};
use crate::console::log;
use crate::firmware::AcpiTables;
use core::sync::atomic::Ordering;
use framewright::firmware::Topology;
use framewright::units::NodeId;
use framewright_arch::acpi::visit_cpus;
use framewright_arch::x86_64::local_apic::{LARGEST_XAPIC_ID, has_x2apic, initial_id};

/// At most this many left-out CPUs of each kind are named one by one.
const NAMED: usize = 8;

/// The CPUs that are left out.
#[derive(Default)]
pub struct LeftOut {
    twice: Few,
    beyond: Few,
    unreachable: Few,
    /// Whether the CPU that runs this is in no table.
    boot_cpu_unlisted: bool,
}

/// Up to `NAMED` identifiers, and how many there are in all.
#[derive(Default)]
struct Few {
    ids: [u32; NAMED],
    count: usize,
}

impl Few {
    fn add(&mut self, id: u32) {
        if let Some(slot) = self.ids.get_mut(self.count) {
            *slot = id;
        }
        self.count += 1;
    }

    fn log(&self, why: core::fmt::Arguments<'_>) {
        for id in self.ids.iter().take(self.count) {
            log!("smp: CPU with APIC ID {id} left out: {why}");
        }
        if self.count > NAMED {
            log!("smp: and {} more", self.count - NAMED);
        }
    }
}

/// Gives every enabled CPU of the MADT a number and a node: this CPU gets 0, and the others follow
/// in the table's order. `more` is a CPU that no table lists.
pub fn list(tables: Option<&AcpiTables>, topology: &Topology<'_>, more: Option<u32>) -> LeftOut {
    let own = initial_id();
    let mut left_out = LeftOut { boot_cpu_unlisted: tables.is_some(), ..LeftOut::default() };
    set(0, own, NodeId::ZERO);
    let wide = has_x2apic();
    let mut visit = |apic_id: u32, node: NodeId| {
        let next = count();
        if apic_id == own && left_out.boot_cpu_unlisted {
            left_out.boot_cpu_unlisted = false;
            set(0, own, node);
        } else if super::all().any(|cpu| cpu.apic_id() == apic_id) {
            left_out.twice.add(apic_id);
        } else if !wide && apic_id > LARGEST_XAPIC_ID {
            left_out.unreachable.add(apic_id);
        } else if next as usize >= MAX_CPUS {
            left_out.beyond.add(apic_id);
        } else {
            set(next, apic_id, node);
            COUNT.store(next + 1, Ordering::Relaxed);
        }
    };
    if let Some(tables) = tables {
        visit_cpus(tables, topology, &mut visit);
    }
    if let Some(more) = more {
        visit(more, NodeId::ZERO);
    }
    left_out
}

fn set(index: u32, apic_id: u32, node: NodeId) {
    if let Some(cpu) = CPUS.get(index as usize) {
        cpu.index.store(index, Ordering::Relaxed);
        cpu.apic_id.store(apic_id, Ordering::Relaxed);
        cpu.node.store(u32::try_from(node.index()).unwrap_or(0), Ordering::Relaxed);
    }
}

impl LeftOut {
    /// Logs which CPUs were left out, and why.
    pub fn log(&self) {
        if self.boot_cpu_unlisted && count() > 1 {
            log!("smp: the boot CPU, with APIC ID {}, is not in the MADT", initial_id());
        }
        self.twice.log(format_args!("listed twice"));
        self.unreachable.log(format_args!("it needs x2APIC, which this CPU lacks"));
        self.beyond.log(format_args!("at most {MAX_CPUS} CPUs are supported"));
    }
}
