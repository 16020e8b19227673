//! VMs on the command line: `1`, `1-7`, `1-3,9`, `web`, `1-3,web`.

use vgpu_api::{MAX_BATCH, MAX_VM_ID};

/// VMs by number and by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Vms {
    /// In ascending order without repeats.
    pub(crate) ids: Vec<u32>,
    pub(crate) names: Vec<String>,
}

/// A clap value parser for numbers and names. Refuses a typing error such as `1-70000` before a
/// request is sent.
pub(crate) fn vms(text: &str) -> Result<Vms, String> {
    parse(text, true)
}

/// A clap value parser for numbers only.
pub(crate) fn numbers(text: &str) -> Result<Vms, String> {
    parse(text, false)
}

/// A clap value parser for one number or name.
pub(crate) fn one(text: &str) -> Result<Vms, String> {
    let vms = vms(text)?;
    match vms.ids.len() + vms.names.len() {
        1 => Ok(vms),
        _ => Err(format!("`{text}` are several VMs; name one VM")),
    }
}

fn parse(text: &str, names: bool) -> Result<Vms, String> {
    let mut vms = Vms::default();
    for part in text.split(',') {
        let part = part.trim();
        if names && is_name(part) {
            vms.names.push(part.to_owned());
            continue;
        }
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first, part, names)?, number(last, part, names)?),
            None => (number(part, part, names)?, number(part, part, names)?),
        };
        if last < first {
            return Err(format!("`{part}` runs backwards; write {last}-{first}"));
        }
        let more = (last - first) as usize;
        if more >= MAX_BATCH || vms.ids.len() + more >= MAX_BATCH {
            return Err(format!("more than {MAX_BATCH} VMs in one command"));
        }
        vms.ids.extend(first..=last);
    }
    vms.ids.sort_unstable();
    vms.ids.dedup();
    vms.names.sort_unstable();
    vms.names.dedup();
    Ok(vms)
}

/// Whether `part` is a name. Digits are always numbers, and so are ranges.
fn is_name(part: &str) -> bool {
    vgpu_api::check_vm_name(part).is_ok()
}

/// `part`: the text that has the number. `names`: whether names are possible too.
fn number(text: &str, part: &str, names: bool) -> Result<u32, String> {
    match text.trim().parse::<u32>() {
        Ok(id @ 1..=MAX_VM_ID) => Ok(id),
        _ => {
            let (what, name) = match names {
                true => (" or name", " a name,"),
                false => ("", ""),
            };
            Err(format!(
                "`{part}` is not a VM number{what}; write a number from 1 to {MAX_VM_ID},{name} a range 1-7, or a list"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<u32> {
        vms(text).unwrap().ids
    }

    #[test]
    fn numbers_ranges_and_lists() {
        assert_eq!(ids("4"), [4]);
        assert_eq!(ids("1-3"), [1, 2, 3]);
        assert_eq!(ids("9,1-3, 2"), [1, 2, 3, 9]);
    }

    #[test]
    fn slips_are_refused_with_a_sentence() {
        for text in [
            "",
            "0",
            "x",
            "-1",
            "1-",
            "7-1",
            "1--2",
            "1-70000",
            "4294967296",
        ] {
            assert!(numbers(text).is_err(), "{text}");
        }
        assert_eq!(vms("7-1").unwrap_err(), "`7-1` runs backwards; write 1-7");
        let said = numbers("-3").unwrap_err();
        assert!(said.starts_with("`-3` is not a VM number"), "{said}");
    }

    #[test]
    fn a_vm_is_named_by_number_or_name() {
        let named = |ids: &[u32], names: &[&str]| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            Ok(Vms {
                ids: ids.to_vec(),
                names,
            })
        };
        assert_eq!(one("7"), named(&[7], &[]));
        assert_eq!(vms("web-1"), named(&[], &["web-1"]));
        assert_eq!(vms("7up"), named(&[], &["7up"]));
        assert_eq!(vms("web,1-3,db,web"), named(&[1, 2, 3], &["db", "web"]));
        for bad in ["0", "7-", "", "a b", "-x", "a\n,", "99999999", "-3", "web,"] {
            let said = vms(bad).unwrap_err();
            assert!(said.contains("is not a VM number or name"), "{bad}: {said}");
        }
        for several in ["1-3", "web,db", "web,1"] {
            assert!(
                one(several).unwrap_err().contains("several VMs"),
                "{several}"
            );
        }
    }
}
