//! The command line. The help texts here are the reference of the commands.

mod import;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use vgpu_api::{Limit, PoolPatch, Priority, VmLimitsPatch, exit};

pub(crate) use self::import::{CloudstackCommand, Detach, ImportCommand, ImportOptions};
use crate::output::Format;
use crate::settings::{self, Changes};
use crate::vm_ids::{self, VmIds};

const EXAMPLES: &str = "\
Examples:
  vgpu-admin scan-gpus                                     find the host's GPUs
  vgpu-admin assign-gpu --gpu-id=0 --pool=A                map GPU 0 to pool A (and create A)
  vgpu-admin register-vm --vm-id=1-7 --pool=A --priority=high
  vgpu-admin status --watch                                everything on one screen

Exit codes:";

/// What follows the options in the help: examples and exit codes.
fn after_help() -> String {
    let codes = exit::ALL.chunks(4).map(|line| {
        let line: Vec<String> = line.iter().map(|(n, what)| format!("{n} {what}")).collect();
        format!("\n  {}", line.join("   "))
    });
    EXAMPLES.to_owned() + &codes.collect::<String>()
}

/// Heading of the options for limits of a VM.
const LIMITS: &str = "Limits (each also takes `default`, the value of vgpud's configuration)";

/// Administers vgpud, which shares this host's GPUs among virtual machines.
#[derive(Debug, Parser)]
#[command(name = "vgpu-admin", version, after_help = after_help(), max_term_width = 100)]
pub(crate) struct Cli {
    /// The daemon's admin socket.
    #[arg(
        long,
        global = true,
        env = "VGPU_ADMIN_SOCKET",
        default_value = vgpu_api::DEFAULT_ADMIN_SOCKET,
        value_name = "PATH"
    )]
    pub(crate) socket: PathBuf,

    /// Format of the output.
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,

    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show GPUs, pools, VMs, priorities, queues and limits on one screen.
    #[command(after_help = "Examples:\n  vgpu-admin status\n  vgpu-admin status --watch -o wide")]
    Status {
        /// Repeat the screen.
        #[arg(long, short)]
        watch: bool,
        /// Time between two screens of --watch, in seconds.
        #[arg(long, default_value_t = 1, value_parser = settings::whole(1..=3_600_u64))]
        interval: u64,
    },

    /// Scan for GPUs: model, UUID, memory, PCI address, driver, MIG, health, pool.
    ScanGpus {
        /// List the result of the last scan without a new one.
        #[arg(long)]
        cached: bool,
    },

    /// Assign a GPU to a pool, which is created if it does not exist.
    #[command(after_help = "Example:\n  vgpu-admin assign-gpu --gpu-id=0 --pool=A")]
    AssignGpu {
        /// The GPU: its number in scan-gpus, or its UUID.
        #[arg(long, value_name = "GPU")]
        gpu_id: String,
        /// The pool.
        #[arg(long)]
        pool: String,
        /// Refuse if the pool does not exist, instead of creating the pool.
        #[arg(long)]
        existing_pool: bool,
        /// Also serve this pool besides the GPU's present pools, by the weights of the pools.
        #[arg(long)]
        shared: bool,
    },

    /// Take a GPU out of its pool; sessions on the GPU end.
    UnassignGpu {
        /// The GPU: its number or its UUID.
        #[arg(long, value_name = "GPU")]
        gpu_id: String,
        /// Only from this pool, if the GPU serves several pools.
        #[arg(long)]
        pool: Option<String>,
    },

    /// Check, drain and resume a GPU, or forget a vanished GPU.
    #[command(subcommand)]
    Gpu(GpuCommand),

    /// Create, list, change and delete pools.
    #[command(subcommand)]
    Pool(PoolCommand),

    /// Register VMs, so that their guests are served.
    #[command(after_help = "\
Examples:
  vgpu-admin register-vm --vm-id=1 --pool=A --priority=high --cid=42
  vgpu-admin register-vm --vm-id=8-20 --pool=B --memory=8GiB --calls-per-s=100000")]
    RegisterVm(RegisterVm),

    /// Remove VMs; their sessions end.
    UnregisterVm {
        #[command(flatten)]
        vms: Vms,
    },

    /// Move VMs to another pool.
    MoveVm {
        #[command(flatten)]
        vms: Vms,
        /// The new pool.
        #[arg(long)]
        pool: String,
    },

    /// List, show and change VMs.
    #[command(subcommand)]
    Vm(VmCommand),

    /// List and end sessions (a session is one guest process).
    #[command(subcommand)]
    Session(SessionCommand),

    /// Refuse VMs and end their sessions, until they are released.
    Quarantine {
        #[command(flatten)]
        vms: Vms,
        /// Reason, for the guest and the audit trail.
        #[arg(long)]
        reason: Option<String>,
    },

    /// Serve quarantined VMs again and forget their strikes.
    #[command(after_help = "Example:\n  vgpu-admin release 1-3")]
    Release {
        #[command(flatten)]
        vms: Vms,
    },

    /// Show why a VM waits (or not), which VMs are before it, and its longest possible wait.
    #[command(after_help = "Examples:\n  vgpu-admin explain 3\n  vgpu-admin explain 1-7 -o wide")]
    Explain {
        /// The VMs: 1, 1-7 or 1-3,9.
        #[arg(value_parser = vm_ids::parse)]
        vm_id: VmIds,
    },

    /// Export the usage of VMs: GPU time, waits, turns, bytes, peaks of memory; or reset it.
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  vgpu-admin usage -o csv\n  vgpu-admin usage --vm-id=1-7 -o json\n  vgpu-admin usage reset --vm-id=3"
    )]
    Usage {
        /// Only these VMs: 1, 1-7 or 1-3,9.
        #[arg(long, alias = "vm", value_parser = vm_ids::parse)]
        vm_id: Option<VmIds>,
        /// The action, instead of an export.
        #[command(subcommand)]
        command: Option<UsageCommand>,
    },

    /// Show decisions of the scheduler.
    #[command(subcommand)]
    Sched(SchedCommand),

    /// Show or set the weights of the priority classes.
    #[command(subcommand)]
    Weights(WeightsCommand),

    /// Show events: sessions, limits, strikes, refusals, GPUs.
    Events {
        /// Wait for more events.
        #[arg(long, short)]
        follow: bool,
        /// Only events after this number, oldest first; without this option, the newest events.
        #[arg(long, value_parser = settings::whole(0..=u64::MAX))]
        since: Option<u64>,
        /// Only events about this VM.
        #[arg(long, value_parser = settings::whole(1..=vgpu_api::MAX_VM_ID))]
        vm_id: Option<u32>,
        /// Largest number of events.
        #[arg(long, short = 'n', default_value_t = 50, value_parser = settings::whole(1..=1_000_u32))]
        limit: u32,
    },

    /// Show the changes by administrators.
    Audit {
        /// Only entries after this number, oldest first; without this option, the newest entries.
        #[arg(long, value_parser = settings::whole(0..=u64::MAX))]
        since: Option<u64>,
        /// Largest number of entries.
        #[arg(long, short = 'n', default_value_t = 50, value_parser = settings::whole(1..=1_000_u32))]
        limit: u32,
    },

    /// Check the installation and suggest remedies for its faults. If no vgpud runs, check the host
    /// without one.
    #[command(after_help = "Examples:\n  vgpu-admin doctor\n  vgpu-admin doctor -o json")]
    Doctor {
        /// Configuration file for the checks without a running vgpud [default: vgpud's own]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },

    /// Commands of CloudStack's hooks (docs/cloudstack.md).
    #[command(subcommand)]
    Cloudstack(CloudstackCommand),

    /// Make the daemon read its configuration file again.
    Reload,

    /// Copy the state database (GPUs, pools, VMs, limits, usage, events, audit trail) to a file.
    #[command(after_help = "Example:\n  vgpu-admin backup /root/vgpu.backup")]
    Backup {
        /// The file, which only the owner can read.
        file: PathBuf,
        /// Replace the file if it is a backup; any other file is kept.
        #[arg(long)]
        force: bool,
    },

    /// Replace the present pools, VMs, assignments and weights by those of a backup. VMs that the
    /// backup does not have are removed, and their sessions end. Sessions also end if the VM's pool
    /// differs, if the GPU leaves the pool, or if the VM was registered again since the backup: the
    /// number then stands for another VM.
    #[command(after_help = "Example:\n  vgpu-admin restore /root/vgpu.backup")]
    Restore {
        /// A file made by `vgpu-admin backup`.
        file: PathBuf,
    },
}

/// VMs as an argument or as an option.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Vms {
    /// The VMs: 1, 1-7 or 1-3,9.
    #[arg(value_name = "VMS", value_parser = vm_ids::parse)]
    given: Option<VmIds>,
    /// The VMs, as an option.
    #[arg(long, value_parser = vm_ids::parse)]
    vm_id: Option<VmIds>,
}

impl From<Vms> for VmIds {
    fn from(vms: Vms) -> VmIds {
        // clap wants one of both.
        vms.given.or(vms.vm_id).unwrap_or(VmIds(Vec::new()))
    }
}

/// `gpu …`
#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Run a canary kernel.
    Check {
        /// The GPU: its number or its UUID.
        #[arg(long, value_name = "GPU")]
        gpu_id: String,
    },
    /// Admit no new sessions on the GPU; running ones go on.
    Drain {
        /// The GPU: its number or its UUID.
        #[arg(long, value_name = "GPU")]
        gpu_id: String,
    },
    /// Forget a vanished GPU.
    Forget {
        /// The GPU: its number or its UUID.
        #[arg(long, value_name = "GPU")]
        gpu_id: String,
    },
    /// Run a canary kernel and, if it passes, serve the GPU again.
    Resume {
        /// The GPU: its number or its UUID.
        #[arg(long, value_name = "GPU")]
        gpu_id: String,
    },
}

/// `pool …`
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Create a pool.
    #[command(after_help = "Example:\n  vgpu-admin pool create A --policy=strict --aging=200ms")]
    Create {
        /// Name of the pool.
        name: String,
        #[command(flatten, next_help_heading = "Settings")]
        settings: Changes<PoolPatch>,
    },
    /// List pools; `-o wide` shows every setting.
    List,
    /// Show all settings of a pool.
    Show {
        /// Name of the pool.
        name: String,
    },
    /// Change the settings of a pool; effective at once.
    #[command(after_help = "Example:\n  vgpu-admin pool set A --slice=5ms --hard-limit=30s")]
    Set {
        /// Name of the pool.
        name: String,
        #[command(flatten, next_help_heading = "Settings")]
        settings: Changes<PoolPatch>,
    },
    /// Delete a pool without VMs.
    Delete {
        /// Name of the pool.
        name: String,
    },
}

/// `register-vm`
#[derive(Debug, Args)]
pub(crate) struct RegisterVm {
    /// The VMs: 1, 1-7 or 1-3,9.
    #[arg(long, value_parser = vm_ids::parse)]
    pub(crate) vm_id: VmIds,
    /// Pool of the VMs.
    #[arg(long)]
    pub(crate) pool: String,
    /// Class of the VMs.
    #[arg(long, value_parser = settings::priority(), default_value = Priority::default().name())]
    pub(crate) priority: Priority,
    /// AF_VSOCK CID; for several VMs, the CID of the first, and the others follow.
    #[arg(long, value_parser = settings::whole(0..=u32::MAX))]
    pub(crate) cid: Option<u32>,
    /// Unix socket on which vgpud listens for the VM, outside of vgpud's own directories; for
    /// several VMs, the path contains `{vm_id}`. Missing directories are created and kept.
    #[arg(long, value_name = "PATH")]
    pub(crate) unix_socket: Option<String>,
    /// The only uid (of the VMM) that may connect to the Unix sockets.
    #[arg(long, value_parser = settings::whole(0..=u32::MAX), value_name = "UID")]
    pub(crate) peer_uid: Option<u32>,
    /// Name; for several VMs, the number is appended.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Weight within the class in percent.
    #[arg(long, value_parser = settings::whole(0..=u32::MAX), value_name = "PERCENT")]
    pub(crate) factor: Option<u32>,
    /// Longest turn, instead of the pool's.
    #[arg(long, value_parser = settings::slice, value_name = "TIME")]
    pub(crate) slice: Option<u64>,
    /// A program gets all GPUs that the VM may use at once, or none.
    #[arg(long)]
    pub(crate) gang: bool,
    /// Only these GPUs of the pool: numbers or UUIDs, as 0,2.
    #[arg(long, value_name = "GPUS", value_delimiter = ',')]
    pub(crate) gpus: Option<Vec<String>>,
    #[command(flatten, next_help_heading = LIMITS)]
    pub(crate) limits: Changes<VmLimitsPatch>,
}

/// `vm …`
#[derive(Debug, Subcommand)]
pub(crate) enum VmCommand {
    /// Register the VMs of a hypervisor, with their names and CIDs. A repeated import changes CIDs;
    /// with --shares also pools, classes and memory.
    #[command(subcommand)]
    Import(ImportCommand),
    /// Take the CID from an imported VM that stopped: its sessions end, its settings and usage
    /// stay.
    #[command(after_help = "Example:\n  vgpu-admin vm detach proxmox:105")]
    Detach(Detach),
    /// List VMs.
    List {
        /// Only VMs of this pool.
        #[arg(long)]
        pool: Option<String>,
    },
    /// Show all facts about VMs.
    Show {
        /// The VMs: 1, 1-7 or 1-3,9.
        #[arg(value_parser = vm_ids::parse)]
        vm_id: VmIds,
    },
    /// Change priority, limits and quotas; effective at once.
    #[command(after_help = "\
Examples:
  vgpu-admin vm set 4 --priority=high
  vgpu-admin vm set 8-20 --calls-per-s=50000 --memory=unlimited
  vgpu-admin vm set 5 --slice=500us --gpus=0,2 --gang")]
    Set {
        /// The VMs: 1, 1-7 or 1-3,9.
        #[arg(value_parser = vm_ids::parse)]
        vm_id: VmIds,
        /// New class.
        #[arg(long, value_parser = settings::priority())]
        priority: Option<Priority>,
        /// New weight within the class, in percent.
        #[arg(long, value_parser = settings::whole(0..=u32::MAX), value_name = "PERCENT")]
        factor: Option<u32>,
        /// New name (one VM).
        #[arg(long)]
        name: Option<String>,
        /// New CID (one VM), or `none`; ends the VM's sessions.
        #[arg(long, value_parser = cid)]
        cid: Option<Cid>,
        /// Longest turn, instead of the pool's, or `default`.
        #[arg(long, value_parser = settings::slice_or_default, value_name = "TIME")]
        slice: Option<Limit>,
        /// Whether a program gets all GPUs that the VM may use at once, or none.
        #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
        gang: Option<bool>,
        /// Only these GPUs of the pool (numbers or UUIDs, as 0,2), or `all`; sessions on others
        /// end.
        #[arg(long, value_name = "GPUS", value_delimiter = ',')]
        gpus: Option<Vec<String>>,
        #[command(flatten, next_help_heading = LIMITS)]
        limits: Box<Changes<VmLimitsPatch>>,
    },
}

/// A CID, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cid(pub(crate) Option<u32>);

fn cid(text: &str) -> Result<Cid, String> {
    match text {
        "none" => Ok(Cid(None)),
        _ => text
            .parse()
            .map(|cid| Cid(Some(cid)))
            .map_err(|_| format!("`{text}` is not a CID; write a number from 3, or `none`")),
    }
}

/// `session …`
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List open sessions.
    List {
        /// Only sessions of these VMs.
        #[arg(long, value_parser = vm_ids::parse)]
        vm_id: Option<VmIds>,
    },
    /// End a session; its guest program gets an error.
    Kill {
        /// Number of the session in `session list`.
        #[arg(value_parser = settings::whole(0..=u64::MAX))]
        session_id: u64,
        /// Reason, for the guest and the audit trail.
        #[arg(long)]
        reason: Option<String>,
    },
}

/// `usage …`
#[derive(Debug, Subcommand)]
pub(crate) enum UsageCommand {
    /// Set the usage counters to zero; debts, strikes and limits are unchanged. The audit trail
    /// records the reset.
    Reset {
        /// The VMs: 1, 1-7 or 1-3,9.
        #[arg(long, alias = "vm", value_parser = vm_ids::parse, required_unless_present = "all")]
        vm_id: Option<VmIds>,
        /// All VMs.
        #[arg(long, conflicts_with = "vm_id")]
        all: bool,
    },
}

/// `sched …`
#[derive(Debug, Subcommand)]
pub(crate) enum SchedCommand {
    /// Dump the scheduler's last decisions, one JSON value per line, for `vgpu-sim replay`.
    #[command(after_help = "Example:\n  vgpu-admin sched log --file=sched.log")]
    Log {
        /// Write to this file instead of standard output.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// `weights …`
#[derive(Debug, Subcommand)]
pub(crate) enum WeightsCommand {
    /// Show the weights of the host and of each pool.
    Get,
    /// Set some weights; absent weights are unchanged.
    #[command(after_help = "\
Examples:
  vgpu-admin weights set --high=32
  vgpu-admin weights set --pool=B --low=2
  vgpu-admin weights set --pool=B --reset")]
    Set {
        /// Weights of this pool instead of the host.
        #[arg(long)]
        pool: Option<String>,
        /// Return to the defaults (host) or to the host's weights (pool).
        #[arg(long, conflicts_with_all = ["low", "medium", "high", "critical"])]
        reset: bool,
        /// Weight of class low.
        #[arg(long, value_parser = settings::whole(0..=u32::MAX))]
        low: Option<u32>,
        /// Weight of class medium.
        #[arg(long, value_parser = settings::whole(0..=u32::MAX))]
        medium: Option<u32>,
        /// Weight of class high.
        #[arg(long, value_parser = settings::whole(0..=u32::MAX))]
        high: Option<u32>,
        /// Weight of class critical.
        #[arg(long, value_parser = settings::whole(0..=u32::MAX))]
        critical: Option<u32>,
    },
}

#[cfg(test)]
mod tests;
