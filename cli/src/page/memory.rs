//! The map of physical memory: a field of cells for each zone, coloured by the use of their blocks.

use super::grades;
use super::html::{Escaped, put};
use super::svg::{Anchor, Picture, Short, Svg};
use crate::grid::size;
use crate::snapshot::{Run, Snapshot, Use, Zone};
use framewright::units::{BLOCK_ORDER, BLOCK_SIZE};
use std::collections::BTreeMap;

/// The width of the addresses beside a field.
pub const SIDE: f64 = 84.0;
/// The number of orders that free blocks can have.
const ORDERS: f64 = 10.0;
/// The least distance between two addresses, in points.
const APART: f64 = 36.0;

/// How much the map says about each run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// The run's addresses and use, shown under the mouse pointer.
    Runs,
    /// Nothing, because the page would be too large.
    Fields,
}

/// Renders a snapshot as a section of the page.
pub fn map(name: &str, snapshot: &Snapshot, detail: Detail) -> String {
    let mut out = String::new();
    let cell = size(snapshot.cell_blocks.saturating_mul(BLOCK_SIZE));
    put!(out, "<section class=\"snapshot\"><h3>{}</h3>", Escaped(&snapshot.machine));
    put!(out, "<p class=\"lead\">A cell is {}. ", cell.replace(".00", "").replace(".0 ", " "));
    if !snapshot.commands.is_empty() {
        put!(out, "After <code>{}</code>. ", Escaped(&snapshot.commands));
    }
    put!(out, "From {}.", Escaped(name));
    grades::remarks(snapshot).iter().for_each(|remark| put!(out, "<br>{}", Escaped(remark)));
    out.push_str("</p>");
    out.push_str(&legend(snapshot));
    let (nodes, layout) = (nodes(snapshot), layout(snapshot));
    put!(out, "<div class=\"nodes{}\">", if nodes.len() > 2 { " many" } else { "" });
    for node in nodes {
        let zones: Vec<&Zone> = snapshot.zones.iter().filter(|zone| zone.node == node).collect();
        let present: u64 = zones.iter().map(|zone| zone.present_pages).sum();
        put!(out, "<div class=\"node\"><h4>Node {node} <small>{}</small></h4>", pages(present));
        for zone in zones {
            let field = field(snapshot, zone, layout, detail);
            put!(
                out,
                "<h5>{}</h5>{}",
                Escaped(&title(zone)),
                field.inline().replacen("class=\"plot\"", "class=\"map\"", 1)
            );
        }
        out.push_str("</div>");
    }
    out.push_str("</div></section>");
    out
}

/// The nodes of the snapshot, in ascending order.
fn nodes(snapshot: &Snapshot) -> Vec<u64> {
    let mut nodes: Vec<u64> = snapshot.zones.iter().map(|zone| zone.node).collect();
    nodes.dedup();
    nodes
}

/// Chooses larger cells where there are few, and shorter rows where nodes stand side by side.
fn layout(snapshot: &Snapshot) -> Layout {
    let runs = snapshot.zones.iter().flat_map(|zone| &zone.runs);
    let cells: u64 = runs.map(|run| run.blocks.div_ceil(snapshot.cell_blocks)).sum();
    match (nodes(snapshot).len(), cells) {
        (1 | 2, ..=512) => Layout { columns: 32, pitch: 20 },
        (1 | 2, _) => Layout { columns: 64, pitch: 10 },
        _ => Layout { columns: 32, pitch: 10 },
    }
}

fn pages(count: u64) -> String {
    size(count.saturating_mul(4096))
}

/// How cells are arranged.
#[derive(Clone, Copy)]
struct Layout {
    /// The number of cells in a row.
    columns: u64,
    /// The width of a cell.
    pitch: u32,
}

/// Draws the field of one zone.
fn field(snapshot: &Snapshot, zone: &Zone, layout: Layout, detail: Detail) -> Picture {
    let Layout { columns, pitch: grid } = layout;
    let cell_blocks = snapshot.cell_blocks;
    let pitch = f64::from(grid);
    let width = columns as f64 * pitch;
    let cell_of = |block: u64| block / cell_blocks;
    let grades = grades::sorted(zone);
    let mut body = String::new();
    let mut y = 0.0;
    for extent in extents(&zone.runs, cell_blocks, columns) {
        let (Some(first), Some(last)) = (extent.first(), extent.last()) else { continue };
        let base = cell_of(first.first_pfn >> BLOCK_ORDER) / columns * columns;
        let end = ((last.first_pfn >> BLOCK_ORDER) + last.blocks).div_ceil(cell_blocks);
        let rows = (end - base).div_ceil(columns);
        addresses(&mut body, base * cell_blocks, (columns * cell_blocks, rows), (y, pitch));
        let place = Place { base, columns, rows, cell_blocks, pitch, y };
        for run in extent {
            if detail == Detail::Runs {
                let words = words(run) + &grades::of_run(run, &grades);
                put!(body, "<g><title>{words}</title>");
            }
            draw(&mut body, run, &place);
            if detail == Detail::Runs {
                body.push_str("</g>");
            }
        }
        let [x, top, width, height] = [SIDE, y, width, rows as f64 * pitch].map(Short);
        put!(
            body,
            "<rect class=\"grid\" fill=\"url(#g{grid})\" x=\"{x}\" y=\"{top}\" width=\"{width}\" \
             height=\"{height}\"/>"
        );
        grades::draw(&mut body, snapshot, zone, &place, detail);
        y += (rows + 1) as f64 * pitch;
    }
    let label = format!("Node {}, zone {}", zone.node, title(zone));
    Picture { body, width: SIDE + width, height: (y - pitch).max(1.0), label }
}

fn title(zone: &Zone) -> String {
    format!("{}, {} free of {}", zone.name, pages(zone.free_pages), pages(zone.managed_pages))
}

/// Draws all zones below one another, with the legend of their colours.
pub fn picture(snapshot: &Snapshot) -> Picture {
    const HEADING: f64 = 22.0;
    const LINE: f64 = 20.0;
    let layout = layout(snapshot);
    // Fields begin at multiples of the pitch, so that grids align as they do on pages.
    let pitch = f64::from(layout.pitch);
    let mut svg = Svg::new(0.0, 0.0);
    svg.text("ti", Anchor::Start, (0.0, 13.0), &snapshot.machine);
    let mut y = 36.0;
    for Entry { name, fills, blocks } in entries(snapshot) {
        let step = 13.0;
        for (place, what) in fills.values().enumerate() {
            let x = place as f64 * step;
            svg.rectangle(&class(*what), (x, y - 10.0), (step, 12.0));
        }
        let words = format!("{name}, {}", size(blocks.saturating_mul(BLOCK_SIZE)));
        svg.text("lb", Anchor::Start, (ORDERS * step + 8.0, y), &words);
        y += LINE;
    }
    for (grade, blocks) in grades::kinds(snapshot) {
        grades::sign_in(&mut svg, grade, (0.0, y - 10.0), 52.0);
        let name = grades::legend_name(grade);
        let words = format!("{name}, {}", size(blocks.saturating_mul(BLOCK_SIZE)));
        svg.text("lb", Anchor::Start, (ORDERS * 13.0 + 8.0, y), &words);
        y += LINE;
    }
    let mut width = 0.0_f64;
    for remark in grades::remarks(snapshot) {
        svg.text("tk", Anchor::Start, (0.0, y), &remark);
        y += LINE;
    }
    for zone in &snapshot.zones {
        let field = field(snapshot, zone, layout, Detail::Fields);
        let top = ((y + HEADING) / pitch).ceil() * pitch;
        svg.text("tk", Anchor::Start, (0.0, top - 6.0), &field.label);
        svg.part((0.0, top), &field.body);
        y = top + field.height;
        width = width.max(field.width);
    }
    let done = svg.finish(format!("Physical memory: {}", snapshot.machine));
    Picture { body: format!("{PATTERNS}{}", done.body), width, height: y, label: done.label }
}

/// Groups runs into extents that are separated by more than one empty row.
fn extents(runs: &[Run], cell_blocks: u64, columns: u64) -> impl Iterator<Item = &[Run]> {
    runs.chunk_by(move |run, next| {
        let end = (run.first_pfn >> BLOCK_ORDER) + run.blocks;
        (next.first_pfn >> BLOCK_ORDER) - end < columns * cell_blocks
    })
}

/// Draws the address at the beginning of every few rows.
fn addresses(
    body: &mut String,
    first_block: u64,
    (row_blocks, rows): (u64, u64),
    (y, pitch): (f64, f64),
) {
    // Rows that are a power of two apart have round addresses.
    let each = (APART / pitch).ceil().max(1.0);
    let mut step = 1_u64;
    while (step as f64) < each {
        step *= 2;
    }
    for row in (0..rows).step_by(usize::try_from(step).unwrap_or(1)) {
        let address = (first_block + row * row_blocks).saturating_mul(BLOCK_SIZE);
        let place = y + row as f64 * pitch + pitch.min(12.0) * 0.5 + 4.0;
        put!(
            body,
            "<text class=\"tk\" text-anchor=\"end\" x=\"{}\" y=\"{}\">{}</text>",
            Short(SIDE - 8.0),
            Short(place),
            shown_address(address)
        );
    }
}

/// Shows an address in the largest unit that leaves few digits.
fn shown_address(address: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB")] {
        if address >= 1 << shift {
            let text = format!("{:.2}", address as f64 / (1_u64 << shift) as f64);
            return format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'));
        }
    }
    "0".into()
}

/// Where the cells of an extent are placed.
pub struct Place {
    /// The number of the first cell.
    pub base: u64,
    /// The number of cells in a row.
    pub columns: u64,
    /// The number of rows.
    pub rows: u64,
    /// The number of blocks in each cell.
    pub cell_blocks: u64,
    /// The width and height of a cell, in points.
    pub pitch: f64,
    /// The upper edge of the first row.
    pub y: f64,
}

fn draw(body: &mut String, run: &Run, place: &Place) {
    let first_block = run.first_pfn >> BLOCK_ORDER;
    let from = first_block / place.cell_blocks - place.base;
    let to = (first_block + run.blocks).div_ceil(place.cell_blocks) - place.base;
    let (cell, _) = run.cells();
    let mut above = 0.0;
    for &(what, count) in &run.uses {
        let share = if run.uses.len() == 1 { 1.0 } else { count as f64 / cell as f64 };
        let class = class(what);
        if !class.is_empty() {
            put!(body, "<path class=\"{class}\" d=\"");
            let mut at = from;
            while at < to {
                let (row, column) = (at / place.columns, at % place.columns);
                // Whole rows of one use are drawn as one piece.
                let whole = share >= 1.0 && column == 0 && to - at >= place.columns;
                let (rows, length) = if whole {
                    ((to - at) / place.columns, place.columns)
                } else {
                    (1, (place.columns - column).min(to - at))
                };
                let height = if whole { rows as f64 * place.pitch } else { share * place.pitch };
                let (x, y) = (
                    SIDE + column as f64 * place.pitch,
                    place.y + (row as f64 + above) * place.pitch,
                );
                let width = length as f64 * place.pitch;
                put!(
                    body,
                    "M{} {}h{}v{}h-{}z",
                    Short(x),
                    Fine(y),
                    Short(width),
                    Fine(height),
                    Short(width)
                );
                at += rows * length;
            }
            body.push_str("\"/>");
        }
        above += share;
    }
}

/// A number with two decimals, for parts of cells.
struct Fine(f64);

impl std::fmt::Display for Fine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", (self.0 * 100.0).round() / 100.0)
    }
}

/// Describes a run in words.
fn words(run: &Run) -> String {
    let start = run.first_pfn << 12;
    let end = start + run.blocks.saturating_mul(BLOCK_SIZE) - 1;
    let mut words =
        format!("{start:#x} to {end:#x}, {}: ", size(run.blocks.saturating_mul(BLOCK_SIZE)));
    if let [(only, _)] = run.uses[..] {
        words.push_str(&name(only));
        return words;
    }
    let (cell, _) = run.cells();
    for (index, (what, count)) in run.uses.iter().enumerate() {
        let percent = *count as f64 / cell as f64 * 100.0;
        put!(words, "{}{percent:.0} % {}", if index == 0 { "" } else { ", " }, name(*what));
    }
    words
}

/// The CSS class of a use; empty for uses that are not drawn.
fn class(what: Use) -> String {
    let ordered = |letter: &str, order: Option<u8>| format!("{letter}{}", order.unwrap_or(13));
    match what {
        Use::Free(order) => ordered("f", order),
        Use::Reported(_) => "r".into(),
        Use::Allocated(order) => ordered("w", order),
        Use::Pool(_) => "p".into(),
        Use::Split(eighths) => format!("u{eighths}"),
        Use::Reserved => "x".into(),
        Use::Offline | Use::Unknown => "o".into(),
        Use::Unaccepted => "a".into(),
        Use::Isolated => "i".into(),
        Use::Deferred => "d".into(),
        Use::Lent => "l".into(),
        Use::Hole => String::new(),
    }
}

/// A use in words.
fn name(what: Use) -> String {
    let order = |words: &str, order: Option<u8>| {
        order.map_or_else(|| words.to_owned(), |order| format!("{words}, order {order}"))
    };
    match what {
        Use::Free(of) => order("free", of),
        Use::Reported(of) => order("free, reported to the host", of),
        Use::Allocated(of) => order("allocated whole", of),
        Use::Pool(of) => order("huge-page pool", of),
        Use::Split(0) => "split into pages, all free".into(),
        Use::Split(8) => "split into pages, all used".into(),
        Use::Split(eighths) => format!("split into pages, {eighths}/8 used"),
        Use::Reserved => "reserved".into(),
        Use::Offline => "offline".into(),
        Use::Unaccepted => "not accepted".into(),
        Use::Isolated => "isolated".into(),
        Use::Deferred => "withheld until described".into(),
        Use::Lent => "with the host for a report".into(),
        Use::Hole => "no memory".into(),
        Use::Unknown => "unknown".into(),
    }
}

/// The legend entry of a use: its position, its label, and the key that tells its fills apart.
fn entry(what: Use) -> ((u8, &'static str), Option<u8>) {
    match what {
        Use::Free(order) => ((0, "free, by order"), order),
        Use::Reported(_) => ((1, "free and reported"), None),
        Use::Lent => ((2, "with the host for a report"), None),
        Use::Split(eighths) => ((3, "split into pages, by eighths used"), Some(eighths)),
        Use::Allocated(order) => ((4, "allocated whole, by order"), order),
        Use::Pool(_) => ((5, "huge-page pool"), None),
        Use::Reserved => ((6, "reserved"), None),
        Use::Deferred => ((7, "withheld until described"), None),
        Use::Isolated => ((8, "isolated"), None),
        Use::Unaccepted => ((9, "not accepted"), None),
        Use::Offline => ((10, "offline"), None),
        Use::Unknown => ((11, "unknown"), None),
        Use::Hole => ((12, "no memory"), None),
    }
}

/// One line of the legend.
struct Entry {
    name: &'static str,
    /// The fills that stand for this entry, by order or by eighths.
    fills: BTreeMap<u8, Use>,
    blocks: u64,
}

/// The legend entries for all uses on the map.
fn entries(snapshot: &Snapshot) -> impl Iterator<Item = Entry> {
    let mut entries: BTreeMap<(u8, &str), Entry> = BTreeMap::new();
    for run in snapshot.zones.iter().flat_map(|zone| &zone.runs) {
        let (cell, _) = run.cells();
        for &(what, count) in &run.uses {
            let blocks = if run.uses.len() == 1 { run.blocks } else { run.blocks / cell * count };
            let (key, fill) = entry(what);
            let entry = entries.entry(key).or_insert_with(|| Entry {
                name: key.1,
                fills: BTreeMap::new(),
                blocks: 0,
            });
            entry.blocks += blocks;
            entry.fills.insert(fill.unwrap_or(13), what);
        }
    }
    entries.into_values()
}

/// The legend: all uses on the map, each with its share of memory.
fn legend(snapshot: &Snapshot) -> String {
    let is_memory = |entry: &Entry| !entry.fills.values().any(|what| *what == Use::Hole);
    let all: u64 = entries(snapshot).filter(is_memory).map(|entry| entry.blocks).sum();
    let share = |blocks: u64| blocks as f64 / all.max(1) as f64 * 100.0;
    let mut out = String::from("<ul class=\"uses\">");
    for entry in entries(snapshot) {
        let is_memory = is_memory(&entry);
        let Entry { name, fills, blocks } = entry;
        out.push_str("<li><span class=\"fills\">");
        let (least, most) = (fills.keys().next().copied(), fills.keys().next_back().copied());
        for what in fills.values() {
            put!(
                out,
                "<svg class=\"fill\" viewBox=\"0 0 14 14\" aria-hidden=\"true\"><path class=\"{}\" \
                 d=\"M0 0h14v14h-14z\"/><path class=\"edge\" d=\"M.5 .5h13v13h-13z\"/></svg>",
                class(*what)
            );
        }
        out.push_str("</span>");
        out.push_str(name);
        if let (true, Some(least), Some(most)) = (fills.len() > 1, least, most) {
            put!(out, " <small>{least} to {most}</small>");
        }
        put!(out, " <b>{}</b>", size(blocks.saturating_mul(BLOCK_SIZE)));
        if is_memory {
            put!(out, " <small>{:.1} %</small>", share(blocks));
        }
        out.push_str("</li>");
    }
    for (grade, blocks) in grades::kinds(snapshot) {
        let (bytes, share) = (blocks.saturating_mul(BLOCK_SIZE), share(blocks));
        let (sign, name) = (grades::sign(grade), grades::legend_name(grade));
        put!(out, "<li>{sign}{name} <b>{}</b> <small>{share:.1} %</small></li>", size(bytes));
    }
    out.push_str("</ul>");
    out
}

/// Patterns for uses that a colour alone does not tell apart, and grids, for all maps of a page.
pub const PATTERNS: &str = "<svg class=\"defs\" width=\"0\" height=\"0\" \
    aria-hidden=\"true\"><defs>\
<pattern id=\"g20\" width=\"20\" height=\"20\" x=\"4\" patternUnits=\"userSpaceOnUse\"><path \
d=\"M20 0V20M0 20H20\" class=\"gl\"/></pattern>\
<pattern id=\"g10\" width=\"10\" height=\"10\" x=\"4\" patternUnits=\"userSpaceOnUse\"><path \
d=\"M10 0V10M0 10H10\" class=\"gl\"/></pattern>\
<pattern id=\"hr\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\"><rect class=\"hb f15\" \
width=\"5\" height=\"5\"/><circle class=\"hd\" cx=\"2.5\" cy=\"2.5\" r=\"0.9\"/></pattern>\
<pattern id=\"hx\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
patternTransform=\"rotate(45)\"><rect class=\"xb\" width=\"5\" height=\"5\"/><path class=\"xs\" \
d=\"M0 0V5\"/></pattern>\
<pattern id=\"hi\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
patternTransform=\"rotate(45)\"><rect class=\"ib\" width=\"6\" height=\"6\"/><path class=\"is\" \
d=\"M0 3H6M3 0V6\"/></pattern>\
<pattern id=\"hd\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
patternTransform=\"rotate(-45)\"><rect class=\"xb\" width=\"5\" height=\"5\"/><path class=\"ds\" \
d=\"M0 0V5\"/></pattern>\
<pattern id=\"hp\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\"><rect class=\"pb\" \
width=\"4\" height=\"4\"/><path class=\"ps\" d=\"M0 2H4\"/></pattern>\
</defs></svg>";

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(cell: u64, lines: &str) -> Snapshot {
        let text = format!("framewright memory 1 blocks 9 cell {cell}\n{lines}end\n");
        Snapshot::from_text(&text, "a <machine>", "echo '<b>'").expect("it is right")
    }

    #[test]
    fn every_run_is_drawn_and_named() {
        let lines = "zone 0 DMA32 present 4096 managed 4096 free 512\n0x0 2 S3\n0x400 40 \
            F13\n0x5400 4 X\n0x5c00 1 H\n";
        let text = map("a.json", &snapshot(1, lines), Detail::Runs);
        assert_eq!(text.matches("<g><title>").count(), 4);
        assert!(text.contains("0x400000 to 0x53fffff, 80.0 MiB: free, order 13"));
        assert!(
            text.contains("split into pages, 3/8 used")
                && text.contains("a &lt;machine&gt;")
                && !text.contains("<b>'")
        );
        // Three pieces: the end of a row of 32, a whole row, and the beginning of another.
        let path = text
            .split("class=\"f13\" d=\"")
            .nth(2)
            .and_then(|part| part.split('"').next())
            .expect("a path");
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert!(!map("a.json", &snapshot(1, lines), Detail::Fields).contains("<title>"));
    }

    #[test]
    fn cells_of_several_uses_are_bands_of_their_shares() {
        let lines = "zone 0 Normal present 4096 managed 4096 free 512\n0x0 16 F9:3,W9:1\n";
        let text = map("a.json", &snapshot(4, lines), Detail::Runs);
        assert!(text.contains("75 % free, order 9, 25 % allocated whole, order 9"), "{text}");
        assert!(
            text.contains("class=\"f9\" d=\"M84 0h80v15h-80z\"")
                && text.contains("class=\"w9\" d=\"M84 15h80v5h-80z\"")
        );
    }

    #[test]
    fn far_parts_of_a_zone_are_fields_of_their_own() {
        let lines =
            "zone 0 Normal present 4096 managed 4096 free 512\n0x0 1 F9\n0x100000000 1 F9\n";
        let text = map("a.json", &snapshot(1, lines), Detail::Runs);
        assert_eq!(text.matches("class=\"grid\"").count(), 2);
        assert!(text.len() < 6000 && text.contains(">16 TiB<"), "{}", text.len());
    }
}
