//! Which test files belong together, and what they need.

/// Which test files belong together, and the features that they need; each file runs its tests side by
/// side.
pub(super) const PARTS: [(&str, &[&str], &[&str]); 7] = [
    (
        "facts about fred, public surface, scripts",
        &[],
        &["fred_facts", "api", "source", "scripts", "leaks"],
    ),
    (
        "behaviour",
        &[],
        &[
            "lock",
            "bodies",
            "owners",
            "runtimes",
            "moved",
            "waiting",
            "channels",
            "renewal",
            "cluster_node",
            "from_fred",
            "credentials",
            "callbacks",
            "events",
            "path",
            "writes",
        ],
    ),
    (
        "optional features",
        &["blocking", "metrics", "serde", "tls-rustls"],
        &["blocking", "no_panic", "features", "tls"],
    ),
    (
        "errors, bad inputs, rights",
        &[],
        &["errors", "error_texts", "addresses", "rights"],
    ),
    (
        "hostile: outcomes, cancellation, hand-off",
        &[],
        &["outcomes", "cancellation", "unpolled", "handover"],
    ),
    (
        "clusters, and servers behind Sentinel",
        &[],
        &[
            "cluster",
            "cluster_wakeups",
            "cluster_costs",
            "cluster_names",
            "slot_map",
            "sentinel",
            "sentinel_reports",
            "replicas",
        ],
    ),
    (
        "rows of other files over three primaries",
        &[],
        &["cluster_rows"],
    ),
];

/// How many tests of a part run at the same time, where they wait for most of their time; otherwise as many as
/// there are processors.
pub(super) fn at_once(files: &[&str]) -> Option<&'static str> {
    match *files.first()? {
        // A cluster of its own for each row.
        "cluster_rows" => Some("6"),
        "lock" => Some("4"),
        "cluster" => Some("3"),
        _ => None,
    }
}

/// The same as those of the part for them, so that what they need is built once.
pub(super) const OPTIONAL: &str = "blocking,metrics,serde,tls-rustls";

/// The features that a file of tests needs.
pub fn features(file: &str) -> &'static [&'static str] {
    let part = PARTS.iter().find(|(_, _, files)| files.contains(&file));
    part.map_or(&[], |(_, features, _)| features)
}
