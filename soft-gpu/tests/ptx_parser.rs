//! The parser on the committed fixtures, unchanged and damaged.

mod damage;

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use soft_gpu::ptx::ast::{Function, Operand, Statement};
use soft_gpu::ptx::{MAX_REGISTERS, parse};

use damage::{PIECES, apply, damage, fixtures};

/// Checks the PTX version of every committed text: a driver of CUDA 12.4, the oldest supported,
/// must read it. For newer text, that driver returns CUDA_ERROR_UNSUPPORTED_PTX_VERSION.
#[test]
fn every_committed_ptx_loads_on_the_oldest_driver() {
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    let mut found = 0;
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).expect("readable") {
            let path = entry.expect("readable").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && !path.is_symlink() && name != "target" && !name.starts_with('.') {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "ptx") {
                let text = std::fs::read(&path).expect("readable");
                let module = parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                assert!(
                    module.version <= (8, 4),
                    "{}: {:?}",
                    path.display(),
                    module.version
                );
                found += 1;
            }
        }
    }
    assert!(found > 35, "{found} files");
}

#[test]
fn every_fixture_parses_whole() {
    for (path, text) in fixtures() {
        let module = parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!((&module.target[0][..], module.address_size), ("sm_80", 64));
        let text = String::from_utf8(text).unwrap();
        let kernels = module
            .functions
            .iter()
            .filter(|f| f.kernel && !f.declaration)
            .count();
        assert_eq!(
            kernels,
            text.matches(".visible .entry").count(),
            "{}",
            path.display()
        );
        for function in &module.functions {
            every_label_resolves(function, &path);
        }
    }
}

/// Checks that each branch names a label of its own body, even if the label was in a nested scope.
fn every_label_resolves(function: &Function, path: &Path) {
    let labels: Vec<&str> = function
        .body
        .iter()
        .filter_map(|s| {
            if let Statement::Label(l) = s {
                Some(l.as_str())
            } else {
                None
            }
        })
        .collect();
    for statement in &function.body {
        if let Statement::Inst(inst) = statement
            && (inst.opcode == "bra" || inst.opcode == "bra.uni")
        {
            let [Operand::Name(target)] = &inst.operands[..] else {
                panic!("{inst:?}")
            };
            assert!(
                labels.contains(&target.as_str()),
                "{}: {inst:?}",
                path.display()
            );
        }
    }
    for (_, targets) in &function.targets {
        assert!(
            targets.iter().all(|t| labels.contains(&t.as_str())),
            "{}",
            path.display()
        );
    }
}

#[test]
fn every_prefix_of_a_fixture_is_refused_or_parsed() {
    let (_, text) = fixtures()
        .into_iter()
        .find(|(p, _)| p.ends_with("control.ptx"))
        .unwrap();
    for end in 0..text.len() {
        // The result depends on the position of the cut. The parser must only return.
        if let Err(error) = parse(&text[..end]) {
            assert!(error.line >= 1 && !error.message.is_empty());
        }
    }
}

thread_local!(static ALL: Vec<(PathBuf, Vec<u8>)> = fixtures());

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Damaged text must be parsed or refused, in bounded memory.
    #[test]
    fn damaged_fixtures_never_panic(
        which in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..12),
    ) {
        let mut text = ALL.with(|all| which.get(all).1.clone());
        for damage in &damages {
            apply(&mut text, damage);
        }
        match parse(&text) {
            Ok(module) => {
                let registers: usize = module.functions.iter().map(|f| f.registers.len()).sum();
                prop_assert!(registers <= MAX_REGISTERS);
            }
            Err(error) => prop_assert!(error.line >= 1 && error.message.len() < 4096),
        }
    }

    /// A text of random words of the grammar must be parsed or refused.
    #[test]
    fn loose_words_never_panic(words in prop::collection::vec(0..PIECES.len(), 0..60)) {
        let mut text = String::from(".version 8.0 .target sm_80 .visible .entry k(.param .u64 p) {");
        for word in words {
            text.push_str(PIECES[word]);
            text.push(' ');
        }
        if let Err(error) = parse(text.as_bytes()) {
            prop_assert!(error.line >= 1);
        }
    }
}
