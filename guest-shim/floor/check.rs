//! Checks on which libraries a built file depends. The tests of each file that goes into guests
//! include this module.

use object::Endianness;
use object::elf::{DT_NEEDED, DynamicTag, FileHeader64, STB_WEAK};
use object::read::elf::{FileHeader, Sym};

/// The newest version of glibc that a file may need, as in docs/guest.md.
const FLOOR: [u32; 2] = [2, 28];

/// Libraries of glibc.
const GLIBC: [&str; 5] = [
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "ld-linux-x86-64.so.2",
];

/// The texts of all entries of one kind in the dynamic section.
pub(crate) fn dynamic(file: &[u8], tag: DynamicTag) -> Vec<String> {
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

/// (symbol, version, library) of all imports of the file; no version if none is required.
pub(crate) fn needs(file: &[u8]) -> Vec<(String, Option<(String, String)>)> {
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
        // A weak symbol without a version may be missing: the library tests for it.
        if version.is_some() || symbol.st_bind() != STB_WEAK {
            let version = version.map(|v| (text(v.name()), text(v.file().unwrap_or_default())));
            found.push((name, version));
        }
    }
    found
}

/// The dependencies of a file beyond glibc up to [`FLOOR`], as text.
pub(crate) fn beyond_the_floor(file: &[u8]) -> Vec<String> {
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
