//! `cuGetProcAddress`: names and versions to addresses.
//!
//! What a real driver answers, with one difference: what is not served and newer than [`FIRST_LOOKUP`] is not found,
//! because clients probe with it. A form of the wrong version is never given in its place, nor the legacy
//! entry where the per-thread one was asked for.

use vgpu_cudart::unserved::FIRST_LOOKUP;

use crate::{process, unserved};

/// Address of an export.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: the address of a function of this library, which is never unmapped.
unsafe impl Sync for Address {}

/// One implemented symbol.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) symbol: &'static str,
    pub(crate) address: Address,
}

/// Every implemented symbol, sorted; made by `build.rs` from `src/exports`.
pub(crate) static SERVED: &[Served] = include!(concat!(env!("OUT_DIR"), "/served.rs"));

/// (name asked for, since version, per-thread default stream, symbol), sorted by name; made by `build.rs`
/// from the versions of `cudaTypedefs.h`.
static LADDER: &[(&str, u32, bool, &str)] = include!(concat!(env!("OUT_DIR"), "/ladder.rs"));

/// What a lookup found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The function.
    Address(*const ()),
    /// No such name, or it is newer than [`FIRST_LOOKUP`] and not served (`CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`).
    NoSymbol,
    /// Every form of it is newer (`CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`).
    TooOld,
}

/// The newest form of `name` that `version` knows. A driver has no name and no form that is newer than
/// itself.
pub(crate) fn find(name: &str, version: u32, per_thread: bool) -> Found {
    let driver = process::cuda_version_asked_once();
    match form(name, version, per_thread, driver) {
        Ok((since, symbol)) => {
            let refusing = || unserved::address(symbol).filter(|_| since <= FIRST_LOOKUP);
            let Some(address) = served(symbol).or_else(refusing) else {
                unserved::not_found(symbol);
                return Found::NoSymbol;
            };
            Found::Address(address)
        }
        Err(not) => not,
    }
}

/// That form in a driver of version `driver`, served or not: since which version it is there, and its symbol.
fn form(
    name: &str,
    version: u32,
    per_thread: bool,
    driver: u32,
) -> Result<(u32, &'static str), Found> {
    let start = LADDER.partition_point(|(n, ..)| *n < name);
    let named = || LADDER[start..].iter().take_while(|(n, ..)| *n == name);
    let forms = || named().filter(|(_, since, ..)| *since <= driver);
    if forms().next().is_none() {
        return Err(Found::NoSymbol);
    }
    // A function without a stream argument has one form for both kinds of program.
    let kind = per_thread && forms().any(|(_, _, p, _)| *p);
    forms()
        .filter(|(_, since, p, _)| *p == kind && *since <= version)
        .last()
        .map(|(_, since, _, symbol)| (*since, *symbol))
        .ok_or(Found::TooOld)
}

fn served(symbol: &str) -> Option<*const ()> {
    let index = SERVED.binary_search_by(|s| s.symbol.cmp(symbol)).ok()?;
    Some(SERVED[index].address.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_proto::call::FUNCTIONS;

    #[test]
    fn the_table_of_functions_and_the_exports_agree() {
        let base = |s: &str| {
            s.strip_suffix("_ptds")
                .or_else(|| s.strip_suffix("_ptsz"))
                .unwrap_or(s)
                .to_owned()
        };
        for function in FUNCTIONS {
            assert!(
                served(function.symbol).is_some(),
                "{} has no export",
                function.symbol
            );
        }
        for export in SERVED {
            assert!(
                FUNCTIONS.iter().any(|f| f.symbol == base(export.symbol)),
                "{} is not in the call table",
                export.symbol
            );
        }
        assert!(
            SERVED.is_sorted_by_key(|s| s.symbol),
            "the search needs the order"
        );
    }

    #[test]
    fn versions_in_the_table_are_those_of_the_header() {
        for function in FUNCTIONS {
            let row = LADDER
                .iter()
                .find(|(.., symbol)| *symbol == function.symbol);
            assert_eq!(
                row.map(|r| r.1),
                Some(function.since),
                "{}",
                function.symbol
            );
        }
    }

    #[test]
    fn every_per_thread_form_of_a_served_function_is_served() {
        for (name, _, per_thread, symbol) in LADDER {
            let legacy = symbol.trim_end_matches("_ptds").trim_end_matches("_ptsz");
            if *per_thread && served(legacy).is_some() {
                assert!(served(symbol).is_some(), "{name}: {symbol} is missing");
            }
        }
    }

    /// A sample of what real clients ask, with what a real driver's table gives.
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
            ("cuMemcpyHtoD", 6050, true, Err(Found::TooOld)),
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
            ("cuLaunchKernel", 3020, false, Err(Found::TooOld)),
            ("cuMemAlloc_v2", 12_000, false, Err(Found::NoSymbol)),
            ("cuSubgridCreate", 13_030, false, Err(Found::NoSymbol)),
            ("cuMemAlloc", u32::MAX, false, Ok("cuMemAlloc_v2")),
            ("", 0, false, Err(Found::NoSymbol)),
        ] {
            assert_eq!(
                form(name, version, per_thread, 13_050).map(|(_, symbol)| symbol),
                expected,
                "{name}@{version} {per_thread}"
            );
        }
    }

    #[test]
    fn a_driver_has_no_form_that_is_newer_than_itself() {
        let newest = |name, driver| form(name, u32::MAX, false, driver);
        assert_eq!(
            newest("cuCtxCreate", 12_040),
            Ok((11_040, "cuCtxCreate_v3"))
        );
        assert_eq!(
            newest("cuCtxCreate", 13_000),
            Ok((12_050, "cuCtxCreate_v4"))
        );
        // A name of 12.8: not known to 12.4, and known but too new for a program of 12.4 to 12.8.
        let named = |version, driver| form("cuCheckpointProcessLock", version, false, driver);
        assert_eq!(named(12_040, 12_040), Err(Found::NoSymbol));
        assert_eq!(named(12_040, 12_080), Err(Found::TooOld));
        assert_eq!(named(13_000, 12_040), Err(Found::NoSymbol));
    }

    #[test]
    fn what_is_not_served_is_found_only_if_lookups_are_newer() {
        let refusing = |symbol| Found::Address(unserved::address(symbol).expect("a stub"));
        // The newer form takes another argument: giving the older one would be a crash.
        let ipc = find("cuIpcOpenMemHandle", 11_000, false);
        assert_eq!(ipc, refusing("cuIpcOpenMemHandle_v2"));
        let texture = find("cuTexObjectCreate", 12_040, false);
        assert_eq!(texture, refusing("cuTexObjectCreate"));
        assert_eq!(find("cuGreenCtxDestroy", 12_040, false), Found::NoSymbol);
        assert!(matches!(
            find("cuMemPrefetchAsync", 12_010, false),
            Found::Address(_)
        ));
    }
}
