//! The properties of a machine that the model uses. Zones are those of a bring-up in this process,
//! and deferral begins where the library begins it.

use super::predict::SECTION_PAGES;
use framewright::Manager;
use framewright::internals::deferred_sections;
use framewright::units::{PAGE_SHIFT, PAGES_PER_BLOCK, PfnRange};
use framewright_cli::error::Error;
use framewright_cli::hosted::{Session, Silent};
use framewright_hosted::{HostedPlatform, Machine};
use std::ops::Range;

/// A machine.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The machine's name.
    pub name: String,
    /// The machine's memory.
    pub present_bytes: u64,
    /// The number of CPUs.
    pub cpus: u32,
    /// The number of zones with memory.
    pub zones: u32,
    /// The nodes with memory.
    pub nodes: Vec<Node>,
}

/// A node of the machine.
#[derive(Clone, Debug)]
pub struct Node {
    /// The node's number.
    pub number: usize,
    /// The node's CPUs, or one thread if it has none.
    pub threads: u32,
    /// All of the node's memory, in pages.
    pub pages: u64,
    /// The range of deferred sections, by number, holes included.
    pub deferred: Range<u32>,
    /// The memory in the deferred range, ascending.
    pub runs: Vec<PfnRange>,
}

impl Node {
    /// The number of deferred sections, holes included.
    pub fn sections(&self) -> u64 {
        u64::from(self.deferred.end.saturating_sub(self.deferred.start))
    }

    /// The number of the node's pages in a range of frames.
    pub fn pages_within(&self, frames: Range<u64>) -> u64 {
        let within = |run: &PfnRange| {
            run.end.0.min(frames.end).saturating_sub(run.start.0.max(frames.start))
        };
        self.runs.iter().map(within).sum()
    }

    /// The number of deferred pages.
    pub fn deferred_pages(&self) -> u64 {
        self.pages_within(
            u64::from(self.deferred.start) * SECTION_PAGES
                ..u64::from(self.deferred.end) * SECTION_PAGES,
        )
    }
}

impl Shape {
    /// The shape of a machine that this process can emulate.
    ///
    /// # Errors
    /// Fails if this process cannot emulate the machine.
    pub fn of(machine: &Machine) -> Result<Self, Error> {
        let pass =
            Session::open(machine, "memmap_init=on-demand pages=none")?.bring_up(&mut Silent)?;
        Ok(Self::brought_up(machine, pass.manager()))
    }

    /// The shape of a machine that has been brought up.
    pub fn brought_up(machine: &Machine, manager: &Manager<HostedPlatform>) -> Self {
        let cpu_nodes = machine.cpu_nodes();
        let mut nodes: Vec<Node> = Vec::new();
        for zone in manager.views() {
            let id = zone.id();
            // Zones come in ascending order, and a node's last zone is the deferred one.
            let runs: Vec<PfnRange> = zone
                .segments()
                .map(|segment| {
                    let block = |number: u32| u64::from(number) * PAGES_PER_BLOCK;
                    PfnRange::new(block(segment.start.0), block(segment.end().0))
                })
                .collect();
            let deferred = deferred_sections(runs.iter().copied()).unwrap_or(0..0);
            let number = id.node.index();
            let pages = zone.present_pages();
            match nodes.iter_mut().find(|node| node.number == number) {
                Some(node) => {
                    node.pages += pages;
                    (node.deferred, node.runs) = (deferred, runs);
                }
                None => {
                    let own = cpu_nodes.iter().filter(|node| node.index() == number).count();
                    let threads = u32::try_from(own).unwrap_or(u32::MAX).max(1);
                    nodes.push(Node { number, threads, pages, deferred, runs });
                }
            }
        }
        Self {
            name: machine.name.clone(),
            present_bytes: manager.totals().present_pages << PAGE_SHIFT,
            cpus: machine.cpu_count(),
            zones: u32::try_from(manager.views().count()).unwrap_or(u32::MAX),
            nodes,
        }
    }

    /// The number of pages of all nodes.
    pub fn pages(&self) -> u64 {
        self.nodes.iter().map(|node| node.pages).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_two_nodes() {
        let machine = Machine::synthetic(8 << 30, 2, 5).expect("is one");
        let shape = Shape::of(&machine).expect("can be brought up");
        assert_eq!((shape.cpus, shape.nodes.len(), shape.zones), (5, 2, 4));
        // CPUs are dealt to the nodes in turn.
        assert_eq!(shape.nodes.iter().map(|node| node.threads).collect::<Vec<_>>(), [3, 2]);
        // Node 0 has 2 GiB below 4 GiB and 2 GiB above; node 1 has the next 4 GiB.
        let sections: Vec<_> = shape.nodes.iter().map(Node::sections).collect();
        assert_eq!(sections, [15, 31]);
        assert_eq!(shape.nodes[1].deferred_pages(), 31 * SECTION_PAGES);
        assert!(shape.pages() << PAGE_SHIFT <= 8 << 30 && shape.pages() << PAGE_SHIFT > 8128 << 20);
    }

    #[test]
    fn holes_have_no_pages() {
        let runs = vec![PfnRange::new(0, 100), PfnRange::new(SECTION_PAGES, 2 * SECTION_PAGES)];
        let node = Node { number: 0, threads: 1, pages: 100 + SECTION_PAGES, deferred: 0..2, runs };
        assert_eq!(
            (node.pages_within(50..SECTION_PAGES + 7), node.deferred_pages()),
            (57, 100 + SECTION_PAGES)
        );
    }
}
