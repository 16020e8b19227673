//! The allowed modifiers of each opcode, for instructions whose lowering ignores some modifiers:
//! orderings, scopes and hints, which have no effect here, words that are always present, and
//! combinations that do not exist.
//!
//! A pattern describes the opcode after its first word. `{a,b}` stands for one of the alternatives,
//! which may be empty or have several words. Types must be in the order of the pattern, other words
//! may be in any order. The patterns follow the PTX ISA manual (8.x and 9.x, for sm_80; for sm_90
//! if the instruction has no effect here).

use std::collections::HashMap;
use std::sync::LazyLock;

use super::{R, Why};
use crate::ptx::ast::Type;

macro_rules! ints {
    () => {
        "u16,s16,u32,s32,u64,s64"
    };
}
macro_rules! all_ints {
    () => {
        concat!("u8,s8,", ints!())
    };
}
macro_rules! bits {
    () => {
        "b16,b32,b64"
    };
}
macro_rules! types {
    () => {
        concat!("b8,b16,b32,b64,", all_ints!(), ",f32,f64")
    };
}
/// Types of 16 bits and more.
macro_rules! values {
    () => {
        concat!(bits!(), ",", ints!(), ",f32,f64")
    };
}
macro_rules! spaces {
    () => {
        "global,const,shared,shared::cta,local,param,param::entry"
    };
}
macro_rules! scope {
    () => {
        "{cta,cluster,gpu,sys}"
    };
}
/// State spaces that threads share.
macro_rules! common {
    () => {
        "{,global,shared,shared::cta}"
    };
}
macro_rules! vector {
    () => {
        "{,v2,v4,v8}"
    };
}
macro_rules! evict {
    () => {
        "{,L1::evict_normal,L1::evict_unchanged,L1::evict_first,L1::evict_last,L1::no_allocate}"
    };
}
macro_rules! ahead {
    () => {
        "{,L2::cache_hint}{,L2::64B,L2::128B,L2::256B}"
    };
}
macro_rules! cmp {
    () => {
        "{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}{,and,or,xor}"
    };
}
macro_rules! near {
    () => {
        "{,shared,shared::cta}"
    };
}
/// Atomic operations without a result.
macro_rules! reductions {
    () => {
        "{add.u32,add.s32,add.u64,add.s64,add.f32,add.f64,add.noftz.f16,add.noftz.f16x2,\
         add.noftz.bf16,add.noftz.bf16x2,inc.u32,dec.u32,min.u32,min.s32,min.u64,min.s64,\
         max.u32,max.s32,max.u64,max.s64,and.b32,and.u32,and.s32,and.b64,and.u64,and.s64,\
         or.b32,or.u32,or.s32,or.b64,or.u64,or.s64,xor.b32,xor.u32,xor.s32,xor.b64,xor.u64,xor.s64}"
    };
}
macro_rules! wmma_space {
    () => {
        "{,global,shared,shared::cta}"
    };
}

const PATTERNS: &[(&str, &[&str])] = &[
    ("bra", &["{,uni}"]),
    ("call", &["{,uni}"]),
    ("ret", &["{,uni}"]),
    ("brx", &["idx{,uni}"]),
    ("activemask", &["b32"]),
    ("elect", &["sync"]),
    ("nanosleep", &["u32"]),
    ("tex", &["1d.v4.{u32,s32,f32}.s32"]),
    ("pmevent", &["{,mask}"]),
    ("griddepcontrol", &["{wait,launch_dependents}"]),
    ("membar", &["{cta,gl,sys}", "proxy.alias"]),
    (
        "fence",
        &[
            concat!("{,sc,acq_rel,acquire,release}.", scope!()),
            "proxy.{alias,async,async.global,async.shared::cta}",
        ],
    ),
    (
        "bar",
        &[
            "warp.sync",
            "{,cta}{sync,arrive}",
            "{,cta}red.popc.u32",
            "{,cta}red.{and,or}.pred",
        ],
    ),
    (
        "barrier",
        &[
            "{,cta}{sync,arrive}{,aligned}",
            "{,cta}red.popc{,aligned}.u32",
            "{,cta}red.{and,or}{,aligned}.pred",
        ],
    ),
    ("lop3", &["{,and,or}.b32"]),
    ("shf", &["{l,r}{clamp,wrap}.b32"]),
    (
        "vshr",
        &["{u32,s32}{u32,s32}.u32{,sat}{clamp,wrap}{,add,min,max}"],
    ),
    ("prmt", &["b32{,f4e,b4e,rc8,ecl,ecr,rc16}"]),
    ("mov", &[concat!("{pred,", values!(), "}")]),
    ("selp", &[concat!("{", values!(), "}")]),
    (
        "slct",
        &[
            concat!("{", values!(), "}.s32"),
            concat!("{,ftz}{", values!(), "}.f32"),
        ],
    ),
    ("isspacep", &[concat!("{", spaces!(), "}")]),
    ("cvta", &[concat!("{,to}{", spaces!(), "}.u64")]),
    ("addc", &["{,cc}{u32,s32,u64,s64}"]),
    ("subc", &["{,cc}{u32,s32,u64,s64}"]),
    ("madc", &["{lo,hi}{,cc}{u32,s32,u64,s64}"]),
    ("shfl", &["{,sync}{up,down,bfly,idx}.b32"]),
    ("vote", &["{,sync}{all,any,uni}.pred", "{,sync}.ballot.b32"]),
    ("match", &["{any,all}.sync.{b32,b64}"]),
    (
        "redux",
        &["sync.{add,min,max}{u32,s32}", "sync.{and,or,xor}.b32"],
    ),
    (
        "prefetch",
        &[
            "{,global,local}{L1,L2}",
            "global.{L2::evict_last,L2::evict_normal}",
        ],
    ),
    ("prefetchu", &["L1"]),
    ("applypriority", &["{,global}.L2::evict_normal"]),
    ("discard", &["{,global}.L2"]),
    (
        "createpolicy",
        &[
            "fractional{L2::evict_last,L2::evict_normal,L2::evict_first,L2::evict_unchanged}\
             {,L2::evict_first,L2::evict_unchanged}.b64",
            "range{,global}{L2::evict_last,L2::evict_normal,L2::evict_first,L2::evict_unchanged}\
             {,L2::evict_first,L2::evict_unchanged}.b64",
            "cvt.L2.b64",
        ],
    ),
    (
        "ld",
        &[
            concat!(
                "{,weak}{,",
                spaces!(),
                ",param::func}{,ca,cg,cs,lu,cv}",
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!(
                "{,weak}{,global}{,ca,cg,cs,lu,cv}",
                ahead!(),
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!(
                "{,weak}{,global}",
                evict!(),
                ahead!(),
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!(
                "global.nc.{,ca,cg,cs}",
                ahead!(),
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!(
                "global.nc.",
                evict!(),
                ahead!(),
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!("volatile.local", vector!(), "{", types!(), "}"),
            concat!(
                "volatile",
                common!(),
                "{,L2::64B,L2::128B,L2::256B}",
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!(
                "{relaxed,acquire}",
                scope!(),
                common!(),
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!(
                "{relaxed,acquire}",
                scope!(),
                "{,global}",
                evict!(),
                ahead!(),
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!("mmio.relaxed.sys{,global}{", types!(), "}"),
        ],
    ),
    (
        "ldu",
        &[concat!("{,global}", vector!(), "{", types!(), "}")],
    ),
    (
        "st",
        &[
            concat!(
                "{,weak}{,global,shared,shared::cta,local,param,param::func}{,wb,cg,cs,wt}",
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!(
                "{,weak}{,global}{,wb,cg,cs,wt}{,L2::cache_hint}",
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!(
                "{,weak}{,global}",
                evict!(),
                "{,L2::cache_hint}",
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!("volatile", common!(), vector!(), "{", types!(), "}"),
            concat!("volatile.local", vector!(), "{", types!(), "}"),
            concat!(
                "{relaxed,release}",
                scope!(),
                common!(),
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!(
                "{relaxed,release}",
                scope!(),
                "{,global}",
                evict!(),
                "{,L2::cache_hint}",
                vector!(),
                "{",
                types!(),
                "}"
            ),
            concat!("mmio.relaxed.sys{,global}{", types!(), "}"),
        ],
    ),
    (
        "atom",
        &[
            concat!(
                "{,relaxed,acquire,release,acq_rel}{,cta,cluster,gpu,sys}",
                common!(),
                reductions!(),
                "{,L2::cache_hint}"
            ),
            concat!(
                "{,relaxed,acquire,release,acq_rel}{,cta,cluster,gpu,sys}",
                common!(),
                "{exch.b32,exch.u32,exch.s32,exch.f32,exch.b64,exch.u64,exch.s64,exch.f64,cas.b16,\
                 cas.u16,cas.s16,cas.b32,cas.u32,cas.s32,cas.f32,cas.b64,cas.u64,cas.s64,cas.f64}\
                 {,L2::cache_hint}"
            ),
        ],
    ),
    (
        "red",
        &[concat!(
            "{,relaxed,release}{,cta,cluster,gpu,sys}",
            common!(),
            reductions!(),
            "{,L2::cache_hint}"
        )],
    ),
    (
        "cvt",
        &[
            concat!("{,sat}{", all_ints!(), "}{", all_ints!(), "}"),
            concat!("{rn,rz,rm,rp}{,ftz}{,sat}.f32.{", all_ints!(), ",f64}"),
            concat!("{rn,rz,rm,rp}{,sat}.f64.{", all_ints!(), "}"),
            concat!("{rni,rzi,rmi,rpi}{,ftz}{,sat}{", all_ints!(), "}.f32"),
            concat!("{rni,rzi,rmi,rpi}{,sat}{", all_ints!(), "}.f64"),
            "{,ftz}{,sat}.f64.f32",
            "{,rni,rzi,rmi,rpi}{,ftz}{,sat}.f32.f32",
            "{,rni,rzi,rmi,rpi}{,sat}.f64.f64",
            "pack.sat.{u16,s16}.s32",
            "pack.sat.{u8,s8,u4,s4,u2,s2}.s32.b32",
            "{rn,rz,rm,rp}{,ftz}{,sat}{f16,bf16}.f32",
            "{rn,rz}.relu{,satfinite}{f16,bf16}.f32",
            "{rn,rz}.satfinite{f16,bf16}.f32",
            "{rn,rz}{,relu}{,satfinite}{f16x2,bf16x2}.f32",
            "{rna,rn,rz}{,relu}{,satfinite}.tf32.f32",
            concat!("{rn,rz,rm,rp}{,sat}{f16,bf16}{f64,", all_ints!(), "}"),
            "{rn,rz,rm,rp}{,sat}.f16.bf16",
            "{rn,rz,rm,rp}{,sat}.bf16.f16",
            "{,ftz}{,sat}.f32.{f16,bf16}",
            "{,sat}.f64.{f16,bf16}",
            concat!("{rni,rzi,rmi,rpi}{,sat}{", all_ints!(), "}{f16,bf16}"),
            "{,rni,rzi,rmi,rpi}{,sat}.f16.f16",
            "{,rni,rzi,rmi,rpi}{,sat}.bf16.bf16",
            "rn.satfinite{,relu}{e4m3x2,e5m2x2}{f32,f16x2}",
            "rn.{,relu}.f16x2.{e4m3x2,e5m2x2}",
        ],
    ),
    (
        "set",
        &[
            concat!(
                "{eq,ne,lt,le,gt,ge}{,and,or,xor}{u32,s32,f32,f16,bf16}{",
                ints!(),
                "}"
            ),
            "{lo,ls,hi,hs}{,and,or,xor}{u32,s32,f32,f16,bf16}{u16,u32,u64}",
            "{eq,ne}{,and,or,xor}{u32,s32,f32,f16,bf16}{b16,b32,b64}",
            concat!(cmp!(), "{,ftz}{u32,s32,f32,f16,bf16}.f32"),
            concat!(cmp!(), "{u32,s32,f32,f16,bf16}.f64"),
            concat!(cmp!(), "{,ftz}{u16,s16,u32,s32,f32,f16}.f16"),
            concat!(cmp!(), "{u16,s16,u32,s32,f32,bf16}.bf16"),
            concat!(cmp!(), "{,ftz}{u32,s32,f16x2}.f16x2"),
            concat!(cmp!(), "{u32,s32,bf16x2}.bf16x2"),
        ],
    ),
    (
        "cp",
        &[
            "async.{ca,cg}{shared,shared::cta}.global{,L2::cache_hint}{,L2::64B,L2::128B,L2::256B}",
            "async.{commit_group,wait_group,wait_all}",
            concat!("async.mbarrier.arrive{,noinc}", near!(), ".b64"),
        ],
    ),
    (
        "mbarrier",
        &[
            concat!("{init,inval}", near!(), ".b64"),
            concat!("{expect_tx,complete_tx}{,relaxed.cta}", near!(), ".b64"),
            concat!(
                "{arrive,arrive_drop}{,noComplete}{,release.cta,relaxed.cta}",
                near!(),
                ".b64"
            ),
            concat!(
                "arrive.expect_tx{,release.cta,relaxed.cta}",
                near!(),
                ".b64"
            ),
            concat!(
                "{test_wait,try_wait}{,parity}{,acquire.cta,relaxed.cta}",
                near!(),
                ".b64"
            ),
            "pending_count.b64",
        ],
    ),
    (
        "ldmatrix",
        &[concat!(
            "sync.aligned.m8n8.{x1,x2,x4}{,trans}",
            near!(),
            ".b16"
        )],
    ),
    (
        "stmatrix",
        &[concat!(
            "sync.aligned.m8n8.{x1,x2,x4}{,trans}",
            near!(),
            ".b16"
        )],
    ),
    ("movmatrix", &["sync.aligned.m8n8.trans.b16"]),
    (
        "mma",
        &[
            "sync.aligned.{m16n8k8,m16n8k16}.row.col.{f16.f16.f16.f16,f32.f16.f16.f32,f32.bf16.bf16.f32}",
            "sync.aligned.{m16n8k4,m16n8k8}.row.col.f32.tf32.tf32.f32",
            "sync.aligned.{m16n8k16,m16n8k32}.row.col.{f16,f32}{e4m3,e5m2}{e4m3,e5m2}{f16,f32}",
            "sync.aligned.{m8n8k4,m16n8k4,m16n8k8,m16n8k16}.row.col.{,rn,rz,rm,rp}.f64.f64.f64.f64",
            "sync.aligned.m8n8k4.{row,col}{row,col}{f16,f32}.f16.f16.{f16,f32}",
            "sync.aligned.{m8n8k16,m16n8k16,m16n8k32}.row.col.{,satfinite}.s32.{s8,u8}{s8,u8}.s32",
            "sync.aligned.{m8n8k32,m16n8k32,m16n8k64}.row.col.{,satfinite}.s32.{s4,u4}{s4,u4}.s32",
            "sync.aligned.{m8n8k128,m16n8k128,m16n8k256}.row.col.s32.b1.b1.s32.{xor,and}.popc",
        ],
    ),
    (
        "wmma",
        &[
            concat!(
                "load.{a,b}.sync.aligned.{row,col}{m16n16k16,m8n32k16,m32n8k16}",
                wmma_space!(),
                "{f16,bf16,s8,u8}"
            ),
            concat!(
                "load.{a,b}.sync.aligned.{row,col}.m16n16k8",
                wmma_space!(),
                ".tf32"
            ),
            concat!(
                "load.{a,b}.sync.aligned.{row,col}.m8n8k4",
                wmma_space!(),
                ".f64"
            ),
            concat!(
                "load.{a.row,b.col}.sync.aligned.m8n8k32",
                wmma_space!(),
                "{s4,u4}"
            ),
            concat!(
                "load.{a.row,b.col}.sync.aligned.m8n8k128",
                wmma_space!(),
                ".b1"
            ),
            concat!(
                "{load.c,store.d}.sync.aligned.{row,col}{m16n16k16,m8n32k16,m32n8k16}",
                wmma_space!(),
                "{f16,f32,s32}"
            ),
            concat!(
                "{load.c,store.d}.sync.aligned.{row,col}.m16n16k8",
                wmma_space!(),
                ".f32"
            ),
            concat!(
                "{load.c,store.d}.sync.aligned.{row,col}.m8n8k4",
                wmma_space!(),
                ".f64"
            ),
            concat!(
                "{load.c,store.d}.sync.aligned.{row,col}{m8n8k32,m8n8k128}",
                wmma_space!(),
                ".s32"
            ),
            "mma.sync.aligned.{row,col}{row,col}{m16n16k16,m8n32k16,m32n8k16}{f16,f32}{f16,f32}",
            "mma.sync.aligned.{row,col}{row,col}{m16n16k16,m8n32k16,m32n8k16}.f32.bf16.bf16.f32",
            "mma.sync.aligned.{row,col}{row,col}.m16n16k8.f32.tf32.tf32.f32",
            "mma.sync.aligned.{row,col}{row,col}.m8n8k4.{,rn,rz,rm,rp}.f64.f64.f64.f64",
            "mma.sync.aligned.{row,col}{row,col}{m16n16k16,m8n32k16,m32n8k16}{,satfinite}.s32.\
             {s8.s8,u8.u8}.s32",
            "mma.sync.aligned.row.col.m8n8k32.{,satfinite}.s32.{s4.s4,u4.u4}.s32",
            "mma.{xor,and}.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32",
        ],
    ),
];

/// The patterns for arithmetic on 16-bit floating point and on pairs of 16-bit values.
const HALVES: &[(&str, &[&str])] = &[
    (
        "add",
        &[
            "{,rn}{,ftz}{,sat}{f16,f16x2}",
            "{,rn}{bf16,bf16x2}",
            "{u16x2,s16x2}",
        ],
    ),
    (
        "sub",
        &["{,rn}{,ftz}{,sat}{f16,f16x2}", "{,rn}{bf16,bf16x2}"],
    ),
    (
        "mul",
        &["{,rn}{,ftz}{,sat}{f16,f16x2}", "{,rn}{bf16,bf16x2}"],
    ),
    (
        "fma",
        &["rn.{,ftz}{,sat,relu}{f16,f16x2}", "rn.{,relu}{bf16,bf16x2}"],
    ),
    ("neg", &["{,ftz}{f16,f16x2}", "{bf16,bf16x2}"]),
    ("abs", &["{,ftz}{f16,f16x2}", "{bf16,bf16x2}"]),
    ("min", MINMAX),
    ("max", MINMAX),
    ("ex2", &["approx.{f16,f16x2}", "approx.ftz.{bf16,bf16x2}"]),
    ("tanh", &["approx.{f16,f16x2,bf16,bf16x2}"]),
    (
        "setp",
        &[
            concat!(cmp!(), "{,ftz}{f16,f16x2}"),
            concat!(cmp!(), "{bf16,bf16x2}"),
        ],
    ),
];

const MINMAX: &[&str] = &[
    "{,ftz}{,NaN}{,xorsign.abs}{f16,f16x2}",
    "{,NaN}{,xorsign.abs}{bf16,bf16x2}",
    "{u16x2,s16x2}",
    "relu.s16x2",
];

type Words = Vec<&'static str>;
/// The alternatives at one place of a pattern.
type Group = Vec<Words>;
type Table = HashMap<&'static str, Vec<Vec<Group>>>;

static TABLES: LazyLock<[Table; 2]> = LazyLock::new(|| [PATTERNS, HALVES].map(table));

fn table(patterns: &'static [(&'static str, &'static [&'static str])]) -> Table {
    let compiled = patterns
        .iter()
        .map(|(base, all)| (*base, all.iter().map(|p| groups(p)).collect()));
    compiled.collect()
}

fn words(text: &'static str) -> Words {
    text.split('.').filter(|w| !w.is_empty()).collect()
}

fn groups(pattern: &'static str) -> Vec<Group> {
    let mut out = Vec::new();
    let mut rest = pattern;
    while let Some((head, tail)) = rest.split_once('{') {
        out.push(vec![words(head)]);
        let (choices, after) = tail.split_once('}').unwrap_or((tail, ""));
        out.push(choices.split(',').map(words).collect());
        rest = after;
    }
    out.push(vec![words(rest)]);
    out.retain(|g| g.iter().any(|w| !w.is_empty()));
    out
}

/// Whether the position of a word among the types matters.
fn is_type(word: &str) -> bool {
    Type::named(word).is_some()
        || matches!(
            word,
            "u16x2"
                | "s16x2"
                | "tf32"
                | "e4m3"
                | "e5m2"
                | "e4m3x2"
                | "e5m2x2"
                | "s4"
                | "u4"
                | "s2"
                | "u2"
                | "b1"
                | "row"
                | "col"
        )
}

/// Removes a word from the remaining words. A type is removed only if it is the first remaining
/// type.
fn take(rest: &mut Vec<&str>, word: &str) -> bool {
    let at = if is_type(word) {
        rest.iter()
            .position(|w| is_type(w))
            .filter(|at| rest[*at] == word)
    } else {
        rest.iter().position(|w| *w == word)
    };
    at.map(|at| rest.remove(at)).is_some()
}

fn fits(groups: &[Group], rest: &[&str]) -> bool {
    let Some((first, others)) = groups.split_first() else {
        return rest.is_empty();
    };
    first.iter().any(|choice| {
        let mut left = rest.to_vec();
        choice.iter().all(|w| take(&mut left, w)) && fits(others, &left)
    })
}

/// Instructions on textures and surfaces.
const TEXTURES: [&str; 7] = ["tex", "tld4", "txq", "suld", "sust", "sured", "suq"];

/// Refuses an opcode that has a modifier which the patterns do not allow, or lacks a modifier which
/// they require.
///
/// # Errors
/// [`Why::Unsupported`].
pub(super) fn check(opcode: &str) -> R<()> {
    let mut parts = opcode.split('.');
    let base = parts.next().unwrap_or_default();
    let rest: Vec<&str> = parts.collect();
    let half = |w: &&str| matches!(*w, "f16" | "f16x2" | "bf16" | "bf16x2" | "u16x2" | "s16x2");
    let [plain, halves] = &*TABLES;
    let halves = halves.get(base).filter(|_| rest.iter().any(half));
    match halves.or_else(|| plain.get(base)) {
        Some(patterns) if patterns.iter().any(|p| fits(p, &rest)) => Ok(()),
        _ if TEXTURES.contains(&base) => Err(Why::unsupported(vgpu_cuda_abi::unserved::TEXTURES)),
        Some(_) => Err(Why::unsupported(
            "no instruction that is served has these modifiers",
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn modifiers_match_in_any_order_and_types_in_the_given_order() {
        for opcode in [
            "ld.global.nc.L1::no_allocate.L2::128B.v4.s32",
            "ld.global.L1::no_allocate.nc.L2::128B.v4.s32",
            "ld.volatile.shared.f32",
            "cvt.rn.f32.s32",
            "cvt.rzi.s32.f32",
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            "fence.acq_rel.gpu",
            "add.u32",
        ] {
            assert!(check(opcode).is_ok(), "{opcode}");
        }
        for opcode in [
            "ld.shared.nc.f32",
            "ld.relaxed.f32",
            "ld.global.ca.cg.f32",
            "cvt.rn.s32.f32",
            "cvt.f32.s32",
            "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32",
            "mma.sync.aligned.m16n8k16.row.col.rm.s32.s8.s8.s32",
            "neg.relu.f16",
            "fence",
        ] {
            assert!(check(opcode).is_err(), "{opcode}");
        }
    }
}
