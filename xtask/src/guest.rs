//! Builds the programs that run on virtual machines, and checks that they stay small: kernels, and
//! the init program of the Linux with which the guest is compared.

use crate::command::Run;
use crate::packages;
use crate::step::Failure;
use crate::workspace;
use std::path::PathBuf;
use std::{fmt, fs};

/// A package with its own panic handler and its own way of linking, which is therefore built
/// separately.
#[derive(Debug)]
pub struct Kernel {
    /// The package.
    pub package: &'static str,
    /// The target for which it is built, if that is not the host.
    target: Option<&'static str>,
    /// The most bytes that a loader may have to put into memory: everything in the kernel except
    /// debug information.
    size_limit: u64,
}

/// The reference guest: library, drivers, shell with its workloads, tests of page tables. The limit
/// is a fifth above its size.
pub const GUEST: Kernel = Kernel { package: "guest", target: None, size_limit: 1920 << 10 };
/// The smallest kernel that boots.
pub const MINIMAL: Kernel =
    Kernel { package: "minimal-kernel", target: None, size_limit: 512 << 10 };
/// A kernel in the form in which most begin.
pub const HOBBY: Kernel =
    Kernel { package: "hobby-kernel", target: Some("x86_64-unknown-none"), size_limit: 512 << 10 };
/// The init program of the Linux with which the guest is compared.
pub const LINUX_INIT: Kernel =
    Kernel { package: "linux-init", target: None, size_limit: 128 << 10 };
/// All kernels.
pub const KERNELS: [Kernel; 4] = [GUEST, MINIMAL, HOBBY, LINUX_INIT];

/// A built kernel.
pub struct Image {
    /// The ELF file.
    pub path: PathBuf,
    size_limit: u64,
    loaded_bytes: u64,
    zeroed_bytes: u64,
    file_bytes: u64,
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: u64| bytes.div_ceil(1024);
        write!(
            f,
            "{}: {} KiB loaded (limit {}), {} KiB zeroed at start, file {} KiB",
            workspace::shown(&self.path),
            kib(self.loaded_bytes),
            kib(self.size_limit),
            kib(self.zeroed_bytes),
            kib(self.file_bytes),
        )
    }
}

/// Builds a kernel for release and checks its size.
///
/// # Errors
/// The compiler's messages, or by how much the image is too large.
pub fn build(kernel: &Kernel) -> Result<Image, Failure> {
    let &Kernel { package, target, size_limit } = kernel;
    if let Some(target) = target {
        packages::target(target)?;
    }
    let path = Run::cargo(&["build", "--release", "-p", package])
        .args(target.iter().flat_map(|target| ["--target", target]))
        .built(&format!("the package {package}"))?;
    let file = fs::read(&path)?;
    let (loaded_bytes, zeroed_bytes) = load_segments(&file)
        .ok_or_else(|| Failure::new(format!("{package} is no 64-bit ELF file\n")))?;
    let image =
        Image { path, size_limit, loaded_bytes, zeroed_bytes, file_bytes: file.len() as u64 };
    if loaded_bytes > size_limit {
        Err(Failure::new(format!("{package} is too large: {image}\n")))
    } else {
        Ok(image)
    }
}

/// The bytes in the loadable segments of an ELF file, and the bytes that they need zeroed on top.
fn load_segments(file: &[u8]) -> Option<(u64, u64)> {
    const PT_LOAD: u64 = 1;
    if file.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let field = |at: u64, bytes: usize| {
        let at = usize::try_from(at).ok()?;
        let raw = file.get(at..at.checked_add(bytes)?)?;
        Some(raw.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    let (headers, header_size, count) = (field(32, 8)?, field(54, 2)?, field(56, 2)?);
    let (mut loaded, mut zeroed) = (0, 0);
    for index in 0..count {
        let header = headers.checked_add(index * header_size)?;
        if field(header, 4)? == PT_LOAD {
            let (in_file, in_memory) = (field(header + 32, 8)?, field(header + 40, 8)?);
            loaded += in_file;
            zeroed += in_memory.checked_sub(in_file)?;
        }
    }
    Some((loaded, zeroed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_this_very_program_are_read() {
        let program =
            std::env::current_exe().and_then(fs::read).expect("a program can read itself");
        let (loaded, _) = load_segments(&program).expect("an ELF file");
        assert!(loaded > 4096 && loaded < program.len() as u64);
        assert_eq!(load_segments(b"\x7fELF\x02"), None);
        assert_eq!(load_segments(b"#!/bin/sh"), None);
    }
}
