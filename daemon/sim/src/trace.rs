//! Recorded workloads as text.
//!
//! One operation per line: `at_ns kind stream key ns bytes`. `at_ns` is the time since the start of
//! `stream` is a small number, `key` a number for function and launch shape, `ns` the run time, and
//! `bytes` the number of copied bytes. Empty lines and lines that begin with `#` are skipped.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};

use crate::op::{Op, What};

/// One recorded operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceOp {
    /// Arrival, in ns since the start of the trace.
    pub at_ns: u64,
    /// Kind of operation.
    pub what: What,
    /// Stream.
    pub stream: u16,
    /// Number for function and launch shape.
    pub key: u32,
    /// Run time in ns.
    pub ns: u64,
    /// Number of copied bytes.
    pub bytes: u64,
}

impl TraceOp {
    /// The operation.
    #[must_use]
    pub fn op(&self) -> Op {
        Op {
            what: self.what,
            key: self.key,
            stream: self.stream,
            ns: self.ns,
            bytes: self.bytes,
            until: None,
        }
    }
}

/// Limit of stream numbers; a larger number is an error in the file.
const MOST_STREAMS: u16 = 256;

/// Reads a trace.
///
/// # Errors
/// If the trace is empty or has an invalid line; the error names the first invalid line and its
/// fault.
pub fn parse(text: &str) -> Result<Arc<[TraceOp]>> {
    let mut ops: Vec<TraceOp> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let op = parse_line(line).with_context(|| format!("line {} of the trace", index + 1))?;
        let last = ops.last().map_or(0, |op| op.at_ns);
        ensure!(
            op.at_ns >= last,
            "line {} of the trace: the time is earlier than in the line before",
            index + 1
        );
        ops.push(op);
    }
    ensure!(!ops.is_empty(), "the trace has no operation");
    Ok(ops.into())
}

fn parse_line(line: &str) -> Result<TraceOp> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [at_ns, what, stream, key, ns, bytes] = fields[..] else {
        bail!("expected `at_ns kind stream key ns bytes`, found {line:?}");
    };
    let number = |name: &str, field: &str| {
        field
            .parse::<u64>()
            .with_context(|| format!("{name} {field:?} is not a number"))
    };
    let what = match what {
        "kernel" => What::Kernel,
        "graph" => What::Graph,
        "copy" => What::Copy,
        other => bail!("kind {other:?} is not kernel, graph or copy"),
    };
    let stream = u16::try_from(number("stream", stream)?)
        .ok()
        .filter(|&stream| stream < MOST_STREAMS)
        .with_context(|| format!("stream {stream} is not below {MOST_STREAMS}"))?;
    Ok(TraceOp {
        at_ns: number("at_ns", at_ns)?,
        what,
        stream,
        key: u32::try_from(number("key", key)?).context("key is too large")?,
        ns: number("ns", ns)?.max(1),
        bytes: number("bytes", bytes)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_line_by_line() {
        let text = "# three\n0 kernel 0 7 5000 0\n\n10 copy 1 8 2000 65536\n10 graph 0 9 90000 0\n";
        let ops = parse(text).unwrap();
        assert_eq!(ops.len(), 3);
        assert_eq!(
            (ops[1].what, ops[1].stream, ops[1].bytes),
            (What::Copy, 1, 65536)
        );
    }

    #[test]
    fn errors_name_the_line() {
        for (text, said) in [
            ("", "no operation"),
            ("0 kernel 0 7 5000", "line 1"),
            ("0 kernel 0 7 5000 0\n5 launch 0 7 1 0", "line 2"),
            ("9 kernel 0 7 1 0\n5 kernel 0 7 1 0", "before"),
            ("0 kernel 999 7 1 0", "stream"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
    }
}
