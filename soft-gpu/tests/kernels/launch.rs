//! Grid dimensions and parameters.

use crate::harness::load;

#[test]
fn every_thread_knows_its_place() {
    let module = load("launch");
    let (grid, block) = ([3u32, 2, 2], [5u32, 4, 3]);
    let threads = 60;
    let out = module.gpu.zeroed::<u32>(12 * 12 * threads);
    module
        .try_launch(&module.launch("places", grid, block, &[&out]))
        .unwrap();
    let got = module.gpu.read(out);
    let mut row = got.chunks_exact(12);
    for b in 0..12u32 {
        for t in 0..60u32 {
            let lane = t % 32;
            let lt = (1u64 << lane) as u32;
            let want = [
                t % 5,
                t / 5 % 4,
                t / 20,
                b % 3,
                b / 3 % 2,
                b / 6,
                50_403,
                30_202,
                lane,
                t / 32,
                lt - 1,
                !(lt - 1),
            ];
            assert_eq!(row.next().unwrap(), want, "block {b} thread {t}");
        }
    }
}

#[test]
fn a_two_kib_struct_by_value() {
    let module = load("launch");
    let words: Vec<u32> = (0..512).map(|i| i * 7 + 1).collect();
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let out = module.gpu.zeroed::<u32>(512);
    module.run("big_param", 1, 48, &[&bytes, &out]);
    let want: Vec<u32> = words.iter().rev().copied().collect();
    assert_eq!(module.gpu.read(out), want);
}

#[test]
fn parameters_of_mixed_sizes() {
    let module = load("launch");
    // struct Mixed { char c; double d; short s[3]; float4 v; }. float4 is aligned to 16 bytes.
    let mut mixed = vec![0u8; 48];
    mixed[0] = (-9i8) as u8;
    mixed[8..16].copy_from_slice(&2.25f64.to_le_bytes());
    mixed[20..22].copy_from_slice(&(-300i16).to_le_bytes());
    mixed[32..36].copy_from_slice(&1.5f32.to_le_bytes());
    mixed[44..48].copy_from_slice(&4.0f32.to_le_bytes());
    let out = module.gpu.zeroed::<f64>(8);
    module.run(
        "mixed_params",
        1,
        1,
        &[&-5i8, &mixed, &-1000i16, &0.125f64, &200u8, &out],
    );
    assert_eq!(
        module.gpu.read(out),
        [-5.0, -9.0, 2.25, -300.0, 5.5, -1000.0, 0.125, 200.0]
    );
    let info = module.program.kernel_info(module.kernel("mixed_params"));
    assert_eq!(info.params[..3], [(0, 1), (16, 48), (64, 2)]);
    assert_eq!((info.params[5], info.param_bytes), ((88, 8), 96));
}

#[test]
fn launch_bounds_are_known() {
    let module = load("launch");
    let info = module.program.kernel_info(module.kernel("_Z7boundedPj"));
    assert_eq!((info.max_threads, info.virtual_arch), (128, 80));
    let info = module.program.kernel_info(module.kernel("places"));
    assert_eq!(
        (info.max_threads, info.shared_bytes, info.local_bytes),
        (1024, 0, 0)
    );
}
