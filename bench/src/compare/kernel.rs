//! The Linux kernel of the comparison: its image, its version, and its drivers.

use crate::bench::common::failed;
use framewright_cli::error::Error;
use framewright_cli::page::files;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// The beginning of a kernel image for PCs, by Linux's boot protocol: the marks of the boot sector
/// and of the header.
const BOOT_MARK: (usize, [u8; 2]) = (0x1fe, [0x55, 0xaa]);
const HEADER_MARK: (usize, [u8; 4]) = (0x202, *b"HdrS");
/// Where the header has the offset of the version's text, and what to add to that offset.
const VERSION_AT: usize = 0x20e;
const VERSION_BASE: usize = 0x200;
/// A version's text is shorter than this.
const LONGEST_VERSION: usize = 200;

/// Where the drivers are, below the folder of all modules.
const BALLOON: &str = "kernel/drivers/virtio/virtio_balloon.ko";
const VIRTIO_MEM: &str = "kernel/drivers/virtio/virtio_mem.ko";

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    /// The image file.
    pub path: PathBuf,
    /// The version, such as `6.12.95+deb12-cloud-amd64`.
    pub version: String,
    /// The balloon driver, if it is a module and was found.
    pub balloon: Option<Vec<u8>>,
    /// The virtio-mem driver, if it is a module and was found.
    pub virtio_mem: Option<Vec<u8>>,
}

/// Opens and checks the kernel image.
///
/// # Errors
/// Fails if the file cannot be read, or is no kernel.
pub fn open(path: &Path) -> Result<Kernel, Error> {
    let wrong = |what: &str| Error::Usage(format!("--kernel {}: {what}", path.display()));
    let bytes = files::read(path, "kernel").map_err(|why| wrong(&why))?;
    let version = version(&bytes).ok_or_else(|| {
        wrong(
            "not a Linux kernel for PCs: it needs a bzImage, such as the files vmlinuz-* in /boot; \
             an uncompressed vmlinux is not one",
        )
    })?;
    let balloon = module(path, &version, BALLOON)?;
    let virtio_mem = module(path, &version, VIRTIO_MEM)?;
    Ok(Kernel { path: path.to_owned(), version, balloon, virtio_mem })
}

/// The first word of a kernel's version; `None` if the file is no kernel.
fn version(image: &[u8]) -> Option<String> {
    let has = |at: usize, mark: &[u8]| image.get(at..at + mark.len()) == Some(mark);
    if !has(BOOT_MARK.0, &BOOT_MARK.1) || !has(HEADER_MARK.0, &HEADER_MARK.1) {
        return None;
    }
    let pointer = image.get(VERSION_AT..VERSION_AT + 2)?;
    let start = usize::from(u16::from_le_bytes([pointer[0], pointer[1]])) + VERSION_BASE;
    let text = image.get(start..image.len().min(start + LONGEST_VERSION))?;
    let word = text.split(|&byte| byte == 0 || byte == b' ').next()?;
    let word = std::str::from_utf8(word)
        .ok()
        .filter(|word| word.chars().all(|letter| letter.is_ascii_graphic()))?;
    (!word.is_empty()).then(|| word.to_owned())
}

/// Finds a driver of a kernel: beside the kernel, where packages put it, or among the modules of
/// this machine.
fn module(path: &Path, version: &str, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let root = path.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let folders = ["lib/modules", "usr/lib/modules"].map(|folder| root.join(folder));
    for folder in folders.into_iter().chain([PathBuf::from("/lib/modules")]) {
        let file = folder.join(version).join(name);
        if file.is_file() {
            return read(&file, |file| fs::read(file));
        }
        let packed = file.with_extension("ko.xz");
        if packed.is_file() {
            return read(&packed, unpack);
        }
    }
    Ok(None)
}

fn read(
    file: &Path,
    with: impl Fn(&Path) -> std::io::Result<Vec<u8>>,
) -> Result<Option<Vec<u8>>, Error> {
    with(file).map(Some).map_err(|error| failed(format!("{}: {error}", file.display())))
}

fn unpack(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut packed = BufReader::new(fs::File::open(file)?);
    lzma_rs::xz_decompress(&mut packed, &mut bytes)
        .map_err(|error| std::io::Error::other(format!("{error:?}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of a kernel image with this version.
    fn image(version: &str) -> Vec<u8> {
        let mut bytes = vec![0; 0x400];
        bytes[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        bytes[0x300..0x300 + version.len()].copy_from_slice(version.as_bytes());
        bytes
    }

    #[test]
    fn a_kernel_is_known_by_its_marks() {
        assert_eq!(
            version(&image("6.12.95+deb12-cloud-amd64 (x@y) #1 SMP")).as_deref(),
            Some("6.12.95+deb12-cloud-amd64")
        );
        for (at, wrong) in [(0x1fe, 0), (0x202, b'h'), (0x300, 0), (0x300, 7), (0x300, 0xff)] {
            let mut bytes = image("6.1");
            bytes[at] = wrong;
            assert_eq!(version(&bytes), None, "{at:#x}");
        }
        let mut far = image("6.1");
        far[0x20e..0x210].copy_from_slice(&0xffff_u16.to_le_bytes());
        assert_eq!(version(&far), None);
        for length in 0..0x301 {
            assert_eq!(version(&image("6.1")[..length]), None, "{length}");
        }
        assert_eq!(version(b"\x7fELF\x02\x01\x01"), None);
    }

    #[test]
    fn what_has_no_end_is_no_kernel() {
        let error = open(Path::new("/dev/zero")).expect_err("it has no end");
        let expected = "--kernel /dev/zero: is a device, not a file";
        assert!(matches!(&error, Error::Usage(why) if why == expected), "{error:?}");
    }

    #[test]
    fn the_balloon_lies_beside_the_kernel() {
        let root = std::env::temp_dir().join(format!("framewright-kernel-{}", std::process::id()));
        let drivers = root.join("lib/modules/9.9/kernel/drivers/virtio");
        fs::create_dir_all(&drivers).expect("a folder");
        fs::create_dir_all(root.join("boot")).expect("a folder");
        let kernel = root.join("boot/vmlinuz-9.9");
        fs::write(&kernel, image("9.9 x")).expect("a file");
        let found = || open(&kernel).map(|kernel| (kernel.version, kernel.balloon));
        assert_eq!(found().ok(), Some(("9.9".into(), None)));
        let mut packed = Vec::new();
        lzma_rs::xz_compress(&mut &b"a driver"[..], &mut packed).expect("packed");
        fs::write(drivers.join("virtio_balloon.ko.xz"), &packed).expect("a file");
        assert_eq!(found().ok(), Some(("9.9".into(), Some(b"a driver".to_vec()))));
        fs::write(drivers.join("virtio_balloon.ko.xz"), &packed[..packed.len() / 2])
            .expect("a file");
        assert!(matches!(found(), Err(Error::Failed(_))));
        fs::write(drivers.join("virtio_balloon.ko"), "plain").expect("a file");
        assert_eq!(found().ok(), Some(("9.9".into(), Some(b"plain".to_vec()))));
        fs::remove_dir_all(&root).expect("ours");
    }
}
