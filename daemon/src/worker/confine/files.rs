//! Limits the files that a worker may write, by Landlock, as far as the kernel supports it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
    path_beneath_rules,
};

/// The newest version of Landlock whose rights are requested. Older kernels enforce the rights that
/// they know.
const NEWEST: ABI = ABI::V6;

/// The Landlock rules of a worker. `None`: this kernel has no Landlock.
///
/// Signals and abstract sockets do not reach processes outside either. Reading is limited by the
/// rights of the user only.
///
/// # Errors
/// If the kernel has Landlock and refuses the rules.
pub(super) fn ruleset(soft_state: Option<&Path>) -> Result<Option<OwnedFd>, RulesetError> {
    let all = AccessFs::from_write(NEWEST);
    let device = AccessFs::WriteFile | AccessFs::IoctlDev;
    // `path_beneath_rules` drops rights that a file cannot have, and paths that do not exist.
    let rules = Ruleset::default()
        .handle_access(all)?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(["/dev/null"], device))?;
    let rules = match soft_state {
        Some(dir) => {
            let shared = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg;
            rules.add_rules(path_beneath_rules([dir], shared))?
        }
        None => rules
            .add_rules(path_beneath_rules(device_nodes(), device))?
            // NVIDIA's driver shares memory between the processes of a user through files in
            // /dev/shm.
            .add_rules(path_beneath_rules(["/dev/shm"], all & !AccessFs::IoctlDev))?,
    };
    Ok(rules.into())
}

/// NVIDIA's device nodes, and the directory of the nodes for MIG. Listed for every worker, because
/// the driver creates some nodes at their first use.
fn device_nodes() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/dev") else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    names
        .filter(|name| name.as_encoded_bytes().starts_with(b"nvidia"))
        .map(|name| Path::new("/dev").join(name))
        .collect()
}
