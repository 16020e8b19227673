//! Exit codes of `vgpu-admin`, on which scripts rely.

/// Done.
pub const DONE: u8 = 0;
/// Failed for a reason without a code of its own.
pub const FAILED: u8 = 1;
/// The command line or the request is wrong.
pub const USAGE: u8 = 2;
/// The command names something that does not exist.
pub const NOT_FOUND: u8 = 3;
/// The caller may not do this.
pub const NOT_PERMITTED: u8 = 4;
/// The daemon cannot be reached.
pub const UNREACHABLE: u8 = 5;
/// In conflict with the present state, or the daemon is busy.
pub const CONFLICT: u8 = 6;
/// `doctor` found errors.
pub const FAULTY: u8 = 7;

/// Every exit code with its meaning, as `vgpu-admin --help` and the documents give it.
pub const ALL: &[(u8, &str)] = &[
    (DONE, "done"),
    (FAILED, "failed"),
    (USAGE, "wrong usage or request"),
    (NOT_FOUND, "no such GPU, pool, VM or session"),
    (NOT_PERMITTED, "not permitted"),
    (UNREACHABLE, "daemon not reachable"),
    (CONFLICT, "in conflict or busy"),
    (FAULTY, "doctor found errors"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;

    #[test]
    fn the_documents_have_the_codes() {
        let manual = include_str!("../../../docs/operator.md").replace('`', "");
        let manual: Vec<&str> = manual.split_whitespace().collect();
        let codes: Vec<String> = ALL.iter().map(|(n, what)| format!("{n} {what}")).collect();
        let sentence = format!("Exit codes: {}.", codes.join(", "));
        assert!(manual.join(" ").contains(&sentence), "{sentence}");
    }

    #[test]
    fn the_table_of_failures_is_true() {
        let page = include_str!("../../../docs/admin-api.md");
        let mut told = 0;
        for row in page.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [statuses, codes, exit] = cells[..] else {
                continue;
            };
            let Ok(exit) = exit.parse::<u8>() else {
                continue;
            };
            for name in codes.split(", ") {
                let name = name.trim_matches('`');
                let code: ErrorCode = serde_json::from_value(name.into()).expect(name);
                assert_ne!(code, ErrorCode::Unknown, "{name}");
                assert_eq!(code.exit_code(), exit, "{name}");
                let status = code.http_status().to_string();
                assert!(statuses.split(", ").any(|one| one == status), "{name}");
                told += 1;
            }
        }
        assert!(told > 20, "the table is read: {told} codes");
    }
}
