//! `vgpu-probe`: examines the host's GPUs for vgpud. See the library.

fn main() -> std::process::ExitCode {
    vgpu_worker::probe::run()
}
