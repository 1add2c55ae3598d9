//! Parses what Linux said: lines of its kernel, which begin with `[`, and of its only program,
//! which begin with `@` (see the package `linux-init`).

use super::lab::Heard;

/// One write to a pool's file.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Resize {
    pub wanted: u64,
    pub reached: u64,
    pub ms: f64,
}

/// The sum of the numbers behind a word in a file: `@sum FILE WORD SUM`.
pub fn sum(heard: &Heard, file: &str, word: &str) -> Option<u64> {
    sums(heard, file, word).first().copied()
}

/// The sums behind a word, one for each request.
pub fn sums(heard: &Heard, file: &str, word: &str) -> Vec<u64> {
    let found = heard.text().filter_map(|line| {
        line.strip_prefix("@sum ")?
            .strip_prefix(file)?
            .trim()
            .strip_prefix(word)?
            .trim()
            .parse()
            .ok()
    });
    found.collect()
}

/// The time for writing to a file: `@time FILE NANOSECONDS`.
pub fn time_ms(heard: &Heard, file: &str) -> Option<f64> {
    let ns = heard.text().find_map(|line| {
        line.strip_prefix("@time ")?.strip_prefix(file)?.trim().parse::<u64>().ok()
    });
    ns.map(|ns| ns as f64 / 1e6)
}

/// The writes to a file: `@resize FILE WANTED REACHED NANOSECONDS`.
pub fn resizes(heard: &Heard, file: &str) -> Vec<Resize> {
    heard
        .text()
        .filter_map(|line| resize(line.strip_prefix("@resize ")?.strip_prefix(file)?))
        .collect()
}

fn resize(numbers: &str) -> Option<Resize> {
    let mut numbers = numbers.split_whitespace();
    let (wanted, reached) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    Some(Resize { wanted, reached, ms: numbers.next()?.parse::<u64>().ok()? as f64 / 1e6 })
}

/// The time for each node's memory map after early boot:
/// `node 0 deferred pages initialised in 24ms`.
pub fn deferred_ms(heard: &Heard) -> Vec<f64> {
    heard.text().filter(|line| line.starts_with('[')).filter_map(deferred).collect()
}

fn deferred(line: &str) -> Option<f64> {
    let (_, message) = line.split_once("] ")?;
    let (node, time) =
        message.strip_prefix("node ")?.split_once(" deferred pages initialised in ")?;
    node.parse::<u32>().ok()?;
    time.trim().strip_suffix("ms")?.parse().ok()
}

/// The time for filling pools at boot: from the call of their initialisation to the first line
/// about the result. Both come from the kernel's own log as `@log LINE`, with the line's log level
/// as a number in front.
pub fn pools_at_boot_ms(heard: &Heard) -> Option<f64> {
    let logged = |words: &str| {
        heard.text().find(|line| line.starts_with("@log ") && line.contains(words)).and_then(stamp)
    };
    let (began, ended) = (logged("calling  hugetlb_init")?, logged("HugeTLB: registered ")?);
    Some((ended - began) * 1e3).filter(|&ms| ms >= 0.0)
}

/// The seconds in a line's time stamp.
fn stamp(line: &str) -> Option<f64> {
    line.split_once('[')?.1.split_once(']')?.0.trim().parse().ok()
}

/// The time for starting the other CPUs, by the kernel's own log: from
/// `smp: Bringing up secondary CPUs ...` to `smp: Brought up 1 node, 16 CPUs`.
pub fn cpus_up_ms(heard: &Heard) -> Option<f64> {
    let logged = |words: &str| {
        heard.text().find(|line| line.starts_with('[') && line.contains(words)).and_then(stamp)
    };
    let (began, ended) = (logged("smp: Bringing up secondary CPUs")?, logged("smp: Brought up ")?);
    Some((ended - began) * 1e3).filter(|&ms| ms >= 0.0)
}

/// The pages of a size that the pool got at boot; `size` is in the kernel's words.
pub fn allocated_at_boot(heard: &Heard, size: &str) -> Option<u64> {
    let start = format!("HugeTLB: registered {size} page size, pre-allocated ");
    heard.text().find_map(|line| line.split_once(&start)?.1.strip_suffix(" pages")?.parse().ok())
}

/// The iterations a second: `@fault NAME CPUS RATE`.
pub fn fault(heard: &Heard, name: &str, cpus: u32) -> Option<f64> {
    let start = format!("@fault {name} {cpus} ");
    heard.text().find_map(|line| line.strip_prefix(&start)?.parse().ok())
}

/// What the program could not do.
pub fn failures(heard: &Heard) -> Vec<&str> {
    heard.text().filter_map(|line| line.strip_prefix("@failed ")).collect()
}

/// Whether a file existed.
pub fn exists(heard: &Heard, file: &str) -> bool {
    heard.text().any(|line| {
        line.strip_prefix("@exists ").and_then(|rest| rest.strip_prefix(file)) == Some(" yes")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard() -> Heard {
        Heard::of(&[
            "[    0.534110] node 0 deferred pages initialised in 24ms",
            "[    0.545100] node 1 deferred pages initialised in 40ms",
            "[    0.545101] node 1 deferred pages initialised in soonms",
            "@init",
            "@log <6>[    0.545100] node 1 deferred pages initialised in 40ms",
            "@log <7>[    0.741347] calling  hugetlb_init+0x0/0x600 @ 1",
            "@log <6>[    0.769120] HugeTLB: registered 1.00 GiB page size, pre-allocated 0 pages",
            "@log <6>[    0.769399] HugeTLB: registered 2.00 MiB page size, pre-allocated 16 pages",
            "@sum /proc/meminfo MemTotal: 8150476",
            "@sum /proc/zoneinfo present 2097021",
            "@resize /proc/sys/vm/nr_hugepages 2048 2047 11540089",
            "@resize /sys/x 0 0 1000",
            "@resize /proc/sys/vm/nr_hugepages 0 0 124718075",
            "@resize /proc/sys/vm/nr_hugepages 0 0",
            "@exists /sys/bus yes",
            "@exists /sys/none no",
            "@failed load /x.ko: error 2",
            "@fault huge 2 95310",
            "@fault base 2 39873",
        ])
    }

    #[test]
    fn numbers_are_found() {
        let heard = heard();
        assert_eq!(deferred_ms(&heard), [24.0, 40.0]);
        assert_eq!(sum(&heard, "/proc/meminfo", "MemTotal:"), Some(8_150_476));
        assert_eq!(sum(&heard, "/proc/zoneinfo", "present"), Some(2_097_021));
        assert_eq!(sum(&heard, "/proc/zoneinfo", "managed"), None);
        let resize = |wanted, reached, ms| Resize { wanted, reached, ms };
        let found = resizes(&heard, "/proc/sys/vm/nr_hugepages");
        assert_eq!(found, [resize(2048, 2047, 11.540089), resize(0, 0, 124.718075)]);
        let boot = pools_at_boot_ms(&heard).expect("both lines");
        assert!((boot - 27.773).abs() < 1e-6, "{boot}");
        assert_eq!(
            (allocated_at_boot(&heard, "2.00 MiB"), allocated_at_boot(&heard, "64.0 KiB")),
            (Some(16), None)
        );
        assert_eq!((fault(&heard, "base", 2), fault(&heard, "base", 1)), (Some(39873.0), None));
    }

    #[test]
    fn cpus_come_up_between_two_lines() {
        let heard = Heard::of(&[
            "[    0.200000] smp: Bringing up secondary CPUs ...",
            "[    0.350000] smp: Brought up 1 node, 16 CPUs",
        ]);
        assert!((cpus_up_ms(&heard).expect("both lines") - 150.0).abs() < 1e-6);
        assert_eq!(cpus_up_ms(&Heard::of(&["[    0.350000] smp: Brought up 1 node, 1 CPU"])), None);
    }

    #[test]
    fn what_failed_and_what_is_there_is_told() {
        let heard = heard();
        assert_eq!(failures(&heard), ["load /x.ko: error 2"]);
        assert!(
            exists(&heard, "/sys/bus") && !exists(&heard, "/sys/none") && !exists(&heard, "/sys")
        );
        assert_eq!(pools_at_boot_ms(&Heard::of(&["@log <6>[ 1.0] HugeTLB: registered 1"])), None);
    }
}
