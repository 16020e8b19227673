//! `vm import`, `vm detach` and `cloudstack`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use vgpu_api::{MAX_VM_ID, Priority, VmLimitsPatch};

use super::{DryRun, LIMITS};
use crate::settings::{self, Changes};

/// Highest number of a VM of Proxmox VE.
const MAX_PROXMOX_VMID: u32 = 999_999_999;

/// `vm import …`
#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    /// VMs of libvirt (virsh): the CID of `<vsock>`.
    #[command(after_help = "\
Examples:
  vgpu-admin vm import libvirt --pool=A --dry-run
  vgpu-admin vm import libvirt web db --pool=A --priority=high
  virsh dumpxml web | vgpu-admin vm import libvirt --xml=- --pool=A")]
    Libvirt {
        /// The VMs: names, numbers or UUIDs; without a name, all.
        #[arg(value_name = "DOMAIN", conflicts_with = "xml")]
        domains: Vec<String>,
        /// Connection of virsh.
        #[arg(
            long,
            value_name = "URI",
            env = "LIBVIRT_DEFAULT_URI",
            default_value = "qemu:///system"
        )]
        connect: String,
        /// Read the XML of one VM from this file (`-`: standard input) instead of asking virsh.
        #[arg(long, value_name = "FILE")]
        xml: Option<PathBuf>,
        #[command(flatten)]
        options: ImportOptions,
    },
    /// VMs of Incus: the CID in `volatile.vsock_id`.
    #[command(after_help = "\
Examples:
  vgpu-admin vm import incus --pool=A --dry-run
  vgpu-admin vm import incus v1 --project=lab --pool=A
  incus list --format=json | vgpu-admin vm import incus --json=- --pool=A")]
    Incus {
        /// The VMs; without a name, all.
        #[arg(value_name = "INSTANCE")]
        instances: Vec<String>,
        /// VMs of this project.
        #[arg(long, value_name = "NAME", conflicts_with = "all_projects")]
        project: Option<String>,
        /// VMs of all projects.
        #[arg(long)]
        all_projects: bool,
        /// Read the list from this file (`-`: standard input) instead of asking incus.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["project", "all_projects"])]
        json: Option<PathBuf>,
        /// This host's name in the cluster, as `incus cluster list` shows it [default: the host
        /// name]. VMs on other members are refused: import them there.
        #[arg(long, value_name = "NAME")]
        member: Option<String>,
        #[command(flatten)]
        options: ImportOptions,
    },
    /// VMs of Proxmox VE: the CID of `args: -device vhost-vsock-pci,guest-cid=N`.
    #[command(after_help = "\
Examples:
  vgpu-admin vm import proxmox --pool=A --dry-run
  vgpu-admin vm import proxmox 105 --pool=A --memory=8GiB")]
    Proxmox {
        /// The VMs; without a number, all of this node.
        #[arg(value_name = "VMID", value_parser = settings::whole(1..=MAX_PROXMOX_VMID))]
        vmids: Vec<u32>,
        /// Directory of the configuration files.
        #[arg(long, value_name = "DIR", default_value = "/etc/pve/qemu-server")]
        dir: PathBuf,
        #[command(flatten)]
        options: ImportOptions,
    },
}

/// Settings of an import.
#[derive(Debug, Args)]
pub(crate) struct ImportOptions {
    /// Pool of VMs that are not registered; without it, only registered VMs are imported.
    #[arg(long)]
    pub(crate) pool: Option<String>,
    /// Class of new VMs.
    #[arg(long, value_parser = settings::priority(), default_value = Priority::default().name())]
    pub(crate) priority: Priority,
    /// Show the plan and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print only why VMs were refused, on standard error.
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Take over the registration that has the CID or the name, if it was registered by hand. For a
    /// registration of another origin, give --vm-id too.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Number of the VM in vgpud (one VM only). With --adopt, also the number of a registration of
    /// another origin or by hand.
    #[arg(
        long,
        value_name = "N",
        value_parser = settings::whole(1..=MAX_VM_ID)
    )]
    pub(crate) vm_id: Option<u32>,
    /// Name in vgpud, if the VM is new (one VM only).
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The VMs run now: another imported VM that is registered with the same CID loses the CID.
    #[arg(long)]
    pub(crate) running: bool,
    /// Shares of CloudStack: a VM of libvirt that CloudStack gave a share gets the pool, class and
    /// memory of the share; another VM with the CID of a share is refused. A missing file counts as
    /// empty.
    #[arg(long, value_name = "FILE")]
    pub(crate) shares: Option<PathBuf>,
    #[command(flatten, next_help_heading = LIMITS)]
    pub(crate) limits: Box<Changes<VmLimitsPatch>>,
}

/// `vm detach`
#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// The VM, by number or name, or its origin: `libvirt:UUID`, `incus:PROJECT/NAME` or
    /// `proxmox:VMID`. `vm show` shows the origin.
    #[arg(value_name = "VM", required_unless_present_any = ["xml", "vm_id"])]
    pub(crate) origin: Option<String>,
    /// The VM, as an option.
    #[arg(long, alias = "vm", hide = true, conflicts_with_all = ["origin", "xml"])]
    pub(crate) vm_id: Option<String>,
    /// Read the origin from the XML of a libvirt VM (`-`: standard input).
    #[arg(long, value_name = "FILE", conflicts_with = "origin")]
    pub(crate) xml: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

/// `cloudstack …`
#[derive(Debug, Subcommand)]
pub(crate) enum CloudstackCommand {
    /// Add the shares to the output of CloudStack's gpudiscovery.sh on standard input.
    #[command(after_help = "\
Example:
  gpudiscovery.sh | vgpu-admin cloudstack discover")]
    Discover {
        /// The shares.
        #[arg(long, value_name = "FILE", default_value = "/etc/vgpu/cloudstack.toml")]
        shares: PathBuf,
    },
    /// Replace the share in the XML of a VM on standard input by a vsock device. Needs no vgpud.
    #[command(after_help = "\
Example:
  vgpu-admin cloudstack transform < vm.xml")]
    Transform,
}
