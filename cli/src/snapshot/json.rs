//! Writes snapshots to JSON and reads them from it.

use super::{Area, Grade, Graded, Moved, Run, Snapshot, Zone, parse_uses, shown_uses};
use crate::file::FORMAT;
use serde_json::{Value, json};

impl Snapshot {
    /// The snapshot as it is stored in a file.
    pub fn to_json(&self) -> Value {
        let zones = self.zones.iter().map(|zone| {
            let runs = zone
                .runs
                .iter()
                .map(|run| json!([run.first_pfn, run.blocks, shown_uses(&run.uses)]));
            let mut value = json!({
                "node": zone.node,
                "zone": zone.name,
                "present_pages": zone.present_pages,
                "managed_pages": zone.managed_pages,
                "free_pages": zone.free_pages,
                "runs": runs.collect::<Vec<_>>(),
            });
            if !zone.grades.is_empty() {
                let graded = |run: &Graded| {
                    json!([run.grade.name(), run.first_pfn, run.blocks, run.graded_blocks])
                };
                value["grades"] = zone.grades.iter().map(graded).collect();
            }
            value
        });
        let mut value = json!({
            "format": FORMAT,
            "framewright": env!("CARGO_PKG_VERSION"),
            "snapshot": {
                "machine": self.machine,
                "commands": self.commands,
                "cell_blocks": self.cell_blocks,
                "zones": zones.collect::<Vec<_>>(),
            },
        });
        if !self.areas.is_empty() {
            let area = |area: &Area| {
                json!({
                    "name": area.name,
                    "first_pfn": area.first_pfn,
                    "pages": area.pages,
                    "available_pages": area.available_pages,
                })
            };
            value["snapshot"]["areas"] = self.areas.iter().map(area).collect();
        }
        if self.moved != Moved::default() {
            let Moved { pages, failed_pages, emptied_blocks } = self.moved;
            value["snapshot"]["moved"] = json!({
                "pages": pages,
                "failed_pages": failed_pages,
                "emptied_blocks": emptied_blocks,
            });
        }
        value
    }

    /// Reads the value of `snapshot` in a file.
    ///
    /// # Errors
    /// Says where the value is wrong, and why.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let words = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let zones = value["zones"].as_array().ok_or("snapshot.zones is not a list")?;
        let read =
            |(index, zone)| zone_of(zone).map_err(|why| format!("snapshot.zones[{index}]{why}"));
        let snapshot = Self {
            machine: words("machine"),
            commands: words("commands"),
            cell_blocks: value["cell_blocks"]
                .as_u64()
                .ok_or("snapshot.cell_blocks is not a whole number")?,
            zones: zones.iter().enumerate().map(read).collect::<Result<_, _>>()?,
            areas: list(&value["areas"], "snapshot.areas", area_of)?,
            moved: moved_of(&value["moved"]).map_err(|why| format!("snapshot.moved{why}"))?,
        };
        snapshot.check().map_err(|why| format!("snapshot: {why}"))?;
        Ok(snapshot)
    }
}

/// Reads a list that older files do not have.
fn list<T>(
    value: &Value,
    name: &str,
    read: fn(&Value) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    let parts = value.as_array().ok_or_else(|| format!("{name} is not a list"))?;
    let read = |(index, part)| read(part).map_err(|why| format!("{name}[{index}]{why}"));
    parts.iter().enumerate().map(read).collect()
}

fn count(value: &Value, name: &str) -> Result<u64, String> {
    value[name].as_u64().ok_or_else(|| format!(".{name} is not a whole number"))
}

fn area_of(area: &Value) -> Result<Area, String> {
    Ok(Area {
        first_pfn: count(area, "first_pfn")?,
        pages: count(area, "pages")?,
        available_pages: count(area, "available_pages")?,
        name: area["name"].as_str().ok_or(".name is not text")?.to_owned(),
    })
}

fn moved_of(moved: &Value) -> Result<Moved, String> {
    if moved.is_null() {
        return Ok(Moved::default());
    }
    Ok(Moved {
        pages: count(moved, "pages")?,
        failed_pages: count(moved, "failed_pages")?,
        emptied_blocks: count(moved, "emptied_blocks")?,
    })
}

fn graded_of(run: &Value) -> Result<Graded, String> {
    let parts = run.as_array().map_or(&[][..], Vec::as_slice);
    let [grade, first, blocks, graded] = parts else {
        return Err(" is not [grade, first frame, blocks, blocks with the grade]".into());
    };
    let (Some(grade), Some(first_pfn), Some(blocks), Some(graded_blocks)) =
        (grade.as_str().and_then(Grade::parse), first.as_u64(), blocks.as_u64(), graded.as_u64())
    else {
        return Err(" is not [grade, whole number, whole number, whole number]".into());
    };
    Ok(Graded { grade, first_pfn, blocks, graded_blocks })
}

fn zone_of(zone: &Value) -> Result<Zone, String> {
    let count = |name: &str| count(zone, name);
    let runs = zone["runs"].as_array().ok_or(".runs is not a list")?;
    let read = |(index, run)| run_of(run).map_err(|why| format!(".runs[{index}] {why}"));
    Ok(Zone {
        node: count("node")?,
        name: zone["zone"].as_str().ok_or(".zone is not text")?.to_owned(),
        present_pages: count("present_pages")?,
        managed_pages: count("managed_pages")?,
        free_pages: count("free_pages")?,
        runs: runs.iter().enumerate().map(read).collect::<Result<_, _>>()?,
        grades: list(&zone["grades"], ".grades", graded_of)?,
    })
}

fn run_of(run: &Value) -> Result<Run, String> {
    let parts = run.as_array().map_or(&[][..], Vec::as_slice);
    let [first, blocks, uses] = parts else {
        return Err("is not [first frame, blocks, uses]".into());
    };
    let (Some(first_pfn), Some(blocks), Some(uses)) =
        (first.as_u64(), blocks.as_u64(), uses.as_str())
    else {
        return Err("is not [whole number, whole number, text]".into());
    };
    Ok(Run { first_pfn, blocks, uses: parse_uses(uses, blocks)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "framewright memory 1 blocks 520 cell 4\nzone 0 DMA present 3998 managed \
        3998 free 100\n0x0 1 S3\n\
                        0x200 7 F\n0x1000 4 F9:2,S4:1,W9:1\nend\n";

    #[test]
    fn what_is_written_is_read() {
        let snapshot = Snapshot::from_text(TEXT, "here", "alloc 9").expect("it is right");
        let value = snapshot.to_json();
        assert_eq!(value["snapshot"]["zones"][0]["runs"][2], json!([0x1000, 4, "F9:2,S4:1,W9:1"]));
        assert_eq!(Snapshot::from_json(&value["snapshot"]), Ok(snapshot));
    }

    /// [`TEXT`] with the lines that older files do not have.
    fn with_grades() -> Snapshot {
        let (runs, _) = TEXT.split_once("end").expect("an end");
        let text = format!(
            "{runs}grade movable 0x1000 4\ngrade removable 0x200 7 3\narea 0x200 1536 1400 a\n\
             moved 5 2 1\nend\n"
        );
        Snapshot::from_text(&text, "", "").expect("it is right")
    }

    #[test]
    fn grades_areas_and_what_was_moved_are_there_if_there_are_any() {
        let old = Snapshot::from_text(TEXT, "here", "alloc 9").expect("it is right").to_json();
        for (place, name) in
            [("/snapshot/zones/0", "grades"), ("/snapshot", "areas"), ("/snapshot", "moved")]
        {
            assert!(old.pointer(place).is_some_and(|value| value.get(name).is_none()), "{name}");
        }
        let value = with_grades().to_json();
        assert_eq!(
            value["snapshot"]["zones"][0]["grades"],
            json!([["movable", 0x1000, 4, 4], ["removable", 0x200, 7, 3]])
        );
        assert_eq!(Snapshot::from_json(&value["snapshot"]), Ok(with_grades()));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let good = with_grades().to_json();
        for (place, bad, expected) in [
            ("/snapshot/cell_blocks", json!(-4), "snapshot.cell_blocks is not a whole number"),
            ("/snapshot/zones", json!({}), "snapshot.zones is not a list"),
            ("/snapshot/zones", json!([]), "snapshot: there is no zone"),
            (
                "/snapshot/zones/0/free_pages",
                json!(0.5),
                "snapshot.zones[0].free_pages is not a whole number",
            ),
            ("/snapshot/zones/0/runs/1", json!([0, 1]), "snapshot.zones[0].runs[1] is not ["),
            (
                "/snapshot/zones/0/runs/1/2",
                json!("Z"),
                "snapshot.zones[0].runs[1] \"Z\" is not a use",
            ),
            ("/snapshot/zones/0/grades", json!(1), "snapshot.zones[0].grades is not a list"),
            (
                "/snapshot/zones/0/grades/1",
                json!(["movable"]),
                "snapshot.zones[0].grades[1] is not [",
            ),
            (
                "/snapshot/zones/0/grades/1/0",
                json!("other"),
                "snapshot.zones[0].grades[1] is not [grade, whole",
            ),
            (
                "/snapshot/zones/0/grades/1/3",
                json!(8),
                "snapshot: node 0 zone DMA, removable run 0: 8 of 7 blocks",
            ),
            ("/snapshot/areas", json!("a"), "snapshot.areas is not a list"),
            ("/snapshot/areas/0/name", json!(7), "snapshot.areas[0].name is not text"),
            ("/snapshot/areas/0/pages", json!(7), "snapshot: area \"a\": 7 pages at 0x200"),
            ("/snapshot/moved", json!(7), "snapshot.moved.pages is not a whole number"),
            (
                "/snapshot/zones/0/runs/1/0",
                json!(0),
                "snapshot: node 0 zone DMA, run 1: 0x0 is misaligned or not behind",
            ),
        ] {
            let mut value = good.clone();
            *value.pointer_mut(place).expect("a place") = bad;
            let error = Snapshot::from_json(&value["snapshot"]).expect_err(place);
            assert!(error.starts_with(expected), "{place}: {error}");
        }
    }
}
