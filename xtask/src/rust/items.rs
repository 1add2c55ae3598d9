//! The items of a Rust source file: as much of the grammar as a list of the public API needs.
//!
//! The scanner works on text whose comments and literals are blanked, so that brackets balance. It
//! reads item by item: attributes, visibility, keyword, name, and the signature up to the body.

use super::source;

/// One item of a module, a trait or an `impl`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// The item's name; for a macro call, the macro's name.
    pub name: String,
    /// The item's kind.
    pub kind: Kind,
    /// Whether it is `pub` without a restriction.
    pub is_public: bool,
    /// Whether it has any visibility, `pub(crate)` included.
    pub is_exported: bool,
    /// The attributes as they are written.
    pub attributes: Vec<String>,
    /// The text from the visibility to the body or the end, on one line.
    pub signature: String,
    /// The public fields, all variants, or the items of a trait or an `impl`, on a line each.
    pub members: Vec<String>,
    /// The item's place in the file, in characters from the beginning.
    pub range: (usize, usize),
}

/// Kinds of items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A module in another file.
    #[default]
    ModuleFile,
    /// A module in braces, with its items.
    Module(Vec<Item>),
    /// Names from elsewhere: the path of each, and the name that it gets here, `*` for all.
    Use(Vec<(Vec<String>, String)>),
    /// Methods of a type, or a trait for a type.
    Impl {
        /// The path of the type.
        of: Vec<String>,
        /// Whether it implements a trait.
        has_trait: bool,
    },
    /// A macro by example.
    Macro,
    /// Everything else that has a name.
    Named,
}

impl Item {
    /// Whether the item is only built for tests or model checkers, or is hidden from the
    /// documentation.
    pub fn is_left_out(&self) -> bool {
        self.is_for_tests() || self.attributes.iter().any(|text| text == "#[doc(hidden)]")
    }

    /// Whether the item is only built for tests or model checkers.
    pub fn is_for_tests(&self) -> bool {
        self.attributes.iter().any(|text| {
            ["#[cfg(test)]", "#[cfg(loom)]", "#[cfg(shuttle)]", "#[cfg(any(loom, shuttle))]"]
                .contains(&text.as_str())
        })
    }
}

/// All items of a file.
pub fn of_file(text: &str) -> Vec<Item> {
    let code: Vec<char> = source::code(text).chars().collect();
    let text: Vec<char> = text.chars().collect();
    items(&Source { code: &code, text: &text }, 0, code.len(), false)
}

/// The text of a file, blanked and unchanged.
struct Source<'a> {
    code: &'a [char],
    text: &'a [char],
}

impl Source<'_> {
    fn skip_blanks(&self, mut at: usize) -> usize {
        while self.code.get(at).is_some_and(|c| c.is_whitespace()) {
            at += 1;
        }
        at
    }

    fn word(&self, at: usize) -> String {
        let letters = self.code[at..].iter().take_while(|c| is_letter(**c));
        letters.collect()
    }

    /// The end of the group whose opening bracket is at `at`.
    fn group_end(&self, at: usize) -> usize {
        let mut depth = 0_usize;
        for (index, c) in self.code.iter().enumerate().skip(at) {
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return index + 1;
                    }
                }
                _ => {}
            }
        }
        self.code.len()
    }

    /// The first of the `wanted` characters that is outside of brackets, from `at` on.
    fn find(&self, mut at: usize, end: usize, wanted: &[char]) -> usize {
        while at < end {
            let c = self.code[at];
            let is_arrow = c == '=' && self.code.get(at + 1) == Some(&'>');
            if wanted.contains(&c) && !is_arrow {
                return at;
            }
            at = if "([{".contains(c) { self.group_end(at) } else { at + 1 };
        }
        end
    }

    fn code(&self, from: usize, to: usize) -> String {
        self.code[from..to].iter().collect()
    }
}

fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The items between two places; items of a trait or an `impl` are members.
fn items(source: &Source<'_>, from: usize, end: usize, are_members: bool) -> Vec<Item> {
    let mut items = Vec::new();
    let mut at = source.skip_blanks(from);
    while at < end {
        let (item, next) = item(source, at, end, are_members);
        items.extend(item);
        at = source.skip_blanks(next.max(at + 1));
    }
    items
}

/// The item at `at`, and where the next one begins; `None` for an item without a name.
fn item(source: &Source<'_>, at: usize, end: usize, is_member: bool) -> (Option<Item>, usize) {
    let start = at;
    let (attributes, at) = attributes(source, at);
    if at >= end {
        return (None, end);
    }
    let mut item = Item { attributes, ..Item::default() };
    let signature_from = at;
    let mut at = visibility(source, at, &mut item);
    let mut keyword = source.word(at);
    // `const fn` begins a function, `const X` does not.
    while matches!(keyword.as_str(), "unsafe" | "async" | "extern" | "default")
        || keyword == "const" && {
            let next = source.word(source.skip_blanks(at + 5));
            matches!(next.as_str(), "fn" | "unsafe" | "async" | "extern")
        }
    {
        at = source.skip_blanks(at + keyword.len());
        // The name of an ABI is blanked with its quotes, so the next word follows.
        keyword = source.word(at);
    }
    let name_at = source.skip_blanks(at + keyword.len());
    item.name = source.word(name_at);
    item.kind = Kind::Named;
    let next = match keyword.as_str() {
        "mod" => module(source, name_at, end, &mut item),
        "use" => {
            let close = source.find(name_at, end, &[';']);
            item.kind = Kind::Use(use_tree(&source.code(name_at, close)));
            close + 1
        }
        "fn" => {
            let close = source.find(name_at, end, &['{', ';']);
            let has_body = source.code.get(close) == Some(&'{');
            let signature = one_line(&source.code(signature_from, close));
            // `mut` before an argument only matters inside the function.
            item.signature = signature.replace("(mut ", "(").replace(", mut ", ", ");
            if is_member {
                item.signature.push_str(if has_body { " { .. }" } else { ";" });
            }
            if has_body { source.group_end(close) } else { close + 1 }
        }
        "struct" | "union" => structure(source, (signature_from, name_at, end), &mut item),
        "enum" => {
            let close = source.find(name_at, end, &['{']);
            item.signature = one_line(&source.code(signature_from, close));
            let next = source.group_end(close);
            item.members = parts(&source.code(close + 1, next.saturating_sub(1)));
            next
        }
        "trait" | "impl" => {
            let close = source.find(at, end, &['{', ';']);
            item.signature = one_line(&source.code(signature_from, close));
            let next = source.group_end(close);
            let is_impl = keyword == "impl";
            if is_impl {
                item.kind = impl_of(&item.signature);
                item.name.clear();
            }
            let inner = items(source, close + 1, next.saturating_sub(1), true);
            let shown =
                inner.into_iter().filter(|one| !one.is_left_out() && (!is_impl || one.is_public));
            item.members = shown.map(|one| one.signature).collect();
            next
        }
        "type" => {
            let close = source.find(name_at, end, &[';']);
            item.signature = one_line(&source.code(signature_from, close));
            close + 1
        }
        "const" | "static" => {
            let close = source.find(name_at, end, &['=', ';']);
            item.signature = one_line(&source.code(signature_from, close));
            source.find(close, end, &[';']) + 1
        }
        _ => macro_call(source, at, end, &mut item),
    };
    item.range = (start, next);
    ((!item.name.is_empty() || matches!(item.kind, Kind::Impl { .. })).then_some(item), next)
}

/// The attributes at `at`, and where they end.
fn attributes(source: &Source<'_>, mut at: usize) -> (Vec<String>, usize) {
    let mut attributes = Vec::new();
    while source.code.get(at) == Some(&'#') {
        let open = source.find(at + 1, source.code.len(), &['[']);
        let end = source.group_end(open);
        attributes.push(one_line(&source.text[at..end].iter().collect::<String>()));
        at = source.skip_blanks(end);
    }
    (attributes, at)
}

/// Reads the visibility at `at`. Returns where the rest begins.
fn visibility(source: &Source<'_>, at: usize, item: &mut Item) -> usize {
    if source.word(at) != "pub" {
        return at;
    }
    item.is_exported = true;
    let next = source.skip_blanks(at + 3);
    if source.code.get(next) == Some(&'(') {
        return source.skip_blanks(source.group_end(next));
    }
    item.is_public = true;
    next
}

/// Reads a module whose name has been read.
fn module(source: &Source<'_>, name_at: usize, end: usize, item: &mut Item) -> usize {
    let close = source.find(name_at, end, &['{', ';']);
    if source.code.get(close) == Some(&'{') {
        let next = source.group_end(close);
        item.kind = Kind::Module(items(source, close + 1, next - 1, false));
        next
    } else {
        item.kind = Kind::ModuleFile;
        close + 1
    }
}

/// Reads a structure with its public fields.
fn structure(source: &Source<'_>, places: (usize, usize, usize), item: &mut Item) -> usize {
    let (from, name_at, end) = places;
    let mut open = name_at;
    // Parentheses before the end of the generic parameters belong to a bound.
    let mut angles = 0_i32;
    while open < end {
        match source.code[open] {
            '<' => angles += 1,
            '>' if source.code[open - 1] != '-' => angles -= 1,
            '{' | '(' | ';' if angles == 0 => break,
            _ => {}
        }
        open += 1;
    }
    let close = source.group_end(open);
    let is_tuple = source.code.get(open) == Some(&'(');
    let next = match source.code.get(open) {
        Some('{') => close,
        Some('(') => source.find(close, end, &[';']) + 1,
        _ => open + 1,
    };
    item.signature = one_line(&source.code(from, open));
    if source.code.get(open) == Some(&';') {
        return next;
    }
    let fields = parts(&source.code(open + 1, close - 1));
    let all = fields.len();
    let is_public = |field: &String| field.starts_with("pub ");
    if is_tuple {
        let shown = fields.iter().map(|field| if is_public(field) { field } else { "_" });
        item.signature.push_str(&format!("({})", shown.collect::<Vec<_>>().join(", ")));
        item.signature.push_str(&one_line(&source.code(close, next - 1)));
    } else {
        item.members = fields.into_iter().filter(is_public).collect();
        if item.members.len() < all {
            item.members.push("..".to_owned());
        }
    }
    next
}

/// Reads a macro call at item level, or a macro by example. Returns where it ends.
fn macro_call(source: &Source<'_>, at: usize, end: usize, item: &mut Item) -> usize {
    let name = source.word(at);
    item.name.clear();
    let open = source.find(at, end, &['{', '(', '[', ';']);
    let next = match source.code.get(open) {
        _ if open >= end => end,
        Some(';') => open + 1,
        _ => source.group_end(open),
    };
    if name == "macro_rules" {
        let bang = source.find(at, end, &['!']);
        item.name = source.word(source.skip_blanks(bang + 1));
        item.kind = Kind::Macro;
        item.signature = format!("macro_rules! {}", item.name);
    }
    next
}

/// What an `impl` is for, from its signature.
fn impl_of(signature: &str) -> Kind {
    let mut rest = signature.trim_start_matches("unsafe ").trim_start_matches("impl");
    if rest.starts_with('<') {
        rest = &rest[angle_end(rest)..];
    }
    let rest = rest.split(" where ").next().unwrap_or(rest);
    let split = outside_angles(rest, " for ");
    let target = split.map_or(rest, |at| &rest[at + 5..]);
    let target = target.trim().trim_start_matches('&').trim_start_matches("mut ");
    let path = target.split('<').next().unwrap_or(target);
    Kind::Impl {
        of: path.split("::").map(|part| part.trim().to_owned()).collect(),
        has_trait: split.is_some(),
    }
}

/// The end of the generic parameters at the beginning of `text`.
fn angle_end(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        before = c;
    }
    text.len()
}

/// The place of `wanted` in `text` outside of generic parameters.
fn outside_angles(text: &str, wanted: &str) -> Option<usize> {
    text.match_indices(wanted).map(|(at, _)| at).find(|at| {
        let before = text[..*at].replace("->", "  ");
        before.matches('<').count() == before.matches('>').count()
    })
}

/// The parts between commas, without attributes, each on one line.
fn parts(text: &str) -> Vec<String> {
    let text = text.replace("->", "\u{1}");
    let (mut parts, mut part, mut depth) = (Vec::new(), String::new(), 0_i32);
    for c in text.chars() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' | '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    parts.push(part);
    let parts = parts.iter().map(|part| one_line(&part.replace('\u{1}', "->")));
    parts.map(|part| without_attributes(&part).to_owned()).filter(|part| !part.is_empty()).collect()
}

fn without_attributes(mut part: &str) -> &str {
    while part.starts_with("#[") {
        let end = part.find(']').map_or(part.len(), |at| at + 1);
        part = part[end..].trim_start();
    }
    part
}

/// The names that a `use` brings in: the path of each, and its name here.
pub fn use_tree(text: &str) -> Vec<(Vec<String>, String)> {
    let text = one_line(text);
    let text = text.trim();
    if let Some(open) = text.find('{') {
        let prefix = text[..open].trim_end_matches("::").to_owned();
        let inner = &text[open + 1..text.rfind('}').unwrap_or(text.len())];
        let prefix: Vec<String> = segments(&prefix);
        return parts(inner)
            .iter()
            .flat_map(|part| use_tree(part))
            .map(|(path, name)| {
                let is_self = path.len() == 1 && path[0] == "self";
                let name = match prefix.last() {
                    Some(last) if is_self && name == "self" => last.clone(),
                    _ => name,
                };
                let path = if is_self { Vec::new() } else { path };
                (prefix.iter().cloned().chain(path).collect(), name)
            })
            .collect();
    }
    let (path, name) = text.split_once(" as ").map_or((text, None), |(a, b)| (a, Some(b)));
    let path = segments(path);
    let name = name.map(str::trim).map(str::to_owned).or_else(|| path.last().cloned());
    vec![(path, name.unwrap_or_default())]
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Joins `text` into one line, as rustfmt would write it if there were room.
pub fn one_line(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (from, to) in [
        ("( ", "("),
        ("[ ", "["),
        ("< ", "<"),
        (", )", ")"),
        (", ]", "]"),
        (", >", ">"),
        (" )", ")"),
        (" ]", "]"),
        (",)", ")"),
        (", }", " }"),
        (" ,", ","),
    ] {
        line = line.replace(from, to);
    }
    line.trim().trim_end_matches(',').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<(String, Vec<String>)> {
        of_file(text).into_iter().map(|item| (item.signature, item.members)).collect()
    }

    #[test]
    fn functions_and_constants_end_before_their_bodies() {
        let text = "/// Doc.\n#[inline]\npub const fn f<T: Fn(u8) -> u8>(\n    a: [u8; 4],\n    t: \
            T,\n) -> u8\nwhere\n    T: Copy,\n{\n    { a[0] }\n}\npub const X: u8 = f({ 1 });\nfn \
            private() {}\npub type Y = [u8; 2];\n";
        assert_eq!(
            shown(text).into_iter().map(|(line, _)| line).collect::<Vec<_>>(),
            [
                "pub const fn f<T: Fn(u8) -> u8>(a: [u8; 4], t: T) -> u8 where T: Copy",
                "pub const X: u8",
                "fn private()",
                "pub type Y = [u8; 2]"
            ]
        );
        let items = of_file(text);
        assert_eq!(items[0].attributes, ["#[inline]"]);
        assert!(items[0].is_public && !items[2].is_public);
    }

    #[test]
    fn structures_show_what_is_public() {
        let text = "pub struct A<F: Fn(u8)> {\n    /// One.\n    pub a: u8,\n    b: Vec<(u8, \
            u8)>,\n}\npub struct B(pub u64, u8);\npub struct C;\n#[derive(Clone)]\npub enum D \
            {\n    /// x\n    One,\n    #[x(a, b)]\n    Two(u8, u8),\n    Three { a: u8 },\n}\n";
        let found = shown(text);
        assert_eq!(found[0].0, "pub struct A<F: Fn(u8)>");
        assert_eq!(found[0].1, ["pub a: u8", ".."]);
        assert_eq!(found[1].0, "pub struct B(pub u64, _)");
        assert_eq!(found[2].0, "pub struct C");
        assert_eq!(found[3].1, ["One", "Two(u8, u8)", "Three { a: u8 }"]);
    }

    #[test]
    fn traits_show_everything_and_impls_what_is_public() {
        let text = "pub unsafe trait T {\n    const X: u8;\n    fn a(&self);\n    fn b(&self) -> \
            u8 {\n        1\n    }\n}\nimpl<'a, P: T> a::B<'a, P> {\n    pub fn c(self) {}\n    fn \
            d() {}\n}\nunsafe impl<T> From<T> for Q<T> where T: X {}\n";
        let found = of_file(text);
        assert_eq!(found[0].members, ["const X: u8", "fn a(&self);", "fn b(&self) -> u8 { .. }"]);
        assert_eq!(found[1].members, ["pub fn c(self) { .. }"]);
        let path = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(found[1].kind, Kind::Impl { of: path(&["a", "B"]), has_trait: false });
        assert_eq!(found[2].kind, Kind::Impl { of: path(&["Q"]), has_trait: true });
    }

    #[test]
    fn modules_uses_and_macros_are_read() {
        let text = "#![no_std]\nextern crate std;\nmod a;\n#[cfg(test)]\nmod b {\n    fn inner() \
            {}\n}\npub use a::{B, c::{self, D as E}, *};\n#[macro_export]\nmacro_rules! m {\n    \
            () => {};\n}\nthread_local! { static X: u8 = 1; }\npub fn last() {}\n";
        let found = of_file(text);
        assert_eq!((&found[0].kind, found[0].attributes.len()), (&Kind::ModuleFile, 0));
        assert!(
            found[1].is_left_out() && matches!(&found[1].kind, Kind::Module(one) if one.len() == 1)
        );
        let Kind::Use(names) = &found[2].kind else { panic!("{:?}", found[2]) };
        let names: Vec<String> =
            names.iter().map(|(path, name)| format!("{} {name}", path.join("::"))).collect();
        assert_eq!(names, ["a::B B", "a::c c", "a::c::D E", "a::* *"]);
        assert_eq!((found[3].kind.clone(), found[3].name.as_str()), (Kind::Macro, "m"));
        assert_eq!(found[4].name, "last");
    }
}
