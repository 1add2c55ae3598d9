//! The command line: it uses Linux's names where Linux has one, and treats words that it cannot use
//! as Linux does: it reports them and goes on.

mod accept;
mod hotplug;
mod hugetlb;
mod known;
mod movable;
mod parse;
mod per_node;
mod policy;
mod reporting;
mod usual;

pub use accept::AcceptPolicy;
pub use hotplug::{HotplugParameters, OnlinePolicy, OnlineType};
pub use hugetlb::{HugePageParameters, Requested};
pub use known::KNOWN;
pub use movable::{AreaParameters, AreaSizes, CmaArea, CoreParameters};
pub(crate) use parse::parse_bool;
#[cfg(feature = "files")]
pub(crate) use parse::parse_integer;
pub use parse::{SizeError, next_word, parse_size};
pub use policy::{Pages, Policy};
pub use reporting::{Pace, ReportingParameters};

use parse::{parse_number, split_once, unquoted};

use crate::firmware::{MapBuilder, MapError, MemoryKind};
use crate::units::{Order, PHYSICAL_ADDRESS_END, parse_decimal};
use core::fmt;

/// The length of a buffer that holds any name that the manager knows.
const LONGEST_NAME: usize = 48;

/// How many `memmap=` ranges a command line may have.
pub const MAX_MEMMAP: usize = 32;

/// The manager's parameters. Those that the command line does not set have their defaults.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// `movable_node`.
    pub movable_node: bool,
    /// `kernelcore=` and `movablecore=`.
    pub core: CoreParameters,
    /// `cma=`, `cma_pernuma=` and `numa_cma=`.
    pub areas: AreaParameters,
    /// False with `numa=off`: everything is in one node.
    pub numa: bool,
    /// `mem=SIZE`: memory at and above this address is not used.
    pub memory_limit: Option<u64>,
    /// `min_free_kbytes=N` (Linux: `mm/page_alloc.c`, `__setup_per_zone_wmarks`).
    pub min_free_kbytes: Option<u64>,
    /// `watermark_scale_factor=N`, in 1/10000 of a zone (Linux: `mm/page_alloc.c`,
    /// `__setup_per_zone_wmarks`).
    pub watermark_scale_factor: u64,
    /// `accept_memory=`.
    pub accept: AcceptPolicy,
    /// `memmap_init=`.
    pub policy: Policy,
    /// `page_owner=on`: each page records who allocated it.
    pub page_owner: bool,
    /// `page_poison=1`: free memory is filled with a pattern.
    pub page_poison: bool,
    /// `init_on_alloc=1`: memory is cleared when it is handed out.
    pub init_on_alloc: bool,
    /// `init_on_free=1`: memory is cleared when it is freed.
    pub init_on_free: bool,
    /// `careful=on` or a seed: every aid that finds mistakes, and random placement.
    pub careful: Option<u64>,
    /// `pages=`.
    pub pages: Pages,
    /// `page_alloc.shuffle=`: free blocks are handed out in random order.
    pub shuffle: bool,
    /// `page_alloc.shuffle_seed=`.
    pub shuffle_seed: Option<u64>,
    /// The parameters with the prefix `page_reporting.`
    pub reporting: ReportingParameters,
    /// The parameters of huge pages.
    pub huge_pages: HugePageParameters,
    /// `zone_parts=N`: how many parts each zone has, if it has enough GiBs. If unset, the number
    /// depends on CPUs and memory.
    pub zone_parts: Option<u32>,
    /// The parameters of memory hotplug.
    pub hotplug: HotplugParameters,
    /// `memmap_init_threads=N`, at least 1.
    pub memmap_init_threads: Option<u32>,
    /// The initial values of the flags and owner words of a page's descriptor in the array; zero if
    /// unset. Not on the command line: the adopter's program sets it.
    pub page_template: Option<[u64; 7]>,
    /// `memmap=` in order: start, size in bytes, kind.
    memmap: [Option<(u64, u64, MemoryKind)>; MAX_MEMMAP],
}

/// A parameter that was ignored, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Problem<'a> {
    /// The word on the command line.
    pub word: &'a str,
    /// `None`: the manager does not know the parameter. Otherwise, which values would be valid.
    pub reason: Option<&'static str>,
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            None => write!(f, "Unknown kernel command line parameter \"{}\", ignored", self.word),
            Some(reason) => write!(f, "Malformed parameter \"{}\", ignored: {reason}", self.word),
        }
    }
}

/// The reason why a parameter of a disabled feature has no effect.
const ABSENT: &str = "this build lacks its feature";

/// Whether a disabled feature owns a parameter. Features with own parsers are checked later.
fn is_of_absent_part(name: &str) -> bool {
    match name {
        "accept_memory" => !cfg!(feature = "accept"),
        "memmap_init" | "memmap_init_threads" | "pages" => !cfg!(feature = "vmemmap"),
        "zone_parts" => !cfg!(feature = "smp"),
        "numa" => !cfg!(feature = "numa"),
        "movable_node" => !cfg!(feature = "moving"),
        "page_owner"
        | "page_poison"
        | "init_on_alloc"
        | "init_on_free"
        | "careful"
        | "page_alloc.shuffle"
        | "page_alloc.shuffle_seed" => !cfg!(feature = "debug"),
        _ => !cfg!(feature = "reporting") && name.starts_with("page_reporting."),
    }
}

impl Parameters {
    /// Reads a command line. Each unknown or invalid word is reported once and ignored. If a
    /// parameter is given twice, the last one counts, but of `hugepages=` for one size and of
    /// `hugepagesz=` and `default_hugepagesz=` the first, and `memmap=` adds up. As in Linux,
    /// blanks between quotes do not end a word, and names may have hyphens for underscores.
    pub fn parse<'a>(command_line: &'a str, problem: &mut dyn FnMut(Problem<'a>)) -> Self {
        let mut parameters = Self::default();
        let (mut word, mut rest) = next_word(command_line);
        // Words after `--` are for the init program.
        while !word.is_empty() && unquoted(word) != "--" {
            match parameters.set(unquoted(word)) {
                Ok(true) => {}
                Ok(false) => problem(Problem { word, reason: None }),
                Err(reason) => problem(Problem { word, reason: Some(reason) }),
            }
            (word, rest) = next_word(rest);
        }
        parameters
    }

    /// Sets one parameter; returns false when there is none of that name.
    fn set(&mut self, word: &str) -> Result<bool, &'static str> {
        // A module's switch without a value is on.
        let alone = if word.contains('.') { "y" } else { "" };
        let (name, value) = split_once(word, '=').unwrap_or((word, alone));
        // Quotes around a value do not belong to it (Linux: `lib/cmdline.c`, `next_arg`).
        let value = unquoted(value);
        let mut copy = [0; LONGEST_NAME];
        let Some(copy) = copy.get_mut(..name.len()) else { return Ok(false) };
        copy.copy_from_slice(name.as_bytes());
        // As in Linux, `-` stands for `_` in names (`kernel/params.c`, `parameq`).
        while let Some(hyphen) = copy.iter_mut().find(|byte| **byte == b'-') {
            *hyphen = b'_';
        }
        let name = core::str::from_utf8(copy).unwrap_or(name);
        if is_of_absent_part(name) {
            return Err(ABSENT);
        }
        match name {
            "movable_node" if value.is_empty() => self.movable_node = true,
            "movable_node" => return Err("movable_node takes no value"),
            "numa" => match value {
                "off" => self.numa = false,
                "on" => self.numa = true,
                _ => return Err("numa= is on or off"),
            },
            "mem" => match parse_size(value) {
                Ok(0) | Err(_) => return Err("mem= takes a size such as 512M or 0x20000000"),
                Ok(size) => self.memory_limit = Some(size),
            },
            "memmap" => self.add_memmap(value)?,
            "accept_memory" => {
                let accept = AcceptPolicy::ALL.into_iter().find(|accept| accept.name() == value);
                self.accept = accept.ok_or("accept_memory= is lazy, eager or background")?;
            }
            "memmap_init" => {
                let policy = Policy::ALL.into_iter().find(|policy| policy.name() == value);
                self.policy = policy.ok_or("memmap_init= is eager, deferred or on-demand")?;
            }
            "memmap_init_threads" => match parse_decimal(value) {
                Some(0) | None => {
                    return Err("memmap_init_threads= takes a number of threads, at least 1");
                }
                Some(threads) => self.memmap_init_threads = Some(threads),
            },
            "pages" => match value {
                "auto" => self.pages = Pages::Auto,
                "inside" => self.pages = Pages::Inside,
                "none" => self.pages = Pages::None,
                _ => return Err("pages= is auto, inside or none"),
            },
            "min_free_kbytes" => {
                let kbytes = parse_decimal(value).filter(|&kbytes| kbytes <= MOST_MIN_FREE_KBYTES);
                self.min_free_kbytes = Some(
                    kbytes.ok_or("min_free_kbytes= takes a number of KiB, at most 2147483647")?,
                );
            }
            "watermark_scale_factor" => match parse_decimal(value) {
                Some(factor @ 1..=3000) => self.watermark_scale_factor = factor,
                _ => return Err("watermark_scale_factor= takes a number from 1 to 3000"),
            },
            "zone_parts" => {
                let parts: u32 = parse_decimal(value)
                    .ok_or("zone_parts= takes a number, 0 for as many as suit")?;
                self.zone_parts = Some(parts).filter(|&parts| parts != 0);
            }
            "page_alloc.shuffle" => {
                self.shuffle = parse_bool(value).ok_or("page_alloc.shuffle= is 1 or 0")?
            }
            "page_alloc.shuffle_seed" => {
                self.shuffle_seed =
                    Some(parse_decimal(value).ok_or("page_alloc.shuffle_seed= takes a number")?);
            }
            "page_owner" => {
                self.page_owner = parse_bool(value).ok_or("page_owner= is on or off")?
            }
            "page_poison" => {
                self.page_poison = parse_bool(value).ok_or("page_poison= is 1 or 0")?
            }
            "init_on_alloc" => {
                self.init_on_alloc = parse_bool(value).ok_or("init_on_alloc= is 1 or 0")?
            }
            "init_on_free" => {
                self.init_on_free = parse_bool(value).ok_or("init_on_free= is 1 or 0")?
            }
            "careful" => {
                self.careful = match (parse_decimal(value), parse_bool(value)) {
                    (Some(0), _) | (None, Some(false)) => None,
                    (Some(seed), _) => Some(seed),
                    (None, Some(true)) => Some(CAREFUL_SEED),
                    (None, None) => {
                        return Err("careful= is on, off, or the seed of random placement");
                    }
                };
            }
            _ => return self.set_reporting(name, value),
        }
        Ok(true)
    }

    fn set_reporting(&mut self, name: &str, value: &str) -> Result<bool, &'static str> {
        match name.strip_prefix("page_reporting.") {
            Some("page_reporting_order") => {
                let order = parse_number(value)
                    .and_then(|order| u8::try_from(order).ok())
                    .and_then(Order::new);
                self.reporting.order =
                    Some(order.ok_or(
                        "page_reporting.page_reporting_order= takes an order from 0 to 18",
                    )?);
            }
            Some("page_reporting_delay_ms") => {
                let delay_ms = parse_number(value)
                    .ok_or("page_reporting.page_reporting_delay_ms= takes milliseconds")?;
                self.reporting.delay_ms = delay_ms;
            }
            Some("pools") => {
                self.reporting.pools = parse_bool(value).ok_or("page_reporting.pools= is 1 or 0")?
            }
            Some("pace") => {
                self.reporting.pace =
                    Pace::parse(value).ok_or("page_reporting.pace= is adaptive or fixed")?
            }
            _ => {
                let pools = (cfg!(feature = "pools"), self.huge_pages.set(name, value));
                let moving = (cfg!(feature = "moving"), self.core.set(name, value));
                let areas = (cfg!(feature = "moving"), self.areas.set(name, value));
                let hotplug = (cfg!(feature = "hotplug"), self.hotplug.set(name, value));
                // A disabled feature's parameters must not affect enabled ones.
                if !cfg!(feature = "pools") {
                    self.huge_pages = HugePageParameters::usual();
                }
                let mut known = [pools, moving, areas, hotplug].into_iter();
                return match known.find_map(|(is_there, read)| Some((is_there, read?))) {
                    None => Ok(false),
                    Some((false, _)) => Err(ABSENT),
                    Some((true, read)) => read.map(|()| true),
                };
            }
        }
        Ok(true)
    }

    /// Adds all ranges of a list, or none of them.
    fn add_memmap(&mut self, value: &str) -> Result<(), &'static str> {
        let before = self.memmap.iter().flatten().count();
        for (next, range) in (before..).zip(value.split(',')) {
            let added = memmap(range).and_then(|range| {
                let slot = self.memmap.get_mut(next).ok_or("more than 32 ranges of memmap=")?;
                *slot = Some(range);
                Ok(())
            });
            if added.is_err() {
                self.memmap[before..next].fill(None);
                return added;
            }
        }
        Ok(())
    }

    /// Applies `mem=` and `memmap=` to the firmware map.
    ///
    /// # Errors
    /// See [`MapBuilder::add`].
    pub fn apply(&self, map: &mut MapBuilder<'_>) -> Result<(), MapError> {
        for &(start, size, kind) in self.memmap.iter().flatten() {
            map.add(start, size, kind)?;
        }
        self.memory_limit.map_or(Ok(()), |limit| map.limit(limit))
    }
}

/// Parses a range of `memmap=`: its start, its size, and its kind.
#[inline(never)]
fn memmap(range: &str) -> Result<(u64, u64, MemoryKind), &'static str> {
    const FORM: &str =
        "memmap= takes SIZE$START, SIZE#START or SIZE!START, with sizes such as 64K or 0x10000";
    let at = range.find(['$', '#', '!']).ok_or(FORM)?;
    let kind = match range.as_bytes()[at] {
        b'$' => MemoryKind::Reserved,
        b'#' => MemoryKind::AcpiReclaimable,
        _ => MemoryKind::Persistent,
    };
    let size = parse_size(&range[..at]).map_err(|_| FORM)?;
    let start = parse_size(&range[at + 1..]).map_err(|_| FORM)?;
    if start.checked_add(size).is_none_or(|end| end > PHYSICAL_ADDRESS_END) {
        return Err("memmap= names a range beyond the largest physical address");
    }
    Ok((start, size, kind))
}

/// The largest `min_free_kbytes`: the maximum of Linux's `int`.
pub(crate) const MOST_MIN_FREE_KBYTES: u64 = i32::MAX as u64;

/// The seed of random placement when the command line gives none.
const CAREFUL_SEED: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firmware::MapRange;
    use std::vec::Vec;

    fn parse(line: &str) -> (Parameters, Vec<Problem<'_>>) {
        let mut problems = Vec::new();
        let parameters = Parameters::parse(line, &mut |problem| problems.push(problem));
        (parameters, problems)
    }

    #[test]
    fn no_known_name_is_too_long() {
        let name = |word: &&str| word.split('=').next().map_or(0, str::len);
        assert!(KNOWN.iter().all(|(word, _)| name(word) <= LONGEST_NAME));
    }

    #[test]
    fn known_parameters_are_set_and_the_last_counts() {
        let (parameters, problems) = parse(
            " numa=off mem=1G\tmem=512M min_free_kbytes=1024 watermark_scale_factor=100 \
             pages=inside zone_parts=4",
        );
        assert_eq!(problems, []);
        assert!(!parameters.numa);
        assert_eq!(parameters.memory_limit, Some(512 << 20));
        assert_eq!(parameters.min_free_kbytes, Some(1024));
        assert_eq!(parameters.watermark_scale_factor, 100);
        assert_eq!(parameters.pages, Pages::Inside);
        assert_eq!(parameters.zone_parts, Some(4));
        assert_eq!(parse("zone_parts=4 zone_parts=0").0.zone_parts, None);
    }

    #[test]
    fn as_much_may_be_kept_free_as_its_file_takes() {
        let (parameters, problems) = parse("min_free_kbytes=2147483647 min_free_kbytes=2147483648");
        assert_eq!(parameters.min_free_kbytes, Some(MOST_MIN_FREE_KBYTES));
        assert!(problems.len() == 1 && problems[0].reason.is_some(), "{problems:?}");
    }

    #[test]
    fn what_is_unknown_or_wrong_is_listed_and_ignored() {
        let (parameters, problems) = parse(
            "quiet mem=12Q memmap=1M@2M numa watermark_scale_factor=0 memmap_init=later pages=all",
        );
        assert_eq!(parameters.memory_limit, None);
        assert_eq!(parameters.watermark_scale_factor, 10);
        let words: Vec<_> =
            problems.iter().map(|problem| (problem.word, problem.reason.is_some())).collect();
        let expected = [
            ("quiet", false),
            ("mem=12Q", true),
            ("memmap=1M@2M", true),
            ("numa", true),
            ("watermark_scale_factor=0", true),
            ("memmap_init=later", true),
            ("pages=all", true),
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn words_are_read_as_linux_does() {
        let (parameters, problems) = parse(
            "page_alloc.shuffle memmap=1M$4M,2M#64M,4K!1G mem=\"1G\" -- mem=512M nonsense numa=off",
        );
        assert_eq!(problems, []);
        assert!(parameters.shuffle && parameters.numa);
        assert_eq!(parameters.memory_limit, Some(1 << 30));
        let expected = [
            (4 << 20, 1 << 20, MemoryKind::Reserved),
            (64 << 20, 2 << 20, MemoryKind::AcpiReclaimable),
            (1 << 30, 4096, MemoryKind::Persistent),
        ];
        assert!(parameters.memmap.iter().flatten().eq(&expected));
        // A list is taken as a whole or not at all, and a range beyond all memory stops no boot.
        for word in ["memmap=1M$4M,2M@64M", "memmap=4K$8P", "memmap=1M$4M,", "memmap=15E$15E"] {
            let (parameters, problems) = parse(word);
            assert!(problems.len() == 1 && problems[0].reason.is_some(), "{word}: {problems:?}");
            assert_eq!(parameters.memmap, Parameters::default().memmap, "{word}");
        }
        let many = std::format!("memmap={}1M$4M memmap=1K$1G,1K$2G", "1M$4M,".repeat(30));
        let (parameters, problems) = parse(&many);
        assert_eq!((parameters.memmap.iter().flatten().count(), problems.len()), (31, 1));
    }

    #[test]
    fn reporting_and_shuffle_are_parsed_as_linux_does() {
        let (parameters, problems) = parse(
            "page_reporting.page_reporting_order=012 page_reporting.page_reporting_delay_ms=0x10 \
             page_reporting.pace=fixed page_reporting.pools=on page_alloc.shuffle=Y \
             page_alloc.shuffle_seed=77",
        );
        assert_eq!(problems, []);
        let reporting = ReportingParameters {
            order: Order::new(10),
            delay_ms: 16,
            pace: Pace::Fixed,
            pools: true,
        };
        assert_eq!(
            (parameters.reporting, parameters.shuffle, parameters.shuffle_seed),
            (reporting, true, Some(77))
        );
        let defaults = Parameters::default();
        assert_eq!(
            defaults.reporting,
            ReportingParameters { order: None, delay_ms: 2000, pace: Pace::Adaptive, pools: false }
        );
        assert!(!defaults.shuffle);
        for order in 0..=18 {
            let line = std::format!("page_reporting.page_reporting_order={order}");
            assert_eq!(parse(&line).0.reporting.order, Order::new(order));
        }
        for word in [
            "page_reporting.page_reporting_order=19",
            "page_reporting.page_reporting_order=-1",
            "page_reporting.page_reporting_order=",
            "page_reporting.page_reporting_order=+9",
            "page_reporting.page_reporting_order=0x",
            "page_reporting.page_reporting_delay_ms=4294967296",
            "page_reporting.page_reporting_delay_ms=2s",
            "page_reporting.pace=often",
            "page_reporting.pools=some",
            "page_alloc.shuffle=2",
            "page_alloc.shuffle_seed=x",
        ] {
            let (parameters, problems) = parse(word);
            assert!(problems.len() == 1 && problems[0].reason.is_some(), "{word}: {problems:?}");
            assert_eq!(parameters.reporting, defaults.reporting, "{word}");
        }
        assert_eq!(parse("page_reporting.other=1").1[0].reason, None, "unknown");
        assert_eq!(parse("page_alloc.other=1").1[0].reason, None);
    }

    #[test]
    fn debug_aids_are_switches_as_linux_reads_them() {
        for (on, values) in [
            (true, ["1", "y", "Y", "yes", "t", "true", "on", "On", "ON"]),
            (false, ["0", "n", "N", "no", "f", "false", "off", "Off", "of"]),
        ] {
            for value in values {
                let line = std::format!(
                    "page_owner={value} page_poison={value} init_on_alloc={value} \
                     init_on_free={value}"
                );
                let (parameters, problems) = parse(&line);
                assert_eq!(problems, [], "{value}");
                let Parameters { page_owner, page_poison, init_on_alloc, init_on_free, .. } =
                    parameters;
                assert_eq!(
                    [page_owner, page_poison, init_on_alloc, init_on_free],
                    [on; 4],
                    "{value}"
                );
            }
        }
        for value in ["", "2", "o", "oh", "maybe", "-1", "\u{e9}"] {
            for name in ["page_owner", "page_poison", "init_on_alloc", "init_on_free", "careful"] {
                let line = std::format!("{name}={value}");
                let expected = usize::from(name != "careful" || value != "2");
                assert_eq!(parse(&line).1.len(), expected, "{line}");
            }
        }
        assert_eq!(
            parse("page_poison").1.len(),
            1,
            "a switch without a value is malformed in Linux, too"
        );
        for (line, seed) in [
            ("careful=on", Some(CAREFUL_SEED)),
            ("careful=12345", Some(12_345)),
            ("careful=7 careful=off", None),
            ("careful=0", None),
            ("", None),
        ] {
            let (parameters, problems) = parse(line);
            assert_eq!((parameters.careful, problems.len()), (seed, 0), "{line}");
        }
    }

    #[test]
    fn poison_takes_precedence_over_clearing() {
        let aids = |line| crate::debug::Aids::of(&parse(line).0);
        let clearing = aids("init_on_alloc=1 init_on_free=1");
        assert!(clearing.init_on_alloc && clearing.init_on_free && !clearing.page_owner);
        let poison = aids("init_on_alloc=1 page_poison=1 init_on_free=1");
        assert!(
            !poison.init_on_alloc
                && !poison.init_on_free
                && poison.page_poison
                && !poison.poison_sparsely
        );
        let careful = aids("careful=8 init_on_free=1");
        assert!(
            careful.page_owner
                && careful.page_poison
                && careful.poison_sparsely
                && !careful.init_on_free
        );
        assert_eq!(careful.placement_seed, Some(8));
        assert!(!aids("careful=8 page_poison=1").poison_sparsely);
        assert!(!aids("").watch());
    }

    #[test]
    fn memmap_and_mem_change_the_map() {
        let (parameters, problems) = parse("memmap=1M$4M memmap=0x1000#0x800000 mem=16M");
        assert_eq!(problems, []);
        let mut storage = [MapRange::EMPTY; 16];
        let mut map = MapBuilder::new(&mut storage);
        assert!(map.add(0, 64 << 20, MemoryKind::Conventional).is_ok());
        assert!(parameters.apply(&mut map).is_ok());
        let kinds: Vec<_> =
            map.ranges().iter().map(|range| (range.range.end, range.kind)).collect();
        let expected = [
            (4 << 20, MemoryKind::Conventional),
            (5 << 20, MemoryKind::Reserved),
            (8 << 20, MemoryKind::Conventional),
            ((8 << 20) + 0x1000, MemoryKind::AcpiReclaimable),
            (16 << 20, MemoryKind::Conventional),
        ];
        assert_eq!(kinds, expected);
    }
}
