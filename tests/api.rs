//! The public surface: it is written down in `public-api.txt`, its types are what a user needs them
//! to be, and the package says truly what it needs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use redisson_lock::*;
use test_support::test;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn is_send<T: Send>(_: &T) {}

#[test]
fn public_types_are_send_sync_and_static() {
    fn check<T: Send + Sync + 'static>() {}
    check::<LockClient>();
    check::<LockClientBuilder>();
    check::<Lock>();
    check::<LockGuard>();
    check::<HoldHandle>();
    check::<Owner>();
    check::<Lost>();
    check::<Ended>();
    check::<Error>();
    check::<ClientStats>();
    check::<CloseReport>();
    check::<Holder>();
    #[cfg(feature = "tls-rustls")]
    check::<Tls>();
}

/// Never called; it compiles only if every future is `Send`.
#[allow(dead_code)]
fn futures_are_send(
    client: &LockClient,
    lock: &Lock,
    guard: LockGuard,
    owner: &Owner,
    fred: &fred::prelude::Client,
) {
    use std::time::{Duration, Instant};
    is_send(&LockClient::connect(""));
    is_send(&LockClient::from_fred(fred));
    is_send(&LockClient::builder().connect(""));
    is_send(&client.close(Duration::ZERO));
    #[cfg(feature = "macros")]
    is_send(&client.as_default(async {}));
    is_send(&owner.scope(async {}));
    is_send(&lock.lock());
    is_send(&lock.try_lock());
    is_send(&lock.try_lock_for(Duration::ZERO));
    is_send(&lock.try_lock_until(Instant::now()));
    is_send(&lock.run(|_| async { Ok::<_, Error>(()) }));
    is_send(&lock.unlock());
    is_send(&lock.force_unlock());
    is_send(&lock.is_locked());
    is_send(&lock.is_held());
    is_send(&lock.hold_count());
    is_send(&lock.lease_left());
    is_send(&lock.inspect());
    is_send(&guard.extend(Duration::ZERO));
    is_send(&guard.lost());
    is_send(&guard.unlock());
}

/// The public items of a source file: what `pub` opens, up to its body, with the type they belong
/// to.
fn public_items(source: &str) -> Vec<String> {
    let source = source
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let (mut items, mut owner, mut item) = (Vec::new(), String::new(), None::<String>);
    for line in source.lines() {
        let code = line.trim();
        if !line.starts_with([' ', '}', '/', '#']) && !code.is_empty() {
            let with_kind = code.strip_prefix("impl<K> ");
            let implemented = with_kind.or_else(|| code.strip_prefix("impl "));
            owner = match implemented {
                Some(of) => of.trim_end_matches(" {").to_owned(),
                None => code
                    .strip_prefix("pub struct ")
                    .or_else(|| code.strip_prefix("pub enum "))
                    .map(|of| of.trim_end_matches(" {").to_owned())
                    .unwrap_or_default(),
            };
        }
        if item.is_none() && code.starts_with("pub ") && !code.starts_with("pub use") {
            item = Some(String::new());
        }
        if let Some(text) = &mut item {
            let _ = write!(text, "{}{code}", if text.is_empty() { "" } else { " " });
            if code.ends_with(['{', ';', ','])
                && text.matches('(').count() == text.matches(')').count()
            {
                let nested = line.starts_with(' ');
                let text = text.trim_end_matches(['{', ';', ',', ' ']).to_owned();
                items.push(if nested {
                    format!("{owner}: {text}")
                } else {
                    text
                });
                item = None;
            }
        }
    }
    items
}

/// The variants of the public enums, which have no `pub` of their own.
fn variants(source: &str) -> Vec<String> {
    let mut variants = Vec::new();
    let (mut name, mut variant, mut is_hidden) = (None, String::new(), false);
    for line in source.lines() {
        if let Some(of) = line.strip_prefix("pub enum ") {
            let of = of.strip_suffix(" {");
            name = of.map(str::to_owned);
        } else if line == "}" {
            name = None;
        } else if let (Some(name), Some(code)) = (&name, line.strip_prefix("    "))
            && code.starts_with(|first: char| first.is_ascii_uppercase())
        {
            if std::mem::take(&mut is_hidden) {
                continue;
            }
            variant = format!("{name}::{}", code.trim_end_matches([',', ' ', '{']));
            variants.push(variant.clone());
        } else if line == "    #[doc(hidden)]" {
            is_hidden = name.is_some();
        } else if let (Some(_), Some(code)) = (&name, line.strip_prefix("        "))
            && code.starts_with(|first: char| first.is_ascii_lowercase())
        {
            variants.push(format!("{variant}: {}", code.trim_end_matches(',')));
        }
    }
    variants
}

/// The names that a module hands on with `pub use`.
fn exported(module: &str) -> BTreeSet<String> {
    read(module)
        .lines()
        .filter_map(|line| line.strip_prefix("pub use "))
        .flat_map(|line| {
            let names = line
                .trim_end_matches(';')
                .rsplit("::")
                .next()
                .unwrap_or_default();
            names
                .trim_matches(['{', '}'])
                .split(", ")
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn the_public_surface_is_the_one_that_is_written_down() {
    let (exported, blocking) = (exported("src/lib.rs"), exported("src/blocking.rs"));
    let mut lines = BTreeSet::new();
    for source in sources("src", "rs") {
        let is_core = source.starts_with(root().join("src/core"));
        if is_hidden(&source) && !is_core {
            continue;
        }
        let text = read(&source);
        // The blocking types have the names of the async ones.
        let (exported, module) = if source.starts_with(root().join("src/blocking")) {
            (&blocking, "blocking ")
        } else {
            (&exported, "")
        };
        for item in public_items(&text).into_iter().chain(variants(&text)) {
            let mut words = item
                .trim_start_matches("pub enum ")
                .trim_start_matches("pub struct ")
                .split(|letter: char| !letter.is_alphanumeric());
            // Of the core, the types that are exported by name, and what is theirs.
            let among = if is_core { 1 } else { usize::MAX };
            let words: BTreeSet<&str> = words.by_ref().take(among).collect();
            let named = |name: &String| words.contains(name.as_str());
            if exported.iter().any(named) {
                lines.insert(format!("{module}{item}"));
            }
        }
    }
    let now: String = lines.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    });
    if std::env::var_os("UPDATE_PUBLIC_API").is_some() {
        std::fs::write(root().join("tests/public-api.txt"), &now).expect("written");
    }
    let written = read("tests/public-api.txt");
    assert!(
        now == written,
        "the public surface changed; if that is meant, run\n  UPDATE_PUBLIC_API=1 cargo test --test api\nnow:\n{now}"
    );
    assert!(now.lines().count() > 80, "the reader of the sources reads");
}

/// What the feature `test-util` opens is outside of semantic versioning.
fn is_hidden(source: &Path) -> bool {
    let path = source.strip_prefix(root()).expect("inside");
    // Public through the feature `test-util`, which is hidden, and for the expansion of `#[locked]`.
    let hidden = [
        "src/test_util.rs",
        "src/macro_support.rs",
        "src/redis/transport.rs",
        "src/core.rs",
        "src/core",
    ];
    hidden.iter().any(|hidden| path.starts_with(hidden))
}

fn sources(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(sources(
                path.strip_prefix(root())
                    .expect("inside")
                    .to_str()
                    .expect("text"),
                extension,
            ));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn every_public_function_is_documented_with_what_its_kind_needs() {
    for source in sources("src", "rs") {
        if is_hidden(&source) {
            continue;
        }
        let text = read(&source);
        let mut docs = String::new();
        for line in text
            .split("#[cfg(test)]\nmod tests")
            .next()
            .unwrap_or_default()
            .lines()
        {
            let code = line.trim();
            if let Some(doc) = code.strip_prefix("///") {
                docs.push_str(doc);
                docs.push('\n');
            } else if code.starts_with("#[") || code.starts_with("//") {
                // Attributes and comments stand between docs and item.
            } else {
                let public = code.starts_with("pub ") && code.contains("fn ");
                if public {
                    let has = |heading: &str| docs.contains(&format!("# {heading}\n"));
                    // One line that leads to the async method, which has the rest.
                    let forwards = source.starts_with(root().join("src/blocking"))
                        && docs.contains("](crate::");
                    assert!(
                        forwards || has("Examples"),
                        "{}: no example: {code}",
                        source.display()
                    );
                    if code.contains("async fn") {
                        assert!(has("Cancel safety"), "{}: {code}", source.display());
                    }
                }
                docs.clear();
            }
        }
    }
}

#[test]
fn the_declared_rust_version_is_the_one_that_the_dependencies_need() {
    let rustc = Command::new("rustc")
        .arg("-vV")
        .output()
        .expect("rustc runs");
    let rustc = String::from_utf8(rustc.stdout).expect("text");
    let host = rustc
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .expect("a host");
    let metadata = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            host,
            "--manifest-path",
        ])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(
        metadata.status.success(),
        "{}",
        String::from_utf8_lossy(&metadata.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let package = |id: &serde_json::Value| {
        packages
            .iter()
            .find(|package| package["id"] == *id)
            .expect("known")
    };
    let nodes = metadata["resolve"]["nodes"].as_array().expect("a graph");
    // Normal dependencies only: what tests and benches need is not asked of users.
    let ours = packages
        .iter()
        .find(|package| package["name"] == "redisson-lock")
        .expect("this package");
    let (mut todo, mut seen) = (vec![ours["id"].clone()], BTreeSet::new());
    let mut highest = (0, String::new());
    while let Some(id) = todo.pop() {
        if !seen.insert(id.to_string()) {
            continue;
        }
        let package = package(&id);
        if let Some(version) = package["rust_version"]
            .as_str()
            .filter(|_| package["name"] != "redisson-lock")
        {
            let minor = version
                .split('.')
                .nth(1)
                .and_then(|minor| minor.parse().ok())
                .unwrap_or(0);
            if minor > highest.0 {
                highest = (minor, format!("{} needs {version}", package["name"]));
            }
        }
        let node = nodes
            .iter()
            .find(|node| node["id"] == id)
            .expect("in the graph");
        for dependency in node["deps"].as_array().expect("a list") {
            let kinds = dependency["dep_kinds"].as_array().expect("a list");
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                todo.push(dependency["pkg"].clone());
            }
        }
    }
    let declared = ours["rust_version"].as_str().expect("declared");
    let declared: u32 = declared
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok())
        .expect("a version");
    assert!(
        highest.0 <= declared,
        "rust-version is 1.{declared}, but {}",
        highest.1
    );
    assert!(
        declared == highest.0.max(LANGUAGE_MINOR),
        "1.{declared} asks for more than anything needs"
    );
}

/// The sources use `let` chains, which came with Rust 1.88.
const LANGUAGE_MINOR: u32 = 88;

#[test]
fn the_crate_forbids_unsafe_code_and_names_fred_behind_one_door_only() {
    assert!(read("Cargo.toml").contains("unsafe_code = \"forbid\""));
    for source in sources("src", "rs") {
        let text = read(&source);
        let path = source
            .strip_prefix(root())
            .expect("inside")
            .display()
            .to_string();
        // The client has it in the signature of `from_fred`.
        let allowed = [
            "src/redis/connection.rs",
            "src/redis/connection/channels.rs",
            "src/redis/settings.rs",
            "src/redis/settings/tests.rs",
            "src/redis/settings/tls.rs",
            "src/redis/settings/tests/tls.rs",
            "src/redis/settings/url.rs",
            "src/builder.rs",
            "src/blocking/client.rs",
        ];
        let allowed = allowed.contains(&path.as_str());
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        if !allowed {
            assert!(
                code.clone().all(|line| !line.contains("fred::")),
                "{path} knows fred"
            );
        }
        let prints = code.clone().any(|line| line.contains("println!"));
        assert!(!prints, "{path} prints");
        assert!(
            text.starts_with("//!"),
            "{path} has no head that says what the room is for"
        );
    }
}

/// What users download is the library, and not its tests.
#[test]
fn the_package_is_small_and_has_what_it_needs() {
    let listed = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline", "--quiet"])
        .args(["--package", "redisson-lock"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&listed.stderr);
    assert!(listed.status.success(), "{said}");
    let listed = String::from_utf8_lossy(&listed.stdout);
    let files: BTreeSet<&str> = listed.lines().collect();
    let optional = |file: &str| {
        let features = [
            "src/blocking",
            "src/builder/serde.rs",
            "src/macro_support",
            "src/redis/settings/tls.rs",
            "src/test_util",
        ];
        features.iter().any(|feature| file.starts_with(feature))
    };
    let pages = |file: &str| file.starts_with("docs/") || file == "src/guide.rs";
    let always: Vec<_> = files
        .iter()
        .filter(|file| !optional(file) && !pages(file))
        .collect();
    assert!(
        always.len() <= PACKAGE_FILES_MAX,
        "{}: {always:#?}",
        always.len()
    );
    for needed in [
        "Cargo.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "src/lib.rs",
        "lua/acquire.lua",
        "lua/string/acquire.lua",
    ] {
        assert!(files.contains(needed), "{needed} is missing");
    }
}

#[test]
fn the_code_of_the_readme_is_an_example() {
    let (readme, example) = (read("README.md"), read("examples/basic.rs"));
    let (_, code) = example.split_once("\n\nuse ").expect("a header");
    assert!(readme.contains(&format!("```rust,no_run\nuse {code}```")));
}

/// A program that is left through `?` keeps its locks for a lease unless a scope closes its client.
#[test]
fn the_first_program_of_the_documentation_closes_its_client() {
    let front_page = read("src/lib.rs");
    let program = front_page.split("```").nth(1).expect("a program");
    assert!(program.contains("LockClient::scope("), "{program}");
}

/// Without the pages of the guide, and what only optional features compile. Sixty for one server, two for
/// calls that are not polled and for holds that a late send left, one each for `force_unlock` and for the words of
/// scripts, two for replies that are out of step, one for what goes wrong with TLS, which fred's own
/// features bring too, one for the parameters of addresses, four for what errors
/// say about servers, and the rest for several servers: the map, who tells it, and what
/// that asks of connections and settings. Twelve for the kinds of locks, six for several
/// locks as one, five for one lock across several servers, one for what an attempt answers,
/// eight for guarded writes, one for what there is of a lock, sixteen for fair and read-write locks and their scripts,
/// seven for the connection that carries commands.
const PACKAGE_FILES_MAX: usize = 169;

#[test]
fn scripts_are_plain_files_without_anything_built_at_run_time() {
    let scripts = sources("lua", "lua");
    assert_eq!(scripts.len(), 34);
    for script in scripts {
        let text = read(&script);
        assert!(
            !text.contains("redis.call(ARGV") && !text.contains("KEYS[#"),
            "{}",
            script.display()
        );
    }
}
