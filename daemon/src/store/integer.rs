//! Numbers as SQLite stores them.

/// SQLite's integers are signed. No counter of vgpud comes near the largest one.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
