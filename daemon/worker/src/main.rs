//! `vgpu-worker`: started by vgpud, one for each guest program. See the library.

fn main() -> std::process::ExitCode {
    vgpu_worker::start::run()
}
