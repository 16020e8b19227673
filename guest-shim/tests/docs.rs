//! The coverage table in the guest guide is the call table.

use std::fmt::Write as _;
use std::path::Path;

use vgpu_proto::call::{FUNCTIONS, Served};

const BEGIN: &str = "<!-- coverage: written by the tests of guest-shim with VGPU_BLESS=1 -->\n";
const END: &str = "<!-- end of coverage -->";

fn table() -> String {
    let mut text = String::from("| function | since CUDA | served |\n|---|---|---|\n");
    for function in FUNCTIONS {
        let served = match function.served {
            Served::Local => "local".to_owned(),
            Served::Refused => "refused".to_owned(),
            Served::By(ops) => ops
                .iter()
                .map(|op| op.name())
                .collect::<Vec<_>>()
                .join(", "),
        };
        let (major, minor) = (function.since / 1000, function.since % 1000 / 10);
        let _ = writeln!(
            text,
            "| `{}` | {major}.{minor} | {served} |",
            function.symbol
        );
    }
    text
}

#[test]
fn the_guide_lists_what_is_served() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guest.md");
    let guide = std::fs::read_to_string(&path).expect("docs/guest.md is there");
    let (before, rest) = guide
        .split_once(BEGIN)
        .expect("the guide has the table's beginning");
    let (there, after) = rest.split_once(END).expect("the guide has the table's end");
    let wanted = table();
    if there != wanted && std::env::var_os("VGPU_BLESS").is_some() {
        let text = format!("{before}{BEGIN}{wanted}{END}{after}");
        std::fs::write(&path, text).expect("docs/guest.md is writable");
        return;
    }
    assert!(
        there == wanted,
        "docs/guest.md is out of date: run this test with VGPU_BLESS=1"
    );
}
