//! The words of a dotted opcode. Each lowering takes the words that it understands. A word that
//! nobody takes makes the instruction unsupported.

use crate::ptx::ast::Type;

use super::Why;

/// The modifiers of one opcode.
pub(crate) struct Mods<'a> {
    /// The first word.
    pub(crate) base: &'a str,
    rest: Vec<&'a str>,
}

impl<'a> Mods<'a> {
    /// Splits an opcode.
    pub(crate) fn new(opcode: &'a str) -> Mods<'a> {
        let mut parts = opcode.split('.');
        let base = parts.next().unwrap_or("");
        Mods {
            base,
            rest: parts.collect(),
        }
    }

    /// Takes a modifier. Returns true if the opcode has it.
    pub(crate) fn has(&mut self, name: &str) -> bool {
        match self.rest.iter().position(|m| *m == name) {
            Some(i) => {
                self.rest.remove(i);
                true
            }
            None => false,
        }
    }

    /// Takes the first modifier that stands in a table, and returns its value in the table.
    pub(crate) fn one<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        let (i, v) = self
            .rest
            .iter()
            .enumerate()
            .find_map(|(i, m)| table.iter().find(|(n, _)| n == m).map(|(_, v)| (i, *v)))?;
        self.rest.remove(i);
        Some(v)
    }

    /// All remaining modifiers, in order.
    pub(crate) fn left(&self) -> &[&'a str] {
        &self.rest
    }

    /// Takes all modifiers.
    pub(crate) fn clear(&mut self) {
        self.rest.clear();
    }

    /// Takes all modifiers that are in a list.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        self.rest.retain(|m| !names.contains(m));
    }

    /// Takes all modifiers with a prefix.
    pub(crate) fn ignore_prefix(&mut self, prefix: &str) {
        self.rest.retain(|m| !m.starts_with(prefix));
    }

    /// Takes the first type.
    pub(crate) fn ty(&mut self) -> Result<Type, Why> {
        let found = self
            .rest
            .iter()
            .enumerate()
            .find_map(|(i, m)| Type::named(m).map(|t| (i, t)));
        let (i, t) = found.ok_or_else(|| Why::invalid("the opcode names no type"))?;
        self.rest.remove(i);
        Ok(t)
    }

    /// The first type among the remaining modifiers. Does not take it.
    pub(crate) fn peek_type(&self) -> Option<Type> {
        self.rest.iter().find_map(|m| Type::named(m))
    }

    /// Fails if a modifier remains.
    pub(crate) fn finish(&self) -> Result<(), Why> {
        match self.rest.first() {
            None => Ok(()),
            Some(m) => Err(Why::unsupported(format!("modifier .{m} is not served"))),
        }
    }
}
