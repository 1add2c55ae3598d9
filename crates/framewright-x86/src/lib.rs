//! Framewright: x86.
