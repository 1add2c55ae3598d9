//! Page faults in the manner of will-it-scale: on each CPU, a process repeatedly maps 128 MiB,
//! writes to every 4 KiB of them and unmaps them. An iteration is 4 KiB that were written to.

use crate::say;
use crate::system::{self, Errno, Mapping, PAGE_BYTES, Pages, Side};

/// The size of a mapping, as in will-it-scale.
const MAPPING_BYTES: usize = 128 << 20;
/// The most CPUs: as many as one word of an affinity mask can name.
const MOST_CPUS: u64 = 64;

/// Lets `cpus` processes take page faults for this many seconds. Prints
/// `@fault NAME CPUS ITERATIONS_PER_SECOND`.
pub fn run(name: &str, pages: Pages, seconds: u64, cpus: u64) -> Result<(), Errno> {
    let cpus = cpus.clamp(1, MOST_CPUS);
    let rates = Mapping::new(PAGE_BYTES, Pages::Shared)?;
    let mut children = 0;
    let mut failed = Ok(());
    for cpu in (0..).take(usize::try_from(cpus).unwrap_or(1)) {
        match system::fork() {
            Ok(Side::Child) => {
                let status = match child(&rates, cpu, pages, seconds) {
                    Ok(()) => 0,
                    // An error must not become the status of success.
                    Err(Errno(error)) => u8::try_from(error).unwrap_or(u8::MAX),
                };
                system::exit(status);
            }
            Ok(Side::Parent) => children += 1,
            Err(error) => failed = Err(error),
        }
    }
    for _ in 0..children {
        // Wait for all children even if one failed, which then has stored no rate.
        failed = failed.and(system::wait_for_child());
    }
    failed?;
    let words = (0..children).filter_map(|index| rates.word(index));
    // SAFETY: the word is in the mapping and aligned, and the process that wrote it has ended.
    let sum: u64 = words.map(|word| unsafe { word.read() }).sum();
    say!("@fault {name} {cpus} {sum}");
    Ok(())
}

/// Takes page faults, and stores how many there were in a second.
fn child(rates: &Mapping, cpu: usize, pages: Pages, seconds: u64) -> Result<(), Errno> {
    system::stay_on(u32::try_from(cpu).unwrap_or(u32::MAX))?;
    let started = system::now_ns();
    let mut iterations: u128 = 0;
    let elapsed_ns = loop {
        let mut memory = Mapping::new(MAPPING_BYTES, pages)?;
        memory.touch();
        drop(memory);
        iterations += (MAPPING_BYTES / PAGE_BYTES) as u128;
        let elapsed_ns = system::now_ns() - started;
        if elapsed_ns >= seconds * 1_000_000_000 {
            break elapsed_ns;
        }
    };
    let rate = iterations * 1_000_000_000 / u128::from(elapsed_ns.max(1));
    if let Some(word) = rates.word(cpu) {
        // SAFETY: the word is in the mapping and aligned, and only this process uses it.
        unsafe { word.write(u64::try_from(rate).unwrap_or(u64::MAX)) };
    }
    Ok(())
}
