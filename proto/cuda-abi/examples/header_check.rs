//! Writes a C program that compares this crate with a `cuda.h`. `header-check/run.sh` runs that
//! program.
//!
//! The only argument of this example is the path of the header. The C program prints each
//! difference and the number of facts that agree, and fails if any fact differs. A fact whose name
//! is missing from an older header is skipped; the newest header has all names.

use std::collections::HashSet;

use vgpu_cuda_abi::{numbers::NUMBERS, results::RESULTS, structs::LAYOUTS};

const HEAD: &str = r#"#include <cuda.h>
#include <stddef.h>
#include <stdio.h>
static int differ, agree;
static void same(const char *what, unsigned long long theirs, unsigned long long ours) {
    if (theirs == ours) {
        agree++;
    } else {
        differ++;
        printf("%s: cuda.h has %llu, vgpu-cuda-abi %llu\n", what, theirs, ours);
    }
}
int main(void) {
"#;

fn main() {
    let path = std::env::args().nth(1).expect("the path of a cuda.h");
    let header = std::fs::read_to_string(path).expect("a readable header");
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: HashSet<&str> = header.split(|c| !is_part(c)).collect();
    let has = |name: &str| name.split('.').all(|part| words.contains(part));
    let (mut facts, mut missing) = (Vec::new(), 0);
    let old = header.contains("#define CUDA_VERSION 12040");
    let mut add = |there: bool, expression: String, ours: usize| match there {
        true => facts.push((expression, ours)),
        false => missing += 1,
    };
    for entry in RESULTS {
        let name = entry.name.to_str().expect("a name");
        add(has(name), name.to_owned(), entry.code as usize);
    }
    for (name, value) in NUMBERS {
        add(has(name), format!("(unsigned){name}"), *value as usize);
    }
    for layout in LAYOUTS {
        let name = layout.name;
        let grown = layout.fields.iter().any(|field| field.newer);
        add(
            has(name) && !(old && grown),
            format!("sizeof({name})"),
            layout.size,
        );
        for field in layout.fields {
            let there = has(name) && has(field.name) && !(old && field.newer);
            let expression = format!("offsetof({name}, {})", field.name);
            add(there, expression, field.at);
        }
    }
    print!("{HEAD}");
    for (expression, ours) in facts {
        println!("    same(\"{expression}\", {expression}, {ours}ull);");
    }
    println!("    printf(\"%d facts agree, {missing} are newer\\n\", agree);");
    println!("    return differ != 0;\n}}");
}
