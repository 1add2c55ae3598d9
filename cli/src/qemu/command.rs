//! QEMU's command line.

use crate::args::{Addition, Model};
use crate::error::Error;
use std::ffi::OsString;
use std::path::Path;

/// The emulator.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// The guest ends the machine by writing to this port; QEMU's exit status is then twice the number
/// written, plus one.
const EXIT_DEVICE: &str = "isa-debug-exit,iobase=0xf4,iosize=4";

/// A device may have a property twice; the last value counts.
const BALLOON: &str = "virtio-balloon-pci,id=balloon,free-page-reporting=on";

/// The path of the virtio-mem device in QEMU's object tree.
pub const VIRTIO_MEM_PATH: &str = "/machine/peripheral/vm0";

const MIB: u64 = 1 << 20;
/// The guest's image begins at 2 MiB.
const LEAST_MIB: u64 = 8;
/// The most nodes of a QEMU machine (`MAX_NODES` in its `include/sysemu/numa.h`).
const MOST_NODES: u64 = 128;

/// How QEMU runs the machine, once decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accelerator {
    /// Emulated.
    Tcg,
    /// With hardware virtualisation.
    Kvm,
}

impl Accelerator {
    /// QEMU's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        }
    }
}

/// A virtual machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    model: Model,
    memory_mib: u64,
    nodes: u64,
    cpus: u64,
    /// How much memory may be added.
    more_mib: u64,
    /// Further arguments: devices, and what the user adds.
    more: Vec<String>,
}

impl Machine {
    /// Makes a machine whose memory and CPUs are spread evenly over its nodes.
    ///
    /// # Errors
    /// Says what QEMU could not build.
    pub fn new(model: Model, memory_bytes: u64, nodes: u32, cpus: u32) -> Result<Self, Error> {
        let nodes = u64::from(nodes);
        if !memory_bytes.is_multiple_of(MIB) {
            return Err(Error::Usage(format!("--memory {memory_bytes}: QEMU needs whole MiB")));
        }
        let memory_mib = memory_bytes / MIB;
        if memory_mib < LEAST_MIB {
            return Err(Error::Usage(format!(
                "--memory {memory_mib}M is too little: the guest needs {LEAST_MIB} MiB"
            )));
        }
        if nodes > MOST_NODES {
            return Err(Error::Usage(format!(
                "--nodes {nodes} is too many: QEMU has at most {MOST_NODES}"
            )));
        }
        if nodes > memory_mib {
            return Err(Error::Usage(format!(
                "--nodes {nodes} is too many: {memory_mib} MiB of memory leave less than 1 MiB for \
                 each node"
            )));
        }
        Ok(Self { model, memory_mib, nodes, cpus: u64::from(cpus), more_mib: 0, more: Vec::new() })
    }

    /// Adds a virtio balloon that takes reports of free pages. The user's `properties` come after
    /// ours, so that they override them.
    pub fn add_balloon(&mut self, properties: &str) {
        let mut device = BALLOON.to_owned();
        if !properties.is_empty() {
            device.push(',');
            device.push_str(properties);
        }
        // Hints need a thread of their own.
        if properties.split(',').any(|property| property == "free-page-hint=on")
            && !properties.contains("iothread=")
        {
            device.push_str(",iothread=balloon-thread");
            self.more.extend(["-object".to_owned(), "iothread,id=balloon-thread".to_owned()]);
        }
        self.more.extend(["-device".to_owned(), device]);
    }

    /// Adds a virtio-mem device, through which memory can be added; QEMU listens on `monitor` for
    /// the wanted amount. The user's properties come after ours, so that they override them.
    pub fn add_virtio_mem(&mut self, addition: &Addition, monitor: Option<&Path>) {
        self.more_mib += addition.bytes / MIB;
        let backend = format!("memory-backend-ram,id=vmem0,reserve=off,size={}", addition.bytes);
        let mut device =
            "virtio-mem-pci,id=vm0,memdev=vmem0,node=0,block-size=2M,requested-size=0".to_owned();
        if !addition.properties.is_empty() {
            device.push(',');
            device.push_str(&addition.properties);
        }
        for words in [["-object", &backend], ["-device", &device]] {
            self.more.extend(words.map(str::to_owned));
        }
        if let Some(path) = monitor {
            // In an option's value, a comma is written twice.
            let path = path.display().to_string().replace(',', ",,");
            let socket = format!("socket,id=monitor,path={path},server=on,wait=off");
            let words = ["-chardev", &socket, "-mon", "chardev=monitor,mode=control"];
            self.more.extend(words.map(str::to_owned));
        }
    }

    /// All arguments for one boot of `image`; `more` are passed on unchanged, at a place where they
    /// can override what comes before.
    pub fn arguments(
        &self,
        accelerator: Accelerator,
        image: &Path,
        command_line: &str,
        more: &[String],
    ) -> Vec<OsString> {
        let model = match self.model {
            Model::Q35 => "q35",
            Model::Pc => "pc",
        };
        let (accel, cpu) = match accelerator {
            Accelerator::Tcg => ("tcg,thread=multi", "max"),
            Accelerator::Kvm => ("kvm", "host"),
        };
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        // The default devices have firmware that takes longer than the guest's boot.
        add(&["-nodefaults", "-machine", model, "-accel", accel, "-cpu", cpu]);
        let most = match self.more_mib {
            0 => String::new(),
            more => format!(",maxmem={}M", self.memory_mib + more),
        };
        add(&["-m", &format!("{}M{most}", self.memory_mib), "-smp", &self.cpus.to_string()]);
        // A machine without NUMA tables has one node.
        if self.nodes > 1 {
            for node in 0..self.nodes {
                add(&[
                    "-object",
                    &format!("memory-backend-ram,id=m{node},size={}M", self.node_mib(node)),
                ]);
                add(&[
                    "-numa",
                    &format!("node,nodeid={node}{},memdev=m{node}", self.node_cpus(node)),
                ]);
            }
        }
        add(&[
            "-display",
            "none",
            "-monitor",
            "none",
            "-serial",
            "stdio",
            "-no-reboot",
            "-device",
            EXIT_DEVICE,
        ]);
        more.iter().for_each(|word| add(&[word]));
        // A device's bus has to come before the device.
        self.more.iter().for_each(|word| add(&[word]));
        add(&["-append", command_line, "-kernel"]);
        arguments.push(image.into());
        arguments
    }

    /// An even share of the memory; the first nodes take the remainder.
    fn node_mib(&self, node: u64) -> u64 {
        self.memory_mib / self.nodes + u64::from(node < self.memory_mib % self.nodes)
    }

    /// The `cpus=` part of a node; empty if the node has no CPU.
    fn node_cpus(&self, node: u64) -> String {
        let first = (node * self.cpus).div_ceil(self.nodes);
        let end = ((node + 1) * self.cpus).div_ceil(self.nodes);
        match end - first {
            0 => String::new(),
            1 => format!(",cpus={first}"),
            _ => format!(",cpus={first}-{}", end - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(machine: &Machine, accelerator: Accelerator) -> String {
        let arguments =
            machine.arguments(accelerator, Path::new("/g"), "numa=off report=json", &[]);
        arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_plain_machine() {
        let machine = Machine::new(Model::Q35, 2 << 30, 1, 1).expect("can be built");
        assert_eq!(
            line(&machine, Accelerator::Tcg),
            "-nodefaults -machine q35 -accel tcg,thread=multi -cpu max -m 2048M -smp 1 -display \
             none -monitor none -serial stdio \
             -no-reboot -device isa-debug-exit,iobase=0xf4,iosize=4 -append numa=off report=json \
             -kernel /g"
        );
        assert!(line(&machine, Accelerator::Kvm).contains("-accel kvm -cpu host "));
    }

    #[test]
    fn more_arguments_come_after_ours() {
        let machine = Machine::new(Model::Q35, 2 << 30, 1, 1).expect("can be built");
        let more = ["-cpu".to_owned(), "max,-x2apic".to_owned()];
        let arguments = machine.arguments(Accelerator::Tcg, Path::new("/g"), "", &more);
        let place =
            |word: &str| arguments.iter().rposition(|argument| argument == word).expect("is there");
        assert_eq!(place("-cpu") + 1, place("max,-x2apic"));
        assert!(place("-append") > place("max,-x2apic") && place("-device") < place("-cpu"));
    }

    #[test]
    fn nodes_share_memory_and_cpus() {
        let machine = Machine::new(Model::Pc, 8 << 30, 2, 4).expect("can be built");
        assert!(line(&machine, Accelerator::Tcg).contains(
            "-machine pc -accel tcg,thread=multi -cpu max -m 8192M -smp 4 \
             -object memory-backend-ram,id=m0,size=4096M -numa node,nodeid=0,cpus=0-1,memdev=m0 \
             -object memory-backend-ram,id=m1,size=4096M -numa node,nodeid=1,cpus=2-3,memdev=m1 "
        ));
    }

    #[test]
    fn a_balloon_and_further_arguments() {
        let mut machine = Machine::new(Model::Q35, 2 << 30, 1, 1).expect("can be built");
        machine.add_balloon("");
        let more = ["-name".into(), "x".into()];
        let all = machine.arguments(Accelerator::Tcg, Path::new("image"), "", &more);
        let all = all.join(std::ffi::OsStr::new(" ")).into_string().expect("text");
        assert!(
            all.contains(
                " -name x -device virtio-balloon-pci,id=balloon,free-page-reporting=on -append "
            ),
            "{all}"
        );
        let mut machine = Machine::new(Model::Q35, 2 << 30, 1, 1).expect("can be built");
        machine.add_balloon("free-page-hint=on");
        assert!(line(&machine, Accelerator::Tcg).contains(
            " -object iothread,id=balloon-thread -device \
             virtio-balloon-pci,id=balloon,free-page-reporting=on,free-page-hint=on,\
             iothread=balloon-thread "
        ));
    }

    #[test]
    fn memory_that_may_be_added() {
        let mut machine = Machine::new(Model::Q35, 2 << 30, 1, 1).expect("can be built");
        let addition = Addition { bytes: 3 << 30, properties: "requested-size=1G".into() };
        machine.add_virtio_mem(&addition, Some(Path::new("/a,b/7.qmp")));
        let line = line(&machine, Accelerator::Tcg);
        assert!(line.contains(" -m 2048M,maxmem=5120M -smp 1 "), "{line}");
        assert!(
            line.contains(
                " -object memory-backend-ram,id=vmem0,reserve=off,size=3221225472 -device \
                 virtio-mem-pci,id=vm0,memdev=vmem0,node=0,block-size=2M,requested-size=0,\
                 requested-size=1G \
                 -chardev socket,id=monitor,path=/a,,b/7.qmp,server=on,wait=off \
                 -mon chardev=monitor,mode=control "
            ),
            "{line}"
        );
    }

    #[test]
    fn shares_add_up_whatever_the_numbers() {
        for nodes in 1..=9 {
            for cpus in 1..=9 {
                let machine =
                    Machine::new(Model::Q35, 1001 << 20, nodes, cpus).expect("can be built");
                let count = |node| match machine
                    .node_cpus(node)
                    .trim_start_matches(",cpus=")
                    .split_once('-')
                {
                    Some((first, last)) => {
                        last.parse::<u64>().unwrap() - first.parse::<u64>().unwrap() + 1
                    }
                    None => u64::from(!machine.node_cpus(node).is_empty()),
                };
                assert_eq!(
                    (0..u64::from(nodes)).map(|node| machine.node_mib(node)).sum::<u64>(),
                    1001
                );
                assert_eq!(
                    (0..u64::from(nodes)).map(count).sum::<u64>(),
                    u64::from(cpus),
                    "{nodes} nodes"
                );
            }
        }
    }

    #[test]
    fn what_cannot_be_built_is_refused() {
        for (memory, nodes) in [((64 << 20) + 1, 1), (4 << 20, 5), (3 << 20, 1)] {
            assert!(Machine::new(Model::Q35, memory, nodes, 1).is_err());
        }
    }
}
