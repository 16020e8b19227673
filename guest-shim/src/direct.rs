//! Which kernels of a PTX text reach nothing but what their parameters name.
//!
//! A kernel may find an address in memory: a pointer that a copy or an earlier kernel left there. One that
//! dereferences nothing that it loaded cannot, and touches of the program's memory only blocks that its parameters
//! name. What is not plainly so counts as reaching everything: a statement, an opcode or an operand of a form that is not
//! among those listed here, and an address that is made in another way than compilers make those of elements.
//!
//! As in C, a pointer with an offset stays in the block that the pointer is of.

mod flow;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{HashMap, HashSet};

/// The kernels of an image that reach nothing but what their parameters name. Of images other than PTX: none.
pub(crate) fn kernels(image: &[u8]) -> HashSet<String> {
    // Machine code and containers have bytes that no text has.
    if image.iter().take(16).any(|byte| *byte == 0) {
        return HashSet::new();
    }
    let text = image.strip_suffix(&[0]).unwrap_or(image);
    match std::str::from_utf8(text) {
        Ok(text) if !text.contains('\0') => of_text(text).unwrap_or_default(),
        _ => HashSet::new(),
    }
}

fn of_text(text: &str) -> Option<HashSet<String>> {
    let text = text::plain(text)?;
    let mut direct = HashMap::new();
    for entry in text::entries(&text)? {
        // Of two with one name, both must be.
        let all: &mut bool = direct.entry(entry.name).or_insert(true);
        *all = *all && flow::is_direct(&entry);
    }
    let direct = direct.into_iter().filter(|(_, is)| *is);
    Some(direct.map(|(name, _)| name.to_owned()).collect())
}
