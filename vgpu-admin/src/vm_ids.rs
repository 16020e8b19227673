//! Lists of VM numbers on the command line: `1`, `1-7`, `1-3,9`.

use vgpu_api::{MAX_BATCH, MAX_VM_ID};

/// A clap value parser. Parses `text` into numbers in ascending order without repeats. Refuses a
/// typing error such as `1-70000` before a request is sent.
pub(crate) fn parse(text: &str) -> Result<VmIds, String> {
    let mut ids = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
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

fn number(text: &str) -> Result<u32, String> {
    match text.trim().parse::<u32>() {
        Ok(id @ 1..=MAX_VM_ID) => Ok(id),
        _ => Err(format!(
            "`{text}` is not a VM number; write a number from 1 to {MAX_VM_ID}, a range 1-7, or a list"
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
    }
}
