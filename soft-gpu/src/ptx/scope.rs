//! Names of one function body: nested `{ }` scopes flattened to unique names.
//!
//! A name keeps its spelling in the outermost scope. A name in scope number n becomes `name#n`,
//! which is not a PTX identifier. A label may be used before its definition, so names are resolved
//! at the end of the body: statement by statement, from the scope of the statement outwards.

use std::collections::HashSet;

use super::ParseError;

/// Number of a scope. The body, with the function's parameters, is scope 0.
pub(super) type ScopeId = u32;

struct Scope {
    parent: ScopeId,
    names: HashSet<String>,
}

/// All scopes of one body.
pub(super) struct Scopes {
    all: Vec<Scope>,
    current: ScopeId,
    depth: usize,
}

impl Scopes {
    pub(super) fn new() -> Self {
        Scopes {
            all: vec![Scope {
                parent: 0,
                names: HashSet::new(),
            }],
            current: 0,
            depth: 0,
        }
    }

    /// The scope of the statement that the parser reads now.
    pub(super) fn current(&self) -> ScopeId {
        self.current
    }

    /// Whether the current scope is the body itself.
    pub(super) fn outermost(&self) -> bool {
        self.current == 0
    }

    /// Opens a scope at `{`.
    pub(super) fn open(&mut self, line: u32) -> Result<(), ParseError> {
        if self.depth >= super::MAX_SCOPES {
            return Err(ParseError::new(line, "scopes are nested too deeply"));
        }
        self.depth += 1;
        self.all.push(Scope {
            parent: self.current,
            names: HashSet::new(),
        });
        self.current = (self.all.len() - 1) as ScopeId;
        Ok(())
    }

    /// Closes a nested scope at `}`.
    pub(super) fn close(&mut self) {
        self.current = self.all[self.current as usize].parent;
        self.depth = self.depth.saturating_sub(1);
    }

    /// Declares a name in the current scope and returns its unique name.
    pub(super) fn declare(&mut self, name: &str, line: u32) -> Result<String, ParseError> {
        if !self.all[self.current as usize]
            .names
            .insert(name.to_owned())
        {
            return Err(ParseError::new(
                line,
                format!("`{name}` is declared twice in one scope"),
            ));
        }
        Ok(unique(name, self.current))
    }

    /// Replaces a name that is used in `scope` by its unique name. A suffix (`.x` of `v.x`) is
    /// kept. A name that the body does not declare (`%tid.x`) is unchanged.
    pub(super) fn resolve(&self, name: &mut String, scope: ScopeId) {
        let stem = name.find('.').map_or(name.as_str(), |dot| &name[..dot]);
        let mut scope = scope;
        while scope != 0 {
            let here = &self.all[scope as usize];
            if here.names.contains(stem) {
                let suffix = &name[stem.len()..];
                *name = format!("{}{suffix}", unique(stem, scope));
                return;
            }
            scope = here.parent;
        }
    }
}

fn unique(name: &str, scope: ScopeId) -> String {
    if scope == 0 {
        name.to_owned()
    } else {
        format!("{name}#{scope}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(scopes: &Scopes, name: &str, scope: ScopeId) -> String {
        let mut name = name.to_owned();
        scopes.resolve(&mut name, scope);
        name
    }

    #[test]
    fn inner_names_shadow_and_end_with_their_scope() {
        let mut scopes = Scopes::new();
        assert_eq!(scopes.declare("a", 1).unwrap(), "a");
        scopes.open(1).unwrap();
        let inner = scopes.current();
        assert_eq!(scopes.declare("a", 1).unwrap(), "a#1");
        assert!(scopes.declare("a", 1).is_err());
        scopes.close();
        scopes.open(1).unwrap();
        let second = scopes.current();
        scopes.close();
        assert!(scopes.outermost());
        assert_eq!(resolved(&scopes, "a", inner), "a#1");
        assert_eq!(resolved(&scopes, "a.x", inner), "a#1.x");
        assert_eq!(resolved(&scopes, "a", second), "a");
        assert_eq!(resolved(&scopes, "%tid.x", inner), "%tid.x");
    }

    #[test]
    fn nesting_is_bounded() {
        let mut scopes = Scopes::new();
        for _ in 0..super::super::MAX_SCOPES {
            scopes.open(1).unwrap();
        }
        assert!(scopes.open(7).is_err_and(|e| e.line == 7));
    }
}
