//! Answers to commands with `dry_run=true`: what the command would do. Nothing is changed.

use vgpu_api::{ApplyReport, ErrorCode, ErrorDetail, Session};

use super::report::{named, report};
use super::service::Admin;
use crate::store::command::refuse;
use crate::store::{Command, Outcome};

impl Admin {
    /// The outcome of a command that is not carried out.
    ///
    /// # Errors
    /// The refusal that the command would get.
    pub(super) async fn try_command(&self, command: Command) -> Result<ApplyReport, ErrorDetail> {
        let sessions = self.world().await.sessions();
        let drained = match &command {
            Command::DrainGpu { gpu } => self.sessions_on(gpu, &sessions)?,
            _ => Vec::new(),
        };
        let outcome = self.store().tried(command, sessions).await?;
        let mut report = report(outcome);
        if !drained.is_empty() {
            let names = named(&drained);
            report.message += &format!(" These sessions would go on until they end: {names}.");
        }
        Ok(report)
    }

    /// The open sessions that run on a GPU, or, for `all`, on any.
    fn sessions_on(&self, gpu: &str, sessions: &[Session]) -> Result<Vec<Session>, ErrorDetail> {
        let gpu_id = match gpu {
            Command::ALL_GPUS => None,
            gpu => Some(self.store().catalog().gpu(gpu)?.gpu_id),
        };
        let on = |s: &&Session| {
            gpu_id.is_none_or(|id| s.gpu_id == Some(id) || s.more_gpu_ids.contains(&id))
        };
        Ok(sessions.iter().filter(on).cloned().collect())
    }

    /// The effect of killing a session that is not killed.
    ///
    /// # Errors
    /// If the session is not open.
    pub(super) async fn try_kill(&self, session_id: u64) -> Result<ApplyReport, ErrorDetail> {
        let mut ends = self.world().await.sessions();
        ends.retain(|session| session.session_id == session_id);
        if ends.is_empty() {
            return Err(refuse(
                ErrorCode::SessionNotFound,
                format!("No session {session_id} is open."),
                "`vgpu-admin session list` shows those that are.",
            ));
        }
        Ok(report(Outcome {
            changed: true,
            message: format!("Session {session_id} is being ended."),
            ends,
            ..Outcome::default()
        }))
    }
}
