//! Where a helper sleeps, so that it does not start on its caller's CPU: [`Parking`].
//!
//! A thread that is woken is not always put on a CPU that is idle. In a virtual machine Linux takes a CPU that sleeps for one whose host has taken it away, finds no idle one, and leaves the
//! thread on the CPU that wakes it. There the caller works on, and the helper waits for the next balancing, up to a tick: of jobs of 0.03 to 1.5 ms it then sees little or nothing.
//! So a helper sleeps with its caller's CPU left out of its mask, and takes the whole mask back before it works. That costs two system calls of the helper, while nobody waits for it, and one
//! of the caller when it moved to another CPU since its last job.

use super::context::Context;
use super::nodes::Nodes;
use super::system::{self, CpuMask, Tid};
use std::sync::Arc;

/// What the job at a post says about where its helper goes.
#[derive(Clone)]
pub(super) struct Call {
    pub context: Arc<Context>,
    pub node: Option<u32>,
    /// On which its caller was.
    caller_cpu: u32,
}

impl PartialEq for Call {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.context, &other.context) && (self.node, self.caller_cpu) == (other.node, other.caller_cpu)
    }
}

impl Call {
    /// From the thread that calls.
    pub fn from_here(context: Arc<Context>, node: Option<u32>) -> Self {
        Self { context, node, caller_cpu: system::cpu() }
    }

    /// The CPUs on which the helper is to start: not its caller's; those of the node, if there are such. Nothing when there is no other.
    fn start_cpus(&self, nodes: &Nodes) -> Option<CpuMask> {
        let others = self.context.cpus.without(self.caller_cpu);
        let near = self.node.and_then(|node| nodes.cpus(node)).map(|near| others.and(near));
        near.into_iter().chain([others]).find(|cpus| cpus.count() != 0)
    }
}

/// See the module documentation. Under a lock that the helper takes before it sleeps and before it works, so that nobody changes its CPUs while it works.
#[derive(Default)]
pub(super) struct Parking {
    /// Of the job at the post; from before its offer.
    call: Option<Call>,
    /// The helper sleeps, or is about to.
    parked: bool,
    /// What its CPUs were narrowed for.
    narrowed: Option<Call>,
}

impl Parking {
    /// The post has a job of the calling thread.
    pub fn prepare(&mut self, call: Option<Call>) {
        if self.call != call {
            self.call = call;
        }
    }

    /// The calling helper is going to sleep. It expects the same caller again, on the same CPU. While it is on that CPU itself it stays there: to move a thread that runs takes
    /// the kernel two thread switches, to move one that sleeps none.
    pub fn park(&mut self, nodes: &Nodes) {
        self.parked = true;
        self.narrow(nodes, |call, cpus| call.caller_cpu != system::cpu() && cpus.adopt().is_ok());
    }

    /// Helper `tid` is about to be woken for its call.
    pub fn send(&mut self, tid: Tid, nodes: &Nodes) {
        if self.parked {
            self.narrow(nodes, |_, cpus| cpus.give_to(tid).is_ok());
        }
    }

    fn narrow(&mut self, nodes: &Nodes, adopt: impl FnOnce(&Call, &CpuMask) -> bool) {
        if self.narrowed == self.call {
            return;
        }
        let Some(call) = &self.call else { return };
        if call.start_cpus(nodes).is_some_and(|cpus| adopt(call, &cpus)) {
            self.narrowed = Some(call.clone());
        }
    }

    /// The calling helper is going to work: for what call, and whether its CPUs were narrowed since it last adopted any.
    pub fn unpark(&mut self) -> (Option<Call>, bool) {
        self.parked = false;
        (self.call.clone(), self.narrowed.take().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> CpuMask {
        CpuMask::of_this_thread().expect("the system says")
    }

    /// A call from CPU `caller_cpu`, by a thread that may use `cpus`.
    fn call(cpus: &CpuMask, caller_cpu: u32) -> Call {
        let context = Context::of_this_thread(false).expect("the system says");
        Call { context: Arc::new(context.with_cpus(cpus.clone())), node: None, caller_cpu }
    }

    /// The first two CPUs of this process, where it has two.
    fn two_cpus() -> Option<[u32; 2]> {
        let all = here();
        let mut cpus = (0..8192).filter(|&cpu| all.and(&CpuMask::of([cpu])).count() == 1);
        Some([cpus.next()?, cpus.next()?])
    }

    #[test]
    fn a_helper_starts_elsewhere_than_its_caller_if_it_may() {
        let nodes = Nodes::default();
        let start = |cpus: &[u32], caller| call(&CpuMask::of(cpus.iter().copied()), caller).start_cpus(&nodes);
        assert!(start(&[0, 1, 70], 1) == Some(CpuMask::of([0, 70])));
        assert!(start(&[0, 1], 2) == Some(CpuMask::of([0, 1])));
        assert!(start(&[0, 1], 9000) == Some(CpuMask::of([0, 1])));
        assert!(start(&[70], 70).is_none());
    }

    #[test]
    fn only_a_helper_that_sleeps_is_sent_elsewhere() {
        let Some([first, second]) = two_cpus() else { return };
        let (nodes, both) = (Nodes::default(), CpuMask::of([first, second]));
        let is = |cpu: u32| here().count() == 1 && here().and(&CpuMask::of([cpu])).count() == 1;
        // On a thread of its own, as its CPUs change.
        let check = || {
            let mut parking = Parking::default();
            parking.park(&nodes);
            assert!(!parking.unpark().1, "there was no call");
            let from_first = call(&both, first);
            parking.prepare(Some(from_first.clone()));
            parking.send(system::tid(), &nodes);
            assert!(!parking.unpark().1, "it was at work");
            parking.park(&nodes);
            parking.send(system::tid(), &nodes);
            assert!(is(second));
            // A caller that has moved.
            parking.prepare(Some(call(&both, second)));
            parking.send(system::tid(), &nodes);
            assert!(is(first));
            let (call, narrowed) = parking.unpark();
            assert!(narrowed && call.is_some_and(|call| call.caller_cpu == second));
            assert!(!parking.unpark().1, "it was told once");
        };
        std::thread::scope(|scope| scope.spawn(check).join().expect("no panic"));
    }

    #[test]
    fn a_helper_on_its_callers_cpu_is_moved_when_it_sleeps() {
        let Some([first, second]) = two_cpus() else { return };
        let (nodes, both) = (Nodes::default(), CpuMask::of([first, second]));
        let check = || {
            CpuMask::of([first]).adopt().expect("it may");
            both.adopt().expect("it may");
            let mut parking = Parking::default();
            let here_now = system::cpu();
            parking.prepare(Some(call(&both, here_now)));
            parking.park(&nodes);
            // Unless the thread was moved meanwhile.
            assert!(here() == both || system::cpu() != here_now);
            parking.send(system::tid(), &nodes);
            assert!(here() == both.without(here_now));
        };
        std::thread::scope(|scope| scope.spawn(check).join().expect("no panic"));
    }
}
