//! Which events and audit lines a caller wants.

use rusqlite::types::Value;
use vgpu_api::{Event, Severity};

use super::integer::int;

/// A selection of events or audit lines. Absent fields select everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Selection {
    /// Not before this time.
    pub from_unix_ms: Option<u64>,
    /// Before this time.
    pub until_unix_ms: Option<u64>,
    /// Of at least this severity. Audit lines have none.
    pub severity: Option<Severity>,
    /// About this VM.
    pub vm_id: Option<u32>,
}

/// A selection of audit lines. Absent fields select everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditSelection {
    /// Times and VM.
    pub of: Selection,
    /// By this actor, as the line names it (`uid:1000`).
    pub actor: Option<String>,
    /// Of this action (`vm-set`); `refused`: every refused command, which keeps its own action.
    pub action: Option<String>,
    /// With a target that contains this text.
    pub target: Option<String>,
}

impl From<Selection> for AuditSelection {
    fn from(of: Selection) -> Self {
        Self {
            of,
            ..Self::default()
        }
    }
}

impl Selection {
    /// Whether the selection has this event.
    #[must_use]
    pub fn wants(&self, event: &Event) -> bool {
        let at = event.at_unix_ms;
        self.from_unix_ms.is_none_or(|from| at >= from)
            && self.until_unix_ms.is_none_or(|until| at < until)
            && self.severity.is_none_or(|least| event.severity >= least)
            && self.vm_id.is_none_or(|vm_id| event.vm_id == Some(vm_id))
    }

    /// The parameters `?1` to `?4` of the conditions below.
    pub(super) fn parameters(&self) -> [Value; 4] {
        let number = |n: Option<u64>| n.map_or(Value::Null, |n| Value::Integer(int(n)));
        let severity = self.severity.map(|severity| severity as u64);
        [
            number(self.from_unix_ms),
            number(self.until_unix_ms),
            number(severity),
            number(self.vm_id.map(u64::from)),
        ]
    }
}

const TIME: &str = "(?1 IS NULL OR at_ms >= ?1) AND (?2 IS NULL OR at_ms < ?2)";

/// The condition of SQL for events.
pub(super) fn of_events() -> String {
    let severity = "CASE severity WHEN '\"info\"' THEN 0 WHEN '\"warning\"' THEN 1 ELSE 2 END";
    format!("{TIME} AND (?3 IS NULL OR {severity} >= ?3) AND (?4 IS NULL OR vm_id = ?4)")
}

/// The condition of SQL for audit lines. The list of VMs is in the command; the audit line of a
/// killed session names the VM in its target.
pub(super) fn of_audit() -> String {
    let listed = "EXISTS (SELECT 1 FROM json_tree(audit.detail) AS part \
                  WHERE part.path LIKE '%vm_ids%' AND part.value = ?4)";
    let killed = "(target LIKE '% of vm ' || ?4 OR target LIKE '% of vm ' || ?4 || ' (refused: %')";
    let refused = "(?8 = 'refused' AND instr(target, '(refused: ') > 0)";
    let named = "(?7 IS NULL OR actor = ?7) AND (?9 IS NULL OR instr(target, ?9) > 0)";
    format!(
        "{TIME} AND (?4 IS NULL OR {killed} OR {listed}) AND {named} \
         AND (?8 IS NULL OR action = ?8 OR {refused})"
    )
}
