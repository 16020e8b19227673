//! The width of comments: at most 100 columns, except tables, which cannot be broken.

use std::fs;

use super::imports::sources;
use super::root;

/// Most columns of a line with a comment.
const COLUMNS: usize = 100;

/// Folders with sources of ours.
const FOLDERS: [&str; 8] = [
    "benches",
    "daemon",
    "guest-shim",
    "proto",
    "soft-gpu",
    "systemd",
    "tests",
    "vgpu-admin",
];

#[test]
fn no_comment_line_is_longer_than_100_columns() {
    let mut long = Vec::new();
    for file in FOLDERS
        .iter()
        .flat_map(|folder| sources(&root().join(folder)).expect("readable"))
    {
        let text = fs::read_to_string(&file).expect("readable");
        for (line, number) in text.lines().zip(1..) {
            let is_comment = line.trim_start().starts_with("//");
            if is_comment && !line.contains('|') && line.chars().count() > COLUMNS {
                long.push(format!("{}:{number}", file.display()));
            }
        }
    }
    assert!(
        long.is_empty(),
        "longer than {COLUMNS} columns:\n{}",
        long.join("\n")
    );
}
