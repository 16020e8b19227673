//! The settings of vgpud: `/etc/vgpu/vgpud.toml`.
//!
//! The file holds the settings that vgpud needs before it can open its database (paths, listeners,
//! the driver, limits). GPUs, pools and VMs are in the database and are changed with `vgpu-admin`.
//!
//! Unknown keys are refused with the list of known keys. A reload is valid as a whole or changes
//! nothing. [`Config::is_live`] tells which keys take effect at once and which need a restart;
//! [`Config::reload`] reports both. `systemd/vgpud.toml` documents every key, and a test keeps it
//! complete.

mod effective;
mod keys;
mod sections;
mod wrong_type;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vgpu_api::ReloadReport;

use crate::system;
use crate::system::patience::Patience;

pub use sections::{
    Admin, Cgroups, Daemon, Defaults, Driver, DriverKind, Guests, Limits, Listen, Log, LogFormat,
    Worker,
};

/// Default path of the file.
pub const DEFAULT_PATH: &str = "/etc/vgpu/vgpud.toml";

/// Name of the socket in the directory of each VM.
pub const VM_SOCKET: &str = "vgpu.sock";

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Directories and housekeeping.
    pub daemon: Daemon,
    /// The listeners of the admin API.
    pub admin: Admin,
    /// The listeners for guests.
    pub listen: Listen,
    /// The CUDA driver that the workers load.
    pub driver: Driver,
    /// Worker processes.
    pub worker: Worker,
    /// Limits of the listeners for guests.
    pub limits: Limits,
    /// Information for guests.
    pub guests: Guests,
    /// Defaults of new pools and VMs.
    pub defaults: Defaults,
    /// The log.
    pub log: Log,
}

/// Source of the configuration: a file, and command-line options that replace its keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// The named file. `None`: the default path, or built-in values if there is no such file.
    pub file: Option<PathBuf>,
    /// Replaces `daemon.state_dir`.
    pub state_dir: Option<PathBuf>,
    /// Replaces `daemon.runtime_dir`.
    pub runtime_dir: Option<PathBuf>,
}

impl From<Option<PathBuf>> for Source {
    fn from(file: Option<PathBuf>) -> Self {
        Self {
            file,
            ..Self::default()
        }
    }
}

impl Source {
    /// The file that is read now; `None`: no file is named, and the default file does not exist.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        let default = Path::new(DEFAULT_PATH);
        self.file.as_deref().or(default.exists().then_some(default))
    }

    /// Reads the configuration, at start and at every reload.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load_or_default(self.file.as_deref())?;
        let absolute = |dir: &Path| std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
        if let Some(dir) = &self.state_dir {
            config.daemon.state_dir = absolute(dir);
        }
        if let Some(dir) = &self.runtime_dir {
            config.daemon.runtime_dir = absolute(dir);
        }
        Ok(config)
    }
}

/// Path of the sample configuration, below the prefix with which vgpud was installed.
fn example() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let prefix = program.ancestors().nth(2).unwrap_or(Path::new("/usr"));
    prefix.join("share/doc/vgpu/vgpud.toml")
}

/// What to do about a configuration that cannot be read.
fn remedy(cause: &std::io::Error) -> String {
    let example = example();
    match cause.kind() {
        std::io::ErrorKind::NotFound if example.exists() => {
            format!("Create it (an example: {})", example.display())
        }
        std::io::ErrorKind::NotFound => "Create it".to_owned(),
        _ => "Make it a text file that vgpud may read".to_owned(),
    }
}

/// The reason for which a configuration is not used. The sentence names file, place and key, and a
/// valid value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("Cannot read the configuration {}: {cause}. {} or name another with --config.", file.display(), remedy(cause))]
    Read {
        /// The file.
        file: PathBuf,
        /// The cause. Not named `source`: the sentence contains it, and a printed chain of errors
        /// would repeat it.
        cause: std::io::Error,
    },
    /// The file is not TOML, or a key or type is wrong.
    #[error("The configuration {}:{line} is wrong: {message}", file.display())]
    Parse {
        /// The file.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The problem, with the known keys if a key is unknown.
        message: String,
    },
    /// A value is out of range, or two values contradict each other.
    #[error("The configuration {} is wrong: {}", file.display(), problems.join("; "))]
    Invalid {
        /// The file.
        file: PathBuf,
        /// Each problem, with its key.
        problems: Vec<String>,
    },
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// If the file cannot be read, is not valid TOML, has an unknown key, or a value out of range.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|cause| ConfigError::Read {
            file: file.to_path_buf(),
            cause,
        })?;
        Self::parse(&text, file)
    }

    /// As [`Config::load`]. If no file is named and the default file does not exist, returns the
    /// defaults.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_or_default(named: Option<&Path>) -> Result<Self, ConfigError> {
        match named {
            Some(file) => Self::load(file),
            None if Path::new(DEFAULT_PATH).exists() => Self::load(Path::new(DEFAULT_PATH)),
            None => Ok(Self::default()),
        }
    }

    /// Parses and checks a text. `file` is named in errors.
    ///
    /// # Errors
    /// As [`Config::load`], without the errors of reading.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..start]
                .iter()
                .filter(|&&b| b == b'\n')
                .count()
                + 1;
            ConfigError::Parse {
                file: file.to_path_buf(),
                line,
                message: wrong_type::told(error.message().trim_end(), text, start)
                    .replace('\n', "; "),
            }
        })?;
        let problems = config.problems();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Invalid {
                file: file.to_path_buf(),
                problems,
            })
        }
    }

    /// Returns this configuration with the live keys of `fresh`, and a report of all keys that
    /// differ.
    ///
    /// # Errors
    /// A sentence, if the combination of old and new keys is not valid: a restart is then needed.
    pub fn reload(&self, fresh: &Self) -> Result<(Self, ReloadReport), String> {
        let (merged, report) = keys::merge(self, fresh)?;
        let problems = merged.problems();
        if problems.is_empty() {
            Ok((merged, report))
        } else {
            Err(format!(
                "The new values do not go with those that need a restart ({}). Restart vgpud.",
                problems.join("; ")
            ))
        }
    }

    /// Whether a new value of `key` (dotted: `limits.handshake_deadline_ms`) takes effect at once.
    #[must_use]
    pub fn is_live(key: &str) -> bool {
        keys::is_live(key)
    }

    /// Path of the admin API's socket.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.admin
            .socket
            .clone()
            .unwrap_or_else(|| self.daemon.runtime_dir.join("admin.sock"))
    }

    /// Path of the state database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.daemon.state_dir.join("state.db")
    }

    /// Directory of the caches of module images.
    #[must_use]
    pub fn images_dir(&self) -> PathBuf {
        self.daemon.state_dir.join("images")
    }

    /// Directory that holds a directory with a Unix socket for every VM; `None`: VMs get none.
    #[must_use]
    pub fn vm_socket_dir(&self) -> Option<PathBuf> {
        if !self.listen.vm_sockets {
            return None;
        }
        let default = || self.daemon.runtime_dir.join("vm");
        Some(self.listen.vm_socket_dir.clone().unwrap_or_else(default))
    }

    /// Directories and sockets of vgpud itself, where no VM may have its socket. Contains the
    /// configured paths and the targets of symbolic links, as of now or as of the last answer of
    /// their file systems.
    #[must_use]
    pub fn own_paths(&self, patience: &Patience) -> Vec<PathBuf> {
        let mut paths = vec![
            self.daemon.runtime_dir.clone(),
            self.daemon.state_dir.clone(),
            self.admin_socket(),
            self.soft_state_dir(),
        ];
        paths.extend(self.vm_socket_dir());
        paths.extend(self.listen.hybrid_dirs.iter().cloned());
        let real = patience.resolved(&paths);
        paths.extend(real.into_iter().flatten());
        paths
    }

    /// Every Unix socket path on which vgpud listens for a VM: those of
    /// [`Config::automatic_paths`], and the registered socket of the VM.
    #[must_use]
    pub fn socket_paths(&self, vm: &crate::model::VmRecord) -> Vec<PathBuf> {
        let mut paths = self.automatic_paths(vm);
        paths.extend(vm.socket.as_ref().map(PathBuf::from));
        paths
    }

    /// The Unix socket paths that every VM has by default: `<vm_socket_dir>/<vm number>/vgpu.sock`
    /// and `<hybrid dir>/<name>.sock_<vsock port>`.
    #[must_use]
    pub fn automatic_paths(&self, vm: &crate::model::VmRecord) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        paths.extend(
            self.vm_socket_dir()
                .map(|dir| dir.join(vm.vm_id.to_string()).join(VM_SOCKET)),
        );
        let hybrid_name = format!("{}.sock_{}", vm.name, self.listen.vsock_port);
        paths.extend(
            self.listen
                .hybrid_dirs
                .iter()
                .map(|dir| dir.join(&hybrid_name)),
        );
        paths
    }

    /// Directory of the shared state of soft devices.
    #[must_use]
    pub fn soft_state_dir(&self) -> PathBuf {
        let default = || self.daemon.runtime_dir.join("soft-gpu");
        self.driver.soft_state_dir.clone().unwrap_or_else(default)
    }

    /// Returns sentences about parts of a valid configuration that do not work on this host.
    /// Queries the host's name services.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let group = self.listen.vm_socket_group.as_ref();
        let missing = group.filter(|name| system::group(name).is_none());
        let warning = |name| {
            format!(
                "{}: all VMs' sockets stay shut.",
                self.listen.without_group(name)
            )
        };
        missing.map(|name| warning(name)).into_iter().collect()
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.daemon.check(&mut problems);
        self.admin.check(&mut problems);
        self.listen.check(&self.admin, &mut problems);
        self.driver.check(&mut problems);
        self.worker.check(&mut problems);
        self.limits.check(&mut problems);
        self.defaults.check(&mut problems);
        self.log.check(&mut problems);
        problems
    }
}

#[cfg(test)]
mod tests;
