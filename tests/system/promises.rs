//! Documents with promises name the test of each promise: checks that each named test exists.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Documents whose tables name a test in the last column.
const DOCUMENTS: [&str; 2] = ["docs/containment.md", "docs/security.md"];

#[test]
fn every_test_that_a_promise_names_exists() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut tests = Vec::new();
    for folder in [
        "daemon",
        "guest-shim",
        "proto",
        "soft-gpu",
        "tests",
        "vgpu-admin",
    ] {
        collect(&root.join(folder), &mut tests)?;
    }
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).context(document)?;
        let named = named_tests(&text);
        ensure!(
            named.len() > 10,
            "{document} names only {} tests: are its tables read rightly?",
            named.len()
        );
        for name in named {
            ensure!(
                tests.iter().any(|test| stands_for(&name, test)),
                "{document} names the test `{name}`, which no source file has as a test that runs"
            );
        }
    }
    Ok(())
}

/// The names of all tests in the Rust sources below `folder`.
fn collect(folder: &Path, tests: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, tests)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            tests.extend(tests_of(&fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

/// The names of the functions with an attribute of a test that are not ignored. In `proptest!`,
/// tests have the same attribute.
fn tests_of(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in text.lines().map(str::trim_start) {
        if let Some(attribute) = line.strip_prefix("#[") {
            is_test |= ["test]", "tokio::test]", "tokio::test("]
                .iter()
                .any(|test| attribute.starts_with(test));
            is_ignored |= attribute.starts_with("ignore");
        } else if let Some((before, rest)) = line.split_once("fn ")
            && before.chars().all(|c| is_name(c) || " ()".contains(c))
        {
            if is_test && !is_ignored {
                let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
                names.push(rest[..end].to_owned());
            }
            (is_test, is_ignored) = (false, false);
        }
    }
    names
}

/// The names in backquotes in the last column of each table whose last heading is "test": names of
/// functions, optionally with the module, or with `…` for omitted parts.
fn named_tests(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut names_tests = false;
    let mut in_table = false;
    for line in text.lines() {
        let last = line
            .strip_prefix('|')
            .and_then(|row| row.trim_end().strip_suffix('|'))
            .and_then(|row| row.rsplit('|').next());
        if !in_table {
            names_tests = last.is_some_and(|heading| heading.trim() == "test");
        }
        in_table = last.is_some();
        let words = last.filter(|_| names_tests).unwrap_or_default().split('`');
        names.extend(
            words
                .skip(1)
                .step_by(2)
                .map(|word| word.rsplit("::").next().unwrap_or(word))
                .filter(|word| word.contains('_') && word.chars().all(|c| is_name(c) || c == '…'))
                .map(str::to_owned),
        );
    }
    names
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether `name`, in which each `…` stands for any letters, matches `function`.
fn stands_for(name: &str, function: &str) -> bool {
    let mut rest = function;
    for (index, part) in name.split('…').enumerate() {
        match rest.find(part) {
            Some(at) if index > 0 || at == 0 => rest = &rest[at + part.len()..],
            _ => return false,
        }
    }
    rest.is_empty() || name.ends_with('…')
}

#[test]
fn only_tests_that_run_are_tests() {
    let text = "
        fn helper() {}
        #[test]
        fn plain() -> Result<()> { let f = 1; }
        fn after() {}
        #[tokio::test(start_paused = true)]
        /// Said here.
        async fn paused() {}
        #[cfg(unix)]
        #[test]
        #[should_panic]
        fn panics() {}
        #[test]
        #[ignore = \"slow\"]
        fn ignored() {}
        #[ignore]
        #[tokio::test]
        async fn ignored_too() {}
        proptest! {
            #[test]
            fn any(bytes in any::<u8>()) {}
        }";
    assert_eq!(tests_of(text), ["plain", "paused", "panics", "any"]);
}

#[test]
fn a_name_with_something_left_out_means_what_fits() {
    for (name, function, fits) in [
        ("a_b", "a_b", true),
        ("a_b", "a_bc", false),
        ("a_b…", "a_bc", true),
        ("a_b…", "a_b", true),
        ("…_c", "a_b_c", true),
        ("…_b…", "a_b_c", true),
        ("…_d…", "a_b_c", false),
        ("a…c", "a_b_c", true),
        ("a…c", "a_b_d", false),
    ] {
        assert_eq!(stands_for(name, function), fits, "{name} and {function}");
    }
}
