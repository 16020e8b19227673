//! The program `vgpu-admin`; the library of the same package does the work.

fn main() -> std::process::ExitCode {
    vgpu_admin::run()
}
