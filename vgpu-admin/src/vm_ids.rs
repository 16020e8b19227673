//! Lists of VM numbers on the command line: `1`, `1-7`, `1-3,9`.

use vgpu_api::{MAX_BATCH, MAX_VM_ID};

/// A clap value parser. Parses `text` into numbers in ascending order without repeats. Refuses a
/// typing error such as `1-70000` before a request is sent.
pub(crate) fn parse(text: &str) -> Result<VmIds, String> {
    let mut ids = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first, part)?, number(last, part)?),
            None => (number(part, part)?, number(part, part)?),
        };
        if last < first {
            return Err(format!("`{part}` runs backwards; write {last}-{first}"));
        }
        if (last - first) as usize >= MAX_BATCH || ids.len() + (last - first) as usize >= MAX_BATCH
        {
            return Err(format!("more than {MAX_BATCH} VMs in one command"));
        }
        ids.extend(first..=last);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(VmIds(ids))
}

/// The numbers of an option such as `--vm-id=1-7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmIds(pub(crate) Vec<u32>);

/// A VM by number or name, or several by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VmsOrName {
    Ids(VmIds),
    Name(String),
}

/// Parses numbers or a name. A clap value parser.
pub(crate) fn or_name(text: &str) -> Result<VmsOrName, String> {
    match parse(text) {
        Ok(ids) => Ok(VmsOrName::Ids(ids)),
        Err(_) if vgpu_api::check_vm_name(text).is_ok() => Ok(VmsOrName::Name(text.to_owned())),
        Err(why) => Err(why + ", or a name"),
    }
}

/// Parses one number or a name. A clap value parser.
pub(crate) fn one_or_name(text: &str) -> Result<VmsOrName, String> {
    match or_name(text)? {
        VmsOrName::Ids(ids) if ids.0.len() != 1 => {
            Err(format!("`{text}` are several VMs; name one VM"))
        }
        one => Ok(one),
    }
}

/// `part`: the text that has the number.
fn number(text: &str, part: &str) -> Result<u32, String> {
    match text.trim().parse::<u32>() {
        Ok(id @ 1..=MAX_VM_ID) => Ok(id),
        _ => Err(format!(
            "`{part}` is not a VM number; write a number from 1 to {MAX_VM_ID}, a range 1-7, or a list"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<u32> {
        parse(text).unwrap().0
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
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("7-1").unwrap_err(), "`7-1` runs backwards; write 1-7");
        assert!(
            parse("-3")
                .unwrap_err()
                .starts_with("`-3` is not a VM number")
        );
    }

    #[test]
    fn a_vm_is_named_by_number_or_name() {
        assert_eq!(one_or_name("7"), Ok(VmsOrName::Ids(VmIds(vec![7]))));
        assert_eq!(or_name("web-1"), Ok(VmsOrName::Name("web-1".into())));
        assert_eq!(or_name("7up"), Ok(VmsOrName::Name("7up".into())));
        for bad in ["0", "7-", "", "a b", "-x", "a\n", "99999999"] {
            assert!(one_or_name(bad).unwrap_err().contains("or a name"), "{bad}");
        }
        assert!(one_or_name("1-3").unwrap_err().contains("several VMs"));
    }
}
