//! The work that bring-up asks of the platform grows linearly with the number of CPUs, not with its
//! square. The test counts calls, not time; the cost of firmware's ranges is counted where they are
//! taken in (`firmware::map`).

use crate::common::{check, gib};
use framewright::{BringUp, Manager, Parameters};
use framewright_testkit::FakeMachine;

/// Returns how often bring-up calls `cpu_node` on a machine whose CPUs are assigned to nodes in
/// turn.
fn calls(cpus: u32, nodes: u32) -> u64 {
    let node = |node: u32| usize::try_from(node).expect("small");
    let machine = (0..nodes).fold(FakeMachine::builder(), |machine, of| {
        let ram = gib(u64::from(of), u64::from(of) + 1);
        machine.ram(ram).node(ram, node(of))
    });
    let machine =
        (0..cpus).fold(machine, |machine, cpu| machine.cpus_on(node(cpu % nodes), 1)).build();
    let parameters = Parameters::default();
    let early = machine.memblock(&[]);
    let before = machine.calls().cpu_node;
    let manager = Manager::bring_up(early, &BringUp { parameters: &parameters, started_ns: None })
        .expect("bring-up");
    let calls = machine.calls().cpu_node - before;
    check(&manager);
    // Each CPU's cache is on its own node all the same.
    machine.run_on(cpus - 1, || {
        let page = manager.allocate(&framewright::Request::pages(1)).expect("there is memory");
        assert_eq!(page.start.address() >> 30, u64::from((cpus - 1) % nodes));
    });
    calls
}

#[test]
fn cpus_on_alternating_nodes_are_asked_for_a_few_times_each() {
    for (cpus, nodes) in [(1, 1), (64, 2), (512, 8), (4096, 2), (4096, 16)] {
        let calls = calls(cpus, nodes);
        assert!(calls <= 4 * u64::from(cpus), "{cpus} CPUs on {nodes} nodes: {calls} calls");
    }
}
