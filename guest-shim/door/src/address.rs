//! Where the host's daemon listens: `VGPU_ADDRESS`.

use vgpu_proto::limits::VSOCK_PORT;

/// The host, as vsock numbers it (`VMADDR_CID_HOST`).
const HOST_CID: u32 = 2;

/// One address, the same for both connections of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// AF_VSOCK.
    Vsock {
        /// Context id.
        cid: u32,
        /// Port.
        port: u32,
    },
    /// A Unix socket's path.
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

impl Address {
    /// The address in the environment, or the default.
    ///
    /// # Errors
    /// A sentence that shows the forms.
    pub fn from_environment() -> Result<Address, String> {
        match std::env::var("VGPU_ADDRESS") {
            Ok(text) if !text.is_empty() => Address::parse(&text),
            _ => Ok(Address::default()),
        }
    }

    /// Reads `vsock:CID:PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// A sentence that shows the forms.
    pub fn parse(text: &str) -> Result<Address, String> {
        let wrong = || {
            format!(
                "VGPU_ADDRESS is `{text}`; write `vsock:CID:PORT` (default `{}`) or `unix:/path`",
                Address::default()
            )
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err(wrong())
            } else {
                Ok(Address::Unix(path.to_owned()))
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

#[cfg(test)]
mod tests {
    use super::Address;

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
            "tcp:1:2",
            "vsock:2:9440:1",
        ] {
            let text = Address::parse(wrong).expect_err(wrong);
            assert!(text.contains("vsock:CID:PORT"), "{text}");
        }
    }
}
