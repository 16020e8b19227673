//! Weights of the priority classes.

use vgpu_api::{ApplyReport, Weights, WeightsPatch, WeightsReport};

use super::applied;
use crate::cli::WeightsCommand;
use crate::client::Client;
use crate::error::Error;
use crate::output::{Cell, Format, Grid, show};

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
            if !reset && [low, medium, high, critical].iter().all(Option::is_none) {
                return Err(Error::Usage(
                    "Name a weight (--low, --medium, --high, --critical), or --reset.".into(),
                ));
            }
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
    let mut grid = Grid::new(&["SCOPE|pool", "LOW", "MEDIUM", "HIGH", "CRITICAL"]);
    let row = |scope: Cell, w: &Weights| {
        let weights = [w.low, w.medium, w.high, w.critical];
        std::iter::once(scope).chain(weights.map(Cell::from))
    };
    grid.row(row(Cell::new("host", ""), &report.host));
    for (pool, weights) in &report.pools {
        grid.row(row(Cell::new(format!("pool {pool}"), pool), weights));
    }
    grid
}
