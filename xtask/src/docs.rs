//! `cargo xtask docs`: the documentation, and whether each of its links leads somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Problem, cargo, tools};

/// Where the documentation of a published version stands. A README leads there, from wherever it is read.
const PUBLISHED: &str = "https://docs.rs/";

/// What the README may link to besides.
const ELSEWHERE: [&str; 2] = [
    "https://github.com/redisson/redisson",
    "https://docs.rs/metrics",
];

const USAGE: &str = "usage: cargo xtask docs";

pub fn run(arguments: &[&str]) -> Result<(), Problem> {
    if !arguments.is_empty() {
        return Err(Problem::to_do(USAGE));
    }
    make()?;
    check()
}

/// Without warnings, of which one is a link between pages of the source that leads nowhere.
fn make() -> Result<(), Problem> {
    let mut docs = cargo(&["doc", "--no-deps", "--quiet"]);
    for package in [
        "redisson-lock",
        "redisson-lock-macros",
        "redisson-lock-test",
    ] {
        docs.args(["--package", package]);
    }
    let features = "redisson-lock/blocking,redisson-lock/macros,redisson-lock/metrics,redisson-lock/serde,redisson-lock/tls-rustls";
    let status = docs
        .args(["--features", features])
        .env("RUSTDOCFLAGS", "-D warnings")
        .status()
        .map_err(|error| Problem::failed(format!("cargo does not run: {error}")))?;
    if status.success() {
        Ok(())
    } else {
        Err(Problem::failed("the documentation has warnings"))
    }
}

/// Looks each link of the README up in what `cargo doc` has made, and each link inside the guide.
fn check() -> Result<(), Problem> {
    let made = tools::root().join("target/doc");
    let mut broken = Vec::new();
    let readme = read(&tools::root().join("README.md"))?;
    for link in markdown_links(&readme) {
        if !readme_link_leads_somewhere(&link, &readme, &made) {
            broken.push(format!("README.md: {link}"));
        }
    }
    let crate_root = made.join("redisson_lock");
    let mut pages = vec![crate_root.join("index.html")];
    pages_below(&crate_root.join("guide"), &mut pages)?;
    for page in &pages {
        let html = read(page)?;
        for link in html_links(&html) {
            if !page_link_leads_somewhere(&link, page) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    println!("{} pages and the README", pages.len());
    if broken.is_empty() {
        Ok(())
    } else {
        Err(Problem::failed(format!(
            "links that lead nowhere:\n  {}",
            broken.join("\n  ")
        )))
    }
}

fn readme_link_leads_somewhere(link: &str, readme: &str, made: &Path) -> bool {
    if let Some(anchor) = link.strip_prefix('#') {
        return headings(readme).contains(anchor);
    }
    let is_picture = link.ends_with(".svg") && tools::root().join(link).is_file();
    if is_picture || ELSEWHERE.contains(&link) {
        return true;
    }
    // `redisson-lock/latest/redisson_lock/guide/…`, or `redisson-lock-test` alone.
    let Some(rest) = link.strip_prefix(PUBLISHED) else {
        return false;
    };
    let page = match rest.split_once("/latest/") {
        Some((_, page)) => page.to_owned(),
        None => format!(
            "{}/index.html",
            rest.trim_end_matches('/').replace('-', "_")
        ),
    };
    page_link_leads_somewhere(&page, &made.join("index.html"))
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
    let failed = |error: std::io::Error| Problem::failed(format!("{}: {error}", folder.display()));
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            pages_below(&path, pages)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            pages.push(path);
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<String, Problem> {
    fs::read_to_string(file)
        .map_err(|error| Problem::failed(format!("{}: {error}", file.display())))
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
        let made = std::env::temp_dir().join(format!("links-{}", std::process::id()));
        let page = made.join("a_b/index.html");
        fs::create_dir_all(made.join("a_b")).expect("a temporary folder");
        fs::write(&page, "<h1 id=\"there\">").expect("written");
        let readme = "# One two\n## `Three`, four\n";
        let leads = |link: &str| readme_link_leads_somewhere(link, readme, &made);
        for link in [
            "#one-two",
            "#three-four",
            "https://docs.rs/a-b",
            "https://docs.rs/a-b/latest/a_b/index.html#there",
            "https://docs.rs/a-b/latest/a_b/",
        ] {
            assert!(leads(link), "{link}");
        }
        for link in [
            "#three",
            "docs/page.md",
            "https://example.com",
            "https://docs.rs/c",
            "https://docs.rs/a-b/latest/a_b/index.html#gone",
        ] {
            assert!(!leads(link), "{link}");
        }
        fs::remove_dir_all(&made).expect("removed");
    }
}
