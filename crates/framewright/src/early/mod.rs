//! The early allocator (SPEC 8). Placeholder signatures; see docs/architecture.md.
