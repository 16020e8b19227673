//! Pools.

use vgpu_api::{ApplyReport, Limit, POOL_SETTINGS, Pool, Setting, Unit, Value};

use super::{applied, change_something};
use crate::cli::PoolCommand;
use crate::client::{Client, segment, tried};
use crate::error::Error;
use crate::output::{Cell, Format, Grid, json, print, printable, show};

/// The settings that a table shows which is not wide.
const NARROW: [&str; 5] = [
    "policy",
    "slice_us",
    "weights",
    "soft_limit_ms",
    "hard_limit_ms",
];

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
        PoolCommand::Show { name } => {
            let pool: Pool = client.get(&format!("pools/{}", segment(&name))).await?;
            return match output {
                Format::Json => json(&pool),
                Format::Csv => print(&grid(&[pool]).render(output)),
                Format::Table | Format::Wide => print(&sheet(&pool)),
            };
        }
        PoolCommand::Create { name, settings } => {
            let request = serde_json::json!({ "name": name, "settings": settings.json().map_err(Error::Protocol)? });
            client.post("pools", &request).await?
        }
        PoolCommand::Set { name, settings } => {
            if settings.defaults.is_empty() {
                change_something(&settings.patch, "pool set")?;
            }
            let path = format!("pools/{}", segment(&name));
            client
                .call(
                    hyper::Method::PATCH,
                    &path,
                    Some(&settings.json().map_err(Error::Protocol)?),
                )
                .await?
        }
        PoolCommand::Delete { name, dry_run } => {
            let path = tried(format!("pools/{}", segment(&name)), dry_run.dry_run);
            client
                .call(hyper::Method::DELETE, &path, None::<&()>)
                .await?
        }
    };
    applied(output, &report)
}

/// `0,2` or `-`.
pub(super) fn numbers(ids: &[u32]) -> String {
    if ids.is_empty() {
        return "-".into();
    }
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// As [`numbers`]; for programs separated by spaces.
pub(super) fn number_cell(ids: &[u32]) -> Cell {
    let exact: Vec<String> = ids.iter().map(u32::to_string).collect();
    Cell::new(numbers(ids), exact.join(" "))
}

/// The value of a setting for programs: a plain number, a word, or nothing if there is no limit.
pub(super) fn exact_value(value: &Value) -> String {
    match value {
        Value::Number(n) | Value::Limit(Limit::Value(n)) => n.to_string(),
        Value::Limit(Limit::Unlimited | Limit::Default) => String::new(),
        Value::Word(word) => word.clone(),
    }
}

/// Every setting with the text of its value. The weights are those in force.
fn values(pool: &Pool) -> impl Iterator<Item = (&'static Setting, String)> {
    let text = |(setting, value): (&'static Setting, Value)| match setting.unit {
        Unit::Weights => (setting, pool.effective_weights.to_string()),
        _ => (setting, setting.text(&value)),
    };
    pool.settings.values().into_iter().map(text)
}

fn grid(pools: &[Pool]) -> Grid {
    let mut columns = ["POOL", "GPUS|gpu_ids", "VMS"].map(str::to_owned).to_vec();
    columns.extend(POOL_SETTINGS.iter().map(|setting| {
        let wide = if NARROW.contains(&setting.name) {
            ""
        } else {
            "+"
        };
        let title = setting.option.to_uppercase().replace('-', " ");
        let name = match setting.unit {
            Unit::Weights => "",
            _ => setting.name,
        };
        format!("{wide}{title}|{name}")
    }));
    columns.extend(["low", "medium", "high", "critical"].map(|class| format!("|weight_{class}")));
    let mut grid = Grid::new(&columns);
    for pool in pools {
        let first = [
            Cell::from(&pool.name),
            number_cell(&pool.gpu_ids),
            pool.vm_ids.len().into(),
        ];
        let exact = pool.settings.values().into_iter();
        let settings = values(pool).zip(exact.map(|(_, value)| exact_value(&value)));
        let settings = settings.map(|((_, text), exact)| Cell::new(text, exact));
        let weights = pool.effective_weights;
        let weights = [weights.low, weights.medium, weights.high, weights.critical];
        let cells = first.into_iter().chain(settings);
        grid.row(cells.chain(weights.map(Cell::from)));
    }
    grid
}

/// All settings of a pool, one per line, named as their options.
fn sheet(pool: &Pool) -> String {
    let own = match pool.settings.weights {
        Some(_) => "",
        None => " (the host's)",
    };
    let mut text = format!("{:18} {}\n", "pool", printable(&pool.name));
    text += &format!("{:18} {}\n", "gpus", numbers(&pool.gpu_ids));
    text += &format!("{:18} {}\n", "vms", numbers(&pool.vm_ids));
    for (setting, value) in values(pool) {
        let own = if setting.unit == Unit::Weights {
            own
        } else {
            ""
        };
        text += &format!("{:18} {value}{own}\n", setting.option);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_api::{PoolSettings, Weights};

    #[test]
    fn wide_tables_and_the_sheet_show_every_setting() {
        let pool = Pool {
            name: "A".into(),
            settings: PoolSettings::default(),
            effective_weights: Weights::default(),
            gpu_ids: vec![0, 2],
            vm_ids: vec![],
            created_unix_ms: 1,
        };
        let wide = grid(std::slice::from_ref(&pool)).render(Format::Wide);
        let sheet = sheet(&pool);
        for (setting, text) in values(&pool) {
            let title = setting.option.to_uppercase().replace('-', " ");
            assert!(
                wide.contains(&title) && wide.contains(&text),
                "{title} {text}: {wide}"
            );
            let line = format!("{:18} {text}", setting.option);
            assert!(sheet.contains(&line), "{line}: {sheet}");
        }
        assert!(sheet.contains("1/4/16/64 (the host's)"), "{sheet}");
        let narrow = grid(&[pool]).render(Format::Table);
        assert!(
            narrow.contains("HARD LIMIT") && !narrow.contains("OVERRUN GRACE"),
            "{narrow}"
        );
        let settings = POOL_SETTINGS.iter().map(|setting| setting.name);
        assert_eq!(
            settings.filter(|name| NARROW.contains(name)).count(),
            NARROW.len()
        );
    }
}
