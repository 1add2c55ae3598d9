//! How long several CPUs take to accept all memory of a machine, on a device that takes 100 us for
//! 2 MiB: `cargo run --release -p framewright-testkit --example accepting`.

use framewright::firmware::MemoryKind;
use framewright::units::PhysRange;
use framewright::{BringUp, Manager, Parameters};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, HelperPool};
use std::time::{Duration, Instant};

const OF_A_BLOCK: Duration = Duration::from_micros(100);
const GIB: u64 = 1 << 30;

fn main() {
    for (gibibytes, cpus) in [(4, 1), (16, 2), (16, 4), (16, 8), (16, 16), (64, 16)] {
        let machine = FakeMachine::builder()
            .ram(PhysRange::new(0, GIB))
            .memory(PhysRange::new(4 * GIB, (4 + gibibytes) * GIB), MemoryKind::Unaccepted)
            .accepts()
            .cpus(cpus)
            .build();
        let parameters = Parameters::default();
        let input = BringUp { parameters: &parameters, started_ns: None };
        let manager = Manager::bring_up(machine.memblock(&[]), &input).expect("bring-up");
        machine.accept().set_delay(OF_A_BLOCK);
        let others = vec![0; cpus as usize - 1];
        let pool = HelperPool::on_nodes(&others);
        let started = Instant::now();
        if cpus == 1 {
            manager.acceptance().accept_all(&NoHelpers);
        } else {
            manager.acceptance().accept_all(&pool);
        }
        let took = started.elapsed();
        let serial = OF_A_BLOCK * u32::try_from(gibibytes * 512).expect("small");
        println!(
            "{gibibytes} GiB, {cpus} CPUs: {took:?}, a share of {:?}, {} calls",
            serial / cpus,
            manager.acceptance().events().calls
        );
    }
}
