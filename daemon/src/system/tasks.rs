//! The limit of processes and threads, and the cgroup that sets it.

use std::fs;
use std::path::{Path, PathBuf};

/// Most processes and threads that vgpud and all workers may have together: the least of the limits
/// of vgpud's cgroup, of those above it (systemd: `TasksMax=`), and of the kernel. `None`: no limit
/// can be read.
#[must_use]
pub fn tasks_most() -> Option<u64> {
    let own = own_cgroup().ok();
    let cgroups = own.iter().flat_map(|dir| dir.ancestors());
    let of_cgroups = cgroups.map(|dir| dir.join("pids.max"));
    let of_kernel = ["threads-max", "pid_max"].map(|name| Path::new("/proc/sys/kernel").join(name));
    let limits = of_cgroups.chain(of_kernel);
    limits
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

/// The cgroup (version 2) of this process.
pub(crate) fn own_cgroup() -> Result<PathBuf, String> {
    let read =
        |path: &str| fs::read_to_string(path).map_err(|e| format!("cannot read {path}: {e}"));
    let (mounts, own) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
    let (mount, root) = mount_of(&mounts).ok_or("no cgroup2 file system is mounted")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::"));
    let own = own.ok_or("this process is in no cgroup of version 2")?;
    let below = Path::new(own)
        .strip_prefix(&root)
        .map_err(|_| format!("its cgroup {own} is not below what is mounted"))?;
    Ok(mount.join(below))
}

/// Mount point of cgroup2 and the cgroup mounted there (proc(5): fields 5 and 4; the type follows
/// `-`).
fn mount_of(mounts: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        after
            .starts_with("cgroup2 ")
            .then(|| (place.into(), root.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_among_others() {
        let mounts = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      30 22 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      31 22 0:27 /a /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            mount_of(mounts),
            Some(("/sys/fs/cgroup/unified".into(), "/a".into()))
        );
        assert_eq!(mount_of("30 22 0:26 / /x rw - cgroup cgroup rw"), None);
    }
}
