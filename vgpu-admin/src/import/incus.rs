//! VMs of Incus.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Found, Listing, MAX_LIST, guest_cid, not_a_cid, program};

/// The fields of an instance that are read (`incus list --format=json`).
#[derive(Debug, Deserialize)]
struct Instance {
    name: String,
    #[serde(default = "default_project")]
    project: String,
    #[serde(rename = "type")]
    kind: String,
    /// The member of the cluster; `none` without a cluster.
    #[serde(default)]
    location: String,
    #[serde(default)]
    config: BTreeMap<String, String>,
}

fn default_project() -> String {
    "default".into()
}

/// Asks incus for the instances of a project, or of all projects.
pub(crate) fn list(project: Option<&str>, all_projects: bool) -> Result<String, String> {
    let mut args = vec!["list".to_owned(), "--format=json".into()];
    args.extend(project.map(|name| format!("--project={name}")));
    if all_projects {
        args.push("--all-projects".into());
    }
    program::output("incus", &args, MAX_LIST)
}

/// Reads the answer of `incus list`. `names` selects instances. `member` is this host's name in a
/// cluster, because a CID is valid on one host only.
pub(crate) fn read(text: &str, names: &[String], member: &str) -> Result<Listing, String> {
    let instances: Vec<serde_json::Value> = serde_json::from_str(text)
        .map_err(|error| format!("This is not a list of `incus list --format=json`: {error}."))?;
    let mut listing = Listing::default();
    let mut missing: Vec<&String> = names.iter().collect();
    for (index, value) in instances.into_iter().enumerate() {
        let instance: Instance = match serde_json::from_value(value) {
            Ok(instance) => instance,
            Err(error) => {
                let why = format!(
                    "The entry is not an instance of Incus ({error}): pass the output of `incus list \
                     --format=json` unchanged."
                );
                listing.add(&format!("entry {index}"), Err(why));
                continue;
            }
        };
        if !names.is_empty() && !names.contains(&instance.name) {
            continue;
        }
        missing.retain(|name| **name != instance.name);
        let container = instance.kind != "virtual-machine";
        if container && names.is_empty() {
            continue;
        }
        let read = if container {
            Err(format!(
                "{} is a container, and an import takes VMs only: register it with `vgpu-admin \
                 register-vm`, and mount its Unix socket (docs/guest.md).",
                instance.name
            ))
        } else {
            found(&instance, member)
        };
        listing.add(&instance.name, read);
    }
    for name in missing {
        let why = "Incus lists no instance of this name: `incus list --all-projects` shows the names, and \
                   --project names another project.";
        listing.add(name, Err(why.into()));
    }
    Ok(listing)
}

fn found(instance: &Instance, member: &str) -> Result<Found, String> {
    let here = ["", "none", member].contains(&instance.location.as_str());
    let cid = match instance.config.get("volatile.vsock_id") {
        _ if !here => Err(format!(
            "The VM is on cluster member {0}, and this host is {member}: import it on {0}. If this host is \
             that member, give --member={0}.",
            instance.location
        )),
        None => Err(
            "The VM has never been started, so it has no CID yet: start it once, and import again."
                .into(),
        ),
        Some(text) => {
            let cid = text
                .parse()
                .map_err(|_| not_a_cid("volatile.vsock_id", text))?;
            Ok(guest_cid(cid)?)
        }
    };
    Ok(Found {
        origin: format!("incus:{}/{}", instance.project, instance.name),
        name: instance.name.clone(),
        cid,
        share: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"[
        {"name": "v1", "project": "default", "type": "virtual-machine", "location": "none",
         "status": "Running", "config": {"volatile.vsock_id": "1868342013"}},
        {"name": "v1", "project": "lab", "type": "virtual-machine", "location": "host2",
         "config": {"volatile.vsock_id": "7"}},
        {"name": "new", "project": "default", "type": "virtual-machine", "config": {}},
        {"name": "c1", "project": "default", "type": "container", "config": {}},
        {"name": "bad", "type": "virtual-machine", "config": {"volatile.vsock_id": "x"}},
        {"nome": "x"}]"#;

    #[test]
    fn vms_of_this_host_are_found() {
        let listing = read(LIST, &[], "host1").unwrap();
        let found: Vec<_> = listing.found.iter().map(|f| f.origin.as_str()).collect();
        assert_eq!(
            found,
            ["incus:default/v1", "incus:lab/v1", "incus:default/new"]
        );
        let why = listing.found[1].cid.as_ref().unwrap_err();
        assert!(why.contains("cluster member host2"), "{why}");
        assert_eq!(listing.found[0].cid, Ok(1_868_342_013));
        let why: Vec<_> = listing.unread.iter().map(|u| u.why.as_str()).collect();
        assert!(why[0].contains("not a CID"), "{why:?}");
        assert!(why[1].contains("name"), "{why:?}");
        let there = read(LIST, &[], "host2").unwrap();
        assert_eq!(there.found[1].cid, Ok(7));
    }

    #[test]
    fn a_named_instance_that_cannot_be_imported_is_a_sentence() {
        let names = ["c1".to_owned(), "nobody".to_owned()];
        let listing = read(LIST, &names, "host1").unwrap();
        assert!(listing.found.is_empty());
        assert!(listing.unread.iter().any(|u| u.why.contains("container")));
        assert!(
            listing
                .unread
                .iter()
                .any(|u| u.why.contains("lists no instance"))
        );
        assert!(read("{}", &[], "").unwrap_err().contains("not a list"));
    }
}
