//! Sessions.

use vgpu_api::{ApplyReport, KillRequest, Session, SessionState};

use super::applied;
use crate::cli::SessionCommand;
use crate::client::Client;
use crate::error::Error;
use crate::output::{Format, Grid, or_dash, show};
use crate::units::{show_bytes, show_count, show_ns, show_time};

pub(super) async fn run(
    client: &Client,
    output: Format,
    command: SessionCommand,
) -> Result<(), Error> {
    match command {
        SessionCommand::List { vm_id } => {
            let mut sessions: Vec<Session> = client.get("sessions").await?;
            if let Some(vms) = vm_id {
                sessions.retain(|s| vms.0.contains(&s.vm_id));
            }
            show(output, &sessions, |sessions| grid(sessions))
        }
        SessionCommand::Kill { session_id, reason } => {
            let path = format!("sessions/{session_id}/kill");
            let report: ApplyReport = client.post(&path, &KillRequest { reason }).await?;
            applied(output, &report)
        }
    }
}

fn state(state: SessionState) -> &'static str {
    match state {
        SessionState::Starting => "starting",
        SessionState::Idle => "idle",
        SessionState::Waiting => "waiting",
        SessionState::Gathering => "gathering",
        SessionState::Running => "running",
        SessionState::Revoking => "revoking",
        SessionState::Ending => "ending",
    }
}

fn grid(sessions: &[Session]) -> Grid {
    let mut grid = Grid::new(&[
        "SESSION",
        "VM",
        "PROGRAM",
        "PID",
        "GPU",
        "STATE",
        "GPU TIME",
        "MEMORY",
        "QUEUE",
        "CALLS",
        "+BYTES",
        "+WAITS FOR",
        "+PEER",
        "+WORKER",
        "+SINCE",
    ]);
    for s in sessions {
        grid.row(vec![
            s.session_id.to_string(),
            s.vm_id.to_string(),
            s.program.clone(),
            s.guest_pid.to_string(),
            or_dash(s.gpu_id),
            state(s.state).into(),
            show_ns(s.gpu_ns),
            show_bytes(s.memory_bytes),
            show_count(s.queue_calls),
            show_count(s.calls),
            show_bytes(s.bytes),
            or_dash(s.waiting.map(super::vm::wait_reason)),
            s.peer.clone(),
            or_dash(s.worker_pid),
            show_time(s.since_unix_ms),
        ]);
    }
    grid
}
