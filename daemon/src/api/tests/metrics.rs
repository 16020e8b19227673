//! `/metrics`, and `docs/metrics.md`, which is generated from one scrape.

use std::fmt::Write as _;

use serde_json::json;

use super::*;

const HEAD: &str = "\
# Metrics

This page is for administrators who scrape vgpud with Prometheus. It lists the metrics of
`GET /metrics` of the admin API, in OpenMetrics text. A test makes the page from a scrape:
`UPDATE_GOLDEN=1 cargo nextest run -p vgpud the_metrics_page`. Without the variable, the test fails
if the page is out of date.

Units are base units. The unit `-` is a count, a state or a constant. A histogram has the samples
`_bucket` (with the label `le`), `_sum` and `_count`. An unmeasured value is absent, not 0: for
example a GPU's temperature and power without NVML. Labels are names and numbers that administrators
gave, never text from a guest: `vm` is the VM's name, `gpu` the GPU's number, `uuid` the GPU's
identity.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
";

/// Units in the names of metrics.
const UNITS: [&str; 5] = ["seconds", "bytes", "ratio", "celsius", "watts"];

/// A metric family of a scrape.
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    meaning: &'a str,
    /// Names of labels; `None` if there is no sample.
    labels: Option<Vec<&'a str>>,
}

impl Family<'_> {
    fn row(&self) -> String {
        let total = if self.kind == "counter" { "_total" } else { "" };
        let suffix = self.name.rsplit('_').next();
        let unit = UNITS.into_iter().find(|unit| suffix == Some(*unit));
        let labels = self.labels.as_deref().unwrap_or_default();
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        format!(
            "| `{}{total}` | {} | {} | {} | {} |",
            self.name,
            self.kind,
            unit.unwrap_or("-"),
            labels.join(", "),
            self.meaning
        )
    }
}

/// Names of the labels of a sample, without the bound of a bucket.
fn labels(sample: &str) -> Vec<&str> {
    let inside = sample
        .split_once('{')
        .and_then(|(_, rest)| rest.rsplit_once('}'));
    let pairs = inside.map_or("", |(inside, _)| inside).split(',');
    let names = pairs.filter_map(|pair| Some(pair.split_once("=\"")?.0));
    names.filter(|name| *name != "le").collect()
}

fn families(text: &str) -> Vec<Family<'_>> {
    let mut found: Vec<Family<'_>> = Vec::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, meaning) = help.split_once(' ').expect("a name and a meaning");
            found.push(Family {
                name,
                kind: "",
                meaning,
                labels: None,
            });
        } else if let Some(of) = line.strip_prefix("# TYPE ") {
            let family = found.last_mut().expect("after its meaning");
            family.kind = of.split_once(' ').expect("a name and a type").1;
        } else if !line.starts_with('#') {
            let family = found.last_mut().expect("after its type");
            assert!(line.starts_with(family.name), "{line}");
            family.labels = Some(labels(line));
        }
    }
    found
}

#[tokio::test]
async fn the_metrics_page_is_true() {
    let host = Host::start().await;
    host.owners_example().await;
    let quota = json!({"vm_ids": [1], "limits": {"memory_bytes": 1 << 30}});
    host.done("PATCH", "/v1/vms", quota).await;
    let answer = host.get("/metrics").await;
    let mut page = HEAD.to_owned();
    for family in families(&answer.text) {
        let (name, labels) = (family.name, &family.labels);
        assert!(
            labels.is_some(),
            "{name} has no sample to learn its labels from"
        );
        let _ = writeln!(page, "{}", family.row());
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    vgpu_golden::assert_golden(path, &page);
}

#[tokio::test]
async fn the_alert_rules_name_metrics_that_exist() {
    let host = Host::start().await;
    host.owners_example().await;
    let answer = host.get("/metrics").await;
    // A rule names samples, for example a counter with its `_total`.
    let scraped = |name: &str| {
        let mut lines = answer.text.lines();
        lines.any(|line| line.split(['{', ' ']).next() == Some(name))
    };
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../systemd/prometheus/vgpud.rules.yml"
    );
    let rules = std::fs::read_to_string(path).expect("the rules");
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named: Vec<&str> = words.filter(|word| word.starts_with("vgpu_")).collect();
    assert!(named.len() > 8, "{named:?}");
    for name in named {
        assert!(scraped(name), "{name} is no metric");
    }
}

#[tokio::test]
async fn metrics_are_open_metrics_in_base_units() {
    let host = Host::start().await;
    host.owners_example().await;
    let answer = host.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(
        answer
            .content_type
            .starts_with("application/openmetrics-text"),
        "{answer:?}"
    );
    assert!(answer.text.ends_with("# EOF\n"), "{}", answer.text);
    let expected = [
        "vgpu_gpu_up{gpu=\"0\",uuid=\"GPU-soft-0\"} 1.0",
        "vgpu_gpu_busy_seconds_total{gpu=\"0\",uuid=\"GPU-soft-0\"} 3.0",
        "vgpu_vm_queue_depth{vm=\"vm3\"} 12.0",
        "vgpu_vm_memory_used_bytes{vm=\"vm3\"} 4096.0",
        "vgpu_vm_queue_wait_seconds_bucket{le=\"0.0025\",vm=\"vm3\"} 1",
        "vgpu_vm_queue_wait_seconds_count{vm=\"vm3\"} 1",
        "vgpu_pool_vms{pool=\"B\"} 13.0",
        "vgpu_sched_decisions_total 42.0",
        "vgpu_store_writable 1.0",
        "vgpu_vm_gpu_time_seconds_total{vm=\"vm1\"} 0.0",
    ];
    for line in expected {
        assert!(
            answer.text.lines().any(|l| l == line),
            "{line} is not in\n{}",
            answer.text
        );
    }
    let names = answer
        .text
        .lines()
        .filter(|line| line.starts_with("# TYPE "));
    for name in names.filter_map(|line| line.split(' ').nth(2)) {
        assert!(
            name.starts_with("vgpu_") || name.starts_with("process_"),
            "{name}"
        );
        for unit in ["_ms", "_us", "_ns", "_milliseconds", "_mib", "_percent"] {
            assert!(!name.ends_with(unit), "{name} is not in base units");
        }
    }
}
