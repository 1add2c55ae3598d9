//! Makes the linker produce a kernel instead of a Linux program.

fn main() {
    let script = concat!("-Wl,-T,", env!("CARGO_MANIFEST_DIR"), "/linker.ld");
    let pages = "-Wl,-z,max-page-size=0x1000";
    for argument in
        ["-nostartfiles", "-nostdlib", "-static", "-no-pie", script, pages, "-Wl,--build-id=none"]
    {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rerun-if-changed=linker.ld");
    println!("cargo:rerun-if-changed=build.rs");
}
