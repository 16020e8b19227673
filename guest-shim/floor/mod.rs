//! Links the library or program so that it runs on glibc 2.28 and later, and needs no library but
//! glibc. The version of glibc on the build machine does not matter.
//!
//! A linker binds each symbol to the newest version in the C library that it finds. Therefore the
//! linker gets stub libraries without code, which export the symbols of glibc 2.28 (`symbols.txt`).
//! gcc's unwinder is linked statically instead of loaded from `libgcc_s.so.1`, which a container
//! may lack. `compat.c` has the functions that the shared libraries of glibc 2.28 lack.
//!
//! Only the cdylib or the program is linked in this way, not the tests of the package.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Sets the link arguments of a library; writes the linker's files to `out`. `floor` is this
/// directory. Other targets than x86-64 Linux with glibc are linked as usual.
#[allow(dead_code)] // A build script calls either this function or `link_program`.
pub(crate) fn link(out: &Path, floor: &Path) {
    if let Some(args) = prepare(out, floor) {
        println!("cargo:rustc-cdylib-link-arg=@{}", args.display());
        println!("cargo:rustc-cdylib-link-arg={}", note(out).display());
    }
}

/// Makes an object file with an ELF note: name `vGPU`, type 1, and the version of vGPU. `vgpu-guest
/// doctor` recognises vGPU's library by this note. The mark is not a symbol, because the library
/// must export only symbols that NVIDIA's library exports.
fn note(out: &Path) -> PathBuf {
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION");
    let code = format!(
        ".section .note.GNU-stack,\"\",@progbits\n.section .note.vgpu,\"a\",@note\n.balign 4\n\
         .long 5, {}, 1\n.asciz \"vGPU\"\n.balign 4\n.ascii \"{version}\"\n.balign 4\n",
        version.len()
    );
    let [source, object] = ["note.s", "note.o"].map(|file| out.join("floor").join(file));
    write(&source, &code);
    compile(["-c"], &[source.as_ref(), "-o".as_ref(), object.as_ref()]);
    object
}

/// As [`link`], for a program.
#[allow(dead_code)]
pub(crate) fn link_program(out: &Path, floor: &Path) {
    if let Some(args) = prepare(out, floor) {
        println!("cargo:rustc-link-arg-bins=@{}", args.display());
        // The linker finds libraries that are named but not needed (libm) on the build machine,
        // with symbols that the stub libraries lack.
        println!("cargo:rustc-link-arg-bins=-Wl,--allow-shlib-undefined");
    }
}

/// Writes the linker's files to `out`. Returns the file with the link arguments; `None` on other
/// targets.
fn prepare(out: &Path, floor: &Path) -> Option<PathBuf> {
    println!("cargo:rerun-if-changed={}", floor.display());
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let target = ["ARCH", "OS", "ENV"].map(|part| env::var(format!("CARGO_CFG_TARGET_{part}")));
    if target.each_ref().map(|part| part.as_deref()) != [Ok("x86_64"), Ok("linux"), Ok("gnu")] {
        return None;
    }
    let dir = out.join("floor");
    fs::create_dir_all(&dir).expect("OUT_DIR is writable");
    let symbols = fs::read_to_string(floor.join("symbols.txt")).expect("symbols.txt is there");
    for library in libraries(&symbols) {
        stand_in(&dir, &library);
    }
    // The standard library names `gcc_s`, the shared unwinder. This file replaces it by the static
    // one.
    write(&dir.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n");
    let compat = dir.join("compat.o");
    compile(
        [
            "-c",
            "-O2",
            "-fPIC",
            "-ffreestanding",
            "-fvisibility=hidden",
        ],
        &[
            floor.join("compat.c").as_ref(),
            "-o".as_ref(),
            compat.as_ref(),
        ],
    );
    // The standard library names the loader with no `-l`, so the arguments name its stub by path.
    let words = ["compat.o", "libld-linux-x86-64.so"].map(|file| dir.join(file));
    let [compat, loader] = words.each_ref().map(|path| path.display());
    let args = dir.join("link.args");
    write(&args, &format!("-L{} {compat} {loader}\n", dir.display()));
    Some(args)
}

/// A library of glibc: name, and symbols by version, old versions first.
struct Library<'a> {
    soname: &'a str,
    versions: Vec<(&'a str, Vec<&'a str>)>,
}

fn libraries(text: &str) -> Vec<Library<'_>> {
    let mut libraries: Vec<Library> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        if line.starts_with(' ') {
            let library = libraries
                .last_mut()
                .expect("a symbol's library stands above");
            let (_, symbols) = library.versions.last_mut().expect("and its version");
            symbols.extend(words);
            continue;
        }
        let (soname, version) = (words.next(), words.next());
        let (soname, version) = soname.zip(version).expect("a library and a version");
        if libraries.last().is_none_or(|last| last.soname != soname) {
            libraries.push(Library {
                soname,
                versions: Vec::new(),
            });
        }
        let library = libraries.last_mut().expect("it was pushed");
        library.versions.push((version, Vec::new()));
    }
    libraries
}

/// Builds the stub of a library, under the name that `-l` finds: `libc.so` for `libc.so.6`.
fn stand_in(dir: &Path, library: &Library) {
    let stem = library.soname.split(".so").next().unwrap_or_default();
    let name = if stem.starts_with("lib") {
        stem.to_owned()
    } else {
        format!("lib{stem}")
    };
    let mut code = String::from(".section .note.GNU-stack,\"\",@progbits\n.text\n");
    let mut script = String::new();
    let mut parent = "";
    for (version, symbols) in &library.versions {
        for symbol in symbols {
            let _ = writeln!(
                code,
                ".globl {symbol}\n.type {symbol},@function\n{symbol}: ret"
            );
        }
        let names = symbols.join("; ");
        let _ = writeln!(script, "{version} {{ global: {names}; }} {parent};");
        parent = version;
    }
    let (source, versions) = (
        dir.join(format!("{name}.s")),
        dir.join(format!("{name}.map")),
    );
    write(&source, &code);
    write(&versions, &script);
    compile(
        [
            "-shared",
            "-nostdlib",
            &format!("-Wl,-soname,{}", library.soname),
            &format!("-Wl,--version-script={}", versions.display()),
            "-o",
        ],
        &[dir.join(format!("{name}.so")).as_ref(), source.as_ref()],
    );
}

fn compile<const N: usize>(options: [&str; N], files: &[&OsStr]) {
    // The compiler that links Rust's programs is on every build machine.
    let compiler = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler).args(options).args(files).status();
    let done = status.as_ref().is_ok_and(|status| status.success());
    assert!(
        done,
        "{compiler:?} {options:?} {files:?}: {status:?}; a C compiler is needed"
    );
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("OUT_DIR is writable");
}
