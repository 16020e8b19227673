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
    /// Comma-separated values for programs: a header line, exact numbers, times of RFC 3339.
    Csv,
}

/// A cell: text for people, and the exact value for programs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    exact: String,
}

impl Cell {
    /// A cell whose value for programs differs from the text.
    pub(crate) fn new(text: impl Into<String>, exact: impl Into<Cell>) -> Cell {
        Cell {
            text: text.into(),
            exact: exact.into().exact,
        }
    }

    /// The cell of a value that may be unknown: a dash, for programs nothing.
    pub(crate) fn maybe<T: Into<Cell>>(value: Option<T>) -> Cell {
        value.map_or_else(|| Cell::new("-", ""), Into::into)
    }
}

macro_rules! cell {
    ($($type:ty),*) => {$(
        impl From<$type> for Cell {
            fn from(value: $type) -> Cell {
                let text = value.to_string();
                Cell {
                    exact: text.clone(),
                    text,
                }
            }
        }
    )*};
}

cell!(&str, &String, String, u32, u64, usize, i64, bool);

/// A column of a table.
#[derive(Debug)]
struct Column {
    title: String,
    /// Whether only wide tables show the column.
    wide: bool,
    /// Name in CSV; empty: not in CSV.
    name: String,
}

impl Column {
    /// Reads `TITLE`, `+TITLE` (only in wide tables), `TITLE|name` (another name in CSV), `|name`
    /// (only in CSV), `TITLE|` (not in CSV).
    fn read(spec: &str) -> Column {
        let (wide, spec) = match spec.strip_prefix('+') {
            Some(rest) => (true, rest),
            None => (false, spec),
        };
        let (title, name) = match spec.split_once('|') {
            Some((title, name)) => (title, name.to_owned()),
            None => (spec, spec.to_ascii_lowercase().replace(' ', "_")),
        };
        Column {
            title: title.to_owned(),
            wide,
            name,
        }
    }
}

/// A table.
#[derive(Debug, Default)]
pub(crate) struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// A table with these columns ([`Column::read`]).
    pub(crate) fn new<T: AsRef<str>>(columns: &[T]) -> Grid {
        Grid {
            columns: columns.iter().map(|c| Column::read(c.as_ref())).collect(),
            rows: Vec::new(),
        }
    }

    /// Appends a row with one cell per column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        // Text from a guest (a program's name) must not control the terminal.
        let clean = |cell: Cell| Cell::new(printable(&cell.text), printable(&cell.exact));
        let cells: Vec<Cell> = cells.into_iter().map(clean).collect();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Removes the rows.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Renders the table in a format other than JSON.
    pub(crate) fn render(&self, format: Format) -> String {
        match format {
            Format::Csv => self.csv_header() + &self.csv_rows(),
            _ => self.table(format == Format::Wide),
        }
    }

    fn table(&self, wide: bool) -> String {
        let is_shown = |c: &Column| !c.title.is_empty() && (wide || !c.wide);
        let columns = self.columns.iter().enumerate();
        let shown: Vec<usize> = columns
            .filter(|(_, c)| is_shown(c))
            .map(|(at, _)| at)
            .collect();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(shown.iter().map(|&i| self.columns[i].title.as_str()));
        for row in &self.rows {
            table.add_row(shown.iter().map(|&i| row[i].text.as_str()));
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// The header line of CSV.
    pub(crate) fn csv_header(&self) -> String {
        self.csv_line(self.columns.iter().map(|column| column.name.clone()))
    }

    /// The lines of CSV without the header.
    pub(crate) fn csv_rows(&self) -> String {
        let rows = self.rows.iter();
        rows.map(|row| self.csv_line(row.iter().map(|cell| quote(&cell.exact))))
            .collect()
    }

    fn csv_line(&self, cells: impl Iterator<Item = String>) -> String {
        let named = cells.zip(&self.columns).filter(|(_, c)| !c.name.is_empty());
        let cells: Vec<String> = named.map(|(cell, _)| cell).collect();
        cells.join(",") + "\n"
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

/// The word of a value, as in JSON.
pub(crate) fn word<T: Serialize>(value: T) -> String {
    let json = serde_json::to_value(value).ok();
    let word = json.as_ref().and_then(|json| json.as_str());
    word.unwrap_or("?").to_owned()
}

/// Text for people of a value that may be unknown.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |v| v.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let mut g = Grid::new(&["VM|vm_id", "NAME", "+BYTES", "LIMITS|", "|limit"]);
        let rest = || ["sessions 5".into(), "5".into()];
        let cells = ["1".into(), "a,\"b\"".into(), Cell::new("7KiB", 7_168_u64)];
        g.row(cells.into_iter().chain(rest()));
        let cells = [22_u32.into(), "x\x1b[2J".into(), Cell::maybe(None::<u64>)];
        g.row(cells.into_iter().chain(rest()));
        g
    }

    #[test]
    fn wide_columns_show_only_where_asked() {
        assert!(!grid().render(Format::Table).contains("BYTES"));
        let wide = grid().render(Format::Wide);
        assert!(wide.contains("BYTES") && wide.contains("7KiB"), "{wide}");
    }

    #[test]
    fn csv_is_quoted() {
        assert_eq!(
            grid().render(Format::Csv),
            "vm_id,name,bytes,limit\n1,\"a,\"\"b\"\"\",7168,5\n22,x\u{fffd}[2J,,5\n"
        );
    }
}
