//! Checks the built library as a file: exports, name, dependencies.

#[path = "../../floor/check.rs"]
mod check;

use check::{beyond_the_floor, dynamic, needs};
use object::elf::DT_SONAME;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

fn library() -> Vec<u8> {
    let exe = std::env::current_exe().expect("a test has a binary");
    std::fs::read(exe.with_file_name("libnvidia_ml.so")).expect("the library was built")
}

#[test]
fn every_function_of_the_header_is_exported_and_nothing_that_nvidia_has_not() {
    let file = library();
    let file = ElfFile64::<Endianness>::parse(&*file).expect("an ELF file");
    let defined = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition());
    let mut exported: Vec<&str> = defined
        .map(|symbol| symbol.name().expect("a name"))
        .collect();
    exported.sort_unstable();
    let mut expected: Vec<&str> = include_str!("../src/functions.txt").lines().collect();
    expected.push("nvmlErrorString");
    if cfg!(feature = "nvidia-smi") {
        expected.push("nvmlInternalGetExportTable");
    }
    expected.sort_unstable();
    assert_eq!(exported, expected);
}

#[test]
fn it_has_nvidia_s_name_and_needs_glibc_2_28_and_nothing_else() {
    let file = library();
    assert_eq!(dynamic(&file, DT_SONAME), ["libnvidia-ml.so.1"]);
    assert!(needs(&file).iter().any(|(symbol, _)| symbol == "malloc"));
    assert_eq!(beyond_the_floor(&file), Vec::<String>::new());
}
