//! Hostile modules. Any input of a guest is refused, runs, or faults. The process survives, and
//! memory outside the arena does not change.

use proptest::prelude::*;
use proptest::sample::Index;

use crate::damage::{PIECES, apply, damage, fixtures};
use crate::feed::load_and_run;
use crate::generate;
use crate::harness::{Random, load_text};

/// Largest fixture in bytes that the tests use. Larger fixtures (elementary functions) have the
/// same forms.
const LARGEST: usize = 50_000;

thread_local!(static SMALL: Vec<Vec<u8>> = fixtures()
    .into_iter()
    .map(|(_, text)| text)
    .filter(|text| text.len() < LARGEST)
    .collect());

/// Replacements (from, to) of words that the lowering interprets.
const SWAPS: &[(&str, &str)] = &[
    ("u32", "u64"),
    ("u64", "u32"),
    ("f32", "f64"),
    ("s32", "s64"),
    ("b32", "b64"),
    (".b8", ".b64"),
    ("global", "shared"),
    ("shared", "local"),
    ("local", "param"),
    ("param", "global"),
    ("%r1", "%rd1"),
    ("%rd1", "%r1"),
    ("%p1", "%r1"),
    ("%r2", "%f2"),
    ("v4", "v2"),
    ("v2", "v4"),
    ("ld", "st"),
    ("st", "ld"),
    ("bra", "call"),
    ("ret", "exit"),
    ("add", "sub"),
    ("mul.lo", "mul.wide"),
    ("[", "[8+"),
    ("0", "-1"),
    ("4", "4294967295"),
    ("32", "31"),
    ("sync", "warp.sync"),
    ("_param_0", "_param_1"),
    ("cvta.to", "cvta"),
    ("f16x2", "bf16x2"),
    (".f16", ".f16x2"),
    (".row", ".col"),
    ("m16n16k16", "m8n32k16"),
    ("m16n8k16", "m16n8k8"),
    (".x4", ".x2"),
    (".x2", ".x1"),
    ("ldmatrix", "stmatrix"),
    (".load.a", ".load.b"),
    (".load.c", ".store.d"),
    (".global.f16", ".f16"),
    (".cg", ".ca"),
    (", 16;", ", 16, 4294967295;"),
];

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_modules_are_refused_run_or_fault(
        which in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..3),
    ) {
        let mut text = SMALL.with(|all| which.get(all).clone());
        damages.iter().for_each(|damage| apply(&mut text, damage));
        load_and_run(&text);
    }

    /// Damage that leaves the text grammatical, so that more modules load.
    #[test]
    fn modules_with_swapped_words_are_refused_run_or_fault(
        which in any::<Index>(),
        swaps in prop::collection::vec((0..SWAPS.len(), any::<Index>()), 1..4),
    ) {
        let text = SMALL.with(|all| String::from_utf8(which.get(all).clone()).unwrap());
        let text = swapped(text, swaps.into_iter());
        load_and_run(text.as_bytes());
    }
}

/// Applies replacements at the places that the indices select.
fn swapped(mut text: String, swaps: impl Iterator<Item = (usize, Index)>) -> String {
    for (swap, at) in swaps {
        let (from, to) = SWAPS[swap];
        let places: Vec<usize> = text.match_indices(from).map(|(at, _)| at).collect();
        if !places.is_empty() {
            let place = *at.get(&places);
            text.replace_range(place..place + from.len(), to);
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Random kernels of well-typed instructions must load, and must end or fault.
    #[test]
    fn random_kernels_run_or_fault(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        let text = generate::kernel(&bytes);
        prop_assert!(load_and_run(text.as_bytes()), "refused:\n{text}");
    }

    /// Random kernels with replaced words, which have wrong types, places and modifiers.
    #[test]
    fn random_kernels_with_swapped_words_are_refused_run_or_fault(
        bytes in prop::collection::vec(any::<u8>(), 0..700),
        swaps in prop::collection::vec((0..SWAPS.len(), any::<Index>()), 1..6),
    ) {
        load_and_run(swapped(generate::kernel(&bytes), swaps.into_iter()).as_bytes());
    }
}

/// Every instruction of the generator must load, so that no generated kernel is refused.
#[test]
fn every_generated_instruction_loads() {
    let mut random = Random(7);
    let all = generate::instructions();
    assert!(all.len() > 500, "{} instructions", all.len());
    for (form, template) in all {
        for _ in 0..8 {
            let bytes: Vec<u8> = (0..64).map(|_| random.next() as u8).collect();
            let text = generate::alone(&form, template, &bytes);
            if let Err(e) = load_text(text.as_bytes()) {
                panic!("{e}\n{text}");
            }
        }
    }
}

/// Runs random kernels, intact and damaged, for `SOFT_GPU_FUZZ_SECONDS` seconds (10 by default).
/// `SOFT_GPU_FUZZ_SEED` is the seed of the first kernel. Standard error shows the seed of each
/// kernel before it runs.
#[test]
#[ignore = "as long as one likes: run it by name"]
fn random_kernels_for_a_while() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let until = std::time::Instant::now()
        + std::time::Duration::from_secs(number("SOFT_GPU_FUZZ_SECONDS").unwrap_or(10));
    let first = number("SOFT_GPU_FUZZ_SEED").unwrap_or(1);
    let texts = SMALL.with(Clone::clone);
    let (mut n, mut loaded) = (0u64, 0u64);
    while std::time::Instant::now() < until {
        let seed = first.wrapping_add(n);
        eprintln!("seed {seed}");
        let mut random = Random(seed);
        let bytes: Vec<u8> = (0..900).map(|_| random.next() as u8).collect();
        let text = match random.below(3) {
            0 => generate::kernel(&bytes),
            1 => generate::kernel(&bytes),
            _ => String::from_utf8_lossy(&texts[random.below(texts.len() as u32) as usize])
                .into_owned(),
        };
        let swaps = random.below(4) as usize;
        let text = (0..swaps).fold(text, |mut text, _| {
            let (from, to) = SWAPS[random.below(SWAPS.len() as u32) as usize];
            let places: Vec<usize> = text.match_indices(from).map(|(at, _)| at).collect();
            if !places.is_empty() {
                let at = places[random.below(places.len() as u32) as usize];
                text.replace_range(at..at + from.len(), to);
            }
            text
        });
        loaded += u64::from(load_and_run(text.as_bytes()));
        n += 1;
    }
    println!("{n} modules, {loaded} of them ran");
}

#[test]
fn the_resources_of_a_module_are_bounded() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    for body in [
        ".visible .entry k() { .local .b8 x[1000000000000]; ret; }",
        ".visible .entry k() { .shared .b8 x[1000000000000]; ret; }",
        ".visible .entry k(.param .b8 x[1000000000000]) { ret; }",
        ".func f(.param .b8 x[1000000000000]) { ret; } .visible .entry k() { ret; }",
        ".visible .entry k() { { .param .b8 x[1000000000000]; } ret; }",
        ".const .b8 x[1000000000000]; .visible .entry k() { ret; }",
        ".shared .b8 x[1000000000000]; .visible .entry k() { ret; }",
    ] {
        assert!(
            load_text(format!("{head}{body}").as_bytes()).is_err(),
            "accepted {body}"
        );
    }
    load_and_run(format!("{head}.visible .entry k() {{ .reg .b32 %r<1000000>; ret; }}").as_bytes());
}

#[test]
fn pieces_of_grammar_before_a_module() {
    for piece in PIECES {
        load_and_run(piece.as_bytes());
        let mut text = SMALL.with(|all| all[0].clone());
        text.splice(..200, piece.bytes());
        load_and_run(&text);
    }
}
