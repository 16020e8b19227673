//! A chain of multiply-adds that runs as one operation must give the result of the single
//! instructions.

use super::inputs::Random;
use super::{Bench, HEADER};
use crate::exec::contract::Fault;
use crate::exec::program::Program;

/// Number of words in the table that the kernels read, in shared and in global memory.
const WORDS: usize = 1024;

/// Words for the table: singles of every kind. Many are small, so that sums stay finite.
fn table() -> Vec<u32> {
    let mut random = Random(31);
    let edges = [
        0u32,
        0x8000_0000,
        1,
        0x807f_ffff,
        0x0080_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_1234,
        0xff80_0001,
    ];
    (0..WORDS)
        .map(|k| match k % 61 {
            n if k > 700 && n < edges.len() => edges[n],
            _ => ((random.next() % 2001) as f32 / 500.0 - 2.0).to_bits(),
        })
        .collect()
}

/// The way in which the index into the table depends on the thread.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lanes {
    Same,
    Each,
    /// Sixteen threads per row, as in kernels that use tiles.
    Rows,
    Scattered,
}

const ALL: [Lanes; 4] = [Lanes::Same, Lanes::Each, Lanes::Rows, Lanes::Scattered];

impl Lanes {
    fn index(self, t: u32) -> u32 {
        match self {
            Lanes::Same => 3,
            Lanes::Each => t,
            Lanes::Rows => t % 16 + t / 16 * 48,
            Lanes::Scattered => t * 37 % 101,
        }
    }

    /// PTX code that writes the index of thread `%t` to register `to`.
    fn code(self, to: &str) -> String {
        match self {
            Lanes::Same => format!("mov.u32 {to}, 3; add.u32 {to}, {to}, %zero;"),
            Lanes::Each => format!("mov.u32 {to}, %t;"),
            Lanes::Rows => {
                format!("and.b32 {to}, %t, 15; shr.u32 %w, %t, 4; mad.lo.u32 {to}, %w, 48, {to};")
            }
            Lanes::Scattered => format!("mul.lo.u32 {to}, %t, 37; rem.u32 {to}, {to}, 101;"),
        }
    }
}

/// A kernel that runs `chain`, with the addresses `%x` and `%y` in the given spaces. `%s` starts as
/// the thread number, and is stored at the end.
fn kernel(chain: &str, x: (Lanes, &str), y: (Lanes, &str)) -> String {
    let address = |to: &str, (lanes, space): (Lanes, &str)| {
        let base = if space == "shared" { "%tile" } else { "%in" };
        format!("{} mad.wide.u32 {to}, %i, 4, {base};\n", lanes.code("%i"))
    };
    format!(
        "{HEADER}.visible .entry k(.param .u64 out, .param .u64 in, .param .u32 zero) {{
         .shared .align 16 .b8 tile[4096]; .reg .pred %p; .reg .b64 %out, %in, %x, %y, %tile, %at, %to;
         .reg .b32 %t, %i, %w, %n, %zero; .reg .f32 %s, %v<64>, %u<64>, %r<64>;
         ld.param.u64 %out, [out]; ld.param.u64 %in, [in]; ld.param.u32 %zero, [zero]; mov.u32 %t, %tid.x;
         mov.u64 %tile, tile; mov.u32 %n, %t;
         COPY: mad.wide.u32 %at, %n, 4, %in; ld.global.u32 %w, [%at];
         mad.wide.u32 %to, %n, 4, %tile; st.shared.u32 [%to], %w;
         mov.u32 %w, %ntid.x; add.u32 %n, %n, %w; setp.lt.u32 %p, %n, {WORDS}; @%p bra COPY; bar.sync 0;
         cvt.rn.f32.u32 %s, %t;
         {}{}{chain}
         mad.wide.u32 %out, %t, 4, %out; st.global.f32 [%out], %s; ret; }}",
        address("%x", x),
        address("%y", y),
    )
}

/// PTX code of `n` terms. `steps` are the distances between the addresses of successive loads, in
/// words.
fn terms(n: u32, x: &str, y: &str, steps: [u32; 2], ftz: &str) -> String {
    (0..n)
        .map(|k| {
            let from = if k == 0 { "%s".to_owned() } else { format!("%r{}", k - 1) };
            let to = if k + 1 == n { "%s".to_owned() } else { format!("%r{k}") };
            format!(
                "ld.{x}.f32 %v{k}, [%x+{}]; ld.{y}.f32 %u{k}, [%y+{}]; fma.rn{ftz}.f32 {to}, %u{k}, %v{k}, {from};\n",
                4 * k * steps[0],
                4 * k * steps[1]
            )
        })
        .collect()
}

fn run(text: &str, threads: u32, baseline: bool) -> Result<Vec<u32>, Fault> {
    let bench = Bench::new();
    let (p, _) = bench.load_as(text, baseline);
    let (out, input) = (bench.words(&[0; 64]), bench.words(&table()));
    bench.launch(&p, "k", [1, 1, 1], [threads, 1, 1], &[out, input, 0])?;
    Ok(bench.read_words(out, threads as usize))
}

/// The number of terms of each chain that the lowering finds in a program.
fn chains(text: &str) -> Vec<u64> {
    use crate::exec::ops::element::layout::CHAIN_SHIFT;
    let program: Program = Bench::new().load(text).0;
    let marks = program.code.iter().map(|i| i.imm >> CHAIN_SHIFT);
    marks.filter(|n| (1..=16).contains(n)).collect()
}

fn expected(t: u32, n: u32, lanes: [Lanes; 2], steps: [u32; 2], ftz: bool) -> u32 {
    let table = table();
    let flush = |x: f32| {
        if ftz && x.is_subnormal() {
            0f32.copysign(x)
        } else {
            x
        }
    };
    let at = |k: u32, which: usize| {
        let word = lanes[which].index(t) + k * steps[which];
        flush(f32::from_bits(table[word as usize]))
    };
    let sum = (0..n).fold(t as f32, |s, k| flush(at(k, 0).mul_add(at(k, 1), s)));
    if sum.is_nan() {
        0x7fff_ffff
    } else {
        sum.to_bits()
    }
}

#[test]
fn every_kind_of_addresses_in_both_spaces() {
    for x in ALL {
        for y in ALL {
            for (sx, sy) in [
                ("shared", "shared"),
                ("global", "global"),
                ("global", "shared"),
                ("shared", "global"),
            ] {
                for (n, steps, ftz) in [
                    (1, [1, 1], ""),
                    (5, [16, 1], ".ftz"),
                    (16, [16, 41], ""),
                    (19, [40, 1], ""),
                ] {
                    let text = kernel(&terms(n, sx, sy, steps, ftz), (x, sx), (y, sy));
                    let want = if n > 16 {
                        vec![16, u64::from(n) - 16]
                    } else {
                        vec![u64::from(n)]
                    };
                    assert_eq!(chains(&text), want, "{text}");
                    for threads in [64, 40] {
                        for baseline in [false, true] {
                            let got = run(&text, threads, baseline).expect("runs");
                            for (t, got) in (0..).zip(got) {
                                let want = expected(t, n, [x, y], steps, !ftz.is_empty());
                                assert_eq!(
                                    got, want,
                                    "thread {t}, {x:?} {y:?}, {threads}, {baseline}:\n{text}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn values_that_other_instructions_read_are_kept() {
    let term = "ld.shared.f32 %v0, [%x]; ld.shared.f32 %u0, [%y]; fma.rn.f32 %r0, %v0, %u0, %s;";
    let next =
        "ld.shared.f32 %v1, [%x+4]; ld.shared.f32 %u1, [%y+4]; fma.rn.f32 %r1, %v1, %u1, %r0;";
    for (chain, want) in [
        (format!("{term}{next} mov.f32 %s, %r1;"), vec![2]),
        // These chains are cut: an intermediate sum or a factor is read, a label or a guard
        // interrupts the chain, or the instructions are in another order.
        (format!("{term}{next} add.f32 %s, %r0, %r1;"), vec![1, 1]),
        (format!("{term}{next} add.f32 %s, %v1, %r1;"), vec![1]),
        (format!("{term} L: {next} mov.f32 %s, %r1;"), vec![1, 1]),
        (format!("@%p {term}{next} mov.f32 %s, %r1;"), vec![1]),
        (
            format!(
                "{term} mov.f32 %r1, %r0; {} mov.f32 %s, %r2;",
                next.replace("%r1", "%r2")
            ),
            vec![1, 1],
        ),
        (
            term.replace("[%y]", "[%y]; M: ") + "mov.f32 %s, %r0;",
            vec![],
        ),
        (term.replace("%u0", "%v0") + "mov.f32 %s, %r0;", vec![]),
        (
            term.replace("fma.rn", "fma.rz") + "mov.f32 %s, %r0;",
            vec![],
        ),
        (
            term.replace("ld.shared.f32 %v0", "ld.volatile.shared.f32 %v0") + "mov.f32 %s, %r0;",
            vec![],
        ),
    ] {
        let text = kernel(&chain, (Lanes::Same, "shared"), (Lanes::Each, "shared"));
        assert_eq!(chains(&text), want, "{chain}");
        let best = run(&text, 64, false).expect("runs");
        assert_eq!(best, run(&text, 64, true).expect("runs"), "{chain}");
    }
}

#[test]
fn a_term_beyond_the_memory_faults_by_itself() {
    let chain = terms(6, "shared", "shared", [1, 200], "");
    let text = kernel(&chain, (Lanes::Same, "shared"), (Lanes::Each, "shared"));
    assert_eq!(chains(&text), [6]);
    // For the last term, words 4 · 200 + 0..64 are in the memory, words 5 · 200 + 24..64 are not.
    let line = text
        .lines()
        .position(|l| l.contains("+4000]"))
        .expect("the last term")
        + 1;
    match run(&text, 64, false) {
        Err(Fault::IllegalAddress(e)) => {
            assert!(e.contains(&format!("PTX line {line},")), "{line}: {e}");
        }
        other => panic!("{other:?}"),
    }
    let odd = kernel(
        &chain.replace("[%x+8]", "[%x+9]"),
        (Lanes::Same, "shared"),
        (Lanes::Each, "shared"),
    );
    assert!(matches!(run(&odd, 64, false), Err(Fault::Misaligned(_))));
}
