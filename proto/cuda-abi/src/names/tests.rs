//! Compares the table of names with answers of NVIDIA's driver.

use super::*;

#[test]
fn the_ladder_is_in_order_and_names_each_symbol_once() {
    let order = |form: &Form| (form.name, form.per_thread, form.since);
    assert!(LADDER.is_sorted_by(|a, b| order(a) < order(b)));
    let symbols = symbols();
    assert!(symbols.windows(2).all(|w| w[0] < w[1]));
    assert_eq!(symbols.len(), LADDER.len() + UNDOCUMENTED.len());
}

/// A sample of lookups by real clients, with the answers of a real driver.
#[test]
fn the_ladder() {
    for (name, version, per_thread, expected) in [
        ("cuMemAlloc", 3020, false, Ok("cuMemAlloc_v2")),
        ("cuMemAlloc", 12_000, true, Ok("cuMemAlloc_v2")),
        (
            "cuDevicePrimaryCtxRelease",
            7000,
            false,
            Ok("cuDevicePrimaryCtxRelease"),
        ),
        (
            "cuDevicePrimaryCtxRelease",
            11_000,
            false,
            Ok("cuDevicePrimaryCtxRelease_v2"),
        ),
        ("cuDeviceGetUuid", 9020, false, Ok("cuDeviceGetUuid")),
        ("cuDeviceGetUuid", 11_040, false, Ok("cuDeviceGetUuid_v2")),
        ("cuMemcpyHtoD", 3020, false, Ok("cuMemcpyHtoD_v2")),
        ("cuMemcpyHtoD", 7000, true, Ok("cuMemcpyHtoD_v2_ptds")),
        ("cuMemcpyHtoD", 6050, true, Err(NotFound::TooOld)),
        (
            "cuStreamGetCaptureInfo",
            11_030,
            true,
            Ok("cuStreamGetCaptureInfo_v2_ptsz"),
        ),
        ("cuGetProcAddress", 12_000, false, Ok("cuGetProcAddress_v2")),
        ("cuCtxCreate", 11_040, false, Ok("cuCtxCreate_v3")),
        (
            "cuTexRefSetAddress2D",
            4010,
            false,
            Ok("cuTexRefSetAddress2D_v3"),
        ),
        (
            "cuMemPrefetchAsync",
            12_020,
            true,
            Ok("cuMemPrefetchAsync_v2_ptsz"),
        ),
        ("cuLaunchKernel", 3020, false, Err(NotFound::TooOld)),
        ("cuMemAlloc_v2", 12_000, false, Err(NotFound::NoSymbol)),
        ("cuSubgridCreate", 13_030, false, Err(NotFound::NoSymbol)),
        ("cuMemAlloc", u32::MAX, false, Ok("cuMemAlloc_v2")),
        ("", 0, false, Err(NotFound::NoSymbol)),
    ] {
        assert_eq!(
            form(name, version, per_thread, 13_050).map(|form| form.symbol),
            expected,
            "{name}@{version} {per_thread}"
        );
    }
}

#[test]
fn a_driver_has_no_form_that_is_newer_than_itself() {
    let newest = |name, driver| form(name, u32::MAX, false, driver).map(|form| form.symbol);
    assert_eq!(newest("cuCtxCreate", 12_040), Ok("cuCtxCreate_v3"));
    assert_eq!(newest("cuCtxCreate", 13_000), Ok("cuCtxCreate_v4"));
    // A function of CUDA 12.8: unknown to a 12.4 driver; known to a 12.8 driver, but too new for a
    // program of 12.4.
    let named = |version, driver| form("cuCheckpointProcessLock", version, false, driver);
    assert_eq!(named(12_040, 12_040), Err(NotFound::NoSymbol));
    assert_eq!(named(12_040, 12_080), Err(NotFound::TooOld));
    assert_eq!(named(13_000, 12_040), Err(NotFound::NoSymbol));
}
