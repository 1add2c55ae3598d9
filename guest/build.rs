//! Tells the linker to make a kernel out of what would otherwise be a Linux program.

use std::env;

fn main() {
    let folder = env::var("CARGO_MANIFEST_DIR").expect("cargo sets the manifest folder");
    let mut arguments = vec![
        "-nostartfiles".to_owned(),
        "-nostdlib".to_owned(),
        "-static".to_owned(),
        "-no-pie".to_owned(),
        format!("-Wl,-T,{folder}/linker.ld"),
        "-Wl,-z,norelro".to_owned(),
        "-Wl,-z,max-page-size=0x1000".to_owned(),
        "-Wl,--build-id=none".to_owned(),
        "-Wl,--orphan-handling=error".to_owned(),
    ];
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        // Line tables are most of the file, and nobody debugs the image that is measured.
        arguments.push("-Wl,--strip-debug".to_owned());
    }
    for argument in arguments {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rerun-if-changed=linker.ld");
    println!("cargo:rerun-if-changed=build.rs");
}
