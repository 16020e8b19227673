//! `ldmatrix`, `stmatrix` and `movmatrix`.

use super::{Bench, HEADER};
use crate::exec::contract::Fault;

/// A kernel for 32 threads. Thread `t` gives the address of row `(5 t + 3) % 32`, and rows have 16
/// bytes. Every 16-bit word of the buffer holds its index.
fn kernel(body: &str, generic: bool) -> String {
    let cvta = if generic {
        "cvta.shared.u64 %row, %row;"
    } else {
        ""
    };
    format!(
        "{HEADER}.visible .entry k(.param .u64 out, .param .u64 off) {{
         .shared .align 16 .b8 buffer[512];
         .reg .b64 %out, %row, %off, %at; .reg .b32 %t, %w, %r<4>; .reg .b16 %h;
         ld.param.u64 %out, [out]; ld.param.u64 %off, [off];
         mov.u32 %t, %tid.x; mov.u64 %at, buffer; mad.wide.u32 %at, %t, 16, %at;
         mul.lo.u32 %w, %t, 8; mad.lo.u32 %w, %w, 65537, 65536;
         st.shared.b32 [%at], %w; add.u32 %w, %w, 131074; st.shared.b32 [%at+4], %w;
         add.u32 %w, %w, 131074; st.shared.b32 [%at+8], %w;
         add.u32 %w, %w, 131074; st.shared.b32 [%at+12], %w;
         bar.sync 0;
         mad.lo.u32 %w, %t, 5, 3; and.b32 %w, %w, 31; mov.u64 %row, buffer;
         mad.wide.u32 %row, %w, 16, %row; add.u64 %row, %row, %off; {cvta}
         mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;
         {body}
         bar.sync 0;
         mad.wide.u32 %out, %t, 16, %out;
         st.global.v4.b32 [%out], {{%r0, %r1, %r2, %r3}};
         ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%at];
         st.global.v4.b32 [%out+512], {{%r0, %r1, %r2, %r3}};
         ret; }}"
    )
}

fn run(body: &str, generic: bool, off: u64) -> Result<Vec<u32>, Fault> {
    let bench = Bench::new();
    let (p, _) = bench.load(&kernel(body, generic));
    let out = bench.words(&[0; 256]);
    bench.launch(&p, "k", [1, 1, 1], [32, 1, 1], &[out, off])?;
    Ok(bench.read_words(out, 256))
}

const LISTS: [(usize, &str); 3] = [(1, "{%r0}"), (2, "{%r0, %r1}"), (4, "{%r0, %r1, %r2, %r3}")];

/// The 16-bit word at (row, column) of matrix `m`. Lane `8m + row` gave the address of the row.
fn element(m: usize, row: usize, column: usize) -> usize {
    ((8 * m + row) * 5 + 3) % 32 * 8 + column
}

#[test]
pub(super) fn loads() {
    for (count, list) in LISTS {
        for (trans, transposed) in [("", false), (".trans", true)] {
            for (space, generic) in [(".shared", false), ("", true), (".shared::cta", false)] {
                let body = format!(
                    "ldmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 {list}, [%row];"
                );
                let got = run(&body, generic, 0).unwrap();
                for lane in 0..32 {
                    for m in 0..4 {
                        let half = |j: usize| {
                            let (r, c) = (lane / 4, lane % 4 * 2 + j);
                            let (r, c) = if transposed { (c, r) } else { (r, c) };
                            element(m, r, c) as u32
                        };
                        let want = if m < count {
                            half(1) << 16 | half(0)
                        } else {
                            0
                        };
                        assert_eq!(got[lane * 4 + m], want, "{body} lane {lane}, {m}");
                    }
                }
            }
        }
    }
}

#[test]
pub(super) fn stores() {
    for (count, list) in LISTS {
        for (trans, transposed, space) in [
            ("", false, ".shared"),
            (".trans", true, ".shared"),
            ("", false, ".shared::cta"),
            (".trans", true, ".shared::cta"),
            ("", false, ""),
            (".trans", true, ""),
        ] {
            let fill = "mad.lo.u32 %r0, %t, 131074, 66536; add.u32 %r1, %r0, 6553700;
                        add.u32 %r2, %r1, 6553700; add.u32 %r3, %r2, 6553700; bar.sync 0;";
            let body = format!(
                "{fill} stmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 [%row], {list};"
            );
            let got = run(&body, space.is_empty(), 0).unwrap();
            let halves: Vec<u32> = got[128..]
                .iter()
                .flat_map(|w| [w & 0xffff, w >> 16])
                .collect();
            // Register m of lane l holds 1000 + 100m + 2l in its low half and 1 + 100m + 2l in its
            // high half.
            let mut want: Vec<u32> = (0..256).collect();
            for m in 0..count {
                for lane in 0..32 {
                    for j in 0..2 {
                        let (r, c) = (lane / 4, lane % 4 * 2 + j);
                        let (r, c) = if transposed { (c, r) } else { (r, c) };
                        let register = 66536u32 + 6_553_700 * m as u32 + 131_074 * lane as u32;
                        want[element(m, r, c)] = register >> (16 * j) & 0xffff;
                    }
                }
            }
            assert_eq!(halves, want, "{body}");
        }
    }
}

#[test]
pub(super) fn transposes() {
    let body = "mad.lo.u32 %r1, %t, 131074, 65536; movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;";
    let got = run(body, false, 0).unwrap();
    // Lane l of the source holds elements 2l and 2l + 1 of the 64 elements.
    for lane in 0..32u32 {
        let half = |j: u32| (lane % 4 * 2 + j) * 8 + lane / 4;
        assert_eq!(
            got[lane as usize * 4],
            half(1) << 16 | half(0),
            "lane {lane}"
        );
    }
}

#[test]
pub(super) fn row_addresses_are_checked() {
    let body = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%row];";
    let fault = run(body, false, 8);
    assert!(matches!(fault, Err(Fault::Misaligned(_))), "{fault:?}");
    // Lane 12 gives row 31. The offset of 16 bytes moves this row out of the buffer.
    let fault = run(
        &body.replace("x1", "x4").replace("{%r0}", LISTS[2].1),
        false,
        16,
    );
    assert!(matches!(fault, Err(Fault::IllegalAddress(_))), "{fault:?}");
    // Only the addresses of the first eight lanes are used.
    let only = "setp.ge.u32 %p, %t, 8; @%p mov.u64 %row, 0x7ffffff0;";
    run(&format!(".reg .pred %p; {only} {body}"), false, 0).unwrap();
}
