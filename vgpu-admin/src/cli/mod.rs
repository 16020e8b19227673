//! The command line. The help texts here are the reference of the commands.

mod groups;
mod import;
mod vms;

use std::convert::Infallible;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};
use vgpu_api::{Limit, Priority, Severity, Unit, VmLimitsPatch, exit};

pub(crate) use self::groups::{
    GpuCommand, PoolCommand, SchedCommand, SessionCommand, UsageCommand, WeightsCommand,
};
pub(crate) use self::import::{CloudstackCommand, Detach, ImportCommand, ImportOptions};
use self::vms::{NewVms, OneGpu, OnlyVm, OnlyVms, SomeVms};
use crate::output::Format;
use crate::settings::{self, Changes};
use crate::times::{self, Since, moment};

const EXAMPLES: &str = "\
Examples:
  vgpu-admin scan-gpus                                     find the host's GPUs
  vgpu-admin assign-gpu 0 --pool=A                         map GPU 0 to pool A (and create A)
  vgpu-admin register-vm --vm-id=1-7 --pool=A --priority=high
  vgpu-admin status --watch                                everything on one screen

Exit codes:";

/// The end of the help text, after the options: examples and exit codes.
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
    /// The daemon's admin socket [env: VGPU_ADMIN_SOCKET] [default: /run/vgpu/admin.sock]
    // Not with clap's `env`: clap then shows the option as required in the usage line of errors.
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

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
    #[command(
        after_help = "Examples:\n  vgpu-admin status --watch -o wide\n  vgpu-admin status web,1-7\n  vgpu-admin status --pool=A --all"
    )]
    Status {
        #[command(flatten)]
        vms: OnlyVms,
        /// Only this pool, its GPUs and its VMs.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        pool: Option<String>,
        /// Show idle VMs too; tables of more than 40 VMs leave them out.
        #[arg(long)]
        all: bool,
        /// Repeat the screen.
        #[arg(long, short)]
        watch: bool,
        /// Time between two screens of --watch, in seconds.
        #[arg(long, default_value_t = 1, value_parser = settings::whole(1..=3_600_u64))]
        interval: u64,
    },

    /// Scan for GPUs: model, UUID, memory, PCI address, driver, MIG, health, pool.
    #[command(
        after_help = "Examples:\n  vgpu-admin scan-gpus\n  vgpu-admin scan-gpus --cached -o wide"
    )]
    ScanGpus {
        /// List the known GPUs without a new scan. JSON has the form of a scan, without warnings.
        #[arg(long)]
        cached: bool,
    },

    /// Assign a GPU to a pool, which is created if it does not exist.
    #[command(after_help = "Example:\n  vgpu-admin assign-gpu 0 --pool=A")]
    AssignGpu {
        #[command(flatten)]
        gpu: OneGpu,
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
    #[command(
        after_help = "Examples:\n  vgpu-admin unassign-gpu 0 --dry-run\n  vgpu-admin unassign-gpu 0 --pool=A"
    )]
    UnassignGpu {
        #[command(flatten)]
        gpu: OneGpu,
        /// Only from this pool, if the GPU serves several pools.
        #[arg(long)]
        pool: Option<String>,
        #[command(flatten)]
        dry_run: DryRun,
    },

    /// Drain the host: no GPU admits new sessions, running ones go on; `resume` ends this.
    #[command(
        after_help = "Examples:\n  vgpu-admin drain --wait\n  vgpu-admin drain --wait --timeout=30min\n  vgpu-admin drain --dry-run"
    )]
    Drain {
        #[command(flatten)]
        waiting: Waiting,
        #[command(flatten)]
        dry_run: DryRun,
    },

    /// Resume every draining GPU: run a canary kernel and, if it passes, serve the GPU again.
    #[command(after_help = "Example:\n  vgpu-admin resume")]
    Resume,

    /// Check, drain and resume a GPU, or forget a vanished GPU.
    #[command(subcommand, after_help = "Example:\n  vgpu-admin gpu drain 0 --wait")]
    Gpu(GpuCommand),

    /// Create, list, change and delete pools.
    #[command(
        subcommand,
        after_help = "Example:\n  vgpu-admin pool set A --slice=5ms"
    )]
    Pool(PoolCommand),

    /// Register VMs, so that their guests are served.
    #[command(after_help = "\
Examples:
  vgpu-admin register-vm --vm-id=1 --pool=A --priority=high --cid=42
  vgpu-admin register-vm --vm-id=8-20 --pool=B --memory=8GiB --calls-per-s=100000")]
    RegisterVm(RegisterVm),

    /// Remove VMs; their sessions end.
    #[command(
        after_help = "Examples:\n  vgpu-admin unregister-vm 7 --dry-run\n  vgpu-admin unregister-vm 8-20"
    )]
    UnregisterVm {
        #[command(flatten)]
        vms: SomeVms,
        #[command(flatten)]
        dry_run: DryRun,
    },

    /// Move VMs to another pool; their sessions on GPUs that do not serve it end.
    #[command(after_help = "Example:\n  vgpu-admin move-vm 1-3 --pool=B")]
    MoveVm {
        #[command(flatten)]
        vms: SomeVms,
        /// The new pool.
        #[arg(long)]
        pool: String,
        #[command(flatten)]
        dry_run: DryRun,
    },

    /// List, show and change VMs.
    #[command(subcommand, after_help = "Example:\n  vgpu-admin vm list -o wide")]
    Vm(VmCommand),

    /// List and end sessions (a session is one guest process).
    #[command(subcommand, after_help = "Example:\n  vgpu-admin session list")]
    Session(SessionCommand),

    /// Refuse VMs and end their sessions, until they are released.
    #[command(after_help = "Example:\n  vgpu-admin quarantine 4 --reason=miner")]
    Quarantine {
        #[command(flatten)]
        vms: SomeVms,
        /// Reason, for the guest and the audit trail.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        dry_run: DryRun,
    },

    /// Serve quarantined VMs again and forget their strikes.
    #[command(after_help = "Example:\n  vgpu-admin release 1-3")]
    Release {
        #[command(flatten)]
        vms: SomeVms,
    },

    /// Show why a VM waits (or not), which VMs are before it, and its longest possible wait.
    #[command(after_help = "Examples:\n  vgpu-admin explain web\n  vgpu-admin explain 1-7 -o wide")]
    Explain {
        #[command(flatten)]
        vms: SomeVms,
    },

    /// Export the usage of VMs: GPU time, waits, turns, bytes, peaks of memory; or reset it.
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  vgpu-admin usage -o csv\n  vgpu-admin usage 1-7 -o json\n  vgpu-admin usage reset web"
    )]
    Usage {
        #[command(flatten)]
        vms: OnlyVms,
        /// The action, instead of an export.
        #[command(subcommand)]
        command: Option<UsageCommand>,
    },

    /// Show decisions of the scheduler.
    #[command(
        subcommand,
        after_help = "Example:\n  vgpu-admin sched log --file=sched.log"
    )]
    Sched(SchedCommand),

    /// Show or set the weights of the priority classes.
    #[command(subcommand, after_help = "Example:\n  vgpu-admin weights get")]
    Weights(WeightsCommand),

    /// Show events: sessions, limits, strikes, refusals, GPUs; the newest first.
    #[command(
        after_help = "Examples:\n  vgpu-admin events --since=1h --severity=warning\n  vgpu-admin events web --since=2026-11-20T00:00:00Z --until=1d\n  vgpu-admin events --follow -o csv"
    )]
    Events {
        /// Show events, oldest first, as they happen, also over restarts of vgpud.
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        period: Period,
        /// Only events of at least this severity.
        #[arg(long, value_parser = settings::severity())]
        severity: Option<Severity>,
    },

    /// Show the changes by administrators, the newest first.
    #[command(
        after_help = "Examples:\n  vgpu-admin audit --since=1d\n  vgpu-admin audit 3 -n 10\n  vgpu-admin audit --who=uid:1000 --target=refused"
    )]
    Audit {
        #[command(flatten)]
        period: Period,
        #[command(flatten)]
        lines: AuditLines,
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
    #[command(
        subcommand,
        after_help = "Example:\n  vgpu-admin cloudstack transform < vm.xml"
    )]
    Cloudstack(CloudstackCommand),

    /// Make the daemon read its configuration file again.
    #[command(after_help = "Example:\n  vgpu-admin reload")]
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
    #[command(
        after_help = "Examples:\n  vgpu-admin restore /root/vgpu.backup --dry-run\n  vgpu-admin restore /root/vgpu.backup"
    )]
    Restore {
        /// A file made by `vgpu-admin backup`.
        file: PathBuf,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// The option of commands that end or lose something.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DryRun {
    /// Change nothing; say what the command would do and which sessions would end.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// The options of drains.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Waiting {
    /// Wait until no session runs, also over restarts of vgpud.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) wait: bool,
    /// Longest wait, as 30s, 10min or 2h; exit code 8 if sessions still run then.
    #[arg(long, requires = "wait", value_name = "TIME", value_parser = timeout)]
    pub(crate) timeout: Option<u64>,
}

/// A clap value parser for a wait, in ms.
fn timeout(text: &str) -> Result<u64, String> {
    match Unit::Ms.parse(text)? {
        0 => Err("a wait of 0 is none; leave --wait out".into()),
        ms => Ok(ms),
    }
}

/// Which events or entries to show.
#[derive(Debug, Args)]
pub(crate) struct Period {
    /// Only from this time on: 10min, 2h, 1d (ago), or of RFC 3339, as 2026-11-20T09:31:25Z. A
    /// plain number is that of an event or entry: only later ones, oldest first.
    #[arg(long, value_name = "TIME", value_parser = times::since)]
    pub(crate) since: Option<Since>,
    /// Only before this time.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) until: Option<u64>,
    #[command(flatten)]
    pub(crate) only: OnlyVm,
    /// Largest number of lines.
    #[arg(long, short = 'n', default_value_t = 50, value_parser = settings::whole(1..=1_000_u32))]
    pub(crate) limit: u32,
}

/// Filters of `audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditLines {
    /// Only lines of this caller: uid:1000, token:robot, or vgpud for the daemon itself.
    #[arg(long, value_name = "CALLER")]
    pub(crate) who: Option<String>,
    /// Only lines of this action, as `vm-set`; `refused`: every refused command.
    #[arg(long)]
    pub(crate) action: Option<String>,
    /// Only lines whose target contains this text, as `pool A` or `refused`.
    #[arg(long, value_name = "TEXT")]
    pub(crate) target: Option<String>,
}

/// `register-vm`
#[derive(Debug, Args)]
pub(crate) struct RegisterVm {
    #[command(flatten)]
    pub(crate) vms: NewVms,
    /// Pool of the VMs.
    #[arg(long)]
    pub(crate) pool: String,
    /// Class of the VMs.
    #[arg(long, value_parser = settings::priority(), default_value = Priority::default().name())]
    pub(crate) priority: Priority,
    /// AF_VSOCK CID, from 3; for several VMs, the CID of the first, and the others follow.
    #[arg(long, value_parser = cid_number)]
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
    /// Weight within the class in percent, from 1 to 10000: 200 or 200% is twice the weight.
    #[arg(long, value_parser = settings::factor, value_name = "PERCENT")]
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
    #[command(
        subcommand,
        after_help = "Example:\n  vgpu-admin vm import libvirt --pool=A --dry-run"
    )]
    Import(ImportCommand),
    /// Take the CID from an imported VM that stopped: its sessions end, its settings and usage
    /// stay.
    #[command(
        after_help = "Examples:\n  vgpu-admin vm detach web\n  vgpu-admin vm detach proxmox:105"
    )]
    Detach(Detach),
    /// List VMs.
    #[command(after_help = "Example:\n  vgpu-admin vm list --pool=A")]
    List {
        /// Only VMs of this pool.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        pool: Option<String>,
    },
    /// Show all facts about VMs.
    #[command(after_help = "Example:\n  vgpu-admin vm show 1-3")]
    Show {
        #[command(flatten)]
        vms: SomeVms,
    },
    /// Change priority, limits and quotas; effective at once.
    #[command(after_help = "\
Examples:
  vgpu-admin vm set 4 --priority=high
  vgpu-admin vm set 8-20 --calls-per-s=50000 --memory=unlimited
  vgpu-admin vm set 5 --slice=500us --gpus=0,2 --gang")]
    Set {
        #[command(flatten)]
        vms: SomeVms,
        /// New class.
        #[arg(long, value_parser = settings::priority())]
        priority: Option<Priority>,
        /// New weight within the class in percent, from 1 to 10000: 200 or 200% is twice the
        /// weight.
        #[arg(long, value_parser = settings::factor, value_name = "PERCENT")]
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
        /// Only of `register-vm`: the refusal says so.
        #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
        #[arg(value_parser = refuse_peer_uid)]
        peer_uid: Option<Infallible>,
        #[command(flatten, next_help_heading = LIMITS)]
        limits: Box<Changes<VmLimitsPatch>>,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// A CID, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cid(pub(crate) Option<u32>);

fn cid(text: &str) -> Result<Cid, String> {
    match text {
        "none" => Ok(Cid(None)),
        _ => cid_number(text)
            .map(|cid| Cid(Some(cid)))
            .map_err(|why| why + ", or `none`"),
    }
}

/// 1 and 2 pass too, because vgpud serves programs of the host with `listen.allow_local_cid`.
fn cid_number(text: &str) -> Result<u32, String> {
    settings::whole(1..=u32::MAX - 1)(text).or_else(|_| {
        let told = settings::whole(3..=u32::MAX - 1)(text);
        told.map_err(|why| why + ", or 1 or 2 for programs of this host")
    })
}

/// Refuses `--peer-uid` of `vm set`, because a registration keeps its uid.
fn refuse_peer_uid(_: &str) -> Result<Infallible, String> {
    Err(
        "a registration keeps its uid: unregister the VM, then register the VM with this --peer-uid"
            .into(),
    )
}

#[cfg(test)]
mod tests;
