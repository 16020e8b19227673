//! See the README of the workspace.
fn main() {}
