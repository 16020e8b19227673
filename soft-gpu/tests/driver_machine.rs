//! Machine code: refused, or, with `SOFT_GPU_SASS=skip`, loaded as modules whose kernels do
//! nothing. These modules have the properties that the file states.

mod driver_support;

use driver_support::*;
use soft_gpu::capi::module::load::*;
use soft_gpu::capi::stream::streams::cuStreamSynchronize;

/// `fixtures/machine/kinds.ptx`, assembled by CUDA 12.9 and by CUDA 13.5, whose files have
/// different ABIs.
const CUBINS: [&[u8]; 2] = [
    include_bytes!("../fixtures/machine/kinds.12.cubin"),
    include_bytes!("../fixtures/machine/kinds.13.cubin"),
];

const NO_BINARY: u32 = 209;
const INVALID_VALUE: u32 = 1;

fn load(image: &[u8]) -> Result<u64, u32> {
    let mut module = 0;
    match cuModuleLoadData(Out(&mut module), In(image.as_ptr())) {
        0 => Ok(module),
        code => Err(code),
    }
}

fn attribute(f: u64, which: i32) -> i32 {
    let mut value = 0;
    ok(cuFuncGetAttribute(Out(&mut value), which, f));
    value
}

fn global(module: u64, name: &str) -> (u64, usize) {
    let name = std::ffi::CString::new(name).expect("no NUL");
    let (mut at, mut bytes) = (0, 0);
    let name = Text(name.as_ptr());
    ok(cuModuleGetGlobal_v2(
        Out(&mut at),
        Out(&mut bytes),
        module,
        name,
    ));
    (at, bytes)
}

#[test]
fn machine_code_is_refused_by_default() {
    let (_, err) = passes("refused", &[]);
    assert!(err.contains("SOFT_GPU_SASS=skip"), "{err}");
}

#[test]
#[ignore = "a role"]
fn refused() {
    start();
    for image in CUBINS {
        assert_eq!(load(image), Err(NO_BINARY));
    }
}

#[test]
fn skipped_kernels_are_what_the_file_says_but_do_nothing() {
    let (_, err) = passes("skipped", &[("SOFT_GPU_SASS", "skip")]);
    assert!(err.contains("DO NOTHING"), "it must be said: {err}");
}

#[test]
#[ignore = "a role"]
fn skipped() {
    start();
    for image in CUBINS {
        let module = load(image).expect("a module");
        let scale = function(module, "scale");
        let mut count = 0;
        ok(cuFuncGetParamCount(scale, Out(&mut count)));
        assert_eq!(count, 4);
        for (i, wanted) in [(0, 8), (8, 4), (16, 24), (40, 1)].into_iter().enumerate() {
            let (mut offset, mut size) = (0, 0);
            ok(cuFuncGetParamInfo(
                scale,
                i,
                Out(&mut offset),
                Out(&mut size),
            ));
            assert_eq!((offset, size), wanted, "parameter {i}");
        }
        // Attributes 0 to 2: threads, shared memory, constant memory. The assembler chose the
        // registers.
        assert_eq!([0, 1, 2].map(|a| attribute(scale, a)), [256, 512, 4]);
        assert!((8..=64).contains(&attribute(scale, 4)));
        variables(module);

        let out = upload(&[1.0f32; 64]);
        let (n, pair, flag) = (64u32, [0u64; 3], 1u8);
        ok(launch(scale, 1, 64, NULL, &[&out, &n, &pair, &flag]));
        ok(cuStreamSynchronize(NULL));
        assert_eq!(download::<f32>(out, 64), [1.0; 64], "nothing was computed");
        // Launches are still checked against the block size of the kernel.
        assert_eq!(
            launch(scale, 1, 257, NULL, &[&out, &n, &pair, &flag]),
            INVALID_VALUE
        );
        let nothing = function(module, "nothing");
        assert_eq!(launch(nothing, 1, 64, NULL, &[]), INVALID_VALUE);
        ok(launch(nothing, 1, 32, NULL, &[]));
        ok(cuModuleUnload(module));
    }
}

fn variables(module: u64) {
    let (at, bytes) = global(module, "counter");
    assert_eq!((download::<u32>(at, 1), bytes), (vec![7], 4));
    let (at, bytes) = global(module, "table");
    let wanted: Vec<u8> = (1..=9).chain([0; 15]).collect();
    assert_eq!((download::<u8>(at, 24), bytes), (wanted, 24));
    let (at, bytes) = global(module, "room");
    assert_eq!((download::<u8>(at, 4096), bytes), (vec![0; 4096], 4096));
    let (at, bytes) = global(module, "factor");
    assert_eq!((download::<f32>(at, 1), bytes), (vec![2.0], 4));
    let (at, bytes) = global(module, "together");
    assert_eq!((download::<u32>(at, 1), bytes), (vec![5], 4));
}
