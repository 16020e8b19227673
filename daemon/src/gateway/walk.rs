//! One walk along the path of a VM's socket: each directory is held before the next part is looked up in it. Whoever
//! renames a directory, or puts a link in its place meanwhile, does not change where the walk leads.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, mkdirat};

/// Directories through which every VM goes to its own: nobody may list them.
const DIR_MODE: u32 = 0o711;

/// As many links are followed as Linux itself follows.
const MOST_LINKS: usize = 40;

/// A directory, or the way to one that is not there yet.
#[derive(Debug)]
pub(super) struct Way {
    /// The deepest directory that is there.
    dir: File,
    /// What is missing below it.
    missing: Vec<OsString>,
}

impl Way {
    /// Walks to a directory, and makes nothing. A link is followed only where nobody but root and vgpud's own user can
    /// have put it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotADirectory`]: a part of the path is none, or a link of somebody else;
    /// [`io::ErrorKind::NotFound`]: a link leads nowhere. Otherwise as of the file system.
    pub(super) fn to(path: &Path) -> io::Result<Way> {
        let root = || io::Result::Ok(File::from(nix::fcntl::open("/", FLAGS, Mode::empty())?));
        let parts = |path: &Path| path.iter().rev().map(OsStr::to_owned).collect::<Vec<_>>();
        let mut dir = root()?;
        let mut left = parts(path);
        let mut links = 0;
        // So much is left once the last link's own path is walked, and which link that is.
        let mut linked: Option<(usize, PathBuf)> = None;
        while let Some(part) = left.pop() {
            if part == "/" {
                dir = root()?;
                continue;
            }
            let next = match enter(&dir, &part) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if let Some((_, link)) = linked.filter(|(after, _)| left.len() >= *after) {
                        let what =
                            format!("{} is a symbolic link that leads nowhere", link.display());
                        return Err(io::Error::new(io::ErrorKind::NotFound, what));
                    }
                    left.push(part);
                    left.reverse();
                    if left.iter().any(|part| part == "..") {
                        return Err(error);
                    }
                    return Ok(Way { dir, missing: left });
                }
                other => other?,
            };
            let meta = next.metadata()?;
            if meta.is_symlink() {
                let link = itself(&dir).read_link()?.join(&part);
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::ELOOP.into());
                }
                trusted(&link, &meta, &dir.metadata()?)?;
                linked = Some((left.len(), link));
                left.extend(parts(Path::new(&readlinkat(&next, "")?)));
            } else if meta.is_dir() {
                dir = next;
            } else {
                return Err(io::ErrorKind::NotADirectory.into());
            }
        }
        Ok(Way {
            dir,
            missing: Vec::new(),
        })
    }

    /// Where the directory really is, or would be made.
    pub(super) fn real(&self) -> io::Result<PathBuf> {
        let mut real = itself(&self.dir).read_link()?;
        real.extend(&self.missing);
        Ok(real)
    }

    /// The directory.
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn there(self) -> io::Result<File> {
        match self.missing.first() {
            None => Ok(self.dir),
            Some(_) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The directory, made where it is missing, whatever the umask is.
    ///
    /// # Errors
    /// As of the file system.
    pub(super) fn make(self) -> io::Result<File> {
        let mut dir = self.dir;
        for part in &self.missing {
            let made = mkdirat(&dir, part.as_os_str(), Mode::from_bits_truncate(DIR_MODE));
            if !matches!(made, Ok(()) | Err(Errno::EEXIST)) {
                made?;
            }
            let next = enter(&dir, part)?;
            let meta = next.metadata()?;
            if !meta.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            // Somebody may have put another one in its place.
            if made.is_ok() && meta.uid() == nix::unistd::geteuid().as_raw() {
                std::fs::set_permissions(itself(&next), PermissionsExt::from_mode(DIR_MODE))?;
            }
            dir = next;
        }
        Ok(dir)
    }
}

const FLAGS: OFlag = OFlag::O_PATH
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Holds what is in a directory under a name, without opening it and without following a link.
pub(super) fn enter(dir: &File, name: &OsStr) -> io::Result<File> {
    Ok(openat(dir, name, FLAGS, Mode::empty())?.into())
}

/// A path to what is held, wherever that is by now.
pub(super) fn itself(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Whether nobody but root and vgpud's own user can have put a link where it is: one of a tenant leads vgpud wherever the
/// tenant likes, and a tenant may move a link of root to where it can write.
fn trusted(link: &Path, meta: &Metadata, holder: &Metadata) -> io::Result<()> {
    let us = nix::unistd::geteuid().as_raw();
    let foreign = |meta: &Metadata| ![0, us].contains(&meta.uid());
    let whose = if foreign(meta) {
        format!("of user {}", meta.uid())
    } else if foreign(holder) {
        format!("in a directory of user {}", holder.uid())
    } else if holder.mode() & 0o022 != 0 && holder.mode() & 0o1000 == 0 {
        "in a directory in which others than root may write".into()
    } else {
        return Ok(());
    };
    Err(io::Error::new(
        io::ErrorKind::NotADirectory,
        format!("{} is a symbolic link {whose}", link.display()),
    ))
}
