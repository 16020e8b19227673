//! One operation of a guest.

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A kernel launch.
    Kernel,
    /// A graph launch, which runs as a whole, regardless of its nodes.
    Graph,
    /// A copy to or from the host.
    Copy,
}

/// The condition of a kernel that spins until another stream of its process has reached a point (as
/// NCCL's kernels do).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until {
    /// The stream for which the kernel spins.
    pub stream: u16,
    /// Number of operations of that stream that must have completed.
    pub completed: u64,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Kernel, graph or copy.
    pub what: What,
    /// Key for function and launch shape, by which the predictor recognises the operation.
    pub key: u32,
    /// Stream of the process.
    pub stream: u16,
    /// Run time in ns, which only the device knows.
    pub ns: u64,
    /// Number of copied bytes.
    pub bytes: u64,
    /// If set, the kernel spins until this condition holds, then runs.
    pub until: Option<Until>,
}
