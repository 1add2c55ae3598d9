//! The JSON form.

use super::{Run, Snapshot, Zone, parse_uses, shown_uses};
use crate::file::FORMAT;
use serde_json::{Value, json};

impl Snapshot {
    /// As a file has it.
    pub fn to_json(&self) -> Value {
        let zones = self.zones.iter().map(|zone| {
            let runs = zone
                .runs
                .iter()
                .map(|run| json!([run.first_pfn, run.blocks, shown_uses(&run.uses)]));
            json!({
                "node": zone.node,
                "zone": zone.name,
                "present_pages": zone.present_pages,
                "managed_pages": zone.managed_pages,
                "free_pages": zone.free_pages,
                "runs": runs.collect::<Vec<_>>(),
            })
        });
        json!({
            "format": FORMAT,
            "framewright": env!("CARGO_PKG_VERSION"),
            "snapshot": {
                "machine": self.machine,
                "commands": self.commands,
                "cell_blocks": self.cell_blocks,
                "zones": zones.collect::<Vec<_>>(),
            },
        })
    }

    /// Reads the value of `snapshot` of a file.
    ///
    /// # Errors
    /// Where it is wrong, and why.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let words = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let zones = value["zones"].as_array().ok_or("snapshot.zones is no list")?;
        let read =
            |(index, zone)| zone_of(zone).map_err(|why| format!("snapshot.zones[{index}]{why}"));
        let snapshot = Self {
            machine: words("machine"),
            commands: words("commands"),
            cell_blocks: value["cell_blocks"]
                .as_u64()
                .ok_or("snapshot.cell_blocks is no whole number")?,
            zones: zones.iter().enumerate().map(read).collect::<Result<_, _>>()?,
        };
        snapshot.check().map_err(|why| format!("snapshot: {why}"))?;
        Ok(snapshot)
    }
}

fn zone_of(zone: &Value) -> Result<Zone, String> {
    let count =
        |name: &str| zone[name].as_u64().ok_or_else(|| format!(".{name} is no whole number"));
    let runs = zone["runs"].as_array().ok_or(".runs is no list")?;
    let read = |(index, run)| run_of(run).map_err(|why| format!(".runs[{index}] {why}"));
    Ok(Zone {
        node: count("node")?,
        name: zone["zone"].as_str().ok_or(".zone is no text")?.to_owned(),
        present_pages: count("present_pages")?,
        managed_pages: count("managed_pages")?,
        free_pages: count("free_pages")?,
        runs: runs.iter().enumerate().map(read).collect::<Result<_, _>>()?,
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

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let good = Snapshot::from_text(TEXT, "", "").expect("it is right").to_json();
        for (place, bad, expected) in [
            ("/snapshot/cell_blocks", json!(-4), "snapshot.cell_blocks is no whole number"),
            ("/snapshot/zones", json!({}), "snapshot.zones is no list"),
            ("/snapshot/zones", json!([]), "snapshot: there is no zone"),
            (
                "/snapshot/zones/0/free_pages",
                json!(0.5),
                "snapshot.zones[0].free_pages is no whole number",
            ),
            ("/snapshot/zones/0/runs/1", json!([0, 1]), "snapshot.zones[0].runs[1] is not ["),
            ("/snapshot/zones/0/runs/1/2", json!("Z"), "snapshot.zones[0].runs[1] \"Z\" is no use"),
            (
                "/snapshot/zones/0/runs/1/0",
                json!(0),
                "snapshot: node 0 zone DMA, run 1: 0x0 is not behind",
            ),
        ] {
            let mut value = good.clone();
            *value.pointer_mut(place).expect("a place") = bad;
            let error = Snapshot::from_json(&value["snapshot"]).expect_err(place);
            assert!(error.starts_with(expected), "{place}: {error}");
        }
    }
}
