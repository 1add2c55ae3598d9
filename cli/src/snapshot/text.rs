//! The control file's text.

use super::{Run, Snapshot, Zone, parse_uses};

impl Snapshot {
    /// Reads the text of [`FILE`](super::FILE); `machine` and `commands` are the reader's words.
    ///
    /// # Errors
    /// Which line is wrong, and why.
    pub fn from_text(text: &str, machine: &str, commands: &str) -> Result<Self, String> {
        let mut lines = text.lines().zip(1..);
        let (head, _) = lines.next().ok_or("it is empty")?;
        let cell_blocks = match head.split(' ').collect::<Vec<_>>()[..] {
            ["framewright", "memory", "1", "blocks", _, "cell", cell] => cell.parse().ok(),
            _ => None,
        };
        let cell_blocks =
            cell_blocks.ok_or_else(|| format!("line 1: {head:?} is no head of version 1"))?;
        let mut snapshot = Self {
            machine: machine.into(),
            commands: commands.into(),
            cell_blocks,
            zones: Vec::new(),
        };
        let mut has_end = false;
        for (line, number) in lines {
            if has_end {
                return Err(format!("line {number}: something follows the end"));
            }
            has_end = line == "end";
            if !has_end {
                snapshot.take(line).map_err(|why| format!("line {number}: {why}"))?;
            }
        }
        if !has_end {
            return Err("its end is missing".into());
        }
        snapshot.check().map(|()| snapshot)
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["zone", node, name, "present", present, "managed", managed, "free", free] => {
                self.zones.push(Zone {
                    node: number(node)?,
                    name: name.into(),
                    present_pages: number(present)?,
                    managed_pages: number(managed)?,
                    free_pages: number(free)?,
                    runs: Vec::new(),
                });
                Ok(())
            }
            [first, blocks, uses] => {
                let digits = first.strip_prefix("0x").unwrap_or("-");
                let first_pfn = u64::from_str_radix(digits, 16)
                    .map_err(|_| format!("{first:?} is no frame number"))?;
                let blocks = number(blocks)?;
                let uses = parse_uses(uses, blocks)?;
                let zone = self.zones.last_mut().ok_or("blocks before the first zone")?;
                zone.runs.push(Run { first_pfn, blocks, uses });
                Ok(())
            }
            _ => Err(format!("{line:?} is neither a zone nor a run")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Use;
    use super::*;

    const TEXT: &str = "framewright memory 1 blocks 520 cell 4\nzone 0 DMA present 3998 managed \
        3998 free 100\n0x0 1 S3\n\
                        0x200 7 F9\nzone 1 Normal present 262144 managed 262144 free 1\n0x100000 \
                        512 F9:2,S4:1,W9:1\nend\n";

    #[test]
    fn what_the_library_writes_is_read() {
        let snapshot = Snapshot::from_text(TEXT, "hosted", "memhog 1G").expect("it is right");
        assert_eq!((snapshot.cell_blocks, snapshot.zones.len()), (4, 2));
        assert_eq!(
            snapshot.zones[0].runs[1],
            Run { first_pfn: 0x200, blocks: 7, uses: vec![(Use::Free(Some(9)), 7)] }
        );
        assert_eq!(snapshot.zones[1].runs[0].cells(), (4, 128));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (from, to, expected) in [
            ("memory 1", "memory 2", "line 1: "),
            ("cell 4", "cell 3", "cells of 3 blocks"),
            ("end\n", "", "its end is missing"),
            ("end\n", "end\n0x0 1 F9\n", "line 8: something follows"),
            ("0x0 1 S3", "0x0 1 S9", "line 3: \"S9\" is no use"),
            ("0x0 1 S3", "0x0 1 F8", "line 3: \"F8\""),
            ("0x0 1 S3", "0x0 1 F+9", "line 3: \"F+9\""),
            ("0x0 1 S3", "0x0 1 \u{e4}9", "line 3"),
            ("0x0 1 S3", "0x0 0 S3", "node 0 zone DMA, run 0: 0 blocks"),
            (
                "0x0 1 S3",
                "0x0 99999999999999999999 S3",
                "line 3: \"99999999999999999999\" is no number",
            ),
            ("0x200 7", "0x0 7", "node 0 zone DMA, run 1: 0x0 is not behind"),
            ("0x200 7", "0xffffffffffffffff 7", "node 0 zone DMA, run 1: "),
            ("512 F9:2", "510 F9:2", "line 6: cells of 4 blocks do not make a run of 510"),
            ("F9:2,", "F9:18446744073709551615,", "line 6: there are more blocks"),
            (
                "zone 0 DMA present 3998 managed 3998 free 100\n",
                "",
                "line 2: blocks before the first zone",
            ),
        ] {
            let text = TEXT.replacen(from, to, 1);
            let error = Snapshot::from_text(&text, "", "").expect_err(to);
            assert!(error.starts_with(expected), "{to}: {error}");
        }
        assert_eq!(Snapshot::from_text("", "", ""), Err("it is empty".into()));
    }
}
