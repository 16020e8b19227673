//! Pools.

use vgpu_api::{ApplyReport, Pool, PoolCreate, PoolPatch, PoolPolicy};

use super::applied;
use crate::cli::{Policy, PoolCommand, PoolSettings};
use crate::client::{Client, segment};
use crate::error::Error;
use crate::output::{Format, Grid, show};
use crate::units::show_ns;

pub(super) async fn run(
    client: &Client,
    output: Format,
    command: PoolCommand,
) -> Result<(), Error> {
    let report: ApplyReport = match command {
        PoolCommand::List => {
            let pools: Vec<Pool> = client.get("pools").await?;
            return show(output, &pools, |pools| grid(pools));
        }
        PoolCommand::Create { name, settings } => {
            client
                .post(
                    "pools",
                    &PoolCreate {
                        name,
                        settings: patch(&settings),
                    },
                )
                .await?
        }
        PoolCommand::Set { name, settings } => {
            let path = format!("pools/{}", segment(&name));
            client
                .call(hyper::Method::PATCH, &path, Some(&patch(&settings)))
                .await?
        }
        PoolCommand::Delete { name } => {
            let path = format!("pools/{}", segment(&name));
            client
                .call(hyper::Method::DELETE, &path, None::<&()>)
                .await?
        }
    };
    applied(output, &report)
}

fn patch(settings: &PoolSettings) -> PoolPatch {
    PoolPatch {
        policy: settings.policy.map(|p| match p {
            Policy::Weighted => PoolPolicy::Weighted,
            Policy::Strict => PoolPolicy::Strict,
            Policy::Fifo => PoolPolicy::Fifo,
            Policy::Sjf => PoolPolicy::Sjf,
        }),
        slice_us: settings.slice,
        min_run_us: settings.min_run,
        aging_ms: settings.aging,
        weight: settings.weight,
        weights: None,
        soft_limit_ms: settings.soft_limit,
        hard_limit_ms: settings.hard_limit,
        contended_limit_ms: settings.contended_limit,
        overrun_grace_ms: settings.overrun_grace,
        idle_hold_us: settings.idle_hold,
        window_us: settings.window,
        quarantine_strikes: settings.strikes,
        // The API has seconds here. Rounding down could give 0, which switches the feature off.
        strike_decay_s: settings.strike_decay.map(|ms| ms.div_ceil(1_000)),
        quarantine_s: settings.quarantine.map(|ms| ms.div_ceil(1_000)),
        quarantine_max_s: settings.quarantine_max.map(|ms| ms.div_ceil(1_000)),
    }
}

/// The name of a policy.
pub(super) fn policy(policy: PoolPolicy) -> &'static str {
    match policy {
        PoolPolicy::Weighted => "weighted",
        PoolPolicy::Strict => "strict",
        PoolPolicy::Fifo => "fifo",
        PoolPolicy::Sjf => "sjf",
    }
}

/// `0,2` or `-`.
pub(super) fn numbers(ids: &[u32]) -> String {
    if ids.is_empty() {
        return "-".into();
    }
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// A limit in ms; 0 means none.
fn limit_ms(ms: u64) -> String {
    if ms == 0 {
        "none".into()
    } else {
        show_ns(ms.saturating_mul(1_000_000))
    }
}

fn grid(pools: &[Pool]) -> Grid {
    let mut grid = Grid::new(&[
        "POOL",
        "POLICY",
        "SLICE",
        "GPUS",
        "VMS",
        "WEIGHTS l/m/h/c",
        "SOFT",
        "HARD",
        "+MIN RUN",
        "+AGING",
        "+HOLD",
        "+WINDOW",
        "+STRIKES",
        "+DECAY",
        "+QUARANTINE",
    ]);
    for pool in pools {
        let (s, w) = (&pool.settings, &pool.effective_weights);
        grid.row(vec![
            pool.name.clone(),
            policy(s.policy).into(),
            show_ns(s.slice_us.saturating_mul(1_000)),
            numbers(&pool.gpu_ids),
            pool.vm_ids.len().to_string(),
            format!("{}/{}/{}/{}", w.low, w.medium, w.high, w.critical),
            limit_ms(s.soft_limit_ms),
            limit_ms(s.hard_limit_ms),
            show_ns(s.min_run_us.saturating_mul(1_000)),
            limit_ms(s.aging_ms),
            show_ns(s.idle_hold_us.saturating_mul(1_000)),
            show_ns(s.window_us.saturating_mul(1_000)),
            s.quarantine_strikes.to_string(),
            format!("{}s", s.strike_decay_s),
            match s.quarantine_s {
                0 => "until released".into(),
                first => format!("{first}s to {}s", s.quarantine_max_s),
            },
        ]);
    }
    grid
}
