//! The hobby kernel of `examples/`, started by GRUB in QEMU. `FRAMEWRIGHT_HOBBY_KERNEL` names the
//! image; without it the test builds one.

#[path = "common/kernel.rs"]
mod kernel;

use kernel::numbers;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs};

/// Where GRUB's packages put the files for a BIOS.
const MODULES: &str = "/usr/lib/grub/i386-pc";
const MISSING: &str = "no GRUB for a BIOS: apt-get install grub-pc-bin grub-common xorriso";

/// Builds a CD from which GRUB starts the kernel.
fn disc() -> &'static str {
    static DISC: OnceLock<PathBuf> = OnceLock::new();
    DISC.get_or_init(make_disc).to_str().expect("text")
}

fn make_disc() -> PathBuf {
    let image = env::var_os("FRAMEWRIGHT_HOBBY_KERNEL").map_or_else(
        || kernel::build("hobby-kernel", &["--target", "x86_64-unknown-none"]),
        PathBuf::from,
    );
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hobby");
    let menu = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/hobby-kernel/grub.cfg");
    fs::create_dir_all(folder.join("boot/grub")).expect("a folder");
    fs::copy(&image, folder.join("hobby-kernel")).expect("the image is there");
    fs::copy(menu, folder.join("boot/grub/grub.cfg")).expect("the menu is there");
    assert!(Path::new(MODULES).is_dir(), "{MISSING}");
    let names = ["grub-mkrescue", "grub2-mkrescue"];
    let disc = folder.with_extension("iso");
    let made = names.iter().find_map(|name| {
        Command::new(name).args(["-d", MODULES, "-o"]).args([&disc, &folder]).output().ok()
    });
    let made = made.expect(MISSING);
    assert!(made.status.success(), "{MISSING}\n{}", String::from_utf8_lossy(&made.stderr));
    disc
}

fn boot(words: &[&str]) -> (Option<i32>, Vec<String>) {
    kernel::boot(&[words, &["-cdrom", disc()]].concat())
}

#[test]
fn it_maps_has_a_heap_and_loses_nothing() {
    for (machine, mib) in [("pc", 64_u64), ("q35", 256), ("q35", 5 << 10)] {
        let memory = format!("{mib}M");
        let (code, lines) = boot(&["-cpu", "max", "-machine", machine, "-m", &memory]);
        let [free, small, huge, heap, after] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!(code, Some(33), "{lines:?}");
        let [free_pages, present] = *numbers(free) else { panic!("{lines:?}") };
        assert!(present <= mib * 256 && present + 1000 > mib * 256, "{lines:?}");
        assert!(free_pages < present && free_pages + 1000 > present, "{lines:?}");
        // One table at each level below the root; a huge page needs no last-level table.
        assert_eq!(small, "100 pages of 4KiB: 103 frames with their tables");
        assert_eq!(huge, "3 pages of 2MiB: 1538 frames with their tables");
        // Each word takes 24 bytes and some text, plus what the heap itself needs.
        assert!(numbers(heap)[0] > 200 && numbers(heap)[0] < 1000, "{lines:?}");
        assert!(heap.ends_with(" pages; 10000 words, word 9999"), "{lines:?}");
        // The heap keeps the piece that holds its own tables.
        let [after_pages, kept] = *numbers(after) else { panic!("{lines:?}") };
        assert!(kept < 100 && after_pages + kept == free_pages, "{lines:?}");
    }
}

#[test]
fn what_it_cannot_do_it_says() {
    // The machine has too little memory for what the kernel maps.
    let (code, lines) = boot(&["-cpu", "max", "-m", "8M"]);
    assert_eq!(code, Some(35), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("there is memory")), "{lines:?}");
    let (code, lines) = boot(&["-cpu", "qemu64", "-m", "64M"]);
    assert_eq!(
        (code, lines.as_slice()),
        (Some(37), &["this CPU lacks pages of 1 GiB or the no-execute bit".to_owned()][..])
    );
}
