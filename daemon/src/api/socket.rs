//! The admin API's Unix socket. It is created without access for others, and then opened to two
//! groups.

use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{XattrFlags, setxattr};

use crate::system;
use crate::system::guarded::Listener;

/// Binds the socket. At no time can anybody connect but root, vgpud's own user and members of these
/// groups.
pub(super) fn bind(socket: &Path, groups: &[u32]) -> Result<Listener, String> {
    let text = |error: io::Error| format!("{error}.");
    if let Some(dir) = socket.parent() {
        std::fs::create_dir_all(dir).map_err(text)?;
    }
    system::remove_socket(socket, false).map_err(text)?;
    vgpu_api::check_socket_path(socket).map_err(text)?;
    // The socket is bound under another name with mode 0600, and renamed after it has its groups
    // and its mode. The other name has 4 bytes, at most 3 more than the path.
    let new = socket.with_file_name(".new");
    let _ = std::fs::remove_file(&new);
    let listener = system::bind_closed(&new)
        .map_err(|error| format!("{error}. Its directory must exist and be writable."))?;
    if let Some(first) = groups.first()
        && let Err(error) = chown(&new, None, Some(*first))
    {
        tracing::warn!(%error, gid = first, "the admin socket cannot be given to its group");
    }
    std::fs::set_permissions(&new, PermissionsExt::from_mode(0o660)).map_err(text)?;
    if let [_, further @ ..] = groups
        && !further.is_empty()
        && let Err(error) = let_in(&new, further)
    {
        tracing::warn!(
            %error,
            "the admin socket's file system has no access lists: who may change things must be a \
             member of admin.read_group too, to reach it"
        );
    }
    std::fs::rename(&new, socket).map_err(text)?;
    Listener::new(listener, Arc::default()).map_err(text)
}

/// Gives groups read and write access to a file of mode 0660 (acl(5); linux/posix_acl_xattr.h
/// defines the layout of the attribute).
fn let_in(file: &Path, groups: &[u32]) -> io::Result<()> {
    const VERSION: u32 = 2;
    const OWNER: u16 = 0x01;
    const OWNING_GROUP: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHERS: u16 = 0x20;
    const READ_WRITE: u16 = 6;
    /// The id in entries without a user or group.
    const NO_ID: u32 = u32::MAX;
    let mut entries = vec![
        (OWNER, READ_WRITE, NO_ID),
        (OWNING_GROUP, READ_WRITE, NO_ID),
    ];
    let mut groups = groups.to_vec();
    groups.sort_unstable();
    entries.extend(groups.into_iter().map(|gid| (GROUP, READ_WRITE, gid)));
    entries.extend([(MASK, READ_WRITE, NO_ID), (OTHERS, 0, NO_ID)]);
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, allowed, id) in entries {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&allowed.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    Ok(setxattr(file, ACCESS_LIST, &list, XattrFlags::empty())?)
}

/// The extended attribute of a file's access list.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Whether a file has an access list in addition to its mode.
pub(super) fn has_access_list(file: &Path) -> bool {
    rustix::fs::getxattr_query(file, ACCESS_LIST).is_ok_and(|length| length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_for_two_groups_has_an_access_list() {
        let dir = tempfile::tempdir().unwrap();
        let own = nix::unistd::getegid().as_raw();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let _one = bind(&one, &[own]).unwrap();
        assert!(!has_access_list(&one));
        if let_in(&one, &[own + 1]).is_err() {
            eprintln!("SKIPPED: no access lists in {}", dir.path().display());
            return;
        }
        let _two = bind(&two, &[own, own + 1]).unwrap();
        assert!(has_access_list(&two));
    }
}
