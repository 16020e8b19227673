//! The driver API beyond the basics, by part, as a program sees it: directly on soft-gpu, which
//! shows that the program is right, and through the whole system.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use vgpu_cuda_abi::names;
use vgpu_tests::guest::{self, Guest, Target, expect_right};
use vgpu_tests::host::{Options, one_vm};
use vgpu_tests::paths;
use vgpu_tests::wait::SOON;

fn part(name: &str) -> Result<()> {
    let host = one_vm(&Options::default())?;
    expect_right(&Guest::new(guest::SURFACE, host.target(1))?.arg(name))
        .map(|_| ())
        .map_err(|e| e.context(format!("the daemon's log:\n{}", host.log())))
}

#[test]
fn the_program_is_right_on_soft_gpu_directly() -> Result<()> {
    for name in [
        "pools",
        "library",
        "linking",
        "areas",
        "threads",
        "words",
        "captures",
        "graphs",
        "host_functions",
    ] {
        expect_right(&Guest::new(guest::SURFACE, Target::SoftGpu)?.arg(name))?;
    }
    Ok(())
}

#[test]
fn stream_ordered_memory_and_pools() -> Result<()> {
    part("pools")
}

#[test]
fn libraries_and_kernels() -> Result<()> {
    part("library")
}

#[test]
fn linking() -> Result<()> {
    part("linking")
}

#[test]
fn copies_of_rows_and_boxes() -> Result<()> {
    part("areas")
}

#[test]
fn host_functions_run_in_the_program_in_stream_order() -> Result<()> {
    part("host_functions")
}

#[test]
fn a_host_function_that_never_returns_blocks_only_its_stream() -> Result<()> {
    part("host_never")
}

#[test]
fn eight_threads_with_many_streams_keep_their_order() -> Result<()> {
    part("threads")
}

#[test]
fn words_that_streams_write_and_wait_for() -> Result<()> {
    part("words")
}

#[test]
fn capture_of_streams() -> Result<()> {
    part("captures")
}

#[test]
fn graphs_by_hand() -> Result<()> {
    part("graphs")
}

#[test]
fn what_is_refused_is_refused_with_a_sentence() -> Result<()> {
    let host = one_vm(&Options::default())?;
    let output = Guest::new(guest::REFUSALS, host.target(1))?
        .spawn()?
        .finish(SOON)?;
    let said = guest::describe(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("managed memory is not moved"), "{said}");
    Ok(())
}

/// A program that is linked against two functions of graphics APIs, and prints the result of each
/// function in its arguments.
const DISPLAY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int cuInit(unsigned);
int cuGLGetDevices_v2(unsigned *, int *, unsigned, int);
int cuVDPAUGetDevice(int *, unsigned, void *);
int main(int argc, char **argv) {
    int device;
    unsigned count;
    if (cuInit(0)) return 2;
    printf("linked %d %d\n", cuGLGetDevices_v2(&count, &device, 1, 1), cuVDPAUGetDevice(&device, 0, 0));
    for (int i = 1; i < argc; i++) {
        int (*function)(long, long, long, long, long, long) =
            (int (*)(long, long, long, long, long, long))dlsym(RTLD_DEFAULT, argv[i]);
        printf("%s %d\n", argv[i], function ? function(0, 0, 0, 0, 0, 0) : -1);
    }
    return 0;
}
"#;

/// Builds the program in `dir`; the loader binds every symbol before the program starts.
fn display_program(dir: &Path) -> Result<PathBuf> {
    let (source, program) = (dir.join("display.c"), dir.join("display"));
    std::fs::write(&source, DISPLAY)?;
    let built = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .arg(format!("-L{}", paths::shim_dir()?.display()))
        .args([
            "-l:libcuda.so.1",
            "-ldl",
            "-Wl,-z,now",
            "-Wl,--allow-shlib-undefined",
        ])
        .status()?;
    ensure!(built.success(), "a C compiler is needed");
    Ok(program)
}

#[test]
fn programs_that_link_against_graphics_load_and_each_of_its_functions_refuses() -> Result<()> {
    // Of `cuGraphics…`, the other functions belong to all graphics APIs.
    const BEGINNINGS: [&str; 6] = [
        "cuEGL",
        "cuGL",
        "cuVDPAU",
        "cuGraphicsEGL",
        "cuGraphicsGL",
        "cuGraphicsVDPAU",
    ];
    let ours = |symbol: &&str| {
        BEGINNINGS.iter().any(|begin| symbol.starts_with(begin))
            || *symbol == "cuGraphicsResourceGetMappedEglFrame"
    };
    let symbols: Vec<&str> = names::symbols().into_iter().filter(ours).collect();
    assert_eq!(symbols.len(), 35, "{symbols:?}");
    let dir = tempfile::tempdir()?;
    let program = display_program(dir.path())?;
    let host = one_vm(&Options::default())?;
    for target in [Target::SoftGpu, host.target(1)] {
        let guest = Guest::of_binary(program.clone(), target.clone());
        let guest = symbols
            .iter()
            .fold(guest, |guest, symbol| guest.arg(*symbol));
        let output = guest.run(SOON)?;
        ensure!(output.status.success(), "{}", guest::describe(&output));
        let said = String::from_utf8(output.stdout)?;
        let refused = symbols.iter().map(|symbol| format!("{symbol} 801\n"));
        let expected: String = std::iter::once("linked 801 801\n".into())
            .chain(refused)
            .collect();
        assert_eq!(said, expected, "{target:?}");
    }
    Ok(())
}
