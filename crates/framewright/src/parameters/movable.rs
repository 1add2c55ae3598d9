//! Boot parameters of movable memory: how much of it there is (Linux: `mm/mm_init.c`,
//! `cmdline_parse_core`), and areas that are set aside for contiguous requests and lent to movable
//! ones (Linux: `kernel/dma/contiguous.c` and `mm/hugetlb_cma.c`).
//!
//! Each word is taken as a whole or not at all. If a word is given twice, the last one counts.

use super::parse::{parse_number, parse_size, split_once};
use super::per_node::PerNode;
use crate::firmware::{CoreSize, KernelCore, MovableSetting};
use crate::units::{NodeId, NodeMask, PHYSICAL_ADDRESS_END, PhysRange};

/// How much memory a command line sets aside, in total or per node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AreaSizes {
    /// The total, in bytes.
    pub total_bytes: u64,
    /// Bytes of each node, in the form `0:1G,1:2G`.
    nodes: Option<PerNode<u64>>,
}

impl AreaSizes {
    /// Nothing.
    pub const NONE: Self = Self { total_bytes: 0, nodes: None };

    /// The bytes on one node in the node form; `None` in the plain form.
    #[must_use]
    pub fn on_node(&self, node: NodeId) -> Option<u64> {
        Some(self.nodes.as_ref()?.of(node))
    }

    /// The nodes for which a size other than 0 is given.
    #[must_use]
    pub fn nodes(&self) -> NodeMask {
        self.nodes.as_ref().map_or(NodeMask::EMPTY, PerNode::nodes)
    }

    /// The bytes for each of `nodes`, the nodes that exist, in multiples of `unit_bytes` (Linux:
    /// `mm/hugetlb_cma.c`, `hugetlb_cma_reserve`). In the plain form each node, in ascending order,
    /// gets an equal share, rounded up, until the total is reached: 3 GiB on four nodes are one GiB
    /// each on the first three. Sizes given for nodes that do not exist are dropped.
    pub fn shares(
        &self,
        nodes: NodeMask,
        unit_bytes: u64,
    ) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        let unit_bytes = unit_bytes.max(1);
        let count = nodes.len() as u64;
        let (share, mut given) = (self.total_bytes.div_ceil(count.max(1)), 0_u64);
        nodes.nodes().map(move |node| {
            let left = self.total_bytes.saturating_sub(given);
            let bytes = self.on_node(node).unwrap_or(share.min(left));
            // A size that cannot be rounded up is larger than any memory.
            let bytes = bytes.checked_next_multiple_of(unit_bytes).unwrap_or(bytes);
            given = given.saturating_add(bytes);
            (node, bytes)
        })
    }

    /// Parses the form `node:size[,node:size...]`.
    pub(super) fn parse_nodes(value: &str) -> Option<Self> {
        let mut nodes = PerNode::new();
        for pair in value.split(',') {
            let (node, size) = split_once(pair, ':')?;
            let node = NodeId::new(usize::try_from(parse_number(node)?).ok()?)?;
            *nodes.of_mut(node)? = parse_size(size).ok()?;
        }
        let total_bytes = nodes.values().fold(0_u64, |sum, bytes| sum.saturating_add(bytes));
        Some(Self { total_bytes, nodes: Some(nodes) })
    }

    /// Parses either form.
    pub(super) fn parse(value: &str) -> Option<Self> {
        if value.contains(':') {
            return Self::parse_nodes(value);
        }
        Some(Self { total_bytes: parse_size(value).ok()?, nodes: None })
    }
}

/// The area that `cma=` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmaArea {
    /// Its size in bytes; 0 for none.
    pub bytes: u64,
    /// The addresses inside which the area must lie; anywhere if unset. If they span exactly
    /// [`bytes`](Self::bytes), as with `cma=64M@1G`, they are its place.
    pub within: Option<PhysRange>,
}

/// What the command line says about areas that do not belong to huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AreaParameters {
    /// `cma=`: the area for every requester that has none of its own.
    pub cma: Option<CmaArea>,
    /// `cma_pernuma=`: the bytes of an area on each node; 0 for none.
    pub cma_pernuma_bytes: u64,
    /// `numa_cma=`: areas on some nodes, always in the node form.
    pub numa_cma: AreaSizes,
}

impl AreaParameters {
    /// No area.
    pub(crate) const fn usual() -> Self {
        Self { cma: None, cma_pernuma_bytes: 0, numa_cma: AreaSizes::NONE }
    }
}

impl Default for AreaParameters {
    fn default() -> Self {
        Self::usual()
    }
}

impl AreaParameters {
    /// Reads one word; `None` when it is not about areas.
    #[inline(never)]
    pub(super) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), &'static str>> {
        Some(match name {
            "cma" => cma_area(value).map(|area| self.cma = Some(area)),
            "cma_pernuma" => match parse_size(value) {
                Ok(bytes) => {
                    self.cma_pernuma_bytes = bytes;
                    Ok(())
                }
                Err(_) => Err("cma_pernuma= takes a size for each node, such as 64M"),
            },
            "numa_cma" => match AreaSizes::parse_nodes(value) {
                Some(sizes) => {
                    self.numa_cma = sizes;
                    Ok(())
                }
                None => Err(
                    "numa_cma= takes node:size[,node:size...], for up to 64 nodes that this build \
                     can have, with sizes such as 64M",
                ),
            },
            _ => return None,
        })
    }
}

/// How much memory is movable, and how much is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CoreParameters {
    /// `kernelcore=`: the least amount that is not movable.
    pub kernelcore: Option<KernelCore>,
    /// `movablecore=`: the least amount that is movable.
    pub movablecore: Option<CoreSize>,
}

impl CoreParameters {
    /// Both parameters together with `movable_node`, as
    /// [`movable_starts`](crate::firmware::movable_starts) takes them.
    #[must_use]
    pub const fn setting(&self, movable_node: bool) -> MovableSetting {
        let Self { kernelcore, movablecore } = *self;
        MovableSetting { movable_node, kernelcore, movablecore }
    }

    /// Reads one word; `None` when it is another one.
    #[inline(never)]
    pub(super) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), &'static str>> {
        const OVER: &str = "more than 100% of memory";
        Some(match (name, value) {
            ("kernelcore", "mirror") => {
                self.kernelcore = Some(KernelCore::Mirror);
                Ok(())
            }
            ("kernelcore", _) => match core_size(value) {
                Some(CoreSize::Percent(101..)) => Err(OVER),
                Some(size) => {
                    self.kernelcore = Some(KernelCore::Size(size));
                    Ok(())
                }
                None => Err("kernelcore= takes a size such as 4G, a part such as 25%, or mirror"),
            },
            ("movablecore", _) => match core_size(value) {
                Some(CoreSize::Percent(101..)) => Err(OVER),
                Some(size) => {
                    self.movablecore = Some(size);
                    Ok(())
                }
                None => Err("movablecore= takes a size such as 4G or a part such as 25%"),
            },
            _ => return None,
        })
    }
}

/// Parses a size or a percentage.
fn core_size(value: &str) -> Option<CoreSize> {
    match value.strip_suffix('%') {
        // A percentage that does not fit is over 100 as well.
        Some(percent) => {
            parse_number(percent).map(|part| CoreSize::Percent(part.try_into().unwrap_or(u8::MAX)))
        }
        None => parse_size(value).ok().map(CoreSize::Bytes),
    }
}

/// Parses the forms of `cma=`.
fn cma_area(value: &str) -> Result<CmaArea, &'static str> {
    const FORM: &str =
        "cma= takes SIZE, SIZE@BASE or SIZE@BASE-LIMIT, with sizes such as 64M or 0x10000000";
    let size = |text| parse_size(text).map_err(|_| FORM);
    let Some((bytes, place)) = split_once(value, '@') else {
        return Ok(CmaArea { bytes: size(value)?, within: None });
    };
    let bytes = size(bytes)?;
    let (base, limit) = match split_once(place, '-') {
        Some((base, limit)) => (size(base)?, size(limit)?),
        None => {
            let base = size(place)?;
            (base, base.saturating_add(bytes))
        }
    };
    if limit > PHYSICAL_ADDRESS_END {
        return Err("the area's place ends above the last physical address");
    }
    if limit < base || limit - base < bytes {
        return Err("the area does not fit between its base and its limit");
    }
    Ok(CmaArea { bytes, within: Some(PhysRange::new(base, limit)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::string::String;
    use std::vec::Vec;

    /// Returns the parameters of a line and the problems reported for it.
    fn parse(line: &str) -> (Parameters, Vec<String>) {
        let mut problems = Vec::new();
        let parameters =
            Parameters::parse(line, &mut |problem| problems.push(std::format!("{problem}")));
        (parameters, problems)
    }

    fn node(node: usize) -> NodeId {
        NodeId::new(node).expect("a node")
    }

    #[test]
    fn core_sizes_are_bytes_or_parts() {
        for (text, size) in [
            ("4G", CoreSize::Bytes(4 << 30)),
            ("512m", CoreSize::Bytes(512 << 20)),
            ("0x1000", CoreSize::Bytes(4096)),
            ("1P", CoreSize::Bytes(1 << 50)),
            ("15E", CoreSize::Bytes(15 << 60)),
            ("0", CoreSize::Bytes(0)),
            ("25%", CoreSize::Percent(25)),
            ("0%", CoreSize::Percent(0)),
            ("100%", CoreSize::Percent(100)),
        ] {
            let (parameters, problems) =
                parse(&std::format!("kernelcore={text} movablecore={text}"));
            assert!(problems.is_empty(), "{problems:?}");
            let expected = CoreParameters {
                kernelcore: Some(KernelCore::Size(size)),
                movablecore: Some(size),
            };
            assert_eq!(parameters.core, expected, "{text}");
        }
        for text in [
            "",
            "%",
            "101%",
            "256%",
            "99999999999%",
            "-1%",
            "25%%",
            "2.5%",
            "4Q",
            "lots",
            "16E",
            "mirrors",
            "Mirror",
            "25%G",
            "25G%",
        ] {
            for name in ["kernelcore", "movablecore"] {
                let line = std::format!("{name}=1G {name}={text}");
                let (parameters, problems) = parse(&line);
                let unchanged = parse(&std::format!("{name}=1G")).0.core;
                assert_eq!(parameters.core, unchanged, "{line}");
                assert!(!problems.is_empty(), "{line}");
            }
        }
        assert!(parse("movablecore=101%").1[0].ends_with("ignored: more than 100% of memory"));
        assert!(parse("kernelcore=x").1[0].contains("kernelcore= takes a size such as 4G"));
        assert!(parse("movablecore").1[0].contains("movablecore= takes a size such as 4G"));
    }

    #[test]
    fn the_last_core_size_counts_and_mirror_is_kept() {
        let last = parse("kernelcore=1G kernelcore=20% movablecore=5% movablecore=2G").0;
        let setting = last.core.setting(last.movable_node);
        assert_eq!(setting.kernelcore, Some(KernelCore::Size(CoreSize::Percent(20))));
        assert_eq!(setting.movablecore, Some(CoreSize::Bytes(2 << 30)));
        assert!(!setting.movable_node);
        let (mirror, problems) = parse("kernelcore=mirror movablecore=1G movable_node");
        assert_eq!(mirror.core.kernelcore, Some(KernelCore::Mirror));
        assert!(mirror.core.setting(mirror.movable_node).movable_node);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(parse("movablecore=mirror").0.core, CoreParameters::default());
        assert_eq!(parse("").0.core.setting(false), MovableSetting::default());
    }

    #[test]
    fn cma_has_a_size_and_perhaps_a_place() {
        let area = |bytes, start, end| CmaArea { bytes, within: Some(PhysRange::new(start, end)) };
        for (text, expected) in [
            ("64M", CmaArea { bytes: 64 << 20, within: None }),
            ("0", CmaArea { bytes: 0, within: None }),
            ("64M@1G", area(64 << 20, 1 << 30, (1 << 30) + (64 << 20))),
            ("64M@0-4G", area(64 << 20, 0, 4 << 30)),
            ("0x1000@0x10000-0x20000", area(0x1000, 0x1_0000, 0x2_0000)),
            ("64M@1G-1088M", area(64 << 20, 1 << 30, 1088 << 20)),
        ] {
            let (parameters, problems) = parse(&std::format!("cma=1M cma={text}"));
            assert_eq!((parameters.areas.cma, problems.len()), (Some(expected), 0), "{text}");
        }
        let before = Some(CmaArea { bytes: 1 << 20, within: None });
        let form = "cma= takes SIZE, SIZE@BASE or SIZE@BASE-LIMIT";
        let no_room = "does not fit between its base and its limit";
        let too_high = "ends above the last physical address";
        for (text, reason) in [
            ("", form),
            ("much", form),
            ("64M@", form),
            ("@1G", form),
            ("64M@1G-", form),
            ("64M@-2G", form),
            ("64M-2G", form),
            ("64M@1G-2G-3G", form),
            ("64M@1G@2G", form),
            ("64M@1G-1087M", no_room),
            ("64M@2G-1G", no_room),
            ("15E", ""),
            ("64M@15E", too_high),
            ("15E@15E", too_high),
            ("64M@4P", too_high),
        ] {
            let (parameters, problems) = parse(&std::format!("cma=1M cma={text}"));
            if reason.is_empty() {
                // Larger than any memory: that the area does not fit is found where it is made.
                assert_eq!(problems.len(), 0, "{text}");
                continue;
            }
            assert_eq!(parameters.areas.cma, before, "{text}");
            assert!(problems.len() == 1 && problems[0].contains(reason), "{text}: {problems:?}");
        }
        assert_eq!(parse("").0.areas, AreaParameters::default());
    }

    #[cfg(feature = "many-nodes")]
    #[test]
    fn areas_on_nodes() {
        let (parameters, problems) =
            parse("cma_pernuma=16M numa_cma=0:64M,3:1G,1023:4k numa_cma=0:64M,3:1G,1023:8k");
        assert_eq!(problems.len(), 0, "{problems:?}");
        let AreaParameters { cma_pernuma_bytes, numa_cma, .. } = parameters.areas;
        assert_eq!(cma_pernuma_bytes, 16 << 20);
        assert_eq!(numa_cma.total_bytes, (64 << 20) + (1 << 30) + (8 << 10));
        let nodes: Vec<_> = numa_cma.nodes().nodes().map(NodeId::index).collect();
        assert_eq!(nodes, [0, 3, 1023]);
        assert_eq!(numa_cma.on_node(node(3)), Some(1 << 30));
        assert_eq!(numa_cma.on_node(node(1)), Some(0));
        // If a node is named twice, the last size counts.
        assert_eq!(parse("numa_cma=1:1G,1:2G").0.areas.numa_cma.total_bytes, 2 << 30);
        for text in [
            "",
            "64M",
            "1024:1M",
            "0:",
            ":1M",
            "0:1M,",
            ",0:1M",
            "0:1M,1",
            "0:1M;1:1M",
            "x:1M",
            "-1:1M",
            "0:1Q",
            "0:1:2",
            "4294967296:1M",
        ] {
            let (parameters, problems) = parse(&std::format!("numa_cma=1:1G numa_cma={text}"));
            assert_eq!(parameters.areas.numa_cma.total_bytes, 1 << 30, "{text}");
            assert!(problems.len() == 1 && problems[0].contains("numa_cma= takes node:size"));
            // How many nodes there are depends on the features.
            assert!(!problems[0].contains("63"), "{}", problems[0]);
        }
        for text in ["", "0:1M", "much", "-1"] {
            let (parameters, problems) = parse(&std::format!("cma_pernuma=1M cma_pernuma={text}"));
            assert_eq!(parameters.areas.cma_pernuma_bytes, 1 << 20, "{text}");
            assert!(problems.len() == 1 && problems[0].contains("cma_pernuma= takes a size"));
        }
    }

    #[test]
    fn what_is_taken_is_not_answered() {
        let reasons = |line| {
            let mut reasons = Vec::new();
            Parameters::parse(line, &mut |problem| reasons.push(problem.reason));
            reasons
        };
        assert_eq!(reasons("kernelcore=1G movablecore=10%"), []);
        assert_eq!(reasons("cma=1M cma_pernuma=1M numa_cma=0:1M"), []);
        let nothing = "kernelcore=0 movablecore=0% cma=0 cma_pernuma=0 numa_cma=0:0";
        assert_eq!(reasons(nothing), []);
    }

    #[test]
    fn sizes_are_shared_out_in_whole_pages() {
        let unit = 1 << 30;
        let four = (0..4).map(node).fold(NodeMask::EMPTY, NodeMask::with);
        let gibs = |text, nodes| {
            let sizes = AreaSizes::parse(text).expect("sizes");
            let shares = sizes.shares(nodes, unit);
            let mut gibs = [0; 4];
            shares.for_each(|(node, bytes)| gibs[node.index()] = bytes >> 30);
            gibs
        };
        assert_eq!(gibs("3G", four), [1, 1, 1, 0]);
        assert_eq!(gibs("8G", four), [2, 2, 2, 2]);
        assert_eq!(gibs("5G", four), [2, 2, 1, 0]);
        assert_eq!(gibs("1G", four), [1, 0, 0, 0]);
        assert_eq!(gibs("0", four), [0; 4]);
        assert_eq!(gibs("3G", NodeMask::only(node(2))), [0, 0, 3, 0]);
        assert_eq!(gibs("3G", NodeMask::EMPTY), [0; 4]);
        assert_eq!(gibs("1:1536M,3:1G,9:7G", four), [0, 2, 0, 1]);
    }

    fn words() -> impl Strategy<Value = String> {
        let name = "(kernelcore|movablecore|movable_node|cma|cma_pernuma|numa_cma|hugetlb_cma|\
                    hugetlb_cma_only)";
        let value = prop_oneof![
            "[0-9xKMGTPEkg%@:,-]{0,24}",
            "[0-9]{1,20}[KMGTPE]?(@[0-9]{1,5}[KMGTPE]?(-[0-9]{1,5}[KMGTPE]?)?)?",
            "([0-9]{1,2}:[0-9]{1,5}[KMG]?,?){1,5}",
            "[0-9]{1,4}%",
            "\\PC{0,20}",
        ];
        (name, value).prop_map(|(name, value)| std::format!("{name}={value}"))
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused_as_a_whole(line in vec(words(), 0..4)) {
            let line = line.join(" ");
            let (parameters, _) = parse(&line);
            let sizes = [parameters.areas.numa_cma, parameters.huge_pages.cma];
            for sizes in sizes {
                let on_nodes = sizes.nodes().nodes().filter_map(|node| sizes.on_node(node));
                let sum = on_nodes.fold(0_u64, u64::saturating_add);
                prop_assert!(sum == sizes.total_bytes || sizes.nodes.is_none(), "{line}");
                let shares = sizes.shares(NodeMask::ALL, 1 << 30);
                prop_assert!(
                    shares.fold(0_u64, |sum, (_, share)| sum.saturating_add(share))
                        >= sizes.total_bytes
                );
            }
            if let Some(CmaArea { bytes, within: Some(within) }) = parameters.areas.cma {
                prop_assert!(bytes <= within.size() && within.end <= PHYSICAL_ADDRESS_END);
            }
            let percents = [
                parameters.core.movablecore,
                match parameters.core.kernelcore {
                    Some(KernelCore::Size(size)) => Some(size),
                    _ => None,
                },
            ];
            for size in percents.into_iter().flatten() {
                prop_assert!(!matches!(size, CoreSize::Percent(101..)));
            }
        }
    }
}
