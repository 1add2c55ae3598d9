//! The modules of a crate, and what paths in them name.

use super::items::{self, Item, Kind};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A module.
pub struct Module {
    /// The module's path from the root of the crate, whose own path is empty.
    pub path: Vec<String>,
    /// The module's file, relative to the folder of sources.
    pub file: PathBuf,
    /// The module that declares this one.
    pub parent: usize,
    /// Whether the module is declared `pub` and not hidden.
    pub is_public: bool,
    /// The module's items.
    pub items: Vec<Item>,
    /// The modules that it declares, by name.
    pub children: Vec<(String, usize)>,
}

/// All modules of a crate; the first one is its root.
pub struct Tree {
    /// The modules, each after the one that declares it.
    pub modules: Vec<Module>,
}

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A module.
    Module(usize),
    /// An item of a module, by its index.
    Item(usize, usize),
}

/// A path through more re-exports than this is taken for a cycle.
const DEPTH_LIMIT: usize = 24;

impl Tree {
    /// Reads the crate whose `lib.rs` or `main.rs` is in `folder`.
    ///
    /// # Errors
    /// The errors of reading the files.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let root = ["lib.rs", "main.rs"].into_iter().find(|name| folder.join(name).is_file());
        let root = PathBuf::from(root.unwrap_or("lib.rs"));
        let text = fs::read_to_string(folder.join(&root))?;
        let mut tree = Self { modules: Vec::new() };
        tree.add(folder, (Vec::new(), root), (0, true), items::of_file(&text))?;
        Ok(tree)
    }

    fn add(
        &mut self,
        folder: &Path,
        (path, file): (Vec<String>, PathBuf),
        (parent, is_public): (usize, bool),
        items: Vec<Item>,
    ) -> io::Result<usize> {
        let number = self.modules.len();
        let module = Module {
            path: path.clone(),
            file: file.clone(),
            parent,
            is_public,
            items: items.clone(),
            children: Vec::new(),
        };
        self.modules.push(module);
        for item in items.into_iter().filter(|item| !item.is_for_tests()) {
            let child: Vec<String> = path.iter().cloned().chain([item.name.clone()]).collect();
            let is_public = item.is_public && !item.is_left_out();
            let (file, inner) = match item.kind {
                Kind::ModuleFile => {
                    let file = module_file(folder, &file, &item, &child);
                    (file.clone(), items::of_file(&fs::read_to_string(folder.join(&file))?))
                }
                Kind::Module(inner) => (file.clone(), inner),
                _ => continue,
            };
            let added = self.add(folder, (child, file), (number, is_public), inner)?;
            self.modules[number].children.push((item.name, added));
        }
        Ok(number)
    }

    /// What `path` names in `module`; empty for names of other crates.
    pub fn resolve(&self, module: usize, path: &[String]) -> BTreeSet<Target> {
        self.walk(module, path, 0)
    }

    fn walk(&self, module: usize, path: &[String], depth: usize) -> BTreeSet<Target> {
        let Some((first, mut rest)) = path.split_first() else {
            return BTreeSet::from([Target::Module(module)]);
        };
        let mut found = match first.as_str() {
            "crate" => BTreeSet::from([Target::Module(0)]),
            "self" => BTreeSet::from([Target::Module(module)]),
            "super" => BTreeSet::from([Target::Module(self.modules[module].parent)]),
            name => self.named(module, name, depth + 1),
        };
        while let Some((name, further)) = rest.split_first() {
            // A function may have the name of a module, but has nothing inside.
            if found.iter().any(|target| matches!(target, Target::Module(_))) {
                found.retain(|target| matches!(target, Target::Module(_)));
            }
            let step = |target: &Target| match target {
                Target::Module(inner) if name == "super" => {
                    BTreeSet::from([Target::Module(self.modules[*inner].parent)])
                }
                Target::Module(inner) => self.named(*inner, name, depth + 1),
                // The further names are a variant, a constant or a function of a type.
                Target::Item(..) => BTreeSet::from([*target]),
            };
            found = found.iter().flat_map(step).collect();
            rest = further;
        }
        found
    }

    /// What `name` is in `module`.
    pub fn named(&self, module: usize, name: &str, depth: usize) -> BTreeSet<Target> {
        let mut found = BTreeSet::new();
        if depth > DEPTH_LIMIT {
            return found;
        }
        let here = &self.modules[module];
        found.extend(
            here.children
                .iter()
                .filter(|(child, _)| child == name)
                .map(|(_, at)| Target::Module(*at)),
        );
        for (index, item) in here.items.iter().enumerate() {
            match &item.kind {
                Kind::Named | Kind::Macro if item.name == name => {
                    found.insert(Target::Item(module, index));
                }
                Kind::Use(names) => {
                    for (path, _) in names.iter().filter(|(_, known)| known == name) {
                        found.extend(self.walk_use(module, path, depth));
                    }
                }
                _ => {}
            }
        }
        if found.is_empty() {
            for (path, _) in here.items.iter().flat_map(globs) {
                for target in self.walk_use(module, &path[..path.len() - 1], depth) {
                    if let Target::Module(inner) = target {
                        found.extend(self.named(inner, name, depth + 2));
                    }
                }
            }
        }
        found
    }

    /// A `use` may name what it defines itself, in another namespace, so it is resolved one level
    /// deeper.
    fn walk_use(&self, module: usize, path: &[String], depth: usize) -> BTreeSet<Target> {
        self.walk(module, path, depth + 1)
    }

    /// The file of a target.
    pub fn file(&self, target: Target) -> &Path {
        match target {
            Target::Module(module) | Target::Item(module, _) => &self.modules[module].file,
        }
    }
}

/// The glob imports of a `use` item.
pub fn globs(item: &Item) -> impl Iterator<Item = &(Vec<String>, String)> {
    let names = match &item.kind {
        Kind::Use(names) => names.as_slice(),
        _ => &[],
    };
    names.iter().filter(|(_, name)| name == "*")
}

/// The file of the module `item`, which is declared in `file`.
fn module_file(folder: &Path, file: &Path, item: &Item, path: &[String]) -> PathBuf {
    let named = item.attributes.iter().find_map(|text| text.strip_prefix("#[path = \""));
    if let Some(named) = named.and_then(|text| text.strip_suffix("\"]")) {
        return file.parent().unwrap_or(Path::new("")).join(named);
    }
    let flat: PathBuf = path.iter().collect::<PathBuf>().with_extension("rs");
    if folder.join(&flat).is_file() { flat } else { flat.with_extension("").join("mod.rs") }
}
