//! Events and the audit trail.

use vgpu_api::{AuditEntry, AuditPage, Event, EventPage, Severity};
use vgpu_proto::text::counted;

use super::vm::Names;
use super::vm_numbers;
use crate::cli::{AuditLines, Period};
use crate::client::Client;
use crate::error::Error;
use crate::output::{Cell, Format, Grid, print, printable, show, word};
use crate::times::{Since, show_time};
use crate::units::time;

/// Longest time for which the daemon may delay an empty answer in follow mode, in ms.
const FOLLOW_WAIT_MS: u64 = 20_000;

/// Largest number of lines in an answer of the API.
const PAGE: u32 = 1_000;

/// The selection as parameters of the API, without number and limit.
async fn filters(
    client: &Client,
    period: &Period,
    severity: Option<Severity>,
) -> Result<String, Error> {
    let from = match period.since {
        Some(Since::Time(from)) => Some(from),
        Some(Since::Number(_)) | None => None,
    };
    let vm = match period.only.vm() {
        Some(vm) => vm_numbers(client, vm).await?.first().copied(),
        None => None,
    };
    let severity = severity.map(|severity| ("severity", word(severity)));
    let numbers = [
        ("from_unix_ms", from),
        ("until_unix_ms", period.until),
        ("vm_id", vm.map(u64::from)),
    ];
    let numbers = numbers.into_iter();
    let numbers = numbers.filter_map(|(name, value)| Some((name, value?.to_string())));
    let given = severity.into_iter().chain(numbers);
    Ok(given
        .map(|(name, value)| format!("&{name}={value}"))
        .collect())
}

/// The number after which entries are wanted, oldest first.
fn after(period: &Period) -> Option<u64> {
    match period.since {
        Some(Since::Number(number)) => Some(number),
        Some(Since::Time(_)) | None => None,
    }
}

/// The first request of a list.
fn first(route: &str, period: &Period, filters: &str) -> String {
    let after = after(period).map_or(String::new(), |number| format!("&since={number}"));
    format!("{route}?limit={}{after}{filters}", period.limit)
}

pub(super) async fn events(
    client: &Client,
    output: Format,
    follow: bool,
    period: &Period,
    severity: Option<Severity>,
) -> Result<(), Error> {
    if follow && period.until.is_some() {
        return Err(Error::Usage(
            "--follow shows what is to come, and --until what was: leave one out.".into(),
        ));
    }
    let filters = filters(client, period, severity).await?;
    let mut page: EventPage = client.get(&first("events", period, &filters)).await?;
    let names = Names::ask(client, output).await?;
    if !follow {
        return show(output, &page, |page| {
            grid(newest_first(period, &page.events), &names)
        });
    }
    if output == Format::Csv {
        print(&grid(std::iter::empty(), &names).csv_header())?;
    }
    loop {
        for event in &page.events {
            print(&line(output, event, &names)?)?;
        }
        let next = page.next_since;
        let path = format!("events?limit={PAGE}&since={next}&wait_ms={FOLLOW_WAIT_MS}{filters}");
        page = client.get_through_restarts(&path).await?;
    }
}

/// The order of tables: oldest first after a number, otherwise newest first.
fn newest_first<'a, T>(period: &Period, entries: &'a [T]) -> Box<dyn Iterator<Item = &'a T> + 'a> {
    match after(period) {
        Some(_) => Box::new(entries.iter()),
        None => Box::new(entries.iter().rev()),
    }
}

/// An event as a line: JSON lines if JSON was requested.
fn line(output: Format, event: &Event, names: &Names) -> Result<String, Error> {
    match output {
        Format::Json => {
            let text = serde_json::to_string(event).map_err(|e| Error::Protocol(e.to_string()))?;
            Ok(text + "\n")
        }
        Format::Csv => Ok(grid(std::iter::once(event), names).csv_rows()),
        Format::Table | Format::Wide => {
            let vm = event
                .vm_id
                .map_or("-".into(), |vm_id| format!("VM {}", names.show(vm_id)));
            Ok(format!(
                "{:6}  {}  {:7}  {:16}  {vm:8}  {}\n",
                event.seq,
                show_time(event.at_unix_ms),
                severity(event.severity),
                word(event.kind),
                printable(&event.message)
            ))
        }
    }
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Error => "ERROR",
    }
}

fn grid<'a>(events: impl Iterator<Item = &'a Event>, names: &Names) -> Grid {
    let mut grid = Grid::new(&[
        "SEQ",
        "TIME (UTC)|time",
        "SEVERITY",
        "KIND",
        "VM|vm_id",
        "+SESSION|session_id",
        "|gpu_uuid",
        "|pool",
        "EVENT|message",
    ]);
    for event in events {
        grid.row([
            event.seq.into(),
            time(event.at_unix_ms),
            Cell::new(severity(event.severity), word(event.severity)),
            word(event.kind).into(),
            Cell::maybe(event.vm_id.map(|vm_id| names.cell(vm_id))),
            Cell::maybe(event.session_id),
            Cell::maybe(event.gpu_uuid.as_ref()),
            Cell::maybe(event.pool.as_ref()),
            Cell::from(&event.message),
        ]);
    }
    grid
}

pub(super) async fn audit(
    client: &Client,
    output: Format,
    period: &Period,
    lines: &AuditLines,
) -> Result<(), Error> {
    let mut filters = filters(client, period, None).await?;
    let words = [
        ("actor", &lines.who),
        ("action", &lines.action),
        ("target", &lines.target),
    ];
    for (name, word) in words {
        if let Some(word) = word {
            filters += &format!("&{name}={}", escaped(word));
        }
    }
    let page: AuditPage = client.get(&first("audit", period, &filters)).await?;
    show(output, &page, |page| {
        let mut grid = Grid::new(&[
            "SEQ",
            "TIME (UTC)|time",
            "WHO|actor",
            "+PID",
            "ACTION",
            "TARGET",
            "DETAIL",
        ]);
        for entry in newest_first(period, &page.entries) {
            grid.row([
                entry.seq.into(),
                time(entry.at_unix_ms),
                Cell::from(&entry.actor),
                Cell::maybe(entry.pid),
                Cell::from(&entry.action),
                Cell::from(&entry.target),
                detail(entry),
            ]);
        }
        grid
    })
}

/// A text as the value of a URL's parameter.
fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// The command of an entry. Tables show a scan as counts, because its JSON describes every GPU.
fn detail(entry: &AuditEntry) -> Cell {
    let whole = Cell::from(&entry.detail);
    if entry.action != "scan-gpus" {
        return whole;
    }
    let json: serde_json::Value = serde_json::from_str(&entry.detail).unwrap_or_default();
    // The outer object has one field, which names the command.
    let scan = json.as_object().and_then(|command| command.values().next());
    let number = |what: &str| Some(scan?.get(what)?.as_array()?.len());
    let Some(gpus) = number("gpus") else {
        return whole;
    };
    let warnings = match number("warnings") {
        None | Some(0) => String::new(),
        Some(warnings) => format!(", {}", counted(warnings, "warning")),
    };
    Cell::new(format!("{} found{warnings}", counted(gpus, "GPU")), whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_a_count_in_a_table_and_whole_for_programs() {
        let shown = |action: &str, detail_json: &str| {
            let entry = AuditEntry {
                seq: 1,
                at_unix_ms: 1,
                actor: "uid:0".into(),
                pid: None,
                action: action.into(),
                target: "host".into(),
                detail: detail_json.into(),
            };
            let render = |format| {
                let mut grid = Grid::new(&["DETAIL"]);
                grid.row([detail(&entry)]);
                let text = grid.render(format);
                text.lines().nth(1).unwrap_or_default().trim().to_owned()
            };
            (render(Format::Table), render(Format::Csv).contains("uuid"))
        };
        let two = r#"{"scan_gpus":{"gpus":[{"uuid":"a"},{"uuid":"b"}],"warnings":["no NVML"]}}"#;
        assert_eq!(
            shown("scan-gpus", two),
            ("2 GPUs found, 1 warning".into(), true)
        );
        let one = r#"{"scan_gpus":{"gpus":[{"uuid":"a"}],"warnings":[]}}"#;
        assert_eq!(shown("scan-gpus", one), ("1 GPU found".into(), true));
        for kept in ["not JSON", "{}", "[1]"] {
            assert_eq!(shown("scan-gpus", kept), (kept.into(), false));
        }
        assert_eq!(shown("vm-set", one), (one.into(), true));
    }
}
