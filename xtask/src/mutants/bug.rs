//! A planted bug: a file that says which promise it breaks, what has to find it, and which text
//! takes the place of which.
//!
//! ```text
//! Breaks: a deadline counts from before the send.
//! Found by: seeds, explorer, traces::v01, unit wait::tests::it_lingers, test renewal::a_name
//!
//! In: crates/core/src/admission.rs
//! --- find
//! local_deadline(sent_at, terms.lease)
//! --- replace
//! local_deadline(now, terms.lease)
//! ```
//!
//! A text to find occurs exactly once in its file. Line breaks, indentation and the commas that the
//! formatter adds with them do not count, so that formatting moves no anchor. Several blocks may
//! follow each other, also in one file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::{Problem, tools};

/// Where they lie.
pub const FOLDER: &str = "mutants";

#[derive(Debug, PartialEq, Eq)]
pub struct Bug {
    pub name: String,
    pub found_by: Vec<Finder>,
    edits: Vec<Edit>,
}

/// What has to go red.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finder {
    /// The schedules of the simulator.
    Seeds,
    /// The explorer of the core.
    Explorer,
    /// Tests of the simulator by name.
    Sim(String),
    /// Other unit tests of the library; `core::` is the package of the core.
    Unit(String),
    /// Tests of `tests/`: the file, behind `package/` if it is not the library's, and their name.
    Test(String, String),
}

#[derive(Debug, PartialEq, Eq)]
struct Edit {
    file: PathBuf,
    find: String,
    replace: String,
}

/// All of them, by name.
pub fn all() -> Result<Vec<Bug>, Problem> {
    let mut files: Vec<PathBuf> = fs::read_dir(tools::root().join(FOLDER))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    files.iter().map(|file| Bug::read(file)).collect()
}

impl Bug {
    fn read(file: &Path) -> Result<Self, Problem> {
        let text = fs::read_to_string(file).unwrap_or_default();
        let name = file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Self::parse(name, &text)
            .map_err(|why| Problem::failed(format!("{}: {why}", file.display())))
    }

    fn parse(name: String, text: &str) -> Result<Self, String> {
        let (head, blocks) = text
            .split_once("\nIn: ")
            .ok_or("there is no block `In: …`")?;
        let found_by = head
            .strip_prefix("Breaks: ")
            .and_then(|head| head.split_once("\nFound by: "))
            .ok_or("it must open with the lines `Breaks: …` and `Found by: …`")?
            .1;
        let found_by = found_by
            .trim()
            .split(", ")
            .map(Finder::parse)
            .collect::<Result<_, _>>()?;
        let edits = blocks
            .split("\nIn: ")
            .map(Edit::parse)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            name,
            found_by,
            edits,
        })
    }

    /// The files that it changes, as they are with the bug. `root` has them without.
    pub fn planted(&self, root: &Path) -> Result<BTreeMap<&Path, String>, Problem> {
        let mut files = BTreeMap::new();
        for Edit {
            file,
            find,
            replace,
        } in &self.edits
        {
            let text = match files.remove(file.as_path()) {
                Some(text) => text,
                None => fs::read_to_string(root.join(file))?,
            };
            match places(&text, find).as_slice() {
                [spot] => {
                    let mut text = text;
                    text.replace_range(spot.clone(), replace);
                    files.insert(file.as_path(), text)
                }
                places => {
                    return Err(Problem::failed(format!(
                        "{}: {}: occurs {} times, not once: {find}",
                        self.name,
                        file.display(),
                        places.len()
                    )));
                }
            };
        }
        Ok(files)
    }

    /// What it is found by, as its file says it.
    pub fn finders(&self) -> String {
        self.found_by
            .iter()
            .map(Finder::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl Finder {
    /// It measures time, or burns the processor.
    pub fn is_alone(&self) -> bool {
        match self {
            Self::Test(file, _) => file == "alone",
            Self::Sim(filter) => filter.starts_with("waiters::"),
            Self::Seeds | Self::Explorer | Self::Unit(_) => false,
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(' ') {
            None if text == "seeds" => Ok(Self::Seeds),
            None if text == "explorer" => Ok(Self::Explorer),
            None if !text.is_empty() => Ok(Self::Sim(text.to_owned())),
            Some(("unit", filter)) => Ok(Self::Unit(filter.to_owned())),
            Some(("test", test)) => match test.split_once("::") {
                Some((file, filter)) => Ok(Self::Test(file.to_owned(), filter.to_owned())),
                None => Err(format!("`test {test}` names no test in its file")),
            },
            _ => Err(format!("`{text}` is nothing that finds a bug")),
        }
    }
}

impl std::fmt::Display for Finder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Seeds => f.write_str("seeds"),
            Self::Explorer => f.write_str("explorer"),
            Self::Sim(filter) => f.write_str(filter),
            Self::Unit(filter) => write!(f, "unit {filter}"),
            Self::Test(file, filter) => write!(f, "test {file}::{filter}"),
        }
    }
}

impl Edit {
    /// `block` is what follows `In: `.
    fn parse(block: &str) -> Result<Self, String> {
        let (file, rest) = block
            .split_once("\n--- find\n")
            .ok_or("`--- find` is missing")?;
        let (find, replace) = rest
            .split_once("\n--- replace\n")
            .ok_or("`--- replace` is missing")?;
        let replace = replace.trim_end();
        if find.is_empty() || find == replace {
            return Err(format!("it changes nothing in {file}"));
        }
        Ok(Self {
            file: file.into(),
            find: find.to_owned(),
            replace: replace.to_owned(),
        })
    }
}

/// Where `find` occurs in `text`, whatever the layout of both.
fn places(text: &str, find: &str) -> Vec<Range<usize>> {
    let (text, find) = (without_layout(text), without_layout(find));
    text.windows(find.len())
        .filter(|window| window.iter().zip(&find).all(|((_, a), (_, b))| a == b))
        .filter_map(|window| {
            Some(window.first()?.0..window.last()?.0 + window.last()?.1.len_utf8())
        })
        .collect()
}

/// The characters that count, each with its place.
fn without_layout(text: &str) -> Vec<(usize, char)> {
    let mut kept: Vec<(usize, char)> = Vec::with_capacity(text.len());
    for (at, character) in text
        .char_indices()
        .filter(|(_, character)| !character.is_whitespace())
    {
        if matches!(character, ')' | ']' | '}') && kept.last().is_some_and(|(_, last)| *last == ',')
        {
            kept.pop();
        }
        kept.push((at, character));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "Breaks: a promise.\nFound by: seeds, traces::v01, unit wait::tests, test waiting::a_name, test redisson-lock-cli/cli::runs\n";

    fn parse(blocks: &str) -> Result<Bug, String> {
        Bug::parse("name".to_owned(), &format!("{HEAD}{blocks}"))
    }

    #[test]
    fn every_bug_can_be_planted_in_the_tree_as_it_is() {
        let bugs = all().expect("they can be read");
        assert!(!bugs.is_empty());
        let failed: Vec<String> = bugs
            .iter()
            .filter_map(|bug| Some(bug.planted(&tools::root()).err()?.text))
            .collect();
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    }

    /// The last word of a finder is the beginning of a test's name, or a module.
    #[test]
    fn every_bug_is_found_by_a_test_that_exists() {
        fn read(folder: &Path, text: &mut String) {
            for entry in fs::read_dir(folder).expect("there").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    read(&path, text);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let name = path.file_stem().unwrap_or_default().to_string_lossy();
                    text.push_str(&format!("\nmod {name}\n"));
                    text.push_str(&fs::read_to_string(&path).expect("text"));
                }
            }
        }
        let mut text = String::new();
        for folder in ["src", "tests", "crates"] {
            read(&tools::root().join(folder), &mut text);
        }
        let tests: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split_once("fn ").or_else(|| line.split_once("mod ")))
            .map(|(_, name)| name)
            .collect();
        for bug in all().expect("they can be read") {
            for finder in &bug.found_by {
                let (Finder::Sim(filter) | Finder::Unit(filter) | Finder::Test(_, filter)) = finder
                else {
                    continue;
                };
                let name = filter.rsplit("::").next().unwrap_or(filter);
                assert!(
                    tests.iter().any(|test| test.contains(name)),
                    "{}: there is no test {finder}",
                    bug.name
                );
            }
        }
    }

    #[test]
    fn a_file_says_what_it_breaks_what_finds_it_and_what_it_changes() {
        let bug = parse(
            "\nIn: a.rs\n--- find\none\n  two\n--- replace\nthree\n\nIn: b.lua\n--- find\nx\n--- replace\n",
        );
        let bug = bug.expect("a good file");
        assert_eq!(
            format!("Breaks: a promise.\nFound by: {}\n", bug.finders()),
            HEAD
        );
        let edits: Vec<_> = bug
            .edits
            .iter()
            .map(|edit| (edit.find.as_str(), edit.replace.as_str()))
            .collect();
        assert_eq!(edits, [("one\n  two", "three"), ("x", "")]);
    }

    #[test]
    fn a_file_that_lacks_something_is_refused() {
        for blocks in [
            "",
            "\nIn: a\n--- find\nx\n",
            "\nIn: a\n--- replace\nx\n",
            "\nIn: a\n--- find\nx\n--- replace\nx\n",
        ] {
            assert!(parse(blocks).is_err(), "{blocks}");
        }
        let block = "\nIn: a\n--- find\nx\n--- replace\ny\n";
        for head in [
            "Found by: seeds\n",
            "Breaks: x\n",
            "Breaks: x\nFound by: luck or so\n",
            "Breaks: x\nFound by: test waiting\n",
        ] {
            assert!(
                Bug::parse("name".to_owned(), &format!("{head}{block}")).is_err(),
                "{head}"
            );
        }
    }

    #[test]
    fn a_text_is_found_whatever_its_layout() {
        let text = "call(a, b);\n    call(\n        a,\n        c,\n    );\n";
        for find in ["call(a, c)", "call(\n  a,\n  c,\n)"] {
            let places = places(text, find);
            assert_eq!(
                places
                    .iter()
                    .map(|spot| &text[spot.clone()])
                    .collect::<Vec<_>>(),
                [&text[16..49]]
            );
        }
        assert_eq!(places(text, "call").len(), 2);
        assert_eq!(places(text, "call(a)"), []);
    }

    #[test]
    fn what_is_to_be_found_must_occur_once_and_the_file_is_named_if_not() {
        let planted = |find: &str| {
            let block = format!("\nIn: xtask/Cargo.toml\n--- find\n{find}\n--- replace\n");
            parse(&block)
                .expect("a good file")
                .planted(&tools::root())
                .map(|_| ())
                .map_err(|why| why.text)
        };
        assert_eq!(planted("publish = false"), Ok(()));
        for find in ["nowhere", "="] {
            let why = planted(find).expect_err("not once");
            assert!(why.starts_with("name: xtask/Cargo.toml: occurs "), "{why}");
        }
    }
}
