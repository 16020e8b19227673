//! The suites: their sources and units.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Result, ensure};

use super::events::Dialect;
use super::follow::Unit;
use super::install::{Kit, Venv, source};
use super::plan::{PATIENCE, Plan, list_tests, pytest, test_files};
use super::{cupy, libraries, runtimes, samples, torch, truth};

/// The version that the workspace depends on.
const CUDARC: &str = "0.19.10";

/// A client with its own tests.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    /// Name, also of the file in `tests/clients/expected`.
    pub name: &'static str,
    /// The version whose tests run.
    pub version: &'static str,
    /// Fetches the suite.
    pub plan: fn(&Kit) -> Result<Plan>,
}

/// All suites, the fastest first.
pub const ALL: &[Suite] = &[
    Suite {
        name: "cudarc",
        version: CUDARC,
        plan: cudarc,
    },
    Suite {
        name: "truth",
        version: env!("CARGO_PKG_VERSION"),
        plan: truth::plan,
    },
    Suite {
        name: "nvml",
        version: "13.615.71",
        plan: nvml,
    },
    Suite {
        name: "cudart",
        version: "12.0 to 13.5",
        plan: runtimes::plan,
    },
    Suite {
        name: "libraries",
        version: "CUDA 12.8, 13.2",
        plan: libraries::plan,
    },
    Suite {
        name: "cuda-samples",
        version: "c94ff366, v12.9",
        plan: samples::plan,
    },
    Suite {
        name: "cuda-samples-cublas",
        version: "c94ff366, v12.9",
        plan: samples::with_cublas,
    },
    Suite {
        name: "triton",
        version: "3.9.0",
        plan: triton,
    },
    Suite {
        name: "cuda-bindings",
        version: "12.6.1",
        plan: bindings_12,
    },
    Suite {
        name: "cuda-bindings-13",
        version: "13.3.1",
        plan: bindings_13,
    },
    Suite {
        name: "cuda-core",
        version: "1.1.0",
        plan: cuda_core,
    },
    Suite {
        name: "torch-cu13",
        version: "2.15.0",
        plan: torch::cu13,
    },
    Suite {
        name: "torch-cu12",
        version: "2.10.0",
        plan: torch::cu12,
    },
    Suite {
        name: "numba-cuda",
        version: "0.30.4",
        plan: numba,
    },
    Suite {
        name: "cupy",
        version: cupy::VERSION,
        plan: cupy::plan,
    },
];

/// cudarc's unit tests of its driver and nvrtc modules, built by `cargo test`.
fn cudarc(kit: &Kit) -> Result<Plan> {
    let nvrtc = kit.venv("cu12")?;
    let source = kit.cudarc(CUDARC)?;
    let binary = kit.test_binary(
        &source,
        "std,driver,nvrtc,fallback-dynamic-loading,cuda-12080",
    )?;
    let unit = Unit {
        name: "lib".into(),
        dialect: Dialect::Libtest,
        tests: list_tests(&binary)?,
        words: vec![binary.into()],
        dir: source,
        env: Vec::new(),
        parallel: true,
        patience: PATIENCE,
        alone: true,
    };
    Ok(Plan {
        units: vec![unit],
        libraries: nvrtc.nvrtc_dirs(),
        ..Plan::default()
    })
}

/// numba-cuda's tests, from its wheel.
fn numba(kit: &Kit) -> Result<Plan> {
    let venv = kit.venv("cu12")?;
    let tests = venv.packages.join("numba_cuda/numba/cuda/tests");
    let units = test_files(&tests)?.into_iter().map(|file| {
        let mut unit = installed(kit, &venv, "numba.cuda.tests", &file);
        // Without this variable, pytest imports the package's own tests under a second name, and
        // with these tests a second copy of numba.
        unit.env.push(("VGPU_IMPORT".into(), "numba.cuda".into()));
        unit
    });
    Ok(Plan {
        units: units.collect(),
        prefix: "numba_cuda/numba/cuda/tests/",
        ..Plan::default()
    })
}

/// cuda.bindings' tests, from the last wheel that contains them.
fn bindings_12(kit: &Kit) -> Result<Plan> {
    let venv = kit.venv("bindings")?;
    let tests = venv.packages.join("cuda/bindings/tests");
    let units = test_files(&tests)?;
    let units = units
        .iter()
        .map(|file| installed(kit, &venv, "cuda.bindings.tests", file));
    Ok(Plan {
        units: units.collect(),
        libraries: venv.nvrtc_dirs(),
        prefix: "cuda/bindings/tests/",
        ..Plan::default()
    })
}

/// cuda.bindings' tests from its repository.
fn bindings_13(kit: &Kit) -> Result<Plan> {
    in_checkout(kit, "v13.3.1", "cuda_bindings")
}

/// cuda.core's tests from its repository.
fn cuda_core(kit: &Kit) -> Result<Plan> {
    in_checkout(kit, "cuda-core-v1.1.0", "cuda_core")
}

fn in_checkout(kit: &Kit, tag: &str, folder: &str) -> Result<Plan> {
    let dir = kit
        .checkout("VGPU_CUDA_PYTHON", "cuda-python", tag)?
        .join(folder);
    let venv = kit.venv("cu13")?;
    let units = test_files(&dir.join("tests"))?
        .into_iter()
        .map(|file| Unit {
            dir: dir.clone(),
            ..pytest(&venv, &file, &[format!("tests/{file}").into()])
        });
    Ok(Plan {
        units: units.collect(),
        prefix: "tests/",
        ..Plan::default()
    })
}

/// Kernels that Triton compiled, launched through cuda.bindings: Triton's own launcher needs torch.
fn triton(kit: &Kit) -> Result<Plan> {
    let venv = kit.venv("cu12")?;
    let compiler = kit.venv("triton")?;
    let ptx = kit.dir().join("triton-ptx");
    let script = source("triton_ptx.py");
    let made = kit.made_of(&ptx, &[&script, &source("requirements/triton.txt")])?;
    if !made.is_current() {
        let mut generate = Command::new(&compiler.python);
        let output = generate.arg(script).arg("generate").arg(&ptx).output()?;
        ensure!(
            output.status.success(),
            "compiling Triton's kernels: {}",
            crate::guest::describe(&output)
        );
        made.say()?;
    }
    let file = "test_triton.py";
    let mut unit = pytest(&venv, file, &[source(file).into()]);
    unit.env.push(("VGPU_TRITON_PTX".into(), ptx.into()));
    unit.dir = source("");
    Ok(Plan {
        units: vec![unit],
        prefix: "test_triton.py::",
        ..Plan::default()
    })
}

/// NVIDIA's Python binding of NVML, and a tool that uses it, with the guests' management library.
fn nvml(kit: &Kit) -> Result<Plan> {
    let venv = kit.venv("nvml")?;
    let file = "test_nvml.py";
    let unit = Unit {
        dir: source(""),
        ..pytest(&venv, file, &[source(file).into()])
    };
    Ok(Plan {
        units: vec![unit],
        prefix: "test_nvml.py::",
        ..Plan::default()
    })
}

/// A test file of an installed package.
fn installed(kit: &Kit, venv: &Venv, package: &str, file: &str) -> Unit {
    let module = file.trim_end_matches(".py").replace('/', ".");
    let root = format!("--rootdir={}", venv.packages.display());
    let words: Vec<OsString> = [
        "--import-mode=importlib",
        "-o",
        "consider_namespace_packages=true",
        &root,
        "--pyargs",
        &format!("{package}.{module}"),
    ]
    .map(Into::into)
    .into();
    Unit {
        // Some tests write into their working directory.
        dir: kit.dir().join("scratch"),
        ..pytest(venv, file, &words)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;
    use crate::paths;

    fn text(path: &str) -> Result<String> {
        let path = paths::root().join(path);
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// The version of a package in `tests/clients/requirements`.
    fn required(file: &str, package: &str) -> Result<String> {
        let text = text(&format!("tests/clients/requirements/{file}.txt"))?;
        let version = text
            .lines()
            .find_map(|line| line.strip_prefix(package)?.strip_prefix("=="));
        let version = version.with_context(|| format!("{file}.txt has no {package}"))?;
        Ok(version.to_owned())
    }

    #[test]
    fn versions_are_those_of_the_packages_that_are_fetched() -> Result<()> {
        for (suite, file, package) in [
            ("nvml", "nvml", "nvidia-ml-py"),
            ("triton", "triton", "triton"),
            ("cuda-bindings", "bindings", "cuda-python"),
            ("cuda-bindings-13", "cu13", "cuda-bindings"),
            ("cuda-core", "cu13", "cuda-core"),
            ("torch-cu13", "torch-cu13", "torch"),
            ("torch-cu12", "torch-cu12", "torch"),
            ("numba-cuda", "cu12", "numba-cuda"),
            ("cupy", "cupy", "cupy-cuda13x"),
        ] {
            let suite = ALL.iter().find(|s| s.name == suite).context(suite)?;
            assert_eq!(suite.version, required(file, package)?, "{}", suite.name);
        }
        let twelve = required("libraries-cu12", "nvidia-cuda-runtime-cu12")?;
        let thirteen = required("libraries", "nvidia-cuda-runtime")?;
        let release = |version: &str| version.split('.').take(2).collect::<Vec<_>>().join(".");
        let releases = format!("CUDA {}, {}", release(&twelve), release(&thirteen));
        let libraries = ALL.iter().find(|s| s.name == "libraries");
        assert_eq!(libraries.map(|s| s.version), Some(&releases[..]));
        let locked = format!("name = \"cudarc\"\nversion = \"{CUDARC}\"\n");
        assert!(text("Cargo.lock")?.contains(&locked), "not {CUDARC}");
        Ok(())
    }

    #[test]
    fn cudart_names_the_first_and_the_last_version() {
        let release = |at: usize| {
            let (_, version) = runtimes::VERSIONS[at];
            version.rsplit_once('.').map_or("", |(release, _)| release)
        };
        let last = runtimes::VERSIONS.len() - 1;
        let versions = format!("{} to {}", release(0), release(last));
        let suite = ALL.iter().find(|s| s.name == "cudart");
        assert_eq!(suite.map(|s| s.version), Some(&versions[..]));
    }

    #[test]
    fn the_samples_name_the_commits_that_are_fetched() {
        let version = format!("{}, {}", &samples::OF_CUDA_13[..8], samples::OF_CUDA_12);
        for suite in ALL.iter().filter(|s| s.name.starts_with("cuda-samples")) {
            assert_eq!(suite.version, version);
        }
    }

    /// The first cells of the tables in a section of `docs/clients.md`.
    fn first_cells<'a>(docs: &'a str, section: &str) -> Vec<&'a str> {
        let start = format!("\n## {section}\n");
        let section = docs.split_once(&start).map_or("", |(_, rest)| rest);
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows = section.lines().filter_map(|line| line.strip_prefix('|'));
        let cells = rows.flat_map(|row| row.split('|').next().unwrap_or_default().split(','));
        cells.map(|cell| cell.trim().trim_matches('`')).collect()
    }

    #[test]
    fn the_docs_have_a_row_of_each_suite_and_commits_in_one_form() -> Result<()> {
        let docs = text("docs/clients.md")?;
        for section in ["Suites", "Results"] {
            let cells = first_cells(&docs, section);
            for Suite { name, version, .. } in ALL {
                let is_row = |cell: &&str| cell == name || *cell == format!("{name} {version}");
                assert!(cells.iter().any(is_row), "{section}: {name}: {cells:?}");
            }
        }
        // The samples' commit is NVIDIA's, in the form of the checkout's name.
        let theirs = ALL
            .iter()
            .find(|s| s.name == "cuda-samples")
            .map_or("", |s| s.version);
        let words = docs.split(|c: char| !c.is_ascii_alphanumeric());
        let is_commit = |word: &&str| {
            let is_hex = word.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
            word.len() > 5 && is_hex && word.contains(|c: char| c.is_ascii_digit())
        };
        for commit in words
            .filter(is_commit)
            .filter(|word| !theirs.starts_with(*word))
        {
            assert_eq!(commit.len(), 7, "{commit}");
        }
        Ok(())
    }
}
