//! State spaces, widths, initialisers, generic addresses, the device heap.

use soft_gpu::exec::contract::Launch;

use crate::harness::{Random, load};

#[test]
fn constants_initialised_and_set_from_outside() {
    let module = load("memory");
    let settable: Vec<i32> = (0..16).map(|i| i * i).collect();
    module
        .gpu
        .write(module.global::<i32>("settable", 16).address, &settable);
    let out = module.gpu.zeroed::<f32>(32);
    module.run("constants", 1, 32, &[&out]);
    let table = [1.5f32, -2.0, 0.25, 1e30];
    let want: Vec<f32> = (0..32)
        .map(|i| table[i % 4] + settable[i % 16] as f32)
        .collect();
    assert_eq!(module.gpu.read(out), want);
}

#[test]
fn globals_have_their_initial_values() {
    let module = load("memory");
    let out = module.gpu.zeroed::<f64>(12);
    module.run("globals", 1, 1, &[&out]);
    let mut want = vec![
        42.0,
        1.0,
        2.0,
        0.0,
        255.0,
        4.0,
        5.0,
        std::f64::consts::PI,
        f64::NEG_INFINITY,
    ];
    want.extend([b'o', b'o', 0].map(f64::from));
    assert_eq!(module.gpu.read(out), want);
    assert_eq!(module.gpu.read(module.global::<i32>("counter", 1)), [42]);
}

#[test]
fn globals_are_found_by_name() {
    let module = load("memory");
    module.run("fill_buffer", 1, 64, &[]);
    let got = module.gpu.read(module.global::<u32>("buffer", 64));
    assert!((0..64).all(|i| got[i as usize] == i * i), "{got:?}");
    let constant = |name: &str| {
        module
            .program
            .globals()
            .iter()
            .find(|g| g.name == name)
            .map(|g| g.constant)
    };
    assert_eq!(
        (constant("table"), constant("buffer")),
        (Some(true), Some(false))
    );
}

#[test]
fn dynamic_shared_memory() {
    let module = load("memory");
    for block in [1u32, 31, 256, 1024] {
        let data: Vec<u32> = (0..3 * block).collect();
        let buffer = module.gpu.upload(&data);
        let launch = Launch {
            dynamic_shared: 4 * block,
            ..module.launch("reverse", [3, 1, 1], [block, 1, 1], &[&buffer])
        };
        module.try_launch(&launch).unwrap();
        let want: Vec<u32> = data
            .chunks(block as usize)
            .flat_map(|c| c.iter().rev().copied())
            .collect();
        assert_eq!(module.gpu.read(buffer), want, "block {block}");
    }
}

#[test]
fn loads_of_every_width_extend() {
    let module = load("memory");
    let mut random = Random(3);
    let bytes: Vec<u8> = (0..512).map(|_| random.next() as u8).collect();
    let (input, out) = (module.gpu.upload(&bytes), module.gpu.zeroed::<i64>(8 * 64));
    module.run("widths", 1, 64, &[&input, &out]);
    let got = module.gpu.read(out);
    for i in 0..64 {
        let wide = |size: usize| -> u64 {
            let mut eight = [0; 8];
            eight[..size].copy_from_slice(&bytes[i * size..(i + 1) * size]);
            u64::from_le_bytes(eight)
        };
        let want = [
            i64::from(bytes[i] as i8),
            i64::from(bytes[i]),
            i64::from(wide(2) as i16),
            wide(2) as i64,
            i64::from(wide(4) as i32),
            wide(4) as i64,
            wide(8) as i64,
            i64::from(bytes[i]) + 1,
        ];
        assert_eq!(got[8 * i..8 * i + 8], want, "thread {i}");
    }
}

#[test]
fn narrow_stores_truncate() {
    let module = load("memory");
    let mut random = Random(4);
    let values: Vec<i64> = (0..64).map(|_| random.next() as i64).collect();
    let (input, out) = (module.gpu.upload(&values), module.gpu.zeroed::<u8>(512));
    module.run("narrow_stores", 1, 64, &[&input, &out]);
    let mut want: Vec<u8> = values.iter().map(|v| *v as u8).collect();
    want.extend(values.iter().flat_map(|v| (*v as u16).to_le_bytes()));
    want.extend(values.iter().flat_map(|v| (*v as u32).to_le_bytes()));
    want.resize(512, 0);
    assert_eq!(module.gpu.read(out), want);
}

#[test]
fn vector_accesses() {
    let module = load("memory");
    let f: Vec<f32> = (0..4 * 40).map(|i| i as f32).collect();
    let d: Vec<f64> = (0..2 * 40).map(|i| f64::from(i) * 0.5).collect();
    let c: Vec<u8> = (0..4 * 40).map(|i| i as u8).collect();
    let gpu = &module.gpu;
    let (x, y, z) = (
        gpu.zeroed::<f32>(160),
        gpu.zeroed::<f64>(80),
        gpu.zeroed::<u8>(160),
    );
    module.run(
        "vectors",
        1,
        40,
        &[
            &gpu.upload(&f),
            &gpu.upload(&d),
            &gpu.upload(&c),
            &x,
            &y,
            &z,
        ],
    );
    assert_eq!(
        gpu.read(x),
        f.chunks(4)
            .flat_map(|v| [v[3], v[2], v[1], v[0]])
            .collect::<Vec<_>>()
    );
    assert_eq!(
        gpu.read(y),
        d.chunks(2).flat_map(|v| [v[1], v[0]]).collect::<Vec<_>>()
    );
    assert_eq!(
        gpu.read(z),
        c.chunks(4)
            .flat_map(|v| [v[3], v[2], v[1], v[0]])
            .collect::<Vec<_>>()
    );
}

#[test]
fn arrays_in_local_memory() {
    let module = load("memory");
    let mut random = Random(5);
    let input: Vec<u32> = (0..64).map(|_| random.below(1000)).collect();
    let (din, out) = (module.gpu.upload(&input), module.gpu.zeroed::<u32>(64));
    module.run("local_array", 1, 64, &[&din, &out]);
    let want: Vec<u32> = (0..64)
        .map(|i| {
            let mut a: Vec<u32> = (1..=16).map(|k| input[i] * k).collect();
            for k in 0..16 {
                let add = a[(input[(k + i) % 16] % 16) as usize];
                let at = &mut a[(input[k] % 16) as usize];
                *at = at.wrapping_add(add);
            }
            a[(input[i] % 16) as usize]
        })
        .collect();
    assert_eq!(module.gpu.read(out), want);
}

#[test]
fn generic_addresses_reach_every_space() {
    let module = load("memory");
    module.gpu.write(
        module.global::<i32>("settable", 16).address,
        &[1000, 2000, 3000],
    );
    let (input, out) = (
        module.gpu.upload(&[4u32, 5, 6]),
        module.gpu.zeroed::<u32>(5 * 40),
    );
    module.run("generic", 2, 40, &[&input, &out]);
    for (thread, got) in module.gpu.read(out).chunks(5).enumerate() {
        assert_eq!(
            got,
            [15, 30, 3 * thread as u32 + 15, 6000, 0b00111],
            "thread {thread}"
        );
    }
}

#[test]
fn the_device_heap() {
    let module = load("memory");
    let out = module.gpu.zeroed::<u32>(32);
    module.run("heap", 1, 32, &[&out, &20u32]);
    let want: Vec<u32> = (0..32).map(|t| 20 * t + 190).collect();
    assert_eq!(module.gpu.read(out), want);
    assert_eq!(module.gpu.heap_blocks(), 0);
}

#[test]
fn an_exhausted_heap_gives_null() {
    let module = load("memory");
    let out = module.gpu.zeroed::<u32>(1);
    // The nodes of 16 bytes need more than the heap of the harness, but less than the arena.
    module.run("heap", 1, 1, &[&out, &2_000_000u32]);
    assert_eq!(module.gpu.read(out), [u32::MAX]);
}

#[test]
fn cache_operators_orders_and_hints_change_nothing() {
    let module = load("memory");
    let input: Vec<u32> = (0..40).map(|i| i * 11).collect();
    let (din, out) = (module.gpu.upload(&input), module.gpu.zeroed::<u32>(8 * 40));
    module.run("access_kinds", 1, 40, &[&din, &out]);
    for (thread, got) in module.gpu.read(out).chunks(8).enumerate() {
        let sum = 9 * input[thread];
        assert_eq!(
            got,
            [sum, sum + 1, sum + 2, sum + 3, sum + 4, sum + 5, 1, 1],
            "thread {thread}"
        );
    }
}
