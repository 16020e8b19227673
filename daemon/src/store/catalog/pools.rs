//! Pools and weights.

use vgpu_api::{
    ErrorCode, ErrorDetail, PoolCreate, PoolPatch, PoolPolicy, PoolSettings, Weights, WeightsPatch,
};

use super::super::command::{Outcome, invalid, refuse};
use super::{Catalog, Context, list};
use crate::mediation::Change;
use crate::model::{PoolRecord, counted};
use crate::rules;

impl Catalog {
    pub(super) fn create_pool(
        &mut self,
        request: &PoolCreate,
        context: &Context,
    ) -> Result<Outcome, ErrorDetail> {
        let name = &request.name;
        rules::name("pool", name).map_err(invalid)?;
        let mut settings = context.defaults.pool_settings();
        request.settings.apply_to(&mut settings);
        rules::pool_settings(&settings).map_err(invalid)?;
        if let Some(pool) = self.pools.get(name) {
            return unchanged_pool(pool, &request.settings);
        }
        let warnings = unused_aging(&request.settings, &settings, context);
        let pool = PoolRecord {
            name: name.clone(),
            settings,
            created_unix_ms: context.now_unix_ms,
        };
        self.pools.insert(name.clone(), pool);
        Ok(Outcome {
            changes: self.pool_change(name).into_iter().collect(),
            target: format!("pool {name}"),
            message: format!("Pool {name} created."),
            warnings,
            ..Outcome::default()
        })
    }

    pub(super) fn set_pool(
        &mut self,
        name: &str,
        patch: &PoolPatch,
        context: &Context,
    ) -> Result<Outcome, ErrorDetail> {
        let mut settings = self.pool(name)?.settings.clone();
        patch.apply_to(&mut settings);
        rules::pool_settings(&settings).map_err(invalid)?;
        let warnings = unused_aging(patch, &settings, context);
        Ok(Outcome {
            warnings,
            ..self.replace_settings(name, settings)
        })
    }

    fn replace_settings(&mut self, name: &str, settings: PoolSettings) -> Outcome {
        let changed = match self.pools.get_mut(name) {
            Some(pool) if pool.settings != settings => {
                pool.settings = settings;
                true
            }
            _ => false,
        };
        let changes = if changed {
            self.pool_change(name).into_iter().collect()
        } else {
            vec![]
        };
        Outcome {
            changes,
            target: format!("pool {name}"),
            message: match changed {
                true => format!("Pool {name} changed."),
                false => {
                    format!("Pool {name} is unchanged: every setting already has the given value.")
                }
            },
            ..Outcome::default()
        }
    }

    pub(super) fn delete_pool(&mut self, name: &str) -> Result<Outcome, ErrorDetail> {
        self.pool(name)?;
        let vms: Vec<String> = self
            .vms_of(name)
            .map(|vm| format!("{} ({})", vm.vm_id, vm.name))
            .collect();
        if !vms.is_empty() {
            return Err(refuse(
                ErrorCode::PoolNotEmpty,
                format!(
                    "Pool {name} still has {}: {}.",
                    counted(vms.len(), "VM"),
                    list(vms.into_iter())
                ),
                "Only a pool without VMs is deleted: `vgpu-admin move-vm` moves VMs, and \
                 `vgpu-admin unregister-vm` removes VMs.",
            ));
        }
        let gone: Vec<_> = self
            .assignments
            .values()
            .filter(|a| a.pool == name)
            .cloned()
            .collect();
        for assignment in &gone {
            self.assignments
                .remove(&(assignment.gpu_uuid.clone(), name.to_owned()));
        }
        self.pools.remove(name);
        let message = match gone.len() {
            0 => format!("Pool {name} deleted."),
            1 => format!("Pool {name} deleted; 1 GPU no longer serves it."),
            n => format!("Pool {name} deleted; {n} GPUs no longer serve it."),
        };
        let mut changes: Vec<_> = gone.into_iter().map(Change::GpuUnassigned).collect();
        changes.push(Change::PoolDeleted {
            name: name.to_owned(),
        });
        Ok(Outcome {
            changes,
            target: format!("pool {name}"),
            message,
            ..Outcome::default()
        })
    }

    pub(super) fn set_weights(&mut self, patch: &WeightsPatch) -> Result<Outcome, ErrorDetail> {
        let Some(name) = &patch.pool else {
            return self.set_host_weights(patch);
        };
        let pool = self.pool(name)?;
        let base = if patch.reset {
            self.host_weights
        } else {
            self.weights_of(pool)
        };
        let merged = merge(base, patch);
        merged.check().map_err(invalid)?;
        let mut settings = pool.settings.clone();
        let follows = patch.reset && merged == self.host_weights;
        settings.weights = if follows { None } else { Some(merged) };
        Ok(self.replace_settings(name, settings))
    }

    fn set_host_weights(&mut self, patch: &WeightsPatch) -> Result<Outcome, ErrorDetail> {
        let base = if patch.reset {
            Weights::default()
        } else {
            self.host_weights
        };
        let merged = merge(base, patch);
        merged.check().map_err(invalid)?;
        let changed = merged != self.host_weights;
        self.host_weights = merged;
        let followers = self
            .pools
            .values()
            .filter(|pool| pool.settings.weights.is_none());
        let names: Vec<String> = followers.map(|pool| pool.name.clone()).collect();
        let changes = match changed {
            true => names
                .iter()
                .filter_map(|name| self.pool_change(name))
                .collect(),
            false => Vec::new(),
        };
        Ok(Outcome {
            changes,
            changed,
            target: "host".into(),
            message: match changed {
                true => format!(
                    "Weights changed; they hold in {} without own weights.",
                    counted(names.len(), "pool")
                ),
                false => {
                    "The weights are unchanged: every weight already has the given value.".into()
                }
            },
            ..Outcome::default()
        })
    }
}

/// Warns if a request sets aging to a value other than the default, and the policy does not use
/// aging. `vgpu-admin pool set --aging=default` sends the default's number, and gets no warning.
fn unused_aging(patch: &PoolPatch, settings: &PoolSettings, context: &Context) -> Vec<String> {
    let policy = match settings.policy {
        PoolPolicy::Strict | PoolPolicy::Sjf => return Vec::new(),
        unused @ (PoolPolicy::Weighted | PoolPolicy::Fifo) => unused.name(),
    };
    let warning = || {
        format!(
            "Aging has no effect under the policy {policy}: it raises waiting VMs under strict and sjf."
        )
    };
    let default = context.defaults.pool_settings().aging_ms;
    let given = patch.aging_ms.filter(|aging| *aging != default);
    given.map(|_| warning()).into_iter().collect()
}

fn merge(base: Weights, patch: &WeightsPatch) -> Weights {
    Weights {
        low: patch.low.unwrap_or(base.low),
        medium: patch.medium.unwrap_or(base.medium),
        high: patch.high.unwrap_or(base.high),
        critical: patch.critical.unwrap_or(base.critical),
    }
}

/// Creating an existing pool succeeds if every requested setting already has the given value.
fn unchanged_pool(pool: &PoolRecord, asked: &PoolPatch) -> Result<Outcome, ErrorDetail> {
    let mut settings = pool.settings.clone();
    asked.apply_to(&mut settings);
    if settings == pool.settings {
        return Ok(Outcome {
            target: format!("pool {}", pool.name),
            message: format!("Pool {} exists already.", pool.name),
            ..Outcome::default()
        });
    }
    Err(refuse(
        ErrorCode::PoolExists,
        format!("Pool {} exists already, with other settings.", pool.name),
        format!("Change it with `vgpu-admin pool set {}`.", pool.name),
    ))
}
