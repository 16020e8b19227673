//! VMs: registration, identity, limits, quarantine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use vgpu_api::{
    ErrorCode, ErrorDetail, Limit, MAX_BATCH, Quarantine, QuarantineRequest, RegisterRequest,
    VmLimits, VmLimitsPatch, VmPatch,
};

use super::super::command::{Outcome, invalid, refuse};
use super::warnings::local_cid;
use super::{Catalog, Context, ranges};
use crate::mediation::Change;
use crate::model::{VmRecord, counted};
use crate::rules;

impl Catalog {
    pub(super) fn register_vms(
        &mut self,
        request: &RegisterRequest,
        context: &Context,
    ) -> Result<Outcome, ErrorDetail> {
        check_registration(request)?;
        self.pool(&request.pool)?;
        let mut outcome = Outcome {
            target: format!("vm {}", ranges(request.vm_ids.iter().copied())),
            ..Outcome::default()
        };
        for (position, vm_id) in request.vm_ids.iter().enumerate() {
            let vm = self.requested_vm(request, *vm_id, position, context)?;
            if let Some(known) = self.vms.get(vm_id) {
                same_registration(known, &vm)?;
                continue;
            }
            self.check_identity(&vm)?;
            self.effective_limits(&request.limits.changes(), &vm, context)?;
            self.last_generation += 1;
            let vm = VmRecord {
                generation: self.last_generation,
                ..vm
            };
            self.vms.insert(*vm_id, vm.clone());
            outcome.changes.push(Change::VmUpserted {
                vm,
                debt_ns: Some(0),
            });
        }
        outcome.message = match outcome.changes.len() {
            0 => "Nothing to do: registered already, with the same settings.".into(),
            1 => format!("1 VM registered in pool {}.", request.pool),
            n => format!("{n} VMs registered in pool {}.", request.pool),
        };
        let count = u32::try_from(request.vm_ids.len()).unwrap_or(u32::MAX);
        let cids = request.first_cid.into_iter();
        let cids = cids.flat_map(|first| (0..count).map(move |at| first.saturating_add(at)));
        outcome.warnings = self.pool_warnings(&request.pool);
        outcome.warnings.extend(local_cid(cids, context));
        outcome.warnings.extend(self.vm_warnings(&request.vm_ids));
        Ok(outcome)
    }

    fn requested_vm(
        &self,
        request: &RegisterRequest,
        vm_id: u32,
        position: usize,
        context: &Context,
    ) -> Result<VmRecord, ErrorDetail> {
        let several = request.vm_ids.len() > 1;
        let name = match &request.name {
            None => format!("vm{vm_id}"),
            Some(name) if several => format!("{name}-{vm_id}"),
            Some(name) => name.clone(),
        };
        rules::vm_name(&name).map_err(invalid)?;
        let offset = u32::try_from(position).unwrap_or(u32::MAX);
        let cid = request.first_cid.map(|first| first.saturating_add(offset));
        if let Some(cid) = cid {
            rules::cid(cid).map_err(invalid)?;
        }
        let socket = request
            .socket
            .as_ref()
            .map(|path| rules::socket_of(path, vm_id));
        if let Some(socket) = &socket {
            rules::socket(socket).map_err(invalid)?;
            self.new_socket(vm_id, socket, &context.own_paths)
                .map_err(invalid)?;
        }
        Ok(VmRecord {
            vm_id,
            name,
            pool: request.pool.clone(),
            priority: request.priority,
            factor_percent: request.factor_percent.unwrap_or(100),
            generation: 0,
            cid,
            socket,
            peer_uid: request.peer_uid,
            slice_us: request.slice_us,
            gang: request.gang,
            gpus: self.allowlist(request.gpus.as_deref())?,
            limits: request.limits.clone(),
            registered_unix_ms: context.now_unix_ms,
            origin: request.origin.clone(),
            ..VmRecord::default()
        })
    }

    /// Checks the limits of a VM together with those of configuration and pool.
    fn effective_limits(
        &self,
        changes: &VmLimitsPatch,
        vm: &VmRecord,
        context: &Context,
    ) -> Result<(), ErrorDetail> {
        let pool = self.pools.get(&vm.pool).map(|pool| &pool.settings);
        let effective = context.defaults.limits_of(vm, pool);
        rules::effective_limits(changes, &vm.limits, &effective).map_err(invalid)
    }

    /// Refuses a socket among vgpud's own paths. A VM keeps a socket with which it is already
    /// registered, because an older vgpud may have allowed the path.
    pub(in crate::store) fn new_socket(
        &self,
        vm_id: u32,
        socket: &str,
        own_paths: &[PathBuf],
    ) -> Result<(), String> {
        let registered = self.vms.get(&vm_id).and_then(|vm| vm.socket.as_deref());
        if registered == Some(socket) {
            return Ok(());
        }
        rules::socket_outside(socket, own_paths)
    }

    /// Returns the UUIDs of the named GPUs, which must be known.
    fn allowlist(&self, named: Option<&[String]>) -> Result<Option<BTreeSet<String>>, ErrorDetail> {
        let Some(named) = named else { return Ok(None) };
        if named.is_empty() {
            return Err(invalid(
                "Name at least one GPU that the VM may use, or `null` for all of its pool.".into(),
            ));
        }
        let uuids = named
            .iter()
            .map(|name| Ok(self.gpu(name)?.seen.uuid.clone()));
        uuids.collect::<Result<_, _>>().map(Some)
    }

    /// Checks that no other VM has the same name, CID, socket or origin.
    fn check_identity(&self, vm: &VmRecord) -> Result<(), ErrorDetail> {
        for other in self.vms.values().filter(|other| other.vm_id != vm.vm_id) {
            let who = format!("VM {} ({})", other.vm_id, other.name);
            if other.name == vm.name {
                return Err(refuse(
                    ErrorCode::NameInUse,
                    format!("The name {:?} belongs to {who}.", vm.name),
                    "Give another one with --name.",
                ));
            }
            if let (Some(cid), true) = (vm.cid, other.cid == vm.cid) {
                return Err(refuse(
                    ErrorCode::CidInUse,
                    format!("CID {cid} belongs to {who}."),
                    "Each VM needs a CID of its own; it is set in the VM's vsock device.",
                ));
            }
            if let (Some(origin), true) = (&vm.origin, other.origin == vm.origin) {
                return Err(refuse(
                    ErrorCode::OriginInUse,
                    format!("The origin {origin} belongs to {who}."),
                    "Import the VM again, which changes that registration, or unregister that VM first.",
                ));
            }
            // Paths are compared instead of strings: `/a//b` is `/a/b`.
            if vm.socket.is_some()
                && other.socket.as_ref().map(Path::new) == vm.socket.as_ref().map(Path::new)
            {
                return Err(refuse(
                    ErrorCode::SocketInUse,
                    format!(
                        "The socket {:?} belongs to {who}.",
                        vm.socket.as_deref().unwrap_or("")
                    ),
                    "Each VM needs a socket of its own.",
                ));
            }
        }
        Ok(())
    }

    pub(super) fn unregister_vms(&mut self, vm_ids: &[u32]) -> Result<Outcome, ErrorDetail> {
        check_batch(vm_ids)?;
        let mut changes = Vec::new();
        for &vm_id in vm_ids {
            let generation = self.vm(vm_id)?.generation;
            changes.push(Change::VmRemoved { vm_id, generation });
        }
        for vm_id in vm_ids {
            self.vms.remove(vm_id);
        }
        Ok(outcome(vm_ids, changes, "unregistered"))
    }

    pub(super) fn set_vms(
        &mut self,
        patch: &VmPatch,
        context: &Context,
    ) -> Result<Outcome, ErrorDetail> {
        check_batch(&patch.vm_ids)?;
        if patch.vm_ids.len() > 1 && (patch.name.is_some() || patch.cid.is_some()) {
            return Err(invalid(
                "A name or CID can only be given to one VM at a time.".into(),
            ));
        }
        check_origin(
            &patch.vm_ids,
            patch.origin.as_ref().and_then(Option::as_ref),
        )?;
        let gpus = match &patch.gpus {
            None => None,
            Some(named) => Some(self.allowlist(named.as_deref())?),
        };
        let mut outcome = self.change_vms(&patch.vm_ids, "changed", |catalog, vm| {
            if let Some(gpus) = &gpus {
                vm.gpus.clone_from(gpus);
            }
            vm.gang = patch.gang.unwrap_or(vm.gang);
            vm.slice_us = patch.slice_us.unwrap_or(vm.slice_us);
            vm.slice_us.map_or(Ok(()), rules::slice).map_err(invalid)?;
            vm.priority = patch.priority.unwrap_or(vm.priority);
            vm.factor_percent = patch.factor_percent.unwrap_or(vm.factor_percent);
            rules::factor(vm.factor_percent).map_err(invalid)?;
            if let Some(name) = &patch.name {
                rules::vm_name(name).map_err(invalid)?;
                vm.name.clone_from(name);
            }
            if let Some(cid) = patch.cid {
                cid.map_or(Ok(()), rules::cid).map_err(invalid)?;
                vm.cid = cid;
            }
            if let Some(origin) = &patch.origin {
                vm.origin.clone_from(origin);
            }
            drop_bursts(&patch.limits, &mut vm.limits);
            patch.limits.apply_to(&mut vm.limits);
            rules::vm_limits(&vm.limits).map_err(invalid)?;
            catalog.effective_limits(&patch.limits, vm, context)
        })?;
        outcome.warnings = local_cid(patch.cid.flatten().into_iter(), context).collect();
        let placed = patch.gpus.is_some() || patch.gang.is_some();
        if placed || patch.limits.memory_bytes.is_some() {
            outcome.warnings.extend(self.vm_warnings(&patch.vm_ids));
        }
        Ok(outcome)
    }

    pub(super) fn move_vms(&mut self, vm_ids: &[u32], pool: &str) -> Result<Outcome, ErrorDetail> {
        check_batch(vm_ids)?;
        self.pool(pool)?;
        let what = format!("moved to pool {pool}");
        let mut outcome = self.change_vms(vm_ids, &what, |_, vm| {
            pool.clone_into(&mut vm.pool);
            Ok(())
        })?;
        outcome.warnings = self.pool_warnings(pool);
        outcome.warnings.extend(self.vm_warnings(vm_ids));
        Ok(outcome)
    }

    pub(super) fn quarantine_vms(
        &mut self,
        request: &QuarantineRequest,
        context: &Context,
    ) -> Result<Outcome, ErrorDetail> {
        check_batch(&request.vm_ids)?;
        let reason = request
            .reason
            .clone()
            .unwrap_or_else(|| "the administrator gave no reason".into());
        rules::reason(&reason).map_err(invalid)?;
        let what = format!("quarantined ({reason})");
        let mut outcome = self.change_vms(&request.vm_ids, &what, |_, vm| {
            // A quarantine with an end becomes a quarantine without an end.
            if vm
                .quarantine
                .as_ref()
                .is_none_or(|q| q.until_unix_ms.is_some())
            {
                vm.quarantine = Some(Quarantine {
                    reason: reason.clone(),
                    since_unix_ms: context.now_unix_ms,
                    automatic: false,
                    until_unix_ms: None,
                });
            }
            Ok(())
        })?;
        tell_quarantine(&mut outcome);
        Ok(outcome)
    }

    pub(super) fn release_vms(
        &mut self,
        vm_ids: &[u32],
        context: &Context,
    ) -> Result<Outcome, ErrorDetail> {
        check_batch(vm_ids)?;
        let mut outcome = self.change_vms(vm_ids, "released", |_, vm| {
            if vm.quarantine.take().is_some() {
                // Past quarantines are forgotten with time, counted from the release.
                vm.quarantines_unix_ms = context.now_unix_ms;
            }
            vm.strikes = 0;
            Ok(())
        })?;
        tell_quarantine(&mut outcome);
        Ok(outcome)
    }

    /// Changes all named VMs. The caller drops the catalog after an error, so that no VM is
    /// changed.
    fn change_vms(
        &mut self,
        vm_ids: &[u32],
        what: &str,
        change: impl Fn(&Catalog, &mut VmRecord) -> Result<(), ErrorDetail>,
    ) -> Result<Outcome, ErrorDetail> {
        let mut changes = Vec::new();
        for vm_id in vm_ids {
            let known = self.vm(*vm_id)?;
            let mut vm = known.clone();
            change(self, &mut vm)?;
            if vm == *known {
                continue;
            }
            self.check_identity(&vm)?;
            self.vms.insert(*vm_id, vm.clone());
            changes.push(Change::VmUpserted { vm, debt_ns: None });
        }
        Ok(outcome(vm_ids, changes, what))
    }
}

/// Removes the bursts of rates that `changes` removes.
fn drop_bursts(changes: &VmLimitsPatch, limits: &mut VmLimits) {
    let buckets = [
        (changes.calls_per_s, &mut limits.calls_burst),
        (changes.bytes_per_s, &mut limits.bytes_burst),
        (changes.gpu_ms_per_s, &mut limits.gpu_ms_burst),
    ];
    for (rate, burst) in buckets {
        if rate == Some(Limit::Unlimited) {
            *burst = Limit::Default;
        }
    }
}

/// Adds a quarantine change for each changed VM. For a known VM, the mediation takes a quarantine
/// from these changes only, because the mediation itself starts and ends quarantines by strikes.
fn tell_quarantine(outcome: &mut Outcome) {
    let changed = |change: &Change| match change {
        Change::VmUpserted { vm, .. } => Some(Change::VmQuarantine {
            vm_id: vm.vm_id,
            generation: vm.generation,
            quarantine: vm.quarantine.clone(),
        }),
        _ => None,
    };
    let told: Vec<_> = outcome.changes.iter().filter_map(changed).collect();
    outcome.changes.extend(told);
}

/// Why a command of VMs changes nothing.
fn unchanged(what: &str) -> String {
    match (what, what.strip_prefix("moved to ")) {
        (_, Some(pool)) => format!("each is in {pool} already"),
        _ if what.starts_with("quarantined") => "each is quarantined already".into(),
        ("released", _) => "none is quarantined or has strikes".into(),
        _ => "every setting already has the given value".into(),
    }
}

fn outcome(vm_ids: &[u32], changes: Vec<Change>, what: &str) -> Outcome {
    let target = format!("vm {}", ranges(vm_ids.iter().copied()));
    let message = match changes.len() {
        0 => format!("No VM is changed: {}.", unchanged(what)),
        n => format!("{} {what}.", counted(n, "VM")),
    };
    Outcome {
        changes,
        target,
        message,
        ..Outcome::default()
    }
}

fn check_batch(vm_ids: &[u32]) -> Result<(), ErrorDetail> {
    if vm_ids.is_empty() {
        return Err(invalid("Name at least one VM (vm_ids).".into()));
    }
    if vm_ids.len() > MAX_BATCH {
        return Err(invalid(format!(
            "{} VMs at once are too many; {} are allowed.",
            vm_ids.len(),
            MAX_BATCH
        )));
    }
    let mut seen = BTreeSet::new();
    for vm_id in vm_ids {
        rules::vm_id(*vm_id).map_err(invalid)?;
        if !seen.insert(vm_id) {
            return Err(invalid(format!("VM {vm_id} is named twice.")));
        }
    }
    Ok(())
}

fn check_registration(request: &RegisterRequest) -> Result<(), ErrorDetail> {
    check_batch(&request.vm_ids)?;
    rules::factor(request.factor_percent.unwrap_or(100)).map_err(invalid)?;
    rules::vm_limits(&request.limits).map_err(invalid)?;
    check_origin(&request.vm_ids, request.origin.as_ref())?;
    request
        .slice_us
        .map_or(Ok(()), rules::slice)
        .map_err(invalid)?;
    let several = request.vm_ids.len() > 1;
    if several
        && request
            .socket
            .as_ref()
            .is_some_and(|path| !path.contains(rules::VM_ID))
    {
        return Err(invalid(format!(
            "Several VMs cannot share a socket: write {} where the number goes.",
            rules::VM_ID
        )));
    }
    Ok(())
}

/// Checks the origin of a request, which only one VM can have.
fn check_origin(vm_ids: &[u32], origin: Option<&String>) -> Result<(), ErrorDetail> {
    let Some(origin) = origin else { return Ok(()) };
    if vm_ids.len() > 1 {
        return Err(invalid(
            "An origin can only be given to one VM at a time.".into(),
        ));
    }
    rules::origin(origin).map_err(invalid)
}

/// Registering a VM again succeeds if every value is the same.
fn same_registration(known: &VmRecord, asked: &VmRecord) -> Result<(), ErrorDetail> {
    let same = known.name == asked.name
        && known.pool == asked.pool
        && known.priority == asked.priority
        && known.factor_percent == asked.factor_percent
        && known.cid == asked.cid
        && known.socket == asked.socket
        && known.peer_uid == asked.peer_uid
        && known.slice_us == asked.slice_us
        && known.gang == asked.gang
        && known.gpus == asked.gpus
        && known.limits == asked.limits
        && known.origin == asked.origin;
    if same {
        return Ok(());
    }
    Err(refuse(
        ErrorCode::VmExists,
        format!(
            "VM {} ({}) is registered already, in pool {} with other settings.",
            known.vm_id, known.name, known.pool
        ),
        "Change it with `vgpu-admin vm set` or `vgpu-admin move-vm`, or unregister it first.",
    ))
}
