//! Checks of the sources that the compiler does not make: the parts of the workspace import each
//! other only as `layers.toml` lists, and comments have at most 100 columns.

mod comments;
mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

type Table = BTreeMap<String, BTreeSet<String>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Layers {
    packages: Table,
    dev_packages: Table,
    modules: Vec<Modules>,
}

/// The modules below a module, or below the root of a crate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Modules {
    src: PathBuf,
    #[serde(default)]
    at: Option<String>,
    edges: Table,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    package: Option<Package>,
    #[serde(default)]
    dependencies: BTreeMap<String, toml::Value>,
    #[serde(default, rename = "dev-dependencies")]
    dev_dependencies: BTreeMap<String, toml::Value>,
    workspace: Option<Workspace>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Workspace {
    #[serde(default)]
    members: Vec<PathBuf>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
}

fn layers() -> Layers {
    let text = fs::read_to_string(root().join("tests/layers/layers.toml")).expect("readable");
    toml::from_str(&text).expect("layers.toml is valid")
}

fn manifest(folder: &Path) -> Manifest {
    let path = folder.join("Cargo.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    toml::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Differences between the listed edges and the edges found; `places` has the places of the
/// imports.
fn differences(
    listed: &Table,
    found: &BTreeMap<(String, String), BTreeSet<String>>,
) -> Vec<String> {
    let is_listed = |from: &str, to: &str| listed.get(from).is_some_and(|all| all.contains(to));
    let mut all: Vec<String> = found
        .iter()
        .filter(|((from, to), _)| !is_listed(from, to))
        .map(|((from, to), places)| {
            let places: Vec<&str> = places.iter().map(String::as_str).take(3).collect();
            format!(
                "{from} imports {to}, which layers.toml does not allow: {}",
                places.join(", ")
            )
        })
        .collect();
    for (from, to) in listed
        .iter()
        .flat_map(|(from, to)| to.iter().map(move |to| (from, to)))
    {
        if !found.contains_key(&(from.clone(), to.clone())) {
            all.push(format!(
                "{from} no longer imports {to}: take the edge out of layers.toml"
            ));
        }
    }
    all
}

/// A part that can be reached from itself.
fn circle(table: &Table) -> Option<String> {
    let mut left = table.clone();
    loop {
        let before = left.len();
        let rest: BTreeSet<String> = left.keys().cloned().collect();
        left.retain(|_, to| !to.is_disjoint(&rest));
        match left.len() {
            0 => return None,
            n if n == before => return left.into_keys().next(),
            _ => {}
        }
    }
}

fn fail_if_any(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn modules_import_only_what_is_listed() {
    let mut problems = Vec::new();
    for modules in layers().modules {
        let src = root().join(&modules.src);
        let at = modules.at.iter().flat_map(|at| at.split("::"));
        let at: Vec<String> = at.map(str::to_owned).collect();
        let found = imports::edges(&src, &at).expect("the sources can be read");
        let place = at.iter().fold(modules.src, |path, name| path.join(name));
        let place = place.display();
        let differ = differences(&modules.edges, &found).into_iter();
        problems.extend(differ.map(|problem| format!("{place}: {problem}")));
        if let Some(name) = circle(&modules.edges) {
            problems.push(format!(
                "{place}: the edges listed form a circle through {name}"
            ));
        }
    }
    fail_if_any(&problems);
}

#[test]
fn packages_depend_only_on_what_is_listed() {
    let layers = layers();
    let members = manifest(root()).workspace.expect("a workspace").members;
    let manifests: Vec<Manifest> = members
        .iter()
        .map(|path| manifest(&root().join(path)))
        .collect();
    let name = |manifest: &Manifest| {
        manifest
            .package
            .as_ref()
            .map(|package| package.name.clone())
    };
    let ours: BTreeSet<String> = manifests.iter().filter_map(name).collect();
    let (mut found, mut found_dev) = (BTreeMap::new(), BTreeMap::new());
    for manifest in &manifests {
        let from = name(manifest).expect("a package has a name");
        for (found, dependencies) in [
            (&mut found, &manifest.dependencies),
            (&mut found_dev, &manifest.dev_dependencies),
        ] {
            let to = dependencies.keys().filter(|to| ours.contains(*to));
            let place = BTreeSet::from([format!("Cargo.toml of {from}")]);
            found.extend(to.map(|to| ((from.clone(), to.clone()), place.clone())));
        }
    }
    let mut problems = differences(&layers.packages, &found);
    problems.extend(differences(&layers.dev_packages, &found_dev));
    if let Some(name) = circle(&layers.packages) {
        problems.push(format!("the packages listed form a circle through {name}"));
    }
    fail_if_any(&problems);
}

#[test]
fn an_upward_import_and_a_circle_are_found() {
    let names = |all: &[&str]| {
        all.iter()
            .map(|name| (*name).to_owned())
            .collect::<BTreeSet<_>>()
    };
    let listed = Table::from([
        ("top".to_owned(), names(&["middle"])),
        ("middle".to_owned(), names(&["bottom"])),
        ("bottom".to_owned(), names(&[])),
    ]);
    assert_eq!(circle(&listed), None);
    let mut found = BTreeMap::new();
    for (from, to) in [("top", "middle"), ("bottom", "top")] {
        found.insert((from.to_owned(), to.to_owned()), names(&["x.rs:1"]));
    }
    let problems = differences(&listed, &found);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].starts_with("bottom imports top") && problems[0].contains("x.rs:1"));
    assert!(problems[1].starts_with("middle no longer imports bottom"));
    let mut round = listed;
    round.insert("bottom".to_owned(), names(&["top"]));
    assert!(circle(&round).is_some());
}
