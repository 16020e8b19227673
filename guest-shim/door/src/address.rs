//! The address of the host's daemon: `VGPU_ADDRESS`.

use std::ffi::OsStr;

use nix::unistd::{getegid, geteuid, getgid, getuid};
use vgpu_proto::limits::{SOCKET_PATH_LEN, VSOCK_PORT};

/// The CID of the host (`VMADDR_CID_HOST`).
const HOST_CID: u32 = 2;

/// Address of vgpud. The control connection and the data connection of a session both use this
/// address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// AF_VSOCK.
    Vsock {
        /// Context id.
        cid: u32,
        /// Port.
        port: u32,
    },
    /// Path of a Unix socket.
    Unix(String),
}

impl Default for Address {
    fn default() -> Address {
        Address::Vsock {
            cid: HOST_CID,
            port: VSOCK_PORT,
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
            Address::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// Whether the program was started with other rights than its caller's: setuid, setgid or with
/// capabilities. Where /proc does not say so, the users and groups decide.
#[must_use]
pub fn has_raised_rights() -> bool {
    // Pairs of words: a key of getauxval(3) and a value.
    let pairs = std::fs::read("/proc/self/auxv").unwrap_or_default();
    let word = |bytes: &[u8]| bytes.try_into().map(usize::from_ne_bytes).ok();
    let secure = pairs
        .chunks_exact(2 * size_of::<usize>())
        .map(|pair| pair.split_at(size_of::<usize>()))
        .find(|(key, _)| word(key) == Some(AT_SECURE))
        .and_then(|(_, value)| word(value));
    match secure {
        Some(secure) => secure != 0,
        None => getuid() != geteuid() || getgid() != getegid(),
    }
}

/// The key of the kernel's answer.
const AT_SECURE: usize = 23;

impl Address {
    /// The address in the environment, or the default. A program with the rights of another user
    /// than its caller's (setuid) does not follow the caller's environment.
    ///
    /// # Errors
    /// A sentence that shows the valid forms.
    pub fn from_environment() -> Result<Address, String> {
        match has_raised_rights() {
            true => Ok(Address::default()),
            false => Address::of(std::env::var_os("VGPU_ADDRESS").as_deref()),
        }
    }

    /// Parses the setting: no setting means the default; text that is not UTF-8 is an error.
    fn of(set: Option<&OsStr>) -> Result<Address, String> {
        match set.filter(|set| !set.is_empty()) {
            None => Ok(Address::default()),
            Some(set) => match set.to_str() {
                Some(text) => Address::parse(text),
                None => Err(wrong(&set.to_string_lossy())),
            },
        }
    }

    /// Parses `vsock:CID:PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// A sentence that shows the valid forms.
    pub fn parse(text: &str) -> Result<Address, String> {
        let wrong = || wrong(text);
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.len() {
                _ if !path.starts_with('/') => Err(wrong()),
                len if len > SOCKET_PATH_LEN => Err(format!(
                    "VGPU_ADDRESS names a path of {len} bytes, and a socket's has {SOCKET_PATH_LEN} at most: mount the VM's \
                     directory at a shorter one"
                )),
                _ => Ok(Address::Unix(path.to_owned())),
            };
        }
        let rest = text.strip_prefix("vsock:").ok_or_else(wrong)?;
        let (cid, port) = rest.split_once(':').ok_or_else(wrong)?;
        match (cid.parse(), port.parse()) {
            (Ok(cid), Ok(port)) => Ok(Address::Vsock { cid, port }),
            _ => Err(wrong()),
        }
    }
}

fn wrong(text: &str) -> String {
    format!(
        "VGPU_ADDRESS is `{text}`; write `vsock:CID:PORT` (default `{}`) or `unix:/path`",
        Address::default()
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::{Address, SOCKET_PATH_LEN};

    #[test]
    fn what_is_no_text_is_no_address() {
        let of = |bytes: &[u8]| Address::of(Some(OsStr::from_bytes(bytes)));
        let text = of(b"unix:/run/\xff").expect_err("no text");
        assert!(text.contains("vsock:CID:PORT"), "{text}");
        assert_eq!(of(b""), Ok(Address::default()));
        assert_eq!(of(b"unix:/run/x"), Ok(Address::Unix("/run/x".into())));
        assert_eq!(Address::of(None), Ok(Address::default()));
    }

    #[test]
    fn a_path_that_no_socket_has_is_told() {
        let longest = format!("unix:/{}", "a".repeat(SOCKET_PATH_LEN - 1));
        assert!(Address::parse(&longest).is_ok());
        let text = Address::parse(&(longest + "a")).expect_err("too long");
        assert!(text.contains("108 bytes"), "{text}");
    }

    #[test]
    fn forms() {
        assert_eq!(Address::parse("vsock:2:9440"), Ok(Address::default()));
        assert_eq!(
            Address::parse("unix:/run/x"),
            Ok(Address::Unix("/run/x".into()))
        );
        for wrong in [
            "",
            "vsock:2",
            "vsock:a:b",
            "unix:",
            "unix:vgpu.sock",
            "unix:@name",
            "tcp:1:2",
            "vsock:2:9440:1",
        ] {
            let text = Address::parse(wrong).expect_err(wrong);
            assert!(text.contains("vsock:CID:PORT"), "{text}");
        }
    }
}
