//! Warp-wide instructions, with all lanes or some lanes as members.

use super::{Case, block, forms};

/// The source lane of `shfl`, computed like the program in the PTX manual; `None` if out of range.
fn source(mode: &str, lane: i32, b: u32, c: u32) -> Option<i32> {
    let (value, clamp, segment) = ((b & 31) as i32, (c & 31) as i32, (c >> 8 & 31) as i32);
    let most = lane & segment | clamp & !segment;
    let least = lane & segment;
    let (j, ok) = match mode {
        "up" => (lane - value, lane - value >= most),
        "down" => (lane + value, lane + value <= most),
        "bfly" => (lane ^ value, lane ^ value <= most),
        _ => {
            let j = least | value & !segment;
            (j, j <= most)
        }
    };
    ok.then_some(j)
}

fn shuffles() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in forms("shfl{,.sync}.{up,down,bfly,idx}.b32") {
        let mode = p[p.len() - 2].clone();
        let members = if p[1] == "sync" { ", -1" } else { "" };
        for c in [0x1fu32, 0, 0x181f, 0x1800, 0x1c03, 0x100f] {
            for b in ["1", "3", "16", "31", "%r2"] {
                let mode = mode.clone();
                let body = format!(
                    "add.u32 %r1, %t, 100; mad.lo.u32 %r2, %t, 7, 3; {form} %r0|%p1, %r1, {b}, {c}{members};\n\
                     @!%p1 add.u32 %r0, %r0, 1000;"
                );
                let fixed: Option<u32> = b.parse().ok();
                out.push(block(&[&form], &body, 32, move |t| {
                    match source(&mode, t as i32, fixed.unwrap_or(t * 7 + 3), c) {
                        Some(j) => 100 + j as u32,
                        None => 1100 + t,
                    }
                }));
            }
        }
    }
    out
}

/// A predicate on the threads of a block.
type Predicate = fn(u32) -> bool;

const PREDICATES: [(&str, Predicate); 4] = [
    ("setp.lt.u32 %p1, %t, 64;", |_| true),
    ("setp.gt.u32 %p1, %t, 64;", |_| false),
    ("and.b32 %r1, %t, 3; setp.eq.u32 %p1, %r1, 1;", |t| {
        t % 4 == 1
    }),
    ("setp.ge.u32 %p1, %t, 20;", |t| t >= 20),
];

/// The mask of the lanes of a warp that satisfy `f`.
fn mask(f: impl Fn(u32) -> bool) -> u32 {
    (0..32).filter(|l| f(*l)).fold(0, |m, l| m | 1 << l)
}

fn votes() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in forms("vote{,.sync}.{all.pred,any.pred,uni.pred,ballot.b32}") {
        let sync = p[1] == "sync";
        let mode = p[p.len() - 2].clone();
        for (code, holds) in PREDICATES {
            // First with all lanes, then with the even lanes only.
            for even in [false, true] {
                let guard = if even { "@%p3" } else { "" };
                let members = match (sync, even) {
                    (false, _) => "",
                    (true, false) => ", 0xffffffff",
                    (true, true) => ", 0x55555555",
                };
                let setup =
                    format!("{code} and.b32 %r2, %t, 1; setp.eq.u32 %p3, %r2, 0; mov.u32 %r0, 9;");
                let body = if mode == "ballot" {
                    format!("{setup} {guard} {form} %r0, %p1{members};")
                } else {
                    format!(
                        "{setup} {guard} {form} %p2, !%p1{members}; {guard} selp.u32 %r0, 1, 0, %p2;"
                    )
                };
                let mode = mode.clone();
                out.push(block(&[&form], &body, 32, move |t| {
                    let here = |l: u32| !even || l.is_multiple_of(2);
                    if !here(t) {
                        return 9;
                    }
                    let yes = mask(|l| here(l) && !holds(l));
                    let all = mask(here);
                    match mode.as_str() {
                        "ballot" => mask(|l| here(l) && holds(l)),
                        "all" => u32::from(yes == all),
                        "any" => u32::from(yes != 0),
                        _ => u32::from(yes == all || yes == 0),
                    }
                }));
            }
        }
    }
    out
}

fn matches() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in forms("match.{any,all}.sync.{b32,b64}") {
        let all = p[1] == "all";
        let wide = p[3] == "b64";
        for shift in [0u32, 3, 5] {
            let value = if wide {
                // Values that differ only in the upper half.
                format!("shr.u32 %r1, %t, {shift}; mov.b64 %d1, {{0, %r1}};")
            } else {
                format!("shr.u32 %r1, %t, {shift};")
            };
            let v = if wide { "%d1" } else { "%r1" };
            let body = if all {
                format!("{value} {form} %r0|%p1, {v}, -1; @%p1 xor.b32 %r0, %r0, 0xff;")
            } else {
                format!("{value} {form} %r0, {v}, -1;")
            };
            out.push(block(&[&form], &body, 32, move |t| {
                let same = mask(|l| l >> shift == t >> shift);
                match (all, same == u32::MAX) {
                    (false, _) => same,
                    (true, true) => u32::MAX ^ 0xff,
                    (true, false) => 0,
                }
            }));
        }
    }
    out
}

fn reductions() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in
        forms("redux.sync.{add.u32,add.s32,min.u32,min.s32,max.u32,max.s32,and.b32,or.b32,xor.b32}")
    {
        let (op, signed) = (p[2].clone(), p[3] == "s32");
        // Values of both signs. First all lanes are one team, then there are two teams at once.
        for teams in [false, true] {
            let members = if teams {
                "and.b32 %r2, %t, 1; setp.eq.u32 %p1, %r2, 0; selp.b32 %r2, 0x55555555, 0xaaaaaaaa, %p1;"
            } else {
                "mov.u32 %r2, -1;"
            };
            let body = format!("mul.lo.u32 %r1, %t, 0x9e3779b9; {members} {form} %r0, %r1, %r2;");
            let op = op.clone();
            out.push(block(&[&form], &body, 32, move |t| {
                let values = (0..32u32)
                    .filter(|l| !teams || l % 2 == t % 2)
                    .map(|l| l.wrapping_mul(0x9e37_79b9));
                let least = |a: u32, b: u32| if signed { (a as i32) < b as i32 } else { a < b };
                values
                    .reduce(|a, b| match op.as_str() {
                        "add" => a.wrapping_add(b),
                        "min" if least(b, a) => b,
                        "max" if least(a, b) => b,
                        "min" | "max" => a,
                        "and" => a & b,
                        "or" => a | b,
                        _ => a ^ b,
                    })
                    .unwrap_or(0)
            }));
        }
    }
    out
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = shuffles();
    out.extend(votes());
    out.extend(matches());
    out.extend(reductions());
    let body = "setp.lt.u32 %p1, %t, 10; mov.u32 %r0, 0; @%p1 bra L; activemask.b32 %r0; bra M; L: activemask.b32 %r0; M:";
    out.push(block(&["activemask.b32"], body, 40, |t| match t {
        0..10 => 0x3ff,
        10..32 => !0x3ff,
        _ => 0xff,
    }));
    let body = "mov.u32 %r0, 0; elect.sync %r1|%p1, 0xff0; setp.ge.u32 %p2, %t, 32;\n\
        mov.u32 %r0, 100; @%p1 mov.u32 %r0, %r1;";
    out.push(block(&["elect.sync"], body, 32, |t| {
        if t == 4 { 4 } else { 100 }
    }));
    // The lower half of the warp writes late. The upper half reads after the barrier.
    let body = "mov.u32 %r1, buf; shl.b32 %r2, %t, 2; add.u32 %r2, %r2, %r1; setp.ge.u32 %p1, %t, 16; @%p1 bra J;\n\
        mov.u32 %r3, 0; L: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 40; @%p2 bra L; add.u32 %r3, %r3, %t; st.shared.u32 [%r2], %r3;\n\
        J: bar.warp.sync 0xffffffff; and.b32 %r4, %t, 15; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r1; ld.shared.u32 %r0, [%r4];";
    out.push(block(&["bar.warp.sync"], body, 32, |t| 40 + t % 16));
    out
}
