//! VMs of libvirt.

use super::{Found, Listing, MAX_DESCRIPTION, MAX_LIST, guest_cid, not_a_cid, program, xml};

/// Asks virsh for all VMs, or for the named ones.
pub(crate) fn list(connect: &str, names: &[String]) -> Result<Listing, String> {
    let connect = format!("--connect={connect}");
    let virsh = |args: &[&str], limit: u64| {
        let mut all = vec!["--quiet".to_owned(), "--readonly".into(), connect.clone()];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        program::output("virsh", &all, limit)
    };
    let listed;
    let names = if names.is_empty() {
        listed = virsh(&["list", "--all", "--uuid"], MAX_LIST)?;
        listed.split_whitespace().map(str::to_owned).collect()
    } else {
        names.to_vec()
    };
    let mut listing = Listing::default();
    for name in &names {
        let domain = format!("--domain={name}");
        let read = virsh(&["dumpxml", &domain], MAX_DESCRIPTION).and_then(|text| read(&text));
        listing.add(name, read);
    }
    Ok(listing)
}

/// Reads the XML of one VM, as `virsh dumpxml` prints it and as libvirt passes it to its hooks.
pub(crate) fn read(text: &str) -> Result<Found, String> {
    let domain = xml::domain(text)?;
    let cid = match &domain.vsock {
        None => Err(
            "The VM has no vsock device: add one with `virsh edit` (docs/libvirt.md), and import again."
                .into(),
        ),
        Some(xml::Vsock { cid: None }) => Err(
            "libvirt chooses the CID when the VM starts: import the VM while it runs, or let the hook \
             register it (docs/libvirt.md)."
                .into(),
        ),
        Some(xml::Vsock { cid: Some(cid) }) => {
            let number = cid.parse().map_err(|_| not_a_cid("The address of <cid>", cid))?;
            Ok(guest_cid(number)?)
        }
    };
    Ok(Found {
        origin: format!("libvirt:{}", uuid(&domain.uuid)?),
        name: domain.name,
        cid,
        share: domain.share,
    })
}

/// Reads only the origin from the XML of a VM, so that wrong values elsewhere do not matter.
pub(crate) fn origin(text: &str) -> Result<String, String> {
    Ok(format!("libvirt:{}", uuid(&xml::domain(text)?.uuid)?))
}

/// Returns the UUID in the form that libvirt writes.
fn uuid(text: &str) -> Result<String, String> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err(format!(
            "The XML has no UUID of a domain, but {text:?}: pass the output of `virsh dumpxml VM`."
        ));
    }
    let digits = digits.to_ascii_lowercase();
    let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
    Ok(format!("{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0";

    fn vm(devices: &str) -> Result<Found, String> {
        read(&format!(
            "<domain><name>web</name><uuid>4DEA22B31D52D8F32516782E98AB3FA0</uuid>\
             <devices>{devices}</devices></domain>"
        ))
    }

    #[test]
    fn the_cid_is_that_of_the_vsock_device() {
        let found = vm("<vsock><cid auto='no' address='42'/></vsock>").unwrap();
        assert_eq!(found.origin, format!("libvirt:{UUID}"));
        assert_eq!((found.name.as_str(), found.cid), ("web", Ok(42)));
        let later = vm("<vsock><cid auto='yes'/></vsock>").unwrap().cid;
        assert!(later.unwrap_err().contains("when the VM starts"));
        let none = vm("").unwrap().cid.unwrap_err();
        assert!(none.contains("no vsock device"), "{none}");
        for bad in ["2", "-1", "x", "4294967295", "99999999999999999999"] {
            let error = vm(&format!("<vsock><cid address='{bad}'/></vsock>")).unwrap_err();
            assert!(error.contains(bad), "{error}");
            let text = format!(
                "<domain><uuid>{UUID}</uuid><devices><vsock><cid address='{bad}'/>\
                 </vsock></devices></domain>"
            );
            assert_eq!(origin(&text), Ok(format!("libvirt:{UUID}")));
        }
    }

    #[test]
    fn a_domain_without_a_uuid_has_no_identity() {
        assert!(read("<domain><name>web</name></domain>").is_err());
        assert!(read("<domain><uuid>é</uuid></domain>").is_err());
    }
}
