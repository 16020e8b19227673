//! Opens a session: control connection, handshake, data connection.

use std::os::fd::RawFd;
use std::time::Duration;

use vgpu_cuda_abi::CuResult;
use vgpu_door::{Address, Failure, Socket};
use vgpu_proto::call::FINGERPRINT;
use vgpu_proto::codec;
use vgpu_proto::cuda::OFFERED_CUDA_VERSION;
use vgpu_proto::handshake::{DATA_MAGIC, HELLO_MAGIC, Hello, PROTOCOL, Preamble, Refusal, Welcome};
use vgpu_proto::limits::MAX_DEVICES;
use zerocopy::IntoBytes as _;

use crate::sys;

/// Time limit of the host's answer: the host starts a worker, and the driver may take seconds.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(60);

/// The reason for which there is no session.
#[derive(Debug)]
pub(crate) struct NoSession {
    /// The result of cuInit.
    pub(crate) code: CuResult,
    /// Sentence for standard error.
    pub(crate) text: String,
}

impl From<Failure> for NoSession {
    fn from(failure: Failure) -> NoSession {
        let code = match &failure {
            Failure::Nobody(_) | Failure::Lost(_) => CuResult::DEVICE_UNAVAILABLE,
            Failure::Lacking(_) => CuResult::OPERATING_SYSTEM,
            Failure::Garbled(_) => CuResult::SYSTEM_DRIVER_MISMATCH,
            Failure::Refused(refusal, _) => {
                refusal.map_or(CuResult::OPERATING_SYSTEM, Refusal::cu_result)
            }
        };
        NoSession {
            code,
            text: failure.to_string(),
        }
    }
}

/// The connections of a session, and the daemon's answer.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Control connection, to vgpud.
    pub(crate) control: RawFd,
    /// Data connection, to the worker.
    pub(crate) data: RawFd,
    /// The daemon's answer.
    pub(crate) welcome: Welcome,
}

/// Opens a session at `address`.
///
/// # Errors
/// [`NoSession`]: a refusal with the daemon's sentence, or CUDA_ERROR_DEVICE_UNAVAILABLE if nothing
/// answers.
pub(crate) fn open(address: &Address) -> Result<Opened, NoSession> {
    let control = Socket::connect(address, HANDSHAKE_LIMIT)?;
    let welcome = greet(&control)?;
    let data = Socket::connect(address, HANDSHAKE_LIMIT)?;
    data.send(&[&DATA_MAGIC[..], &welcome.nonce].concat())?;
    let data = data.into_raw()?;
    let control = control.into_raw().inspect_err(|_| sys::close(data))?;
    Ok(Opened {
        control,
        data,
        welcome,
    })
}

fn greet(control: &Socket<'_>) -> Result<Welcome, NoSession> {
    let body = codec::encode(&hello()).map_err(|e| NoSession {
        code: CuResult::OPERATING_SYSTEM,
        text: e.to_string(),
    })?;
    let preamble = Preamble {
        magic: HELLO_MAGIC,
        protocol: PROTOCOL.into(),
        body_len: (body.len() as u32).into(),
        fingerprint: FINGERPRINT.into(),
    };
    control.send(&[preamble.as_bytes(), &body].concat())?;
    let body = control.answer()?;
    let welcome: Welcome = codec::decode(&body).map_err(|e| control.garbled(&e.to_string()))?;
    if welcome.devices.len() > MAX_DEVICES {
        return Err(control.garbled("it offers too many devices").into());
    }
    Ok(welcome)
}

fn hello() -> Hello {
    let program = std::env::current_exe()
        .ok()
        .and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "unknown".to_owned());
    Hello {
        shim_version: env!("CARGO_PKG_VERSION").to_owned(),
        cuda_version: OFFERED_CUDA_VERSION,
        pid: std::process::id(),
        program: program.chars().take(256).collect(),
    }
}
