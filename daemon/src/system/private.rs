//! A temporary directory in which vgpud creates a file that must appear at its path only when
//! complete.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::{RenameFlags, renameat, renameat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::held::{Id, enter, itself};
use super::is_served;

const PREFIX: &str = ".vgpud-";

/// Most names of a directory that are checked for leftovers: a tenant may fill its directory with
/// files.
const MOST_NAMES: usize = 10_000;

/// Names of the temporary directories that this process uses now.
static IN_USE: Mutex<Option<HashSet<OsString>>> = Mutex::new(None);

fn in_use() -> MutexGuard<'static, Option<HashSet<OsString>>> {
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random() -> io::Result<String> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(random)))
}

/// A name with a random part, which nobody can predict.
pub(crate) fn unknown(prefix: &str) -> io::Result<OsString> {
    Ok(format!("{prefix}{}", random()?).into())
}

/// A temporary directory that only vgpud may enter, for one new file. The owner of the surrounding
/// directory cannot replace the file before it is complete.
pub(crate) struct Private<'a> {
    dir: File,
    around: &'a File,
    name: OsString,
    new: OsString,
    /// Identity and kind of the file or directory under the name `new`, until it is moved to its
    /// place.
    made: Option<(Id, UnlinkatFlags)>,
}

impl Private<'_> {
    pub(crate) fn new(around: &File) -> io::Result<Private<'_>> {
        let (name, new) = (unknown(PREFIX)?, unknown("")?);
        in_use().get_or_insert_default().insert(name.clone());
        let made = mkdirat(around, name.as_os_str(), Mode::S_IRWXU);
        let entered = made
            .map_err(io::Error::from)
            .and_then(|()| enter(around, &name))
            .and_then(|dir| match is_ours(&dir)? {
                true => Ok(dir),
                false => Err(something_else()),
            });
        let dir = entered.inspect_err(|_| forget(&name))?;
        Ok(Private {
            dir,
            around,
            name,
            new,
            made: None,
        })
    }

    /// The path at which to create the new file.
    pub(crate) fn path(&self) -> PathBuf {
        itself(&self.dir).join(&self.new)
    }

    /// The new socket file. Called after the socket is bound.
    pub(crate) fn socket(&mut self) -> io::Result<File> {
        let file = enter(&self.dir, &self.new)?;
        let meta = file.metadata()?;
        if !meta.file_type().is_socket() {
            return Err(something_else());
        }
        self.made = Some((Id::of(&meta), UnlinkatFlags::NoRemoveDir));
        Ok(file)
    }

    /// Creates a directory with this mode, independent of the umask.
    pub(crate) fn directory(&mut self, mode: u32) -> io::Result<File> {
        mkdirat(&self.dir, self.new.as_os_str(), Mode::S_IRWXU)?;
        let dir = enter(&self.dir, &self.new)?;
        let meta = dir.metadata()?;
        if !meta.is_dir() {
            return Err(something_else());
        }
        self.made = Some((Id::of(&meta), UnlinkatFlags::RemoveDir));
        std::fs::set_permissions(itself(&dir), PermissionsExt::from_mode(mode))?;
        Ok(dir)
    }

    /// Moves the new file to its place. Replaces a file there.
    pub(crate) fn replace(mut self, name: &OsStr) -> io::Result<()> {
        renameat(&self.dir, self.new.as_os_str(), self.around, name)?;
        self.made = None;
        Ok(())
    }

    /// Moves the new file to its place, if there is no file.
    ///
    /// # Errors
    /// `EEXIST`: there is a file. `EINVAL`: the file system cannot rename without replacing.
    /// Otherwise the error of the file system.
    pub(crate) fn place(mut self, name: &OsStr) -> nix::Result<()> {
        let flags = RenameFlags::RENAME_NOREPLACE;
        renameat2(&self.dir, self.new.as_os_str(), self.around, name, flags)?;
        self.made = None;
        Ok(())
    }
}

impl Drop for Private<'_> {
    fn drop(&mut self) {
        if let Some((id, flags)) = self.made
            && Id::at(&self.dir, &self.new).is_ok_and(|found| found == id)
        {
            let _ = unlinkat(&self.dir, self.new.as_os_str(), flags);
        }
        let _ = unlinkat(self.around, self.name.as_os_str(), UnlinkatFlags::RemoveDir);
        forget(&self.name);
    }
}

fn forget(name: &OsStr) {
    if let Some(names) = &mut *in_use() {
        names.remove(name);
    }
}

fn something_else() -> io::Error {
    io::Error::other("something else was put there")
}

fn is_ours(dir: &File) -> io::Result<bool> {
    let meta = dir.metadata()?;
    let us = nix::unistd::geteuid().as_raw();
    Ok(meta.is_dir() && meta.uid() == us && meta.mode() & 0o7777 == 0o700)
}

/// Removes temporary directories of a killed vgpud from a directory, if they are empty or contain
/// only their one new file.
pub(crate) fn tidy(around: &File) {
    let Ok(names) = std::fs::read_dir(itself(around)) else {
        return;
    };
    for name in names.take(MOST_NAMES).flatten() {
        let name = name.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let ours = digits.is_some_and(|digits| {
            digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        });
        let used = || in_use().as_ref().is_some_and(|names| names.contains(&name));
        if ours && !used() {
            // A directory that cannot be removed is harmless.
            let _ = remove(around, &name);
        }
    }
}

fn remove(around: &File, name: &OsStr) -> io::Result<()> {
    let dir = enter(around, name)?;
    if !is_ours(&dir)? {
        return Ok(());
    }
    let mut inside = std::fs::read_dir(itself(&dir))?;
    if let Some(left) = inside.next() {
        let left = left?.file_name();
        let file = enter(&dir, &left)?;
        let kind = file.metadata()?.file_type();
        let flags = match kind.is_dir() {
            true => UnlinkatFlags::RemoveDir,
            false => UnlinkatFlags::NoRemoveDir,
        };
        let dead = kind.is_socket() && !is_served(&itself(&file))?;
        if inside.next().is_some() || !(dead || kind.is_dir()) {
            return Ok(());
        }
        unlinkat(&dir, left.as_os_str(), flags)?;
    }
    Ok(unlinkat(around, name, UnlinkatFlags::RemoveDir)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn held(path: &Path) -> File {
        enter(
            &File::open(path.parent().unwrap()).unwrap(),
            path.file_name().unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn what_a_killed_vgpud_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mode = |name: &str, mode: u32| {
            let mode = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(at(name), mode).unwrap();
        };
        let (empty, dead, nested) = (
            ".vgpud-0000000000000001",
            ".vgpud-0000000000000002",
            ".vgpud-0000000000000003",
        );
        let (open, full, served, other) = (
            ".vgpud-0000000000000004",
            ".vgpud-0000000000000005",
            ".vgpud-0000000000000006",
            ".vgpud-7",
        );
        for name in [empty, dead, nested, open, full, served, other] {
            std::fs::create_dir(at(name)).unwrap();
            mode(name, 0o700);
        }
        mode(open, 0o711);
        let bind = |name: &str| std::os::unix::net::UnixListener::bind(at(name).join("s")).unwrap();
        drop(bind(dead));
        std::fs::create_dir(at(nested).join("new")).unwrap();
        std::fs::write(at(full).join("file"), "").unwrap();
        let _served = bind(served);
        let around = held(dir.path());
        let live = Private::new(&around).unwrap();
        tidy(&around);
        for gone in [empty, dead, nested] {
            assert!(!at(gone).exists(), "{gone}");
        }
        for kept in [open, full, served, other] {
            assert!(at(kept).exists(), "{kept}");
        }
        assert!(at(live.name.to_str().unwrap()).exists());
        drop(live);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
    }

    #[test]
    fn only_what_was_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let around = held(dir.path());
        let mut private = Private::new(&around).unwrap();
        let _bound = crate::system::bind_closed(&private.path()).unwrap();
        private.socket().unwrap();
        let inside = dir.path().join(&private.name).join(&private.new);
        std::fs::rename(&inside, dir.path().join("away")).unwrap();
        std::fs::write(&inside, "another's").unwrap();
        drop(private);
        assert!(inside.exists() && dir.path().join("away").exists());
    }
}
