//! The program `framewright`.
fn main() {}
