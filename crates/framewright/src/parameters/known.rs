//! The help text of each parameter.

/// Parameters with a short description each, for a program's help.
pub const KNOWN: &[(&str, &str)] = &[
    (
        "accept_memory=POLICY",
        "when a confidential guest accepts memory: lazy (the default), eager or background",
    ),
    ("careful=on|SEED", "page_owner, poison, and memory taken from random places"),
    (
        "cma=SIZE",
        "an area for contiguous requests, lent to movable ones; @BASE or @BASE-LIMIT says where",
    ),
    ("cma_pernuma=SIZE", "such an area on each node; numa_cma=0:SIZE,1:SIZE on some"),
    ("default_hugepagesz=SIZE", "the huge-page size that counts without a size are for: 2M or 1G"),
    ("hotplug_windows=N", "ranges of memory that can be added later, 8 if unset"),
    (
        "hugepage_alloc_threads=N",
        "most threads that fill pools at boot; of these one a node and 64 GiB take part, as more \
         are slower",
    ),
    ("hugepages=N", "huge pages to set aside at boot; `0:4,1:2` says how many on which node"),
    ("hugepagesz=SIZE", "size of the huge pages that the next hugepages= counts"),
    (
        "hugetlb_cma=SIZE",
        "areas that 1 GiB pages come from, lent to movable requests; 0:SIZE,1:SIZE on which node",
    ),
    ("hugetlb_cma_only=on", "1 GiB pages come from such areas alone"),
    ("hugetlb_free_vmemmap=on", "pages in pools give up their part of the memory map"),
    ("init_on_alloc=1", "clear memory when it is handed out"),
    ("init_on_free=1", "clear memory when it is freed"),
    ("kernelcore=SIZE", "memory that is not movable alone, at least; 25% is a part of all"),
    ("mem=SIZE", "use no memory at or above this address"),
    ("memmap=SIZE$START", "reserve memory; `#` marks it as ACPI data, `!` as persistent"),
    (
        "memmap_init=POLICY",
        "when page descriptors begin: eager, deferred (the default) or on-demand",
    ),
    (
        "memmap_init_threads=N",
        "threads that initialise a node's deferred memory map; otherwise its CPUs, and those that \
         are done with theirs",
    ),
    (
        "memhp_default_state=online",
        "what becomes of memory that is added: offline, online, online_kernel, online_movable",
    ),
    (
        "memory_hotplug.memmap_on_memory=Y",
        "added memory may hold its own tables; with N they lie in memory that is there",
    ),
    (
        "memory_hotplug.online_policy=P",
        "for whom it is: contig-zones or auto-movable; auto_movable_ratio=301 and \
         auto_movable_numa_aware=Y belong to the second",
    ),
    ("min_free_kbytes=N", "memory kept free over all zones"),
    ("movablecore=SIZE", "memory that only what can be moved may have, at least; 25% as above"),
    (
        "movable_node",
        "keep what cannot be moved out of hot-pluggable memory, as long as there is other",
    ),
    ("numa=off", "one node, whatever firmware says"),
    ("page_owner=on", "write down which line and CPU allocated and freed each page"),
    ("page_poison=1", "fill free memory, and look at it before it is handed out"),
    ("page_alloc.shuffle=1", "hand free blocks out in random order"),
    ("page_alloc.shuffle_seed=N", "the seed of the shuffle, so that it can be repeated"),
    (
        "page_reporting.pace=adaptive",
        "report what stayed free to the hypervisor soon; `fixed` does so at Linux's pace",
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
        "keep 64 bytes for every page of a block that is in pieces, in the block where there is no \
         array; `none`: nothing",
    ),
    ("watermark_scale_factor=N", "distance between watermarks in 1/10000 of a zone, 1 to 3000"),
    ("zone_parts=N", "parts of each zone, with a lock each; otherwise as CPUs and memory suit"),
];
