//! The program `vgpu-guest`; the library of the same package does the work.

fn main() -> std::process::ExitCode {
    vgpu_guest::run()
}
