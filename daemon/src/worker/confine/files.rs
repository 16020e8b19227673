//! Which files a worker may write: Landlock, as far as the kernel has it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
    path_beneath_rules,
};

/// The newest Landlock whose rights are asked for; older kernels enforce those that they know.
const NEWEST: ABI = ABI::V6;

/// The rules for a worker. `None`: this kernel has no Landlock.
///
/// Signals and abstract sockets reach nothing outside either. Reading stays what the user's rights
/// allow.
///
/// # Errors
/// When the kernel has Landlock and does not take the rules.
pub(super) fn ruleset(soft_state: Option<&Path>) -> Result<Option<OwnedFd>, RulesetError> {
    let all = AccessFs::from_write(NEWEST);
    let device = AccessFs::WriteFile | AccessFs::IoctlDev;
    // Rights that a file cannot have are left out by `path_beneath_rules`; what is not there is,
    // too.
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
            // NVIDIA's driver shares memory between the processes of a user by files in it.
            .add_rules(path_beneath_rules(["/dev/shm"], all & !AccessFs::IoctlDev))?,
    };
    Ok(rules.into())
}

/// NVIDIA's device nodes, and the directory of those for MIG. Looked up for every worker: the
/// driver makes some when they are first used.
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
