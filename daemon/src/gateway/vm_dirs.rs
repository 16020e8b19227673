//! The VMs' own directories (`<vm_dirs>/<vm number>`). Each belongs to one registration: an old
//! tenant may still have the directory mounted, so the next VM with the number gets a new one.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::config::VM_SOCKET;
use crate::system::held::{enter, itself};
use crate::system::private::unknown;
use crate::system::walk::{DIR_MODE, Way};

/// The generation of each registered VM by its number. Each directory belongs to one generation.
pub(super) type Registered = HashMap<u32, u64>;

/// Prefix of the directories of VMs that are no longer registered. No VM number has this form.
const GONE: &str = ".gone-";
/// Name of the file that records to which registrations the directories belong, for the next start
/// of vgpud.
const BOOK: &str = ".registered";
/// A generation that no registration has.
const UNKNOWN: u64 = u64::MAX;
/// Most files of an old directory that are removed at a time. Later starts remove the rest.
const MOST_REMOVED: usize = 10_000;
const MOST_DEPTH: usize = 16;

/// The VM's own directory, if `path` is the socket in that directory.
pub(super) fn own_dir<'a>(path: &'a Path, vm_dirs: Option<&Path>) -> Option<&'a Path> {
    let home = path.parent()?;
    (path.file_name()? == VM_SOCKET && home.parent() == vm_dirs).then_some(home)
}

/// Removes each directory whose registration has ended: renames it, then removes as much of its
/// content as is allowed. `before`: the registrations before; `None` at the start of vgpud. Returns
/// the registrations to which the directories belong now: a directory that could not be renamed
/// still belongs to its old registration.
pub(super) fn clear(vm_dirs: &Path, before: Option<&Registered>, now: &Registered) -> Registered {
    let mut homes = now.clone();
    let way = Way::to(vm_dirs);
    let dirs = match now.is_empty() {
        true => way.and_then(Way::there),
        false => way.and_then(Way::make),
    };
    // The directory neither exists nor can be created. The opening of each socket reports the
    // problem.
    let Ok(dirs) = dirs else { return homes };
    let read;
    let first = before.is_none();
    let before = match before {
        Some(before) => before,
        None => {
            read = load(&dirs);
            &read
        }
    };
    let stale = |number: u32, name: &OsStr| match (before.get(&number), now.get(&number)) {
        (Some(before), Some(now)) => before != now,
        (None, Some(_)) => false,
        (Some(_), None) => true,
        (None, None) => is_ours(&dirs, name),
    };
    for entry in std::fs::read_dir(itself(&dirs))
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let text = name.to_str().unwrap_or_default();
        let number = text.parse().ok().filter(|n: &u32| n.to_string() == text);
        let gone = match number {
            Some(number) if stale(number, &name) => set_aside(&dirs, &name),
            None if first && text.starts_with(GONE) => Ok(name.clone()),
            _ => continue,
        };
        if let (Err(_), Some(number)) = (&gone, number) {
            homes.insert(number, before.get(&number).copied().unwrap_or(UNKNOWN));
        }
        let removed = gone.and_then(|gone| remove(&dirs, &gone, &mut { MOST_REMOVED }, 0));
        if let Err(error) = removed {
            let path = vm_dirs.join(&name);
            tracing::warn!(
                "what a VM that is gone left at {} cannot be removed: {error}",
                path.display()
            );
        }
    }
    if let Err(error) = save(&dirs, &homes) {
        // Without the record, the next start takes each directory to belong to the present VM of
        // that number.
        let _ = unlinkat(&dirs, BOOK, UnlinkatFlags::NoRemoveDir);
        tracing::warn!(
            "cannot note whose the directories in {} are: {error}",
            vm_dirs.display()
        );
    }
    homes
}

/// Whether vgpud made a directory that is not in the record. Owner and mode decide this, because an
/// administrator may have put other directories there.
fn is_ours(dirs: &File, name: &OsStr) -> bool {
    let us = nix::unistd::geteuid().as_raw();
    let meta = enter(dirs, name).and_then(|dir| dir.metadata());
    meta.is_ok_and(|meta| meta.is_dir() && meta.uid() == us && meta.mode() & 0o7777 == DIR_MODE)
}

/// Renames a directory to a name that no VM has. Returns the new name.
fn set_aside(dirs: &File, name: &OsStr) -> io::Result<OsString> {
    let gone = unknown(&format!("{GONE}{}-", name.display()))?;
    renameat(dirs, name, dirs, gone.as_os_str())?;
    Ok(gone)
}

/// Removes a file, or a directory with its content. Follows no link, and does not enter mounted
/// file systems.
fn remove(around: &File, name: &OsStr, left: &mut usize, depth: usize) -> io::Result<()> {
    let much = || io::Error::other("there is too much of it");
    *left = left.checked_sub(1).ok_or_else(much)?;
    if unlinkat(around, name, UnlinkatFlags::NoRemoveDir).is_ok() {
        return Ok(());
    }
    if depth > MOST_DEPTH {
        return Err(io::Error::other("it is too deep"));
    }
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let here = ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let dir = File::from(openat2(
        around,
        name,
        OpenHow::new().flags(flags).resolve(here),
    )?);
    for entry in std::fs::read_dir(itself(&dir))? {
        remove(&dir, &entry?.file_name(), left, depth + 1)?;
    }
    Ok(unlinkat(around, name, UnlinkatFlags::RemoveDir)?)
}

fn load(dirs: &File) -> Registered {
    let text = std::fs::read_to_string(itself(dirs).join(BOOK)).unwrap_or_default();
    let line = |line: &str| {
        let (number, generation) = line.split_once(' ')?;
        Some((number.parse().ok()?, generation.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn save(dirs: &File, homes: &Registered) -> io::Result<()> {
    let mut lines: Vec<_> = homes.iter().collect();
    lines.sort_unstable();
    let lines: String = lines
        .into_iter()
        .map(|(number, generation)| format!("{number} {generation}\n"))
        .collect();
    let new = format!("{BOOK}.new");
    std::fs::write(itself(dirs).join(&new), lines)?;
    Ok(renameat(dirs, new.as_str(), dirs, BOOK)?)
}
