//! A worker that takes the GPU without asking vgpud for it, to measure the lease against. Never
//! installed.

fn main() -> std::process::ExitCode {
    vgpu_worker::start::run_unasked()
}
