//! `cp.async`: every width, zero fill, and faults.

use super::{Bench, HEADER};
use crate::exec::contract::Fault;

/// A kernel in which 32 threads run `copy` from `%src` to `%dst`, and then store the copied bytes.
fn kernel(copy: &str) -> String {
    format!(
        "{HEADER}.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n, .param .u32 at) {{
         .shared .align 16 .b8 buffer[1024];
         .reg .pred %p; .reg .b64 %src, %out, %off; .reg .b32 %t, %n, %at, %dst, %w;
         ld.param.u64 %src, [in]; ld.param.u64 %out, [out];
         ld.param.u32 %n, [n]; ld.param.u32 %at, [at];
         mov.u32 %t, %tid.x; shl.b32 %w, %t, 5; mov.u32 %dst, buffer; add.u32 %dst, %dst, %w;
         mov.u32 %w, 0xaaaaaaaa;
         st.shared.v4.b32 [%dst], {{%w, %w, %w, %w}}; st.shared.v4.b32 [%dst+16], {{%w, %w, %w, %w}};
         mad.wide.u32 %src, %t, 32, %src; mad.wide.u32 %out, %t, 32, %out;
         setp.ne.u32 %p, %n, 0;
         add.u32 %dst, %dst, %at;
         {copy}
         cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all;
         sub.u32 %dst, %dst, %at; bar.sync 0;
         .reg .b32 %v<4>;
         ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%dst];
         st.global.v4.b32 [%out], {{%v0, %v1, %v2, %v3}};
         ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%dst+16];
         st.global.v4.b32 [%out+16], {{%v0, %v1, %v2, %v3}};
         ret; }}"
    )
}

fn run(bench: &Bench, copy: &str, n: u32, at: u32) -> Result<Vec<u8>, Fault> {
    let (p, _) = bench.load(&kernel(copy));
    let input = bench.alloc(1024);
    bench.write(
        input,
        &(0..1024).map(|k| (k * 7 + 1) as u8).collect::<Vec<u8>>(),
    );
    let out = bench.alloc(1024);
    let params = [input, out, u64::from(n), u64::from(at)];
    bench.launch(&p, "k", [1, 1, 1], [32, 1, 1], &params)?;
    Ok(bench.read(out, 1024))
}

/// The expected 32 bytes of each thread: from `at` on, `take` copied bytes and zeros up to `size`
/// bytes. All other bytes are unchanged.
fn expected(size: usize, take: usize, at: usize) -> Vec<u8> {
    (0..1024)
        .map(|k: usize| match (k % 32).checked_sub(at) {
            Some(b) if b < take => ((k - at) * 7 + 1) as u8,
            Some(b) if b < size => 0,
            _ => 0xaa,
        })
        .collect()
}

#[test]
pub(super) fn widths_and_zero_fill() {
    let bench = Bench::new();
    for (op, size) in [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)] {
        let name = format!("cp.async.{op}.shared.global");
        let copy = format!("{name} [%dst], [%src], {size};");
        for at in [0, 16] {
            let got = run(&bench, &copy, 1, at).unwrap();
            assert_eq!(got, expected(size, size, at as usize), "{copy}");
        }
        for space in ["shared", "shared::cta"] {
            for ahead in ["", ".L2::64B", ".L2::128B", ".L2::256B"] {
                let form = format!("cp.async.{op}.{space}.global{ahead}");
                let hints = format!("{form} [%dst+0], [%src], {size};");
                assert_eq!(run(&bench, &hints, 1, 0).unwrap(), expected(size, size, 0));
                let form = format!("cp.async.{op}.{space}.global.L2::cache_hint{ahead}");
                let hints = format!(
                    "createpolicy.fractional.L2::evict_last.b64 %off, 1.0; {form} [%dst+0], [%src], {size}, %n, %off;"
                );
                assert_eq!(run(&bench, &hints, 3, 0).unwrap(), expected(size, 3, 0));
            }
        }
        for take in 0..=size {
            let copy = format!("{name} [%dst], [%src], {size}, %n;");
            let got = run(&bench, &copy, take as u32, 0).unwrap();
            assert_eq!(got, expected(size, take, 0), "{copy} {take}");
        }
        for (n, take) in [(0, size), (1, 0)] {
            let copy = format!("{name} [%dst], [%src], {size}, %p;");
            let got = run(&bench, &copy, n, 0).unwrap();
            assert_eq!(got, expected(size, take, 0), "{copy} {n}");
        }
    }
    let copy = "cp.async.cg.shared::cta.global [%dst], [%src], 16;";
    assert_eq!(run(&bench, copy, 1, 0).unwrap(), expected(16, 16, 0));
    let copy = "@%p cp.async.cg.shared.global [%dst], [%src], 16;";
    assert_eq!(run(&bench, copy, 0, 0).unwrap(), expected(0, 0, 0));
}

#[test]
pub(super) fn addresses_are_checked() {
    let bench = Bench::new();
    let illegal = |copy: &str, at: u32| {
        let r = run(&bench, copy, 0, at);
        assert!(matches!(r, Err(Fault::IllegalAddress(_))), "{copy}: {r:?}");
    };
    illegal("cp.async.ca.shared.global [%dst], [16], 4;", 0);
    illegal("cp.async.ca.shared.global [%dst], [%src+1024], 4;", 0);
    illegal("cp.async.cg.shared.global [%dst], [%src], 16;", 1024);
    let misaligned = |copy: &str, at: u32| {
        let r = run(&bench, copy, 0, at);
        assert!(matches!(r, Err(Fault::Misaligned(_))), "{copy}: {r:?}");
    };
    misaligned("cp.async.ca.shared.global [%dst], [%src], 8;", 4);
    misaligned("cp.async.cg.shared.global [%dst], [%src+8], 16;", 0);
    // Nothing is read, so any source is valid.
    let copy = "cp.async.cg.shared.global [%dst], [3], 16, 0;";
    assert_eq!(run(&bench, copy, 0, 0).unwrap(), expected(16, 0, 0));
}

#[test]
pub(super) fn forms_that_do_not_exist_are_refused() {
    let load = |copy: &str| {
        let opts = crate::exec::contract::LoadOptions::of((8, 0));
        crate::exec::program::Program::load(kernel(copy).as_bytes(), &opts).is_ok()
    };
    assert!(load("cp.async.ca.shared.global [%dst], [%src], 4;"));
    for copy in [
        "cp.async.cg.shared.global [%dst], [%src], 8;",
        "cp.async.ca.shared.global [%dst], [%src], 12;",
        "cp.async.ca.global.shared [%src], [%dst], 4, 4, 4;",
        "cp.async.shared.global [%dst], [%src], 4;",
        "cp.async.wait_group %n;",
        "cp.async.bulk.shared.global [%dst], [%src], 16;",
    ] {
        assert!(!load(copy), "{copy}");
    }
}
