//! The inventory of instruction forms: the lowering accepts exactly the forms that have proofs.
//!
//! Proofs run under a [`Recorder`], which sees every module that they load. Each listed form must
//! occur in such a module. A listed form with one modifier added, removed or exchanged must also be
//! listed, or be refused with opcode and line.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::exec::contract::{LoadError, LoadOptions};
use crate::exec::lower;
use crate::ptx::ast::{Instruction, Module, Statement, Type};

thread_local! {
    static SEEN: RefCell<Option<BTreeMap<String, String>>> = const { RefCell::new(None) };
}

/// Collects the forms of the modules that this thread loads.
struct Recorder(());

impl Recorder {
    fn start() -> Recorder {
        SEEN.set(Some(BTreeMap::new()));
        Recorder(())
    }

    /// Returns each recorded form, with the shortest module that has the form.
    fn finish(self) -> BTreeMap<String, String> {
        SEEN.take().unwrap_or_default()
    }
}

fn instructions(module: &Module) -> impl Iterator<Item = &Instruction> {
    let bodies = module.functions.iter().flat_map(|f| &f.body);
    bodies.filter_map(|s| match s {
        Statement::Inst(i) => Some(i),
        Statement::Label(_) => None,
    })
}

/// Records a module that a test loads.
pub(super) fn note(ptx: &str) {
    SEEN.with_borrow_mut(|seen| {
        let Some(seen) = seen else { return };
        let Ok(module) = crate::ptx::parse(ptx.as_bytes()) else {
            return;
        };
        for i in instructions(&module) {
            let known = seen.get(&i.opcode);
            if known.is_none_or(|text| text.len() > ptx.len()) {
                seen.insert(i.opcode.clone(), ptx.to_owned());
            }
        }
    });
}

/// Whether the position of a word matters: types and layouts.
fn ordered(word: &str) -> bool {
    let more = [
        "f16x2", "bf16x2", "u16x2", "s16x2", "tf32", "e4m3", "e5m2", "e4m3x2", "e5m2x2", "s4",
        "u4", "s2", "u2", "b1", "row", "col",
    ];
    Type::named(word).is_some() || more.contains(&word)
}

/// A key that ignores the order of modifiers: `add.sat.rn.f32` equals `add.rn.sat.f32`.
fn key(form: &str) -> Vec<String> {
    let mut parts = form.split('.');
    let mut out = vec![parts.next().unwrap_or_default().to_owned()];
    let (fixed, mut loose): (Vec<&str>, Vec<&str>) = parts.partition(|w| ordered(w));
    loose.sort_unstable();
    out.extend(loose.iter().chain(&fixed).map(|w| (*w).to_owned()));
    out
}

/// Words for the memory order of loads, stores and atomics.
const ORDERS: [&str; 11] = [
    "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio", "cta", "cluster",
    "gpu", "sys",
];
/// Words for cache hints. Words with two colons are hints, too, except for state spaces.
const CACHES: [&str; 8] = ["ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"];

/// The parts of a form that each need a proof. For loads, stores and atomics, these are the type,
/// the ordering and the hints, each combined with the state space.
fn keys(form: &str) -> Vec<Vec<String>> {
    let words = key(form);
    if !matches!(words[0].as_str(), "ld" | "st" | "atom" | "red") {
        return vec![words];
    }
    let order = |w: &&String| ORDERS.contains(&w.as_str());
    let cache = |w: &&String| {
        CACHES.contains(&w.as_str()) || w.starts_with("L1::") || w.starts_with("L2::")
    };
    let spaces = ["global", "shared", "local", "const", "param"];
    let space = |w: &&String| w.split("::").next().is_some_and(|w| spaces.contains(&w));
    let part = |name: &str, keep: &dyn Fn(&&String) -> bool| {
        let mut out = vec![words[0].clone(), name.to_owned()];
        out.extend(words[1..].iter().filter(keep).cloned());
        out
    };
    vec![
        part("type", &|w| !order(w) && !cache(w)),
        part("order", &|w| order(w) || space(w)),
        part("hints", &|w| cache(w) || space(w)),
    ]
}

fn listed() -> BTreeSet<String> {
    #[cfg(target_arch = "x86_64")]
    let one = super::tier1::listed();
    #[cfg(not(target_arch = "x86_64"))]
    let one = BTreeSet::new();
    one.into_iter()
        .filter(|f| !f.starts_with('%'))
        .chain(super::tier2::listed())
        .collect()
}

/// Whether `tier2/forms.txt` must list the form.
fn is_tier2(form: &str) -> bool {
    let types = [
        "f16", "f16x2", "bf16", "bf16x2", "tf32", "u16x2", "s16x2", "e4m3x2", "e5m2x2",
    ];
    let families = [
        "mma",
        "wmma",
        "ldmatrix",
        "stmatrix",
        "movmatrix",
        "cp",
        "mbarrier",
    ];
    let mut words = form.split('.');
    words.next().is_some_and(|base| families.contains(&base)) || words.any(|w| types.contains(&w))
}

#[test]
fn every_tier2_form_is_proven() {
    let recorder = Recorder::start();
    super::tier2::PROOFS.iter().for_each(|proof| proof());
    let seen = recorder.finish();
    let listed = super::tier2::listed();
    let keys = |forms: &mut dyn Iterator<Item = &String>| -> BTreeMap<Vec<String>, String> {
        forms.map(|f| (key(f), f.clone())).collect()
    };
    let proven = keys(&mut seen.keys().filter(|f| is_tier2(f)));
    let wanted = keys(&mut listed.iter());
    let missing: Vec<_> = wanted
        .iter()
        .filter(|(k, _)| !proven.contains_key(*k))
        .collect();
    let unlisted: Vec<_> = proven
        .iter()
        .filter(|(k, _)| !wanted.contains_key(*k))
        .collect();
    println!("{} forms", listed.len());
    let names = |v: &[(&Vec<String>, &String)]| -> Vec<String> {
        v.iter().map(|(_, f)| (*f).clone()).collect()
    };
    assert!(
        missing.is_empty() && unlisted.is_empty(),
        "listed forms that no proof loads: {:#?}\nforms of proofs that are not listed: {:#?}",
        names(&missing),
        names(&unlisted)
    );
}

/// Words of other instructions and of newer devices, which are tried as modifiers.
const STRANGERS: &str = "sat ftz rn rz rm rp rni rzi rmi rpi rna rs approx full NaN nan xorsign abs hi lo wide cc \
    shiftamt clamp wrap relu satfinite noftz uni sync aligned warp cta cluster gpu sys gl relaxed acquire release \
    acq_rel sc weak volatile mmio nc unified pred x1 x2 x4 trans v2 v4 v8 global shared local const param \
    shared::cta shared::cluster param::entry param::func L1::evict_last L1::nothing L2::128B L2::nothing \
    L2::cache_hint L2::evict_last to tex async bulk tensor multicast reduce and or xor add min max inc dec exch \
    cas popc ballot all any eq lo ne b1 b4 b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f16 f16x2 bf16 \
    bf16x2 tf32 f32 f64 f32x2 e4m3 e5m2 e4m3x2 e5m2x2 ue8m0x2 u8x4 u16x2 s16x2 u2 s2 u4 s4 row col sp m16n8k16 m16n8k8 \
    m8n8k4 m16n16k16 level geometry mask idx noComplete expect_tx parity noinc proxy alias fence 1d 2d a b c d";

/// Reduces a form to its kind: differences that do not affect the lowering are removed. One form of
/// each kind is tried.
fn kind(form: &str) -> String {
    let classes: [(&str, &[&str]); 9] = [
        (
            "CMP",
            &[
                "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu",
                "leu", "gtu", "geu", "num", "nan",
            ],
        ),
        ("BOOL", &["and", "or", "xor"]),
        ("ROUND", &["rn", "rz", "rm", "rp"]),
        ("INTEGRAL", &["rni", "rzi", "rmi", "rpi"]),
        ("SCOPE", &["cta", "gpu", "sys", "cluster"]),
        ("CACHE", &["ca", "cg", "cs", "lu", "cv", "wb", "wt"]),
        ("WIDE", &["v2", "v4", "x1", "x2", "x4"]),
        (
            "L1",
            &[
                "L1::evict_normal",
                "L1::evict_unchanged",
                "L1::evict_first",
                "L1::evict_last",
                "L1::no_allocate",
            ],
        ),
        (
            "L2",
            &[
                "L2::64B",
                "L2::128B",
                "L2::256B",
                "L2::evict_normal",
                "L2::evict_unchanged",
                "L2::evict_first",
                "L2::evict_last",
            ],
        ),
    ];
    let base = form.split('.').next().unwrap_or_default();
    form.split('.')
        .map(|w| {
            if Type::named(w).is_some() {
                return "T";
            }
            let logic = matches!(base, "and" | "or" | "xor" | "mul" | "mad" | "madc" | "shf");
            let found = classes
                .iter()
                .find(|(_, all)| !logic && all.contains(&w))
                .map(|(name, _)| *name);
            found.unwrap_or(w)
        })
        .collect::<Vec<&str>>()
        .join(".")
}

/// All opcodes that differ from `form` in one word: removed, replaced or added.
fn neighbours(form: &str, words: &BTreeSet<String>) -> Vec<String> {
    let parts: Vec<&str> = form.split('.').collect();
    let join = |p: Vec<&str>| p.join(".");
    let mut out = Vec::new();
    for at in 1..parts.len() {
        let mut without = parts.clone();
        without.remove(at);
        out.push(join(without));
        for w in words.iter().filter(|w| **w != parts[at]) {
            let mut with = parts.clone();
            with[at] = w;
            out.push(join(with));
        }
    }
    for w in words.iter().filter(|w| !parts.contains(&w.as_str())) {
        let mut with = parts.clone();
        with.insert(1, w);
        out.push(join(with));
    }
    out
}

/// Reduces a module to the first instruction of the form and the labels of its body, if the reduced
/// module still loads. Returns the module, the index of the function and the index of the
/// statement.
fn alone(form: &str, text: &str) -> (Module, usize, usize) {
    let mut module = crate::ptx::parse(text.as_bytes()).expect("a proof's module");
    let is = |s: &Statement| matches!(s, Statement::Inst(i) if i.opcode == form);
    let place = |module: &Module| {
        let mut functions = module.functions.iter().enumerate();
        let found =
            functions.find_map(|(f, function)| function.body.iter().position(is).map(|at| (f, at)));
        found.expect("the form is in its module")
    };
    let (f, at) = place(&module);
    let mut small = module.clone();
    let only = small.functions[f].body[at].clone();
    small.functions[f]
        .body
        .retain(|s| matches!(s, Statement::Label(_)));
    small.functions[f].body.push(only);
    if lower::module(&small, &LoadOptions::of((8, 0))).is_ok() {
        module = small;
    }
    let (f, at) = place(&module);
    (module, f, at)
}

/// Changes the instruction of `form` in the module `text` to each neighbour. Returns the number of
/// tries, and the neighbours that are accepted although they are not listed.
fn accepted(
    form: &str,
    text: &str,
    words: &BTreeSet<String>,
    known: &BTreeSet<Vec<String>>,
) -> (u32, Vec<String>) {
    let (mut module, f, at) = alone(form, text);
    let (mut tried, mut out) = (0, Vec::new());
    for other in neighbours(form, words) {
        if keys(&other).iter().all(|k| known.contains(k)) {
            continue;
        }
        tried += 1;
        let Statement::Inst(i) = &mut module.functions[f].body[at] else {
            unreachable!("an instruction");
        };
        i.opcode.clone_from(&other);
        let line = i.line;
        match lower::module(&module, &LoadOptions::of((8, 0))) {
            Ok(_) => out.push(other),
            Err(LoadError::NoBinary(e) | LoadError::Syntax(e) | LoadError::Unsupported(e)) => {
                assert!(
                    e.contains(&other) && e.contains(&format!("line {line}")),
                    "{other} is refused without its name and line: {e}"
                );
            }
        }
    }
    (tried, out)
}

#[test]
fn nothing_else_is_accepted() {
    let recorder = Recorder::start();
    super::tier2::PROOFS.iter().for_each(|proof| proof());
    #[cfg(target_arch = "x86_64")]
    super::tier1::load_all();
    let seen = recorder.finish();
    let listed = listed();
    let known: BTreeSet<Vec<String>> = listed.iter().flat_map(|f| keys(f)).collect();
    let listed: BTreeSet<Vec<String>> = listed.iter().map(|f| key(f)).collect();
    let words: BTreeSet<String> = STRANGERS.split_whitespace().map(str::to_owned).collect();
    let mut kinds = BTreeSet::new();
    let chosen: Vec<(&String, &String)> = seen
        .iter()
        .filter(|(form, _)| listed.contains(&key(form)) && kinds.insert(kind(form)))
        .collect();
    let check = |part: &[(&String, &String)]| {
        part.iter()
            .fold((0, Vec::new()), |(n, mut all), (form, text)| {
                let (tried, found) = accepted(form, text, &words, &known);
                all.extend(found);
                (n + tried, all)
            })
    };
    let (one, two) = chosen.split_at(chosen.len() / 2);
    let ((n, mut all), (m, more)) = std::thread::scope(|s| {
        let other = s.spawn(|| check(two));
        (check(one), other.join().expect("the other half"))
    });
    all.extend(more);
    let (tried, accepted) = (n + m, all);
    println!("{} kinds of forms, {tried} neighbours", kinds.len());
    assert!(tried > 50_000, "only {tried} neighbours were tried");
    let accepted: BTreeSet<String> = accepted.into_iter().collect();
    assert!(
        accepted.is_empty(),
        "accepted, but neither listed nor proven: {accepted:#?}"
    );
}

/// Opcodes of the PTX manual that are not served.
const OTHERS: &str = "alloca barrier.cluster clusterlaunchcontrol cp.reduce  getctarank istypep \
    mapa multimem nop setmaxnreg stackrestore stacksave st.async st.bulk suld suq \
    sured sust tcgen05 tensormap tex tld4 txq vabsdiff vabsdiff2 vabsdiff4 vadd vadd2 vadd4 vavrg2 \
    vavrg4 vmad vmax vmax2 vmax4 vmin vmin2 vmin4 vset vset2 vset4 vshl vshr vsub vsub2 vsub4 wgmma red.async";

#[test]
fn other_instructions_are_refused() {
    let operands = [
        "",
        "%r0",
        "%d0",
        "%r0, %r1",
        "%d0, %d1",
        "%r0, %r1, %r2",
        "%d0, %d1, %d2",
        "%r0, %r1, %r2, %r3",
        "[%d0]",
        "[%d0], %r0",
        "%r0, [%d0]",
        "%p0, %r0",
        "%f0, %f1, %f2",
    ];
    let suffixes = [
        "",
        ".u32",
        ".b32",
        ".s32.s32.s32",
        ".sync.aligned",
        ".inc.sync.aligned.u32",
        ".f32",
        ".u64",
    ];
    let mut tried = 0;
    for base in OTHERS.split_whitespace() {
        for suffix in suffixes {
            for list in operands {
                let text = format!(
                    "{}.visible .entry k() {{\n.reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>; .reg .pred %p<4>;\n\
                     {base}{suffix} {list};\nret; }}",
                    super::HEADER
                );
                match crate::exec::program::Program::load(text.as_bytes(), &LoadOptions::of((9, 0)))
                {
                    Ok(_) => panic!("{base}{suffix} {list} was loaded"),
                    Err(
                        LoadError::NoBinary(e) | LoadError::Syntax(e) | LoadError::Unsupported(e),
                    ) => {
                        assert!(
                            e.contains("line 6") && e.contains(base),
                            "{base}{suffix} {list}: {e}"
                        );
                    }
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 4000, "{tried}");
}
