//! What a VM learns of itself without a session, through the whole line.

use anyhow::Result;
use vgpu_tests::guest::{self, Guest, Target};
use vgpu_tests::host::{Options, one_vm};
use vgpu_tests::wait::SOON;

/// A host with a driver of CUDA 12.4.
fn old_driver() -> Options {
    Options {
        soft_env: vec![("SOFT_GPU_DRIVER_VERSION".into(), "12040".into())],
        ..Options::default()
    }
}

#[test]
fn a_process_sees_one_cuda_version_the_host_s() -> Result<()> {
    let host = one_vm(&old_driver())?;
    let output = Guest::new(guest::VERSION, host.target(1))?.run(SOON)?;
    let said = guest::describe(&output);
    assert!(output.status.success(), "{said}");
    let lines: Vec<_> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    let expected = ["child-before", "before", "after", "child-after"];
    assert_eq!(
        lines,
        expected.map(|when| format!("{when} 12040")),
        "{said}"
    );

    // Looking opened no session: only cuInit did.
    let usage = host.vm(1)?["usage"]["sessions"].clone();
    assert_eq!(usage, 1, "{usage}");
    Ok(())
}

#[test]
fn without_a_vgpud_the_version_is_told_at_once() -> Result<()> {
    let nobody = Target::Remote("unix:/nonexistent/vgpu.sock".into());
    let output = Guest::new(guest::VERSION, nobody)?.run(SOON)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("before 13000") && said.contains("after 13000"),
        "{said}"
    );
    Ok(())
}
