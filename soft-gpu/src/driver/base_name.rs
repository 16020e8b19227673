//! Names of functions without version suffixes.

/// The name of a function without its version suffixes: `cuMemAlloc` for `cuMemAlloc_v2_ptsz`.
pub(super) fn base(name: &str) -> &str {
    let name = name
        .strip_suffix("_ptsz")
        .or(name.strip_suffix("_ptds"))
        .unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_names() {
        assert_eq!(base("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base("cuMemcpyHtoDAsync_v2_ptsz"), "cuMemcpyHtoDAsync");
        assert_eq!(base("cuInit"), "cuInit");
    }
}
