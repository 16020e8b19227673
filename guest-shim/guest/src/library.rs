//! Finds the file that the loader chooses for a library's name, and checks that the file is vGPU's.

use libloading::{Library, Symbol};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};

/// Name and type of the note in vGPU's libraries (`guest-shim/floor/mod.rs`).
const NOTE: (&[u8], u32) = (b"vGPU", 1);

/// A library that was found by name.
pub(crate) struct Found {
    library: Library,
    /// Path of the file.
    pub(crate) path: String,
    /// Version of vGPU.
    pub(crate) version: String,
}

/// Loads the library `name` and checks that its file is vGPU's. `symbol` is a symbol that the
/// library must have; the address of the symbol leads to the file.
pub(crate) fn found(name: &str, symbol: &str) -> Result<Found, String> {
    // SAFETY: every CUDA program of this machine loads the library of this name.
    let library = unsafe { Library::new(name) }.map_err(|e| {
        let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        // The loader says the same of a library that this library needs.
        let missing = why.starts_with(&format!("{name}: ")) && why.contains("No such file");
        let way_out = match missing {
            true => {
                "install it where the loader looks (/etc/ld.so.conf.d, ldconfig) or name its directory in \
                 LD_LIBRARY_PATH"
            }
            // Damaged, of another architecture, or without a library that it needs.
            false => "install vGPU's library in the place of this file",
        };
        format!("{name} cannot be loaded ({why}); {way_out}")
    })?;
    // SAFETY: the symbol is looked up, but not called.
    let symbol = unsafe { library.get::<*const ()>(symbol.as_bytes()) };
    let path = symbol.ok().and_then(|symbol| file_at(symbol.addr()));
    let path = path.unwrap_or_else(|| format!("what the loader finds as {name}"));
    let file = std::fs::read(&path).ok();
    let version = file.and_then(|file| version(&file)).ok_or_else(|| {
        format!(
            "{path} is not vGPU's library; put the directory of vGPU's {name} first in LD_LIBRARY_PATH, or before \
             the other's in /etc/ld.so.conf.d"
        )
    })?;
    Ok(Found {
        library,
        path,
        version,
    })
}

impl Found {
    /// A function of the library.
    ///
    /// # Safety
    /// `F` is the type of the function.
    pub(crate) unsafe fn function<F>(&self, name: &str) -> Result<Symbol<'_, F>, String> {
        // SAFETY: by this function's contract.
        let found = unsafe { self.library.get(name.as_bytes()) };
        found.map_err(|e| format!("{}: {e}", self.path))
    }
}

/// Path of the file that is mapped at an address of this process.
fn file_at(address: usize) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let number = |digits: &str| usize::from_str_radix(digits, 16).ok();
    let line = maps.lines().find(|line| {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let range = range.and_then(|(from, to)| Some(number(from)?..number(to)?));
        range.is_some_and(|range| range.contains(&address))
    })?;
    Some(line[line.find('/')?..].to_owned())
}

/// The version in vGPU's note, if the file has one.
fn version(file: &[u8]) -> Option<String> {
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    for part in header.program_headers(endian, file).ok()? {
        let Ok(Some(mut notes)) = part.notes(endian, file) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if (note.name(), note.n_type(endian).0) == NOTE {
                return String::from_utf8(note.desc().to_vec()).ok();
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_have_no_version_of_ours() {
        let own = std::env::current_exe().expect("a test has a binary");
        let own = std::fs::read(own).expect("it can be read");
        assert_eq!(version(&own), None);
        assert_eq!(version(b"no ELF file"), None);
    }

    #[test]
    fn the_file_of_a_function_is_found() {
        let own = std::env::current_exe().expect("a test has a binary");
        let here = version as fn(&[u8]) -> Option<String>;
        assert_eq!(file_at(here as usize), Some(own.display().to_string()));
        assert_eq!(file_at(1), None);
    }
}
