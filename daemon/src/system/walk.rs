//! The walk to the directory of a VM's socket: each directory is held before the next part is
//! looked up in it, and a link that a tenant may have put there is refused. Whoever renames a
//! directory, or puts a link in its place meanwhile, does not change where the walk leads.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, mkdirat};

use super::private::Private;

/// Directories through which every VM goes to its own: nobody may list them.
pub(crate) const DIR_MODE: u32 = 0o711;

/// As many links are followed as Linux itself follows.
const MOST_LINKS: usize = 40;

/// Which file something is. While that file is held, no other one is that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    device: u64,
    inode: u64,
}

impl Id {
    pub(crate) fn of(meta: &Metadata) -> Id {
        Id {
            device: meta.dev(),
            inode: meta.ino(),
        }
    }

    /// What is in a directory under a name.
    pub(crate) fn at(dir: &File, name: &OsStr) -> io::Result<Id> {
        Ok(Id::of(&enter(dir, name)?.metadata()?))
    }
}

/// A directory, or the way to one that is not there yet.
#[derive(Debug)]
pub(crate) struct Way {
    /// The deepest directory that is there.
    dir: File,
    /// What is missing below it.
    missing: Vec<OsString>,
}

impl Way {
    /// Walks to a directory, and makes nothing. A link is followed only where nobody but root and
    /// vgpud's own user can have put it: not where such a user, or everybody, may write to a
    /// directory through which the walk came.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotADirectory`]: a part of the path is none, or a link of somebody else;
    /// [`io::ErrorKind::NotFound`]: a link leads nowhere. Otherwise as of the file system.
    pub(crate) fn to(path: &Path) -> io::Result<Way> {
        let root = || io::Result::Ok(File::from(nix::fcntl::open("/", FLAGS, Mode::empty())?));
        let parts = |path: &Path| path.iter().rev().map(OsStr::to_owned).collect::<Vec<_>>();
        let mut dir = root()?;
        let mut foreign = whose(&dir.metadata()?);
        let mut left = parts(path);
        let mut links = 0;
        // Links whose own paths are being walked, and how much is left once each of them is walked.
        let mut within: Vec<(usize, PathBuf)> = Vec::new();
        while let Some(part) = left.pop() {
            within.retain(|(after, _)| left.len() >= *after);
            if part == "/" {
                dir = root()?;
                continue;
            }
            let next = match enter(&dir, &part) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if let Some((_, link)) = within.last() {
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
                trusted(&link, &meta, foreign.as_deref())?;
                within.push((left.len(), link));
                left.extend(parts(Path::new(&readlinkat(&next, "")?)));
            } else if meta.is_dir() {
                foreign = foreign.or_else(|| whose(&meta));
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
    pub(crate) fn real(&self) -> io::Result<PathBuf> {
        let mut real = itself(&self.dir).read_link()?;
        real.extend(&self.missing);
        Ok(real)
    }

    /// The directory.
    ///
    /// # Errors
    /// It is not there.
    pub(crate) fn there(self) -> io::Result<File> {
        match self.missing.first() {
            None => Ok(self.dir),
            Some(_) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The directory, made where it is missing, whatever the umask is.
    ///
    /// # Errors
    /// As of the file system.
    pub(crate) fn make(self) -> io::Result<File> {
        let mut dir = self.dir;
        for part in &self.missing {
            dir = make(&dir, part)?;
        }
        Ok(dir)
    }
}

/// Makes a directory in another, or takes the one that somebody made there meanwhile.
fn make(around: &File, name: &OsStr) -> io::Result<File> {
    let mut private = Private::new(around)?;
    let dir = private.directory(DIR_MODE)?;
    let made = match private.place(name) {
        Ok(()) => return Ok(dir),
        Err(Errno::EEXIST) => false,
        // The file system cannot rename so that nothing is replaced.
        Err(Errno::EINVAL | Errno::ENOSYS) => {
            match mkdirat(around, name, Mode::from_bits_truncate(DIR_MODE)) {
                Ok(()) => true,
                Err(Errno::EEXIST) => false,
                Err(error) => return Err(error.into()),
            }
        }
        Err(error) => return Err(error.into()),
    };
    let dir = enter(around, name)?;
    let meta = dir.metadata()?;
    if !meta.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    // Somebody may have put another one in its place.
    if made && meta.uid() == nix::unistd::geteuid().as_raw() {
        std::fs::set_permissions(itself(&dir), PermissionsExt::from_mode(DIR_MODE))?;
    }
    Ok(dir)
}

const FLAGS: OFlag = OFlag::O_PATH
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Holds what is in a directory under a name, without opening it and without following a link.
pub(crate) fn enter(dir: &File, name: &OsStr) -> io::Result<File> {
    Ok(openat(dir, name, FLAGS, Mode::empty())?.into())
}

/// A path to what is held, wherever that is by now.
pub(crate) fn itself(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn is_foreign(meta: &Metadata) -> bool {
    let us = nix::unistd::geteuid().as_raw();
    ![0, us].contains(&meta.uid())
}

/// Whether others than root and vgpud's own user can put something in a directory, or put another
/// one in place of what root has there: who they are.
fn whose(dir: &Metadata) -> Option<String> {
    if is_foreign(dir) {
        Some(format!("a directory of user {}", dir.uid()))
    } else if dir.mode() & 0o022 != 0 && dir.mode() & 0o1000 == 0 {
        Some("a directory in which others than root may write".into())
    } else {
        None
    }
}

/// Whether nobody but root and vgpud's own user can have put a link where it is: one of a tenant
/// leads vgpud wherever the tenant likes, and a tenant may move a link of root, or a directory with
/// such a link, to where it can write. `foreign`: whose directory the walk came through.
fn trusted(link: &Path, meta: &Metadata, foreign: Option<&str>) -> io::Result<()> {
    let whose = match foreign {
        _ if is_foreign(meta) => format!("of user {}", meta.uid()),
        Some(foreign) => format!("in or below {foreign}"),
        None => return Ok(()),
    };
    Err(io::Error::new(
        io::ErrorKind::NotADirectory,
        format!("{} is a symbolic link {whose}", link.display()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Tree(tempfile::TempDir);

    impl Tree {
        /// These directories, and these links to these paths.
        fn new(dirs: &[&str], links: &[(&str, &str)]) -> Tree {
            let tree = Tree(tempfile::tempdir().unwrap());
            for dir in dirs {
                std::fs::create_dir_all(tree.at(dir)).unwrap();
            }
            for (link, to) in links {
                symlink(to, tree.at(link)).unwrap();
            }
            tree
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(path)
        }

        fn walk(&self, path: &str) -> io::Result<PathBuf> {
            Way::to(&self.at(path))?.real()
        }

        fn why(&self, path: &str) -> String {
            self.walk(path).unwrap_err().to_string()
        }
    }

    #[test]
    fn what_is_missing_behind_a_link_is_told_of_the_link_whose_path_lacks_it() {
        let links = [
            ("outer", "inner/missing"),
            ("inner", "real"),
            ("dangling", "outer-less"),
            ("to-dangling", "dangling"),
        ];
        let tree = Tree::new(&["real"], &links);
        assert!(
            tree.why("outer")
                .contains("outer is a symbolic link that leads nowhere")
        );
        assert!(
            tree.why("outer/x")
                .contains("outer is a symbolic link that leads nowhere")
        );
        assert!(
            tree.why("to-dangling/x")
                .contains("/dangling is a symbolic link")
        );
        // Behind the link's own path, a directory may be made.
        assert_eq!(tree.walk("inner/new/x").unwrap(), tree.at("real/new/x"));
        assert!(!tree.at("real/missing").exists());
    }

    #[test]
    fn loops_absolute_links_and_files_on_the_way() {
        let links = [("loop", "other"), ("other", "loop"), ("up", "real/..")];
        let tree = Tree::new(&["real/deep"], &links);
        symlink(tree.at("real"), tree.at("absolute")).unwrap();
        std::fs::write(tree.at("file"), "").unwrap();
        symlink("file", tree.at("to-file")).unwrap();
        let found = Way::to(&tree.at("loop/x")).unwrap_err();
        assert_eq!(found.raw_os_error(), Some(Errno::ELOOP as i32));
        assert_eq!(tree.walk("absolute/deep").unwrap(), tree.at("real/deep"));
        assert_eq!(tree.walk("up/real/new").unwrap(), tree.at("real/new"));
        for file in ["file", "file/x", "to-file/x"] {
            let kind = Way::to(&tree.at(file)).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::NotADirectory, "{file}");
        }
        // What is made there later would decide where this leads.
        let kind = Way::to(&tree.at("missing/../x")).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::NotFound);
    }

    #[test]
    fn no_link_is_followed_below_a_directory_in_which_others_write() {
        let tree = Tree::new(
            &["open/roots", "real"],
            &[("open/roots/link", "../../real")],
        );
        let mode = |mode: u32| {
            std::fs::set_permissions(tree.at("open"), PermissionsExt::from_mode(mode)).unwrap();
        };
        let way = "open/roots/link/x";
        mode(0o1777);
        assert_eq!(tree.walk(way).unwrap(), tree.at("real/x"));
        // The link is root's in a directory of root, and its place is not.
        mode(0o777);
        assert!(tree.why(way).contains("others than root may write"));
        mode(0o755);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(tree.at("open"), Some(12_345), None).unwrap();
            assert!(tree.why(way).contains("below a directory of user 12345"));
            // Nor with a way back out of it.
            symlink("real", tree.at("link")).unwrap();
            assert!(tree.walk("link/x").is_ok());
            assert!(tree.why("open/../link/x").contains("user 12345"));
        }
    }

    #[test]
    fn directories_are_made_with_their_mode_and_nothing_else_is_left() {
        let tree = Tree::new(&[], &[]);
        for _ in 0..2 {
            Way::to(&tree.at("a/b")).unwrap().make().unwrap();
        }
        for made in ["a", "a/b"] {
            let mode = std::fs::metadata(tree.at(made)).unwrap().mode();
            assert_eq!(mode & 0o7777, DIR_MODE);
        }
        assert_eq!(std::fs::read_dir(tree.0.path()).unwrap().count(), 1);
        // Another was faster.
        let (base, way) = (
            File::open(tree.0.path()).unwrap(),
            Way::to(&tree.at("c")).unwrap(),
        );
        std::fs::create_dir(tree.at("c")).unwrap();
        let made = way.make().unwrap().metadata().unwrap();
        assert_eq!(Id::of(&made), Id::at(&base, OsStr::new("c")).unwrap());
        let way = Way::to(&tree.at("d")).unwrap();
        symlink("a", tree.at("d")).unwrap();
        assert!(way.make().is_err());
    }
}
