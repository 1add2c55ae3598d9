//! Builds a topology from the tables: either all of it or none, except that distances may be
//! missing.

use super::domains::{Domains, MAX_CPUS};
use super::error::{AcpiError, Fault, Signature};
use super::madt::cpus;
use super::slit::{self, Slit};
use super::srat::{Affinity, affinities};
use super::table::Table;
use super::tables::Tables;
use framewright::firmware::Topology;
use framewright::units::{NodeId, PhysRange};

/// Fills an empty topology from MADT, SRAT and SLIT. Without these tables there is one node, one
/// CPU, and default distances.
///
/// Nodes are numbered as in Linux: first the domains of CPUs, then those of memory, each in the
/// order of the table. A CPU that the SRAT does not mention goes to node 0.
///
/// # Errors
/// The first fault that was found. The topology then has one node with as many CPUs as
/// [`count_cpus`] says, and boot can go on. A malformed SLIT costs only the distances: nodes,
/// memory and CPUs are as in the other tables, the distances are those of a machine without a SLIT,
/// and the error names the SLIT.
pub fn read_topology(tables: &Tables<'_>, topology: &mut Topology<'_>) -> Result<(), AcpiError> {
    match place(tables, topology) {
        // Without correct distances, only the order of the nodes' fallback lists is worse; memory
        // and CPUs stay where they are.
        Ok(()) => place_distances(tables, topology).inspect_err(|_| topology.forget_distances()),
        Err(error) => {
            // No CPU was added before the fault, so all of them are added here.
            topology.flatten();
            for _ in 0..count_cpus(tables) {
                let _ = topology.add_cpu(NodeId::ZERO);
            }
            Err(error)
        }
    }
}

/// How many CPUs the MADT says are enabled: at least one, and at most [`MAX_CPUS`]. In a malformed
/// table the entries before the fault count.
pub fn count_cpus(tables: &Tables<'_>) -> usize {
    let table = tables.find(Signature::MADT).ok().flatten();
    let listed = table.and_then(|table| cpus(table).ok());
    listed.map_or(1, |cpus| cpus.flatten().filter(|cpu| cpu.enabled).take(MAX_CPUS).count().max(1))
}

/// Everything that can fail comes before the first CPU is added.
fn place(tables: &Tables<'_>, topology: &mut Topology<'_>) -> Result<(), AcpiError> {
    let madt = tables.find(Signature::MADT)?;
    let srat = tables.find(Signature::SRAT)?;
    if let Some(madt) = madt {
        check_cpus(madt)?;
    }
    if let Some(srat) = srat {
        place_memory(srat, topology)?;
    }
    match madt {
        Some(madt) => place_cpus(madt, tables.domains(), topology),
        None => topology.add_cpu(NodeId::ZERO).map_err(|error| AcpiError {
            table: Signature::MADT,
            address: 0,
            offset: 0,
            fault: Fault::Contradiction(error),
        }),
    }
}

fn check_cpus(madt: Table<'_>) -> Result<(), AcpiError> {
    let mut enabled = 0;
    for cpu in cpus(madt)? {
        enabled += usize::from(cpu?.enabled);
    }
    if enabled > MAX_CPUS {
        Err(madt.error(0, Fault::TooManyEntries { most: MAX_CPUS }))
    } else {
        Ok(())
    }
}

/// Declares all nodes and claims all memory.
fn place_memory(srat: Table<'_>, topology: &mut Topology<'_>) -> Result<(), AcpiError> {
    let list = affinities(srat)?;
    let mut cpu_count = 0;
    for affinity in list.clone() {
        if let (offset, Affinity::Cpu { domain, .. }) = affinity? {
            cpu_count += 1;
            if cpu_count > MAX_CPUS {
                return Err(srat.error(offset, Fault::TooManyEntries { most: MAX_CPUS }));
            }
            topology
                .node_of_domain(domain)
                .map_err(|error| srat.error(offset, Fault::Contradiction(error)))?;
        }
    }
    for affinity in list {
        if let (offset, Affinity::Memory { start, size_bytes, domain, hot_pluggable }) = affinity? {
            let range = PhysRange::with_size(start, size_bytes);
            topology
                .node_of_domain(domain)
                .and_then(|node| topology.add_memory(range, node, hot_pluggable))
                .map_err(|error| srat.error(offset, Fault::Contradiction(error)))?;
        }
    }
    Ok(())
}

/// Sets the distances between the domains that the SRAT named; the SLIT may have more domains.
/// Without an SRAT there are no domains.
fn place_distances(tables: &Tables<'_>, topology: &mut Topology<'_>) -> Result<(), AcpiError> {
    let Some(table) = tables.find(Signature::SLIT)? else { return Ok(()) };
    if tables.find(Signature::SRAT)?.is_none() {
        return Ok(());
    }
    let distances = Slit::new(table)?;
    for from in topology.nodes() {
        for to in topology.nodes() {
            let (row, column) = (topology.domain(from) as usize, topology.domain(to) as usize);
            let Some(distance) = distances.distance(row, column) else { continue };
            // A distance that equals the default needs no room.
            if topology.distance(from, to) == distance {
                continue;
            }
            let offset = slit::FIRST_DISTANCE + row * distances.localities() + column;
            topology
                .set_distance(from, to, distance)
                .map_err(|error| table.error(offset, Fault::Contradiction(error)))?;
        }
    }
    Ok(())
}

/// Adds every enabled CPU to its node.
fn place_cpus(
    madt: Table<'_>,
    domains: Domains<'_>,
    topology: &mut Topology<'_>,
) -> Result<(), AcpiError> {
    let mut added = false;
    for (_, domain) in with_domains(madt, domains)? {
        let node = domain.and_then(|domain| topology.find_domain(domain)).unwrap_or(NodeId::ZERO);
        topology.add_cpu(node).map_err(|error| madt.error(0, Fault::Contradiction(error)))?;
        added = true;
    }
    if !added {
        // There must be a CPU, because one is executing this.
        topology
            .add_cpu(NodeId::ZERO)
            .map_err(|error| madt.error(0, Fault::Contradiction(error)))?;
    }
    Ok(())
}

/// Calls `visit` with every enabled CPU in the order of the MADT: with the identifier of its
/// interrupt controller and with its node. `topology` is as [`read_topology`] left it, or was
/// flattened since. In a malformed table the entries before the fault count; without a table there
/// is no CPU. At most [`MAX_CPUS`] are visited.
pub fn visit_cpus(
    tables: &Tables<'_>,
    topology: &Topology<'_>,
    visit: &mut dyn FnMut(u32, NodeId),
) {
    let Some(madt) = tables.find(Signature::MADT).ok().flatten() else { return };
    let Ok(cpus) = with_domains(madt, tables.domains()) else { return };
    for (apic_id, domain) in cpus.take(MAX_CPUS) {
        visit(
            apic_id,
            domain.and_then(|domain| topology.find_domain(domain)).unwrap_or(NodeId::ZERO),
        );
    }
}

/// Every enabled CPU with its domain, if it has one.
fn with_domains<'a>(
    madt: Table<'a>,
    domains: Domains<'a>,
) -> Result<impl Iterator<Item = (u32, Option<u32>)> + 'a, AcpiError> {
    let enabled = cpus(madt)?.flatten().filter(|cpu| cpu.enabled);
    Ok(enabled.map(move |cpu| (cpu.apic_id, domains.find(cpu.apic_id))))
}
