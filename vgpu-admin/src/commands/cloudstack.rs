//! `cloudstack`: commands of CloudStack's hooks.

use std::path::Path;

use super::import::read_shares;
use crate::cli::CloudstackCommand;
use crate::client::Client;
use crate::error::Error;
use crate::import::cloudstack::{Host, transform};
use crate::import::{read_description, read_list};
use crate::output::print;

pub(super) async fn run(client: &Client, command: CloudstackCommand) -> Result<(), Error> {
    let stdin = Path::new("-");
    match command {
        CloudstackCommand::Discover { shares } => {
            let discovered = read_list(stdin)?;
            let shares = read_shares(&shares)?;
            let gpus: Vec<vgpu_api::Gpu> = client.get("gpus").await?;
            let vms: Vec<vgpu_api::Vm> = client.get("vms").await?;
            let machine_id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
            let host = Host {
                machine_id: &machine_id,
                pci: Path::new("/sys/bus/pci/devices"),
                gpus: &gpus,
                vms: &vms,
            };
            print(&shares.offer(&discovered, &host).map_err(Error::Source)?)
        }
        CloudstackCommand::Transform => {
            let text = read_description(stdin)?;
            print(&transform(&text).map_err(Error::Usage)?)
        }
    }
}
