//! What a machine's control files say at one moment.
//!
//! Unknown lines are skipped and missing numbers count as zero, so that machines of other versions
//! are shown as far as possible.

use crate::attach::ReadError;
use std::collections::HashMap;
use std::time::Instant;

/// The order from which a free run consists of whole blocks.
const BLOCK_ORDER: usize = 9;
/// The order of the largest pages.
const LARGEST_ORDER: usize = 18;
/// The page sizes of pools, in KiB.
const POOL_SIZES_KIB: [u64; 2] = [2048, 1 << 20];

/// One sample of everything. Amounts are in pages unless stated otherwise.
pub struct Sample {
    /// When the sample was taken.
    pub at: Instant,
    /// The zones that have memory.
    pub zones: Vec<Zone>,
    /// The pages in each CPU's cache, by CPU number.
    pub caches: Vec<Cache>,
    /// The pools of huge pages.
    pub pools: Vec<Pool>,
    /// The contents of `/proc/meminfo`, in KiB.
    pub memory_kib: HashMap<String, u64>,
    /// The contents of `/proc/vmstat`.
    pub counters: HashMap<String, u64>,
}

/// A zone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Zone {
    /// The zone's node.
    pub node: u64,
    /// The zone's name.
    pub name: String,
    /// Pages that the allocator manages.
    pub managed: u64,
    /// Free pages.
    pub free: u64,
    /// The watermarks: min, low, high.
    pub marks: [u64; 3],
    /// Free pages in runs below 2 MiB, from 2 MiB to below 1 GiB, and of 1 GiB.
    pub by_size: [u64; 3],
    /// Free pages by type: unmovable, movable, reclaimable, lent to movable pages (CMA), other
    /// types.
    pub by_type: [u64; 5],
}

/// The pages in one CPU's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cache {
    /// How many pages the cache holds now.
    pub count: u64,
    /// How many pages the cache may hold.
    pub high: u64,
}

/// A pool of huge pages, counted in pages of its own size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pool {
    /// The size of the pool's pages.
    pub size_kib: u64,
    /// All pages of the pool.
    pub pages: u64,
    /// The free pages.
    pub free: u64,
    /// The pages that are reserved for later users.
    pub reserved: u64,
    /// The pages beyond the wanted size.
    pub surplus: u64,
}

impl Sample {
    /// Takes one sample. `read` reads a control file.
    ///
    /// # Errors
    /// Fails if a file that every machine has cannot be read.
    pub fn take(
        read: &mut dyn FnMut(&str) -> Result<String, ReadError>,
    ) -> Result<Self, ReadError> {
        let (mut zones, caches) = zones(&read("/proc/zoneinfo")?);
        add_sizes(&mut zones, &read("/proc/buddyinfo")?);
        add_types(&mut zones, &read("/proc/pagetypeinfo")?);
        let memory_kib = values(&read("/proc/meminfo")?);
        let counters = values(&read("/proc/vmstat")?);
        let mut pools = Vec::new();
        for size_kib in POOL_SIZES_KIB {
            let mut number = |what: &str| -> Result<Option<u64>, ReadError> {
                match read(&format!(
                    "/sys/kernel/mm/hugepages/hugepages-{size_kib}kB/{what}_hugepages"
                )) {
                    Ok(text) => Ok(text.trim().parse().ok()),
                    // The machine has no pools.
                    Err(ReadError::Refused(_)) => Ok(None),
                    Err(error) => Err(error),
                }
            };
            let Some(pages) = number("nr")? else { continue };
            let mut number = |what: &str| Ok::<_, ReadError>(number(what)?.unwrap_or(0));
            let (free, reserved, surplus) = (number("free")?, number("resv")?, number("surplus")?);
            pools.push(Pool { size_kib, pages, free, reserved, surplus });
        }
        Ok(Self { at: Instant::now(), zones, caches, pools, memory_kib, counters })
    }

    /// The value of a counter; zero if it is missing.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// Splits a line into its node, its zone and the rest.
fn heading(line: &str) -> Option<(u64, &str, &str)> {
    let (node, rest) = line.strip_prefix("Node")?.split_once(", zone")?;
    let rest = rest.trim_start();
    let end = rest.find([' ', ',']).unwrap_or(rest.len());
    let (name, rest) = rest.split_at_checked(end)?;
    Some((node.trim().parse().ok()?, name, rest))
}

fn zones(text: &str) -> (Vec<Zone>, Vec<Cache>) {
    let (mut zones, mut caches) = (Vec::<Zone>::new(), Vec::<Cache>::new());
    let mut cpu = None;
    for line in text.lines() {
        if let Some((node, name, _)) = heading(line) {
            zones.push(Zone { node, name: name.to_owned(), ..Zone::default() });
            cpu = None;
            continue;
        }
        let mut words = line.split_whitespace();
        let Some(zone) = zones.last_mut() else { continue };
        let (first, second, third) =
            (words.next().unwrap_or(""), words.next().unwrap_or(""), words.next());
        let number = || second.parse().unwrap_or(0);
        match (first, second) {
            ("pages", "free") => zone.free = third.and_then(|word| word.parse().ok()).unwrap_or(0),
            ("min", _) => zone.marks[0] = number(),
            ("low", _) => zone.marks[1] = number(),
            ("high", _) => zone.marks[2] = number(),
            ("managed", _) => zone.managed = number(),
            ("cpu:", _) => {
                // No machine has more CPUs, whatever a line says.
                cpu = second.parse().ok().filter(|&cpu: &usize| cpu < 1 << 16);
                if let Some(cpu) = cpu
                    && caches.len() <= cpu
                {
                    caches.resize(cpu + 1, Cache::default());
                }
            }
            ("count:" | "high:", _) => {
                if let Some(cache) = cpu.and_then(|cpu| caches.get_mut(cpu)) {
                    let sum = if first == "count:" { &mut cache.count } else { &mut cache.high };
                    *sum = sum.saturating_add(number());
                }
            }
            _ => {}
        }
    }
    zones.retain(|zone| zone.managed != 0);
    (zones, caches)
}

/// The numbers of pages in one line, by order.
struct ByOrder<'a> {
    /// The index of the zone.
    zone: usize,
    /// The migrate type, if the line names one.
    kind: &'a str,
    pages: Vec<u64>,
    /// Whether the true number may be larger: Linux stops counting at `>100000`.
    is_cut: bool,
}

/// Parses a line that names a zone and ends with numbers.
fn by_order<'a>(zones: &[Zone], line: &'a str) -> Option<ByOrder<'a>> {
    let (node, name, rest) = heading(line)?;
    let zone = zones.iter().position(|zone| zone.node == node && zone.name == name)?;
    let kind = rest
        .split_once("type")
        .map_or("", |(_, rest)| rest.split_whitespace().next().unwrap_or(""));
    let counts =
        rest.split_whitespace().filter_map(|word| word.trim_start_matches('>').parse::<u64>().ok());
    Some(ByOrder {
        zone,
        kind,
        pages: counts
            .zip(0..)
            .map(|(count, order)| count.checked_shl(order).unwrap_or(0))
            .collect(),
        is_cut: rest.contains('>'),
    })
}

fn add_sizes(zones: &mut [Zone], text: &str) {
    for line in text.lines() {
        if let Some(ByOrder { zone, pages, .. }) = by_order(zones, line) {
            for (order, pages) in pages.into_iter().enumerate() {
                let size = usize::from(order >= BLOCK_ORDER) + usize::from(order >= LARGEST_ORDER);
                let sum = &mut zones[zone].by_size[size];
                *sum = sum.saturating_add(pages);
            }
        }
    }
}

/// Adds free pages by type. Only lines that name a type have free pages; the others have numbers of
/// blocks. Where the file stopped counting, the missing pages are those that the zone has by size
/// but not by type.
fn add_types(zones: &mut [Zone], text: &str) {
    // For each zone, the type with the most pages among those whose counting stopped early.
    let mut cut = vec![None; zones.len()];
    for line in text.lines() {
        let Some(ByOrder { zone, kind, pages, is_cut }) = by_order(zones, line) else { continue };
        let place = match kind {
            "Unmovable" => 0,
            "Movable" => 1,
            "Reclaimable" => 2,
            "CMA" => 3,
            "MovableOnly" | "Isolate" => 4,
            _ => continue,
        };
        let by_type = &mut zones[zone].by_type;
        by_type[place] = pages.into_iter().fold(by_type[place], u64::saturating_add);
        if is_cut && cut[zone].is_none_or(|other: usize| by_type[place] > by_type[other]) {
            cut[zone] = Some(place);
        }
    }
    for (zone, cut) in zones.iter_mut().zip(cut) {
        let Some(place) = cut else { continue };
        let sum = |pages: &[u64]| pages.iter().copied().fold(0, u64::saturating_add);
        let missing = sum(&zone.by_size).saturating_sub(sum(&zone.by_type));
        zone.by_type[place] = zone.by_type[place].saturating_add(missing);
    }
}

/// Parses names and numbers, `MemFree: 12 kB` or `nr_free_pages 3`. Equal names are added up.
fn values(text: &str) -> HashMap<String, u64> {
    let mut values = HashMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse::<u64>)) {
            let sum: &mut u64 = values.entry(name.trim_end_matches(':').to_owned()).or_default();
            *sum = sum.saturating_add(value);
        }
    }
    values
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The control files of a sample machine.
    pub fn file(path: &str) -> Result<String, ReadError> {
        Ok(match path {
            "/proc/zoneinfo" => {
                "Node 0, zone      DMA\n  per-node stats\n      nr_x 0\n  pages free     \
                 3998\n        min      7\n        low      10\n        high     13\n        \
                 managed  3998\n\
                 \x20 pagesets\n    cpu: 0\n              count:    5\n              high:     \
                 9\n              batch:    1\n              high_min: 7\n    cpu: \
                 1\n              count:    1\n\
                 Node 0, zone   Normal\n  pages free     0\n        managed  0\n\
                 Node 1, zone   Normal\n  pages free     600\n        managed  1000\n        \
                 high     700\n    cpu: 1\n              count:    2\n              high:     4\n\
                 Node 1, zone  Movable\n  pages free     3\n        min      1\n        low      \
                 2\n        high     5\n        managed  512\n"
            }
            "/proc/buddyinfo" => {
                "Node 0, zone      DMA      2      1 \nNode 1, zone   Normal  1 0 0 0 0 0 0 0 0 1 \
                 0 0 0 0 0 0 0 0 2 \nNode 1, zone  Movable 1 1\nnonsense\n"
            }
            "/proc/pagetypeinfo" => {
                "Page block order: 9\nFree pages count per migrate type at order 0 1\nNode    1, \
                 zone   Normal, type    Unmovable      0      2\n\
                 Node    1, zone   Normal, type      Movable      4      1\nNode    1, zone   \
                 Normal, type   CMA 1 0\nNode 1, zone Normal, type Isolate 3\nNode 1, zone \
                 Movable, type Movable 1 1\n\
                 Number of blocks type     Unmovable\nNode 1, zone   Normal            \
                 9            9\n"
            }
            "/proc/meminfo" => {
                "MemTotal:   4193564 kB\nMemFree:  4145948 kB\nHugePages_Total: \
                8\nx\n"
            }
            "/proc/vmstat" => {
                "nr_free_pages 10\nnr_free_pages_blocks 10\npcp_refill_pages 7\n\
                 pcp_refill_pages 1\n"
            }
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages" => "8\n",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages" => "6\n",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages" => "1\n",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages" => "2\n",
            _ => return Err(ReadError::Refused("No such file or directory".into())),
        }
        .to_owned())
    }

    #[test]
    fn files_become_numbers() {
        let sample = Sample::take(&mut file).expect("all that it needs is there");
        assert_eq!(sample.zones.len(), 3);
        let dma = &sample.zones[0];
        assert_eq!(
            (dma.managed, dma.free, dma.marks, dma.by_size),
            (3998, 3998, [7, 10, 13], [4, 0, 0])
        );
        let normal = &sample.zones[1];
        assert_eq!((normal.node, normal.free, normal.marks), (1, 600, [0, 0, 700]));
        assert_eq!((normal.by_size, normal.by_type), ([1, 512, 2 << 18], [4, 6, 0, 1, 3]));
        let movable = &sample.zones[2];
        assert_eq!((movable.marks, movable.managed), ([1, 2, 5], 512));
        assert_eq!((movable.by_size, movable.by_type), ([3, 0, 0], [0, 3, 0, 0, 0]));
        assert_eq!(sample.caches, [Cache { count: 5, high: 9 }, Cache { count: 3, high: 4 }]);
        assert_eq!(
            sample.pools,
            [Pool { size_kib: 2048, pages: 8, free: 6, reserved: 1, surplus: 2 }]
        );
        assert_eq!(
            (sample.memory_kib["MemFree"], sample.counter("pcp_refill_pages")),
            (4_145_948, 8)
        );
    }

    /// Also covers the form in which Linux writes them.
    #[test]
    fn types_that_are_not_counted_to_the_end_have_the_rest() {
        let (mut zones, _) = zones("Node 0, zone Normal\n managed 600000\n");
        add_sizes(&mut zones, "Node 0, zone Normal 150000 120000 44183\n");
        add_types(
            &mut zones,
            "Node 0, zone Normal, type Unmovable 7 0 1\n\
             Node 0, zone Normal, type Movable >100000 >100000 44182\n",
        );
        let all = 150_000 + 2 * 120_000 + 4 * 44_183;
        assert_eq!((zones[0].by_size[0], zones[0].by_type), (all, [11, all - 11, 0, 0, 0]));
    }

    #[test]
    fn nonsense_makes_numbers_missing_and_nothing_worse() {
        let nonsense = "Node x, zone\nNode 1, zone\n  cpu: 99999999999\n count: 7\nNode 0, zone \
            DMA\n managed 5\n cpu: 70000\n high: -1\n";
        let sample = Sample::take(&mut |_| Ok(nonsense.repeat(3))).expect("nothing is missing");
        assert_eq!((sample.zones.len(), sample.caches.len(), sample.pools.len()), (3, 0, 0));
        assert!(matches!(Sample::take(&mut |_| Err(ReadError::Silent)), Err(ReadError::Silent)));
    }
}
