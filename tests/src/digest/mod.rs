//! Digests of the operations on soft-gpu (`SOFT_GPU_DIGEST`, docs/soft-gpu.md): normalised and
//! compared.
//!
//! Two runs of a program are equal if each stream has the same operations in the same order, and
//! each operation of the second run comes at least after the operations that it came after in the
//! first run. A daemon may wait on the device where a program waits itself. So streams and
//! allocations are numbered in order of first use, events are reduced to the order that they cause,
//! and consecutive partial copies count as one copy, because a daemon may split copies. Programs
//! pass bytes that they never set, and addresses of their own memory, to kernels: data that differs
//! from one run to the next in the same row ([`own`]) is not compared.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use soft_gpu::driver::contents::Contents;

use crate::wait::{SOON, until};

mod compare;
pub use compare::{Difference, compare, left_out, own, perturbed};

/// For each stream (by index), the number of operations that come before.
type Clock = BTreeMap<usize, usize>;

/// The operations of a process on the device, one per line, by stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Lines as [`fmt::Display`] writes them.
    pub lines: Vec<String>,
}

/// A copy of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Copy {
    kind: String,
    width: u64,
    height: u64,
    /// The sides in device memory: allocation, offset in it, and distance of rows in bytes.
    sides: Vec<(String, u64, u64)>,
    contents: Contents,
    /// The allocations of addresses in the contents.
    names: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Copy(Copy),
    Other(String),
}

#[derive(Debug)]
struct Operation {
    what: What,
    after: Clock,
}

#[derive(Debug)]
struct Stream {
    class: String,
    context: String,
    operations: Vec<Operation>,
    /// Dependencies of the next operation.
    clock: Clock,
    /// Dependencies of the last operation.
    seen: Clock,
}

impl Stream {
    fn tip(&self, own: usize) -> Clock {
        let mut clock = self.clock.clone();
        clock.insert(own, self.operations.len());
        clock
    }
}

fn join(clock: &mut Clock, other: &Clock) {
    for (stream, at) in other {
        let known = clock.entry(*stream).or_default();
        *known = (*known).max(*at);
    }
}

/// Reads the digests that processes wrote to `prefix.1`, `prefix.2` and so on, except those of
/// vgpud's own tests of a GPU.
///
/// # Errors
/// A file that cannot be read, is not a digest, or has no operation or half a line; a missing
/// number.
pub fn read(prefix: &Path) -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for (number, (found_number, path)) in (1..).zip(files(prefix)?) {
        ensure!(
            found_number == number,
            "{}.{number} is missing beside {}: the record of a process was lost; record again",
            prefix.display(),
            path.display()
        );
        // vgpud may be testing a GPU now: the file of a test need not be complete, and is empty for
        // a moment.
        let text = until("the digest's first line", SOON, || {
            let text = std::fs::read_to_string(&path).ok()?;
            (!text.is_empty()).then_some(text)
        })
        .with_context(|| format!("{} is damaged: it has no operation", path.display()))?;
        if is_probe(&text) {
            continue;
        }
        ensure!(
            text.lines().any(|line| !line.starts_with('#')),
            "{} is damaged: it has no operation",
            path.display()
        );
        ensure!(
            text.ends_with('\n'),
            "{} is damaged: its last line is cut",
            path.display()
        );
        found.push(normalise(&text).with_context(|| format!("{}", path.display()))?);
    }
    Ok(found)
}

/// The files `prefix.N` with their numbers, in order.
fn files(prefix: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let dir = prefix.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    let stem = prefix.file_name().context("a prefix ends with a name")?;
    let stem = format!("{}.", stem.to_string_lossy());
    let mut files = Vec::new();
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(files),
        entries => entries.with_context(|| format!("reading {}", dir.display()))?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let number = name.to_string_lossy().strip_prefix(&stem).map(str::parse);
        if let Some(Ok(number)) = number {
            files.push((number, dir.join(name)));
        }
    }
    files.sort();
    Ok(files)
}

/// Whether the digest is of vgpud's own test of a GPU, which counts as no work: the first line has
/// the name of the process.
fn is_probe(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.starts_with('#') && first.ends_with(" of vgpu-probe")
}

/// Number of operations of processes.
pub fn operations(processes: &[Process]) -> usize {
    processes.iter().map(|process| process.lines.len()).sum()
}

/// Makes a digest comparable.
///
/// # Errors
/// If a line is not valid in a digest.
pub fn normalise(text: &str) -> Result<Process> {
    let mut lines = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let bad = || format!("not a line of a digest: {line:?}");
        let mut words = line.splitn(3, ' ');
        let order: u64 = words.next().with_context(bad)?.parse().with_context(bad)?;
        let stream = words.next().with_context(bad)?;
        lines.push((order, stream, words.next().with_context(bad)?));
    }
    lines.sort_by_key(|(order, ..)| *order);
    let mut work = Work::default();
    for (_, stream, what) in lines {
        let stream = work.stream(stream)?;
        match what.split_once(' ') {
            Some(("record", event)) => work.record(stream, event),
            Some(("wait", event)) => work.wait(stream, event),
            Some(("copy", copy)) => {
                let copy = Copy::parse(copy);
                let copy = copy.with_context(|| format!("not a copy: {what:?}"))?;
                work.operation(stream, What::Copy(copy));
            }
            _ => work.operation(stream, What::Other(what.to_owned())),
        }
    }
    Ok(work.finish())
}

/// The streams of a process, while lines are read.
#[derive(Default)]
struct Work {
    streams: Vec<Stream>,
    by_name: HashMap<String, usize>,
    /// Dependencies of an event's last record.
    events: HashMap<String, Clock>,
    /// Streams in the order of their first operations.
    used: Vec<usize>,
}

impl Work {
    fn stream(&mut self, name: &str) -> Result<usize> {
        let parts: Vec<&str> = name.split(':').collect();
        let [queue, class, context] = parts[..] else {
            bail!("not a stream: {name:?}")
        };
        // A context has one legacy stream. After a reset of a primary context, soft-gpu creates a
        // new legacy stream, and a worker may continue to use the old one. The device does the same
        // work in both cases.
        let queue = if class == "L" { "" } else { queue };
        let name = format!("{queue}:{class}:{context}");
        if let Some(index) = self.by_name.get(&name) {
            return Ok(*index);
        }
        let index = self.streams.len();
        self.streams.push(Stream {
            class: class.to_owned(),
            context: context.to_owned(),
            operations: Vec::new(),
            clock: Clock::new(),
            seen: Clock::new(),
        });
        self.by_name.insert(name, index);
        Ok(index)
    }

    /// The dependencies of the stream's next operation, by events and by the rule of the NULL
    /// stream.
    fn due(&self, stream: usize) -> Clock {
        let this = &self.streams[stream];
        let mut clock = this.clock.clone();
        for (index, other) in self.streams.iter().enumerate() {
            let classes = (this.class.as_str(), other.class.as_str());
            if matches!(classes, ("L", "B") | ("B", "L")) && this.context == other.context {
                join(&mut clock, &other.tip(index));
            }
        }
        clock.remove(&stream);
        clock
    }

    fn operation(&mut self, index: usize, what: What) {
        let due = self.due(index);
        let stream = &mut self.streams[index];
        let new = |(other, at): &(&usize, &usize)| {
            **at > stream.seen.get(*other).copied().unwrap_or_default()
        };
        let after: Clock = due.iter().filter(new).map(|(s, at)| (*s, *at)).collect();
        if after.is_empty()
            && let What::Copy(next) = &what
            && let Some(Operation {
                what: What::Copy(last),
                ..
            }) = stream.operations.last_mut()
            && last.extend(next)
        {
            return;
        }
        if stream.operations.is_empty() {
            self.used.push(index);
        }
        stream.operations.push(Operation { what, after });
        stream.clock = due.clone();
        stream.seen = due;
    }

    fn record(&mut self, stream: usize, event: &str) {
        let mut clock = self.due(stream);
        clock.insert(stream, self.streams[stream].operations.len());
        self.events.insert(event.to_owned(), clock);
    }

    fn wait(&mut self, stream: usize, event: &str) {
        if let Some(clock) = self.events.get(event) {
            let mut clock = clock.clone();
            clock.remove(&stream);
            join(&mut self.streams[stream].clock, &clock);
        }
    }

    fn finish(self) -> Process {
        let mut numbers = HashMap::new();
        let place = |stream: &usize| self.used.iter().position(|s| s == stream);
        let mut lines = Vec::new();
        for (number, index) in self.used.iter().enumerate() {
            let stream = &self.streams[*index];
            for (i, operation) in stream.operations.iter().enumerate() {
                let text = renumber(&operation.what.to_string(), &mut numbers);
                let class = &stream.class;
                let mut line = format!("{}{class}.{} {text}", number + 1, i + 1);
                let mut after: Vec<_> = operation.after.iter().collect();
                after.retain(|(_, at)| **at > 0);
                after.sort_by_key(|(s, _)| place(s));
                for (i, (other, at)) in after.into_iter().enumerate() {
                    let word = if i == 0 { " after" } else { "" };
                    let other = place(other).map_or(0, |n| n + 1);
                    line.push_str(&format!("{word} {other}.{at}"));
                }
                lines.push(line);
            }
        }
        Process { lines }
    }
}

/// Numbers the allocations of addresses (`@key+offset`) in order of first use.
fn renumber(text: &str, numbers: &mut HashMap<String, usize>) -> String {
    let mut parts = text.split('@');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (key, rest) = part.split_at(part.find('+').unwrap_or(part.len()));
        let next = numbers.len() + 1;
        let number = *numbers.entry(key.to_owned()).or_insert(next);
        out.push_str(&format!("@{number}{rest}"));
    }
    out
}

impl Copy {
    fn parse(text: &str) -> Option<Copy> {
        let words: Vec<&str> = text.split(' ').collect();
        let (kind, size, sides, contents) = match &words[..] {
            [kind, size, sides @ .., contents] => (kind, size, sides, contents),
            _ => return None,
        };
        let (width, height) = size.split_once('x')?;
        let mut told = contents.split(',');
        let contents = told.next()?;
        let side = |word: &&str| {
            let (at, pitch) = word.split_once('/').unwrap_or((word, "0"));
            let (key, offset) = at.split_once('+').unwrap_or(("", at));
            let offset = u64::from_str_radix(offset, 16).ok()?;
            Some((key.to_owned(), offset, pitch.parse().ok()?))
        };
        Some(Copy {
            kind: (*kind).to_owned(),
            width: width.parse().ok()?,
            height: height.parse().ok()?,
            sides: sides.iter().map(side).collect::<Option<_>>()?,
            contents: contents.parse().ok()?,
            names: told.map(str::to_owned).collect(),
        })
    }

    /// Appends a copy that continues this one. False if it does not.
    fn extend(&mut self, next: &Copy) -> bool {
        let line = self.height == 1 && next.height == 1;
        let rows = self.height > 1 && self.width == next.width;
        let follows = |(a, b): (&(String, u64, u64), &(String, u64, u64))| {
            let end = match line {
                true => a.1.checked_add(self.width),
                false => {
                    a.2.checked_mul(self.height)
                        .and_then(|n| n.checked_add(a.1))
                }
            };
            let pitch = next.height == 1 || a.2 == b.2;
            a.0 == b.0 && end == Some(b.1) && pitch
        };
        let sides = self.sides.iter().zip(&next.sides);
        let alike = self.kind == next.kind && self.sides.len() == next.sides.len();
        if !(alike && (line || rows) && !self.sides.is_empty() && sides.into_iter().all(follows)) {
            return false;
        }
        let bytes = next.width.saturating_mul(next.height);
        self.contents = self.contents.join(next.contents, bytes);
        self.names.extend(next.names.iter().cloned());
        match line {
            true => self.width = self.width.saturating_add(next.width),
            false => self.height = self.height.saturating_add(next.height),
        }
        true
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Other(text) => f.write_str(text),
            What::Copy(c) => {
                write!(f, "copy {} {}x{}", c.kind, c.width, c.height)?;
                for (key, offset, pitch) in &c.sides {
                    let plus = if key.is_empty() { "" } else { "+" };
                    write!(f, " {key}{plus}{offset:x}")?;
                    if *pitch > 0 {
                        write!(f, "/{pitch}")?;
                    }
                }
                write!(f, " {}", c.contents)?;
                c.names.iter().try_for_each(|name| write!(f, ",{name}"))
            }
        }
    }
}

/// Writes processes to a file that [`load`] reads.
///
/// # Errors
/// If the file cannot be written.
pub fn store(processes: &[Process], path: &Path) -> Result<()> {
    let mut text = String::new();
    for (i, process) in processes.iter().enumerate() {
        text.push_str(&format!("process {}\n", i + 1));
        for line in &process.lines {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.push_str(&end(processes));
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// The last line of a complete file.
fn end(processes: &[Process]) -> String {
    format!("end {} {}\n", processes.len(), operations(processes))
}

/// Reads a file of [`store`].
///
/// # Errors
/// If the file cannot be read, is not a digest, or is incomplete.
pub fn load(path: &Path) -> Result<Vec<Process>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let body = text
        .trim_end()
        .rsplit_once('\n')
        .map_or("", |(body, _)| body);
    let mut found: Vec<Process> = Vec::new();
    for line in body.lines() {
        if line.starts_with("process ") {
            found.push(Process { lines: Vec::new() });
        } else {
            let process = found.last_mut();
            let process = process.with_context(|| {
                format!(
                    "{} is no normalised digest: make one with `vgpu-digest normalise`",
                    path.display()
                )
            })?;
            process.lines.push(line.to_owned());
        }
    }
    ensure!(
        text.ends_with(&end(&found)),
        "{} is damaged, or no normalised digest: its last line, `end PROCESSES OPERATIONS`, is missing or wrong; record it again",
        path.display()
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_whole_is_refused() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("digest");
        let process = |lines: &[&str]| Process {
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
        };
        for processes in [
            Vec::new(),
            vec![process(&["1L.1 fill", "1L.2 fill"]), process(&[])],
        ] {
            store(&processes, &path)?;
            assert_eq!(load(&path)?, processes);
            let whole = std::fs::read(&path)?;
            for len in 0..whole.len() {
                std::fs::write(&path, &whole[..len])?;
                assert!(load(&path).is_err(), "{len} of {} bytes", whole.len());
            }
        }
        Ok(())
    }

    #[test]
    fn the_legacy_stream_of_a_context_stays_one_stream_after_a_reset() -> Result<()> {
        let of = |streams: [&str; 3]| {
            let lines = (1..).zip(streams).map(|(order, stream)| {
                format!("{order} {stream} kernel add grid=1,1,1 block=32,1,1 shared=0\n")
            });
            normalise(&lines.collect::<String>())
        };
        let kept = of(["1:L:9", "2:N:9", "1:L:9"])?;
        assert_eq!(of(["1:L:9", "2:N:9", "3:L:9"])?, kept);
        assert_ne!(of(["1:L:9", "2:N:9", "3:L:a"])?, kept, "another context");
        assert_ne!(of(["1:L:9", "2:N:9", "3:N:9"])?, kept, "another stream");
        Ok(())
    }

    #[test]
    fn a_recording_that_is_cut_within_a_line_is_refused() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let line = "1 1:L:9 kernel add grid=1,1,1 block=32,1,1 shared=0 @a7+0 20";
        std::fs::write(dir.path().join("d.1"), format!("{line}\n"))?;
        assert_eq!(read(&dir.path().join("d"))?.len(), 1);
        std::fs::write(dir.path().join("d.2"), &line[..40])?;
        let refused = read(&dir.path().join("d")).expect_err("it is cut");
        assert!(
            refused.to_string().contains("its last line is cut"),
            "{refused}"
        );
        Ok(())
    }

    #[test]
    fn a_recording_with_a_missing_or_an_empty_file_is_refused() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let prefix = dir.path().join("d");
        let write =
            |number: u32, text: &str| std::fs::write(dir.path().join(format!("d.{number}")), text);
        let line = "1 1:L:9 kernel add grid=1,1,1 block=32,1,1 shared=0 @a7+0 20\n";
        assert_eq!(read(&prefix)?, []);
        for number in (1..=11).filter(|number| *number != 2) {
            write(number, line)?;
        }
        let refused = read(&prefix).expect_err("2 is missing").to_string();
        assert!(refused.contains("d.2 is missing"), "{refused}");
        for text in ["", "# soft-gpu digest 1 of add\n"] {
            write(2, text)?;
            let refused = read(&prefix).expect_err("2 is empty").to_string();
            assert!(refused.contains("d.2 is damaged"), "{refused}");
        }
        write(2, line)?;
        assert_eq!(read(&prefix)?.len(), 11);
        Ok(())
    }

    #[test]
    fn vgpud_s_test_of_a_gpu_is_no_work_and_a_program_with_its_kernel_is() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let kernel = "1 1:L:9 kernel canary grid=1,1,1 block=1,1,1 shared=0 @a1+0\n";
        for (number, of) in (1..).zip(["vgpu-probe", "vgpu-worker", "my vgpu-probe2"]) {
            let text = format!("# soft-gpu digest 1 of {of}\n{kernel}");
            std::fs::write(dir.path().join(format!("d.{number}")), text)?;
        }
        let found = read(&dir.path().join("d"))?;
        assert_eq!((found.len(), operations(&found)), (2, 2), "{found:?}");
        Ok(())
    }
}
