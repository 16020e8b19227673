//! `SOFT_GPU_DIGEST`: one line for each operation of the device, so that `vgpu-digest` can compare
//! two runs of a program.
//!
//! A line begins with the number of the submission and with the stream. The lines are not in the
//! order of the submissions, because the line of a copy is written only when its bytes are known.
//! An address is written as its allocation and the offset there. `vgpu-digest` normalises the parts
//! that differ between runs: the numbers, the streams and the allocations.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use super::Driver;
use super::contents::Contents;
use super::copy::{Extent, Layout};
use super::memory::{Allocation, Place, Use};
use super::stderr::say;
use super::stream::{Class, Stream};
use super::sync::lock;
use crate::exec::contract::{KernelInfo, Launch};

/// Most file names that are tried until a free name is found.
const MOST_FILES: u32 = 100_000;

/// Bytes per page. The worker registers memory from the start of a page.
const PAGE: u64 = 4096;

/// Most addresses that are written for one copy. If there are more, they are probably data that
/// look like addresses.
const MOST_NAMES: usize = 256;

struct Sink {
    prefix: PathBuf,
    state: Mutex<State>,
}

enum State {
    /// No line was written yet. The file does not exist.
    Unmade,
    Open(File),
    /// A line could not be written. The digest ends.
    Broken,
}

static SINK: OnceLock<Sink> = OnceLock::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Starts the digest if there is a prefix. The first line creates the file `prefix.N`, where N is
/// the first free number. N is not the process id, because processes in different namespaces may
/// have the same id.
pub fn begin(prefix: Option<&Path>) {
    super::scrub::set(prefix.is_some());
    if let Some(prefix) = prefix {
        let _ = SINK.set(Sink {
            prefix: prefix.to_owned(),
            state: Mutex::new(State::Unmade),
        });
    }
}

impl Sink {
    fn write(&self, line: &str) {
        let mut state = lock(&self.state);
        let made = match std::mem::replace(&mut *state, State::Broken) {
            State::Broken => return,
            State::Open(file) => Ok(file),
            State::Unmade => self.make(),
        };
        // Each line is one write, so that the digest of a killed process ends with a whole line.
        match made.and_then(|mut file| file.write_all(line.as_bytes()).map(|()| file)) {
            Ok(file) => *state = State::Open(file),
            Err(e) => say!(
                "SOFT_GPU_DIGEST: the digest at {}.N is missing or incomplete: {e}; name a directory that this \
                 process may write, with room",
                self.prefix.display()
            ),
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

/// A submitted operation whose line is not written yet.
#[derive(Clone)]
pub struct Ticket {
    head: String,
}

/// Gives an operation of the stream its number; `None` without a digest.
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

    /// Writes a kernel launch.
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

    /// Writes the bytes that a copy has written to `dst`, one line per slice. Memory that the host
    /// can also access counts as host memory: under a daemon, such memory of the program exists
    /// twice, in the program's process and in the daemon's, and the daemon may copy it between both
    /// places.
    pub fn copied(
        &self,
        driver: &Driver,
        (to, dst): (Place, Layout),
        (from, src): (Place, Layout),
        e: Extent,
    ) {
        let on_device = |place, layout: Layout| {
            matches!(place, Place::Device(_))
                && !driver.memory.find(layout.addr).is_some_and(of_host)
        };
        let (from, to) = (on_device(from, src), on_device(to, dst));
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
                .filter(|(on_device, _)| *on_device)
                .map(|(_, layout)| layout)
                .collect();
            let told = Told::rows(driver, dst, e);
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
            self.write(format_args!("{text} {told}"));
        }
    }

    /// Writes a memset with elements of `size` bytes.
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

    /// Writes a wait for a value in memory, or a write of a value to memory.
    pub fn word(&self, driver: &Driver, what: &str, addr: u64, value: u64, flags: u32) {
        let at = Named(driver, addr);
        self.write(format_args!("{what} {at} {value:x} {flags:x}"));
    }
}

/// Writes a parameter, which starts at `offset` of the parameter block: the aligned 8-byte words as
/// numbers or addresses, other bytes in hexadecimal.
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

/// Whether the program can also access this memory. Under a daemon, such memory belongs to the
/// program's process, and has another address here.
fn of_host(a: Allocation) -> bool {
    a.usage.host() || a.usage.managed()
}

/// An address, written as allocation and offset if it lies in an allocation.
struct Named<'a>(&'a Driver, u64);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name(self.0, self.1) {
            Some(name) => write!(f, "{name}"),
            None => write!(f, "{:x}", self.1),
        }
    }
}

/// The allocation of an address, and the offset there. The address just after an allocation belongs
/// to that allocation, because unused addresses follow every allocation.
fn name(driver: &Driver, addr: u64) -> Option<String> {
    let memory = &driver.memory;
    if driver.arena.contains(addr) {
        let found = memory.find(addr).or_else(|| memory.find(addr - 1));
        // A copy may span adjacent mappings, so the offset counts from the start of the
        // reservation.
        if let Some(a) = found.filter(|a| matches!(a.usage, Use::Mapped(_)))
            && let Some(base) = super::vmm::reservation(a.addr)
        {
            return Some(format!("@v{base:x}+{:x}", addr - base));
        }
        if let Some(a) = found.filter(|a| !a.usage.graph()) {
            return Some(format!("@a{}+{:x}", a.id, addr - a.addr));
        }
        // Addresses of a graph's memory count from the block of the allocation node, whatever is
        // allocated there now.
        let base = super::graph::block::base_of(addr).or(found.map(|a| a.addr))?;
        return Some(format!("@g{base:x}+{:x}", addr - base));
    }
    let r = memory.find_registered(addr)?;
    let base = r.addr & !(PAGE - 1);
    Some(format!("@r{base:x}+{:x}", addr - base))
}

/// Copied bytes as the digest shows them: a hash, and the addresses among the bytes.
#[derive(Default)]
struct Told {
    contents: Contents,
    /// Allocation and offset of each address that occurs among the bytes. The hash has zeros in
    /// place of these addresses, because addresses differ between processes.
    names: Vec<String>,
}

impl Told {
    fn rows(driver: &Driver, layout: Layout, e: Extent) -> Told {
        let mut told = Told::default();
        for row in 0..e.height {
            let at = (layout.addr + row * layout.pitch) as *const u8;
            // SAFETY: the copy has just written the rows, which are live while the copy runs.
            told.append(driver, unsafe {
                std::slice::from_raw_parts(at, e.width as usize)
            });
        }
        told
    }

    fn append(&mut self, driver: &Driver, bytes: &[u8]) {
        let mut done = 0;
        for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let value = u64::from_le_bytes(*word);
            if !driver.arena.contains(value)
                || self.names.len() >= MOST_NAMES
                || driver.memory.find(value).is_some_and(of_host)
            {
                continue;
            }
            if let Some(name) = name(driver, value) {
                self.contents.append(&bytes[done..i * 8]);
                self.contents.append(&[0; 8]);
                self.names.push(name);
                done = i * 8 + 8;
            }
        }
        self.contents.append(&bytes[done..]);
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.contents)?;
        self.names.iter().try_for_each(|name| write!(f, ",{name}"))
    }
}
