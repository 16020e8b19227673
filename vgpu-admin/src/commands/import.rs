//! `vm import` and `vm detach`.

use std::collections::BTreeSet;
use std::path::Path;

use hyper::Method;
use vgpu_api::{
    ApplyReport, ErrorCode, ErrorDetail, MoveRequest, Pool, RegisterRequest, Vm, VmLimits, VmPatch,
    exit,
};

use super::applied;
use crate::cli::{Detach, ImportCommand, ImportOptions};
use crate::client::{Client, tried};
use crate::error::Error;
use crate::import::cloudstack::Shares;
use crate::import::plan::{Action, Options, Row, first_free, plan};
use crate::import::{Listing, Unusable, incus, libvirt, proxmox, read_description, read_list};
use crate::output::{Cell, Format, Grid, json, print};

/// Attempts to register a VM. Each failed attempt is a number that another command took meanwhile.
const ATTEMPTS: u32 = 64;

impl From<Unusable> for Error {
    fn from(input: Unusable) -> Error {
        match input {
            Unusable::Closed(why) => Error::Source(why),
            Unusable::Wrong(why) => Error::Usage(why),
        }
    }
}

pub(super) async fn run(
    client: &Client,
    output: Format,
    command: ImportCommand,
) -> Result<u8, Error> {
    let (listing, args) = listing(command)?;
    let (dry_run, quiet) = (args.dry_run, args.quiet);
    let options = options(args)?;
    let count = listing.found.len() + listing.unread.len();
    if count != 1 && (options.vm_id.is_some() || options.name.is_some()) {
        return Err(Error::Usage(format!(
            "--vm-id and --name apply to one VM, but the import has {count} VMs: name the VM."
        )));
    }
    let known: Vec<Vm> = client.get("vms").await?;
    let mut rows = plan(&listing, &known, &options);
    if dry_run {
        let pools: Vec<Pool> = client.get("pools").await?;
        rows.iter_mut().for_each(|row| row.check(&pools));
    } else {
        apply(client, &mut rows, &known, options.vm_id.is_none()).await?;
    }
    if quiet {
        show_refusals(&rows);
    } else {
        show(output, &rows, dry_run)?;
    }
    let refused = rows.iter().any(|row| row.action == Action::Refused);
    Ok(if refused { exit::CONFLICT } else { exit::DONE })
}

fn listing(command: ImportCommand) -> Result<(Listing, ImportOptions), Error> {
    Ok(match command {
        ImportCommand::Libvirt {
            domains,
            connect,
            xml,
            options,
        } => match xml {
            None => {
                let listing = libvirt::list(&connect, &domains).map_err(Error::Source)?;
                (listing, options)
            }
            Some(file) => {
                let text = read_description(&file)?;
                let listing = Listing {
                    found: vec![libvirt::read(&text).map_err(Error::Usage)?],
                    unread: Vec::new(),
                };
                (listing, options)
            }
        },
        ImportCommand::Incus {
            instances,
            project,
            all_projects,
            json,
            member,
            options,
        } => {
            let (text, wrong): (_, fn(_) -> _) = match json {
                None => {
                    let list = incus::list(project.as_deref(), all_projects);
                    (list.map_err(Error::Source)?, Error::Source)
                }
                Some(file) => (read_list(&file)?, Error::Usage),
            };
            let member = member.unwrap_or_else(host_name);
            let listing = incus::read(&text, &instances, &member).map_err(wrong)?;
            (listing, options)
        }
        ImportCommand::Proxmox {
            vmids,
            dir,
            options,
        } => (proxmox::list(&dir, &vmids).map_err(Error::Source)?, options),
    })
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

fn options(args: ImportOptions) -> Result<Options, Error> {
    let shares = match &args.shares {
        Some(file) if file.exists() => read_shares(file)?,
        _ => Shares::default(),
    };
    let mut limits = VmLimits::default();
    args.limits.patch.apply_to(&mut limits);
    Ok(Options {
        pool: args.pool,
        priority: args.priority,
        limits,
        adopt: args.adopt,
        vm_id: args.vm_id,
        name: args.name,
        running: args.running,
        shares,
    })
}

/// Reads `/etc/vgpu/cloudstack.toml`.
pub(super) fn read_shares(file: &Path) -> Result<Shares, Error> {
    let text = read_description(file)?;
    Shares::read(&text).map_err(|why| Error::Usage(format!("{}: {why}", file.display())))
}

/// Carries the plan out. A step that vgpud refuses becomes a refused row; other VMs go on.
/// With `any_number`, the numbers of new VMs may differ from the plan.
async fn apply(
    client: &Client,
    rows: &mut [Row],
    known: &[Vm],
    any_number: bool,
) -> Result<(), Error> {
    let freed: BTreeSet<u32> = rows.iter().filter_map(|row| row.steps.frees).collect();
    for vm_id in freed {
        match patch(client, &without_cid(vm_id)).await {
            // The VM is gone meanwhile, or the step that needs the CID fails and says why.
            Ok(_) | Err(Error::Api(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let mut numbers: BTreeSet<u32> = known.iter().map(|vm| vm.vm_id).collect();
    numbers.extend(rows.iter().filter_map(|row| row.vm_id));
    for row in rows {
        let attempts = if any_number { ATTEMPTS } else { 1 };
        match steps(client, row, &mut numbers, attempts).await {
            Ok(()) => {}
            Err(Error::Api(why)) => row.leave(Action::Refused, why.to_string()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn steps(
    client: &Client,
    row: &mut Row,
    numbers: &mut BTreeSet<u32>,
    attempts: u32,
) -> Result<(), Error> {
    if let Some(request) = row.steps.register.take() {
        let (vm_id, report) = register(client, request, numbers, attempts).await?;
        row.vm_id = Some(vm_id);
        row.warnings.extend(report.warnings);
    }
    if let Some(change) = row.steps.patch.take() {
        let report = patch(client, &change).await?;
        row.warnings.extend(report.warnings);
    }
    if let (Some(pool), Some(vm_id)) = (row.steps.move_to.take(), row.vm_id) {
        let vm_ids = vec![vm_id];
        let request = MoveRequest { vm_ids, pool };
        let report: ApplyReport = client.post("vms/move", &request).await?;
        row.warnings.extend(report.warnings);
    }
    Ok(())
}

/// Registers a VM. If another command took the number meanwhile, another number is chosen.
async fn register(
    client: &Client,
    mut request: RegisterRequest,
    numbers: &mut BTreeSet<u32>,
    attempts: u32,
) -> Result<(u32, ApplyReport), Error> {
    for _ in 1..attempts {
        match client.post("vms", &request).await {
            Err(Error::Api(why)) if why.code == ErrorCode::VmExists => {}
            done => return done.map(|report| (request.vm_ids[0], report)),
        }
        let known: Vec<Vm> = client.get("vms").await?;
        numbers.extend(known.iter().map(|vm| vm.vm_id));
        request.vm_ids = vec![first_free(numbers)];
        numbers.extend(&request.vm_ids);
    }
    let report = client.post("vms", &request).await?;
    Ok((request.vm_ids[0], report))
}

async fn patch(client: &Client, change: &VmPatch) -> Result<ApplyReport, Error> {
    client.call(Method::PATCH, "vms", Some(change)).await
}

fn without_cid(vm_id: u32) -> VmPatch {
    VmPatch {
        vm_ids: vec![vm_id],
        cid: Some(None),
        ..VmPatch::default()
    }
}

fn show(output: Format, rows: &[Row], dry_run: bool) -> Result<(), Error> {
    if output == Format::Json {
        return json(&serde_json::json!({ "dry_run": dry_run, "vms": rows }));
    }
    let mut grid = Grid::new(&["ACTION", "VM|vm_id", "NAME", "CID", "+ORIGIN", "WARNINGS"]);
    for row in rows {
        grid.row([
            row.action.name().into(),
            Cell::maybe(row.vm_id),
            Cell::from(&row.name),
            Cell::maybe(row.cid),
            Cell::maybe(row.origin.as_ref()),
            row.warnings.join(" ").into(),
        ]);
    }
    if grid.is_empty() && output != Format::Csv {
        return print("The hypervisor has no VM.\n");
    }
    let mut text = grid.render(output);
    if dry_run && output != Format::Csv {
        text.push_str("Nothing was changed (--dry-run).\n");
    }
    print(&text)
}

fn show_refusals(rows: &[Row]) {
    for row in rows.iter().filter(|row| row.action == Action::Refused) {
        let why = row.warnings.join(" ");
        match rows.len() {
            1 => eprintln!("{why}"),
            _ => eprintln!("{}: {why}", row.name),
        }
    }
}

pub(super) async fn detach(client: &Client, output: Format, args: Detach) -> Result<(), Error> {
    let named = args.origin.or(args.vm_id);
    let given = named.is_some();
    let origin = match (named, args.xml) {
        (Some(named), _) => named,
        (None, file) => {
            let file = file.unwrap_or_else(|| "-".into());
            // Only the UUID counts, so the XML may be larger than that of an import.
            libvirt::origin(&read_list(&file)?).map_err(Error::Usage)?
        }
    };
    let vms: Vec<Vm> = client.get("vms").await?;
    // No name has a colon, and every origin has one.
    let by_origin = origin.contains(':');
    let is_named = |vm: &&Vm| match by_origin {
        true => vm.origin.as_ref() == Some(&origin),
        false => vm.name == origin || vm.vm_id.to_string() == origin,
    };
    let vm = vms.iter().find(is_named);
    if given && vm.is_none() {
        let hint = "An origin is libvirt:UUID, incus:PROJECT/NAME or proxmox:VMID; \
                    `vgpu-admin vm list -o wide` shows numbers, names and origins.";
        let what = match by_origin {
            true => "origin",
            false => "number or name",
        };
        return Err(Error::Api(ErrorDetail {
            code: ErrorCode::VmNotFound,
            message: format!("No VM has the {what} {origin}."),
            hint: Some(hint.into()),
        }));
    }
    let report = match vm {
        Some(vm) if vm.cid.is_some() => {
            let path = tried("vms", args.dry_run.dry_run);
            let change = without_cid(vm.vm_id);
            client.call(Method::PATCH, &path, Some(&change)).await?
        }
        other => ApplyReport {
            message: match other {
                Some(vm) => format!("VM {} ({}) has no CID already.", vm.vm_id, vm.name),
                None => format!("No VM has the origin {origin}."),
            },
            ..ApplyReport::default()
        },
    };
    applied(output, &report)
}
