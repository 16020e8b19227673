//! Digests of what reached soft-gpu (`SOFT_GPU_DIGEST`, docs/soft-gpu.md): made comparable, and compared.
//!
//! Two runs of a program are alike if, stream by stream, the same operations reach the device, and each comes
//! in the second run at least after what it came after in the first: a daemon waits in the device where a program
//! waits itself. So streams and allocations are numbered in the order of their
//! first use; of events only what they order is kept; and copies of pieces that lie one behind the other count as
//! one copy, as a daemon may cut them. Programs hand their kernels bytes that they never set, and addresses of their
//! own memory: what differs from one run to the next in the same way ([`own`]) is not compared.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use soft_gpu::driver::contents::Contents;

/// Up to which operation of which stream (by index) something comes later.
type Clock = BTreeMap<usize, usize>;

/// What one process asked of the device: a line an operation, stream after stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// As [`fmt::Display`] writes them.
    pub lines: Vec<String>,
}

/// The first operation that is not alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Which process, from 1.
    pub process: usize,
    /// The operation before it, if there is one.
    pub after: Option<String>,
    /// What the first run has there.
    pub left: Option<String>,
    /// What the second run has there.
    pub right: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |line: &Option<String>| line.clone().unwrap_or_else(|| "nothing".to_owned());
        writeln!(f, "process {}: not the same work", self.process)?;
        if let Some(line) = &self.after {
            writeln!(f, "  after {line}")?;
        }
        writeln!(f, "  the first run has   {}", of(&self.left))?;
        write!(f, "  the second run has  {}", of(&self.right))
    }
}

/// Bytes that are copied.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Copy {
    kind: String,
    width: u64,
    height: u64,
    /// The sides in device memory: what they lie in, the offset there, and from a row to the next.
    sides: Vec<(String, u64, u64)>,
    contents: Contents,
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
    /// What its next operation comes after.
    clock: Clock,
    /// What its last operation came after.
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

/// Reads the digests that processes wrote to `prefix.1`, `prefix.2` and so on.
///
/// # Errors
/// A file that cannot be read or is no digest.
pub fn read(prefix: &Path) -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for number in 1.. {
        let mut path = prefix.as_os_str().to_owned();
        path.push(format!(".{number}"));
        let path = Path::new(&path);
        if !path.exists() {
            break;
        }
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        found.push(normalise(&text).with_context(|| format!("{}", path.display()))?);
    }
    // vgpud's own test of a GPU is no work of a program's.
    found.retain(|p| !p.lines.iter().any(|line| line.contains(" kernel canary ")));
    Ok(found)
}

impl Process {
    /// The first line that another process does not have alike, or has without something that it comes after.
    fn difference(&self, other: &Process) -> Option<usize> {
        let mut clocks: HashMap<&str, (Reached<'_>, Reached<'_>)> = HashMap::new();
        for (i, line) in self.lines.iter().enumerate() {
            let Some((mine, theirs)) = parts(line).zip(other.lines.get(i).and_then(|o| parts(o)))
            else {
                return Some(i);
            };
            let ((stream, text, after), (_, other, more)) = (mine, theirs);
            let (left, right) = clocks.entry(stream).or_default();
            reach(left, after);
            reach(right, more);
            let kept = |(s, at): (&&str, &usize)| right.get(s).is_some_and(|r| r >= at);
            if !alike(text, other) || !left.iter().all(kept) {
                return Some(i);
            }
        }
        (other.lines.len() > self.lines.len()).then_some(self.lines.len())
    }
}

/// What of a line differs each time.
const OWN: &str = "*";

/// Words of a line: those of a parameter are apart.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split_inclusive([' ', ','])
}

fn alike(line: &str, other: &str) -> bool {
    let same = |(a, b): (&str, &str)| a == b || a.trim_end_matches([' ', ',']) == OWN;
    words(line).count() == words(other).count() && words(line).zip(words(other)).all(same)
}

/// The first of two runs of a program in the same way, without the numbers that the second has otherwise: addresses of the
/// program's process, and bytes that the program never set.
pub fn own(first: &[Process], second: &[Process]) -> Vec<Process> {
    let mut own = first.to_vec();
    for (process, other) in own.iter_mut().zip(second) {
        for (line, other) in process.lines.iter_mut().zip(&other.lines) {
            if words(line).count() == words(other).count() {
                let pairs = words(line).zip(words(other));
                let mut last = "";
                *line = pairs
                    .map(|(a, b)| match std::mem::replace(&mut last, a) {
                        // A name is no number.
                        "kernel " => a.to_owned(),
                        _ => own_word(a, b),
                    })
                    .collect();
            }
        }
    }
    own
}

fn own_word(word: &str, other: &str) -> String {
    let (a, b) = (
        word.trim_end_matches([' ', ',']),
        other.trim_end_matches([' ', ',']),
    );
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    match a != b && number(a) && number(b) {
        true => format!("{OWN}{}", &word[a.len()..]),
        false => word.to_owned(),
    }
}

/// How far streams have come, by their numbers.
type Reached<'a> = HashMap<&'a str, usize>;

/// A line's stream, the line without what it comes after, and that.
fn parts(line: &str) -> Option<(&str, &str, &str)> {
    let (stream, _) = line.split_once('.')?;
    let (text, after) = line.split_once(" after ").unwrap_or((line, ""));
    Some((stream, text, after))
}

fn reach<'a>(reached: &mut Reached<'a>, after: &'a str) {
    for (stream, at) in after.split_whitespace().filter_map(|w| w.split_once('.')) {
        let known = reached.entry(stream).or_default();
        *known = (*known).max(at.parse().unwrap_or_default());
    }
}

/// Makes a digest comparable.
///
/// # Errors
/// A line that no digest has.
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

/// Streams as they fill up.
#[derive(Default)]
struct Work {
    streams: Vec<Stream>,
    by_name: HashMap<String, usize>,
    /// What the last record of an event comes after.
    events: HashMap<String, Clock>,
    /// Streams in the order of their first operations.
    used: Vec<usize>,
}

impl Work {
    fn stream(&mut self, name: &str) -> Result<usize> {
        if let Some(index) = self.by_name.get(name) {
            return Ok(*index);
        }
        let parts: Vec<&str> = name.split(':').collect();
        let [_, class, context] = parts[..] else {
            bail!("not a stream: {name:?}")
        };
        let index = self.streams.len();
        self.streams.push(Stream {
            class: class.to_owned(),
            context: context.to_owned(),
            operations: Vec::new(),
            clock: Clock::new(),
            seen: Clock::new(),
        });
        self.by_name.insert(name.to_owned(), index);
        Ok(index)
    }

    /// What an operation of the stream would come after now, by events and by the rule of the NULL stream.
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

/// Numbers what addresses lie in (`@key+offset`) in the order of first use.
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
        })
    }

    /// Takes a copy in that goes on where this one ends. False if it does not.
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
                write!(f, " {}", c.contents)
            }
        }
    }
}

/// The first operation that two runs do not have in common; `None` if the second did the work of the first. Processes
/// that did the same are matched, in whatever order they ran.
pub fn compare(left: &[Process], right: &[Process]) -> Option<Difference> {
    let mut others: Vec<&Process> = right.iter().collect();
    let mut rest = Vec::new();
    for (i, process) in left.iter().enumerate() {
        match others.iter().position(|o| process.difference(o).is_none()) {
            Some(at) => _ = others.remove(at),
            None => rest.push((i + 1, process)),
        }
    }
    let nothing = Process { lines: Vec::new() };
    let next = left.len() + 1;
    let (number, process) = match rest.first() {
        Some((number, process)) => (*number, *process),
        None if others.is_empty() => return None,
        None => (next, &nothing),
    };
    let other = others.first().copied().unwrap_or(&nothing);
    let at = process.difference(other).unwrap_or_default();
    Some(Difference {
        process: number,
        after: at.checked_sub(1).map(|i| process.lines[i].clone()),
        left: process.lines.get(at).cloned(),
        right: other.lines.get(at).cloned(),
    })
}

/// Writes processes to a file that [`load`] reads.
///
/// # Errors
/// If it cannot be written.
pub fn store(processes: &[Process], path: &Path) -> Result<()> {
    let mut text = String::new();
    for (i, process) in processes.iter().enumerate() {
        text.push_str(&format!("process {}\n", i + 1));
        for line in &process.lines {
            text.push_str(line);
            text.push('\n');
        }
    }
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Reads what [`store`] wrote.
///
/// # Errors
/// If it cannot be read, or something else lies there.
pub fn load(path: &Path) -> Result<Vec<Process>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let mut found: Vec<Process> = Vec::new();
    for line in text.lines() {
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
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two streams and the NULL stream: a copy, kernels, an event between the streams.
    const RUN: &str = "\
# soft-gpu digest 1 of program
1 1:L:9 copy h2d 4096x1 @a7+0 0000000000000005
2 1:L:9 fill 0/1 64x1 @a9+0
3 4:N:9 kernel add grid=1,1,1 block=32,1,1 shared=0 @a7+0 @a9+10 20
4 4:N:9 record e1
5 5:N:9 wait e1
6 5:N:9 kernel scale grid=1,1,1 block=32,1,1 shared=0 @a9+0 3f000000
7 1:L:9 copy d2h 4096x1 @a9+0 0000000000000007
";

    fn of(text: &str) -> Vec<Process> {
        vec![normalise(text).expect("a digest")]
    }

    #[test]
    fn what_differs_from_run_to_run_does_not_count() {
        let direct = of(RUN);
        assert_eq!(
            direct[0].lines[3],
            "2N.1 kernel add grid=1,1,1 block=32,1,1 shared=0 @1+0 @2+10 20"
        );
        assert_eq!(
            direct[0].lines[4],
            "3N.1 kernel scale grid=1,1,1 block=32,1,1 shared=0 @2+0 3f000000 after 2.1"
        );
        let other = RUN
            .replace("@a7", "@a70")
            .replace("@a9", "@r7f00000000")
            .replace(" 4:N", " 14:N")
            .replace("e1", "eaa");
        // Another order of writing, and events that order nothing.
        let mut lines: Vec<&str> = other.lines().collect();
        lines.swap(1, 3);
        lines.push("8 14:N:9 record ebb");
        assert_eq!(compare(&direct, &of(&lines.join("\n"))), None);
    }

    #[test]
    fn copies_in_pieces_are_the_copy() {
        let told = |bytes: &[u8]| {
            let mut contents = Contents::default();
            contents.append(bytes);
            contents
        };
        let (abcd, ab, cd) = (told(b"abcd"), told(b"ab"), told(b"cd"));
        let whole = of(&format!("1 1:L:9 copy h2d 4x1 @a1+10 {abcd}\n"));
        let pieces = |second: Contents| {
            format!("1 1:L:9 copy h2d 2x1 @a3+10 {ab}\n2 1:L:9 copy h2d 2x1 @a3+12 {second}\n")
        };
        assert_eq!(compare(&whole, &of(&pieces(cd))), None);
        assert!(compare(&whole, &of(&pieces(told(b"ce")))).is_some());
        let rows = of("1 1:L:9 copy d2h 2x4 @a1+0/16 0000000000000000\n");
        let in_rows = "1 1:L:9 copy d2h 2x3 @a1+0/16 0000000000000000\n\
                       2 1:L:9 copy d2h 2x1 @a1+30 0000000000000000\n";
        assert_eq!(compare(&rows, &of(in_rows)), None);
    }

    /// The tool is only as good as what it finds.
    #[test]
    fn mutants_are_found_and_named() {
        let right = of(RUN);
        let wrong = |from: &str, to: &str| {
            assert!(RUN.contains(from), "{from}");
            compare(&right, &of(&RUN.replace(from, to))).expect("a difference")
        };
        let found = wrong("@a9+10 20", "@a9+10 21");
        assert!(
            found.left.as_deref().is_some_and(|l| l.contains("add")),
            "{found}"
        );
        assert!(wrong("@a9+10", "@a9+18").to_string().contains("kernel add"));
        assert!(
            wrong("@a7+0 @a9+10", "@a9+0 @a7+10")
                .to_string()
                .contains("kernel add")
        );
        // A lost copy, a lost fill, contents, a shape, another stream, another kernel.
        for (from, to) in [
            ("1 1:L:9 copy h2d 4096x1 @a7+0 0000000000000005\n", ""),
            ("2 1:L:9 fill 0/1 64x1 @a9+0\n", ""),
            ("0000000000000007", "0000000000000008"),
            (
                "grid=1,1,1 block=32,1,1 shared=0 @a7",
                "grid=2,1,1 block=32,1,1 shared=0 @a7",
            ),
            ("7 1:L", "7 4:N"),
            ("kernel add", "kernel sub"),
            ("fill 0/1", "fill 1/1"),
        ] {
            wrong(from, to);
        }
        // Two operations of one stream in another order, and a wait that was lost.
        let swapped = RUN
            .replace("1 1:L", "x 1:L")
            .replace("2 1:L", "1 1:L")
            .replace("x 1:L", "2 1:L");
        let found = compare(&right, &of(&swapped)).expect("a difference");
        assert!(
            found
                .left
                .as_deref()
                .is_some_and(|l| l.starts_with("1L.1 copy")),
            "{found}"
        );
        let found = wrong("5 5:N:9 wait e1\n", "");
        assert!(
            found
                .left
                .as_deref()
                .is_some_and(|l| l.ends_with("after 2.1")),
            "{found}"
        );
        // The daemon may wait where the program did; it may not leave a wait out.
        let waited = RUN.replace("3 4:N", "2 1:L:9 record e5\n2 4:N:9 wait e5\n3 4:N");
        assert_eq!(compare(&right, &of(&waited)), None);
        assert!(compare(&of(&waited), &right).is_some());
        // A process that is missing, or one too many.
        assert!(compare(&right, &[]).is_some());
        assert!(compare(&right, &[right.clone(), right.clone()].concat()).is_some());
    }

    #[test]
    fn what_a_program_has_otherwise_each_time_is_not_compared() {
        let run = |address: &str| of(&RUN.replace("@a9+10 20", &format!("@a9+10 {address},7,20")));
        let (first, second) = (run("7ffe4050469c"), run("7ffd0201f5dc"));
        assert!(compare(&first, &second).is_some());
        let direct = own(&first, &second);
        assert_eq!(
            direct[0].lines[3],
            "2N.1 kernel add grid=1,1,1 block=32,1,1 shared=0 @1+0 @2+10 *,7,20"
        );
        assert_eq!(compare(&direct, &run("7ffc00000000")), None);
        // Only that.
        let other = of(&RUN.replace("@a9+10 20", "@a9+10 7ffd0201f5dc,8,20"));
        assert!(compare(&direct, &other).is_some());
        let other = of(&RUN.replace("@a9+10 20", "@a9+20 7ffd0201f5dc,7,20"));
        assert!(compare(&direct, &other).is_some());
        // Another kernel, or other memory, is no number.
        let other = of(&RUN.replace("kernel add", "kernel bad"));
        assert!(compare(&own(&of(RUN), &other), &other).is_some());
    }

    #[test]
    fn the_null_stream_orders_blocking_streams() {
        let run = "1 1:L:9 fill 0/1 64x1 @a1+0\n\
                   2 2:B:9 fill 1/1 64x1 @a1+0\n\
                   3 3:N:9 fill 2/1 64x1 @a2+0\n\
                   4 1:L:9 fill 3/1 64x1 @a1+0\n";
        let lines = &of(run)[0].lines;
        assert_eq!(lines[1], "1L.2 fill 3/1 64x1 @1+0 after 2.1");
        assert_eq!(lines[2], "2B.1 fill 1/1 64x1 @1+0 after 1.1");
        assert_eq!(lines[3], "3N.1 fill 2/1 64x1 @2+0");
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        for text in [
            "hello\n",
            "1 2\n",
            "x 1:L:9 fill\n",
            "1 1 fill 0\n",
            "1 1:L:9 copy h2d\n",
        ] {
            assert!(normalise(text).is_err(), "{text:?}");
        }
    }
}
