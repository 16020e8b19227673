//! PTX that NVRTC does not emit (`fixtures/handwritten.ptx`).

use soft_gpu::exec::contract::Launch;

use crate::harness::load;

#[test]
fn initialisers_and_symbols() {
    let module = load("handwritten");
    let out = module.gpu.zeroed::<u32>(10);
    module.run("data", 1, 1, &[&out]);
    let floats = [-2.5f32, 2.0, 0.0].map(f32::to_bits);
    assert_eq!(
        module.gpu.read(out),
        [40, 20, 10, 30, floats[0], floats[1], floats[2], 77, 5, 0]
    );
    assert_eq!(module.gpu.read(module.global::<u64>("common_cell", 1)), [5]);
}

#[test]
fn calls_with_registers_and_guards() {
    let module = load("handwritten");
    let out = module.gpu.zeroed::<u32>(4 * 32);
    module.run("calls", 1, 32, &[&out]);
    for (thread, got) in module.gpu.read(out).chunks(4).enumerate() {
        let first = if thread < 10 { 2 * thread as u32 } else { 5 };
        let picked = if thread % 2 == 1 { 2 * first } else { first };
        assert_eq!(
            got,
            [first, 2 * first, picked, u32::from(thread < 10)],
            "thread {thread}"
        );
    }
}

#[test]
fn packing_and_relaxed_widths() {
    let module = load("handwritten");
    let input = 0xf1e2_d3c4_b5a6_9788u64;
    let (out, din) = (module.gpu.zeroed::<u8>(64), module.gpu.upload(&[input]));
    module.run("widths", 1, 1, &[&out, &din]);
    let got = module.gpu.read(out);
    let wide = |at: usize| u64::from_le_bytes(got[at..at + 8].try_into().unwrap());
    let word = |at: usize| u32::from_le_bytes(got[at..at + 4].try_into().unwrap());
    assert_eq!(wide(0), 0x9788_b5a6_d3c4_f1e2);
    assert_eq!(
        [word(8), word(12), word(16)],
        [0x9788_b5a6, 0xb5a6_9788, 0xf1e2_d3c4]
    );
    assert_eq!(wide(24), 0xffff_ffff_ffff_fff1);
    assert_eq!([word(32), word(36)], [0xf1, 0xffff_f1e2]);
    assert_eq!(got[40..48], [0x88, 0, 0xc4, 0xd3, 0xb5, 0xa6, 0x97, 0x88]);
    assert_eq!((word(48), wide(56)), (0xb5a6_9788, input ^ 1 << 63));
}

#[test]
fn selections_and_predicates() {
    let module = load("handwritten");
    let n = 7u32;
    let out = module.gpu.zeroed::<u32>(6 * 32);
    module.run("select", 1, 32, &[&out, &n]);
    for (thread, got) in module.gpu.read(out).chunks(6).enumerate() {
        let t = thread as u32;
        let (odd, less) = (t % 2 == 1, t < n);
        // The second destination of setp gets the opposite comparison, with the same combination.
        let flags = [less && odd, !less && odd, !less || !odd, less ^ odd];
        let flags = flags
            .iter()
            .enumerate()
            .fold(0, |m, (i, f)| m | u32::from(*f) << i);
        let keep = (!odd && (less ^ odd)) ^ odd;
        let want = [
            flags,
            if less { 222 } else { 111 },
            if less { 2f32 } else { 1.0 }.to_bits(),
            if keep { t } else { u32::MAX },
            if t == n { u32::MAX } else { 0 },
            if !less && odd { 1f32 } else { 0.0 }.to_bits(),
        ];
        assert_eq!(got, want, "thread {thread}");
    }
}

#[test]
fn special_registers() {
    let module = load("handwritten");
    let out = module.gpu.zeroed::<u32>(6);
    let launch = Launch {
        dynamic_shared: 256,
        ..module.launch("specials", [1, 1, 1], [1, 1, 1], &[&out])
    };
    module.try_launch(&launch).unwrap();
    assert_eq!(module.gpu.read(out), [32, 1, 1, u32::MAX - 1, 256, 1]);
}

#[test]
fn nested_scopes() {
    let module = load("handwritten");
    let out = module.gpu.zeroed::<u32>(1);
    module.run("scopes", 1, 1, &[&out]);
    assert_eq!(module.gpu.read(out), [(0..8).map(|i| i * i).sum::<u32>()]);
}
