//! Drains: no new sessions on a GPU or on the host, and the wait until nothing runs.

use std::time::{Duration, Instant};

use vgpu_api::{ApplyReport, ErrorCode, ErrorDetail, Gpu, GpuState, Session, exit};
use vgpu_proto::text::counted;

use super::{applied, session};
use crate::cli::Waiting;
use crate::client::{Client, segment, tried};
use crate::error::Error;
use crate::output::Format;

/// Time between two looks at the sessions.
const LOOK: Duration = Duration::from_millis(500);

/// Shortest wait for the answer to the drain, whatever the timeout: vgpud writes the drain to the
/// disk.
const ANSWER_LEAST: Duration = Duration::from_secs(2);

/// Drains a GPU (by number or UUID), or, without a name, all, and returns the exit code.
pub(super) async fn run(
    client: &Client,
    output: Format,
    name: Option<&str>,
    waiting: Waiting,
    dry_run: bool,
) -> Result<u8, Error> {
    let begin = Instant::now();
    let path = format!("gpus/{}/drain", segment(name.unwrap_or("all")));
    let none = serde_json::json!({});
    let timeout = waiting.timeout.map(Duration::from_millis);
    let asked = client.with_timeout(timeout.map_or(Duration::MAX, |time| time.max(ANSWER_LEAST)));
    let report: ApplyReport = asked.post(&tried(path, dry_run), &none).await?;
    applied(output, &report)?;
    if !waiting.wait {
        return Ok(0);
    }
    let deadline = timeout.map(|time| begin + time);
    wait(client, name, deadline).await
}

/// Waits until nothing runs, with progress on standard error.
async fn wait(client: &Client, name: Option<&str>, deadline: Option<Instant>) -> Result<u8, Error> {
    let mut told: Option<Vec<u64>> = None;
    loop {
        let all: Option<Vec<Gpu>> = in_time(client, "gpus", deadline).await?;
        let sessions: Option<Vec<Session>> = in_time(client, "sessions", deadline).await?;
        let (Some(all), Some(mut sessions)) = (all, sessions) else {
            eprintln!("vgpu-admin: vgpud did not answer until the timeout. The drain goes on.");
            return Ok(exit::TIMED_OUT);
        };
        let drained = drained(&all, name)?;
        sessions.retain(|s| {
            let on = |id: &u32| s.gpu_id == Some(*id) || s.more_gpu_ids.contains(id);
            name.is_none() || drained.iter().any(on)
        });
        let left = session::named(&sessions);
        if sessions.is_empty() {
            eprintln!("vgpu-admin: Nothing runs any more.");
            return Ok(0);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let still = match sessions.len() {
                1 => "this session still runs",
                _ => "these sessions still run",
            };
            eprintln!("vgpu-admin: At the timeout {still}: {left}. The drain goes on.");
            return Ok(exit::TIMED_OUT);
        }
        let ids: Vec<u64> = sessions.iter().map(|s| s.session_id).collect();
        if told.as_ref() != Some(&ids) {
            let number = counted(sessions.len(), "session");
            eprintln!("vgpu-admin: Waiting for {number}: {left}.");
            told = Some(ids);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The answer to a request that survives restarts of vgpud; `None` at the deadline.
async fn in_time<T: serde::de::DeserializeOwned>(
    client: &Client,
    path: &str,
    deadline: Option<Instant>,
) -> Result<Option<T>, Error> {
    let answer = client.get_through_restarts(path);
    let Some(deadline) = deadline else {
        return answer.await.map(Some);
    };
    // A last look is made even if the deadline is over.
    let deadline = deadline.max(Instant::now() + LOOK);
    match tokio::time::timeout_at(deadline.into(), answer).await {
        Ok(answer) => answer.map(Some),
        Err(_) => Ok(None),
    }
}

/// The numbers of the GPUs of the drain. An error if one of them takes new work again.
fn drained(all: &[Gpu], name: Option<&str>) -> Result<Vec<u32>, Error> {
    let named = |gpu: &&Gpu| {
        name.is_none_or(|name| match name.parse::<u32>() {
            Ok(id) => gpu.gpu_id == id,
            Err(_) => gpu.uuid.eq_ignore_ascii_case(name),
        })
    };
    let gpus: Vec<&Gpu> = all.iter().filter(named).collect();
    match gpus.iter().find(|gpu| gpu.state == GpuState::Ready) {
        None => Ok(gpus.iter().map(|gpu| gpu.gpu_id).collect()),
        Some(gpu) => Err(Error::Api(ErrorDetail {
            code: ErrorCode::GpuUnusable,
            message: format!(
                "GPU {} takes new work again: somebody resumed it, or it was added.",
                gpu.gpu_id
            ),
            hint: Some("`vgpu-admin audit` says who; drain it again if that is wanted.".into()),
        })),
    }
}
