//! Forbidden operations of kernels must be errors, and must never crash the process.

use soft_gpu::exec::contract::{Fault, LoadError, LoadOptions};

use crate::harness::{Arg, Module, load, load_text};

fn fault(module: &Module, kernel: &str, args: &[&dyn Arg]) -> Fault {
    module.try_run(kernel, 1, 1, args).expect_err(kernel)
}

fn illegal_address(fault: &Fault) -> bool {
    matches!(fault, Fault::IllegalAddress(_))
}

#[test]
fn wild_addresses() {
    let module = load("faults");
    let gpu = &module.gpu;
    let (cell, out) = (gpu.zeroed::<u32>(128), gpu.zeroed::<u32>(8));
    let host = 5u32;
    let wild = [
        0u64,
        4,
        cell.address + 512,
        cell.address - 512,
        cell.address + (1 << 40),
        u64::MAX - 3,
        1 << 63,
        0x7fff_0000_0000,
        // An address of the process that is not device memory.
        (&raw const host) as u64,
    ];
    for address in wild {
        assert!(
            illegal_address(&fault(&module, "store", &[&address, &1u32])),
            "store {address:#x}"
        );
        assert!(
            illegal_address(&fault(&module, "load", &[&address, &out])),
            "load {address:#x}"
        );
        assert!(
            illegal_address(&fault(&module, "add", &[&address])),
            "add {address:#x}"
        );
    }
    module.run("store", 1, 1, &[&(cell.address + 508), &9u32]);
    assert_eq!(gpu.read(cell)[127], 9);
    assert_eq!(host, 5);
}

#[test]
fn an_access_across_the_end_of_an_allocation() {
    let module = load("faults");
    let (cell, out) = (module.gpu.zeroed::<u8>(1536), module.gpu.zeroed::<f64>(2));
    module.run("load_wide", 1, 1, &[&(cell.address + 1520), &out]);
    assert!(illegal_address(&fault(
        &module,
        "load_wide",
        &[&(cell.address + 1536), &out]
    )));
}

#[test]
fn misaligned_addresses() {
    let module = load("faults");
    let (cell, out) = (module.gpu.zeroed::<u32>(16), module.gpu.zeroed::<u32>(8));
    for by in 1..4u64 {
        let address = cell.address + by;
        for fault in [
            fault(&module, "store", &[&address, &1u32]),
            fault(&module, "load", &[&address, &out]),
            fault(&module, "add", &[&address]),
        ] {
            assert!(matches!(fault, Fault::Misaligned(_)), "{by}: {fault:?}");
        }
    }
    let fault = fault(&module, "load_wide", &[&(cell.address + 8), &out]);
    assert!(matches!(fault, Fault::Misaligned(_)), "{fault:?}");
}

#[test]
fn one_stray_thread_fails_the_whole_grid() {
    let module = load("faults");
    let data = module.gpu.zeroed::<u32>(64 * 256);
    module.run("stray", 64, 256, &[&data, &u32::MAX, &0u64]);
    assert!(
        module
            .gpu
            .read(data)
            .iter()
            .enumerate()
            .all(|(i, v)| *v == i as u32)
    );
    let fault = module
        .try_run("stray", 64, 256, &[&data, &9999u32, &(1u64 << 32)])
        .unwrap_err();
    assert!(illegal_address(&fault), "{fault:?}");
}

#[test]
fn accesses_beyond_shared_and_local_memory_fault() {
    let module = load("faults");
    let out = module.gpu.zeroed::<u32>(1);
    module.run("shared_store", 1, 1, &[&31u32]);
    module.run("local_store", 1, 1, &[&7u32, &out]);
    for index in [1u32 << 20, 0x3fff_ffff, 0xffff_ffff] {
        assert!(
            illegal_address(&fault(&module, "shared_store", &[&index])),
            "shared {index:#x}"
        );
        assert!(
            illegal_address(&fault(&module, "local_store", &[&index, &out])),
            "local {index:#x}"
        );
    }
}

#[test]
fn endless_recursion_exhausts_the_stack() {
    let module = load("faults");
    let out = module.gpu.zeroed::<u32>(1);
    assert_eq!(
        fault(&module, "endless_recursion", &[&out]),
        Fault::StackOverflow
    );
}

#[test]
fn calls_and_branches_to_invalid_targets_fault() {
    let module = load("faults");
    let out = module.gpu.zeroed::<u32>(1);
    for address in [0, 1, out.address, u64::MAX] {
        let fault = fault(&module, "wild_call", &[&address, &out]);
        assert!(
            matches!(
                fault,
                Fault::IllegalInstruction(_) | Fault::IllegalAddress(_)
            ),
            "{address:#x}: {fault:?}"
        );
    }
    module.run("wild_branch", 1, 32, &[&1u32]);
    let fault = fault(&module, "wild_branch", &[&2u32]);
    assert!(matches!(fault, Fault::IllegalInstruction(_)), "{fault:?}");
}

#[test]
fn images_that_are_not_served_are_refused_with_the_line() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let text =
        |body: &str| format!("{head}.visible .entry k() {{\n.reg .b32 %r<4>;\n{body}\nret;\n}}\n");
    let options = LoadOptions::of((8, 0));
    let load =
        |text: &str| soft_gpu::exec::program::Program::load(text.as_bytes(), &options).map(|_| ());

    let Err(LoadError::Unsupported(message)) = load(&text("tcgen05.fence::before_thread_sync;"))
    else {
        panic!("accepted an instruction that it cannot run")
    };
    assert!(
        message.contains("tcgen05") && message.contains('6'),
        "{message}"
    );

    let Err(LoadError::Syntax(message)) = load(&text("add.s32 %r1 %r2;")) else {
        panic!("accepted invalid PTX")
    };
    assert!(message.contains("line 6"), "{message}");

    assert!(matches!(
        load("\x7fELF\x02\x01\x01"),
        Err(LoadError::NoBinary(_))
    ));
    assert!(matches!(
        load(""),
        Err(LoadError::NoBinary(_) | LoadError::Syntax(_))
    ));
    assert!(
        load(&text("add.s32 %r1, %r2, %r9;")).is_err(),
        "an undeclared register"
    );
    assert!(
        load(&text("bra NOWHERE;")).is_err(),
        "a branch without its label"
    );
    assert!(
        load(&text("add.s32 %r1, %r2;")).is_err(),
        "a missing operand"
    );
    let newer = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }";
    assert!(load(newer).is_err(), "a newer target");
    assert!(load_text(text("").as_bytes()).is_ok());
}
