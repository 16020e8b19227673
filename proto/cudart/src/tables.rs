//! The export tables: their sizes, and the functions in the slots that programs call.
//!
//! A slot that no known program calls is a stub: it returns CUDA_ERROR_NOT_SUPPORTED and logs table
//! and slot once. Handles of contexts, modules, functions and streams are numbers here.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;

use crate::{Driver, Gate, answer, put};

/// The tables as the program sees them. A table is made at the first request and never moves,
/// because the self-check compares addresses.
pub(crate) type Tables = Vec<(usize, &'static [Word])>;

/// A slot's function, or the size of the table in bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Word {
    size: usize,
    function: *const (),
}

// SAFETY: a number, or the address of a function; never written after the table is made.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: both fields have the size of an address and no invalid values.
        write!(f, "{:#x}", unsafe { self.size })
    }
}

/// Properties of a table.
struct Kind {
    name: &'static str,
    id: u128,
    /// Number of slots, including slot 0.
    slots: usize,
    /// Whether slot 0 is the size of the table in bytes. A table without a size ends with a null
    /// slot.
    sized: bool,
}

const CUDART: usize = 0;
const CALLBACK_HOOKS: usize = 1;
const TOOLS_TLS: usize = 2;
const TOOLS_CONTEXT: usize = 3;
const STORAGE: usize = 4;
const CONTEXT_CHECKS: usize = 5;
const SELF_CHECK: usize = 6;
const TOOLS_MODULE: usize = 7;
const UNNAMED: usize = 8;

/// The sizes are those of the drivers of CUDA 12.4 and 12.5. CUDART also has a slot that runtimes
/// of CUDA 13 call without checking the size.
const KINDS: [Kind; 9] = [
    kind("CUDART", 0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9, 13),
    kind(
        "TOOLS_RUNTIME_CALLBACK_HOOKS",
        0xa094798c_2e74_2e74_93f2_0800200c0a66,
        7,
    ),
    kind("TOOLS_TLS", 0x42d85a81_23f6_cb47_8298_f6e78a3aecdc, 3),
    kind("TOOLS_CONTEXT", 0x21318c60_9714_3248_8ca6_41ff7324c8f2, 88),
    Kind {
        name: "CONTEXT_LOCAL_STORAGE",
        id: 0xc693336e_1121_df11_a8c3_68f355d89593,
        slots: 3,
        sized: false,
    },
    kind("CONTEXT_CHECKS", 0x263e8860_7cd2_6143_92f6_bbd5006dfa7e, 5),
    kind("INTEGRITY_CHECK", 0xd4082055_bde6_704b_8d34_ba123c66e1f2, 3),
    kind("TOOLS_MODULE", 0x6e163fbe_b958_444d_835c_e182aff1991e, 93),
    kind("1734dc26", 0x1734dc26_800d_4745_8726_c0f1e7dd8bca, 16),
];

const fn kind(name: &'static str, id: u128, slots: usize) -> Kind {
    Kind {
        name,
        id,
        slots,
        sized: true,
    }
}

/// Tables that are refused without a log line: NVIDIA's drivers refuse them too, or the requesting
/// programs (NVRTC, nvJitLink) expect the refusal.
const REFUSED_SILENTLY: [u128; 2] = [
    0xf8cff951_2146_8b4e_b9e2_fb469e7c0dd9,
    0xda9151d3_3ae6_cc41_a5c0_4f26d533e328,
];

/// `cuGetExportTable`: the table with this UUID, or null. A request for an unknown table is logged
/// once.
pub fn table<D: Driver>(id: [u8; 16]) -> *const c_void {
    let number = u128::from_be_bytes(id);
    let Some(index) = KINDS.iter().position(|kind| kind.id == number) else {
        if !REFUSED_SILENTLY.contains(&number) {
            D::gate().say_once::<D>(&format!(
                "cuGetExportTable: table {} is not served (CUDA_ERROR_INVALID_VALUE); tools that trace or check \
                 programs ask for tables of their own: run the program without them",
                uuid(number)
            ));
        }
        return std::ptr::null();
    };
    address::<D>(index)
}

fn uuid(n: u128) -> String {
    let part = |shift: u32, digits: u32| (n >> shift) & ((1 << (4 * digits)) - 1);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        part(96, 8),
        part(80, 4),
        part(64, 4),
        part(48, 4),
        part(0, 12)
    )
}

fn address<D: Driver>(index: usize) -> *const c_void {
    let tables = D::gate().tables.get_or_init(|| {
        let table = |index: usize| (index, &*Box::leak(words::<D>(index).into_boxed_slice()));
        (0..KINDS.len()).map(table).collect()
    });
    let table = tables.iter().find(|(i, _)| *i == index);
    table.map_or(std::ptr::null(), |(_, words)| words.as_ptr().cast())
}

/// The function in a slot.
#[cfg(feature = "cudart")]
fn slot<D: Driver>(index: usize, slot: usize) -> *const c_void {
    // SAFETY: the table has that slot, and is never freed.
    let word = unsafe { address::<D>(index).cast::<Word>().add(slot).read() };
    // SAFETY: every slot but the first has a function.
    unsafe { word.function.cast() }
}

fn words<D: Driver>(index: usize) -> Vec<Word> {
    let kind = &KINDS[index];
    let function = |function: *const ()| Word { function };
    let mut words: Vec<Word> = stubs::<D>(index)
        .into_iter()
        .take(kind.slots)
        .map(function)
        .collect();
    for (slot, served) in served::<D>(index) {
        words[slot] = function(D::called(served));
    }
    if kind.sized {
        words[0] = Word {
            size: size_of::<Word>() * kind.slots,
        };
    } else {
        words.push(Word { size: 0 });
    }
    words
}

/// The slots that known programs call, with their functions.
fn served<D: Driver>(index: usize) -> Vec<(usize, *const ())> {
    match index {
        CUDART => vec![
            (2, primary_context::<D> as *const ()),
            (6, load::<D> as *const ()),
            (7, nothing_to_do as *const ()),
            (12, nothing_to_do as *const ()),
        ],
        CALLBACK_HOOKS => vec![(2, hooks as *const ()), (6, marks as *const ())],
        TOOLS_TLS => vec![(2, tls as *const ())],
        TOOLS_CONTEXT => vec![
            (4, tool_of_context as *const ()),
            (39, tool_value as *const ()),
            (51, tool_of_stream as *const ()),
        ],
        STORAGE => vec![
            (0, storage_put::<D> as *const ()),
            (1, storage_delete::<D> as *const ()),
            (2, storage_get::<D> as *const ()),
        ],
        CONTEXT_CHECKS => vec![
            (2, context_check as *const ()),
            (3, nothing_to_do as *const ()),
        ],
        #[cfg(feature = "cudart")]
        SELF_CHECK => vec![(1, self_check::<D> as *const ())],
        TOOLS_MODULE => vec![(7, functions_of_module::<D> as *const ())],
        UNNAMED => vec![(4, nothing_there as *const ())],
        _ => Vec::new(),
    }
}

/// A stub for each slot of a table. Each slot has its own function, because only the address tells
/// which slot was called.
fn stubs<D: Driver>(index: usize) -> Vec<*const ()> {
    match index {
        CUDART => numbered::<D, CUDART>(),
        CALLBACK_HOOKS => numbered::<D, CALLBACK_HOOKS>(),
        TOOLS_TLS => numbered::<D, TOOLS_TLS>(),
        TOOLS_CONTEXT => numbered::<D, TOOLS_CONTEXT>(),
        STORAGE => numbered::<D, STORAGE>(),
        CONTEXT_CHECKS => numbered::<D, CONTEXT_CHECKS>(),
        SELF_CHECK => numbered::<D, SELF_CHECK>(),
        TOOLS_MODULE => numbered::<D, TOOLS_MODULE>(),
        _ => numbered::<D, UNNAMED>(),
    }
}

/// At least as many stubs as the largest table has slots.
fn numbered<D: Driver, const TABLE: usize>() -> Vec<*const ()> {
    macro_rules! tens {
        ($($ten:literal)*) => {
            vec![$(
                stub::<D, TABLE, { 10 * $ten }> as *const (),
                stub::<D, TABLE, { 10 * $ten + 1 }> as *const (),
                stub::<D, TABLE, { 10 * $ten + 2 }> as *const (),
                stub::<D, TABLE, { 10 * $ten + 3 }> as *const (),
                stub::<D, TABLE, { 10 * $ten + 4 }> as *const (),
                stub::<D, TABLE, { 10 * $ten + 5 }> as *const (),
                stub::<D, TABLE, { 10 * $ten + 6 }> as *const (),
                stub::<D, TABLE, { 10 * $ten + 7 }> as *const (),
                stub::<D, TABLE, { 10 * $ten + 8 }> as *const (),
                stub::<D, TABLE, { 10 * $ten + 9 }> as *const (),
            )*]
        };
    }
    tens!(0 1 2 3 4 5 6 7 8 9)
}

extern "C" fn stub<D: Driver, const TABLE: usize, const SLOT: usize>() -> u32 {
    answer(|| {
        D::gate().say_once::<D>(&format!(
            "slot {SLOT} of the driver's table {} is not served (CUDA_ERROR_NOT_SUPPORTED)",
            KINDS[TABLE].name
        ));
        Err(CuResult::NOT_SUPPORTED)
    })
}

extern "C" fn nothing_to_do() -> u32 {
    CuResult::SUCCESS.0
}

unsafe extern "C" fn primary_context<D: Driver>(context: *mut u64, device: i32) -> u32 {
    // SAFETY: by the slot's contract: null or valid for a write.
    answer(|| unsafe { put(context, D::primary_context(device)?) })
}

/// Loads a module from a fatbin. Runtimes before CUDA 12 call this; their other arguments are zero.
unsafe extern "C" fn load<D: Driver>(module: *mut u64, image: *const c_void) -> u32 {
    // SAFETY: by the slot's contract: an image, and null or valid for a write.
    answer(|| unsafe { put(module, D::load(image)?) })
}

/// Returns the address and the size in bytes of zeroed memory, in which a tracing tool would store
/// functions.
unsafe fn zeroed<const N: usize>(
    memory: &'static Zeroed<N>,
    out: *mut usize,
    size: *mut usize,
) -> u32 {
    // SAFETY: by the slots' contract: null or valid for writes.
    answer(|| unsafe {
        put(size, N)?;
        put(out, memory.0.get().addr())
    })
}

/// Zeroed memory that a tool in the same process may overwrite. This library never reads the
/// memory.
#[repr(align(16))]
struct Zeroed<const N: usize>(std::cell::UnsafeCell<[u8; N]>);

// SAFETY: only its address is used here.
unsafe impl<const N: usize> Sync for Zeroed<N> {}

impl<const N: usize> Zeroed<N> {
    const fn new() -> Zeroed<N> {
        Zeroed(std::cell::UnsafeCell::new([0; N]))
    }
}

/// Memory with a word for each function of the runtime that a tool may trace. The driver of CUDA
/// 12.4 has 0x400 bytes. Newer runtimes read beyond that without checking the size (13.5: up to
/// 0x798), and treat a non-zero word as a tool. Therefore this memory is larger, and zero.
unsafe extern "C" fn hooks(out: *mut usize, size: *mut usize) -> u32 {
    static HOOKS: Zeroed<0x4000> = Zeroed::new();
    // SAFETY: by the slot's contract.
    unsafe { zeroed(&HOOKS, out, size) }
}

unsafe extern "C" fn marks(out: *mut usize, size: *mut usize) -> u32 {
    static MARKS: Zeroed<14> = Zeroed::new();
    // SAFETY: by the slot's contract.
    unsafe { zeroed(&MARKS, out, size) }
}

/// The thread storage of a tracing tool: always 0, because there is no tool.
unsafe extern "C" fn tls(out: *mut usize) -> u32 {
    // SAFETY: by the slot's contract: null or valid for a write.
    answer(|| unsafe { put(out, 0) })
}

/// The data of a tracing tool for a value of [`tls`], which is always 0.
unsafe extern "C" fn tool_of_context(value: u64, out: *mut u64) -> u32 {
    answer(|| {
        if value != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: by the slot's contract: null or valid for a write.
        unsafe { put(out, 0) }
    })
}

/// The data of a tracing tool for a stream: an empty object.
unsafe extern "C" fn tool_of_stream(_context: u64, _stream: u64, out: *mut usize) -> u32 {
    static OBJECT: Zeroed<0x400> = Zeroed::new();
    // SAFETY: by the slot's contract: null or valid for a write.
    answer(|| unsafe { put(out, OBJECT.0.get().addr()) })
}

/// A value in an object of [`tool_of_stream`]: always 0.
unsafe extern "C" fn tool_value(_object: usize, _what: u64, out: *mut u64) -> u32 {
    // SAFETY: by the slot's contract: null or valid for a write.
    answer(|| unsafe { put(out, 0) })
}

/// The context that a number names; 0 names the current context.
fn context_of<D: Driver>(context: u64) -> Result<u64, CuResult> {
    match context {
        0 => match D::current_context()? {
            0 => Err(CuResult::INVALID_CONTEXT),
            current => Ok(current),
        },
        named => Ok(named),
    }
}

extern "C" fn storage_put<D: Driver>(
    context: u64,
    key: usize,
    value: usize,
    destructor: Option<crate::storage::Destructor>,
) -> u32 {
    answer(|| {
        let context = context_of::<D>(context)?;
        let storage = &D::gate().storage;
        storage.put(context, key, value, destructor);
        Ok(())
    })
}

extern "C" fn storage_delete<D: Driver>(context: u64, key: usize) -> u32 {
    answer(|| {
        let context = context_of::<D>(context)?;
        let there = D::gate().storage.delete(context, key);
        there.then_some(()).ok_or(CuResult::INVALID_HANDLE)
    })
}

unsafe extern "C" fn storage_get<D: Driver>(value: *mut usize, context: u64, key: usize) -> u32 {
    answer(|| {
        // The runtime reads a value before it makes a context current, and goes on if it gets this
        // error.
        let context = context_of::<D>(context).map_err(|_| CuResult::INVALID_HANDLE)?;
        let found = D::gate().storage.get(context, key);
        // SAFETY: by the slot's contract: null or valid for a write.
        unsafe { put(value, found.ok_or(CuResult::INVALID_HANDLE)?) }
    })
}

/// Reports that the context has no fault.
unsafe extern "C" fn context_check(_context: u64, flags: *mut u32, more: *mut usize) -> u32 {
    answer(|| {
        if !more.is_null() {
            // SAFETY: by the slot's contract: valid for a write.
            unsafe { put(more, 0) }?;
        }
        // SAFETY: by the slot's contract: null or valid for a write.
        unsafe { put(flags, 0) }
    })
}

#[cfg(feature = "cudart")]
unsafe extern "C" fn self_check<D: Driver>(
    version: u32,
    unix_seconds: u64,
    out: *mut [u64; 2],
) -> u32 {
    answer(|| {
        let digest = crate::selfcheck::digest(&crate::selfcheck::Asked {
            driver_version: D::driver_version(),
            version,
            process: std::process::id(),
            thread: crate::selfcheck::thread(),
            cudart_table: address::<D>(CUDART),
            check_table: address::<D>(SELF_CHECK),
            function: slot::<D>(SELF_CHECK, 1),
            unix_seconds,
            devices: &D::devices()?,
        });
        // SAFETY: by the slot's contract: null or valid for a write.
        unsafe { put(out, digest) }
    })
}

/// A function of the caller that is called for each function of a module: argument of the caller,
/// function, module.
type EachFunction = unsafe extern "C" fn(*mut c_void, u64, u64);

/// Calls `each` for each function of a module. Unlike all other slots, returns 1 for success.
unsafe extern "C" fn functions_of_module<D: Driver>(
    _context: u64,
    module: u64,
    each: Option<EachFunction>,
    user: *mut c_void,
) -> u32 {
    const DONE: u32 = 1;
    let told = answer(|| {
        let each = each.ok_or(CuResult::INVALID_VALUE)?;
        for function in D::functions(module)? {
            // SAFETY: by the slot's contract, `each` accepts the argument that the caller passed
            // with it.
            unsafe { each(user, function, module) };
        }
        Ok(())
    });
    if told == CuResult::SUCCESS.0 { DONE } else { 0 }
}

/// Reports that there is no object. Programs go on without an object.
unsafe extern "C" fn nothing_there(object: *mut usize, value: *mut u64) -> u32 {
    answer(|| {
        if !value.is_null() {
            // SAFETY: by the slot's contract: valid for a write.
            unsafe { put(value, 0) }?;
        }
        // SAFETY: by the slot's contract: null or valid for a write.
        unsafe { put(object, 0) }
    })
}

impl Gate {
    #[cfg(test)]
    pub(crate) fn names() -> impl Iterator<Item = (&'static str, [u8; 16], usize)> {
        KINDS.iter().map(|k| (k.name, k.id.to_be_bytes(), k.slots))
    }
}
