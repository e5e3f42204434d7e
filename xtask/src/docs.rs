//! `cargo xtask docs`: the documentation, and whether each of its links leads somewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::{Problem, cargo, ended, published, tools};

/// The published documentation of this workspace, as it is built here.
const PUBLISHED: &str = "https://docs.rs/redisson-lock";

/// Folders whose Markdown files have their links checked.
const FOLDERS: [&str; 5] = [
    ".",
    "docs",
    "crates/redisson-lock-cli",
    "crates/redisson-lock-macros",
    "crates/redisson-lock-test",
];

pub fn run() -> Result<(), Problem> {
    make()?;
    check()
}

/// As docs.rs builds it: the features and flags are those that it finds in the manifests. Without warnings, of which one
/// is a link between pages of the source that leads nowhere.
fn make() -> Result<(), Problem> {
    let mut docs = cargo(&["doc", "--no-deps", "--quiet"]);
    let (mut features, mut flags) = (Vec::new(), vec!["-D warnings".to_owned()]);
    for package in published::published()? {
        // Cargo is told not to document the program.
        if package.name == "redisson-lock-cli" {
            continue;
        }
        docs.args(["--package", &package.name]);
        let wanted = package.docs_rs_features.iter();
        features.extend(wanted.map(|feature| format!("{}/{feature}", package.name)));
        flags.extend(package.docs_rs_flags);
    }
    docs.args(["--features", &features.join(",")])
        .env("RUSTDOCFLAGS", flags.join(" "));
    ended(&mut docs, "the documentation has warnings")
}

/// Looks up each link of the Markdown files in the checkout, and each link of the guide in what `cargo doc` has made.
fn check() -> Result<(), Problem> {
    let made = tools::target().join("doc");
    let mut broken = Vec::new();
    let mut files = Vec::new();
    for folder in FOLDERS {
        files_in(&tools::root().join(folder), "md", &mut files)?;
    }
    for file in &files {
        for link in markdown_links(&fs::read_to_string(file)?) {
            if !markdown_link_leads_somewhere(&link, file, &made) {
                broken.push(format!("{}: {link}", file.display()));
            }
        }
    }
    let crate_root = made.join("redisson_lock");
    let mut pages = vec![crate_root.join("index.html")];
    pages_below(&crate_root.join("guide"), &mut pages)?;
    for page in &pages {
        let html = fs::read_to_string(page)?;
        for link in html_links(&html) {
            if !page_link_leads_somewhere(&link, page) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    println!("{} files and {} pages", files.len(), pages.len());
    if broken.is_empty() {
        Ok(())
    } else {
        Err(Problem::failed(format!(
            "links that lead nowhere:\n  {}",
            broken.join("\n  ")
        )))
    }
}

/// Whether a link of a Markdown file leads to a file of the checkout, a heading, or a published page. Other sites are
/// not asked.
fn markdown_link_leads_somewhere(link: &str, file: &Path, made: &Path) -> bool {
    // `/latest/redisson_lock/struct.Lock.html`, `-test`, or nothing.
    if let Some(rest) = link.strip_prefix(PUBLISHED) {
        let page = match rest.split_once("/latest/") {
            Some((_, page)) => page.to_owned(),
            None => format!(
                "redisson_lock{}/index.html",
                rest.trim_end_matches('/').replace('-', "_")
            ),
        };
        return page_link_leads_somewhere(&page, &made.join("index.html"));
    }
    if link.contains("://") {
        return true;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => file.to_owned(),
        path => file.parent().unwrap_or(file).join(path),
    };
    let has_anchor =
        || fs::read_to_string(&target).is_ok_and(|text| headings(&text).contains(anchor));
    target.exists() && (anchor.is_empty() || has_anchor())
}

/// Links to other sites, and to std's documentation, are rustdoc's own.
fn page_link_leads_somewhere(link: &str, page: &Path) -> bool {
    if link.contains("://") {
        return true;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let mut target: PathBuf = match file {
        "" => page.to_owned(),
        file => page.parent().unwrap_or(page).join(file),
    };
    if target.is_dir() {
        target = target.join("index.html");
    }
    if anchor.is_empty() || file.ends_with(".rs.html") {
        // The lines of a source are no anchors.
        return target.is_file();
    }
    let html = fs::read_to_string(&target);
    html.is_ok_and(|html| html.contains(&format!("id=\"{anchor}\"")))
}

/// `[text](target)` and `[label]: target`, outside of code.
fn markdown_links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        if let Some((label, target)) = line.split_once("]: ")
            && label.starts_with('[')
        {
            links.push(target.to_owned());
            continue;
        }
        let inline = line.split("](").skip(1);
        links.extend(inline.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
    }
    links
}

/// The anchors of a page's headings.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = text.lines().filter(|line| line.starts_with('#'));
    titles
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

fn html_links(html: &str) -> Vec<String> {
    let links = html.split(" href=\"").skip(1);
    links
        .filter_map(|rest| Some(rest.split_once('"')?.0.replace("&amp;", "&")))
        .collect()
}

fn pages_below(folder: &Path, pages: &mut Vec<PathBuf>) -> Result<(), Problem> {
    files_in(folder, "html", pages)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            pages_below(&path, pages)?;
        }
    }
    Ok(())
}

/// The files directly inside a folder.
fn files_in(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) -> Result<(), Problem> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        files.extend(
            path.extension()
                .is_some_and(|found| found == extension)
                .then_some(path),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text =
            "see [a](#b) and [c][d], [e](f.md)\n```\n[not](this)\n```\n\n[d]: https://docs.rs/d\n";
        assert_eq!(markdown_links(text), ["#b", "f.md", "https://docs.rs/d"]);
        assert_eq!(
            html_links("<a href=\"x#y\">z</a> <a class=\"q\" href=\"w\">"),
            ["x#y", "w"]
        );
    }

    #[test]
    fn a_link_to_a_page_or_an_anchor_that_is_not_there_is_found() {
        let root = std::env::temp_dir().join(format!("links-{}", std::process::id()));
        let (made, docs) = (root.join("made"), root.join("docs"));
        for folder in [
            &made.join("redisson_lock"),
            &made.join("redisson_lock_a"),
            &docs,
        ] {
            fs::create_dir_all(folder).expect("a temporary folder");
        }
        for page in ["redisson_lock/index.html", "redisson_lock_a/index.html"] {
            fs::write(made.join(page), "<h1 id=\"there\">").expect("written");
        }
        let readme = root.join("README.md");
        fs::write(&readme, "# One two\n## `Three`, four\n").expect("written");
        fs::write(docs.join("page.md"), "# There\n").expect("written");
        let leads = |link: &str| markdown_link_leads_somewhere(link, &readme, &made);
        for link in [
            "#one-two",
            "#three-four",
            "docs",
            "docs/page.md",
            "docs/page.md#there",
            "https://example.com",
            "https://docs.rs/redisson-lock",
            "https://docs.rs/redisson-lock-a",
            "https://docs.rs/redisson-lock-a/latest/redisson_lock_a/index.html#there",
            "https://docs.rs/redisson-lock/latest/redisson_lock/",
        ] {
            assert!(leads(link), "{link}");
        }
        for link in [
            "#three",
            "page.md",
            "docs/page.md#gone",
            "docs/gone.md",
            "https://docs.rs/redisson-lock-b",
            "https://docs.rs/redisson-lock/latest/redisson_lock/index.html#gone",
        ] {
            assert!(!leads(link), "{link}");
        }
        let from_docs =
            |link: &str| markdown_link_leads_somewhere(link, &docs.join("page.md"), &made);
        assert!(from_docs("../README.md#one-two") && !from_docs("README.md"));
        fs::remove_dir_all(&root).expect("removed");
    }
}
