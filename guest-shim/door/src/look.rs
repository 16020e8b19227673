//! Looks: questions about this VM, which vgpud answers without opening a session.

use std::time::Duration;

use vgpu_proto::codec;
use vgpu_proto::limits::{MAX_DEVICES, MAX_TEXT};
use vgpu_proto::look::{Looked, LookedProcess, MAX_NAME, MAX_PROCESSES, question};
use vgpu_proto::text::printable;

use crate::address::Address;
use crate::socket::{Failure, Socket};

/// Time limit of a look whose result a user waits for.
pub const LIMIT: Duration = Duration::from_secs(5);

/// Asks vgpud about this VM. `limit` covers the whole exchange: connecting, sending and receiving.
///
/// # Errors
/// [`Failure`], if vgpud gives no valid answer within the limit.
pub fn look(address: &Address, limit: Duration) -> Result<Looked, Failure> {
    let socket = Socket::connect(address, limit)?;
    socket.send(&question())?;
    let body = socket.answer()?;
    let looked: Looked = codec::decode(&body).map_err(|e| socket.garbled(&e.to_string()))?;
    let many = |process: &LookedProcess| process.gpus.len() > MAX_DEVICES;
    if looked.gpus.len() > MAX_DEVICES
        || looked.processes.len() > MAX_PROCESSES
        || looked.processes.iter().any(many)
    {
        return Err(socket.garbled("it names too many devices or programs"));
    }
    Ok(shown(looked))
}

/// Removes control characters from the texts of an answer and limits their lengths, so that a
/// terminal can show the texts. Any program may listen at the address, so the texts are untrusted.
fn shown(mut looked: Looked) -> Looked {
    let Looked {
        daemon_version,
        driver_version,
        standing,
        gpus,
        processes,
        ..
    } = &mut looked;
    let mut names = vec![daemon_version, &mut standing.class];
    names.extend(driver_version);
    for gpu in gpus {
        names.extend([&mut gpu.uuid, &mut gpu.name]);
        names.extend(&mut gpu.pci_address);
    }
    names.extend(processes.iter_mut().map(|process| &mut process.program));
    for name in names {
        *name = printable(name, MAX_NAME);
    }
    let reason = standing.quarantine.as_mut().map(|q| &mut q.reason);
    for sentence in reason.into_iter().chain([&mut standing.summary]) {
        *sentence = printable(sentence, MAX_TEXT);
    }
    looked
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use vgpu_proto::handshake::{PREAMBLE_LEN, Refusal, ReplyPreamble, WELCOME_MAGIC};
    use vgpu_proto::look::{LookedGpu, LookedQuarantine, Standing};
    use zerocopy::IntoBytes;

    use super::*;

    /// The result of a look at a fake vgpud with this answer.
    fn answered(code: u32, body: &[u8], close: bool) -> Result<Looked, Failure> {
        let dir = std::env::temp_dir().join(format!(
            "vgpu-door-{}-{code}-{}",
            std::process::id(),
            body.len()
        ));
        let _ = std::fs::remove_file(&dir);
        let listener = UnixListener::bind(&dir).unwrap();
        let reply = ReplyPreamble {
            magic: WELCOME_MAGIC,
            code: code.into(),
            body_len: (body.len() as u32).into(),
        };
        let bytes = [reply.as_bytes(), body].concat();
        let door = std::thread::spawn(move || {
            let (mut guest, _) = listener.accept().unwrap();
            let mut asked = [0; PREAMBLE_LEN];
            guest.read_exact(&mut asked).unwrap();
            assert_eq!(asked, question());
            let _ = guest.write_all(&bytes[..bytes.len() - usize::from(close)]);
        });
        let looked = look(
            &Address::Unix(dir.display().to_string()),
            Duration::from_secs(30),
        );
        door.join().unwrap();
        let _ = std::fs::remove_file(&dir);
        looked
    }

    #[test]
    fn no_text_of_an_answer_drives_a_terminal() {
        let evil = || "\x1b]0;title\x07\r\n\u{9b}2J".repeat(1000);
        let told = Looked {
            daemon_version: evil(),
            driver_version: Some(evil()),
            standing: Standing {
                class: evil(),
                summary: evil(),
                quarantine: Some(LookedQuarantine {
                    reason: evil(),
                    left_ms: None,
                }),
                ..Standing::default()
            },
            gpus: vec![LookedGpu {
                uuid: evil(),
                name: evil(),
                pci_address: Some(evil()),
                ..LookedGpu::default()
            }],
            processes: vec![LookedProcess {
                program: evil(),
                ..LookedProcess::default()
            }],
            ..Looked::default()
        };
        let shown = format!("{:?}", shown(told));
        // Debug output writes control bytes as escapes.
        assert!(!shown.contains("\\u{") && !shown.contains("\\r"), "{shown}");
        assert!(!shown.contains("\\n"), "{shown}");
        assert!(shown.len() < 32 << 10, "{} bytes", shown.len());
        let refused = answered(Refusal::Busy as u32, b"\x1b[2Jno\n", false).unwrap_err();
        let said = refused.to_string();
        assert!(said.ends_with(": \u{fffd}[2Jno\u{fffd}"), "{said:?}");
    }

    #[test]
    fn an_answer_is_read_and_everything_else_is_an_error_with_a_sentence() {
        let told = Looked {
            vm_id: 3,
            cuda_version: Some(12_040),
            ..Looked::default()
        };
        let body = codec::encode(&told).unwrap();
        assert_eq!(answered(0, &body, false).unwrap(), told);
        let refused = answered(Refusal::Busy as u32, b"too many", false).unwrap_err();
        assert!(
            matches!(refused, Failure::Refused(Some(Refusal::Busy), _)),
            "{refused}"
        );
        assert!(refused.to_string().contains("too many"));
        assert!(matches!(
            answered(0, &body[1..], false),
            Err(Failure::Garbled(_))
        ));
        assert!(matches!(answered(0, &body, true), Err(Failure::Lost(_))));
        let nobody = look(
            &Address::Unix("/nonexistent/x".into()),
            Duration::from_secs(1),
        );
        assert!(matches!(nobody, Err(Failure::Nobody(text)) if text.contains("VGPU_ADDRESS")));
    }
}
