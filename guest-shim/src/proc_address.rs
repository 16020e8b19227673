//! `cuGetProcAddress`: finds the address of a function by name and version.

use vgpu_cuda_abi::names::{Export, Exports, NotFound, form};

use crate::{process, unserved};

/// Every function that the library serves, sorted. `build.rs` generates the table from `src/abi`.
pub(crate) static SERVED: &[Export] = include!(concat!(env!("OUT_DIR"), "/served.rs"));

/// All exports of the library.
pub(crate) static EXPORTS: Exports = Exports {
    served: SERVED,
    refusing: unserved::REFUSING,
};

/// Finds the newest form of `name` that is not newer than `version`. Unlike a driver, the library
/// does not find an unserved function that is newer than `cuGetProcAddress` itself, because
/// programs use lookups to detect features.
///
/// # Errors
/// [`NotFound`] if there is no such form.
pub(crate) fn find(name: &str, version: u32, per_thread: bool) -> Result<*const (), NotFound> {
    let driver = process::cuda_version_asked_once();
    EXPORTS
        .find(name, version, per_thread, driver)
        .inspect_err(|_| {
            // The form exists, but the library does not serve it.
            if let Ok(form) = form(name, version, per_thread, driver) {
                unserved::not_found(form.symbol);
            }
        })
}

#[cfg(test)]
mod tests {
    use vgpu_cuda_abi::names::{LADDER, address, symbols};
    use vgpu_proto::call::FUNCTIONS;

    use super::*;

    fn plain(symbol: &str) -> &str {
        symbol.trim_end_matches("_ptds").trim_end_matches("_ptsz")
    }

    #[test]
    fn the_table_of_functions_and_the_exports_agree() {
        for function in FUNCTIONS {
            let symbol = function.symbol;
            assert!(address(SERVED, symbol).is_some(), "{symbol} has no export");
        }
        for Export { symbol, .. } in SERVED {
            let mut functions = FUNCTIONS.iter();
            assert!(
                functions.any(|f| f.symbol == plain(symbol)),
                "{symbol} is not in the call table"
            );
        }
        assert!(
            SERVED.is_sorted_by_key(|export| export.symbol),
            "the search needs the order"
        );
    }

    #[test]
    fn every_symbol_of_nvidia_s_library_is_exported_once() {
        let exports = EXPORTS.served.iter().chain(EXPORTS.refusing);
        let mut exported: Vec<&str> = exports.map(|export| export.symbol).collect();
        exported.sort_unstable();
        assert_eq!(exported, symbols());
    }

    #[test]
    fn every_per_thread_form_of_a_served_function_is_served() {
        for form in LADDER.iter().filter(|form| form.per_thread) {
            let is_served = |symbol| address(SERVED, symbol).is_some();
            assert!(
                !is_served(plain(form.symbol)) || is_served(form.symbol),
                "{} is missing",
                form.symbol
            );
        }
    }

    /// NVIDIA's drivers refuse this since CUDA 13.0. A runtime that is newer than the version of
    /// this library makes such requests, and the host's driver may be as new as the runtime.
    #[test]
    fn a_request_of_a_newer_version_gets_the_newest_form() {
        let own = find("cuMemAlloc", process::cuda_version(), false);
        assert!(own.is_ok());
        for version in [13_050, i32::MAX as u32] {
            assert_eq!(find("cuMemAlloc", version, false), own);
        }
    }

    #[test]
    fn what_is_not_served_is_found_only_if_lookups_are_newer() {
        let refusing = |symbol| Ok(address(unserved::REFUSING, symbol).expect("a refusing export"));
        // The newer form takes another argument: a program that calls it as the older form would
        // crash.
        let ipc = find("cuIpcOpenMemHandle", 11_000, false);
        assert_eq!(ipc, refusing("cuIpcOpenMemHandle_v2"));
        let texture = find("cuTexObjectCreate", 12_040, false);
        assert_eq!(texture, refusing("cuTexObjectCreate"));
        let green = find("cuGreenCtxDestroy", 12_040, false);
        assert_eq!(green, Err(NotFound::NoSymbol));
        assert!(find("cuMemPrefetchAsync", 12_010, false).is_ok());
    }
}
