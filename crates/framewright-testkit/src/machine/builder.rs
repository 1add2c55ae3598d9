//! [`Builder`]: describes a [`FakeMachine`].

use super::accept::FakeAccept;
use super::cpu::CpuSet;
use super::fake::retire_with_thread;
use super::fake::{Clock, Counters, FakeMachine};
use super::memory::{Layout, Memory, PATTERNS};
use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::units::{NodeId, PhysRange};
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// Describes a [`FakeMachine`]; made by [`FakeMachine::builder`].
#[derive(Clone, Debug)]
#[must_use = "finish with build()"]
pub struct Builder {
    memory: Vec<(PhysRange, MemoryKind)>,
    spare: Vec<PhysRange>,
    affinity: Vec<MemoryAffinity>,
    nodes: usize,
    cpu_nodes: Vec<NodeId>,
    distances: Vec<(usize, usize, u8)>,
    direct_limit: u64,
    layout: Layout,
    pattern: Option<u8>,
    clock_step_ns: Option<u64>,
    knows_tasks: bool,
    entropy: Option<u64>,
    before: Option<&'static FakeMachine>,
    is_kept: bool,
    accepts: bool,
    is_guest: bool,
}

impl FakeMachine {
    /// Starts the description of a machine, which is empty at first.
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl Builder {
    fn new() -> Self {
        Self {
            memory: Vec::new(),
            spare: Vec::new(),
            affinity: Vec::new(),
            nodes: 0,
            cpu_nodes: Vec::new(),
            distances: Vec::new(),
            direct_limit: u64::MAX,
            layout: Layout::Auto,
            pattern: None,
            clock_step_ns: Some(0),
            knows_tasks: true,
            entropy: None,
            before: None,
            is_kept: false,
            accepts: false,
            is_guest: true,
        }
    }

    /// Adds a range of the firmware map. Ranges may come in any order and overlap.
    pub fn memory(mut self, range: PhysRange, kind: MemoryKind) -> Self {
        self.memory.push((range, kind));
        self
    }

    /// Adds conventional memory.
    pub fn ram(self, range: PhysRange) -> Self {
        self.memory(range, MemoryKind::Conventional)
    }

    /// Adds memory that the firmware does not know and that can be added while the machine runs.
    pub fn spare(mut self, range: PhysRange) -> Self {
        self.spare.push(range);
        self
    }

    /// Adds every range of a firmware map.
    pub fn firmware(mut self, ranges: &[MapRange]) -> Self {
        self.memory.extend(ranges.iter().map(|entry| (entry.range, entry.kind)));
        self
    }

    /// Assigns addresses to node `node`; they need not be memory.
    pub fn node(self, range: PhysRange, node: usize) -> Self {
        self.affinity(range, node, false)
    }

    /// Assigns addresses to node `node` whose memory may be removed later.
    pub fn hot_pluggable_node(self, range: PhysRange, node: usize) -> Self {
        self.affinity(range, node, true)
    }

    fn affinity(mut self, range: PhysRange, node: usize, hot_pluggable: bool) -> Self {
        self.affinity.push(MemoryAffinity { range, node: node_id(node), hot_pluggable });
        self
    }

    /// Declares at least `count` nodes, so that some nodes may have neither memory nor CPU.
    pub fn nodes(mut self, count: usize) -> Self {
        self.nodes = self.nodes.max(count);
        self
    }

    /// Adds `count` CPUs on node 0. A machine without CPUs gets one.
    pub fn cpus(self, count: u32) -> Self {
        self.cpus_on(0, count)
    }

    /// Adds `count` CPUs on node `node`. CPUs are numbered in the order in which they are added.
    pub fn cpus_on(mut self, node: usize, count: u32) -> Self {
        self.cpu_nodes.extend((0..count).map(|_| node_id(node)));
        self
    }

    /// Sets the distance between two nodes, in both directions.
    pub fn distance(mut self, one: usize, other: usize, distance: u8) -> Self {
        self.distances.push((one, other, distance));
        self
    }

    /// Sets the initial end of the direct map; by default it has no end.
    pub fn direct_limit(mut self, limit: u64) -> Self {
        self.direct_limit = limit;
        self
    }

    /// Puts the ranges of the map at unrelated addresses, so that only the promise of invariant 15
    /// holds. Machines with very high addresses always have this layout.
    pub fn scattered(mut self) -> Self {
        self.layout = Layout::Scattered;
        self
    }

    /// Starts with memory that is all zero.
    pub fn zeroed(self) -> Self {
        self.pattern(0)
    }

    /// Starts with `pattern` in every byte of memory. By default, each machine of a test has the
    /// next of [`PATTERNS`](super::PATTERNS), except zero, beginning with one that the test's name
    /// chooses; `FRAMEWRIGHT_PATTERN=33` sets the pattern of all machines of a run.
    pub fn pattern(mut self, pattern: u8) -> Self {
        self.pattern = Some(pattern);
        self
    }

    /// Makes every reading of the clock advance it by `ns`. By default, the clock stands still
    /// until [`FakeMachine::advance_ns`].
    pub fn clock_step_ns(mut self, ns: u64) -> Self {
        self.clock_step_ns = Some(ns);
        self
    }

    /// Makes a machine without a clock.
    pub fn no_clock(mut self) -> Self {
        self.clock_step_ns = None;
        self
    }

    /// Makes a machine with a source of entropy, which always returns `word`.
    pub fn entropy(mut self, word: u64) -> Self {
        self.entropy = Some(word);
        self
    }

    /// Makes a machine for statics, which outlives the thread that builds it. The memory of any
    /// other machine goes back to the host when that thread ends, as with [`FakeMachine::retire`]:
    /// a test program has hundreds of machines, and each test has a thread.
    pub fn kept(mut self) -> Self {
        self.is_kept = true;
        self
    }

    /// Makes a guest that can accept its unaccepted memory; [`FakeMachine::accept`] is the device.
    pub fn accepts(mut self) -> Self {
        self.accepts = true;
        self
    }

    /// Makes a machine that is not the guest of a hypervisor.
    pub fn on_bare_metal(mut self) -> Self {
        self.is_guest = false;
        self
    }

    /// Makes a machine that cannot tell its tasks apart.
    pub fn anonymous_tasks(mut self) -> Self {
        self.knows_tasks = false;
        self
    }

    /// Boots over the memory of `before`, with everything that was written to it, as after a warm
    /// reset: this is the way to bring up several managers on one memory. The machine takes over
    /// the memory map of `before` and nothing else; the vmemmap of `before` is given up.
    ///
    /// # Safety
    /// `before` and its memory are not used any more, by any manager that ran on it either.
    pub unsafe fn over(mut self, before: &'static FakeMachine) -> Self {
        // SAFETY: the obligation is passed on to the caller.
        unsafe { before.discard_vmemmap() };
        self.before = Some(before);
        self
    }

    /// Makes the machine.
    ///
    /// # Panics
    /// If the firmware intake refuses the description, or the host has no room.
    #[must_use]
    pub fn build(mut self) -> &'static FakeMachine {
        if self.cpu_nodes.is_empty() {
            self.cpu_nodes.push(NodeId::ZERO);
        }
        if crate::careful().is_some() {
            self.layout = Layout::Scattered;
        }
        // Map, topology and machine are leaked, because a manager keeps a 'static reference to its
        // platform.
        let entries = Vec::leak(vec![MapRange::EMPTY; 8 * self.memory.len() + 16]);
        let mut builder = MapBuilder::new(entries);
        for &(range, kind) in &self.memory {
            builder.add(range.start, range.size(), kind).unwrap_or_else(|error| panic!("{error}"));
        }
        let map = builder.finish().unwrap_or_else(|error| panic!("{error}"));
        let topology = Box::leak(Box::new(self.topology()));
        // Memory that becomes one region once it is accepted must be linear, like all present
        // memory.
        let mut usable: Vec<PhysRange> = Vec::new();
        let mut was_unaccepted = false;
        for entry in map.ranges() {
            let is_unaccepted = self.accepts && entry.kind == MemoryKind::Unaccepted;
            if !entry.kind.is_usable() && !is_unaccepted {
                continue;
            }
            match usable.last_mut() {
                Some(last)
                    if last.end == entry.range.start && (is_unaccepted || was_unaccepted) =>
                {
                    last.end = entry.range.end;
                }
                _ => usable.push(entry.range),
            }
            was_unaccepted = is_unaccepted;
        }
        usable.extend_from_slice(&self.spare);
        usable.sort_unstable_by_key(|range| range.start);
        let pattern =
            self.before.map(|before| before.pattern).or(self.pattern).unwrap_or_else(next_pattern);
        let memory = match self.before {
            Some(before) => {
                assert_eq!(before.map().ranges(), map.ranges(), "the memory of another machine");
                Arc::clone(&before.memory)
            }
            None => Arc::new(Memory::new(&usable, self.layout, pattern)),
        };
        let cpus = Arc::new(CpuSet::new(self.cpu_nodes.len()));
        let machine: &'static FakeMachine = Box::leak(Box::new(FakeMachine {
            memory,
            pattern,
            map,
            topology,
            cpu_nodes: self.cpu_nodes,
            cpus,
            direct_limit: AtomicU64::new(self.direct_limit),
            clock: self.clock_step_ns.map(|step_ns| Clock { now_ns: AtomicU64::new(0), step_ns }),
            counters: Counters::default(),
            vmemmap: OnceLock::new(),
            accept: OnceLock::new(),
            knows_tasks: self.knows_tasks,
            is_guest: self.is_guest,
            entropy: self.entropy,
        }));
        if self.accepts {
            let accept = FakeAccept::new(&machine.memory, &machine.cpus, map, &self.spare);
            machine.accept.get_or_init(|| Box::leak(Box::new(accept)));
        }
        if !self.is_kept {
            retire_with_thread(machine);
        }
        machine
    }

    fn topology(&self) -> Topology<'static> {
        let claims = Vec::leak(vec![MemoryAffinity::EMPTY; 8 * self.affinity.len() + 16]);
        let mut topology = Topology::new(claims);
        if let Some(last) = self.nodes.checked_sub(1) {
            topology.declare_node(last).unwrap_or_else(|error| panic!("{error}"));
        }
        for claim in &self.affinity {
            topology
                .add_memory(claim.range, claim.node, claim.hot_pluggable)
                .unwrap_or_else(|error| panic!("{error}"));
        }
        for &node in &self.cpu_nodes {
            topology.add_cpu(node).unwrap_or_else(|error| panic!("{error}"));
        }
        for &(one, other, distance) in &self.distances {
            for (from, to) in [(one, other), (other, one)] {
                topology
                    .set_distance(node_id(from), node_id(to), distance)
                    .unwrap_or_else(|error| panic!("{error}"));
            }
        }
        topology
    }
}

/// The next pattern, counted for each thread, so that a repeated test has the patterns of its first
/// run.
fn next_pattern() -> u8 {
    thread_local! {
        static NEXT: Cell<Option<usize>> = const { Cell::new(None) };
    }
    if let Ok(wanted) = std::env::var("FRAMEWRIGHT_PATTERN") {
        return u8::from_str_radix(&wanted, 16)
            .unwrap_or_else(|error| panic!("FRAMEWRIGHT_PATTERN={wanted}: {error}"));
    }
    let thread = std::thread::current();
    let of_name = || {
        thread
            .name()
            .unwrap_or("")
            .bytes()
            .fold(0_usize, |sum, byte| (sum * 31 + usize::from(byte)) % 9973)
    };
    let number = NEXT.get().unwrap_or_else(of_name);
    NEXT.set(Some(number.wrapping_add(1)));
    let patterns = &PATTERNS[1..];
    patterns[number % patterns.len()]
}

fn node_id(node: usize) -> NodeId {
    NodeId::new(node).unwrap_or_else(|| panic!("node {node} is beyond the limit"))
}
