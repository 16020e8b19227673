//! Checks the built program as a file: its dependencies.

#[path = "../../floor/check.rs"]
#[allow(dead_code)]
mod check;

#[test]
fn it_needs_glibc_2_28_and_nothing_else() {
    let file = std::fs::read(env!("CARGO_BIN_EXE_vgpu-guest")).expect("the program was built");
    assert_eq!(check::beyond_the_floor(&file), Vec::<String>::new());
}
