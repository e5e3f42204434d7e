//! The public surface: it is written down in `public-api.txt`, its types are what a user needs them
//! to be, and the package says truly what it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use redisson_lock::*;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{Attribute, Field, Fields, ImplItem, Item, Signature, TraitItem, UseTree, Visibility};
use test_support::script_text::names_its_keys;
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

/// The same.
#[cfg(feature = "fred")]
#[allow(dead_code)]
fn futures_of_a_fred_client_are_send(fred: &fred::prelude::Client) {
    is_send(&LockClient::from_fred(fred));
    is_send(&LockClient::builder().from_fred(fred));
}

/// Never called; it compiles only if every future is `Send`.
#[allow(dead_code)]
fn futures_are_send(client: &LockClient, lock: &Lock, guard: LockGuard, owner: &Owner) {
    use std::time::{Duration, Instant};
    is_send(&LockClient::connect(""));
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

/// A part of a parsed file as it is written there, in one line; nothing for an empty part.
fn written(part: &impl Spanned) -> String {
    let text = part.span().source_text().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn signature(of: &Signature) -> String {
    written(of).trim_end_matches(',').to_owned()
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_doc_hidden(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| written(attribute) == "#[doc(hidden)]")
}

/// The public items of a source file, each after the name of the type it belongs to.
fn public_items(file: &syn::File) -> Vec<(String, String)> {
    let mut items = Vec::new();
    for item in &file.items {
        let mut add = |name: String, text| items.push((name, text));
        match item {
            Item::Struct(of) if is_public(&of.vis) => {
                let (name, generics) = (of.ident.to_string(), written(&of.generics));
                for field in of.fields.iter().filter(|field| is_public(&field.vis)) {
                    let (field, of) = (written(&field.ident), written(&field.ty));
                    add(name.clone(), format!("{name}: pub {field}: {of}"));
                }
                add(name.clone(), format!("pub struct {name}{generics}"));
            }
            Item::Enum(of) if is_public(&of.vis) => {
                let (name, generics) = (of.ident.to_string(), written(&of.generics));
                let shown = |variant: &&syn::Variant| !is_doc_hidden(&variant.attrs);
                for variant in of.variants.iter().filter(shown) {
                    let title = format!("{name}::{}", variant.ident);
                    match &variant.fields {
                        Fields::Unnamed(fields) => {
                            add(name.clone(), format!("{title}{}", written(fields)));
                        }
                        fields => {
                            for Field { ident, ty, .. } in fields {
                                let (field, of) = (written(ident), written(ty));
                                add(name.clone(), format!("{title}: {field}: {of}"));
                            }
                            add(name.clone(), title);
                        }
                    }
                }
                add(name.clone(), format!("pub enum {name}{generics}"));
            }
            Item::Type(of) if is_public(&of.vis) => {
                let text = written(of);
                let at = text.find("pub type").expect("public");
                add(
                    of.ident.to_string(),
                    text[at..].trim_end_matches(';').to_owned(),
                );
            }
            Item::Fn(of) if is_public(&of.vis) => {
                add(
                    of.sig.ident.to_string(),
                    format!("pub {}", signature(&of.sig)),
                );
            }
            Item::Impl(of) if of.trait_.is_none() => {
                let owner = written(&of.self_ty);
                let name = owner.split('<').next().unwrap_or_default();
                for method in &of.items {
                    let text = match method {
                        ImplItem::Fn(of) if is_public(&of.vis) => signature(&of.sig),
                        ImplItem::Const(of) if is_public(&of.vis) => {
                            format!("const {}: {}", of.ident, written(&of.ty))
                        }
                        _ => continue,
                    };
                    add(name.to_owned(), format!("{owner}: pub {text}"));
                }
            }
            Item::Trait(of) if is_public(&of.vis) => {
                let name = of.ident.to_string();
                for item in &of.items {
                    if let TraitItem::Fn(of) = item {
                        add(name.clone(), format!("{name}: {}", signature(&of.sig)));
                    }
                }
                add(name.clone(), format!("pub trait {name}"));
            }
            Item::Const(of) if is_public(&of.vis) => {
                let text = format!("pub const {}: {}", of.ident, written(&of.ty));
                add(of.ident.to_string(), text);
            }
            _ => {}
        }
    }
    items
}

/// The names that a module hands on with `pub use`.
fn exported(module: &str) -> BTreeSet<String> {
    fn add(tree: &UseTree, names: &mut BTreeSet<String>) {
        match tree {
            UseTree::Path(path) => add(&path.tree, names),
            UseTree::Group(group) => group.items.iter().for_each(|tree| add(tree, names)),
            UseTree::Name(name) => drop(names.insert(name.ident.to_string())),
            UseTree::Rename(name) => drop(names.insert(name.rename.to_string())),
            UseTree::Glob(_) => panic!("the names of a glob cannot be read"),
        }
    }
    let mut names = BTreeSet::new();
    for item in parsed(module).items {
        if let Item::Use(of) = item
            && is_public(&of.vis)
        {
            add(&of.tree, &mut names);
        }
    }
    names
}

fn parsed(path: impl AsRef<Path>) -> syn::File {
    let text = read(path);
    let verbs = verbs(&text);
    syn::parse_file(&(text + &verbs)).expect("Rust")
}

/// What `verbs! { impl[K] Lock<K>: LockGuard<K>, HoldHandle<K>; "path"; … }` in this file expands to.
fn verbs(text: &str) -> String {
    let Some((_, call)) = text.split_once("\nverbs! {\n") else {
        return String::new();
    };
    let (call, _) = call.split_once("\n}\n").expect("its end");
    let (types, mut rest) = call.split_once(";\n").expect("types");
    let (types, path) = types.split_once("; ").expect("a path");
    let (k, types) = types
        .trim()
        .strip_prefix("impl[")
        .and_then(|of| of.split_once("] "))
        .expect("impl");
    let (lock, guards) = types.split_once(": ").expect("a guard");
    let (guard, hold) = guards.split_once(", ").expect("a hold");
    let definition = read("src/lock/verbs.rs");
    let (_, body) = definition.split_once("    ) => {\n").expect("a body");
    let (body, _) = body.split_once("\n    };\n}").expect("its end");
    let mut body = body.to_owned();
    for verb in ["lock", "try_lock", "try_lock_for"] {
        let about;
        (about, rest) = rest.split_once(&format!("\n    {verb};")).expect(verb);
        body = body.replace(&format!("$(#[$about_{verb}])*"), about.trim());
    }
    let named = [
        ("$($k)?", k),
        ("$lock", lock),
        ("$guard", guard),
        ("$hold", hold),
        ("$path", path),
        ("$crate", "crate"),
    ];
    named
        .iter()
        .fold(body, |body, (variable, text)| body.replace(variable, text))
}

#[test]
fn the_public_surface_is_the_one_that_is_written_down() {
    let (exported, blocking) = (exported("src/lib.rs"), exported("src/blocking.rs"));
    let mut lines = BTreeSet::new();
    let core = sources("crates/core/src", "rs");
    for source in sources("src", "rs").into_iter().chain(core) {
        if is_hidden(&source) {
            continue;
        }
        let in_blocking = source.starts_with(root().join("src/blocking"));
        for (name, text) in public_items(&parsed(&source)) {
            // The blocking types have the names of the async ones.
            if in_blocking && blocking.contains(&name) {
                lines.insert(format!("blocking {text}"));
            } else if exported.contains(&name) {
                lines.insert(text);
            }
        }
    }
    let now: String = lines.iter().map(|line| format!("{line}\n")).collect();
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
        "src/api/test_util.rs",
        "src/state/effects_hook.rs",
        "src/api/macro_support.rs",
        "src/redis/transport.rs",
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

/// The public functions of a file, with what is written before each.
#[derive(Default)]
struct PublicFunctions(Vec<(Vec<Attribute>, Signature)>);

impl PublicFunctions {
    fn add(&mut self, visibility: &Visibility, attributes: &[Attribute], signature: &Signature) {
        if is_public(visibility) {
            self.0.push((attributes.to_vec(), signature.clone()));
        }
    }
}

impl<'a> Visit<'a> for PublicFunctions {
    fn visit_item_fn(&mut self, of: &'a syn::ItemFn) {
        self.add(&of.vis, &of.attrs, &of.sig);
    }

    fn visit_impl_item_fn(&mut self, of: &'a syn::ImplItemFn) {
        self.add(&of.vis, &of.attrs, &of.sig);
    }
}

#[test]
fn every_public_function_is_documented_with_what_its_kind_needs() {
    for source in sources("src", "rs").iter().filter(|path| !is_hidden(path)) {
        let mut public = PublicFunctions::default();
        public.visit_file(&parsed(source));
        for (attributes, signature) in public.0 {
            let place = format!("{}: {}", source.display(), signature.ident);
            let docs: String = attributes
                .iter()
                .map(written)
                .collect::<Vec<_>>()
                .join("\n");
            let has = |heading: &str| docs.lines().any(|line| line == format!("/// # {heading}"));
            // One line that leads to the async method, which has the rest.
            let forwards =
                source.starts_with(root().join("src/blocking")) && docs.contains("](crate::");
            assert!(forwards || has("Examples"), "{place} has no example");
            let is_async = signature.asyncness.is_some();
            assert!(
                !is_async || has("Cancel safety"),
                "{place} has no `# Cancel safety`"
            );
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
            "src/redis/settings/fred.rs",
            "src/redis/settings/tests/fred.rs",
            "src/api/builder.rs",
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
            "src/api/builder/serde.rs",
            "src/api/redisson_config",
            "src/api/macro_support",
            "src/redis/settings/fred.rs",
            "src/redis/settings/tls.rs",
            "src/api/test_util",
            "src/state/effects_hook.rs",
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

/// Without the pages of the guide, and what only optional features compile. It grows only on purpose.
const PACKAGE_FILES_MAX: usize = 194;

#[test]
fn scripts_are_plain_files_without_anything_built_at_run_time() {
    let scripts = sources("lua", "lua");
    assert_eq!(scripts.len(), 41);
    for script in scripts {
        let text = read(&script);
        assert!(
            !text.contains("redis.call(ARGV") && !text.contains("KEYS[#"),
            "{}",
            script.display()
        );
    }
}

/// Some hosted clusters check a script's text, and run it only if each call names its keys literally.
#[test]
fn scripts_name_their_keys_literally() {
    let mut others = BTreeMap::new();
    for script in sources("lua", "lua") {
        let path = script.strip_prefix(root().join("lua")).expect("inside");
        if let Err(call) = names_its_keys(&read(&script)) {
            others.insert(path.display().to_string(), call);
        }
    }
    // Redisson's read holds have a key each, whose name ends in a number: a script can only make it from a reader's field.
    let may = [
        "read_write/force_unlock.lua",
        "read_write/keys.lua",
        "read_write/read_acquire.lua",
        "read_write/read_release.lua",
        "read_write/read_renew.lua",
    ];
    assert!(others.keys().eq(may), "{others:#?}");
}
