//! Device functions.

use crate::harness::load;

#[test]
fn arguments_and_results_of_every_shape() {
    let module = load("calls");
    let input: Vec<i32> = (0..64).map(|i| i * 77_777 - 2_000_000).collect();
    let (din, out) = (module.gpu.upload(&input), module.gpu.zeroed::<f64>(7 * 64));
    module.run("shapes", 1, 64, &[&din, &out]);
    for (thread, got) in module.gpu.read(out).chunks(7).enumerate() {
        let v = input[thread];
        let scalar = i32::from(v as i8) + 10 * i32::from(v as i16) + 100 * (v % 1000) + v;
        let want = [
            f64::from(scalar),
            f64::from(v as f32 * 0.5) * 3.0,
            0.25 + f64::from(v),
            f64::from(v * 2),
            f64::from(2 * (v % 100) + (v & 7) + 11),
            f64::from(v + 5),
            f64::from(v & 1),
        ];
        assert_eq!(got, want, "thread {thread}");
    }
}

#[test]
fn recursion_diverges_by_lane() {
    let module = load("calls");
    let out = module.gpu.zeroed::<u32>(64);
    module.run("recursion", 1, 32, &[&out]);
    let fibonacci = |n: u32| (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0;
    fn ackermann(m: u32, n: u32) -> u32 {
        match (m, n) {
            (0, n) => n + 1,
            (m, 0) => ackermann(m - 1, 1),
            (m, n) => ackermann(m - 1, ackermann(m, n - 1)),
        }
    }
    let mut want: Vec<u32> = (0..32).map(|t| fibonacci(t % 12)).collect();
    want.extend((0..32).map(|t| ackermann(t % 3, t % 4)));
    assert_eq!(module.gpu.read(out), want);
}

#[test]
fn functions_that_call_each_other() {
    let module = load("calls");
    let out = module.gpu.zeroed::<u32>(64);
    module.run("mutual", 1, 64, &[&out]);
    assert_eq!(
        module.gpu.read(out),
        (0..64).map(|t| u32::from(t % 2 == 0)).collect::<Vec<_>>()
    );
}

#[test]
fn calls_through_a_table_of_pointers() {
    let module = load("calls");
    let input: Vec<i32> = (0..64).map(|i| i * 13 - 300).collect();
    let (din, out) = (module.gpu.upload(&input), module.gpu.zeroed::<i32>(64));
    module.run("pointers", 1, 64, &[&din, &out]);
    let want: Vec<i32> = (0..64)
        .map(|i| {
            let (a, b) = (input[i], input[i ^ 1]);
            [a + b, a - b, a * b][i % 3]
        })
        .collect();
    assert_eq!(module.gpu.read(out), want);
}

#[test]
fn virtual_methods() {
    let module = load("calls");
    let out = module.gpu.zeroed::<i32>(32);
    module.run("virtuals", 1, 32, &[&out]);
    let want: Vec<i32> = (0..32)
        .map(|t| if t % 2 == 1 { t * t * 3 } else { -3 })
        .collect();
    assert_eq!(module.gpu.read(out), want);
}
