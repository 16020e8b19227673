//! Decisions of the scheduler: why a VM waits, and the decision log.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use vgpu_api::Explain;

use super::vm::Names;
use super::vm_numbers;
use crate::cli::SchedCommand;
use crate::client::Client;
use crate::error::Error;
use crate::output::{Cell, Format, Grid, print, printable, show, word};
use crate::units::ns;
use crate::vm_ids::Vms;

/// The begin of the last line of a decision log. A dump without this line is incomplete.
const END: &[u8] = b"{\"end\":";

pub(super) async fn explain(client: &Client, output: Format, vms: &Vms) -> Result<(), Error> {
    let vms = vm_numbers(client, vms).await?;
    let mut answers: Vec<Explain> = Vec::with_capacity(vms.len());
    for vm in vms {
        answers.push(client.get(&format!("vms/{vm}/explain")).await?);
    }
    if output == Format::Table {
        let paragraphs: Vec<String> = answers
            .iter()
            .map(|answer| wrapped(&printable(&answer.summary)))
            .collect();
        return print(&paragraphs.join("\n"));
    }
    let names = Names::ask(client, output).await?;
    show(output, &answers, |answers| grid(answers, &names))
}

/// Wraps a paragraph at 100 characters, like the help texts.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 100;
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            lines.push('\n');
            width = 0;
        }
        if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines.push('\n');
    lines
}

fn grid(answers: &[Explain], names: &Names) -> Grid {
    let mut grid = Grid::new(&[
        "VM|vm_id",
        "POOL",
        "GPU|gpu_id",
        "REASON",
        "WAITING|waiting_ns",
        "AT MOST|wait_usual_ns",
        "WORST|wait_worst_ns",
        "HOLDERS|holder_vm_ids",
        "BEFORE|before_vm_ids",
        "SHARE %|share_permille",
        "WEIGHT|weight_milli",
        "|competing_weight_milli",
        "OWED US|lag_ns",
    ]);
    let list = |ids: Vec<String>| Cell::maybe((!ids.is_empty()).then(|| ids.join(" ")));
    for answer in answers {
        let holders = answer.holders.iter().map(|h| h.vm_id.to_string());
        let before = answer.before_vm_ids.iter().map(u32::to_string);
        let permille = answer.share_permille;
        grid.row([
            names.cell(answer.vm_id),
            Cell::from(&answer.pool),
            Cell::maybe(answer.gpu_id),
            word(answer.reason).into(),
            Cell::maybe(answer.waiting_ns.map(ns)),
            Cell::maybe(answer.wait_usual_ns.map(ns)),
            Cell::maybe(answer.wait_worst_ns.map(ns)),
            list(holders.collect()),
            list(before.collect()),
            Cell::new(format!("{}.{}", permille / 10, permille % 10), permille),
            Cell::new(
                format!(
                    "{}/{}",
                    answer.weight_milli as f64 / 1e3,
                    answer.competing_weight_milli as f64 / 1e3
                ),
                answer.weight_milli,
            ),
            answer.competing_weight_milli.into(),
            Cell::new((answer.lag_ns / 1_000).to_string(), answer.lag_ns),
        ]);
    }
    grid
}

pub(super) async fn run(
    client: &Client,
    output: Format,
    command: SchedCommand,
) -> Result<(), Error> {
    match command {
        SchedCommand::Log { file: None } => {
            download(client, output, std::io::stdout().lock()).await?;
            Ok(())
        }
        SchedCommand::Log { file: Some(path) } => log_to(client, output, &path).await,
    }
}

/// Writes the log: its lines, or its records as CSV.
async fn download<W: Write>(client: &Client, output: Format, out: W) -> Result<(), Error> {
    if output == Format::Csv {
        let mut tail = Tail::new(Records::new(out)?);
        client.download("sched/log", &mut tail).await?;
        return tail.finish().map(drop);
    }
    let mut tail = Tail::new(out);
    client.download("sched/log", &mut tail).await?;
    tail.finish().map(drop)
}

/// Writes a temporary file and renames it when it is complete, so that an incomplete log never
/// replaces a complete one.
async fn log_to(client: &Client, output: Format, path: &Path) -> Result<(), Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let failed = |source| Error::File {
        action: "write",
        path: path.display().to_string(),
        source,
    };
    let file = File::create(&partial).map_err(failed)?;
    let written = download(client, output, BufWriter::new(file)).await;
    let written = written.map_err(|error| match error {
        Error::Output(source) => failed(source),
        other => other,
    });
    if let Err(error) = written {
        let _ = std::fs::remove_file(&partial);
        return Err(error);
    }
    std::fs::rename(&partial, path).map_err(failed)
}

/// Turns the lines of a log into CSV: a line for each record. The states of the scheduler, between
/// the records, have no columns and are left out.
struct Records<W> {
    out: W,
    grid: Grid,
    line: Vec<u8>,
}

impl<W: Write> Records<W> {
    fn new(mut out: W) -> std::io::Result<Self> {
        let grid = Grid::new(&["N", "AT NS", "EVENT", "ACTIONS"]);
        out.write_all(grid.csv_header().as_bytes())?;
        Ok(Self {
            out,
            grid,
            line: Vec::new(),
        })
    }

    fn end_line(&mut self) -> std::io::Result<()> {
        let line = std::mem::take(&mut self.line);
        if !line.starts_with(b"{\"record\":") {
            return Ok(());
        }
        let line: serde_json::Value = serde_json::from_slice(&line)?;
        let field = |name: &str| Cell::from(line["record"][name].to_string());
        self.grid.row(["n", "at_ns", "event", "actions"].map(field));
        self.out.write_all(self.grid.csv_rows().as_bytes())?;
        self.grid.clear();
        Ok(())
    }
}

impl<W: Write> Write for Records<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.end_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Passes a log on and keeps the begin of its last line.
struct Tail<W> {
    out: W,
    line: Vec<u8>,
    at_line_end: bool,
}

impl<W: Write> Tail<W> {
    fn new(out: W) -> Self {
        Self {
            out,
            line: Vec::new(),
            at_line_end: false,
        }
    }

    /// Ends the log; an error if it is incomplete.
    fn finish(mut self) -> Result<W, Error> {
        self.out.flush()?;
        if self.at_line_end && self.line.starts_with(END) {
            return Ok(self.out);
        }
        Err(Error::CutOff)
    }
}

impl<W: Write> Write for Tail<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.out.write(bytes)?;
        for &byte in &bytes[..n] {
            if self.at_line_end {
                self.line.clear();
            }
            self.at_line_end = byte == b'\n';
            if self.line.len() < END.len() {
                self.line.push(byte);
            }
        }
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str, piece: usize) -> bool {
        let mut tail = Tail::new(Vec::new());
        for piece in text.as_bytes().chunks(piece) {
            tail.write_all(piece).unwrap();
        }
        match tail.finish() {
            Ok(out) => {
                assert_eq!(out, text.as_bytes());
                true
            }
            Err(Error::CutOff) => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_log_without_its_end_line_was_cut_off() {
        let log = "{\"state\":{}}\n{\"end\":{\"records\":0}}\n";
        for piece in [1, 3, 1_000] {
            assert!(whole(log, piece));
            assert!(!whole(&log[..log.len() - 1], piece), "half a line");
            assert!(!whole("{\"state\":{}}\n", piece));
            assert!(!whole("", piece));
        }
    }

    #[test]
    fn the_records_of_a_log_are_lines_of_csv() {
        let log = "{\"state\":{}}\n{\"record\":{\"n\":7,\"at_ns\":90,\"event\":\"Timer\",\
                   \"actions\":[]}}\n{\"end\":{\"records\":1}}\n";
        for piece in [1, 9, 1_000] {
            let mut tail = Tail::new(Records::new(Vec::new()).unwrap());
            for piece in log.as_bytes().chunks(piece) {
                tail.write_all(piece).unwrap();
            }
            let written = tail.finish().unwrap().out;
            let text = String::from_utf8(written).unwrap();
            assert_eq!(text, "n,at_ns,event,actions\n7,90,\"\"\"Timer\"\"\",[]\n");
        }
    }

    #[test]
    fn paragraphs_are_wrapped_between_words() {
        let text = "word ".repeat(50);
        let lines = wrapped(&text);
        assert!(
            lines
                .lines()
                .all(|line| line.len() <= 100 && !line.ends_with(' '))
        );
        assert_eq!(lines.split_whitespace().count(), 50);
        assert_eq!(wrapped("a"), "a\n");
    }
}
