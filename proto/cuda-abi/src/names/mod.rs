//! Every function of the driver's library, and how `cuGetProcAddress` resolves names and versions.
//!
//! A function has one or more forms. Each form was introduced by a version of CUDA and is exported
//! under its own symbol: `cuMemAlloc` is exported as `cuMemAlloc` (since 2.0) and as
//! `cuMemAlloc_v2` (since 3.2).

/// Defines [`LADDER`] from rows of name, first version, flags and symbol.
macro_rules! ladder {
    ($($name:ident $since:literal $flags:literal $symbol:ident;)*) => {
        /// Every form, sorted by name; the older forms of a name come first.
        pub static LADDER: &[Form] = &[$(Form {
            name: stringify!($name),
            since: $since,
            per_thread: $flags == PER_THREAD,
            symbol: stringify!($symbol),
        },)*];

        /// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`, as in the rows.
        const PER_THREAD: u32 = 2;
    };
}

mod ladder;

pub use ladder::LADDER;

/// A form of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The name in lookups.
    pub name: &'static str,
    /// The version of CUDA that introduced this form, as in `cudaTypedefs.h` (3020 is CUDA 3.2).
    pub since: u32,
    /// Whether stream 0 is the calling thread's own stream (symbols that end in `_ptds` or
    /// `_ptsz`).
    pub per_thread: bool,
    /// The exported symbol.
    pub symbol: &'static str,
}

/// Symbols that NVIDIA's libraries of CUDA 12.4 and 12.5 export and that no header mentions.
const UNDOCUMENTED: [&str; 3] = ["cuEGLApiInit", "cuMemGetAttribute", "cuMemGetAttribute_v2"];

/// The version of CUDA that introduced `cuGetProcAddress`.
///
/// A lookup finds an unserved function only if the function is not newer than this version. Every
/// driver with lookups has the functions up to this version, so no program uses a lookup to detect
/// them. The CUDA runtime treats a driver without them as outdated; if it finds the function, it
/// passes on the function's result. A newer unserved function is not found, because programs can go
/// on without it.
pub const FIRST_LOOKUP: u32 = 11_030;

/// Every symbol that NVIDIA's library exports, sorted.
#[must_use]
pub fn symbols() -> Vec<&'static str> {
    let documented = LADDER.iter().map(|form| form.symbol);
    let mut all: Vec<&str> = documented.chain(UNDOCUMENTED).collect();
    all.sort_unstable();
    all
}

/// The version that introduced the form with this symbol; `None` for an undocumented symbol.
#[must_use]
pub fn since(symbol: &str) -> Option<u32> {
    let form = LADDER.iter().find(|form| form.symbol == symbol);
    form.map(|form| form.since)
}

/// The cause of a failed lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFound {
    /// The driver has no such name (`CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`).
    NoSymbol,
    /// Every form is newer than the requested version
    /// (`CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`).
    TooOld,
}

/// Finds the newest form of `name` that is not newer than `version`, in a driver of version
/// `driver`. A driver has no form that is newer than the driver. A form for the legacy default
/// stream never replaces a form for the per-thread default stream.
///
/// # Errors
/// [`NotFound`] if there is no such form.
pub fn form(
    name: &str,
    version: u32,
    per_thread: bool,
    driver: u32,
) -> Result<&'static Form, NotFound> {
    let start = LADDER.partition_point(|form| form.name < name);
    let named = LADDER[start..].iter().take_while(|form| form.name == name);
    let forms: Vec<&Form> = named.filter(|form| form.since <= driver).collect();
    if forms.is_empty() {
        return Err(NotFound::NoSymbol);
    }
    // A function without a stream argument has one form for programs with either kind of default
    // stream.
    let kind = per_thread && forms.iter().any(|form| form.per_thread);
    let fits = |form: &&&Form| form.per_thread == kind && form.since <= version;
    let newest = forms.iter().rev().find(fits);
    newest.copied().ok_or(NotFound::TooOld)
}

/// The address of an exported function.
#[derive(Debug, Clone, Copy)]
pub struct Address(pub *const ());

// SAFETY: the address of a function in a library that is never unmapped; nothing is read or written
// through the address.
unsafe impl Sync for Address {}

/// A symbol that a library exports.
#[derive(Debug, Clone, Copy)]
pub struct Export {
    /// The symbol.
    pub symbol: &'static str,
    /// The function.
    pub address: Address,
}

/// The exports of a library that replaces NVIDIA's, each list sorted by symbol.
#[derive(Debug, Clone, Copy)]
pub struct Exports {
    /// Functions that the library implements.
    pub served: &'static [Export],
    /// Functions that only return an error.
    pub refusing: &'static [Export],
}

impl Exports {
    /// The result of `cuGetProcAddress`: see [`form`] and [`FIRST_LOOKUP`].
    ///
    /// # Errors
    /// If the library has no such function.
    pub fn find(
        &self,
        name: &str,
        version: u32,
        per_thread: bool,
        driver: u32,
    ) -> Result<*const (), NotFound> {
        let form = form(name, version, per_thread, driver)?;
        let refusing = || address(self.refusing, form.symbol);
        address(self.served, form.symbol)
            .or_else(|| refusing().filter(|_| form.since <= FIRST_LOOKUP))
            .ok_or(NotFound::NoSymbol)
    }
}

/// The address of a symbol in a sorted list.
#[must_use]
pub fn address(list: &[Export], symbol: &str) -> Option<*const ()> {
    let index = list.binary_search_by(|e| e.symbol.cmp(symbol)).ok()?;
    Some(list[index].address.0)
}

#[cfg(test)]
mod tests;
