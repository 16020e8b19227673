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

/// The kernels of PTX texts that reach nothing but what their parameters name, in each text that has them.
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

/// Which kernels of a text are direct, beside those of other texts. `None`: it is no text that can be read.
fn enter(text: &str, direct: &mut HashMap<String, bool>) -> Option<()> {
    let text = text::plain(text)?;
    for entry in text::entries(&text)? {
        // Of two with one name, both must be.
        let all: &mut bool = direct.entry(entry.name.to_owned()).or_insert(true);
        *all = *all && flow::is_direct(&entry);
    }
    Some(())
}
