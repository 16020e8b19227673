//! PTX of `cudaGetErrorName` and `cudaGetErrorString` in kernels. These functions return addresses
//! of device memory, so that they are code of the module that calls them.

use std::fmt::Write as _;
use std::sync::LazyLock;

use crate::exec::runtime::error::TEXTS;

/// Text for numbers that are not in the table.
const UNKNOWN: &str = "unrecognized error code";

/// The functions, made from the table of errors.
pub(super) static PTX: LazyLock<String> = LazyLock::new(|| {
    let mut bytes = [UNKNOWN.as_bytes(), b"\0"].concat();
    let (mut names, mut texts) = (String::new(), String::new());
    for &(code, name, text) in TEXTS {
        for (choices, said) in [(&mut names, name), (&mut texts, text)] {
            let at = bytes.len();
            let _ = writeln!(choices, "\tsetp.eq.u32 %p, %c, {code};");
            let _ = writeln!(choices, "\t@%p mov.u64 %t, texts+{at};");
            bytes.extend([said.as_bytes(), b"\0"].concat());
        }
    }
    let size = bytes.len();
    let bytes: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!(
        ".version 6.0\n.target sm_60\n.address_size 64\n\
         .global .align 1 .b8 texts[{size}] = {{ {} }};\n{}{}",
        bytes.join(", "),
        function("__cudaCDP2GetErrorName", &names),
        function("__cudaCDP2GetErrorString", &texts),
    )
});

fn function(name: &str, choices: &str) -> String {
    format!(
        ".weak .func (.param .b64 result) {name}(.param .b32 code)\n{{\n\
         \t.reg .b32 %c;\n\t.reg .b64 %t;\n\t.reg .pred %p;\n\
         \tld.param.u32 %c, [code];\n\tmov.u64 %t, texts+0;\n\
         {choices}\
         \tcvta.global.u64 %t, %t;\n\tst.param.b64 [result], %t;\n\tret;\n}}\n"
    )
}
