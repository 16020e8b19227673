//! `SOFT_GPU_DIGEST`: a line for everything that the device is asked to do, so that two runs of a program can
//! be compared (`vgpu-digest`).
//!
//! A line begins with the number of its submission, since a copy's line is written when its bytes are known, and
//! with its stream. Addresses are written as what they lie in and the offset there. What differs from run to run
//! (those numbers, which stream and which allocation it is) is for the reader to normalise.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use super::Driver;
use super::copy::{Extent, Layout};
use super::stream::{Class, Stream};
use super::sync::lock;
use crate::exec::contract::{KernelInfo, Launch};

/// Files beside each other that are looked at for a free name.
const MOST_FILES: u32 = 100_000;

/// Pages, to whose beginnings the worker rounds registered memory.
const PAGE: u64 = 4096;

/// Contents are told as the number that their bytes spell (the first counts most), modulo this prime: the number
/// of two pieces together follows from theirs and their lengths.
pub const MODULUS: u64 = 0xb7e1_5162_8aed_3273;

struct Sink {
    prefix: PathBuf,
    /// `None` before the first line, and after one that could not be written.
    file: Mutex<Option<File>>,
    broken: OnceLock<()>,
}

static SINK: OnceLock<Sink> = OnceLock::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Writes a digest from now on, if there is a path. Its file is made with the first line: `prefix.N`, of the first
/// N that is free, for the processes of a service may see the same process numbers.
pub fn begin(prefix: Option<&Path>) {
    if let Some(prefix) = prefix {
        let _ = SINK.set(Sink {
            prefix: prefix.to_owned(),
            file: Mutex::new(None),
            broken: OnceLock::new(),
        });
    }
}

impl Sink {
    fn write(&self, line: &str) {
        let mut file = lock(&self.file);
        if self.broken.get().is_some() {
            return;
        }
        let made = match file.take() {
            Some(open) => Ok(open),
            None => self.make(),
        };
        // One write a line: what is there of an ended process is whole.
        let written = made.and_then(|mut open| open.write_all(line.as_bytes()).map(|()| open));
        match written {
            Ok(open) => *file = Some(open),
            Err(e) => {
                let _ = self.broken.set(());
                let prefix = self.prefix.display();
                eprintln!(
                    "soft-gpu: SOFT_GPU_DIGEST: no (whole) digest is written to {prefix}.N: {e}"
                );
            }
        }
    }

    fn make(&self) -> std::io::Result<File> {
        for number in 1..MOST_FILES {
            let mut path = self.prefix.clone().into_os_string();
            path.push(format!(".{number}"));
            match File::create_new(&path) {
                Ok(mut file) => {
                    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
                    file.write_all(format!("# soft-gpu digest 1 of {}\n", name.trim()).as_bytes())?;
                    return Ok(file);
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(std::io::Error::other("too many digests lie there"))
    }
}

/// An operation that has been submitted, and is still to be described.
#[derive(Clone)]
pub struct Ticket {
    head: String,
}

/// Numbers an operation of the stream; `None` where nobody wants a digest.
pub fn ticket(stream: &Stream) -> Option<Ticket> {
    SINK.get()?;
    let order = NEXT.fetch_add(1, Ordering::SeqCst);
    let class = match stream.class {
        Class::Legacy => 'L',
        Class::Blocking => 'B',
        Class::NonBlocking => 'N',
    };
    let context = stream.context.upgrade().map_or(0, |c| c.handle);
    let queue = stream.queue();
    Some(Ticket {
        head: format!("{order} {queue}:{class}:{context:x}"),
    })
}

impl Ticket {
    /// Writes a line.
    pub fn write(&self, what: impl fmt::Display) {
        if let Some(sink) = SINK.get() {
            sink.write(&format!("{} {what}\n", self.head));
        }
    }

    /// A kernel.
    pub fn kernel(&self, driver: &Driver, info: &KernelInfo, launch: &Launch) {
        let [gx, gy, gz] = launch.grid;
        let [bx, by, bz] = launch.block;
        let name: String = info.name.split_whitespace().collect();
        let mut text = format!(
            "kernel {name} grid={gx},{gy},{gz} block={bx},{by},{bz} shared={}",
            launch.dynamic_shared
        );
        if launch.cooperative {
            text.push_str(" cooperative");
        }
        for (offset, size) in &info.params {
            let bytes = launch.params.get(*offset..offset + size);
            text.push(' ');
            parameter(driver, &mut text, *offset, bytes.unwrap_or_default());
        }
        self.write(text);
    }

    /// Bytes that were copied, a line a slice: what arrived is at `dst`. With each side: is it the device's?
    pub fn copied(
        &self,
        driver: &Driver,
        (to, dst): (bool, Layout),
        (from, src): (bool, Layout),
        e: Extent,
    ) {
        let kind = match (from, to) {
            (false, true) => "h2d",
            (true, false) => "d2h",
            (true, true) => "d2d",
            (false, false) => "h2h",
        };
        for slice in 0..e.depth {
            let at = |layout: Layout| Layout {
                addr: layout.addr + slice * layout.slice,
                ..layout
            };
            let (dst, src) = (at(dst), at(src));
            let sides: Vec<Layout> = [(from, src), (to, dst)]
                .into_iter()
                .filter(|(device, _)| *device)
                .map(|(_, layout)| layout)
                .collect();
            let contents = contents(dst, e);
            let whole = sides.iter().all(|s| s.pitch == e.width) || e.height == 1;
            let (width, height) = match whole {
                true => (e.width * e.height, 1),
                false => (e.width, e.height),
            };
            let mut text = format!("copy {kind} {width}x{height}");
            for side in sides {
                let _ = write!(text, " {}", Named(driver, side.addr));
                if height > 1 {
                    let _ = write!(text, "/{}", side.pitch);
                }
            }
            self.write(format_args!("{text} {contents:016x}"));
        }
    }

    /// Elements of `size` bytes, set to a value.
    pub fn filled(&self, driver: &Driver, layout: Layout, e: Extent, value: u32, size: u64) {
        let at = Named(driver, layout.addr);
        let whole = e.height == 1 || layout.pitch == e.width;
        if whole {
            let bytes = e.width * e.height;
            self.write(format_args!("fill {value:x}/{size} {bytes}x1 {at}"));
        } else {
            let (width, height, pitch) = (e.width, e.height, layout.pitch);
            self.write(format_args!(
                "fill {value:x}/{size} {width}x{height} {at}/{pitch}"
            ));
        }
    }

    /// A word that the stream writes or waits for.
    pub fn word(&self, driver: &Driver, what: &str, addr: u64, value: u64, flags: u32) {
        let at = Named(driver, addr);
        self.write(format_args!("{what} {at} {value:x} {flags:x}"));
    }
}

/// A parameter: 8-byte words, as they lie in the parameter block, and what is left over.
fn parameter(driver: &Driver, text: &mut String, offset: usize, bytes: &[u8]) {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        if at > offset {
            text.push(',');
        }
        let word = rest.first_chunk::<8>().filter(|_| at.is_multiple_of(8));
        let len = match word {
            Some(word) => {
                let value = u64::from_le_bytes(*word);
                let _ = match name(driver, value) {
                    Some(name) => write!(text, "{name}"),
                    None => write!(text, "{value:x}"),
                };
                8
            }
            None => {
                let len = (8 - at % 8).min(rest.len());
                rest[..len].iter().rev().for_each(|b| {
                    let _ = write!(text, "{b:02x}");
                });
                len
            }
        };
        rest = &rest[len..];
        at += len;
    }
}

/// An address that ought to lie in something.
struct Named<'a>(&'a Driver, u64);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name(self.0, self.1) {
            Some(name) => write!(f, "{name}"),
            None => write!(f, "{:x}", self.1),
        }
    }
}

/// What an address lies in, and where there. Its end counts, too: a guard lies behind every allocation.
fn name(driver: &Driver, addr: u64) -> Option<String> {
    let memory = &driver.memory;
    if driver.arena.contains(addr) {
        let found = memory.find(addr).or_else(|| memory.find(addr - 1));
        if let Some(a) = found.filter(|a| !a.usage.graph()) {
            return Some(format!("@a{}+{:x}", a.id, addr - a.addr));
        }
        // The address of a graph's memory stays its node's, whatever is there just now.
        let base = super::graph::block::base_of(addr).or(found.map(|a| a.addr))?;
        return Some(format!("@g{base:x}+{:x}", addr - base));
    }
    let r = memory.find_registered(addr)?;
    let base = r.addr & !(PAGE - 1);
    Some(format!("@r{base:x}+{:x}", addr - base))
}

/// The number that the bytes of all rows spell.
fn contents(layout: Layout, e: Extent) -> u64 {
    let mut number = 0;
    for row in 0..e.height {
        let at = (layout.addr + row * layout.pitch) as *const u8;
        // SAFETY: the rows were just written by the copy, and are live as long as it lasts.
        number = spell(number, unsafe {
            std::slice::from_raw_parts(at, e.width as usize)
        });
    }
    number
}

/// Goes on with the number of earlier bytes.
fn spell(number: u64, bytes: &[u8]) -> u64 {
    let modulus = u128::from(MODULUS);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut number = number;
    for word in words {
        let joined = u128::from(number) << 64 | u128::from(u64::from_be_bytes(*word));
        number = (joined % modulus) as u64;
    }
    for byte in rest {
        number = ((u128::from(number) << 8 | u128::from(*byte)) % modulus) as u64;
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_spell_the_same_number_as_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        let whole = spell(0, &bytes);
        for cut in [0, 1, 7, 8, 9, 500, 999, 1000] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(spell(spell(0, a), b), whole, "cut at {cut}");
        }
        let mut swapped = bytes.clone();
        swapped.swap(3, 4);
        assert_ne!(spell(0, &swapped), whole);
    }
}
