//! Block grades on the memory map: a line at the foot of each cell whose blocks have a grade, the
//! legend of these lines, and sentences about reserve areas and moved pages.
//!
//! A grade does not say what a block is used for, so it does not change the colour of a cell. One
//! kind of line is solid and the other dashed, so that they can be told apart without colours, too.

use super::html::{Escaped, put};
use super::memory::{Detail, Place, SIDE};
use super::svg::{Short, Svg};
use crate::grid::{counted, size};
use crate::snapshot::{Area, Grade, Graded, Moved, Run, Snapshot, Zone};
use framewright::units::{BLOCK_ORDER, BLOCK_SIZE, PAGE_SIZE};

/// The most reserve areas to name; there are seldom more than a few.
const MOST_NAMED: usize = 6;

/// The CSS class of a grade's line.
const fn class(grade: Grade) -> &'static str {
    match grade {
        Grade::Movable => "km",
        Grade::Removable => "kr",
    }
}

/// The description of a grade's line in the legend.
pub const fn legend_name(grade: Grade) -> &'static str {
    match grade {
        Grade::Movable => "kept for what can be moved",
        Grade::Removable => "lent to what can be moved: reserve areas",
    }
}

const fn name(grade: Grade) -> &'static str {
    match grade {
        Grade::Movable => "kept for what can be moved",
        Grade::Removable => "lent to what can be moved",
    }
}

/// The grades that occur in the snapshot, each with its number of blocks.
pub fn kinds(snapshot: &Snapshot) -> impl Iterator<Item = (Grade, u64)> {
    let blocks = |grade: Grade| {
        let runs = snapshot.zones.iter().flat_map(|zone| &zone.grades);
        runs.filter(|run| run.grade == grade).map(|run| run.graded_blocks).sum::<u64>()
    };
    Grade::ALL.into_iter().map(move |grade| (grade, blocks(grade))).filter(|(_, sum)| *sum != 0)
}

/// The sign of a grade's line in the legend of a page.
pub fn sign(grade: Grade) -> String {
    format!(
        "<svg class=\"fill\" viewBox=\"0 0 14 14\" aria-hidden=\"true\"><path class=\"edge\" \
         d=\"M.5 .5h13v13h-13z\"/><path class=\"{}\" stroke-width=\"3\" d=\"M1 11h12\"/></svg>",
        class(grade)
    )
}

/// Draws the sign of a grade's line in the legend of a picture, `width` wide, with its upper left
/// corner at (`x`, `y`).
pub fn sign_in(svg: &mut Svg, grade: Grade, (x, y): (f64, f64), width: f64) {
    let [inner, x, y, foot] = [width - 1.0, x + 0.5, y + 0.5, y + 10.0].map(Short);
    svg.path("edge", &format!("M{x} {y}h{inner}v11h-{inner}z"));
    svg.path(&format!("{} thick", class(grade)), &format!("M{x} {foot}h{inner}"));
}

/// The thickness of a line and of the background under it, for cells of this width.
const fn thickness(pitch: f64) -> (f64, f64) {
    if pitch > 15.0 { (3.0, 5.0) } else { (2.0, 3.4) }
}

/// Draws the lines for those blocks of a zone that lie in the extent at `place`.
pub fn draw(body: &mut String, snapshot: &Snapshot, zone: &Zone, place: &Place, detail: Detail) {
    let (line, ground) = thickness(place.pitch);
    let end = place.base + place.rows * place.columns;
    let mut lines = String::new();
    let mut grounds = String::new();
    // Where both kinds share a cell, the dashed line is drawn over the solid one.
    for grade in Grade::ALL {
        for run in zone.grades.iter().filter(|run| run.grade == grade) {
            let first = run.first_pfn >> BLOCK_ORDER;
            let from = (first / place.cell_blocks).max(place.base);
            let to = (first + run.blocks).div_ceil(place.cell_blocks).min(end);
            if from >= to {
                continue;
            }
            let path = path(place, from - place.base..to - place.base, ground);
            grounds.push_str(&path);
            lines.push_str("<g class=\"foot\">");
            if detail == Detail::Runs {
                put!(lines, "<title>{}</title>", Escaped(&words(run, &snapshot.areas)));
            }
            put!(lines, "<path class=\"{}\" d=\"{path}\"/></g>", class(grade));
        }
    }
    if !lines.is_empty() {
        put!(body, "<path class=\"kg\" stroke-width=\"{}\" d=\"{grounds}\"/>", Short(ground));
        put!(body, "<g stroke-width=\"{}\">{lines}</g>", Short(line));
    }
}

/// The SVG path of a line along the feet of cells, with one piece for each row.
fn path(place: &Place, cells: std::ops::Range<u64>, ground: f64) -> String {
    let mut path = String::new();
    let mut at = cells.start;
    while at < cells.end {
        let (row, column) = (at / place.columns, at % place.columns);
        let length = (place.columns - column).min(cells.end - at);
        let x = SIDE + column as f64 * place.pitch;
        let y = place.y + (row + 1) as f64 * place.pitch - ground / 2.0;
        put!(path, "M{} {}h{}", Short(x), Short(y), Short(length as f64 * place.pitch));
        at += length;
    }
    path
}

/// Describes a line in words.
fn words(run: &Graded, areas: &[Area]) -> String {
    let start = run.first_pfn << 12;
    let end = start + run.blocks.saturating_mul(BLOCK_SIZE) - 1;
    let mut words = format!(
        "{start:#x} to {end:#x}, {}: {}",
        size(run.graded_blocks.saturating_mul(BLOCK_SIZE)),
        name(run.grade)
    );
    if run.graded_blocks != run.blocks {
        put!(words, ", with {} of other blocks between", {
            size((run.blocks - run.graded_blocks).saturating_mul(BLOCK_SIZE))
        });
    }
    if run.grade == Grade::Removable {
        let pages = run.first_pfn..run.first_pfn + (run.blocks << BLOCK_ORDER);
        let is_in =
            |area: &&Area| area.first_pfn < pages.end && pages.start < area.first_pfn + area.pages;
        for area in areas.iter().filter(is_in).take(MOST_NAMED) {
            put!(words, "; reserve area {}, {}", area.name, left(area));
        }
    }
    words
}

/// The runs of a zone with each grade. Those of one grade ascend; those of two may overlap.
pub struct Sorted<'a>([(Grade, Vec<&'a Graded>); Grade::ALL.len()]);

/// Sorts the runs of a zone by grade, for [`of_run`].
pub fn sorted(zone: &Zone) -> Sorted<'_> {
    let of = |grade| zone.grades.iter().filter(|run| run.grade == grade).collect();
    Sorted(Grade::ALL.map(|grade| (grade, of(grade))))
}

/// Says how much of a run of equal use has a grade.
pub fn of_run(run: &Run, grades: &Sorted<'_>) -> String {
    let (start, end) = (run.first_pfn, run.first_pfn + (run.blocks << BLOCK_ORDER));
    let end_of = |graded: &Graded| graded.first_pfn + (graded.blocks << BLOCK_ORDER);
    let mut words = String::new();
    for (grade, all) in &grades.0 {
        let grade = *grade;
        let mut blocks = 0;
        let mut is_exact = true;
        // Not all of them for each run, as there may be thousands of both.
        let first = all.partition_point(|graded| end_of(graded) <= start);
        for graded in all.iter().skip(first).take_while(|graded| graded.first_pfn < end) {
            let shared = end_of(graded).min(end) - graded.first_pfn.max(start);
            blocks += shared >> BLOCK_ORDER;
            is_exact &= graded.graded_blocks == graded.blocks;
        }
        match blocks {
            0 => {}
            _ if !is_exact => put!(words, "; parts of it {}", name(grade)),
            all if all == run.blocks => put!(words, "; {}", name(grade)),
            part => put!(words, "; {} of it {}", size(part * BLOCK_SIZE), name(grade)),
        }
    }
    words
}

fn left(area: &Area) -> String {
    let bytes = |pages: u64| size(pages.saturating_mul(PAGE_SIZE));
    if area.available_pages == area.pages {
        format!("{}, all available", bytes(area.pages))
    } else {
        format!("{}, {} available", bytes(area.pages), bytes(area.available_pages))
    }
}

/// Sentences about reserve areas and moved pages, as far as there is anything to say.
pub fn remarks(snapshot: &Snapshot) -> Vec<String> {
    let mut remarks = Vec::new();
    if !snapshot.areas.is_empty() {
        let named = snapshot.areas.iter().take(MOST_NAMED);
        let mut named: Vec<String> =
            named.map(|area| format!("{} ({})", area.name, left(area))).collect();
        if snapshot.areas.len() > MOST_NAMED {
            named.push(format!("{} more", snapshot.areas.len() - MOST_NAMED));
        }
        let noun = if snapshot.areas.len() == 1 { "area" } else { "areas" };
        remarks.push(format!("Reserve {noun}: {}.", named.join("; ")));
    }
    let Moved { pages, failed_pages, emptied_blocks } = snapshot.moved;
    if snapshot.moved != Moved::default() {
        let mut words =
            format!("Moved: {}, {}", counted(pages, "page"), size(pages.saturating_mul(PAGE_SIZE)));
        if failed_pages != 0 {
            put!(words, "; {failed_pages} could not be");
        }
        if emptied_blocks != 0 {
            put!(words, "; compaction emptied {}", counted(emptied_blocks, "block"));
        }
        remarks.push(words + ".");
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::super::memory::{map, picture};
    use super::*;

    fn snapshot(cell: u64, lines: &str) -> Snapshot {
        let text = format!(
            "framewright memory 1 blocks 9 cell {cell}\nzone 0 Normal present 65536 managed 65536 \
             free 512\n{lines}end\n"
        );
        Snapshot::from_text(&text, "a machine", "").expect("it is right")
    }

    /// The paths of one kind of line, without the sign in the legend.
    fn lines(text: &str, class: &str) -> Vec<String> {
        let beginning = format!("<path class=\"{class}\"");
        let parts = text.split(&beginning).skip(1);
        let paths = parts.filter_map(|part| part.split("d=\"").nth(1)?.split('"').next());
        paths.filter(|path| !path.starts_with("M1 ")).map(str::to_owned).collect()
    }

    #[test]
    fn blocks_with_a_grade_have_a_line_at_their_feet() {
        let all = "0x0 64 F15\n0x8000 32 W9\ngrade movable 0x3c00 4\ngrade removable 0x8000 16\n\
            area 0x8000 8192 8000 <camera>\nmoved 5120 2 1\n";
        let text = map("a.json", &snapshot(1, all), Detail::Runs);
        // From the end of the first row to the beginning of the second, and in the third row.
        assert_eq!(lines(&text, "km"), ["M684 17.5h40M84 37.5h40"]);
        assert_eq!(lines(&text, "kr"), ["M84 57.5h320"]);
        assert_eq!(lines(&text, "kg"), ["M684 17.5h40M84 37.5h40M84 57.5h320"]);
        for expected in [
            "0x3c00000 to 0x43fffff, 8.00 MiB: kept for what can be moved</title>",
            "0x8000000 to 0x9ffffff, 32.0 MiB: lent to what can be moved; reserve area \
             &lt;camera&gt;, 32.0 MiB, 31.2 MiB available</title>",
            "128 MiB: free, order 15; 8.00 MiB of it kept for what can be moved</title>",
            "kept for what can be moved <b>8.00 MiB</b> <small>4.2 %</small>",
            "lent to what can be moved: reserve areas <b>32.0 MiB</b>",
            "Reserve area: &lt;camera&gt; (32.0 MiB, 31.2 MiB available).",
            "Moved: 5120 pages, 20.0 MiB; 2 could not be; compaction emptied 1 block.",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        let alone = picture(&snapshot(1, all)).body;
        assert!(alone.contains("class=\"kr thick\"") && alone.contains("reserve areas, 32.0 MiB"));
        assert_eq!(lines(&alone, "kr"), ["M84 57.5h320"]);
        assert!(alone.contains("Moved: 5120 pages") && !alone.contains("<camera>"), "{alone}");
        assert!(!map("a.json", &snapshot(1, all), Detail::Fields).contains("<title>"));
    }

    #[test]
    fn what_has_no_grade_is_drawn_as_before() {
        let text = map("a.json", &snapshot(1, "0x0 64 F15\n"), Detail::Runs);
        for word in ["class=\"foot\"", "class=\"kg\"", "can be moved", "Reserve", "Moved"] {
            assert!(!text.contains(word), "{word}");
        }
    }

    #[test]
    fn each_run_is_told_of_all_its_grades() {
        let all = "0x0 4 F9\n0x800 4 W9\n0x1000 4 F9\n0x1800 4 W9\ngrade removable 0x400 1\n\
            grade movable 0x600 2\ngrade removable 0xa00 1\ngrade removable 0xe00 2\n\
            grade movable 0x1600 1\n";
        let snapshot = snapshot(1, all);
        let zone = &snapshot.zones[0];
        let told: Vec<String> = zone.runs.iter().map(|run| of_run(run, &sorted(zone))).collect();
        let movable = "; 2.00 MiB of it kept for what can be moved";
        let removable = |size: &str| format!("; {size} MiB of it lent to what can be moved");
        let expected = [
            movable.to_owned() + &removable("2.00"),
            movable.to_owned() + &removable("4.00"),
            movable.to_owned() + &removable("2.00"),
            String::new(),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn in_large_cells_parts_are_told() {
        let all = "0x0 64 F9:3,W9:1\ngrade removable 0x1400 10 3\n";
        let text = map("a.json", &snapshot(4, all), Detail::Runs);
        // Cells two to four; the first and the last are only partly covered.
        assert_eq!(lines(&text, "kr"), ["M124 17.5h60"]);
        for expected in [
            "6.00 MiB: lent to what can be moved, with 14.0 MiB of other blocks between</title>",
            "25 % allocated whole, order 9; parts of it lent to what can be moved</title>",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }

    #[test]
    fn lines_stay_in_their_fields() {
        let far = "0x0 32 F9\n0x1000000 32 F9\ngrade movable 0x0 32\ngrade movable 0x1000000 1\n";
        let text = map("a.json", &snapshot(1, far), Detail::Runs);
        assert_eq!(text.matches("class=\"grid\"").count(), 2);
        assert_eq!(lines(&text, "km"), ["M84 17.5h640", "M84 57.5h20"]);
    }
}
