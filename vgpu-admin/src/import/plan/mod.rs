//! The comparison of a hypervisor's VMs with the registrations.
//!
//! An import changes only the registration with the VM's own origin. A name or a CID of another
//! registration is refused, unless the administrator adopts that registration: with `--adopt` if
//! the registration has no origin, with `--adopt --vm-id` if the registration has another origin.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use vgpu_api::{
    Limit, Pool, Priority, RegisterRequest, Vm, VmLimits, VmLimitsPatch, VmPatch, check_vm_limits,
    check_vm_name,
};

use super::cloudstack::{Profile, Shares};
use super::{Found, Listing};

/// The options of an import.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Pool of new VMs; without a pool, no VM is registered.
    pub(crate) pool: Option<String>,
    /// Class of new VMs.
    pub(crate) priority: Priority,
    /// Limits of new VMs.
    pub(crate) limits: VmLimits,
    /// Take over the registration that `vm_id` names, or a registration without an origin that has
    /// the same CID or name.
    pub(crate) adopt: bool,
    /// Number in vgpud, for an import of a single VM.
    pub(crate) vm_id: Option<u32>,
    /// Name in vgpud, for an import of a single VM.
    pub(crate) name: Option<String>,
    /// Whether the VMs run now. Only one running VM of a host has a CID, so other imported VMs lose
    /// that CID.
    pub(crate) running: bool,
    /// Shares that CloudStack offers.
    pub(crate) shares: Shares,
}

/// The action of an import on a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    Register,
    Change,
    Unchanged,
    Skipped,
    Refused,
}

impl Action {
    /// Name of the action, as in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Action::Register => "register",
            Action::Change => "change",
            Action::Unchanged => "unchanged",
            Action::Skipped => "skipped",
            Action::Refused => "refused",
        }
    }
}

/// The plan for a VM.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) vm_id: Option<u32>,
    /// The name of a new registration, otherwise the name in the hypervisor.
    pub(crate) name: String,
    pub(crate) origin: Option<String>,
    pub(crate) cid: Option<u32>,
    pub(crate) action: Action,
    /// Reasons and warnings, as sentences.
    pub(crate) warnings: Vec<String>,
    #[serde(skip)]
    pub(crate) steps: Steps,
}

/// The requests for a VM.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// VM that loses its CID before any other step of the import.
    pub(crate) frees: Option<u32>,
    pub(crate) register: Option<RegisterRequest>,
    pub(crate) patch: Option<VmPatch>,
    pub(crate) move_to: Option<String>,
}

impl Steps {
    fn check(&self, pools: &[Pool]) -> Result<(), String> {
        let register = self.register.as_ref();
        if let Some(request) = register {
            let name = request.name.as_ref();
            name.map_or(Ok(()), |name| check_vm_name(name))?;
            check_vm_limits(&request.limits)?;
        }
        let pool = register.map(|request| &request.pool);
        match pool.or(self.move_to.as_ref()) {
            Some(name) if pools.iter().all(|pool| pool.name != *name) => Err(format!(
                "There is no pool {name:?}. `vgpu-admin pool list` shows the pools."
            )),
            _ => Ok(()),
        }
    }
}

/// The reason for which a VM stays unchanged.
enum Left {
    Skipped(String),
    Refused(String),
}

/// Plans an import. One row per VM, in the order of the listing; the unread VMs are last.
pub(crate) fn plan(listing: &Listing, known: &[Vm], options: &Options) -> Vec<Row> {
    let mut planner = Planner::new(&listing.found, known, options);
    let mut rows: Vec<Row> = Vec::new();
    for found in &listing.found {
        rows.push(planner.row(found));
    }
    rows.extend(listing.unread.iter().map(|unread| Row {
        vm_id: None,
        name: unread.name.clone(),
        origin: None,
        cid: None,
        action: Action::Refused,
        warnings: vec![unread.why.clone()],
        steps: Steps::default(),
    }));
    rows
}

struct Planner<'a> {
    known: &'a [Vm],
    options: &'a Options,
    /// All VMs of this import by CID, also those that are skipped or refused.
    by_cid: BTreeMap<u32, Vec<&'a Found>>,
    by_origin: BTreeMap<&'a str, usize>,
    /// Names of the VMs that may be registered.
    by_name: BTreeMap<String, Vec<&'a Found>>,
    /// Registrations whose CID this import changes.
    moving: BTreeSet<u32>,
    /// Number of VMs of this import that would change each registration.
    wanted: BTreeMap<u32, usize>,
    numbers: BTreeSet<u32>,
}

impl<'a> Planner<'a> {
    fn new(found: &'a [Found], known: &'a [Vm], options: &'a Options) -> Planner<'a> {
        let mut planner = Planner {
            known,
            options,
            by_cid: BTreeMap::new(),
            by_origin: BTreeMap::new(),
            by_name: BTreeMap::new(),
            moving: BTreeSet::new(),
            wanted: BTreeMap::new(),
            numbers: known.iter().map(|vm| vm.vm_id).collect(),
        };
        for vm in found {
            if let Ok(cid) = vm.cid {
                planner.by_cid.entry(cid).or_default().push(vm);
            }
            *planner.by_origin.entry(&vm.origin).or_default() += 1;
            if planner.own(vm).is_none() && vm.cid.is_ok() {
                let name = planner.new_name(vm).0;
                planner.by_name.entry(name).or_default().push(vm);
            }
        }
        let consistent = |vm: &&Found| planner.check_import(vm).is_ok();
        let consistent: Vec<&Found> = found.iter().filter(consistent).collect();
        for vm in &consistent {
            if let Some(own) = planner.own(vm)
                && own.cid != vm.cid.as_ref().ok().copied()
            {
                planner.moving.insert(own.vm_id);
            }
        }
        for vm in consistent {
            if let Ok(Some(wanted)) = planner.registration(vm) {
                *planner.wanted.entry(wanted.vm_id).or_default() += 1;
            }
        }
        planner
    }

    /// Returns the profile of the share that CloudStack gave the VM.
    fn profile(&self, found: &Found) -> Option<&'a Profile> {
        let cid = found.cid.as_ref().ok().filter(|_| found.share)?;
        self.options.shares.profile(*cid)
    }

    /// Returns the registration with the origin of the VM.
    fn own(&self, found: &Found) -> Option<&'a Vm> {
        let is_own = |vm: &&Vm| vm.origin.as_deref() == Some(&found.origin);
        self.known.iter().find(is_own)
    }

    /// Returns the name of a new registration, and a warning if vgpud does not allow the
    /// hypervisor's name.
    fn new_name(&self, found: &Found) -> (String, Option<String>) {
        match &self.options.name {
            Some(name) => (name.clone(), None),
            None if check_vm_name(&found.name).is_ok() => (found.name.clone(), None),
            None => {
                let name = found.origin.replace(':', "-");
                let warning = format!("vgpud does not allow the name {:?}.", found.name);
                (name, Some(warning))
            }
        }
    }

    fn row(&mut self, found: &Found) -> Row {
        let mut row = Row {
            vm_id: self.own(found).map(|vm| vm.vm_id),
            name: found.name.clone(),
            origin: Some(found.origin.clone()),
            cid: found.cid.as_ref().ok().copied(),
            action: Action::Unchanged,
            warnings: Vec::new(),
            steps: Steps::default(),
        };
        match self.decide(found, &mut row) {
            Ok(()) => {}
            Err(Left::Skipped(why)) => row.leave(Action::Skipped, why),
            Err(Left::Refused(why)) => row.leave(Action::Refused, why),
        }
        row
    }

    fn decide(&mut self, found: &Found, row: &mut Row) -> Result<(), Left> {
        self.check_import(found)?;
        let Some(vm) = self.registration(found)? else {
            return self.register(found, row);
        };
        if self.wanted.get(&vm.vm_id).is_some_and(|vms| *vms > 1) {
            return Err(Left::Refused(format!(
                "Several VMs of this import have the CID or the name of {}: import one of them.",
                who(vm)
            )));
        }
        row.vm_id = Some(vm.vm_id);
        if let Err(why) = &found.cid {
            row.warnings.push(why.clone());
        }
        let cid = found.cid.as_ref().ok().copied();
        row.steps.frees = self.other_holder(cid, Some(vm.vm_id), row)?;
        let mut patch = VmPatch {
            vm_ids: vec![vm.vm_id],
            cid: (vm.cid != cid).then_some(cid),
            ..VmPatch::default()
        };
        if vm.origin.as_ref() != Some(&found.origin) {
            patch.origin = Some(Some(found.origin.clone()));
            row.warnings.push(match &vm.origin {
                Some(origin) => format!("The import takes over VM {} from {origin}.", vm.vm_id),
                None => format!("The import takes over {}.", who(vm)),
            });
        }
        if let Some(profile) = self.profile(found) {
            to_profile(profile, vm, &mut patch);
            row.steps.move_to = (profile.pool != vm.pool).then(|| profile.pool.clone());
        }
        let nothing = VmPatch {
            vm_ids: patch.vm_ids.clone(),
            ..VmPatch::default()
        };
        row.steps.patch = (patch != nothing).then_some(patch);
        if row.steps.patch.is_some() || row.steps.move_to.is_some() {
            row.action = Action::Change;
        }
        Ok(())
    }

    /// Refuses VMs that contradict other VMs of the same import.
    fn check_import(&self, found: &Found) -> Result<(), Left> {
        if self.by_origin[found.origin.as_str()] > 1 {
            let why = format!(
                "{} is listed several times: name each VM once.",
                found.origin
            );
            return Err(Left::Refused(why));
        }
        let Ok(cid) = found.cid else { return Ok(()) };
        if let (false, Some(profile)) = (found.share, self.options.shares.profile(cid)) {
            return Err(Left::Refused(format!(
                "CID {cid} is that of a share of CloudStack's profile {}, but CloudStack gave this \
                 VM no share: give the VM another CID.",
                profile.name
            )));
        }
        let others: Vec<String> = self.by_cid[&cid]
            .iter()
            .filter(|other| other.origin != found.origin)
            .map(|other| format!("{} ({})", other.name, other.origin))
            .collect();
        // The registration that has the CID keeps the CID.
        if others.is_empty() || self.own(found).is_some_and(|own| own.cid == Some(cid)) {
            return Ok(());
        }
        let others = others.join(", ");
        Err(Left::Refused(format!(
            "CID {cid} is also that of {others}: give each VM a CID of its own."
        )))
    }

    /// Returns the registration that the import may change; `None`: the VM has none.
    fn registration(&self, found: &Found) -> Result<Option<&'a Vm>, Left> {
        let own = self.own(found);
        if let Some(vm_id) = self.options.vm_id {
            let named = self.known.iter().find(|vm| vm.vm_id == vm_id);
            return match (own, named) {
                (Some(own), _) if own.vm_id == vm_id => Ok(Some(own)),
                (Some(own), _) => Err(Left::Refused(format!(
                    "The VM is registered as {}, not as VM {vm_id}: leave --vm-id out, or unregister \
                     VM {} first.",
                    who(own),
                    own.vm_id
                ))),
                (None, Some(vm)) if !self.options.adopt => Err(Left::Refused(format!(
                    "--vm-id={vm_id} is the number of {}: give a free number, or take that \
                     registration over with --adopt.",
                    who(vm)
                ))),
                (None, named) => Ok(named),
            };
        }
        if own.is_some() {
            return Ok(own);
        }
        let Ok(cid) = found.cid else { return Ok(None) };
        let name = self.new_name(found).0;
        let by_name = self.known.iter().find(|vm| vm.name == name);
        let by_cid = self
            .known
            .iter()
            .find(|vm| vm.cid == Some(cid) && !self.gives_way(vm));
        match (by_cid, by_name) {
            (None, None) => Ok(None),
            (Some(a), Some(b)) if a.vm_id != b.vm_id => Err(Left::Refused(format!(
                "CID {cid} belongs to {}, and the name {name} to {}: choose the registration with \
                 --vm-id and --adopt, or change the VM.",
                who(a),
                who(b)
            ))),
            (Some(vm), _) | (_, Some(vm)) if self.options.adopt && vm.origin.is_none() => {
                Ok(Some(vm))
            }
            (Some(vm), _) => Err(Left::Refused(format!(
                "CID {cid} belongs to {}: give the VM another CID, or take that registration over \
                 with {}.",
                who(vm),
                taking_over(vm)
            ))),
            (None, Some(vm)) => Err(Left::Refused(format!(
                "The name {name} belongs to {}: give another with --name, or take that \
                 registration over with {}.",
                who(vm),
                taking_over(vm)
            ))),
        }
    }

    /// Whether the holder of a CID loses the CID to the VM of the import that has the CID.
    fn gives_way(&self, holder: &Vm) -> bool {
        self.moving.contains(&holder.vm_id) || (self.options.running && holder.origin.is_some())
    }

    /// Returns the VM that must lose the CID first, and warns in the row if that VM gets no other
    /// CID.
    fn other_holder(
        &self,
        cid: Option<u32>,
        vm_id: Option<u32>,
        row: &mut Row,
    ) -> Result<Option<u32>, Left> {
        let Some(cid) = cid else { return Ok(None) };
        let holds = |vm: &&Vm| vm.cid == Some(cid) && Some(vm.vm_id) != vm_id;
        let Some(holder) = self.known.iter().find(holds) else {
            return Ok(None);
        };
        if !self.gives_way(holder) {
            return Err(Left::Refused(format!(
                "CID {cid} belongs to {}: give the VM another CID.",
                who(holder)
            )));
        }
        if !self.moving.contains(&holder.vm_id) {
            row.warnings.push(format!(
                "{} loses CID {cid}, which is this VM's now.",
                who(holder)
            ));
        }
        Ok(Some(holder.vm_id))
    }

    fn register(&mut self, found: &Found, row: &mut Row) -> Result<(), Left> {
        let cid = match &found.cid {
            Ok(cid) => *cid,
            Err(why) => return Err(Left::Skipped(why.clone())),
        };
        let profile = self.profile(found);
        let pool = profile.map(|p| &p.pool).or(self.options.pool.as_ref());
        let Some(pool) = pool else {
            let why = "The VM is not registered: name the pool of new VMs with --pool.";
            return Err(Left::Skipped(why.into()));
        };
        let (name, warning) = self.new_name(found);
        let same = self.by_name.get(&name).map_or(&[][..], Vec::as_slice);
        if same.len() > 1 {
            let origins: Vec<&str> = same.iter().map(|vm| vm.origin.as_str()).collect();
            let origins = origins.join(", ");
            return Err(Left::Refused(format!(
                "{origins} have the same name: import them one by one with --name."
            )));
        }
        row.warnings
            .extend(warning.map(|why| format!("{why} The VM is registered as {name}.")));
        row.steps.frees = self.other_holder(Some(cid), None, row)?;
        let vm_id = self.options.vm_id.unwrap_or_else(|| self.free_number());
        let mut limits = self.options.limits.clone();
        if let Some(Profile { memory_bytes, .. }) = profile
            && *memory_bytes != Limit::Default
        {
            limits.memory_bytes = *memory_bytes;
        }
        row.steps.register = Some(RegisterRequest {
            vm_ids: vec![vm_id],
            pool: pool.clone(),
            priority: profile.map_or(self.options.priority, |p| p.priority),
            name: Some(name.clone()),
            first_cid: Some(cid),
            limits,
            origin: Some(found.origin.clone()),
            ..RegisterRequest::default()
        });
        row.vm_id = Some(vm_id);
        row.name = name;
        row.action = Action::Register;
        Ok(())
    }

    fn free_number(&mut self) -> u32 {
        let free = first_free(&self.numbers);
        self.numbers.insert(free);
        free
    }
}

impl Row {
    /// Refuses the row if vgpud would refuse one of its requests, for `--dry-run`.
    pub(crate) fn check(&mut self, pools: &[Pool]) {
        if let Err(why) = self.steps.check(pools) {
            self.leave(Action::Refused, why);
        }
    }

    /// Leaves the VM unchanged, for the reason `why`.
    pub(crate) fn leave(&mut self, action: Action, why: String) {
        self.action = action;
        self.steps = Steps::default();
        self.warnings.push(why);
    }
}

/// Returns the lowest number that no VM has.
pub(crate) fn first_free(numbers: &BTreeSet<u32>) -> u32 {
    (1..).find(|n| !numbers.contains(n)).unwrap_or(u32::MAX)
}

fn to_profile(profile: &Profile, vm: &Vm, patch: &mut VmPatch) {
    patch.priority = (profile.priority != vm.priority).then_some(profile.priority);
    if profile.memory_bytes != vm.limits.memory_bytes {
        patch.limits = VmLimitsPatch {
            memory_bytes: Some(profile.memory_bytes),
            ..VmLimitsPatch::default()
        };
    }
}

/// Returns the options that take a registration over.
fn taking_over(vm: &Vm) -> String {
    match &vm.origin {
        Some(_) => format!("--adopt --vm-id={}", vm.vm_id),
        None => "--adopt".into(),
    }
}

fn who(vm: &Vm) -> String {
    let origin = vm.origin.as_deref().unwrap_or("registered by hand");
    format!("VM {} ({}, {origin})", vm.vm_id, vm.name)
}

#[cfg(test)]
mod tests;
