//! Links the kernel to the addresses of the minimal kernel.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../minimal-kernel/linker.ld");
    // The target's default is position independent; boot code is not.
    for argument in ["--no-pie", "-T", script, "-z", "max-page-size=0x1000"] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rerun-if-changed=build.rs");
}
