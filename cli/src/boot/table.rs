//! Tables of a bring-up for people. They are rendered from the JSON object alone, so that both
//! platforms are shown alike.

use crate::grid::{Grid, microseconds, size};
use crate::output::Style;
use framewright::units::PAGE_SIZE;
use serde_json::Value;

/// The lines that follow the log.
pub fn render(report: &Value, style: Style) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.extend(nodes(report).render(style));
    lines.push(String::new());
    lines.extend(zones(report).render(style));
    lines.push(String::new());
    lines.push(summary(report));
    lines.extend(first_touch(report).map(|line| style.dim(&line)));
    lines.extend(qemu(report).map(|line| style.dim(&line)));
    lines
}

fn nodes(report: &Value) -> Grid {
    let mut grid = Grid::new(&[">node", ">CPUs", ">present", ">managed", ">set up in"]);
    for node in list(&report["nodes"]) {
        grid.row([
            number(&node["node"]),
            number(&node["cpus"]),
            pages(&node["present_pages"]),
            pages(&node["managed_pages"]),
            node["init_ms"].as_f64().map_or_else(unknown, |ms| microseconds(ms * 1e3)),
        ]);
    }
    grid
}

fn zones(report: &Value) -> Grid {
    let mut grid = Grid::new(&[
        ">node",
        "<zone",
        ">start",
        ">spanned",
        ">present",
        ">managed",
        ">reserved",
        ">free",
    ]);
    for zone in list(&report["zones"]) {
        let start = zone["start_pfn"]
            .as_u64()
            .map_or_else(unknown, |pfn| format!("{:#x}", pfn * PAGE_SIZE));
        let name = zone["zone"].as_str().map_or_else(unknown, str::to_owned);
        let mut row = vec![number(&zone["node"]), name, start, pages(&zone["spanned_pages"])];
        row.extend(counts(zone));
        grid.row(row);
    }
    let mut total = vec![String::new(), "total".into(), String::new(), String::new()];
    let mut totals = report["totals"].clone();
    // The object has no total of free pages, only one number for each zone.
    totals["free_pages"] = list(&report["zones"])
        .iter()
        .filter_map(|zone| zone["free_pages"].as_u64())
        .sum::<u64>()
        .into();
    total.extend(counts(&totals));
    grid.row(total);
    grid
}

fn counts(of: &Value) -> [String; 4] {
    let reserved = match (of["present_pages"].as_u64(), of["managed_pages"].as_u64()) {
        (Some(present), Some(managed)) => {
            // Pages that are not accepted are neither reserved nor free.
            let unaccepted = of["unaccepted_pages"].as_u64().unwrap_or(0);
            size(present.saturating_sub(managed + unaccepted) * PAGE_SIZE)
        }
        _ => unknown(),
    };
    [pages(&of["present_pages"]), pages(&of["managed_pages"]), reserved, pages(&of["free_pages"])]
}

fn summary(report: &Value) -> String {
    let totals = &report["totals"];
    let metadata = totals["metadata_bytes"].as_u64();
    let share = match (metadata, totals["present_pages"].as_u64()) {
        (Some(metadata), Some(present @ 1..)) => {
            format!(" ({:.4} % of memory)", metadata as f64 / (present * PAGE_SIZE) as f64 * 100.0)
        }
        _ => String::new(),
    };
    let unaccepted = match totals["unaccepted_pages"].as_u64() {
        Some(pages @ 1..) => format!("; {} unaccepted", size(pages * PAGE_SIZE)),
        _ => String::new(),
    };
    // The time is that of the first allocation of a whole block.
    let first_alone = totals["first_alloc_us"].is_null() && totals["all_memory_us"].is_number();
    let why = if first_alone { " (no 2 MiB block is whole)" } else { "" };
    format!(
        "{}, {}, {}: first allocation after {}{why}, all memory after {}; metadata {}{share}\
         {unaccepted}",
        report["platform"].as_str().unwrap_or("?"),
        report["policy"].as_str().unwrap_or("?"),
        counted(&report["threads"], "thread"),
        time(&totals["first_alloc_us"]),
        time(&totals["all_memory_us"]),
        metadata.map_or_else(unknown, size),
    )
}

fn first_touch(report: &Value) -> Option<String> {
    let first = report.get("first_touch")?;
    Some(format!(
        "first touch: {} to the first allocation and {} to all memory in this fresh process, whose \
         tables had no memory yet; all other times are of a second bring-up, whose tables did",
        time(&first["first_alloc_us"]),
        time(&first["all_memory_us"]),
    ))
}

fn qemu(report: &Value) -> Option<String> {
    let qemu = report.get("qemu")?;
    Some(format!(
        "QEMU {}, accelerator {}: first line {} after its start",
        qemu["version"].as_str().unwrap_or("?"),
        qemu["accel"].as_str().unwrap_or("?"),
        qemu["spawn_to_first_line_ms"].as_f64().map_or_else(unknown, |ms| microseconds(ms * 1e3)),
    ))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> String {
    value.as_u64().map_or_else(unknown, |number| number.to_string())
}

fn counted(value: &Value, what: &str) -> String {
    let plural = if value.as_u64() == Some(1) { "" } else { "s" };
    format!("{} {what}{plural}", number(value))
}

fn pages(value: &Value) -> String {
    value.as_u64().map_or_else(unknown, |pages| size(pages.saturating_mul(PAGE_SIZE)))
}

fn time(value: &Value) -> String {
    value.as_f64().map_or_else(unknown, microseconds)
}

fn unknown() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_tables_and_the_summary() {
        let report = json!({
            "platform": "qemu", "policy": "on-demand", "threads": 1,
            "nodes": [{ "node": 0, "cpus": 2, "present_pages": 524157, "managed_pages": 524000,
                "init_ms": 0.25 }],
            "zones": [
                { "node": 0, "zone": "DMA", "start_pfn": 1, "spanned_pages": 4095,
                    "present_pages": 3998,
                  "managed_pages": 3998, "free_pages": 3998 },
                { "node": 0, "zone": "DMA32", "start_pfn": 4096, "spanned_pages": 520159,
                    "present_pages": 520159,
                  "managed_pages": 520002, "free_pages": 519000 },
            ],
            "totals": { "present_pages": 524157, "managed_pages": 524000, "reserved_pages": 157,
                        "metadata_bytes": 86016, "first_alloc_us": 12.5, "bring_up_us": 1240.0,
                        "all_memory_us": 1250.0 },
            "qemu": { "version": "7.2.0", "accel": "tcg", "spawn_to_first_line_ms": 130.25 },
        });
        let expected = "
node  CPUs   present   managed  set up in
   0     2  2.00 GiB  2.00 GiB   250.0 us

node  zone       start   spanned   present   managed  reserved      free
   0  DMA       0x1000  16.0 MiB  15.6 MiB  15.6 MiB     0 KiB  15.6 MiB
   0  DMA32  0x1000000  1.98 GiB  1.98 GiB  1.98 GiB   628 KiB  1.98 GiB
      total                       2.00 GiB  2.00 GiB   628 KiB  2.00 GiB

qemu, on-demand, 1 thread: first allocation after 12.5 us, all memory after 1.250 ms; metadata 84 \
KiB (0.0040 % of memory)
QEMU 7.2.0, accelerator tcg: first line 130.2 ms after its start";
        let shown = render(&report, Style::PLAIN).join("\n");
        assert_eq!(
            shown.replace("  ", " ").replace("  ", " "),
            expected.replace("  ", " ").replace("  ", " "),
            "{shown}"
        );
    }

    #[test]
    fn what_is_missing_is_shown_as_missing() {
        let lines =
            render(&json!({ "zones": [{}], "nodes": [{}], "first_touch": {} }), Style::PLAIN);
        assert!(lines.iter().any(|line| line.starts_with(
            "first touch: - to the first allocation and - to all memory in this fresh process"
        )));
    }
}
