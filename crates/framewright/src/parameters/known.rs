//! The help text of each parameter.

/// Parameters with a short description each, for a program's help.
pub const KNOWN: &[(&str, &str)] = &[
    (
        "accept_memory=POLICY",
        "when a confidential guest accepts memory: lazy (the default), eager or background",
    ),
    ("careful=on|SEED", "page_owner, poison and random placement"),
    (
        "cma=SIZE",
        "an area for contiguous requests, lent to movable ones; place it by @BASE or @BASE-LIMIT",
    ),
    ("cma_pernuma=SIZE", "such an area on each node; numa_cma=0:SIZE,1:SIZE on the named ones"),
    (
        "default_hugepagesz=SIZE",
        "the huge-page size that hugepages= without a size means: 2M or 1G",
    ),
    ("hotplug_windows=N", "ranges of memory that can be added later, 8 if unset"),
    (
        "hugepage_alloc_threads=N",
        "most threads that fill pools at boot; no more than one for each node and 64 GiB take \
         part, because more are slower",
    ),
    ("hugepages=N", "huge pages to set aside at boot; `0:4,1:2` gives the number on each node"),
    ("hugepagesz=SIZE", "size of the huge pages that the next hugepages= counts"),
    (
        "hugetlb_cma=SIZE",
        "areas for 1 GiB pages, lent to movable requests; 0:SIZE,1:SIZE gives the size by node",
    ),
    ("hugetlb_cma_only=on", "1 GiB pages come from the areas of hugetlb_cma= alone"),
    ("hugetlb_free_vmemmap=on", "pages in pools give up their part of the memory map"),
    ("init_on_alloc=1", "clear memory when it is handed out"),
    ("init_on_free=1", "clear memory when it is freed"),
    ("kernelcore=SIZE", "least memory that all requests may use; 25% is a share of all memory"),
    ("mem=SIZE", "use no memory at or above this address"),
    ("memmap=SIZE$START", "reserve memory; `#` marks it as ACPI data, `!` as persistent"),
    (
        "memmap_init=POLICY",
        "when page descriptors are written: eager, deferred (the default) or on-demand",
    ),
    (
        "memmap_init_threads=N",
        "threads that initialise a node's deferred memory map; by default its CPUs, helped by \
         CPUs that are done with theirs",
    ),
    (
        "memhp_default_state=online",
        "what happens to added memory: offline, online, online_kernel, online_movable",
    ),
    (
        "memory_hotplug.memmap_on_memory=Y",
        "added memory may hold its own tables; with N they lie in existing memory",
    ),
    (
        "memory_hotplug.online_policy=P",
        "who may use added memory: contig-zones or auto-movable, which has \
         auto_movable_ratio=301 and auto_movable_numa_aware=Y",
    ),
    ("min_free_kbytes=N", "memory kept free over all zones"),
    ("movablecore=SIZE", "least memory for movable requests alone; 25% as for kernelcore="),
    (
        "movable_node",
        "keep unmovable memory out of hot-pluggable memory while there is other memory",
    ),
    ("numa=off", "one node, whatever the firmware says"),
    ("page_owner=on", "record which line and CPU allocated and freed each page"),
    ("page_poison=1", "fill free memory, and check it before it is handed out"),
    ("page_alloc.shuffle=1", "hand free blocks out in random order"),
    ("page_alloc.shuffle_seed=N", "the seed of the shuffle, so that it can be repeated"),
    (
        "page_reporting.pace=adaptive",
        "when free memory is reported to the hypervisor: adaptive (soon) or fixed (Linux's pace)",
    ),
    (
        "page_reporting.page_reporting_delay_ms=N",
        "time between passes of free page reporting, 2000 if unset",
    ),
    ("page_reporting.pools=1", "report free pages of huge-page pools to the hypervisor, too"),
    (
        "page_reporting.page_reporting_order=N",
        "the smallest order that is reported to the hypervisor, 0 to 18",
    ),
    (
        "pages=inside",
        "keep 64 bytes for every page of a split block, in the block where there is no array; \
         `none` keeps nothing",
    ),
    ("watermark_scale_factor=N", "distance between watermarks in 1/10000 of a zone, 1 to 3000"),
    (
        "zone_parts=N",
        "parts of each zone, each with its own lock; by default as CPUs and memory suit",
    ),
];
