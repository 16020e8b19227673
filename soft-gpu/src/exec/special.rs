//! Special registers. Registers that do not change during a launch are columns of the warp. The
//! others are read by an instruction.

/// Columns of the 32-bit special registers.
pub(crate) const TID: u32 = 0;
pub(crate) const NTID: u32 = 3;
pub(crate) const CTAID: u32 = 6;
pub(crate) const NCTAID: u32 = 9;
pub(crate) const LANEID: u32 = 12;
pub(crate) const WARPID: u32 = 13;
pub(crate) const NWARPID: u32 = 14;
pub(crate) const SMID: u32 = 15;
pub(crate) const NSMID: u32 = 16;
pub(crate) const MASK_EQ: u32 = 17;
pub(crate) const MASK_LE: u32 = 18;
pub(crate) const MASK_LT: u32 = 19;
pub(crate) const MASK_GE: u32 = 20;
pub(crate) const MASK_GT: u32 = 21;
pub(crate) const DYNAMIC_SMEM: u32 = 22;
pub(crate) const TOTAL_SMEM: u32 = 23;
/// Address of dynamic shared memory in shared space.
pub(crate) const DYNAMIC_BASE: u32 = 24;
pub(crate) const ZERO: u32 = 25;
pub(crate) const ONE: u32 = 26;
/// High word of the grid workspace's address (`%envreg1`).
pub(crate) const ENV1: u32 = 27;
/// Low word of the grid workspace's address (`%envreg2`).
pub(crate) const ENV2: u32 = 28;
/// Number of 32-bit columns.
pub(crate) const COUNT32: usize = 29;

/// Start of the current frame's local memory (not visible to PTX).
pub(crate) const FRAME_LOCAL: u32 = 0;
/// [`DYNAMIC_BASE`] as a 64-bit value.
pub(crate) const DYNAMIC_BASE64: u32 = 1;
pub(crate) const ZERO64: u32 = 2;
/// Number of 64-bit columns.
pub(crate) const COUNT64: usize = 3;

/// The way to read a special register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    /// 32-bit column.
    Col32(u32),
    /// 64-bit column.
    Col64(u32),
    /// An instruction reads the register at run time.
    Clock(Clock),
}

/// A register that changes while the kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// `%clock`, low word.
    Lo,
    /// `%clock_hi`.
    Hi,
    /// `%clock64`.
    Full,
    /// `%globaltimer`.
    Nanos,
    /// `%globaltimer_lo`.
    NanosLo,
    /// `%globaltimer_hi`.
    NanosHi,
}

/// Finds a special register by its name, which starts with `%`.
pub(crate) fn find(name: &str) -> Option<Special> {
    use Special::{Clock as Run, Col32, Col64};
    let dim = |base: u32, s: &str| match s {
        "x" => Some(Col32(base)),
        "y" => Some(Col32(base + 1)),
        "z" => Some(Col32(base + 2)),
        _ => None,
    };
    let rest = name.strip_prefix('%')?;
    if let Some((head, tail)) = rest.split_once('.') {
        return match head {
            "tid" => dim(TID, tail),
            "ntid" => dim(NTID, tail),
            "ctaid" => dim(CTAID, tail),
            "nctaid" => dim(NCTAID, tail),
            // Without clusters, each block is a cluster of its own.
            "clusterid" => dim(CTAID, tail),
            "nclusterid" => dim(NCTAID, tail),
            "cluster_ctaid" if matches!(tail, "x" | "y" | "z") => Some(Col32(ZERO)),
            "cluster_nctaid" if matches!(tail, "x" | "y" | "z") => Some(Col32(ONE)),
            _ => None,
        };
    }
    Some(match rest {
        "laneid" => Col32(LANEID),
        "warpid" => Col32(WARPID),
        "nwarpid" => Col32(NWARPID),
        "smid" => Col32(SMID),
        "nsmid" => Col32(NSMID),
        "gridid" | "current_graph_exec" => Col64(ZERO64),
        "lanemask_eq" => Col32(MASK_EQ),
        "lanemask_le" => Col32(MASK_LE),
        "lanemask_lt" => Col32(MASK_LT),
        "lanemask_ge" => Col32(MASK_GE),
        "lanemask_gt" => Col32(MASK_GT),
        "dynamic_smem_size" => Col32(DYNAMIC_SMEM),
        "total_smem_size" | "aggr_smem_size" => Col32(TOTAL_SMEM),
        "cluster_ctarank" => Col32(ZERO),
        "cluster_nctarank" => Col32(ONE),
        "clock" => Run(Clock::Lo),
        "clock_hi" => Run(Clock::Hi),
        "clock64" => Run(Clock::Full),
        "globaltimer" => Run(Clock::Nanos),
        "globaltimer_lo" => Run(Clock::NanosLo),
        "globaltimer_hi" => Run(Clock::NanosHi),
        "envreg1" => Col32(ENV1),
        "envreg2" => Col32(ENV2),
        _ if numbered(rest, "envreg", 32) => Col32(ZERO),
        _ if numbered(rest, "pm", 8) => Col32(ZERO),
        _ if rest
            .strip_suffix("_64")
            .is_some_and(|r| numbered(r, "pm", 8)) =>
        {
            Col64(ZERO64)
        }
        _ => return None,
    })
}

fn numbered(name: &str, prefix: &str, below: u32) -> bool {
    name.strip_prefix(prefix)
        .and_then(|n| n.parse::<u32>().ok())
        .is_some_and(|n| n < below)
}
