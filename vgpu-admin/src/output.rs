//! Output formats: tables for people, JSON and CSV for programs.

use std::io::Write;

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use vgpu_proto::text;

use crate::error::Error;

/// Output formats. JSON is the API's own answer with a stable schema; tables may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns.
    Table,
    /// A table with more columns.
    Wide,
    /// The API's answer.
    Json,
    /// Comma-separated, all columns, with a header line.
    Csv,
}

/// A table. The flag of a column says that only `wide` and `csv` show the column.
#[derive(Debug, Default)]
pub(crate) struct Grid {
    columns: Vec<(String, bool)>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// A table with these columns. Columns with a leading `+` are shown only by `wide` and `csv`.
    pub(crate) fn new<T: AsRef<str>>(columns: &[T]) -> Grid {
        let columns = columns
            .iter()
            .map(AsRef::as_ref)
            .map(|c| (c.trim_start_matches('+').to_owned(), c.starts_with('+')))
            .collect();
        Grid {
            columns,
            rows: Vec::new(),
        }
    }

    /// Appends a row with one cell per column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        // Text from a guest (a program's name) must not control the terminal.
        let cells: Vec<String> = cells.into_iter().map(|c| printable(&c)).collect();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Renders the table in a format other than JSON.
    pub(crate) fn render(&self, format: Format) -> String {
        match format {
            Format::Csv => self.csv(),
            _ => self.table(format == Format::Wide),
        }
    }

    fn table(&self, wide: bool) -> String {
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|&i| wide || !self.columns[i].1)
            .collect();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(shown.iter().map(|&i| self.columns[i].0.as_str()));
        for row in &self.rows {
            table.add_row(shown.iter().map(|&i| row[i].as_str()));
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn csv(&self) -> String {
        let mut text = String::new();
        let header: Vec<String> = self
            .columns
            .iter()
            .map(|c| c.0.to_ascii_lowercase().replace(' ', "_"))
            .collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let cells: Vec<String> = row.iter().map(|c| quote(c)).collect();
            text.push_str(&cells.join(","));
            text.push('\n');
        }
        text
    }
}

/// Prints `value` as JSON, or as the table that `grid` makes.
pub(crate) fn show<T: Serialize>(
    format: Format,
    value: &T,
    grid: impl FnOnce(&T) -> Grid,
) -> Result<(), Error> {
    match format {
        Format::Json => json(value),
        _ => print(&grid(value).render(format)),
    }
}

/// Prints `value` as indented JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::Protocol(e.to_string()))?;
    print(&(text + "\n"))
}

pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Returns `text` with control characters replaced by U+FFFD.
pub(crate) fn printable(text: &str) -> String {
    text::printable(text, usize::MAX)
}

fn quote(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// Returns the cell of a value, `-` if the value is unknown.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |v| v.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let mut g = Grid::new(&["VM", "NAME", "+BYTES"]);
        g.row(vec!["1".into(), "a,\"b\"".into(), "7".into()]);
        g.row(vec!["22".into(), "x\x1b[2J".into(), "8".into()]);
        g
    }

    #[test]
    fn wide_columns_show_only_where_asked() {
        assert!(!grid().render(Format::Table).contains("BYTES"));
        assert!(grid().render(Format::Wide).contains("BYTES"));
    }

    #[test]
    fn csv_is_quoted() {
        assert_eq!(
            grid().render(Format::Csv),
            "vm,name,bytes\n1,\"a,\"\"b\"\"\",7\n22,x\u{fffd}[2J,8\n"
        );
    }
}
