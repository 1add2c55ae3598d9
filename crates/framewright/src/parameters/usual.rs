//! The default parameters.

use super::{
    AcceptPolicy, AreaParameters, CoreParameters, HotplugParameters, HugePageParameters,
    MAX_MEMMAP, Pages, Parameters, Policy, ReportingParameters,
};

impl Parameters {
    /// [`default`](Self::default) as a constant, for statics. The parameters take some 4 KiB, for
    /// which many boot stacks have no room, and hundreds of stores.
    pub(crate) const fn usual() -> Self {
        Self {
            movable_node: false,
            core: CoreParameters { kernelcore: None, movablecore: None },
            areas: AreaParameters::usual(),
            numa: true,
            memory_limit: None,
            min_free_kbytes: None,
            watermark_scale_factor: 10,
            accept: AcceptPolicy::Lazy,
            policy: Policy::Deferred,
            page_owner: false,
            page_poison: false,
            init_on_alloc: false,
            init_on_free: false,
            careful: None,
            shuffle: false,
            shuffle_seed: None,
            reporting: ReportingParameters::usual(),
            pages: Pages::Auto,
            huge_pages: HugePageParameters::usual(),
            zone_parts: None,
            hotplug: HotplugParameters::usual(),
            memmap_init_threads: None,
            page_template: None,
            memmap: [None; MAX_MEMMAP],
        }
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Self::usual()
    }
}
