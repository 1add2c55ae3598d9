//! The manager on fake machines: cases, models and threads.
//!
//! All tests are in one program, because each program compiles the whole manager again. The command
//! `cargo xtask test` runs this program a second time with every machine careful.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod ageing;
mod aids;
mod aids_claims;
mod aids_owners;
mod areas;
mod areas_at_bring_up;
mod areas_hammer;
mod areas_placed;
mod areas_pools;
mod areas_soundness;
mod away;
mod background;
mod bad_types;
mod boot_pages;
mod bound;
mod bulk;
mod cached;
mod cached_requests;
mod cases;
mod claims;
mod compaction;
mod compaction_where;
mod contiguous;
mod cpus;
mod cpus_gone;
mod deadlines;
mod deferred;
mod deferred_merge;
mod drains;
mod eager;
mod emptiest;
mod exhaustion;
mod grades;
mod grades_edges;
mod grades_merges;
mod halves;
mod hvo;
mod in_parts;
mod inside;
mod isolation;
mod largest;
mod long_runs;
mod mirror;
mod movers_that_call_back;
mod movers_that_die;
mod moving;
mod moving_borders;
mod moving_freed;
mod moving_hammer;
mod moving_turns;
mod nodes_without_memory;
mod obstacle_kinds;
mod obstacles;
mod owned;
mod pages;
mod parts;
mod platform;
mod policies;
mod policies_model;
mod pool_errors;
mod pool_fill;
mod pool_leftovers;
mod pool_maps;
mod pool_model;
mod pool_spare;
mod pool_threads;
mod pool_vacate;
mod pools;
mod preemption;
mod pressure;
mod proactive;
mod properties;
mod range_edges;
mod readers;
mod references;
mod refused;
mod reporting;
mod reporting_faults;
mod reporting_model;
mod reporting_passes;
mod reporting_pools;
mod reporting_refused;
mod searches;
mod shortfall;
mod shortfall_model;
mod shuffle;
mod threads;
mod tiers;
mod unaccepted;
mod unaccepted_early;
mod unaccepted_grades;
mod unaccepted_model;
mod vmemmap;
mod vmemmap_layouts;
mod zone_parts;

/// Where the tests of this program keep their page descriptors. `deferred`, `eager`, `inside` and
/// `in_parts` run some of the tests again with another value.
const HERE: crate::common::Descriptors = crate::common::Descriptors::None;
