//! Framewright: testkit.
