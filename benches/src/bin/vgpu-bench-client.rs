//! Runs one pass of the benchmarks as a CUDA program: `vgpu-bench-client LIBCUDA PTX SET`. Writes
//! JSON to standard output.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use vgpu_benches::measure::{Set, pass};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let set = args
        .get(2)
        .and_then(|name| Set::from_name(&name.to_string_lossy()));
    let ([library, ptx, _], Some(set)) = (&args[..], set) else {
        eprintln!("usage: vgpu-bench-client LIBCUDA PTX latency|throughput|copies|shared|pinned");
        return ExitCode::from(2);
    };
    match pass(Path::new(library), Path::new(ptx), set) {
        Ok(figures) => {
            println!("{}", serde_json::Value::Object(figures));
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("vgpu-bench-client: {e:#}");
            ExitCode::FAILURE
        }
    }
}
