//! Hostile modules: whatever a guest sends is refused, runs, or faults; the process lives on and
//! nothing outside of the arena changes.

use proptest::prelude::*;
use proptest::sample::Index;

use crate::damage::{PIECES, apply, damage, fixtures};
use crate::harness::{Arg, Module, load_text};

/// Largest fixture to damage: the elementary functions would only repeat the same forms.
const LARGEST: usize = 30_000;

/// Loads a text and, if it is accepted, runs every kernel of it for a short while.
fn load_and_run(text: &[u8]) {
    let Ok(module) = load_text(text) else { return };
    let buffer = module.gpu.zeroed::<u8>(1 << 16).address;
    let kernels: Vec<String> = module
        .program
        .kernels()
        .map(|(name, _)| name.to_owned())
        .collect();
    for kernel in kernels {
        run_briefly(&module, &kernel, buffer);
    }
}

fn run_briefly(module: &Module, kernel: &str, buffer: u64) {
    let info = module.program.kernel_info(module.kernel(kernel));
    if info.param_bytes > 1 << 16 || info.shared_bytes > 48 << 10 || info.required_block.is_some() {
        return;
    }
    let args: Vec<Vec<u8>> = info
        .params
        .iter()
        .map(|&(_, size)| argument(size, buffer))
        .collect();
    let args: Vec<&dyn Arg> = args.iter().map(|a| a as &dyn Arg).collect();
    let block = 40.min(info.max_threads.max(1));
    module.gpu.limit_turns(6);
    // How it ends is open; that it ends is the test.
    let _ = module.try_run(kernel, 2, block, &args);
}

/// A pointer to memory where it fits, else a small number.
fn argument(size: usize, buffer: u64) -> Vec<u8> {
    let mut bytes = vec![0; size];
    match size {
        8.. => bytes[..8].copy_from_slice(&buffer.to_le_bytes()),
        1.. => bytes[0] = 32,
        0 => {}
    }
    bytes
}

thread_local!(static SMALL: Vec<Vec<u8>> = fixtures()
    .into_iter()
    .map(|(_, text)| text)
    .filter(|text| text.len() < LARGEST)
    .collect());

/// Swaps one word of the grammar that lowering looks at for another.
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

    /// Still grammatical, so that more of them load.
    #[test]
    fn modules_with_swapped_words_are_refused_run_or_fault(
        which in any::<Index>(),
        swaps in prop::collection::vec((0..SWAPS.len(), any::<Index>()), 1..4),
    ) {
        let mut text = SMALL.with(|all| String::from_utf8(which.get(all).clone()).unwrap());
        for (swap, at) in swaps {
            let (from, to) = SWAPS[swap];
            let places: Vec<usize> = text.match_indices(from).map(|(at, _)| at).collect();
            if !places.is_empty() {
                let place = *at.get(&places);
                text.replace_range(place..place + from.len(), to);
            }
        }
        load_and_run(text.as_bytes());
    }
}

#[test]
fn what_a_module_can_ask_for_is_bounded() {
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
fn loose_pieces_in_front_of_a_module() {
    for piece in PIECES {
        load_and_run(piece.as_bytes());
        let mut text = SMALL.with(|all| all[0].clone());
        text.splice(..200, piece.bytes());
        load_and_run(&text);
    }
}
