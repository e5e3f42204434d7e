//! The dashboard and the alert rules beside what the service really exports: each metric and each label that they use is
//! there, with the type that they take it for.

mod instance;

use std::collections::{BTreeMap, BTreeSet};

use instance::Instance;
use prometheus_parse::{Sample, Scrape, Value};
use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, Expr, VectorSelector};
use promql_parser::util::parse_duration;
use serde::Deserialize;
use test_support::{Proxy, TestServer, eventually, ms, test, tokio};

/// What Grafana needs of a dashboard. It ignores what it does not know, so a slip in a name is found here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Dashboard {
    title: String,
    schema_version: u32,
    refresh: String,
    time: BTreeMap<String, String>,
    tags: Vec<String>,
    templating: Templating,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Templating {
    list: Vec<Variable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Variable {
    name: String,
    r#type: String,
    query: String,
    datasource: Option<Datasource>,
    #[serde(default)]
    include_all: bool,
    #[serde(default)]
    multi: bool,
    refresh: Option<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Datasource {
    r#type: String,
    uid: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Panel {
    id: u32,
    title: String,
    r#type: String,
    grid_pos: GridPos,
    datasource: Datasource,
    field_config: FieldConfig,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GridPos {
    h: u32,
    w: u32,
    x: u32,
    y: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldConfig {
    defaults: Defaults,
    overrides: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Defaults {
    unit: String,
    custom: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Target {
    expr: String,
    legend_format: String,
    ref_id: String,
}

/// Prometheus refuses a file of rules with a field that it does not know.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alerts {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    r#for: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn read(file: &str) -> String {
    let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn dashboard() -> Dashboard {
    serde_json::from_str(&read("dashboard.json")).expect("a dashboard")
}

fn alerts() -> Alerts {
    serde_saphyr::from_str(&read("alerts.yml")).expect("rules")
}

/// What the service exports once it has sold, was busy, has failed and has waited.
async fn scraped() -> Scrape {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let instance = Instance::start(&proxy.url());
    let ready = || instance.ask("GET /ready").0;
    eventually("it is ready", ms(10_000), || ready() == 200).await;
    assert_eq!(instance.ask("POST /sell/42").0, 200);
    let other = server.client().await;
    let held = other.lock("report").lock().await.expect("free");
    assert_eq!(instance.ask("GET /report").0, 409);
    held.unlock().await.expect("held");
    proxy.refuse(true);
    proxy.cut_all();
    eventually("it is not", ms(10_000), || ready() == 503).await;
    assert_eq!(instance.ask("POST /sell/42").0, 503);
    let text = instance.ask("GET /metrics").1;
    drop(instance);
    proxy.stop().await;
    server.finish([other]).await;
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).expect("an exposition")
}

/// One query, and what is wrong with it.
struct Query<'a> {
    scrape: &'a Scrape,
    text: &'a str,
    wrong: Vec<String>,
}

impl<'a> Query<'a> {
    fn check(scrape: &'a Scrape, text: &'a str) -> Vec<String> {
        let mut query = Self {
            scrape,
            text,
            wrong: Vec::new(),
        };
        match parser::parse(text) {
            Ok(expr) => query.expr(&expr, &BTreeSet::new()),
            Err(error) => query.is_wrong(error),
        }
        query.wrong
    }

    fn is_wrong(&mut self, what: impl std::fmt::Display) {
        self.wrong.push(format!("{}: {what}", self.text));
    }

    /// `labels`: those by which something around this is added up or matched.
    fn expr(&mut self, expr: &Expr, labels: &BTreeSet<String>) {
        match expr {
            Expr::Aggregate(sum) => {
                let by = sum
                    .modifier
                    .iter()
                    .flat_map(|of| of.labels().labels.clone());
                self.expr(&sum.expr, &labels.iter().cloned().chain(by).collect());
            }
            Expr::Binary(both) => {
                let matching = both.modifier.iter().flat_map(|of| &of.matching);
                let on = matching.flat_map(|of| of.labels().labels.clone());
                let labels = labels.iter().cloned().chain(on).collect();
                self.expr(&both.lhs, &labels);
                self.expr(&both.rhs, &labels);
            }
            Expr::Call(call) => match (call.func.name, &*call.args.args) {
                ("rate" | "increase", [argument]) => match &**argument {
                    Expr::MatrixSelector(of) => {
                        let found = self.selector(&of.vs, labels);
                        if let Some(Value::Gauge(_) | Value::Summary(_)) = found {
                            self.is_wrong("a rate of what may fall");
                        }
                    }
                    _ => self.is_wrong("a rate of something else than a metric"),
                },
                ("histogram_quantile", [_, argument]) => {
                    let le = ["le".to_owned()];
                    self.expr(argument, &labels.iter().cloned().chain(le).collect());
                }
                (function, _) => self.is_wrong(format!("{function} is not checked here")),
            },
            Expr::Paren(inner) => self.expr(&inner.expr, labels),
            Expr::VectorSelector(of) => {
                if let Some(Value::Counter(_) | Value::Histogram(_)) = self.selector(of, labels) {
                    self.is_wrong("a counter without a rate");
                }
            }
            Expr::NumberLiteral(_) => {}
            other => self.is_wrong(format!("{other} is not checked here")),
        }
    }

    /// The value of a sample that a selector finds.
    fn selector(&mut self, of: &VectorSelector, labels: &BTreeSet<String>) -> Option<Value> {
        let name = of.name.clone().unwrap_or_default();
        let metric = name.strip_suffix("_bucket").unwrap_or(&name);
        let scrape = self.scrape;
        let samples = scrape.samples.iter();
        let samples: Vec<&Sample> = samples.filter(|sample| sample.metric == metric).collect();
        let Some(first) = samples.first() else {
            self.is_wrong(format!("there is no metric {name}"));
            return None;
        };
        match &first.value {
            Value::Histogram(buckets) => {
                let last = buckets.last().map(|bucket| bucket.less_than);
                if buckets.len() < 5 || last != Some(f64::INFINITY) {
                    self.is_wrong(format!("{metric} has no buckets that can be added up"));
                }
            }
            _ if metric != name => self.is_wrong(format!("{metric} is no histogram")),
            _ => {}
        }
        for label in labels {
            let is_bucket = label == "le" && metric != name;
            if !is_bucket
                && !samples
                    .iter()
                    .all(|sample| sample.labels.contains_key(label))
            {
                self.is_wrong(format!("{metric} has no label {label}"));
            }
        }
        for matcher in &of.matchers.matchers {
            self.matcher(metric, &samples, matcher);
        }
        Some(first.value.clone())
    }

    fn matcher(&mut self, metric: &str, samples: &[&Sample], of: &Matcher) {
        let values: BTreeSet<&str> = samples
            .iter()
            .filter_map(|sample| sample.labels.get(&of.name))
            .collect();
        // `$class` is what the reader of the dashboard chooses.
        let is_chosen = of.value.starts_with('$');
        let is_known = match of.op {
            _ if values.is_empty() => false,
            MatchOp::Equal => {
                values.contains(&*of.value) || is_documented(metric, &of.name, &of.value)
            }
            _ => is_chosen,
        };
        if !is_known {
            self.is_wrong(format!("{metric} has no {}: {values:?}", of.name));
        }
    }
}

/// Whether operations.md names this value of a label, which not every run brings about.
fn is_documented(metric: &str, label: &str, value: &str) -> bool {
    let page = read("../../docs/operations.md");
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| `{metric}` |")));
    let label = format!("`{label}`");
    row.and_then(|row| row.split_once(&label))
        .is_some_and(|(_, values)| values.contains(&format!("`{value}`")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_metric_and_label_of_the_dashboard_and_of_the_alert_rules_is_exported() {
    let scrape = scraped().await;
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    let dashboard = dashboard();
    let targets = dashboard.panels.iter().flat_map(|panel| &panel.targets);
    let alerts = alerts();
    let rules = alerts.groups.iter().flat_map(|group| &group.rules);
    let queries = targets.map(|target| &*target.expr);
    for query in queries.chain(rules.map(|rule| &*rule.expr)) {
        wrong.extend(Query::check(&scrape, query));
        used.extend(query.split(|letter: char| !letter.is_alphanumeric() && letter != '_'));
    }
    for variable in &dashboard.templating.list {
        let values = variable.query.strip_prefix("label_values(");
        let values = values.and_then(|rest| rest.strip_suffix(')')?.split_once(", "));
        if let Some((metric, label)) = values {
            wrong.extend(Query::check(
                &scrape,
                &format!("sum by ({label}) (rate({metric}[5m]))"),
            ));
        }
    }
    // What is exported and shown nowhere is a panel that somebody forgot.
    for sample in &scrape.samples {
        let metric = sample.metric.as_str();
        let base = metric
            .strip_suffix("_sum")
            .or_else(|| metric.strip_suffix("_count"))
            .unwrap_or(metric);
        let names = [base.to_owned(), format!("{base}_bucket")];
        if base.starts_with("redisson_lock_") && !names.iter().any(|name| used.contains(&**name)) {
            wrong.push(format!("neither of the two uses {metric}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_query_that_prometheus_would_answer_with_nothing_is_found() {
    let text = "# TYPE a_total counter\na_total{class=\"x\"} 1\n# TYPE held gauge\nheld 1\n";
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).expect("parsed");
    for right in [
        "sum by (class) (rate(a_total{class=\"x\"}[5m])) > 0",
        "sum(increase(a_total[5m]))",
        "held == 0",
    ] {
        assert_eq!(Query::check(&scrape, right), [""; 0], "{right}");
    }
    for wrong in [
        "sum(rate(b_total[5m]))",
        "sum by (kind) (rate(a_total[5m]))",
        "rate(a_total{class=\"y\"}[5m])",
        "rate(a_total{kind=\"y\"}[5m])",
        "rate(held[5m])",
        "a_total > 0",
        "histogram_quantile(0.9, sum by (le) (rate(a_total[5m])))",
        "rate(a_seconds_bucket[5m])",
        "sum by (class (held)",
    ] {
        assert_eq!(Query::check(&scrape, wrong).len(), 1, "{wrong}");
    }
}

#[test]
fn grafana_finds_what_it_needs_in_the_dashboard() {
    let dashboard = dashboard();
    assert!(!dashboard.title.is_empty() && dashboard.tags.contains(&"redisson-lock".to_owned()));
    // Grafana 10 and newer migrate a dashboard of an older schema.
    assert!((36..=42).contains(&dashboard.schema_version));
    parse_duration(&dashboard.refresh).expect("a duration");
    assert!(dashboard.time.keys().eq(["from", "to"]));
    let mut variables = BTreeSet::new();
    for variable in &dashboard.templating.list {
        match &*variable.r#type {
            "datasource" => assert_eq!(variable.query, "prometheus"),
            "query" => {
                assert_eq!(variable.refresh, Some(2), "it follows the time range");
                assert!(variable.include_all && variable.multi && variable.datasource.is_some());
            }
            other => panic!("no variable is of the type {other}"),
        }
        variables.insert(&*variable.name);
    }
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in &dashboard.panels {
        let title = &panel.title;
        assert!(!title.is_empty() && ids.insert(panel.id), "{title}");
        assert_eq!(panel.r#type, "timeseries", "{title}");
        assert!(
            panel.field_config.overrides.is_empty()
                && panel.field_config.defaults.custom.is_object()
        );
        assert!(
            ["reqps", "short", "s"].contains(&&*panel.field_config.defaults.unit),
            "{title}"
        );
        assert_eq!(panel.datasource.r#type, "prometheus", "{title}");
        assert_eq!(panel.datasource.uid, "${datasource}", "{title}");
        let GridPos { h, w, x, y } = panel.grid_pos;
        assert!(h > 0 && w > 0 && x + w <= 24, "{title}");
        let covers = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        assert!(
            covers.into_iter().all(|cell| cells.insert(cell)),
            "{title} lies over another"
        );
        let mut refs = BTreeSet::new();
        assert!(!panel.targets.is_empty(), "{title}");
        for target in &panel.targets {
            assert!(refs.insert(&target.ref_id), "{title}");
            let named = target.expr.split("\"$").skip(1);
            for name in named.filter_map(|rest| rest.split('"').next()) {
                assert!(variables.contains(name), "{title}: ${name}");
            }
            // A label of a legend that the query adds up is empty.
            let (_, by) = target.expr.split_once("by (").unwrap_or_default();
            let by = by.split(')').next().unwrap_or_default();
            for label in target.legend_format.split("{{").skip(1) {
                let label = label.split("}}").next().unwrap_or_default();
                assert!(by.split(", ").any(|it| it == label), "{title}: {label}");
            }
        }
    }
    assert!(variables.contains("datasource"));
}

#[test]
fn prometheus_finds_what_it_needs_in_the_alert_rules() {
    let mut names = BTreeSet::new();
    for group in alerts().groups {
        assert!(!group.name.is_empty());
        for rule in group.rules {
            let severity = rule.labels.get("severity").map(String::as_str);
            assert!(
                matches!(severity, Some("critical" | "warning" | "info")),
                "{}",
                rule.alert
            );
            assert!(rule.annotations.contains_key("summary"), "{}", rule.alert);
            if let Some(duration) = &rule.r#for {
                parse_duration(duration).expect("a duration");
            }
            assert!(names.insert(rule.alert), "one name twice");
        }
    }
    assert!(names.len() >= 5, "{names:?}");
}
