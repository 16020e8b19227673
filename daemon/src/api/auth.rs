//! Callers of the API, and their rights.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use axum::http::{HeaderMap, header};
use vgpu_api::ErrorCode;

use super::failure::Failure;
use super::peer::PeerIdentity;
use super::places::Holder;
use crate::config;
use crate::store::AuditActor;
use crate::system;

/// Shortest token, in bytes.
const TOKEN_LEN: usize = 32;
/// Largest token file, in bytes.
const TOKEN_FILE_LEN: u64 = 64 * 1024;

/// Rights of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    /// No rights.
    None,
    /// The caller may read.
    Read,
    /// The caller may read and change.
    Write,
}

/// A caller of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    /// `uid:<n>` or `token:<name>`: for the audit trail and the rate limit.
    pub(super) name: String,
    pub(super) pid: Option<u32>,
    pub(super) access: Access,
}

impl Caller {
    pub(super) fn actor(&self) -> AuditActor {
        AuditActor {
            name: self.name.clone(),
            pid: self.pid,
        }
    }
}

/// Origin of a connection.
#[derive(Debug, Clone)]
pub(super) enum Transport {
    /// The Unix socket, with this caller.
    Unix(Caller),
    /// TCP: each request carries a token.
    Tcp,
}

/// Rights of groups and tokens.
#[derive(Debug, Default)]
pub(super) struct Gatekeeper {
    own_uid: u32,
    read_gid: Option<u32>,
    write_gid: Option<u32>,
    tokens: Vec<Token>,
}

#[derive(Debug, Clone)]
struct Token {
    name: String,
    access: Access,
    secret: Secret,
}

/// A token, which `Debug` does not print.
#[derive(Clone)]
struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl Gatekeeper {
    /// Looks up groups and reads tokens.
    ///
    /// # Errors
    /// A sentence about the token file. A group that does not exist is no error: nobody is a
    /// member.
    pub(super) fn new(admin: &config::Admin) -> Result<Self, String> {
        let tokens = match &admin.tcp_token_file {
            Some(file) => read_tokens(file)?,
            None => Vec::new(),
        };
        Ok(Self {
            own_uid: nix::unistd::geteuid().as_raw(),
            read_gid: system::group(&admin.read_group),
            write_gid: system::group(&admin.write_group),
            tokens,
        })
    }

    /// The groups whose members may connect to the socket. The socket belongs to the first group.
    pub(super) fn groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = self.read_gid.into_iter().chain(self.write_gid).collect();
        groups.dedup();
        groups
    }

    /// Returns the holder under which the connections of a caller on the Unix socket are counted.
    pub(super) fn holder(&self, peer: &PeerIdentity) -> Holder {
        if peer.uid == 0 || peer.uid == self.own_uid {
            Holder::Root
        } else {
            Holder::User(peer.uid)
        }
    }

    /// Identifies a caller on the Unix socket.
    pub(super) fn unix(&self, peer: &PeerIdentity) -> Caller {
        let member = |gid: Option<u32>| gid.is_some_and(|gid| peer.gids.contains(&gid));
        let access = if peer.uid == 0 || peer.uid == self.own_uid || member(self.write_gid) {
            Access::Write
        } else if member(self.read_gid) {
            Access::Read
        } else {
            Access::None
        };
        Caller {
            name: format!("uid:{}", peer.uid),
            pid: peer.pid,
            access,
        }
    }

    /// Identifies a caller by the token of a request.
    pub(super) fn token(&self, headers: &HeaderMap) -> Result<Caller, Failure> {
        let value = headers
            .get(header::AUTHORIZATION)
            .map(|value| value.as_bytes());
        let presented = value.and_then(|value| value.strip_prefix(b"Bearer "));
        let Some(presented) = presented else {
            return Err(Failure::new(
                ErrorCode::Unauthenticated,
                "This address needs a token.",
                "Send it as `Authorization: Bearer <token>`.",
            ));
        };
        // All tokens are compared, so that the time does not reveal a near match.
        let mut found = None;
        for token in &self.tokens {
            if same(&token.secret.0, presented) {
                found = Some(token);
            }
        }
        found
            .map(|token| Caller {
                name: format!("token:{}", token.name),
                pid: None,
                access: token.access,
            })
            .ok_or_else(|| {
                Failure::new(
                    ErrorCode::Unauthenticated,
                    "The token is not known.",
                    "It must be in the file that admin.tcp_token_file names; reload vgpud after \
                     changing it.",
                )
            })
    }
}

/// Compares all bytes, so that the duration does not reveal the position of a difference.
fn same(a: &[u8], b: &[u8]) -> bool {
    let different = a.iter().zip(b).fold(0, |bits, (x, y)| bits | (x ^ y));
    a.len() == b.len() && std::hint::black_box(different) == 0
}

fn read_tokens(file: &Path) -> Result<Vec<Token>, String> {
    let fail = |what: String| format!("The token file {} {what}", file.display());
    let mut handle = File::open(file).map_err(|error| fail(format!("cannot be read: {error}.")))?;
    let metadata = handle
        .metadata()
        .map_err(|error| fail(format!("cannot be examined: {error}.")))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(fail("is open to other users: `chmod 600` it.".into()));
    }
    let mut text = String::new();
    (&mut handle)
        .take(TOKEN_FILE_LEN)
        .read_to_string(&mut text)
        .map_err(|error| fail(format!("cannot be read: {error}.")))?;
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let token = parse_token(line)
            .map_err(|problem| fail(format!("is wrong in line {}: {problem}", index + 1)))?;
        tokens.push(token);
    }
    Ok(tokens)
}

/// The error quotes no part of the line, so that no secret gets into a log.
fn parse_token(line: &str) -> Result<Token, String> {
    let parts: Vec<&str> = line.split_whitespace().collect();
    let [name, access, secret] = parts[..] else {
        return Err("write `<name> <read|write> <token>`.".into());
    };
    let access = match access {
        "read" => Access::Read,
        "write" => Access::Write,
        _ => return Err("the second word must be `read` or `write`.".into()),
    };
    crate::rules::name("token", name).map_err(|_| "the name is not allowed.".to_owned())?;
    if secret.len() < TOKEN_LEN {
        return Err(format!("the token is shorter than {TOKEN_LEN} characters."));
    }
    Ok(Token {
        name: name.into(),
        access,
        secret: Secret(secret.as_bytes().to_vec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper() -> Gatekeeper {
        Gatekeeper {
            own_uid: 500,
            read_gid: Some(10),
            write_gid: Some(11),
            tokens: Vec::new(),
        }
    }

    fn peer(uid: u32, gids: &[u32]) -> PeerIdentity {
        PeerIdentity {
            uid,
            pid: Some(1),
            gids: gids.to_vec(),
        }
    }

    #[test]
    fn groups_decide() {
        assert_eq!(keeper().unix(&peer(0, &[])).access, Access::Write);
        assert_eq!(
            keeper().unix(&peer(500, &[])).access,
            Access::Write,
            "the daemon's own uid"
        );
        assert_eq!(keeper().unix(&peer(7, &[1, 11])).access, Access::Write);
        assert_eq!(keeper().unix(&peer(7, &[10])).access, Access::Read);
        assert_eq!(keeper().unix(&peer(7, &[1])).access, Access::None);
        let nobody = Gatekeeper {
            read_gid: None,
            write_gid: None,
            ..keeper()
        };
        assert_eq!(
            nobody.unix(&peer(7, &[10, 11])).access,
            Access::None,
            "groups do not exist"
        );
    }

    #[test]
    fn the_token_file_is_strict_and_its_secrets_stay_secret() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        let secret = "s".repeat(40);
        std::fs::write(&file, format!("# c\n\npanel read {secret}\n")).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(read_tokens(&file).unwrap_err().contains("chmod 600"));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let tokens = read_tokens(&file).unwrap();
        assert_eq!(
            (tokens[0].name.as_str(), tokens[0].access),
            ("panel", Access::Read)
        );
        assert!(!format!("{tokens:?}").contains(&secret));
        for bad in [
            "a read short",
            "only two",
            "a admin ssssssssssssssssssssssssssssssssssssss",
        ] {
            std::fs::write(&file, bad).unwrap();
            let error = read_tokens(&file).unwrap_err();
            assert!(
                error.contains("line 1") && !error.contains("ssss"),
                "{error}"
            );
        }

        let keeper = Gatekeeper { tokens, ..keeper() };
        let mut headers = HeaderMap::new();
        assert!(keeper.token(&headers).is_err());
        headers.insert(
            header::AUTHORIZATION,
            format!("Bearer {secret}").parse().unwrap(),
        );
        assert_eq!(keeper.token(&headers).unwrap().name, "token:panel");
        headers.insert(
            header::AUTHORIZATION,
            format!("Bearer {secret}x").parse().unwrap(),
        );
        assert!(keeper.token(&headers).is_err());
        headers.insert(header::AUTHORIZATION, "Bearer ".parse().unwrap());
        assert!(keeper.token(&headers).is_err());
    }
}
