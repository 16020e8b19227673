//! VMs and GPUs as arguments. `--vm-id`, `--vm` and `--gpu-id` are hidden options with the same
//! meaning. The usage line names only the argument: the argument is required, and an option that
//! conflicts with it takes its place.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use crate::vm_ids::{self, Vms};

/// VMs that the command needs.
#[derive(Debug, Args)]
pub(crate) struct SomeVms {
    /// The VMs, by number or name: 3, web, 1-7 or 1-3,web.
    #[arg(value_name = "VM", value_parser = vm_ids::vms, allow_negative_numbers = true)]
    #[arg(required = true)]
    given: Option<Vms>,
    /// The VMs, as an option.
    #[arg(long, alias = "vm", hide = true, value_parser = vm_ids::vms)]
    #[arg(allow_negative_numbers = true, conflicts_with = "given")]
    vm_id: Option<Vms>,
}

impl From<SomeVms> for Vms {
    fn from(vms: SomeVms) -> Vms {
        // clap requires one of both.
        vms.given.or(vms.vm_id).unwrap_or_default()
    }
}

/// VMs to which the command is limited.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct OnlyVms {
    /// Only these VMs, by number or name: 3, web, 1-7 or 1-3,web.
    #[arg(value_name = "VM", value_parser = vm_ids::vms, allow_negative_numbers = true)]
    given: Option<Vms>,
    /// The VMs, as an option.
    #[arg(long, alias = "vm", hide = true, value_parser = vm_ids::vms)]
    #[arg(allow_negative_numbers = true)]
    vm_id: Option<Vms>,
}

impl From<OnlyVms> for Option<Vms> {
    fn from(vms: OnlyVms) -> Option<Vms> {
        vms.given.or(vms.vm_id)
    }
}

/// The VM to which a list is limited.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct OnlyVm {
    /// Only this VM, by number or name.
    #[arg(value_name = "VM", value_parser = vm_ids::one, allow_negative_numbers = true)]
    given: Option<Vms>,
    /// The VM, as an option.
    #[arg(long, alias = "vm", hide = true, value_parser = vm_ids::one)]
    #[arg(allow_negative_numbers = true)]
    vm_id: Option<Vms>,
}

impl OnlyVm {
    pub(crate) fn vm(&self) -> Option<&Vms> {
        self.given.as_ref().or(self.vm_id.as_ref())
    }
}

/// VMs, or all.
#[derive(Debug, Args)]
pub(crate) struct VmsOrAll {
    /// The VMs, by number or name: 3, web, 1-7 or 1-3,web.
    #[arg(value_name = "VM", value_parser = vm_ids::vms, allow_negative_numbers = true)]
    #[arg(required = true)]
    given: Option<Vms>,
    /// The VMs, as an option.
    #[arg(long, alias = "vm", hide = true, value_parser = vm_ids::vms)]
    #[arg(allow_negative_numbers = true, conflicts_with = "given")]
    vm_id: Option<Vms>,
    /// All VMs, in place of VM.
    #[arg(long, conflicts_with_all = ["given", "vm_id"])]
    all: bool,
}

impl From<VmsOrAll> for Option<Vms> {
    /// `None`: all.
    fn from(vms: VmsOrAll) -> Option<Vms> {
        vms.given.or(vms.vm_id)
    }
}

/// Numbers of VMs that need not be registered.
#[derive(Debug, Args)]
pub(crate) struct NewVms {
    /// The numbers of the VMs: 1, 1-7 or 1-3,9.
    #[arg(long, alias = "vm", value_parser = vm_ids::numbers, allow_negative_numbers = true)]
    #[arg(required = true)]
    vm_id: Option<Vms>,
    /// The numbers, as an argument.
    #[arg(value_name = "VM", value_parser = vm_ids::numbers, allow_negative_numbers = true)]
    #[arg(hide = true, conflicts_with = "vm_id")]
    given: Option<Vms>,
}

/// A GPU that the command needs.
#[derive(Debug, Args)]
pub(crate) struct OneGpu {
    /// The GPU: its number in scan-gpus, or its UUID.
    #[arg(value_name = "GPU", value_parser = NonEmptyStringValueParser::new())]
    #[arg(required = true, allow_negative_numbers = true)]
    given: Option<String>,
    /// The GPU, as an option.
    #[arg(long, hide = true, value_name = "GPU", conflicts_with = "given")]
    #[arg(value_parser = NonEmptyStringValueParser::new(), allow_negative_numbers = true)]
    gpu_id: Option<String>,
}

impl From<OneGpu> for String {
    fn from(gpu: OneGpu) -> String {
        // clap requires one of both.
        gpu.given.or(gpu.gpu_id).unwrap_or_default()
    }
}

impl From<NewVms> for Vms {
    fn from(vms: NewVms) -> Vms {
        // clap requires one of both.
        vms.vm_id.or(vms.given).unwrap_or_default()
    }
}
