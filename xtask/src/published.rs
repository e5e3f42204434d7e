//! The crates of this workspace that are published, as their manifests have them.

use serde_json::Value;

use crate::{Problem, cargo};

/// What is published, each after those that it depends on.
pub const PUBLISHED: [&str; 5] = [
    "redisson-lock-core",
    "redisson-lock-macros",
    "redisson-lock",
    "redisson-lock-test",
    "redisson-lock-cli",
];

/// What a manifest says to crates.io and docs.rs.
pub struct Published {
    pub name: String,
    pub version: String,
    pub has_addresses: bool,
    pub docs_rs_features: Vec<String>,
    pub docs_rs_flags: Vec<String>,
}

impl Published {
    fn read(package: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
        let docs_rs = &package["metadata"]["docs"]["rs"];
        let has = |key: &str| package[key].is_string();
        Self {
            name: text(&package["name"]),
            version: text(&package["version"]),
            has_addresses: has("repository") && has("homepage"),
            docs_rs_features: texts(&docs_rs["features"]),
            docs_rs_flags: texts(&docs_rs["rustdoc-args"]),
        }
    }
}

/// The members that may be published, in the order in which they are.
pub fn published() -> Result<Vec<Published>, Problem> {
    let output = cargo(&["metadata", "--no-deps", "--format-version", "1"]).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| Problem::failed(format!("cargo metadata: {error}")))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let may_be = packages.filter(|package| package["publish"].is_null());
    let mut found: Vec<Published> = may_be.map(Published::read).collect();
    found.sort_by_key(|package| PUBLISHED.iter().position(|name| *name == package.name));
    if found.iter().map(|package| &*package.name).eq(PUBLISHED) {
        Ok(found)
    } else {
        let found: Vec<String> = found.into_iter().map(|package| package.name).collect();
        Err(Problem::failed(format!(
            "{} may be published: list them in xtask/src/published.rs, or set `publish = false`",
            found.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_say_what_is_published_and_how_it_is_documented() {
        let published = published().expect("read");
        let library = &published[2];
        assert_eq!(library.name, "redisson-lock");
        assert!(library.docs_rs_features.contains(&"blocking".to_owned()));
        assert_eq!(library.docs_rs_flags, ["--cfg", "docsrs"]);
    }
}
