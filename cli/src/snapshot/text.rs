//! Parses the text of the control file.

use super::{Area, Grade, Graded, Moved, Run, Snapshot, Zone, parse_uses};

impl Snapshot {
    /// Reads the text of [`FILE`](super::FILE); `machine` and `commands` are descriptions by the
    /// caller.
    ///
    /// # Errors
    /// Says which line is wrong, and why.
    pub fn from_text(text: &str, machine: &str, commands: &str) -> Result<Self, String> {
        let mut lines = text.lines().zip(1..);
        let (head, _) = lines.next().ok_or("it is empty")?;
        let cell_blocks = match head.split(' ').collect::<Vec<_>>()[..] {
            ["framewright", "memory", "1", "blocks", _, "cell", cell] => cell.parse().ok(),
            _ => None,
        };
        let cell_blocks =
            cell_blocks.ok_or_else(|| format!("line 1: {head:?} is not a header of version 1"))?;
        let mut snapshot = Self {
            machine: machine.into(),
            commands: commands.into(),
            cell_blocks,
            zones: Vec::new(),
            areas: Vec::new(),
            moved: Moved::default(),
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
            return Err("the line `end` is missing".into());
        }
        snapshot.check().map(|()| snapshot)
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["zone", node, name, "present", present, "managed", managed, "free", free] => {
                self.zones.push(Zone {
                    node: number(node)?,
                    name: name.into(),
                    present_pages: number(present)?,
                    managed_pages: number(managed)?,
                    free_pages: number(free)?,
                    runs: Vec::new(),
                    grades: Vec::new(),
                });
                Ok(())
            }
            ["grade", name, first, ref counts @ ..] => {
                let grade = Grade::parse(name)
                    .ok_or_else(|| format!("{name:?} is not a grade of blocks"))?;
                let (blocks, graded) = match *counts {
                    [blocks] => (blocks, blocks),
                    [blocks, graded] => (blocks, graded),
                    _ => return Err(format!("{line:?} is not a run of blocks with a grade")),
                };
                let zone = self.zones.last_mut().ok_or("a grade before the first zone")?;
                let (first_pfn, blocks, graded_blocks) =
                    (frame(first)?, number(blocks)?, number(graded)?);
                zone.grades.push(Graded { grade, first_pfn, blocks, graded_blocks });
                Ok(())
            }
            ["area", first, pages, available, name] => {
                self.areas.push(Area {
                    first_pfn: frame(first)?,
                    pages: number(pages)?,
                    available_pages: number(available)?,
                    name: name.into(),
                });
                Ok(())
            }
            ["moved", pages, failed, emptied] => {
                self.moved = Moved {
                    pages: number(pages)?,
                    failed_pages: number(failed)?,
                    emptied_blocks: number(emptied)?,
                };
                Ok(())
            }
            [first, blocks, uses] => {
                let first_pfn = frame(first)?;
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

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

fn frame(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or("-");
    u64::from_str_radix(digits, 16).map_err(|_| format!("{text:?} is not a frame number"))
}

#[cfg(test)]
mod tests {
    use super::super::Use;
    use super::*;

    const TEXT: &str = "framewright memory 1 blocks 520 cell 4\nzone 0 DMA present 3998 managed \
        3998 free 100\n0x0 1 S3\n\
                        0x200 7 F9\nzone 1 Normal present 262144 managed 262144 free 1\n0x100000 \
                        512 F9:2,S4:1,W9:1\nend\n";
    /// A snapshot with all the lines that only newer machines write.
    const MORE: &str = "framewright memory 1 blocks 520 cell 4\nzone 0 Normal present 4096 managed \
        4096 free 100\n0x0 8 F12\ngrade movable 0x0 3\ngrade removable 0x600 5 3\ngrade movable \
        0x1200 1\narea 0x600 1536 1400 camera\nmoved 5120 2 8\nend\n";

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
    fn grades_areas_and_what_was_moved_are_read() {
        let snapshot = Snapshot::from_text(MORE, "", "").expect("it is right");
        let graded = |grade, first_pfn, blocks, graded_blocks| Graded {
            grade,
            first_pfn,
            blocks,
            graded_blocks,
        };
        let expected = [
            graded(Grade::Movable, 0, 3, 3),
            graded(Grade::Removable, 0x600, 5, 3),
            graded(Grade::Movable, 0x1200, 1, 1),
        ];
        assert_eq!(
            (snapshot.zones[0].runs.len(), &snapshot.zones[0].grades[..]),
            (1, &expected[..])
        );
        let camera =
            Area { first_pfn: 0x600, pages: 1536, available_pages: 1400, name: "camera".into() };
        assert_eq!(snapshot.areas, [camera]);
        assert_eq!(snapshot.moved, Moved { pages: 5120, failed_pages: 2, emptied_blocks: 8 });
        let area = "area 0x0 1 1 a\n";
        for (from, to, expected) in [
            ("grade movable 0x0", "grade other 0x0", "line 4: \"other\" is not a grade"),
            ("0x600 5 3", "0x600 5 3 1", "line 5: \"grade removable 0x600 5 3 1\" is not a run"),
            ("0x600 5 3", "0x600", "line 5: \"grade removable 0x600\" is not a run"),
            ("0x600 5 3", "600 5 3", "line 5: \"600\" is not a frame number"),
            ("0x600 5 3", "0x600 5 6", "node 0 zone Normal, removable run 0: 6 of 5 blocks"),
            ("0x600 5 3", "0x600 5 0", "node 0 zone Normal, removable run 0: 0 of 5 blocks"),
            (
                "0x1200 1",
                "0x400 1",
                "node 0 zone Normal, movable run 1: 0x400 is misaligned or not behind",
            ),
            (
                "0x1200 1",
                "0x1201 1",
                "node 0 zone Normal, movable run 1: 0x1201 is misaligned or not behind",
            ),
            ("0x1200 1", "0x1200 0", "node 0 zone Normal, movable run 1: 0 blocks"),
            ("1536 1400", "1536 1537", "area \"camera\": 1536 pages at 0x600 with 1537"),
            ("area 0x600", "area 0xffffffffffffffff", "area \"camera\": 1536 pages at"),
            ("1400 camera", "1400", "line 7: \"area 0x600 1536 1400\" is neither"),
            ("moved 5120", "moved -1", "line 8: \"-1\" is not a number"),
            ("area 0x600", &format!("{}area 0x600", area.repeat(20)), "there are 21 areas"),
        ] {
            let text = MORE.replacen(from, to, 1);
            let error = Snapshot::from_text(&text, "", "").expect_err(to);
            assert!(error.starts_with(expected), "{to}: {error}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (from, to, expected) in [
            (
                "zone 0 DMA present 3998 managed 3998 free 100\n0x0",
                "grade movable 0x0 1\n0x0",
                "line 2: a grade before",
            ),
            ("memory 1", "memory 2", "line 1: "),
            ("cell 4", "cell 3", "cells of 3 blocks"),
            ("present 3998", "present 18446744073709551615", "node 0 zone DMA: 1844674407"),
            ("managed 3998", "managed 1099511627777", "node 0 zone DMA: 1099511627777 pages"),
            ("free 1\n", "free 1099511627777\n", "node 1 zone Normal: 1099511627777 pages"),
            ("end\n", "", "the line `end` is missing"),
            ("end\n", "end\n0x0 1 F9\n", "line 8: something follows"),
            ("0x0 1 S3", "0x0 1 S9", "line 3: \"S9\" is not a use"),
            ("0x0 1 S3", "0x0 1 F8", "line 3: \"F8\""),
            ("0x0 1 S3", "0x0 1 F+9", "line 3: \"F+9\""),
            ("0x0 1 S3", "0x0 1 \u{e4}9", "line 3"),
            ("0x0 1 S3", "0x0 0 S3", "node 0 zone DMA, run 0: 0 blocks"),
            (
                "0x0 1 S3",
                "0x0 99999999999999999999 S3",
                "line 3: \"99999999999999999999\" is not a number",
            ),
            ("0x200 7", "0x0 7", "node 0 zone DMA, run 1: 0x0 is misaligned or not behind"),
            ("0x200 7", "0xffffffffffffffff 7", "node 0 zone DMA, run 1: "),
            (
                "512 F9:2",
                "510 F9:2",
                "line 6: a run of 510 blocks is not in whole cells of 4 blocks",
            ),
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
