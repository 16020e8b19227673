//! One pass of the benchmarks as a CUDA program: `vgpu-bench-client LIBCUDA PTX`, JSON on stdout.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(library), Some(ptx)) = (args.next(), args.next()) else {
        eprintln!("usage: vgpu-bench-client LIBCUDA PTX");
        return ExitCode::from(2);
    };
    match vgpu_benches::measure::pass(&library, &ptx) {
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
