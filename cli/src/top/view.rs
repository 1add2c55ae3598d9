//! Shows samples as tables.

use super::sample::{Sample, Zone};
use crate::grid::{Grid, counted, size};
use crate::output::Style;
use crate::put;
use framewright::units::PAGE_SIZE;

/// The most CPUs that get a row of their own.
const MOST_CPUS: usize = 16;

/// Counters whose rate shows what is going on, each with its label here.
const EVENTS: [(&str, &[&str]); 9] = [
    ("pages to CPUs' caches", &["pcp_refill_pages"]),
    ("pages from CPUs' caches", &["pcp_return_pages"]),
    ("blocks split", &["block_split"]),
    ("blocks merged", &["block_merge"]),
    ("blocks that changed their type", &["fallback_claim", "fallback_steal"]),
    ("blocks emptied by compaction", &["compact_blocks"]),
    ("requests that waited", &["allocstall_dma", "allocstall_dma32", "allocstall_normal"]),
    ("requests that failed", &["alloc_fail"]),
    ("pages reported", &["page_reporting_pages"]),
];

/// The order in which zones are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sort {
    Node,
    Used,
    Free,
}

/// The last sample, and the one before it, from which rates are computed.
pub struct View {
    pid: u32,
    sample: Sample,
    before: Option<Sample>,
    sort: Sort,
    complaint: Option<String>,
}

impl View {
    /// Starts with the first sample of a process.
    pub fn new(pid: u32, sample: Sample) -> Self {
        Self { pid, sample, before: None, sort: Sort::Node, complaint: None }
    }

    /// Shows the next sample.
    pub fn show(&mut self, sample: Sample) {
        self.before = Some(std::mem::replace(&mut self.sample, sample));
        self.complaint = None;
    }

    /// Says why there is no next sample; the last one stays on the screen.
    pub fn complain(&mut self, why: String) {
        self.complaint = Some(why);
    }

    /// Switches to the next order of zones.
    pub fn sort_next(&mut self) {
        self.sort = match self.sort {
            Sort::Node => Sort::Used,
            Sort::Used => Sort::Free,
            Sort::Free => Sort::Node,
        };
    }

    /// All lines of the view.
    pub fn lines(&self, style: Style) -> Vec<String> {
        let mut lines = vec![style.bold(&self.summary())];
        if let Some(why) = &self.complaint {
            lines.push(format!("not up to date: {why}"));
        }
        // These lines come first, so that a small terminal does not cut them off.
        lines.push(self.reporting());
        lines.extend([self.moving(), self.pieces()]);
        for grid in [Some(self.zones()), self.pools(), Some(self.caches()), Some(self.events())]
            .into_iter()
            .flatten()
        {
            lines.push(String::new());
            lines.extend(grid.render(style));
        }
        lines
    }

    fn summary(&self) -> String {
        let kib = |name: &str| size(self.sample.memory_kib.get(name).copied().unwrap_or(0) * 1024);
        format!(
            "process {}: {} managed, {} free, {} kept by CPUs, {} isolated, {} descriptors, {} \
             tables",
            self.pid,
            kib("MemTotal"),
            kib("MemFree"),
            kib("PcpFree"),
            kib("Isolated"),
            kib("MemMap"),
            kib("MemTables"),
        )
    }

    fn zones(&self) -> Grid {
        let mut grid = Grid::new(&[
            ">node",
            "<zone",
            ">managed",
            ">free",
            ">used",
            ">in pieces",
            ">in blocks",
            ">of 1 GiB",
            ">min",
            ">low",
            ">high",
            "<free is",
            ">unmovable",
            ">movable",
            ">reclaimable",
            ">lent",
            ">other",
        ]);
        let mut zones: Vec<&Zone> = self.sample.zones.iter().collect();
        // The sort is stable, so that equal zones stay in node order.
        match self.sort {
            Sort::Node => {}
            Sort::Used => zones.sort_by_key(|zone| std::cmp::Reverse(used_permille(zone))),
            Sort::Free => zones.sort_by_key(|zone| zone.free),
        }
        for zone in zones {
            let used = used_permille(zone);
            let mut row = vec![
                zone.node.to_string(),
                zone.name.clone(),
                pages(zone.managed),
                pages(zone.free),
            ];
            row.push(format!("{}.{} %", used / 10, used % 10));
            row.extend(zone.by_size.map(pages));
            row.extend(zone.marks.map(pages));
            row.push(level(zone).to_owned());
            row.extend(zone.by_type.map(pages));
            grid.row(row);
        }
        grid
    }

    fn pools(&self) -> Option<Grid> {
        let mut grid =
            Grid::new(&[">pool of", ">pages", ">free", ">reserved", ">surplus", ">memory"]);
        for pool in &self.sample.pools {
            let counts =
                [pool.pages, pool.free, pool.reserved, pool.surplus].map(|count| count.to_string());
            let mut row = vec![size(pool.size_kib * 1024)];
            row.extend(counts);
            row.push(size(pool.pages.saturating_mul(pool.size_kib * 1024)));
            grid.row(row);
        }
        (!self.sample.pools.is_empty()).then_some(grid)
    }

    fn caches(&self) -> Grid {
        let mut grid = Grid::new(&[">CPU", ">keeps", ">at most"]);
        let (shown, rest) = self.sample.caches.split_at(self.sample.caches.len().min(MOST_CPUS));
        for (cpu, cache) in shown.iter().enumerate() {
            grid.row([cpu.to_string(), pages(cache.count), pages(cache.high)]);
        }
        if !rest.is_empty() {
            let sum = |of: fn(&super::sample::Cache) -> u64| {
                rest.iter().map(of).fold(0, u64::saturating_add)
            };
            let name = format!("{} more", rest.len());
            grid.row([name, pages(sum(|cache| cache.count)), pages(sum(|cache| cache.high))]);
        }
        grid
    }

    /// The sum of a group of counters, and by how much it grows per second.
    fn pace(&self, names: &[&str]) -> (u64, Option<f64>) {
        let sum = |sample: &Sample| {
            names.iter().map(|name| sample.counter(name)).fold(0, u64::saturating_add)
        };
        let now = sum(&self.sample);
        let pace = self.before.as_ref().map(|before| {
            let seconds = self.sample.at.duration_since(before.at).as_secs_f64();
            now.saturating_sub(sum(before)) as f64 / seconds.max(1e-3)
        });
        (now, pace)
    }

    fn events(&self) -> Grid {
        let mut grid = Grid::new(&["<since the beginning", ">", ">a second"]);
        for (name, counters) in EVENTS {
            let (sum, pace) = self.pace(counters);
            grid.row([
                name.to_owned(),
                sum.to_string(),
                pace.map_or_else(|| "-".to_owned(), |pace| format!("{pace:.0}")),
            ]);
        }
        grid
    }

    /// What is being moved, and with what result.
    fn moving(&self) -> String {
        let count = |name: &str| self.sample.counter(name);
        let (moved, pace) = self.pace(&["pgmigrate_success"]);
        let pace = pace.map_or_else(String::new, |pace| format!(", {pace:.0} a second"));
        format!(
            "moving: {}{pace}, {} failed; {} emptied; {} for compaction, {} in vain",
            counted(moved, "page"),
            count("pgmigrate_fail"),
            counted(count("compact_blocks"), "block"),
            counted(count("compact_stall"), "wait"),
            count("compact_fail"),
        )
    }

    /// How much of the free memory is in small pieces, and how much is lent to movable pages.
    fn pieces(&self) -> String {
        let count = |name: &str| self.sample.counter(name);
        let free = count("nr_free_pages");
        let in_pieces = permille(free.saturating_sub(count("nr_free_pages_blocks")), free);
        let mut words = format!("free memory: {}.{} % in pieces", in_pieces / 10, in_pieces % 10);
        let kib = |name: &str| self.sample.memory_kib.get(name).copied().unwrap_or(0);
        if kib("CmaTotal") != 0 {
            let bytes = |name: &str| size(kib(name).saturating_mul(1024));
            put!(words, "; {} lent, {} of it free", bytes("CmaTotal"), bytes("CmaFree"));
        }
        let [given, refused] = ["cma_alloc_success", "cma_alloc_fail"].map(count);
        if given | refused != 0 {
            put!(words, "; areas handed out {}, {refused} refused", counted(given, "page"));
        }
        words
    }

    fn reporting(&self) -> String {
        let (bytes, pace) = self.pace(&["page_reporting_bytes"]);
        let pace = pace.map_or_else(String::new, |pace| format!(", {pace:.0} bytes a second"));
        format!(
            "free page reporting: {} reported{pace}, {}, {}; {} free and not reported",
            size(bytes),
            passes(self.sample.counter("page_reporting_passes")),
            counted(self.sample.counter("page_reporting_errors"), "error"),
            pages(self.sample.counter("nr_free_unreported")),
        )
    }
}

fn pages(count: u64) -> String {
    size(count.saturating_mul(PAGE_SIZE))
}

fn passes(count: u64) -> String {
    format!("{count} pass{}", if count == 1 { "" } else { "es" })
}

fn used_permille(zone: &Zone) -> u64 {
    permille(zone.managed.saturating_sub(zone.free), zone.managed)
}

fn permille(part: u64, all: u64) -> u64 {
    u64::try_from(u128::from(part) * 1000 / u128::from(all.max(1))).unwrap_or(1000)
}

/// Where a zone's free pages stand relative to its watermarks.
fn level(zone: &Zone) -> &'static str {
    let [min, low, high] = zone.marks;
    match zone.free {
        free if free < min => "below min",
        free if free < low => "below low",
        free if free < high => "below high",
        _ => "enough",
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::file;
    use super::*;
    use std::time::Duration;

    fn sample() -> Sample {
        Sample::take(&mut file).expect("all files are there")
    }

    #[test]
    fn one_sample_has_no_paces() {
        let lines = View::new(7, sample()).lines(Style::PLAIN);
        assert!(
            lines[0].starts_with("process 7: 4.00 GiB managed, 3.95 GiB free, "),
            "{}",
            lines[0]
        );
        let find = |text: &str| {
            lines
                .iter()
                .find(|line| line.contains(text))
                .unwrap_or_else(|| panic!("{text}: {lines:#?}"))
        };
        assert!(find("Normal").contains("below high") && find("Normal").contains("40.0 %"));
        assert!(find("DMA").contains("enough"));
        assert_eq!(
            find("16.0 MiB").split_whitespace().collect::<Vec<_>>(),
            ["2.00", "MiB", "8", "6", "1", "2", "16.0", "MiB"]
        );
        assert!(find("pages to CPUs' caches").ends_with('-'));
        assert!(
            find("free page reporting: 0 KiB reported, 0 passes")
                .ends_with("free and not reported")
        );
    }

    #[test]
    fn what_is_kept_for_what_can_be_moved_has_watermarks_of_its_own() {
        let lines = View::new(7, sample()).lines(Style::PLAIN);
        let row = |beginning: [&str; 2]| {
            let mut rows = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
            rows.find(|words| words.starts_with(&beginning)).expect("a row")
        };
        let movable = row(["1", "Movable"]);
        assert_eq!(movable[2..8], ["2.00", "MiB", "12", "KiB", "99.4", "%"]);
        assert_eq!(movable[14..22], ["4", "KiB", "8", "KiB", "20", "KiB", "below", "high"]);
        assert!(row(["1", "Normal"]).ends_with(&["0", "KiB", "4", "KiB", "12", "KiB"]));
    }

    #[test]
    fn what_is_moved_is_told_with_its_pace() {
        let mut view = View::new(7, sample());
        let before =
            "moving: 0 pages, 0 failed; 0 blocks emptied; 0 waits for compaction, 0 in vain";
        assert_eq!(view.moving(), before);
        assert_eq!(view.pieces(), "free memory: 0.0 % in pieces");
        let mut later = sample();
        later.at = view.sample.at + Duration::from_secs(4);
        for (name, value) in [
            ("pgmigrate_success", 2000),
            ("pgmigrate_fail", 3),
            ("compact_blocks", 1),
            ("compact_stall", 5),
            ("compact_fail", 2),
            ("nr_free_pages", 4096),
            ("nr_free_pages_blocks", 512),
            ("cma_alloc_success", 700),
        ] {
            later.counters.insert(name.into(), value);
        }
        later.memory_kib.extend([("CmaTotal".into(), 65536), ("CmaFree".into(), 32768)]);
        view.show(later);
        let expected = [
            "moving: 2000 pages, 500 a second, 3 failed; 1 block emptied; 5 waits for compaction, \
             2 in vain",
            "free memory: 87.5 % in pieces; 64.0 MiB lent, 32.0 MiB of it free; areas handed \
             out 700 pages, 0 refused",
        ];
        assert_eq!(view.lines(Style::PLAIN)[2..4], expected);
        let emptied = view.lines(Style::PLAIN);
        let emptied =
            emptied.iter().find(|line| line.starts_with("blocks emptied")).expect("a row");
        assert!(emptied.split_whitespace().eq(["blocks", "emptied", "by", "compaction", "1", "0"]));
    }

    #[test]
    fn reporting_is_seen_on_a_small_terminal() {
        let mut many = sample();
        let zone = many.zones[0].clone();
        many.zones.extend(vec![zone; 40]);
        let lines = View::new(7, many).lines(Style::PLAIN);
        assert!(lines.len() > 40 && lines[1].starts_with("free page reporting: "), "{lines:#?}");
    }

    #[test]
    fn a_second_one_has_and_sorting_turns_rows() {
        let mut view = View::new(7, sample());
        let mut later = sample();
        later.at = view.sample.at + Duration::from_secs(2);
        later.counters.insert("pcp_refill_pages".into(), 108);
        view.show(later);
        view.complain("it is late".into());
        let lines = view.lines(Style::PLAIN);
        assert_eq!(lines[1], "not up to date: it is late");
        let line =
            lines.iter().find(|line| line.starts_with("pages to CPUs' caches")).expect("a row");
        assert_eq!(line.split_whitespace().skip(4).collect::<Vec<_>>(), ["108", "50"]);
        let first = |view: &View| view.zones().render(Style::PLAIN)[1].contains("DMA");
        assert!(first(&view));
        view.sort_next();
        assert!(!first(&view));
        view.sort_next();
        assert!(!first(&view));
        view.sort_next();
        assert!(first(&view));
    }

    #[test]
    fn many_cpus_share_a_row() {
        let mut many = sample();
        many.caches = vec![super::super::sample::Cache { count: 1, high: 2 }; MOST_CPUS + 3];
        let lines = View::new(1, many).caches().render(Style::PLAIN);
        assert_eq!(lines.len(), MOST_CPUS + 2);
        assert!(
            lines[MOST_CPUS + 1].starts_with("3 more") && lines[MOST_CPUS + 1].contains("12 KiB")
        );
    }
}
