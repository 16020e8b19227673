//! Failures of a command and their exit codes.

use vgpu_api::{ErrorDetail, exit};

/// The cause of a failed command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The daemon refused the request.
    #[error("{0}")]
    Api(ErrorDetail),
    /// The daemon's socket does not answer.
    #[error("Cannot reach vgpud at {socket}: {cause}.")]
    Unreachable {
        socket: String,
        cause: std::io::Error,
    },
    /// The daemon's answer could not be parsed.
    #[error(
        "vgpud's answer cannot be parsed: {0}. vgpu-admin and vgpud must be of the same version."
    )]
    Protocol(String),
    /// The daemon closed the connection instead of answering.
    #[error(
        "vgpud closed the connection without an answer: it has too many admin connections \
         (admin.max_connections), or is stopping."
    )]
    HungUp,
    /// The daemon's answer was incomplete.
    #[error("vgpud's answer is incomplete, because the connection ended; try again")]
    CutOff,
    /// Options do not fit the command, for instance `--name` for an import of several VMs, or the
    /// input is wrong.
    #[error("{0}")]
    Usage(String),
    /// A hypervisor or its files cannot be read.
    #[error("{0}")]
    Source(String),
    /// A file of the caller cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// `read` or `write`.
        action: &'static str,
        path: String,
        source: std::io::Error,
    },
    /// Writing to standard output failed.
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
}

impl Error {
    /// The documented exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::Api(detail) => detail.code.exit_code(),
            Error::Unreachable { cause, .. } if permission(cause) => exit::NOT_PERMITTED,
            Error::Unreachable { .. } | Error::HungUp => exit::UNREACHABLE,
            Error::Usage(_) => exit::USAGE,
            Error::Protocol(_)
            | Error::CutOff
            | Error::Source(_)
            | Error::File { .. }
            | Error::Output(_) => exit::FAILED,
        }
    }

    /// Whether no vgpud answers, for another reason than a missing permission.
    pub(crate) fn is_not_running(&self) -> bool {
        matches!(self, Error::Unreachable { cause, .. } if !permission(cause))
    }

    /// The remedy, if there is one.
    fn hint(&self) -> Option<&str> {
        match self {
            Error::Unreachable { cause, .. } if permission(cause) => Some(
                "Run it as root, or as a member of group vgpu (to look) or vgpu-admin (to change).",
            ),
            Error::Unreachable { .. } => Some(
                "Is the daemon running? `systemctl status vgpud`, or name its socket with --socket.",
            ),
            Error::HungUp => Some("Try again in a few seconds."),
            _ => None,
        }
    }

    /// Prints the error to standard error, as JSON if the output format is JSON.
    pub(crate) fn print(&self, json: bool) {
        // A closed pipe is the normal end of `vgpu-admin … | head`, where nobody reads a message.
        if matches!(self, Error::Output(e) if e.kind() == std::io::ErrorKind::BrokenPipe) {
            return;
        }
        if json {
            let (code, message, hint) = match self {
                Error::Api(d) => (
                    serde_json::json!(d.code),
                    d.message.clone(),
                    d.hint.as_deref(),
                ),
                Error::Unreachable { .. } => ("unreachable".into(), self.to_string(), self.hint()),
                Error::HungUp => ("unreachable".into(), self.to_string(), self.hint()),
                Error::Protocol(_) => ("protocol".into(), self.to_string(), None),
                Error::CutOff => ("cut_off".into(), self.to_string(), None),
                Error::Usage(_) => ("usage".into(), self.to_string(), None),
                Error::Source(_) => ("source".into(), self.to_string(), None),
                Error::File { .. } => ("file".into(), self.to_string(), None),
                Error::Output(_) => ("output".into(), self.to_string(), None),
            };
            eprintln!(
                "{}",
                serde_json::json!({"error": {"code": code, "message": message, "hint": hint}})
            );
        } else {
            eprintln!("vgpu-admin: {self}");
            if let Some(hint) = self.hint() {
                eprintln!("{hint}");
            }
        }
    }
}

fn permission(e: &std::io::Error) -> bool {
    e.kind() == std::io::ErrorKind::PermissionDenied
}
