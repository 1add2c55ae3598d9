//! Boot parameters of huge-page pools: Linux's names, forms and precedence (Linux: `mm/hugetlb.c`,
//! `hugepages_setup`).
//!
//! The meaning of a word depends on the words before it: a size applies to the count that follows.
//! So words are read in order; a word that contradicts an earlier one is ignored and reported.

use super::movable::AreaSizes;
use super::parse::{parse_bool, parse_size, split_once};
use super::per_node::PerNode;
use crate::units::{NodeId, NodeMask, PoolSize, parse_decimal, parse_radix};

/// How many pages of one size a command line asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requested {
    /// On all nodes together.
    pub pages: u64,
    /// Pages of each node, in the form `hugepages=0:4,1:2`.
    nodes: Option<PerNode<u32>>,
}

impl Requested {
    const NONE: Self = Self { pages: 0, nodes: None };

    /// The pages of one node in the node form; `None` in the plain form.
    #[must_use]
    pub fn on_node(&self, node: NodeId) -> Option<u64> {
        Some(u64::from(self.nodes.as_ref()?.of(node)))
    }

    /// The nodes for which at least one page is requested.
    #[must_use]
    pub fn nodes(&self) -> NodeMask {
        self.nodes.as_ref().map_or(NodeMask::EMPTY, PerNode::nodes)
    }
}

/// The size to which the next `hugepages=` applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Current {
    /// No size was given yet: the default size, whatever it turns out to be.
    Default,
    /// This size.
    Size(PoolSize),
}

/// What the command line says about huge pages. See the module documentation.
#[derive(Clone, Debug)]
pub struct HugePageParameters {
    /// `hugepage_alloc_threads=`: the most threads that fill the pool of 2 MiB pages at boot,
    /// including the caller. If unset, a quarter of the CPUs, at least one.
    pub alloc_threads: Option<u32>,
    /// `hugetlb_free_vmemmap=`: whether pages in pools give up their descriptors (HVO) where these
    /// are in the vmemmap.
    pub free_vmemmap: bool,
    /// `hugetlb_cma=`: areas from which 1 GiB pages are taken first, as a total size or per node.
    /// Each is at least one page; [`AreaSizes::shares`] rounds up.
    pub cma: AreaSizes,
    /// `hugetlb_cma_only=`: 1 GiB pages come only from areas. Without [`cma`](Self::cma) it has no
    /// effect, as in Linux.
    pub cma_only: bool,
    requested: [Requested; PoolSize::COUNT],
    /// A count that was given before any size.
    implicit: Requested,
    default_size: Option<PoolSize>,
    /// The sizes that `hugepagesz=` or `default_hugepagesz=` named.
    registered: [bool; PoolSize::COUNT],
    current: Current,
    /// The last size word was invalid, so the next count is ignored.
    ignore_next: bool,
    /// The size to which the last count was applied.
    last: Option<Current>,
}

impl HugePageParameters {
    /// No pool.
    pub(crate) const fn usual() -> Self {
        Self {
            alloc_threads: None,
            free_vmemmap: false,
            cma: AreaSizes::NONE,
            cma_only: false,
            requested: [Requested::NONE; PoolSize::COUNT],
            implicit: Requested::NONE,
            default_size: None,
            registered: [false; PoolSize::COUNT],
            current: Current::Default,
            ignore_next: false,
            last: None,
        }
    }
}

impl Default for HugePageParameters {
    fn default() -> Self {
        Self::usual()
    }
}

impl HugePageParameters {
    /// The default size, which `/proc/meminfo` and `/proc/sys/vm` report.
    #[must_use]
    pub fn default_size(&self) -> PoolSize {
        self.default_size.unwrap_or_default()
    }

    /// The pages requested of one size. A count that was given before any size applies to the
    /// default size and takes precedence over a count that names this size.
    #[must_use]
    pub fn requested(&self, size: PoolSize) -> Requested {
        if size == self.default_size() && self.implicit.pages != 0 {
            self.implicit
        } else {
            self.requested[size.index()]
        }
    }

    /// A count for the default size that is ignored because another count was given before any
    /// size.
    #[must_use]
    pub fn overridden_pages(&self) -> Option<u64> {
        let explicit = self.requested[self.default_size().index()].pages;
        (self.implicit.pages != 0 && explicit != 0).then_some(explicit)
    }

    /// Reads one word; `None` when it is not about huge pages.
    #[inline(never)]
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), &'static str>> {
        Some(match name {
            "hugepages" => self.set_count(value),
            "hugepagesz" => self.set_size(value),
            "default_hugepagesz" => self.set_default_size(value),
            "hugepage_alloc_threads" => match parse_decimal(value) {
                Some(threads @ 1..) => {
                    self.alloc_threads = Some(threads);
                    Ok(())
                }
                _ => Err("hugepage_alloc_threads= takes a number of threads, at least 1"),
            },
            "hugetlb_free_vmemmap" | "hugetlb_optimize_vmemmap" => match parse_bool(value) {
                Some(on) => {
                    self.free_vmemmap = on;
                    Ok(())
                }
                None => Err("hugetlb_free_vmemmap= is on or off"),
            },
            "hugetlb_cma" => self.set_cma(value),
            "hugetlb_cma_only" => match parse_bool(value) {
                Some(on) => {
                    self.cma_only = on;
                    Ok(())
                }
                None => Err("hugetlb_cma_only= is on or off"),
            },
            _ => return None,
        })
    }

    fn set_cma(&mut self, value: &str) -> Result<(), &'static str> {
        let Some(sizes) = AreaSizes::parse(value) else {
            return Err(
                "hugetlb_cma= takes a size such as 4G, or node:size[,..] for up to 64 nodes",
            );
        };
        let page_bytes = PoolSize::OneGib.kbytes() << 10;
        let too_small = |bytes: u64| (1..page_bytes).contains(&bytes);
        let on_nodes = || sizes.nodes().nodes().filter_map(|node| sizes.on_node(node));
        if too_small(sizes.total_bytes) || on_nodes().any(too_small) {
            return Err("hugetlb_cma= is less than one of the pages that it is for, which is 1G");
        }
        self.cma = sizes;
        Ok(())
    }

    fn set_size(&mut self, value: &str) -> Result<(), &'static str> {
        self.ignore_next = true;
        let size = supported(value)?;
        if self.registered[size.index()] {
            // The default size may be named once more if its count is still to come.
            let is_default = self.default_size == Some(size);
            if !is_default || self.requested[size.index()].pages != 0 {
                return Err("this size was specified before");
            }
        }
        self.registered[size.index()] = true;
        self.current = Current::Size(size);
        self.ignore_next = false;
        Ok(())
    }

    fn set_default_size(&mut self, value: &str) -> Result<(), &'static str> {
        self.ignore_next = true;
        if self.default_size.is_some() {
            return Err("the default size was specified before");
        }
        let size = supported(value)?;
        self.default_size = Some(size);
        self.registered[size.index()] = true;
        self.current = Current::Size(size);
        self.ignore_next = false;
        if self.implicit.pages != 0 {
            self.requested[size.index()] = core::mem::replace(&mut self.implicit, Requested::NONE);
            // The count that was given without a size now belongs to this size.
            self.last = Some(Current::Size(size));
        }
        Ok(())
    }

    fn set_count(&mut self, value: &str) -> Result<(), &'static str> {
        if core::mem::replace(&mut self.ignore_next, false) {
            return Err("it does not follow a valid hugepagesz=");
        }
        if self.last == Some(self.current) {
            return Err("specified twice without a hugepagesz= between, the first counts");
        }
        let parsed = counts(value);
        let place = match self.current {
            Current::Default => &mut self.implicit,
            Current::Size(size) => &mut self.requested[size.index()],
        };
        match parsed {
            Some(requested) => {
                *place = requested;
                self.last = Some(self.current);
                Ok(())
            }
            None => {
                *place = Requested::NONE;
                Err("hugepages= takes a number of pages, or node:number[,..] for up to 64 nodes")
            }
        }
    }
}

fn supported(value: &str) -> Result<PoolSize, &'static str> {
    let size = parse_size(value).ok().and_then(PoolSize::of_bytes);
    size.ok_or("unsupported size, 2M and 1G are possible; a hugepages= that follows is ignored")
}

/// Parses either form of a count.
fn counts(value: &str) -> Option<Requested> {
    if !value.contains(':') {
        return Some(Requested { pages: number(value)?, nodes: None });
    }
    let (mut pages, mut nodes) = (0_u64, PerNode::new());
    for pair in value.split(',') {
        let (node, count) = split_once(pair, ':')?;
        let node = NodeId::new(usize::try_from(number(node)?).ok()?)?;
        // Larger counts are clamped: 2^32 - 1 is already more pages than memory can hold.
        let count = u32::try_from(number(count)?).unwrap_or(u32::MAX);
        let slot: &mut u32 = nodes.of_mut(node)?;
        let before = *slot;
        *slot = before.saturating_add(count);
        pages += u64::from(*slot - before);
    }
    Some(Requested { pages, nodes: Some(nodes) })
}

fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // A number that does not fit in 64 bits is clamped: it is more than there can be either way.
    Some(parse_radix(text, 10).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;
    use std::vec::Vec;

    /// Returns the counts of 2 MiB and of 1 GiB pages, and how many words were refused.
    fn read(line: &str) -> ([u64; 2], usize) {
        let mut problems = 0;
        let parameters = Parameters::parse(line, &mut |_| problems += 1).huge_pages;
        (PoolSize::ALL.map(|size| parameters.requested(size).pages), problems)
    }

    /// Node 64 exists with the feature `many-nodes`, but one word names no 65 nodes either way.
    #[test]
    fn too_many_nodes_are_told_from_a_wrong_form() {
        let nodes: Vec<_> = (0..65).map(|node| std::format!("{node}:1")).collect();
        let (line, mut reasons) = (std::format!("hugepages={}", nodes.join(",")), Vec::new());
        Parameters::parse(&line, &mut |problem| reasons.extend(problem.reason));
        assert!(reasons.len() == 1 && reasons[0].contains("up to 64 nodes"), "{reasons:?}");
    }

    #[test]
    fn forms_and_precedence() {
        for (line, pages, problems) in [
            ("", [0, 0], 0),
            ("hugepages=256", [256, 0], 0),
            // All three spellings of a default size mean the same.
            ("hugepages=8 default_hugepagesz=1G", [0, 8], 0),
            ("default_hugepagesz=1G hugepages=8", [0, 8], 0),
            ("default_hugepagesz=1G hugepagesz=1G hugepages=8", [0, 8], 0),
            ("default_hugepagesz=2M hugepages=8", [8, 0], 0),
            ("hugepagesz=2M hugepages=512 hugepagesz=1G hugepages=4", [512, 4], 0),
            ("hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512", [512, 4], 0),
            // A count before any size stays, whatever a later pair says.
            ("hugepages=256 hugepagesz=2M hugepages=512", [256, 0], 0),
            ("hugepages=256 hugepagesz=1G hugepages=4", [256, 4], 0),
            // The second of two is ignored.
            ("hugepages=5 hugepages=6", [5, 0], 1),
            ("hugepagesz=2M hugepages=5 hugepages=6", [5, 0], 1),
            ("hugepages=8 default_hugepagesz=1G hugepages=9", [0, 8], 1),
            // Each size is valid once, and the count after the second is ignored.
            ("hugepagesz=2M hugepages=5 hugepagesz=2M hugepages=6", [5, 0], 2),
            (
                "hugepagesz=2M hugepages=5 hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=7",
                [5, 1],
                2,
            ),
            ("default_hugepagesz=2M hugepages=5 hugepagesz=2M hugepages=6", [5, 0], 2),
            ("default_hugepagesz=1G default_hugepagesz=2M hugepages=3", [0, 0], 2),
            // Unsupported sizes: the next count is ignored, the one after it is not.
            ("hugepagesz=3M hugepages=5", [0, 0], 2),
            ("hugepagesz=64K hugepages=5 hugepages=6", [6, 0], 2),
            (
                "hugepagesz=2M hugepages=5 hugepagesz=4M hugepages=6 hugepagesz=1G hugepages=7",
                [5, 7],
                2,
            ),
            ("default_hugepagesz=16M hugepages=5", [0, 0], 2),
            ("hugepagesz hugepages=5", [0, 0], 2),
            ("hugepagesz=2MB hugepages=5", [5, 0], 0),
            // Invalid values.
            ("hugepages=many", [0, 0], 1),
            ("hugepages=-1", [0, 0], 1),
            ("hugepages=", [0, 0], 1),
            ("hugepages", [0, 0], 1),
            ("hugepages=5x", [0, 0], 1),
            ("hugepages=many hugepages=7", [7, 0], 1),
            ("hugepages=99999999999999999999", [u64::MAX, 0], 0),
            ("hugepages=0", [0, 0], 0),
        ] {
            assert_eq!(read(line), (pages, problems), "{line}");
        }
    }

    #[cfg(feature = "many-nodes")]
    #[test]
    fn node_forms() {
        let on_nodes = |line: &str, size: PoolSize| {
            let mut problems = 0;
            let requested =
                Parameters::parse(line, &mut |_| problems += 1).huge_pages.requested(size);
            let nodes: Vec<_> = requested
                .nodes()
                .nodes()
                .map(|node| (node.index(), requested.on_node(node)))
                .collect();
            (requested.pages, nodes, problems)
        };
        let two = PoolSize::TwoMib;
        assert_eq!(
            on_nodes("hugepages=0:4,1:2", two),
            (6, [(0, Some(4)), (1, Some(2))].to_vec(), 0)
        );
        assert_eq!(on_nodes("hugepages=1023:1", two), (1, [(1023, Some(1))].to_vec(), 0));
        assert_eq!(on_nodes("hugepages=1:0,3:5", two), (5, [(3, Some(5))].to_vec(), 0));
        assert_eq!(on_nodes("hugepages=0:1,0:2", two), (3, [(0, Some(3))].to_vec(), 0));
        assert_eq!(
            on_nodes("hugepagesz=1G hugepages=2:7", PoolSize::OneGib),
            (7, [(2, Some(7))].to_vec(), 0)
        );
        assert_eq!(
            on_nodes("hugepages=2:7 default_hugepagesz=1G", PoolSize::OneGib),
            (7, [(2, Some(7))].to_vec(), 0)
        );
        for bad in [
            "1024:1", "0:4,", ",0:4", "0:4,5", "5,0:4", "0:", ":4", "0:4;1:2", "0:-1", "x:1",
            "0:1:2",
        ] {
            let line = std::format!("hugepages={bad}");
            assert_eq!(on_nodes(&line, two), (0, Vec::new(), 1), "{bad}");
        }
    }

    #[test]
    fn what_is_overridden_is_known() {
        let parameters = |line| Parameters::parse(line, &mut |_| ()).huge_pages;
        assert_eq!(
            parameters("hugepages=256 hugepagesz=2M hugepages=512").overridden_pages(),
            Some(512)
        );
        assert_eq!(
            parameters("hugepages=256 hugepagesz=1G hugepages=512").overridden_pages(),
            None
        );
        assert_eq!(parameters("hugepagesz=2M hugepages=512").overridden_pages(), None);
    }

    #[test]
    fn other_words() {
        let parameters = |line| {
            let mut problems = 0;
            (Parameters::parse(line, &mut |_| problems += 1).huge_pages, problems)
        };
        for (line, threads, problems) in [
            ("", None, 0),
            ("hugepage_alloc_threads=8", Some(8), 0),
            ("hugepage_alloc_threads=0", None, 1),
            ("hugepage_alloc_threads=lots", None, 1),
            ("hugepage_alloc_threads=4 hugepage_alloc_threads=-1", Some(4), 1),
        ] {
            let (read, refused) = parameters(line);
            assert_eq!((read.alloc_threads, refused), (threads, problems), "{line}");
        }
        let (all, problems) =
            parameters("hugetlb_free_vmemmap=on hugetlb_cma=0 hugetlb_cma_only=0");
        assert_eq!((all.free_vmemmap, problems), (true, 0));
        let (none, problems) =
            parameters("hugetlb_free_vmemmap=maybe hugetlb_cma=much hugetlb_cma_only=");
        assert_eq!((none.free_vmemmap, problems), (false, 3));
        let (given, problems) =
            parameters("hugetlb_cma=1G hugetlb_cma_only=1 hugepagesz=1G hugepages=2");
        assert_eq!((given.requested(PoolSize::OneGib).pages, problems), (2, 0));
        assert!(!parameters("hugetlb_free_vmemmap=on hugetlb_optimize_vmemmap=off").0.free_vmemmap);
    }

    #[test]
    fn areas_have_a_size_in_all_or_on_nodes() {
        let parameters = |line: &str| Parameters::parse(line, &mut |_| ()).huge_pages;
        let plain = parameters("hugetlb_cma=3G hugetlb_cma_only=on");
        assert_eq!((plain.cma.total_bytes, plain.cma_only), (3 << 30, true));
        assert!(plain.cma.nodes().is_empty());
        let nodes = parameters("hugetlb_cma=3G hugetlb_cma=0:1G,2:1536M").cma;
        assert_eq!((nodes.total_bytes, nodes.nodes().nodes().count()), (2560 << 20, 2));
        assert_eq!(parameters("hugetlb_cma=3G hugetlb_cma=0").cma, AreaSizes::parse("0").unwrap());
        assert!(!parameters("hugetlb_cma_only=on hugetlb_cma_only=off").cma_only);
        for (bad, reason) in [
            ("", "takes a size such as 4G"),
            ("0:1G,", "takes a size such as 4G"),
            ("1024:1G", "takes a size such as 4G"),
            ("1G,0:1G", "takes a size such as 4G"),
            ("1023M", "is less than one of the pages"),
            ("0:1G,1:512M", "is less than one of the pages"),
        ] {
            let line = std::format!("hugetlb_cma=7G hugetlb_cma={bad}");
            let mut reasons = Vec::new();
            let read = Parameters::parse(&line, &mut |problem| reasons.extend(problem.reason));
            assert_eq!(read.huge_pages.cma.total_bytes, 7 << 30, "{bad}");
            assert!(reasons.len() == 1 && reasons[0].contains(reason), "{bad}: {reasons:?}");
        }
    }
}
