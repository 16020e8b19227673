use std::collections::BTreeSet;

use super::*;

/// Settings of which each differs from the built-in default, in the order of the table.
fn every() -> PoolSettings {
    PoolSettings {
        policy: PoolPolicy::Fifo,
        weight: 2,
        slice_us: 3,
        min_run_us: 12,
        aging_ms: Limit::Value(4),
        weights: Some(Weights::default()),
        soft_limit_ms: Limit::Value(5),
        hard_limit_ms: Limit::Unlimited,
        contended_limit_ms: 7,
        overrun_grace_ms: Limit::Value(8),
        idle_hold_us: 9,
        window_us: 15,
        quarantine_strikes: Limit::Value(10),
        strike_decay_s: Limit::Value(11),
        quarantine_s: Limit::Value(13),
        quarantine_max_s: 14,
    }
}

#[test]
fn a_pool_patch_reaches_every_setting() {
    let every = every();
    // All settings as JSON are a patch that sets every field.
    let json = serde_json::to_string(&every).unwrap();
    let patch: PoolPatch = serde_json::from_str(&json).unwrap();
    let mut settings = PoolSettings::default();
    patch.apply_to(&mut settings);
    assert_eq!(settings, every);
    assert_eq!(every.changes(), patch);
    for ((setting, value), (_, default)) in every.values().iter().zip(PoolPatch::rows()) {
        assert_ne!(*value, default, "{}", setting.name);
    }
}

#[test]
fn every_row_has_a_name_an_option_a_text_and_defaults_within_the_range() {
    for rows in [PoolPatch::rows(), VmLimitsPatch::rows()] {
        let names: BTreeSet<&str> = rows.iter().map(|(row, _)| row.name).collect();
        let options: BTreeSet<&str> = rows.iter().map(|(row, _)| row.option).collect();
        assert_eq!((names.len(), options.len()), (rows.len(), rows.len()));
        for (row, default) in &rows {
            assert!(row.allows(default), "{row:?}");
            assert!(
                row.about().ends_with('.') && row.about().len() > 20,
                "{row:?}"
            );
            let bounded = matches!(default, Value::Number(_) | Value::Limit(Limit::Value(_)));
            let word = matches!(default, Value::Word(_));
            assert_eq!(row.example.is_none(), bounded || word, "{row:?}");
            if let Some(example) = row.example {
                assert!(row.allows(&Value::Limit(Limit::Value(example))));
            }
            let in_words = *default == Value::Limit(Limit::Default);
            assert_eq!(row.otherwise.is_empty(), !in_words, "{row:?}");
        }
    }
    assert_eq!(VmLimits::default().changes(), VmLimitsPatch::default());
    assert!(
        VmLimits::default()
            .values()
            .iter()
            .all(|(_, value)| *value == Value::Limit(Limit::Default))
    );
}

#[test]
fn a_refusal_names_the_setting_the_unit_and_the_range_as_the_reader_writes_them() {
    let one = |problems: Vec<Problem>| match problems.as_slice() {
        [problem] => [
            problem.in_request(|_| true),
            problem.in_file("defaults.x", |_| true),
        ],
        other => panic!("{other:?}"),
    };
    let settings = PoolSettings {
        slice_us: 5,
        ..PoolSettings::default()
    };
    assert_eq!(
        one(settings.problems()),
        [
            "--slice must be between 100us and 1s, not 5us (slice_us in JSON).",
            "defaults.x.slice_us = 5 is out of its range 100 to 1000000",
        ]
    );
    let large = VmLimits {
        memory_bytes: Limit::Value(1 << 60),
        ..VmLimits::default()
    };
    let [request, file] = one(large.problems());
    assert!(
        request
            .starts_with("--memory must be between 1B and 1024TiB, or unlimited, not 1048576TiB"),
        "{request}"
    );
    assert!(
        file.ends_with("range 1 to 1125899906842624, or unlimited"),
        "{file}"
    );
    let lifted = VmLimits {
        calls_burst: Limit::Unlimited,
        ..VmLimits::default()
    };
    assert_eq!(
        one(lifted.problems()),
        [
            "--calls-burst must be between 1 and 100000000, not unlimited; leave it out \
             (calls_burst in JSON).",
            "defaults.x.calls_burst must be 1 to 100000000, not \"unlimited\": leave it out",
        ]
    );
    // The settings of a pool are values: the default is no value.
    let nothing = PoolSettings {
        hard_limit_ms: Limit::Default,
        ..PoolSettings::default()
    };
    let [request, _] = one(nothing.problems());
    assert!(
        request.starts_with("--hard-limit") && request.contains("not the default"),
        "{request}"
    );
    let both = PoolSettings {
        slice_us: 5,
        weight: 0,
        ..PoolSettings::default()
    };
    assert_eq!(both.problems().len(), 2, "all problems are named");
}

#[test]
fn range_and_default_are_said_in_the_units_of_the_reader() {
    let rows = PoolPatch::rows();
    let slice = rows.iter().find(|(row, _)| row.name == "slice_us").unwrap();
    assert_eq!(slice.0.bounds(&slice.1), "100us to 1s; default: 2ms");
    assert_eq!(
        slice.0.plain_bounds(&slice.1),
        "100 to 1000000; default: 2000"
    );
    let rows = VmLimitsPatch::rows();
    let find = |name| rows.iter().find(|(row, _)| row.name == name).unwrap();
    let (burst, default) = find("calls_burst");
    assert_eq!(
        burst.bounds(default),
        "1 to 100000000; default: the amount of one second"
    );
    let (memory, default) = find("memory_bytes");
    assert_eq!(
        memory.bounds(default),
        "1B to 1024TiB, or unlimited; default: unlimited"
    );
}

#[test]
fn limits_are_read_and_wrong_ones_refused_with_a_sentence() {
    let read = |text: &str| serde_json::from_str::<Limit>(text);
    assert_eq!(read("7").unwrap(), Limit::Value(7));
    assert_eq!(read("null").unwrap(), Limit::Default);
    assert_eq!(read("\"unlimited\"").unwrap(), Limit::Unlimited);
    for bad in ["-1", "1.5", "\"none\"", "true", "[]", "{}"] {
        let said = read(bad).unwrap_err().to_string();
        assert!(said.contains("unlimited"), "{bad}: {said}");
    }
    assert_eq!(Limit::Default.or(Limit::Value(3)), Limit::Value(3));
    assert_eq!(Limit::Unlimited.or(Limit::Value(3)), Limit::Unlimited);
}
