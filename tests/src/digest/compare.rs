//! Compares two runs, and finds the data of a program that differs each time.

use std::collections::HashMap;
use std::fmt;

use super::Process;

/// The first operation that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Number of the process, from 1.
    pub process: usize,
    /// The last operation before the difference, if there is one.
    pub after: Option<String>,
    /// The operation of the first run.
    pub left: Option<String>,
    /// The operation of the second run.
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

impl Process {
    /// The first line that differs in another process, or that lacks a dependency there.
    fn difference(&self, other: &Process) -> Option<usize> {
        let mut clocks: HashMap<&str, (Reached<'_>, Reached<'_>)> = HashMap::new();
        let mut pairs = Pairs::default();
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
            if !pairs.lines_alike(text, other) || !left.iter().all(kept) {
                return Some(i);
            }
        }
        (other.lines.len() > self.lines.len()).then_some(self.lines.len())
    }
}

/// Marks in a line for data that differs each time: a word or a value; and (two digits) a byte of a
/// value.
const OWN: &str = "*";
const OWN_DIGIT: u8 = b'?';

/// The mapping between the memories of two runs. Numbers of allocations do not suffice: bytes that
/// a program never set may look like an address of an allocation that is not in use yet.
#[derive(Default)]
struct Pairs<'a> {
    there: HashMap<&'a str, &'a str>,
    back: HashMap<&'a str, &'a str>,
}

impl<'a> Pairs<'a> {
    /// Whether two values are equal, or name the same place (`@allocation+offset`).
    fn values_alike(&mut self, a: &'a str, b: &'a str) -> bool {
        match (place(a), place(b)) {
            (Some((a, at)), Some((b, other))) => {
                at == other
                    && *self.there.entry(a).or_insert(b) == b
                    && *self.back.entry(b).or_insert(a) == a
            }
            _ => a == b || a == OWN || (a.contains('?') && numbers_alike(a, b)),
        }
    }

    /// Compares words: values separated by commas.
    fn words_alike(&mut self, a: &'a str, b: &'a str) -> bool {
        let alike = |(a, b)| self.values_alike(a, b);
        a == OWN
            || a.split(',').count() == b.split(',').count()
                && a.split(',').zip(b.split(',')).all(alike)
    }

    fn lines_alike(&mut self, line: &'a str, other: &'a str) -> bool {
        let alike = |(a, b)| self.words_alike(a, b);
        line.split(' ').count() == other.split(' ').count()
            && line.split(' ').zip(other.split(' ')).all(alike)
    }

    /// The line without the data that differs in the other line; the line itself if the other line
    /// is a different operation.
    fn own_line(&mut self, line: &'a str, other: &'a str) -> String {
        let (words, others): (Vec<_>, Vec<_>) =
            (line.split(' ').collect(), other.split(' ').collect());
        let (first, last) = values(&words);
        let rest = words[..first].iter().zip(&others);
        if words.len() != others.len() || !rest.into_iter().all(|(a, b)| self.words_alike(a, b)) {
            return line.to_owned();
        }
        let copy = words.get(1) == Some(&"copy");
        let mut text: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        for i in first..last {
            text[i] = self.own_word(words[i], others[i], copy);
        }
        text.join(" ")
    }

    fn own_word(&mut self, a: &'a str, b: &'a str, whole: bool) -> String {
        if a.split(',').count() != b.split(',').count() || whole {
            let kept = if self.words_alike(a, b) { a } else { OWN };
            return kept.to_owned();
        }
        let values = a.split(',').zip(b.split(','));
        let values = values.map(|(a, b)| match (place(a), place(b)) {
            (None, None) if a != OWN => own_number(a, b),
            _ if self.values_alike(a, b) => a.to_owned(),
            _ => OWN.to_owned(),
        });
        values.collect::<Vec<_>>().join(",")
    }
}

/// The words of a line that may differ each time: parameters of a kernel, contents of a copy.
fn values(words: &[&str]) -> (usize, usize) {
    let end = words.iter().position(|w| *w == "after");
    let end = end.unwrap_or(words.len());
    let first = match words.get(1) {
        Some(&"kernel") => words.iter().position(|w| w.starts_with("shared=")),
        Some(&"copy") => end.checked_sub(2),
        _ => None,
    };
    (first.map_or(end, |at| at + 1), end)
}

fn place(word: &str) -> Option<(&str, &str)> {
    word.strip_prefix('@')?.split_once('+')
}

/// Two numbers as bytes of two digits, padded to the same length.
fn digits(a: &str, b: &str) -> (Vec<u8>, Vec<u8>) {
    let len = a.len().max(b.len()).next_multiple_of(2);
    let long = |number: &str| format!("{number:0>len$}").into_bytes();
    (long(a), long(b))
}

fn numbers_alike(a: &str, b: &str) -> bool {
    let (a, b) = digits(a, b);
    a.iter().zip(&b).all(|(a, b)| *a == OWN_DIGIT || a == b)
}

/// The bytes that two numbers have in common. Addresses that differ between processes have none in
/// common; half of an address may follow 4 bytes that were set.
fn own_number(a: &str, b: &str) -> String {
    let halves = [a, b].map(|number| {
        let value = u64::from_str_radix(&number.replace('?', "0"), 16).unwrap_or_default();
        (value >> 32, value as u32)
    });
    // An address of the device, or of the program.
    let address = |high: u64| matches!(high, 0x2000..0x2100 | 0x5000..=0x7fff);
    let address = halves.iter().all(|(high, _)| address(*high));
    let stack = halves
        .iter()
        .all(|(high, _)| (0x7ffc..=0x7fff).contains(high));
    let [(high, low), (other_high, other_low)] = halves;
    if address && low != other_low {
        return OWN.to_owned();
    }
    if stack || (address && high != other_high) {
        return format!("????????{low:08x}");
    }
    if a == b {
        return a.to_owned();
    }
    let (mut a, b) = digits(a, b);
    for (a, b) in a.chunks_mut(2).zip(b.chunks(2)) {
        if a != b {
            a.fill(OWN_DIGIT);
        }
    }
    String::from_utf8_lossy(&a).into_owned()
}

/// The first of two equal runs of a program, without the data that differs in the second: addresses
/// of the program's process, and bytes that the program never set.
pub fn own(first: &[Process], second: &[Process]) -> Vec<Process> {
    if first.len() != second.len() {
        return first.to_vec();
    }
    let of_process = |(process, other): (&Process, &Process)| {
        let mut pairs = Pairs::default();
        let lines = process.lines.iter().enumerate();
        let lines = lines.map(|(i, line)| match other.lines.get(i) {
            Some(other) => pairs.own_line(line, other),
            None => line.clone(),
        });
        Process {
            lines: lines.collect(),
        }
    };
    first.iter().zip(second).map(of_process).collect()
}

/// Bytes of parameters and copies that are excluded, and all bytes.
pub fn left_out(processes: &[Process]) -> (u64, u64) {
    let (mut out, mut of) = (0, 0);
    for line in processes.iter().flat_map(|p| &p.lines) {
        let words: Vec<&str> = line.split(' ').collect();
        let (first, last) = values(&words);
        let size = words.get(3).and_then(|size| size.split_once('x'));
        let size = size.and_then(|(w, h)| Some(w.parse::<u64>().ok()? * h.parse::<u64>().ok()?));
        for word in &words[first..last] {
            match (words.get(1), size) {
                (Some(&"copy"), Some(size)) => {
                    of += size;
                    out += if *word == OWN { size } else { 0 };
                }
                _ => {
                    for value in word.split(',') {
                        of += 8;
                        out += if value == OWN {
                            8
                        } else {
                            value.matches('?').count() as u64 / 2
                        };
                    }
                }
            }
        }
    }
    (out, of)
}

/// A variable of the C library for the given run of a program. In each run, memory from malloc
/// then has other bytes, and the frames of threads have other places in the threads' stacks. Malloc
/// works differently in every second run.
pub fn perturbed(run: u32) -> (&'static str, String) {
    let (byte, kept) = (run * 37 % 255 + 1, (run + 1) % 2 * 7);
    // The default is 512 bytes. Thread-local storage lies at the top of a thread's stack.
    let storage = 512 + run * 0x1140;
    let value = format!(
        "glibc.malloc.perturb={byte}:glibc.malloc.tcache_count={kept}:glibc.rtld.optional_static_tls={storage}"
    );
    ("GLIBC_TUNABLES", value)
}

/// Progress of streams, by number.
type Reached<'a> = HashMap<&'a str, usize>;

/// The stream of a line, the line without its dependencies, and the dependencies.
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

/// The first operation that two runs do not have in common; `None` if the second run did the work
/// of the first. Processes with the same work are matched in any order.
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

#[cfg(test)]
mod tests {
    use soft_gpu::driver::contents::Contents;

    use super::*;
    use crate::digest::normalise;

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
        // Another order of writing, and events that order nothing, make no difference.
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
        // The copied contents may have addresses (`@allocation+offset`) in place of bytes.
        let whole = of(&format!("1 1:L:9 copy h2d 4x1 @a1+10 {abcd},@a7+0,@a1+8\n"));
        let named = |at: &str| {
            format!(
                "1 1:L:9 copy h2d 2x1 @a3+10 {ab},@a5+0\n2 1:L:9 copy h2d 2x1 @a3+12 {cd},@a3+{at}\n"
            )
        };
        assert_eq!(compare(&whole, &of(&named("8"))), None);
        assert!(compare(&whole, &of(&named("10"))).is_some());
        let rows = of("1 1:L:9 copy d2h 2x4 @a1+0/16 0000000000000000\n");
        let in_rows = "1 1:L:9 copy d2h 2x3 @a1+0/16 0000000000000000\n\
                       2 1:L:9 copy d2h 2x1 @a1+30 0000000000000000\n";
        assert_eq!(compare(&rows, &of(in_rows)), None);
    }

    /// Checks that the comparison finds differences.
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
        // A lost copy, a lost fill, different contents, shape, stream and kernel.
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
        // Two operations of a stream in another order, and a lost wait.
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
        // The daemon may add waits, but may not omit any.
        let waited = RUN.replace("3 4:N", "2 1:L:9 record e5\n2 4:N:9 wait e5\n3 4:N");
        assert_eq!(compare(&right, &of(&waited)), None);
        assert!(compare(&of(&waited), &right).is_some());
        // A missing process, or an additional one.
        assert!(compare(&right, &[]).is_some());
        assert!(compare(&right, &[right.clone(), right.clone()].concat()).is_some());
    }

    #[test]
    fn what_a_program_has_otherwise_each_time_is_not_compared() {
        let run = |value: &str| of(&RUN.replace("@a9+10 20", &format!("@a9+10 {value},7,20")));
        let held = |first: &str, second: &str, other: &str| {
            compare(&own(&run(first), &run(second)), &run(other)).is_none()
        };
        // Addresses of the process; also after 4 bytes that were set.
        assert!(held("7ffe4050469c", "7ffe0201f5dc", "1"));
        assert!(held("7ffe00000003", "7ffe00000003", "7ffc00000003"));
        assert!(held("7f5500000003", "558d00000003", "3"));
        assert!(!held("7f5500000003", "558d00000003", "7ffc00000002"));
        // Bytes that were never set next to bytes that were.
        assert!(held("1111111111110042", "5555555555550042", "42"));
        assert!(!held("1111111111110042", "5555555555550042", "43"));
        assert!(!held("1111111111110042", "1111111111110042", "42"));
        // Bytes that look like an address of memory that is not in use yet.
        assert!(held("1111111111111111", "@a99+1", "5"));
        // More runs find more differences.
        let two = own(&run("1100000001"), &run("2200000001"));
        let direct = own(&two, &run("2233000001"));
        assert_eq!(
            direct[0].lines[3],
            "2N.1 kernel add grid=1,1,1 block=32,1,1 shared=0 @1+0 @2+10 ????000001,7,20"
        );
        assert_eq!(left_out(&direct), (2, 4096 + 4096 + 24 + 16 + 16));
        // Nothing else is excluded: other parameters, grid, kernel, order.
        for (from, to) in [
            (",7,20", ",8,20"),
            ("@a9+10 22", "@a9+20 22"),
            ("grid=1,1,1", "grid=1,2,1"),
            ("kernel add", "kernel bad"),
            ("3f000000", "3f800000"),
        ] {
            let text = RUN.replace("@a9+10 20", "@a9+10 2200000001,7,20");
            let other = of(&text.replace(from, to));
            assert_ne!(other, of(&text), "{from}");
            assert!(compare(&direct, &other).is_some(), "{from}");
        }
        assert!(
            compare(
                &own(&of(RUN), &of(&RUN.replace("kernel add", "kernel bad"))),
                &of(&RUN.replace("kernel add", "kernel cad"))
            )
            .is_some()
        );
        // Contents of a copy, including values that look like addresses.
        let copy = |contents: &str| of(&RUN.replace("0000000000000007", contents));
        let direct = own(&copy("7,@a7+1"), &copy("8,@a9+0,@a7+1"));
        assert_eq!(compare(&direct, &copy("9")), None);
        assert_eq!(left_out(&direct).0, 4096);
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
