//! The two shared pages between vgpud and a worker.
