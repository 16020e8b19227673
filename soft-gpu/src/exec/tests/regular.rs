//! Loads and stores in every space whose lanes follow a rule, almost follow a rule, or exceed the
//! memory. The reference reads and writes bytes lane by lane.

use super::{Bench, HEADER};
use crate::exec::contract::Fault;
use crate::exec::inst::LANES;

/// Number of bytes that the lanes may access, in global and in shared memory.
const BYTES: usize = 1024;

/// Constant offset in the instructions. The table of addresses subtracts the offset.
const OFFSET: i64 = 16;

/// An access: name of the type in PTX, bytes per element, number of elements, register class and
/// sign.
#[derive(Clone, Copy)]
struct Form {
    name: &'static str,
    bytes: usize,
    count: usize,
    wide: bool,
    signed: bool,
}

const fn form(name: &'static str, bytes: usize, count: usize, wide: bool) -> Form {
    let signed = matches!(name.as_bytes()[0], b's');
    Form {
        name,
        bytes,
        count,
        wide,
        signed,
    }
}

const FORMS: [Form; 10] = [
    form("u8", 1, 1, false),
    form("s8", 1, 1, true),
    form("s16", 2, 1, false),
    form("u32", 4, 1, false),
    form("s32", 4, 1, true),
    form("b64", 8, 1, true),
    form("v2.u32", 4, 2, false),
    form("v4.f32", 4, 4, false),
    form("v2.b64", 8, 2, true),
    form("v4.u8", 1, 4, false),
];

/// Ways to compute an address from the offset in `%r1` (or `%d4`): the space of the access, the
/// code and the address register.
const SPACES: [(&str, &str, &str); 5] = [
    (".global", "add.s64 %d5, %d0, %d4;", "%d5"),
    ("", "add.s64 %d5, %d0, %d4;", "%d5"),
    (".shared", "mov.u32 %r4, box; add.u32 %r4, %r4, %r1;", "%r4"),
    (".shared", "mov.u64 %d5, box; add.s64 %d5, %d5, %d4;", "%d5"),
    (
        "",
        "mov.u64 %d5, box; cvta.shared.u64 %d5, %d5; add.s64 %d5, %d5, %d4;",
        "%d5",
    ),
];

/// A kernel of one warp with one load or store, by the lanes whose bits are set in the low word of
/// `lanes`.
fn kernel(f: Form, space: (&str, &str, &str), store: bool) -> String {
    let (qualifier, address, register) = space;
    let class = match f.name {
        "v4.f32" => "%f",
        _ if f.wide => "%v",
        _ => "%w",
    };
    let regs: Vec<String> = (0..f.count).map(|k| format!("{class}{k}")).collect();
    let list = match f.count {
        1 => regs[0].clone(),
        _ => format!("{{{}}}", regs.join(", ")),
    };
    let mut fill = String::new();
    for k in 0..f.count {
        fill += &format!("mad.lo.u64 %v{k}, %d6, 0x9e3779b97f4a7c15, {k};\n");
        fill += &format!("cvt.u32.u64 %w{k}, %v{k}; mov.b32 %f{k}, %w{k};\n");
    }
    let name = f.name;
    let access = if store {
        format!("@%p0 st{qualifier}.{name} [{register}+{OFFSET}], {list};")
    } else {
        format!("@%p0 ld{qualifier}.{name} {list}, [{register}+{OFFSET}];")
    };
    let mut keep = String::new();
    for k in 0..f.count {
        let bits = if f.wide { "b64" } else { "b32" };
        keep += &format!("st.global.{bits} [%d7+{}], {class}{k};\n", 8 * k);
    }
    let copy = |body: &str| -> String {
        (0..BYTES / 128)
            .map(|j| body.replace('#', &(128 * j).to_string()))
            .collect()
    };
    let bring = copy("ld.global.u32 %r2, [%d8+#]; st.shared.u32 [%r3+#], %r2;\n");
    let back = if store && address.contains("box") {
        copy("ld.shared.u32 %r2, [%r3+#]; st.global.u32 [%d8+#], %r2;\n")
    } else {
        String::new()
    };
    format!(
        "{HEADER}.visible .entry k(.param .u64 data, .param .u64 offsets, .param .u64 out, .param .u64 lanes) {{\n\
         .shared .align 16 .b8 box[{BYTES}];\n\
         .reg .b32 %r<9>, %w<4>; .reg .f32 %f<4>; .reg .b64 %d<9>, %v<4>; .reg .pred %p0;\n\
         ld.param.u64 %d0, [data]; ld.param.u64 %d1, [offsets]; ld.param.u64 %d2, [out];\n\
         ld.param.u32 %r5, [lanes]; mov.u32 %r0, %tid.x;\n\
         mul.wide.u32 %d3, %r0, 4; add.s64 %d8, %d0, %d3; add.s64 %d3, %d3, %d1;\n\
         ld.global.u32 %r1, [%d3]; cvt.s64.s32 %d4, %r1; cvt.u64.u32 %d6, %r0; add.u64 %d6, %d6, 1;\n\
         mad.wide.u32 %d7, %r0, 32, %d2; mov.u32 %r3, box; mad.lo.u32 %r3, %r0, 4, %r3;\n\
         shr.u32 %r6, %r5, %r0; and.b32 %r6, %r6, 1; setp.ne.u32 %p0, %r6, 0;\n\
         {fill}{bring}bar.sync 0;\n{address}\n{access}\nbar.sync 0;\n{keep}{back}ret;\n}}\n"
    )
}

/// Value of register `k` of lane `l` before the access.
fn value(l: usize, k: usize, wide: bool) -> u64 {
    let v = (l as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) + k as u64;
    if wide { v } else { v & 0xffff_ffff }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// Random offsets of the lanes, and the mask of the active lanes.
fn case(r: &mut Random, size: i64) -> ([i64; LANES], u32) {
    let end = BYTES as i64;
    let anywhere = |r: &mut Random| r.below(BYTES / size as usize) as i64 * size;
    let start = match r.below(8) {
        0 => end - 16 * size,
        1 => end - 32 * size,
        2 => end - 15 * size,
        3 => end - size,
        4 => -size,
        5 => 0,
        _ => anywhere(r) / 2 / size * size,
    };
    let step = [0, size, size, size, 2 * size, -size][r.below(6)];
    let second = match r.below(4) {
        0 => start,
        1 => anywhere(r) / 2 / size * size,
        _ => start + 16 * step,
    };
    let mut at = [0; LANES];
    for (l, at) in at.iter_mut().enumerate() {
        *at = if l < 16 { start } else { second } + (l as i64 % 16) * step;
    }
    match r.below(8) {
        0 => at[r.below(LANES)] += size,
        1 => at[r.below(LANES)] += size / 2,
        2 if size > 1 => at.iter_mut().for_each(|a| *a += 1),
        _ => {}
    }
    let mask = match r.below(4) {
        0 => (r.below(1 << 16) | r.below(1 << 16) << 16) as u32,
        _ => u32::MAX,
    };
    (at, mask)
}

/// Reads the element at `at`. Returns the value that a register gets.
fn element(data: &[u8], at: usize, f: Form) -> u64 {
    let mut word = [0u8; 8];
    word[..f.bytes].copy_from_slice(&data[at..at + f.bytes]);
    let v = u64::from_le_bytes(word);
    let shift = 64 - 8 * f.bytes as u32;
    let v = if f.signed {
        ((v << shift) as i64 >> shift) as u64
    } else {
        v
    };
    if f.wide { v } else { v & 0xffff_ffff }
}

fn check(f: Form, space: (&str, &str, &str), store: bool, cases: usize) {
    let bench = Bench::new();
    let (program, _) = bench.load(&kernel(f, space, store));
    let size = (f.bytes * f.count) as i64;
    let words: Vec<u32> = (0..BYTES as u32 / 4).map(|k| k * 0x9e37_79b1).collect();
    let fresh: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let (data, out) = (bench.words(&words), bench.alloc(LANES as u64 * 32));
    let offsets = bench.alloc(LANES as u64 * 4);
    let mut random = Random(size as u64);
    for n in 0..cases {
        let (at, mask) = case(&mut random, size);
        let table = at.map(|a| ((a - OFFSET) as i32).to_le_bytes());
        bench.write(offsets, table.as_flattened());
        bench.write(data, &fresh);
        let params = [data, offsets, out, u64::from(mask)];
        let got = bench.launch(&program, "k", [1; 3], [32, 1, 1], &params);
        let active = || (0..LANES).filter(|l| mask >> l & 1 != 0);
        let name = format!(
            "{} {space:?} store {store} case {n}: {at:?} {mask:#x}",
            f.name
        );
        if active().any(|l| at[l] % size != 0) {
            assert!(matches!(got, Err(Fault::Misaligned(_))), "{name}: {got:?}");
            continue;
        }
        if active().any(|l| at[l] < 0 || at[l] + size > BYTES as i64) {
            assert!(
                matches!(got, Err(Fault::IllegalAddress(_))),
                "{name}: {got:?}"
            );
            continue;
        }
        got.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let mut want = fresh.clone();
        for (k, l) in (0..f.count).flat_map(|k| active().map(move |l| (k, l))) {
            let at = at[l] as usize + k * f.bytes;
            let bytes = value(l, k, true).to_le_bytes();
            if store {
                want[at..at + f.bytes].copy_from_slice(&bytes[..f.bytes]);
            }
        }
        assert_eq!(bench.read(data, BYTES), want, "{name}");
        if !store {
            let got = bench.read_longs(out, LANES * 4);
            for (l, k) in (0..LANES).flat_map(|l| (0..f.count).map(move |k| (l, k))) {
                let want = if mask >> l & 1 != 0 {
                    element(&fresh, at[l] as usize + k * f.bytes, f)
                } else {
                    value(l, k, f.wide)
                };
                let got = got[l * 4 + k] & if f.wide { u64::MAX } else { 0xffff_ffff };
                assert_eq!(got, want, "{name}: lane {l} element {k}");
            }
        }
    }
}

#[test]
fn loads_of_regular_and_nearly_regular_lanes() {
    for f in FORMS {
        for space in SPACES {
            check(f, space, false, 200);
        }
    }
}

#[test]
fn stores_of_regular_and_nearly_regular_lanes() {
    for f in FORMS {
        for space in SPACES {
            check(f, space, true, 200);
        }
    }
}
