//! Kernel modules in an order in which they can be inserted.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// The paths of the `wanted` modules and their dependencies, dependencies first. A name that is not
/// a module counts as built in.
///
/// # Errors
/// If the directory cannot be read.
pub fn load_order(modules: &Path, wanted: &[&str]) -> Result<Vec<PathBuf>> {
    let mut index = HashMap::new();
    collect(modules, &mut index)?;
    let mut order = Vec::new();
    for name in wanted {
        visit(name, &index, &mut order)?;
    }
    Ok(order)
}

/// Module names use `_` and `-` interchangeably.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn collect(dir: &Path, index: &mut HashMap<String, PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            collect(&path, index)?;
        } else if let Some(name) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.strip_suffix(".ko"))
        {
            index.insert(canonical(name), path);
        }
    }
    Ok(())
}

fn visit(name: &str, index: &HashMap<String, PathBuf>, order: &mut Vec<PathBuf>) -> Result<()> {
    let Some(path) = index.get(&canonical(name)) else {
        return Ok(());
    };
    if order.contains(path) {
        return Ok(());
    }
    for dependency in depends(&std::fs::read(path)?) {
        visit(&dependency, index, order)?;
    }
    order.push(path.clone());
    Ok(())
}

/// The `depends=` line of a module's `.modinfo`, a list of NUL-terminated strings.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|w| w == KEY) else {
        return Vec::new();
    };
    let rest = &module[start + KEY.len()..];
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let module = |name: &str, depends: &str| {
            let text = format!("x\0depends={depends}\0name={name}\0");
            std::fs::write(dir.path().join(format!("{name}.ko")), text).unwrap();
        };
        module("top-one", "middle,base");
        module("middle", "base");
        module("base", "");
        let order = load_order(dir.path(), &["top_one", "built_in"]).unwrap();
        let names: Vec<_> = order
            .iter()
            .map(|p| p.file_stem().unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["base", "middle", "top-one"]);
    }
}
