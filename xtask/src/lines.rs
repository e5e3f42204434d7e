//! `cargo xtask lines`: how many lines of Rust each folder has, and how many of them are code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, LexError, LineColumn, Span, TokenStream, TokenTree};

use crate::{Problem, tools};

pub fn run() -> Result<(), Problem> {
    let mut scans = BTreeMap::new();
    for file in tools::files()? {
        if file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let failed = |why: String| Problem::failed(format!("{}: {why}", file.display()));
        let text = std::fs::read_to_string(tools::root().join(&file))
            .map_err(|error| failed(error.to_string()))?;
        let scan = Scan::of(&text).map_err(|error| failed(error.to_string()))?;
        scans.insert(file, scan);
    }
    let folders = by_folder(&scans);
    println!(
        "{:<10} {:>6} {:>7} {:>7} {:>11}",
        "", "files", "lines", "code", "unit tests"
    );
    for (folder, sum) in &folders {
        println!("{}", sum.line(folder));
    }
    let all = folders.values().fold(Sum::default(), |all, sum| all + *sum);
    println!("{}", all.line("all"));
    let src = folders.get("src").copied().unwrap_or_default();
    println!(
        "\nsrc without unit tests: {} lines of code; the repository: {} lines of Rust",
        src.code, all.lines
    );
    Ok(())
}

/// Code is what remains without comments and blank lines, and, in the column `code`, without unit tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    files: usize,
    lines: usize,
    code: usize,
    unit_tests: usize,
}

impl std::ops::Add for Sum {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            files: self.files + other.files,
            lines: self.lines + other.lines,
            code: self.code + other.code,
            unit_tests: self.unit_tests + other.unit_tests,
        }
    }
}

impl Sum {
    fn line(&self, name: &str) -> String {
        format!(
            "{name:<10} {:>6} {:>7} {:>7} {:>11}",
            self.files, self.lines, self.code, self.unit_tests
        )
    }
}

/// The sums of the folders at the top.
fn by_folder(scans: &BTreeMap<PathBuf, Scan>) -> BTreeMap<String, Sum> {
    let modules: Vec<PathBuf> = scans
        .iter()
        .flat_map(|(file, scan)| scan.test_modules.iter().map(|name| beside(file).join(name)))
        .collect();
    let is_test = |file: &Path| {
        let module = file.with_extension("");
        modules.iter().any(|test| module.starts_with(test))
    };
    let mut folders: BTreeMap<String, Sum> = BTreeMap::new();
    for (file, scan) in scans {
        let (code, tests) = (scan.code.len(), scan.tests.len());
        let in_tests = is_test(file);
        let folder = file.iter().next().unwrap_or_default().to_string_lossy();
        let sum = folders.entry(folder.into_owned()).or_default();
        *sum = *sum
            + Sum {
                files: 1,
                lines: scan.lines,
                code: if in_tests { 0 } else { code },
                unit_tests: if in_tests { code + tests } else { tests },
            };
    }
    folders
}

/// The folder in which the modules of a file lie.
fn beside(file: &Path) -> PathBuf {
    let root = ["lib.rs", "main.rs", "mod.rs"]
        .iter()
        .any(|root| file.ends_with(root));
    if root {
        file.parent().map(Path::to_path_buf).unwrap_or_default()
    } else {
        file.with_extension("")
    }
}

/// What a file has. The lexer knows what is a comment, and what only looks like one in a string.
#[derive(Debug, Default, PartialEq, Eq)]
struct Scan {
    lines: usize,
    /// Lines with code.
    code: BTreeSet<usize>,
    /// Lines with code in items that have `#[cfg(test)]`, and in nothing else.
    tests: BTreeSet<usize>,
    /// The modules that have `#[cfg(test)]` and a file of their own.
    test_modules: Vec<String>,
}

impl Scan {
    fn of(text: &str) -> Result<Self, LexError> {
        let source: Vec<&str> = text.lines().collect();
        let mut scan = Self {
            lines: source.len(),
            ..Self::default()
        };
        scan.stream(text.parse()?, &source, false);
        scan.tests = &scan.tests - &scan.code;
        Ok(scan)
    }

    fn stream(&mut self, stream: TokenStream, source: &[&str], in_test: bool) {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        let mut rest = &trees[..];
        while let [first, after @ ..] = rest {
            let (attributes, item) = rest.split_at(attributes(rest));
            let (together, in_test) = if !in_test && attributes.iter().any(is_cfg_test) {
                let end = item_end(item);
                if let Some(module) = module_elsewhere(&item[..end]) {
                    self.test_modules.push(module);
                }
                let (test, others) = rest.split_at(attributes.len() + end);
                rest = others;
                (test, true)
            } else {
                rest = after;
                (std::slice::from_ref(first), in_test)
            };
            for tree in together {
                self.tree(tree, source, in_test);
            }
        }
    }

    fn tree(&mut self, tree: &TokenTree, source: &[&str], in_test: bool) {
        if is_comment(tree.span().start(), source) {
            return;
        }
        match tree {
            TokenTree::Group(group) => {
                self.mark(group.span_open(), in_test);
                self.stream(group.stream(), source, in_test);
                self.mark(group.span_close(), in_test);
            }
            token => self.mark(token.span(), in_test),
        }
    }

    fn mark(&mut self, span: Span, in_test: bool) {
        let lines = if in_test {
            &mut self.tests
        } else {
            &mut self.code
        };
        lines.extend(span.start().line..=span.end().line);
    }
}

/// The lexer makes an attribute of a comment that documents something.
fn is_comment(start: LineColumn, source: &[&str]) -> bool {
    let line = source.get(start.line - 1).copied().unwrap_or_default();
    let from: String = line.chars().skip(start.column).take(2).collect();
    from == "//" || from == "/*"
}

/// How many of the first tokens are attributes.
fn attributes(trees: &[TokenTree]) -> usize {
    let pairs = trees.chunks_exact(2);
    2 * pairs
        .take_while(|pair| {
            matches!(&pair[0], TokenTree::Punct(punct) if punct.as_char() == '#')
                && matches!(&pair[1], TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket)
        })
        .count()
}

/// `[cfg(test)]`, or `[cfg(all(test, …))]`.
fn is_cfg_test(tree: &TokenTree) -> bool {
    let TokenTree::Group(attribute) = tree else {
        return false;
    };
    called(&attribute.stream(), "cfg").is_some_and(|condition| {
        let both = called(&condition.stream(), "all");
        let conditions = both.as_ref().unwrap_or(&condition).stream();
        conditions.into_iter().any(|tree| is_word(&tree, "test"))
    })
}

/// The parentheses of `name(…)`.
fn called(stream: &TokenStream, name: &str) -> Option<Group> {
    let mut trees = stream.clone().into_iter();
    match (trees.next(), trees.next()) {
        (Some(word), Some(TokenTree::Group(group))) if is_word(&word, name) => Some(group),
        _ => None,
    }
}

fn is_word(tree: &TokenTree, word: &str) -> bool {
    matches!(tree, TokenTree::Ident(ident) if ident == word)
}

/// How many tokens an item, a statement, a field or an arm has.
fn item_end(trees: &[TokenTree]) -> usize {
    let is = |tree: &TokenTree, wanted| matches!(tree, TokenTree::Punct(punct) if punct.as_char() == wanted);
    // Between its angle brackets an item has commas.
    let is_item = trees
        .first()
        .is_some_and(|tree| ITEMS.iter().any(|word| is_word(tree, word)));
    for (at, tree) in trees.iter().enumerate() {
        if is(tree, ';') || is(tree, ',') && !is_item {
            return at + 1;
        }
        if matches!(tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace) {
            let ends = trees.get(at + 1).is_some_and(|next| is(next, ';'));
            return at + 1 + usize::from(ends);
        }
    }
    trees.len()
}

const ITEMS: [&str; 14] = [
    "async", "const", "enum", "extern", "fn", "impl", "mod", "pub", "static", "struct", "trait",
    "type", "unsafe", "use",
];

/// The name in `mod name;`.
fn module_elsewhere(item: &[TokenTree]) -> Option<String> {
    match item {
        [.., keyword, name, TokenTree::Punct(_)] if is_word(keyword, "mod") => {
            Some(name.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r##"//! What it is for.

/// Documented.
/* A comment. */ pub fn code<A, B>() -> &'static str { // with a remark
    /* a comment
       /* inside another */

    */
    "// no comment \" #[cfg(test)]"
}

const TEXT: &str = r#"
// three lines of a string
"#;

#[cfg(test)]
use std::{fs, io};
struct Both {
    #[cfg(test)]
    only_in_tests: [u8; 3],
    always: char,
}

#[cfg(all(test, unix))]
#[path = "elsewhere.rs"]
mod rules;
#[cfg(not(test))]
mod real;

#[cfg(test)]
mod tests {
    // A comment.
    #[test]
    fn works() {}
}
"##;

    #[test]
    fn comments_blank_lines_and_unit_tests_are_no_code() {
        let scan = Scan::of(TEXT).expect("Rust");
        let lines = |lines: &BTreeSet<usize>| lines.iter().copied().collect::<Vec<_>>();
        assert_eq!(scan.lines, 35);
        assert_eq!(
            lines(&scan.code),
            [4, 9, 10, 12, 13, 14, 18, 21, 22, 27, 28]
        );
        assert_eq!(
            lines(&scan.tests),
            [16, 17, 19, 20, 24, 25, 26, 30, 31, 33, 34, 35]
        );
        assert_eq!(scan.test_modules, ["rules"]);
        assert!(Scan::of("fn {").is_err());
    }

    #[test]
    fn a_module_of_tests_is_counted_as_tests_with_all_below_it() {
        let files = [
            ("src/lib.rs", "#[cfg(test)]\nmod rules;\nmod wait;\n"),
            ("src/rules.rs", "fn a() {}\n"),
            (
                "src/redis/channels/wait.rs",
                "fn b() {}\n#[cfg(test)]\nmod tests;\n",
            ),
            (
                "src/redis/channels/wait/tests.rs",
                "mod more;\n// A comment.\n",
            ),
            (
                "src/redis/channels/wait/tests/more.rs",
                "fn c() {}\nfn d() {}\n",
            ),
            ("tests/rules.rs", "fn e() {}\n\n"),
        ];
        let scans = files
            .map(|(file, text)| (PathBuf::from(file), Scan::of(text).expect("Rust")))
            .into();
        let folders = by_folder(&scans);
        assert_eq!(
            folders["src"],
            Sum {
                files: 5,
                lines: 11,
                code: 2,
                unit_tests: 8
            }
        );
        assert_eq!(
            folders["tests"],
            Sum {
                files: 1,
                lines: 2,
                code: 1,
                unit_tests: 0
            }
        );
    }
}
