//! Checks of what vgpud needs to start: its directories and its database.

use std::path::Path;

use nix::unistd::{AccessFlags, access};
use vgpu_api::DoctorCheck;

use crate::api::doctor::existing;
use crate::config::Config;
use crate::store::{PUT_BACK, Store, StoreError};
use crate::system;

/// All checks. `root`: whether the caller may do what a vgpud of root may do.
pub(super) fn of_start(config: &Config, root: bool) -> Vec<DoctorCheck> {
    vec![
        directory(
            "state-dir",
            "daemon.state_dir",
            &config.daemon.state_dir,
            root,
        ),
        integrity(&config.database(), root),
        in_use(&config.daemon.runtime_dir).unwrap_or_else(|| {
            let dir = &config.daemon.runtime_dir;
            directory("runtime-dir", "daemon.runtime_dir", dir, root)
        }),
    ]
}

/// Whether vgpud can create files in a directory of its own.
fn directory(name: &str, key: &str, dir: &Path, root: bool) -> DoctorCheck {
    let at = existing(dir);
    let hint = format!("Mend the directory, or set {key} in vgpud.toml.");
    if !at.is_dir() {
        let message = format!(
            "vgpud cannot use {} ({key}): {} is not a directory.",
            dir.display(),
            at.display()
        );
        return DoctorCheck::error(name, message, hint);
    }
    match access(at, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) if at == dir => DoctorCheck::ok(name, format!("{} can be written.", dir.display())),
        Ok(()) => DoctorCheck::ok(
            name,
            format!(
                "{} is not there yet. vgpud can create it: {} can be written.",
                dir.display(),
                at.display()
            ),
        ),
        Err(errno) => {
            let message = format!(
                "The user of these checks cannot write to {} ({key}): {}.",
                at.display(),
                errno.desc()
            );
            match root {
                true => DoctorCheck::error(name, message, hint),
                false => DoctorCheck::warning(name, message, "Run the checks as vgpud's user."),
            }
        }
    }
}

/// Whether the database is one from which vgpud starts. Reads the whole file.
fn integrity(file: &Path, root: bool) -> DoctorCheck {
    const NAME: &str = "store-integrity";
    let shown = file.display();
    if !root
        && let Err(problem) = std::fs::File::open(file)
        && problem.kind() == std::io::ErrorKind::PermissionDenied
    {
        return DoctorCheck::warning(
            NAME,
            format!("{shown} cannot be read: {problem}."),
            "Run the checks as vgpud's user.",
        );
    }
    match Store::examine(file) {
        Ok(true) => DoctorCheck::ok(NAME, format!("{shown}: integrity_check is ok.")),
        Ok(false) => DoctorCheck::skipped(NAME, format!("{shown} is not there yet.")),
        Err(StoreError::Corrupt { message, .. }) => {
            DoctorCheck::error(NAME, format!("{shown} is damaged: {message}."), PUT_BACK)
        }
        Err(problem) => DoctorCheck::error(NAME, problem.to_string(), ""),
    }
}

/// The check of a runtime directory that another vgpud has locked.
fn in_use(dir: &Path) -> Option<DoctorCheck> {
    let locked = system::is_locked(&super::lock_of(dir)).unwrap_or(false);
    locked.then(|| {
        DoctorCheck::warning(
            "runtime-dir",
            format!(
                "Another vgpud runs in {} (daemon.runtime_dir): a second one does not start there.",
                dir.display()
            ),
            "`vgpu-admin doctor` asks that vgpud. Stop that vgpud before you start another, or give \
             the other a daemon.runtime_dir of its own.",
        )
    })
}

#[cfg(test)]
mod tests {
    use vgpu_api::CheckStatus;

    use super::*;
    use crate::store::StoreOptions;

    fn configured(dir: &Path) -> Config {
        let mut config = Config::default();
        config.daemon.state_dir = dir.join("state/of/vgpud");
        config.daemon.runtime_dir = dir.join("run");
        config
    }

    fn found(config: &Config, name: &str) -> DoctorCheck {
        let mut checks = of_start(config, true).into_iter();
        checks.find(|check| check.name == name).expect("the check")
    }

    #[test]
    fn a_fresh_host_needs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let config = configured(dir.path());
        for check in of_start(&config, true) {
            let parent = format!("{} can be written", dir.path().display());
            let (status, said) = match check.name.as_str() {
                "store-integrity" => (CheckStatus::Skipped, "is not there yet"),
                _ => (CheckStatus::Ok, parent.as_str()),
            };
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.message.contains(said), "{check:?}");
        }
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "nothing is made"
        );
    }

    #[test]
    fn a_file_in_place_of_a_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("state"), "").unwrap();
        let check = found(&configured(dir.path()), "state-dir");
        assert_eq!(check.status, CheckStatus::Error);
        assert!(
            check.message.contains("state is not a directory"),
            "{check:?}"
        );
        assert!(check.hint.unwrap().contains("daemon.state_dir"));
    }

    #[test]
    fn a_database_is_checked_and_a_damaged_one_has_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let config = configured(dir.path());
        Store::open(&config.database(), StoreOptions::default())
            .unwrap()
            .close();
        let check = found(&config, "store-integrity");
        assert_eq!(check.status, CheckStatus::Ok, "{check:?}");
        std::fs::write(config.database(), vec![b'x'; 8192]).unwrap();
        let check = found(&config, "store-integrity");
        assert_eq!(check.status, CheckStatus::Error);
        assert_eq!(check.hint.as_deref(), Some(PUT_BACK));
    }

    #[test]
    fn the_lock_of_another_vgpud_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let config = configured(dir.path());
        std::fs::create_dir(&config.daemon.runtime_dir).unwrap();
        let lock = system::lock(&super::super::lock_of(&config.daemon.runtime_dir)).unwrap();
        let check = found(&config, "runtime-dir");
        assert_eq!(check.status, CheckStatus::Warning);
        assert!(check.message.contains("Another vgpud runs"), "{check:?}");
        drop(lock);
        assert_eq!(found(&config, "runtime-dir").status, CheckStatus::Ok);
    }
}
