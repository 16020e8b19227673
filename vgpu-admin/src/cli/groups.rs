//! The commands of the groups `gpu`, `pool`, `session`, `usage`, `sched` and `weights`.

use std::path::PathBuf;

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use vgpu_api::PoolPatch;

use super::vms::{OneGpu, OnlyVms, VmsOrAll};
use super::{DryRun, Waiting};
use crate::settings::{self, Changes};
use crate::times::moment;

/// `gpu …`
#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Run a canary kernel.
    #[command(after_help = "Example:\n  vgpu-admin gpu check 0")]
    Check {
        #[command(flatten)]
        gpu: OneGpu,
    },
    /// Admit no new sessions on the GPU; running ones go on.
    #[command(
        after_help = "Examples:\n  vgpu-admin gpu drain 0\n  vgpu-admin gpu drain 0 --wait --timeout=30min"
    )]
    Drain {
        #[command(flatten)]
        gpu: OneGpu,
        #[command(flatten)]
        waiting: Waiting,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Forget a vanished GPU.
    #[command(after_help = "Example:\n  vgpu-admin gpu forget 3 --dry-run")]
    Forget {
        #[command(flatten)]
        gpu: OneGpu,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Run a canary kernel and, if it passes, serve the GPU again.
    #[command(after_help = "Example:\n  vgpu-admin gpu resume 0")]
    Resume {
        #[command(flatten)]
        gpu: OneGpu,
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
    #[command(after_help = "Example:\n  vgpu-admin pool list -o wide")]
    List,
    /// Show all settings of a pool.
    #[command(after_help = "Example:\n  vgpu-admin pool show A")]
    Show {
        /// Name of the pool.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// Change the settings of a pool; effective at once. The value `default` is that of vgpud's
    /// configuration.
    #[command(
        after_help = "Examples:\n  vgpu-admin pool set A --slice=5ms --hard-limit=30s\n  vgpu-admin pool set A --policy=default"
    )]
    Set {
        /// Name of the pool.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten, next_help_heading = "Settings")]
        settings: Changes<PoolPatch>,
    },
    /// Delete a pool without VMs.
    #[command(after_help = "Example:\n  vgpu-admin pool delete A")]
    Delete {
        /// Name of the pool.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// `session …`
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List open sessions, the newest first.
    #[command(
        after_help = "Examples:\n  vgpu-admin session list web\n  vgpu-admin session list --until=1h"
    )]
    List {
        #[command(flatten)]
        vms: OnlyVms,
        /// Only sessions that began at or after this time: 10min, 2h, 1d (ago), or of RFC 3339.
        #[arg(long, value_name = "TIME", value_parser = moment)]
        since: Option<u64>,
        /// Only sessions that began before this time.
        #[arg(long, value_name = "TIME", value_parser = moment)]
        until: Option<u64>,
    },
    /// End a session; its guest program gets an error.
    #[command(after_help = "Example:\n  vgpu-admin session kill 17 --reason=maintenance")]
    Kill {
        /// Number of the session in `session list`.
        #[arg(value_parser = settings::whole(0..=u64::MAX))]
        session_id: u64,
        /// Reason, for the guest and the audit trail.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// `usage …`
#[derive(Debug, Subcommand)]
pub(crate) enum UsageCommand {
    /// Set the usage counters to zero; debts, strikes and limits are unchanged. The audit trail
    /// records the reset.
    #[command(
        override_usage = "vgpu-admin usage reset [OPTIONS] <VM|--all>",
        after_help = "Examples:\n  vgpu-admin usage reset web\n  vgpu-admin usage reset --all --dry-run"
    )]
    Reset {
        #[command(flatten)]
        vms: VmsOrAll,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// `sched …`
#[derive(Debug, Subcommand)]
pub(crate) enum SchedCommand {
    /// Dump the scheduler's last decisions, one JSON value per line, for `vgpu-sim replay`; with
    /// `-o csv`, only the records, as a table.
    #[command(
        after_help = "Examples:\n  vgpu-admin sched log --file=sched.log\n  vgpu-admin sched log -o csv"
    )]
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
    #[command(after_help = "Example:\n  vgpu-admin weights get -o csv")]
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
