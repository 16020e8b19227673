//! Weights of the priority classes.

use vgpu_api::{ApplyReport, Weights, WeightsPatch, WeightsReport};

use super::applied;
use crate::cli::WeightsCommand;
use crate::client::Client;
use crate::error::Error;
use crate::output::{Format, Grid, show};

pub(super) async fn run(
    client: &Client,
    output: Format,
    command: WeightsCommand,
) -> Result<(), Error> {
    match command {
        WeightsCommand::Get => {
            let report: WeightsReport = client.get("weights").await?;
            show(output, &report, grid)
        }
        WeightsCommand::Set {
            pool,
            reset,
            low,
            medium,
            high,
            critical,
        } => {
            let patch = WeightsPatch {
                pool,
                reset,
                low,
                medium,
                high,
                critical,
            };
            let report: ApplyReport = client
                .call(hyper::Method::PUT, "weights", Some(&patch))
                .await?;
            applied(output, &report)
        }
    }
}

fn grid(report: &WeightsReport) -> Grid {
    let mut grid = Grid::new(&["SCOPE", "LOW", "MEDIUM", "HIGH", "CRITICAL"]);
    let row = |scope: String, w: &Weights| {
        vec![
            scope,
            w.low.to_string(),
            w.medium.to_string(),
            w.high.to_string(),
            w.critical.to_string(),
        ]
    };
    grid.row(row("host".into(), &report.host));
    for (pool, weights) in &report.pools {
        grid.row(row(format!("pool {pool}"), weights));
    }
    grid
}
