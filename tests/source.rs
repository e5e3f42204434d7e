//! The source keeps its layers, its bounds and its words. Read with `syn`, not by lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::Visit;
use syn::{Item, UseTree};
use test_support::test;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files below a folder, by their path from the root.
fn files(folder: &str) -> BTreeMap<String, String> {
    files_with(folder, "rs", true)
}

/// The files with an extension in a folder, and those below it if wanted.
fn files_with(folder: &str, wanted: &str, below: bool) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.extend(below.then_some(path));
            } else if path
                .extension()
                .is_some_and(|extension| extension == wanted)
            {
                let name: PathBuf = path
                    .strip_prefix(root())
                    .expect("inside")
                    .components()
                    .collect();
                let text = std::fs::read_to_string(&path).expect("readable");
                found.insert(name.display().to_string(), text);
            }
        }
    }
    found
}

/// The library without its tests, by module path: `redis::lane`. `test_util` reaches everywhere on
/// purpose, and `lib` only lists.
fn library() -> BTreeMap<Vec<String>, String> {
    modules("src")
}

/// The core, likewise.
fn core() -> BTreeMap<Vec<String>, String> {
    modules("crates/core/src")
}

fn modules(folder: &str) -> BTreeMap<Vec<String>, String> {
    let is_test = |path: &str| path.ends_with("tests.rs") || path.contains("/tests/");
    let left_out = |path: &str| path.ends_with("src/lib.rs") || path == "src/api/test_util.rs";
    let files = files(folder).into_iter();
    files
        .filter(|(path, _)| !is_test(path) && !left_out(path))
        .map(|(path, text)| {
            let path = Path::new(&path)
                .strip_prefix(folder)
                .expect("in it")
                .with_extension("");
            (
                path.iter()
                    .map(|part| part.to_string_lossy().into_owned())
                    .collect(),
                text,
            )
        })
        .collect()
}

/// What the code of a file names: paths, flattened out of `use` trees and expressions.
#[derive(Default)]
struct Paths {
    used: Vec<Vec<String>>,
    /// Names that a file only hands on.
    handed_on: Vec<Vec<String>>,
    /// How deep the visitor is in modules inside the file.
    inside: usize,
}

impl Paths {
    fn add(&mut self, path: Vec<String>, public: bool) {
        // `super` of a module inside the file is the file.
        let supers = path.iter().take_while(|part| *part == "super").count();
        if supers > 0 && supers <= self.inside {
            return;
        }
        if public {
            self.handed_on.push(path)
        } else {
            self.used.push(path)
        }
    }

    fn flatten(&mut self, before: &[String], tree: &UseTree, public: bool) {
        let with = |part: &syn::Ident| [before, &[part.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.flatten(&with(&path.ident), &path.tree, public),
            UseTree::Name(name) => self.add(with(&name.ident), public),
            UseTree::Rename(name) => self.add(with(&name.ident), public),
            UseTree::Glob(_) => self.add(before.to_vec(), public),
            UseTree::Group(group) => {
                group
                    .items
                    .iter()
                    .for_each(|tree| self.flatten(before, tree, public));
            }
        }
    }
}

impl<'a> Visit<'a> for Paths {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        let is_test = module.attrs.iter().any(|attribute| {
            let text = attribute
                .meta
                .require_list()
                .map(|list| list.tokens.to_string());
            attribute.path().is_ident("cfg") && text.is_ok_and(|text| text == "test")
        });
        if !is_test {
            self.inside += 1;
            syn::visit::visit_item_mod(self, module);
            self.inside -= 1;
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let public = !matches!(item.vis, syn::Visibility::Inherited);
        self.flatten(&[], &item.tree, public);
    }

    /// `pub(super)` imports nothing.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        if matches!(parts[0].as_str(), "crate" | "super") {
            self.add(parts, false);
        }
        syn::visit::visit_path(self, path);
    }
}

/// Which file imports which. A module that hands a name of another one on is not meant by those who
/// use it.
fn imports(library: &BTreeMap<Vec<String>, String>) -> BTreeMap<String, BTreeSet<String>> {
    let paths: BTreeMap<_, _> = library
        .iter()
        .map(|(module, text)| {
            let mut paths = Paths::default();
            paths.visit_file(&syn::parse_file(text).expect("it compiles"));
            (module.clone(), paths)
        })
        .collect();
    let resolve = |from: &[String], path: &[String]| -> Option<(Vec<String>, Option<String>)> {
        let (mut module, mut rest) = match path[0].as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "super" => (from[..from.len() - 1].to_vec(), &path[1..]),
            child => {
                let inside = [from, &[child.to_owned()]].concat();
                (
                    from.to_vec(),
                    library.contains_key(&inside).then_some(path)?,
                )
            }
        };
        while let Some((first, after)) = rest.split_first() {
            let inner = [&module[..], std::slice::from_ref(first)].concat();
            let known = library.keys().any(|known| known.starts_with(&inner));
            if !known {
                break;
            }
            (module, rest) = (inner, after);
        }
        Some((module, rest.first().cloned()))
    };
    let mut origins = BTreeMap::new();
    for (module, paths) in &paths {
        for path in &paths.handed_on {
            if let Some((from, Some(name))) = resolve(module, path) {
                origins.insert((module.clone(), name), from);
            }
        }
    }
    let mut imports = BTreeMap::new();
    for (module, paths) in &paths {
        let found: &mut BTreeSet<String> = imports.entry(module.join("::")).or_default();
        for path in &paths.used {
            let Some((target, name)) = resolve(module, path) else {
                continue;
            };
            let origin = name.and_then(|name| origins.get(&(target.clone(), name)));
            let target = origin.unwrap_or(&target);
            if target != module && library.contains_key(target) {
                found.insert(target.join("::"));
            }
        }
    }
    imports
}

/// Asserts that no two of these import each other, through whichever others.
fn has_no_circle(mut left: BTreeMap<String, BTreeSet<String>>) {
    // Takes away what imports nothing that is left, until nothing can be taken away.
    loop {
        let names: BTreeSet<String> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, imports| imports.iter().any(|import| names.contains(import)));
        if left.len() == before {
            break;
        }
    }
    assert!(left.is_empty(), "in a circle, or above one: {left:#?}");
}

/// The layers, from the ground up: a layer imports only itself and what stands before it.
/// `docs/architecture.md` says what happens in each.
const LAYERS: [&str; 19] = [
    "base",
    "kind",
    "error",
    "names",
    "redis/transport",
    "redis/reports",
    "redis/call",
    "redis/settings",
    "redis/channels",
    "redis/connection",
    "redis/node",
    "redis/topology",
    "redis",
    "redis/permissions",
    "script",
    "state",
    "lock",
    "api",
    "blocking",
];

/// The file or folder that a module belongs to. Inside of `redis/` each is a layer of its own.
fn layer(module: &str) -> String {
    let mut parts = module.split("::");
    let first = parts.next().unwrap_or_default();
    match parts.next() {
        Some(second) if first == "redis" => format!("redis/{second}"),
        _ => first.to_owned(),
    }
}

#[test]
fn no_two_files_import_each_other_in_a_circle() {
    has_no_circle(imports(&library()));
    has_no_circle(imports(&core()));
}

#[test]
fn every_layer_imports_only_what_lies_below_it() {
    let floor = |module: &str| LAYERS.iter().position(|known| *known == layer(module));
    let mut found = BTreeSet::new();
    // The pages of the documentation link to what they like.
    for (module, imports) in imports(&library())
        .into_iter()
        .filter(|(module, _)| module != "guide")
    {
        let own = floor(&module).unwrap_or_else(|| panic!("LAYERS lacks the layer of {module}"));
        found.insert(LAYERS[own]);
        for import in imports {
            assert!(floor(&import) <= Some(own), "{module} imports {import}");
        }
    }
    assert_eq!(found.len(), LAYERS.len(), "only {found:?} exist");
}

/// The page has a row for each layer, in the order of the floors, the top floor first.
#[test]
fn the_architecture_page_has_every_layer() {
    let page = std::fs::read_to_string(root().join("docs/architecture.md")).expect("a page");
    let rows: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split('`').next())
        .map(|name| name.trim_end_matches('/').trim_end_matches(".rs"))
        .filter(|name| LAYERS.contains(name))
        .collect();
    assert!(rows.iter().rev().eq(&LAYERS), "{rows:?}");
}

/// The types of a file, with what they are compiled for.
#[derive(Default)]
struct Types(Vec<String>);

impl<'a> Visit<'a> for Types {
    fn visit_item(&mut self, item: &'a Item) {
        let (attributes, name) = match item {
            Item::Struct(of) => (&of.attrs, &of.ident),
            Item::Enum(of) => (&of.attrs, &of.ident),
            Item::Trait(of) => (&of.attrs, &of.ident),
            Item::Type(of) => (&of.attrs, &of.ident),
            Item::Mod(of) if of.attrs.iter().any(|of| of.path().is_ident("cfg")) => return,
            _ => return syn::visit::visit_item(self, item),
        };
        // Another one stands in its place without the feature.
        if !attributes.iter().any(|of| of.path().is_ident("cfg")) {
            self.0.push(name.to_string());
        }
        syn::visit::visit_item(self, item);
    }
}

/// The blocking types have the names of the async ones: they are the same things.
#[test]
fn no_type_name_stands_for_two_things() {
    let mut types: BTreeMap<String, String> = BTreeMap::new();
    for (module, text) in library().into_iter().chain(core()) {
        let module = module.join("::");
        let mut found = Types::default();
        found.visit_file(&syn::parse_file(&text).expect("it compiles"));
        for name in found.0 {
            if layer(&module) == "blocking" {
                continue;
            }
            let other = types.insert(name.clone(), module.clone());
            assert_eq!(other, None, "{module} and {other:?} both have a {name}");
        }
    }
}

/// How Redis' errors begin is written in one file: no other searches a message for it, or imitates one.
#[test]
fn errors_of_servers_are_read_in_one_place() {
    let words = [
        "NOSCRIPT",
        "MOVED",
        "ASK ",
        "TRYAGAIN",
        "CROSSSLOT",
        "CLUSTERDOWN",
        "READONLY",
        "LOADING",
        "MASTERDOWN",
        "BUSY ",
        "OOM",
        "MISCONF",
        "NOREPLICAS",
        "NOAUTH",
        "WRONGPASS",
        "NOPERM",
        "WRONGTYPE",
        "ERR ",
    ];
    for (module, text) in library() {
        let code = text
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        let found = words
            .iter()
            .find(|word| code.contains(&format!("\"{word}")));
        let module = module.join("::");
        assert_eq!(
            found.is_some(),
            module == "error::refusal",
            "{module}: {found:?}"
        );
    }
}

#[test]
fn the_core_is_pure() {
    let manifest =
        std::fs::read_to_string(root().join("crates/core/Cargo.toml")).expect("it is there");
    let below = manifest
        .split("[dependencies]")
        .nth(1)
        .expect("it has some");
    let below = below.lines().take_while(|line| !line.starts_with('['));
    let below = below.filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert!(
        below.eq(["smallvec.workspace = true"]),
        "nothing else is below the core"
    );
    for (module, text) in &core() {
        for foreign in [
            "tokio",
            "tracing",
            "parking_lot",
            "Mutex",
            "Instant",
            "Atomic",
            "HashMap",
            "spawn(",
        ] {
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            let found = code.clone().any(|line| line.contains(foreign));
            assert!(!found, "core::{} knows {foreign}", module.join("::"));
        }
    }
}

#[test]
fn no_file_has_more_than_600_lines_and_no_function_more_than_70() {
    for folder in ["src", "crates", "xtask/src"] {
        // A file of tests may list what it likes.
        let code = files(folder)
            .into_iter()
            .filter(|(path, _)| !path.contains("/tests/"));
        for (path, text) in code {
            let lines = text.lines().count();
            assert!(lines <= 600, "{path} has {lines} lines");
            let mut lengths = Lengths::default();
            lengths.visit_file(&syn::parse_file(&text).expect("it compiles"));
            for (name, length) in lengths.0 {
                assert!(length <= 70, "{path}: {name} has {length} lines");
            }
        }
    }
}

#[derive(Default)]
struct Lengths(Vec<(String, usize)>);

impl Lengths {
    fn add(&mut self, name: &syn::Ident, block: &syn::Block) {
        let span = block.brace_token.span;
        let lines = span.close().end().line + 1 - span.open().start().line;
        self.0.push((name.to_string(), lines));
    }
}

impl<'a> Visit<'a> for Lengths {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.add(&item.sig.ident, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.add(&item.sig.ident, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }
}

/// Phrases that are almost always slips, with what to write instead. CONTRIBUTING.md, "How we write", has the rules.
const FORBIDDEN: [(&str, &str); 13] = [
    ("at once", "immediately, or together"),
    ("whoever", "the client, caller or waiter"),
    ("so many", "`n`, or this many"),
    ("once more", "again"),
    ("anew", "again"),
    ("behind the", "after; behind is for place"),
    ("so long", "a time by its name: for up to `wait`"),
    ("elsewhere than", "outside"),
    ("looked at at", "checked"),
    ("who asks", "the caller"),
    ("who drops", "the caller, or dropping"),
    ("who unlocks", "the caller of `unlock`"),
    ("of anybody", "another client's"),
];

/// The prose and the code of the repository, by path.
fn texts() -> BTreeMap<String, String> {
    let folders = [
        ".",
        "docs",
        "crates",
        "src",
        "tests",
        "examples",
        "xtask/src",
        "lua",
        ".github",
    ];
    let mut found = BTreeMap::new();
    for folder in folders {
        let below = !matches!(folder, "." | "docs");
        for extension in ["rs", "md", "lua", "yml"] {
            found.extend(files_with(folder, extension, below));
        }
    }
    // These two quote the phrases.
    found.retain(|path, _| !["CONTRIBUTING.md", "tests/source.rs"].contains(&path.as_str()));
    found
}

/// The words of a text with the numbers of their lines, without the marks at the beginning of a line of a comment.
fn words(text: &str) -> Vec<(usize, &str)> {
    let marks: &[char] = &['/', '!', '-', '#', '>', ' '];
    let lines = (1..).zip(text.lines());
    let words = lines.flat_map(|(number, line)| {
        let words = line.trim_start_matches(marks).split_whitespace();
        words.map(move |word| (number, word))
    });
    words.collect()
}

/// The lines on which a phrase begins.
fn lines_with(phrase: &str, words: &[(usize, &str)]) -> Vec<usize> {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    let sign = |letter: char| !letter.is_alphanumeric() && letter != '_';
    let same = |(nth, (_, word)): (usize, &(usize, &str))| {
        let word = if nth == 0 {
            word.trim_start_matches(sign)
        } else {
            word
        };
        let is_last = nth + 1 == phrase.len();
        let word = if is_last {
            word.trim_end_matches(sign)
        } else {
            word
        };
        word.eq_ignore_ascii_case(phrase[nth])
    };
    let windows = words.windows(phrase.len());
    let found = windows.filter(|window| window.iter().enumerate().all(same));
    found.map(|window| window[0].0).collect()
}

#[test]
fn a_phrase_is_found_also_across_lines_and_not_inside_of_names() {
    let found = |text| lines_with("so long", &words(text));
    assert_eq!(found("/// It waits\n/// for (so\n/// long).\n"), [2]);
    assert_eq!(found("So long, it waited: `so long`"), [1, 1]);
    assert_eq!(found("so_long so. long, so longer also long"), [0; 0]);
}

#[test]
fn no_text_has_a_forbidden_phrase() {
    let mut slips = Vec::new();
    let texts = texts();
    for (path, text) in &texts {
        let words = words(text);
        for (phrase, instead) in FORBIDDEN {
            for line in lines_with(phrase, &words) {
                slips.push(format!("{path}:{line}: {phrase}; write: {instead}"));
            }
        }
    }
    assert!(
        texts.contains_key("README.md") && texts.len() > 300,
        "{}",
        texts.len()
    );
    assert!(slips.is_empty(), "{slips:#?}");
}

#[test]
fn every_file_says_what_it_is_for() {
    for folder in ["src", "crates", "xtask/src"] {
        for (path, text) in files(folder) {
            assert!(text.starts_with("//!"), "{path} has no head");
            let items = syn::parse_file(&text).expect("it compiles").items;
            let prints = |item: &Item| matches!(item, Item::Macro(item) if item.mac.path.is_ident("println"));
            assert!(!items.iter().any(prints));
        }
    }
}

/// The root of the crate that a file belongs to. A file of `tests/` is one itself.
fn crate_root(path: &str) -> Option<PathBuf> {
    let folders = Path::new(path).ancestors().skip(1);
    let mut roots =
        folders.flat_map(|folder| ["lib.rs", "main.rs"].map(|name| root().join(folder).join(name)));
    roots.find(|file| file.is_file())
}

/// The tests of a file, and where their attributes come from.
#[derive(Default)]
struct Tests {
    /// What the file imports from `test_support`.
    imported: BTreeSet<String>,
    /// The first words of the attributes of its tests: `test`, or the `tokio` of `tokio::test`.
    attributes: BTreeSet<String>,
}

impl<'a> Visit<'a> for Tests {
    fn visit_item_extern_crate(&mut self, item: &'a syn::ItemExternCrate) {
        let is_macro_use = item
            .attrs
            .iter()
            .any(|attr| attr.path().is_ident("macro_use"));
        if is_macro_use
            && ["test_support", "test_macros"]
                .iter()
                .any(|name| item.ident == name)
        {
            self.imported.insert("test".to_owned());
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let mut paths = Paths::default();
        paths.flatten(&[], &item.tree, false);
        for path in &paths.used {
            if let [module, name] = &path[..]
                && ["test_support", "crate"].contains(&module.as_str())
            {
                self.imported.insert(name.clone());
            }
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        for attribute in &item.attrs {
            let path: Vec<String> = attribute
                .path()
                .segments
                .iter()
                .map(|part| part.ident.to_string())
                .collect();
            if path.last().is_some_and(|name| name == "test") {
                self.attributes.insert(path[0].clone());
            }
        }
    }
}

#[test]
fn every_test_has_a_time_limit() {
    let tests = |text: &str| {
        let mut tests = Tests::default();
        tests.visit_file(&syn::parse_file(text).expect("it compiles"));
        tests
    };
    let mut without = Vec::new();
    let (mut files_with_tests, all) = (0, ["src", "tests", "crates", "examples", "xtask"]);
    for (path, text) in all.into_iter().flat_map(files) {
        let of_file = tests(&text);
        files_with_tests += usize::from(!of_file.attributes.is_empty());
        for attribute in of_file.attributes.difference(&of_file.imported) {
            let root = crate_root(&path).and_then(|root| std::fs::read_to_string(root).ok());
            let of_crate = root.is_some_and(|root| tests(&root).imported.contains("test"));
            // For a macro's tests, `test_support` and the library would be compiled a second time, for the host.
            let is_of_macro = path.starts_with("crates/redisson-lock-macros/");
            if (attribute != "test" || !of_crate) && !is_of_macro {
                without.push(format!("{path}: #[{attribute}…]"));
            }
        }
    }
    assert!(files_with_tests > 100, "{files_with_tests}");
    assert!(
        without.is_empty(),
        "import them from `test_support`: {without:#?}"
    );
}
