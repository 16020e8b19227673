//! `vgpu-worker`: vgpud starts one process per guest program. See the library.

fn main() -> std::process::ExitCode {
    // `vgpu-admin doctor` tries whether vgpud can run this program.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == "--version")
    {
        println!("vgpu-worker {}", env!("CARGO_PKG_VERSION"));
        return std::process::ExitCode::SUCCESS;
    }
    vgpu_worker::start::run()
}
