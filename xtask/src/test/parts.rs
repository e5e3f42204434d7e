//! Which test files belong together.

use crate::tools::EVERYTHING;

/// Test files that run one after the other, each with its tests side by side.
pub(super) struct Part {
    pub name: &'static str,
    pub files: &'static [&'static str],
    /// How many tests run at the same time, where they wait for most of their time; otherwise as many as there are
    /// processors.
    pub at_once: Option<&'static str>,
}

impl Part {
    const fn new(name: &'static str, files: &'static [&'static str]) -> Self {
        Self {
            name,
            files,
            at_once: None,
        }
    }

    const fn at_once(mut self, tests: &'static str) -> Self {
        self.at_once = Some(tests);
        self
    }

    /// What cargo is given.
    pub fn selected(&self) -> Vec<&'static str> {
        let files = self.files.iter().flat_map(|file| ["--test", *file]);
        EVERYTHING.into_iter().chain(files).collect()
    }
}

/// In the first tier: those that take longest first, because two parts run at a time.
pub(super) const FIRST: [Part; 10] = [
    Part::new(
        "kinds of locks, several locks",
        &[
            "kinds",
            "kind_rows",
            "kind_scripts",
            "fenced_scripts",
            "fair_scripts",
            "read_write_scripts",
            "guarded_scripts",
            "kind_outcomes",
            "kind_tokens",
            "fair",
            "fair_peers",
            "read_write",
            "downgrade",
            "multi",
            "red",
            "red_faults",
            "guarded_writes",
            "checked_scripts",
        ],
    )
    .at_once("4"),
    Part::new(
        "clusters, and servers behind Sentinel",
        &[
            "cluster",
            "cluster_wakeups",
            "cluster_names",
            "mapped_addresses",
            "shards",
            "slot_map",
            "sentinel",
            "sentinel_reports",
            "replicas",
            "kind_topologies",
            "half_moved",
        ],
    )
    .at_once("3"),
    Part::new(
        "behaviour",
        &[
            "lock",
            "bodies",
            "take_over",
            "owners",
            "runtimes",
            "moved",
            "waiting",
            "channels",
            "renewal",
            "ended",
            "tracking",
            "cluster_node",
            "from_fred",
            "credentials",
            "callbacks",
            "executors",
            "events",
            "writes",
        ],
    )
    .at_once("4"),
    Part::new(
        "errors, bad inputs, rights",
        &[
            "errors",
            "error_texts",
            "refused_connections",
            "addresses",
            "rights",
        ],
    ),
    Part::new("command line", &["cli"]),
    Part::new(
        "hostile: outcomes, cancellation, hand-off",
        &[
            "outcomes",
            "hostile",
            "out_of_step",
            "cancellation",
            "unpolled",
            "handoff",
            "hangs",
            "limits",
            "once_per",
            "outages",
        ],
    ),
    // A cluster of its own for each row.
    Part::new(
        "rows of other files over three primaries",
        &["cluster_rows", "dead_readers"],
    )
    .at_once("6"),
    Part::new(
        "blocking, metrics, serde, TLS",
        &[
            "counts",
            "blocking",
            "no_panic",
            "features",
            "redisson_config",
            "tls",
        ],
    ),
    Part::new(
        "public surface, scripts",
        &["api", "source", "scripts", "leaks"],
    ),
    Part::new("attribute", &["locked"]),
];

/// What `--all` adds.
pub(super) const REST: [Part; 4] = [
    // It builds the library again.
    Part::new("attribute: mistakes are refused", &["refused"]),
    Part::new("test kit", &["kit", "readme"]),
    Part::new("service", &["service", "dashboard"]),
    // It measures the processor time of servers.
    Part::new("costs in a cluster", &["cluster_costs"]).at_once("1"),
];

/// What burns the processor or measures time.
pub(super) const ALONE: Part = Part::new("alone", &["alone"]);

/// The library as its users build it by default: what a lock costs them, and what is different without TLS. `lock` and
/// `errors` run in the first tier too.
pub(super) const LIBRARY: [&str; 9] = [
    "--package",
    "redisson-lock",
    "--lib",
    "--test",
    "path",
    "--test",
    "lock",
    "--test",
    "errors",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::tools;

    /// The names of what a folder `tests` has cargo build: files, and folders with a `main.rs`.
    fn targets(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths
            .filter(|path| {
                path.join("main.rs").is_file() || path.extension().is_some_and(|it| it == "rs")
            })
            .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
            .collect()
    }

    #[test]
    fn every_file_of_tests_is_in_one_part() {
        let members = std::fs::read_dir(tools::root().join("crates")).expect("it is there");
        let members = members.filter_map(|member| Some(member.ok()?.path()));
        let files: BTreeSet<String> = members
            .chain([tools::root(), tools::root().join("examples/service")])
            // The simulator and the explorer have a profile of their own.
            .filter(|member| !member.ends_with("sim") && !member.ends_with("explorer"))
            .flat_map(|member| targets(&member.join("tests")))
            .collect();
        let parts = FIRST.iter().chain(&REST).chain([&ALONE]);
        let listed = parts.flat_map(|part| part.files).copied();
        let listed: Vec<&str> = listed.chain([LIBRARY[4]]).collect();
        let once: BTreeSet<String> = listed.iter().map(|file| (*file).to_owned()).collect();
        assert_eq!(files, once);
        assert_eq!(listed.len(), once.len(), "one is listed twice");
    }
}
