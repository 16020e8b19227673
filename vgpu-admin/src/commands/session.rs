//! Sessions.

use std::cmp::Reverse;

use vgpu_api::{ApplyReport, KillRequest, Session};

use super::vm::{Names, wait_reason};
use super::{applied, vm_numbers};
use crate::cli::SessionCommand;
use crate::client::{Client, tried};
use crate::error::Error;
use crate::output::{Cell, Format, Grid, printable, show, word};
use crate::units::{bytes, count, ns, time};
use crate::vm_ids::Vms;

pub(super) async fn run(
    client: &Client,
    output: Format,
    command: SessionCommand,
) -> Result<(), Error> {
    match command {
        SessionCommand::List { vms, since, until } => {
            let times = [("from_unix_ms", since), ("until_unix_ms", until)];
            let times = times.into_iter();
            let times: String = times
                .filter_map(|(name, at)| Some(format!("&{name}={}", at?)))
                .collect();
            let vms = match Option::<Vms>::from(vms) {
                None => vec![None],
                Some(vms) => vm_numbers(client, &vms)
                    .await?
                    .into_iter()
                    .map(Some)
                    .collect(),
            };
            let mut sessions: Vec<Session> = Vec::new();
            for vm in vms {
                let vm = vm.map_or(String::new(), |vm_id| format!("&vm_id={vm_id}"));
                let part: Vec<Session> = client.get(&format!("sessions?{times}{vm}")).await?;
                sessions.extend(part);
            }
            sessions.sort_by_key(|session| Reverse((session.since_unix_ms, session.session_id)));
            let names = Names::ask(client, output).await?;
            show(output, &sessions, |sessions| grid(sessions, &names))
        }
        SessionCommand::Kill {
            session_id,
            reason,
            dry_run,
        } => {
            let path = tried(format!("sessions/{session_id}/kill"), dry_run.dry_run);
            let report: ApplyReport = client.post(&path, &KillRequest { reason }).await?;
            applied(output, &report)
        }
    }
}

/// Sessions in words: `5 of VM 1 (vecadd), 7 of VM 2 (matmul)`, the first ten.
pub(super) fn named(sessions: &[Session]) -> String {
    const MOST: usize = 10;
    let name = |s: &Session| {
        format!(
            "{} of VM {} ({})",
            s.session_id,
            s.vm_id,
            printable(&s.program)
        )
    };
    let names: Vec<String> = sessions.iter().take(MOST).map(name).collect();
    match sessions.len().saturating_sub(MOST) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

fn grid(sessions: &[Session], names: &Names) -> Grid {
    let mut grid = Grid::new(&[
        "SESSION|session_id",
        "VM|vm_id",
        "PROGRAM",
        "PID|guest_pid",
        "GPU|gpu_id",
        "STATE",
        "GPU TIME|gpu_ns",
        "MEMORY|memory_bytes",
        "QUEUE|queue_calls",
        "CALLS",
        "+BYTES",
        "+WAITS FOR",
        "+PEER",
        "+WORKER|worker_pid",
        "+SINCE",
    ]);
    for s in sessions {
        grid.row([
            s.session_id.into(),
            names.cell(s.vm_id),
            Cell::from(&s.program),
            s.guest_pid.into(),
            Cell::maybe(s.gpu_id),
            word(s.state).into(),
            ns(s.gpu_ns),
            bytes(s.memory_bytes),
            count(s.queue_calls),
            count(s.calls),
            bytes(s.bytes),
            Cell::maybe(s.waiting.map(wait_reason)),
            Cell::from(&s.peer),
            Cell::maybe(s.worker_pid),
            time(s.since_unix_ms),
        ]);
    }
    grid
}
