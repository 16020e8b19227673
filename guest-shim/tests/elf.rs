//! Checks the built library as a file: exports, name, dependencies.

#[path = "../floor/check.rs"]
mod check;
mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use check::{beyond_the_floor, dynamic, needs};
use common::guest;
use object::elf::DT_SONAME;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

fn library() -> Vec<u8> {
    std::fs::read(guest::library()).expect("the library was built")
}

#[test]
fn exactly_the_symbols_of_nvidia_s_library_are_exported() {
    let file = library();
    let file = ElfFile64::<Endianness>::parse(&*file).expect("an ELF file");
    let defined = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition());
    let mut exported: Vec<&str> = defined
        .map(|symbol| symbol.name().expect("a name"))
        .collect();
    exported.sort_unstable();
    assert_eq!(exported, vgpu_cuda_abi::names::symbols());
    // Exported: symbols of NVIDIA's library that `cuda.h` lacks. Not exported: symbols of NVIDIA's
    // runtime and debugger.
    assert!(exported.contains(&"cuGraphicsGLRegisterImage") && exported.contains(&"cuEGLApiInit"));
    assert!(
        exported
            .iter()
            .all(|name| !name.starts_with("cuda") && !name.starts_with("cudbg"))
    );
}

#[test]
fn programs_find_it_by_the_driver_s_name() {
    assert_eq!(dynamic(&library(), DT_SONAME), ["libcuda.so.1"]);
}

#[test]
fn it_needs_glibc_2_28_and_nothing_else() {
    let file = library();
    assert!(needs(&file).iter().any(|(symbol, _)| symbol == "malloc"));
    assert_eq!(beyond_the_floor(&file), Vec::<String>::new());
}

/// Builds a library that is linked like the guest library, with a function that panics.
fn panicking(dir: &Path) -> PathBuf {
    let source = dir.join("panics.rs");
    let text = "#[unsafe(no_mangle)]
        pub extern \"C\" fn caught(thing: usize) -> i32 {
            std::panic::set_hook(Box::new(|_| ()));
            i32::from(std::panic::catch_unwind(|| [1, 2][thing]).is_err())
        }";
    std::fs::write(&source, text).expect("a temporary file");
    let library = dir.join("libpanics.so");
    let output = Command::new("rustc")
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .args([&library, &source])
        .arg(concat!("-Clink-arg=@", env!("OUT_DIR"), "/floor/link.args"))
        .output()
        .expect("rustc runs");
    assert!(output.status.success(), "{output:?}");
    library
}

#[test]
fn a_panic_in_a_library_linked_so_is_caught_in_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = panicking(dir.path());
    let file = std::fs::read(&path).expect("rustc made it");
    assert_eq!(beyond_the_floor(&file), Vec::<String>::new());
    // SAFETY: the library above, which does nothing when it is loaded.
    let library = unsafe { libloading::Library::new(path) }.expect("it loads");
    // SAFETY: the type of the function above.
    let caught = unsafe { library.get::<extern "C" fn(usize) -> i32>(b"caught") };
    let caught = caught.expect("the function above");
    assert_eq!((caught(1), caught(2)), (0, 1));
    // The unwinder of the process still works beside the unwinder of the library.
    assert!(std::panic::catch_unwind(|| panic!("outside of it")).is_err());
    assert_eq!(caught(2), 1);
}
