//! The built library as a file: what it exports, what it is called, what it needs.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::guest;
use object::elf::{DT_NEEDED, DT_SONAME, DynamicTag, FileHeader64, STB_WEAK};
use object::read::elf::{ElfFile64, FileHeader, Sym};
use object::{Endianness, Object, ObjectSymbol};

/// The newest version of glibc that the library may need, as docs/guest.md says.
const FLOOR: [u32; 2] = [2, 28];

/// glibc's own libraries.
const GLIBC: [&str; 4] = [
    "libc.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "ld-linux-x86-64.so.2",
];

fn library() -> Vec<u8> {
    std::fs::read(guest::library()).expect("the library was built")
}

/// The texts of the dynamic section's entries of one kind.
fn dynamic(file: &[u8], tag: DynamicTag) -> Vec<String> {
    let header = FileHeader64::<Endianness>::parse(file).expect("an ELF file");
    let endian = header.endian().expect("an ELF file");
    let sections = header.sections(endian, file).expect("sections");
    let (entries, strings) = sections
        .dynamic(endian, file)
        .expect("readable")
        .expect("a dynamic section");
    let strings = sections.strings(endian, file, strings).expect("names");
    let tagged = entries.iter().filter(|e| e.d_tag.get(endian) == tag);
    tagged
        .map(|e| strings.get(e.d_val.get(endian) as u32).expect("a name"))
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// (symbol, version, library) of all that the file asks others for; without a version where none is asked.
fn needs(file: &[u8]) -> Vec<(String, Option<(String, String)>)> {
    let header = FileHeader64::<Endianness>::parse(file).expect("an ELF file");
    let endian = header.endian().expect("an ELF file");
    let sections = header.sections(endian, file).expect("sections");
    let symbols = sections
        .symbols(endian, file, object::elf::SHT_DYNSYM)
        .expect("dynamic symbols");
    let versions = sections
        .versions(endian, file)
        .expect("readable")
        .expect("versions");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut found = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        if !symbol.is_undefined(endian) || index.0 == 0 {
            continue;
        }
        let name = text(symbol.name(endian, symbols.strings()).expect("a name"));
        let version = versions
            .version(versions.version_index(endian, index).into())
            .expect("a version");
        // A weak symbol without a version may be missing: the library asks whether it is there.
        if version.is_some() || symbol.st_bind() != STB_WEAK {
            let version = version.map(|v| (text(v.name()), text(v.file().unwrap_or_default())));
            found.push((name, version));
        }
    }
    found
}

/// What a file needs beyond glibc up to [`FLOOR`], in words.
fn beyond_the_floor(file: &[u8]) -> Vec<String> {
    let mut beyond = Vec::new();
    for name in dynamic(file, DT_NEEDED) {
        if !GLIBC.contains(&&name[..]) {
            beyond.push(format!("the library {name}"));
        }
    }
    for (symbol, version) in needs(file) {
        let Some((version, library)) = version else {
            beyond.push(format!("{symbol}, which floor/symbols.txt does not have"));
            continue;
        };
        let number = version.strip_prefix("GLIBC_").map(|number| {
            let mut parts = number
                .split('.')
                .map(|part| part.parse().unwrap_or(u32::MAX));
            [parts.next().unwrap_or(u32::MAX), parts.next().unwrap_or(0)]
        });
        if number.is_none_or(|number| number > FLOOR) {
            beyond.push(format!("{symbol} of {library} {version}"));
        }
    }
    beyond
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
    let symbols = include_str!("../../proto/src/cuda/symbols.txt");
    assert_eq!(exported, symbols.lines().collect::<Vec<_>>());
    // What NVIDIA's library has beside `cuda.h`, and what only its runtime or its debugger has.
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

/// A library that is linked in the same way, and panics.
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
    // SAFETY: the type that the function above has.
    let caught = unsafe { library.get::<extern "C" fn(usize) -> i32>(b"caught") };
    let caught = caught.expect("the function above");
    assert_eq!((caught(1), caught(2)), (0, 1));
    // And the process's own unwinder works beside it.
    assert!(std::panic::catch_unwind(|| panic!("outside of it")).is_err());
    assert_eq!(caught(2), 1);
}
