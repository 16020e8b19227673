//! Golden files: committed files that a test generates again and compares.
//!
//! With `UPDATE_GOLDEN=1` in the environment, every such test writes the file instead of failing.
#![forbid(unsafe_code)]

use std::path::Path;

use similar::TextDiff;

/// The variable that makes tests rewrite golden files.
pub const UPDATE: &str = "UPDATE_GOLDEN";

/// Number of unchanged lines around a change.
const CONTEXT: usize = 2;

/// Largest number of lines of a difference that are shown.
const MOST_LINES: usize = 80;

/// Compares a committed file with `made`, the output of a test; a missing file counts as empty.
///
/// # Panics
/// If file and output differ, with the differing lines; or if the file cannot be written.
#[track_caller]
pub fn assert_golden(path: impl AsRef<Path>, made: &str) {
    let path = path.as_ref();
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    if committed == made {
        return;
    }
    if std::env::var_os(UPDATE).is_some() {
        let written = std::fs::write(path, made);
        return written.unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
    }
    panic!("{}", difference(path, &committed, made));
}

fn difference(path: &Path, committed: &str, made: &str) -> String {
    let diff = TextDiff::from_lines(committed, made);
    let mut unified = diff.unified_diff();
    let text = unified
        .context_radius(CONTEXT)
        .header("committed", "made by this test")
        .to_string();
    let shown: Vec<&str> = text.lines().take(MOST_LINES).collect();
    let more = text.lines().count() - shown.len();
    let more = match more {
        0 => String::new(),
        more => format!("\n… and {more} more lines"),
    };
    format!(
        "{} differs from what this test makes. If the change is meant, run the test with {UPDATE}=1.\n\
         {}{more}",
        path.display(),
        shown.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_line_by_line_and_cut() {
        let text = difference(Path::new("a.txt"), "one\ntwo\nthree\n", "one\n2\nthree\n");
        assert!(text.contains("a.txt differs"), "{text}");
        assert!(text.contains("\n one\n-two\n+2\n three"), "{text}");
        let long: String = (0..500).map(|i| format!("{i}\n")).collect();
        let text = difference(Path::new("a.txt"), "", &long);
        assert!(text.ends_with("\n… and 423 more lines"), "{text}");
    }

    #[test]
    fn a_file_that_is_as_made_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        std::fs::write(&path, "one\n").unwrap();
        assert_golden(&path, "one\n");
        assert_golden(dir.path().join("absent"), "");
    }
}
