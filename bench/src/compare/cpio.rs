//! An initial RAM disk: the archive (`cpio`, in the newc format) that Linux unpacks before it
//! mounts file systems.

use cpio::newc::{Builder, trailer};
use std::io::Write;

/// The kinds of entries with their permissions.
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive that is being built.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds an empty folder.
    pub fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER, &[], (0, 0));
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, contents: &[u8]) {
        self.entry(name, FILE, contents, (0, 0));
    }

    /// Adds an executable file.
    pub fn program(&mut self, name: &str, contents: &[u8]) {
        self.entry(name, PROGRAM, contents, (0, 0));
    }

    /// Adds a character device with its major and minor number.
    pub fn character_device(&mut self, name: &str, numbers: (u32, u32)) {
        self.entry(name, CHARACTER_DEVICE, &[], numbers);
    }

    /// Completes the archive.
    pub fn finish(self) -> Vec<u8> {
        trailer(self.bytes).expect(MEMORY)
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8], (major, minor): (u32, u32)) {
        self.entries += 1;
        let size =
            u32::try_from(contents.len()).expect("what is put into an archive has less than 4 GiB");
        let entry = Builder::new(name).ino(self.entries).mode(mode).nlink(1);
        let entry = entry.rdev_major(major).rdev_minor(minor);
        let mut writer = entry.write(&mut self.bytes, size);
        writer.write_all(contents).and_then(|()| writer.finish().map(|_| ())).expect(MEMORY);
    }
}

/// Why writing cannot fail.
const MEMORY: &str = "memory takes all that is written";

#[cfg(test)]
mod tests {
    use super::*;

    /// The name that ends an archive.
    const LAST: &str = "TRAILER!!!";

    /// Name, mode, device numbers and contents.
    type Entry = (String, u32, (u32, u32), Vec<u8>);

    /// Reads an archive as Linux does.
    fn read(mut bytes: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |index: usize| {
                let text =
                    std::str::from_utf8(&bytes[6 + index * 8..14 + index * 8]).expect("digits");
                u32::from_str_radix(text, 16).expect("a number")
            };
            let (mode, size, major, minor, name_size) =
                (field(1), field(6) as usize, field(9), field(10), field(11) as usize);
            let name =
                std::str::from_utf8(&bytes[110..110 + name_size - 1]).expect("a name").to_owned();
            assert_eq!(bytes[110 + name_size - 1], 0);
            let contents = (110 + name_size).next_multiple_of(4);
            if name == LAST {
                assert_eq!(bytes.len(), contents);
                return entries;
            }
            entries.push((name, mode, (major, minor), bytes[contents..contents + size].to_vec()));
            bytes = &bytes[(contents + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn an_archive_is_read_as_it_was_written() {
        let mut archive = Archive::default();
        archive.folder("dev");
        archive.character_device("dev/console", (5, 1));
        archive.program("init", b"\x7fELF.");
        for length in 0..9 {
            archive.file(&"n".repeat(length + 1), &vec![7; length]);
        }
        let entries = read(&archive.finish());
        assert_eq!(entries[0], ("dev".into(), 0o040_755, (0, 0), vec![]));
        assert_eq!(entries[1], ("dev/console".into(), 0o020_600, (5, 1), vec![]));
        assert_eq!(entries[2], ("init".into(), 0o100_755, (0, 0), b"\x7fELF.".to_vec()));
        for (length, entry) in entries[3..].iter().enumerate() {
            assert_eq!(*entry, ("n".repeat(length + 1), 0o100_644, (0, 0), vec![7; length]));
        }
        assert_eq!(entries.len(), 12);
    }

    #[test]
    fn an_empty_archive_has_an_end() {
        assert_eq!(read(&Archive::default().finish()), []);
    }
}
