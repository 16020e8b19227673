//! Opens the directory of a VM's socket part by part. Each directory is held open before the next
//! part is looked up in it, and links that a tenant may have put there are refused. A directory
//! that is renamed or replaced by a link meanwhile does not change the result.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::readlinkat;
use nix::sys::stat::{Mode, mkdirat};

use super::held::{FLAGS, enter, itself};
use super::private::Private;

/// Mode of the directories above the VMs' own: all VMs may pass through them, and none may list
/// them.
pub(crate) const DIR_MODE: u32 = 0o711;

/// Most links that are followed: the limit of Linux itself.
const MOST_LINKS: usize = 40;

/// An existing directory, or the missing parts of its path.
#[derive(Debug)]
pub(crate) struct Way {
    /// The deepest existing directory of the path.
    dir: File,
    /// The missing parts below `dir`.
    missing: Vec<OsString>,
}

impl Way {
    /// Walks to a directory without creating any. A link is followed only if nobody except root and
    /// vgpud's own user can have created it: neither the link nor any directory on the way so far
    /// may belong to another user, and no such directory may be writable for others, except with
    /// the sticky bit.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotADirectory`]: a part of the path is a file, or a link that is not
    /// trusted; [`io::ErrorKind::NotFound`]: a link without a target, or `..` after a missing part.
    /// Otherwise the error of the file system.
    pub(crate) fn to(path: &Path) -> io::Result<Way> {
        let root = || io::Result::Ok(File::from(nix::fcntl::open("/", FLAGS, Mode::empty())?));
        let parts = |path: &Path| path.iter().rev().map(OsStr::to_owned).collect::<Vec<_>>();
        let mut dir = root()?;
        let mut foreign = whose(&dir.metadata()?);
        let mut left = parts(path);
        let mut links = 0;
        // Links whose targets are being walked. The number is the length of `left` once the walk of
        // the link's target is complete.
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

    /// The path of the directory without links. Missing parts keep their names.
    pub(crate) fn real(&self) -> io::Result<PathBuf> {
        let mut real = itself(&self.dir).read_link()?;
        real.extend(&self.missing);
        Ok(real)
    }

    /// The directory, if it exists.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the directory does not exist.
    pub(crate) fn there(self) -> io::Result<File> {
        match self.missing.first() {
            None => Ok(self.dir),
            Some(_) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The directory. Missing directories are created with [`DIR_MODE`], independent of the umask.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn make(self) -> io::Result<File> {
        let mut dir = self.dir;
        for part in &self.missing {
            dir = make(&dir, part)?;
        }
        Ok(dir)
    }
}

/// Creates a directory in another, or opens the directory that somebody created there meanwhile.
fn make(around: &File, name: &OsStr) -> io::Result<File> {
    let mut private = Private::new(around)?;
    let dir = private.directory(DIR_MODE)?;
    let made = match private.place(name) {
        Ok(()) => return Ok(dir),
        Err(Errno::EEXIST) => false,
        // The file system cannot rename without replacing an existing file.
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
    // Checked because somebody may have replaced the directory.
    if made && meta.uid() == nix::unistd::geteuid().as_raw() {
        std::fs::set_permissions(itself(&dir), PermissionsExt::from_mode(DIR_MODE))?;
    }
    Ok(dir)
}

fn is_foreign(meta: &Metadata) -> bool {
    let us = nix::unistd::geteuid().as_raw();
    ![0, us].contains(&meta.uid())
}

/// Describes the users, other than root and vgpud's own, who can create files in a directory or
/// replace root's files there; `None` if there are none.
fn whose(dir: &Metadata) -> Option<String> {
    if is_foreign(dir) {
        Some(format!("a directory of user {}", dir.uid()))
    } else if dir.mode() & 0o022 != 0 && dir.mode() & 0o1000 == 0 {
        Some("a directory in which others than root may write".into())
    } else {
        None
    }
}

/// Refuses a link that somebody except root and vgpud's own user can have created. A tenant's link
/// leads wherever the tenant likes. A tenant may also move a link of root, or a directory with such
/// a link, into a directory of the tenant. `foreign`: describes the first directory on the way that
/// others can write to.
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
    use crate::system::held::Id;
    use std::os::unix::fs::symlink;

    struct Tree(tempfile::TempDir);

    impl Tree {
        /// Creates these directories, and links to these paths.
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
        // Below the target of a link, missing directories are allowed.
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
        // Whoever creates `missing` later would decide where the path leads.
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
        // The link belongs to root and is in a directory of root, but others can write to a
        // directory above.
        mode(0o777);
        assert!(tree.why(way).contains("others than root may write"));
        mode(0o755);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(tree.at("open"), Some(12_345), None).unwrap();
            assert!(tree.why(way).contains("below a directory of user 12345"));
            // Leaving the foreign directory again with `..` does not help.
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
        // Somebody else creates the directory after vgpud found that the directory is missing.
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
