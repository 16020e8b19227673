//! Finds the kernels of a PTX text that use only addresses from their parameters.
//!
//! A kernel may find an address in memory: a pointer that a copy or an earlier kernel has stored. A
//! kernel that never dereferences a loaded value uses no address from memory. Such a kernel
//! accesses only blocks of the program's memory whose addresses are among its parameters. The
//! analysis is conservative. A kernel counts as reaching all memory if a statement, opcode or
//! operand has a form that is not listed here. The same holds if the kernel computes an address in
//! another way than compilers compute the addresses of elements.
//!
//! As in C, a pointer plus an offset is assumed to stay in the block of the pointer.

mod flow;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{HashMap, HashSet};

/// The names of the kernels that use only addresses from their parameters, in every PTX text that
/// defines a kernel of this name.
pub(crate) fn kernels<'a>(texts: impl IntoIterator<Item = &'a str>) -> HashSet<String> {
    let mut direct = HashMap::new();
    for text in texts {
        if enter(text, &mut direct).is_none() {
            return HashSet::new();
        }
    }
    let direct = direct.into_iter().filter(|(_, is)| *is);
    direct.map(|(name, _)| name).collect()
}

/// Adds the kernels of a PTX text to `direct`, which has the kernels of other PTX texts. `None`:
/// this PTX text cannot be parsed.
fn enter(text: &str, direct: &mut HashMap<String, bool>) -> Option<()> {
    let text = text::plain(text)?;
    for entry in text::entries(&text)? {
        // Of two kernels with the same name, both must be direct.
        let all: &mut bool = direct.entry(entry.name.to_owned()).or_insert(true);
        *all = *all && flow::is_direct(&entry);
    }
    Some(())
}
