//! Where the kernel is linked to: as the minimal one.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../minimal-kernel/linker.ld");
    // The target would have it run anywhere; boot code does not.
    for argument in ["--no-pie", "-T", script, "-z", "max-page-size=0x1000"] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rerun-if-changed=build.rs");
}
