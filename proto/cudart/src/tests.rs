use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use super::*;

static GATE: Gate = Gate::new();
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A fake driver with two devices and a current context.
struct Fake;

const CURRENT: u64 = 77;

impl Driver for Fake {
    fn gate() -> &'static Gate {
        &GATE
    }

    fn primary_context(device: i32) -> Result<u64, CuResult> {
        match device {
            0 | 1 => Ok(100 + device as u64),
            _ => Err(CuResult::INVALID_DEVICE),
        }
    }

    fn current_context() -> Result<u64, CuResult> {
        Ok(CURRENT)
    }

    fn driver_version() -> u32 {
        13_000
    }

    fn devices() -> Result<Vec<Device>, CuResult> {
        let device = |n: u8| Device {
            uuid: [n; 16],
            pci: [0, i32::from(n), 0],
        };
        Ok(vec![device(1), device(2)])
    }

    unsafe fn load(image: *const c_void) -> Result<u64, CuResult> {
        if image.is_null() {
            Err(CuResult::INVALID_VALUE)
        } else {
            Ok(5)
        }
    }

    fn functions(module: u64) -> Result<Vec<u64>, CuResult> {
        if module == 5 {
            Ok(vec![51, 52])
        } else {
            Err(CuResult::INVALID_HANDLE)
        }
    }

    fn say(text: &str) {
        said().push(text.to_owned());
    }
}

fn said() -> std::sync::MutexGuard<'static, Vec<String>> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner)
}

fn id(name: &str) -> [u8; 16] {
    let found = Gate::names().find(|(n, ..)| *n == name);
    found.expect("a table of that name").1
}

/// The word in a slot of a table.
fn word(name: &str, slot: usize) -> usize {
    let table = table::<Fake>(id(name)).cast::<usize>();
    // SAFETY: a table has its slots.
    unsafe { table.add(slot).read() }
}

macro_rules! call {
    ($table:literal [$slot:literal] ($($arg:expr => $ty:ty),*)) => {{
        // SAFETY: the slot has a function of these arguments.
        let function: unsafe extern "C" fn($($ty),*) -> u32 = unsafe { std::mem::transmute(word($table, $slot)) };
        // SAFETY: as above.
        unsafe { function($($arg),*) }
    }};
}

#[test]
fn tables_have_their_size_and_a_function_in_each_slot_and_stay_where_they_are() {
    for (name, uuid, slots) in Gate::names() {
        let first = table::<Fake>(uuid);
        assert_eq!(first, table::<Fake>(uuid), "{name}");
        if name == "CONTEXT_LOCAL_STORAGE" {
            assert_ne!(word(name, 0), 0);
            assert_eq!(word(name, slots), 0, "it ends with a null slot");
        } else {
            assert_eq!(word(name, 0), 8 * slots, "{name}");
        }
        assert!((1..slots).all(|slot| word(name, slot) != 0), "{name}");
    }
}

#[test]
fn what_is_not_served_is_refused_and_said_once() {
    let of = |text: &'static str| said().iter().filter(|s| s.contains(text)).count();
    for _ in 0..2 {
        assert_eq!(call!("TOOLS_MODULE"[9]()), CuResult::NOT_SUPPORTED.0);
        assert_eq!(call!("TOOLS_CONTEXT"[87]()), CuResult::NOT_SUPPORTED.0);
        assert!(table::<Fake>([0xab; 16]).is_null());
        // NVIDIA's drivers refuse this table too, and log nothing.
        let unknown_everywhere = 0xf8cff951_2146_8b4e_b9e2_fb469e7c0dd9_u128;
        assert!(table::<Fake>(unknown_everywhere.to_be_bytes()).is_null());
    }
    assert_eq!(of("slot 9 of the driver's table TOOLS_MODULE"), 1);
    assert_eq!(of("slot 87 of the driver's table TOOLS_CONTEXT"), 1);
    assert_eq!(of("abababab-abab-abab-abab-abababababab"), 1);
    assert_eq!(of("f8cff951"), 0);
}

#[test]
fn the_slots_that_the_runtime_calls() {
    let (mut number, mut size) = (9_usize, 0_usize);
    let out = &raw mut number;
    assert_eq!(call!("CUDART"[2](out => *mut usize, 1 => i32)), 0);
    assert_eq!(number, 101);
    assert_eq!(call!("CUDART"[2](out => *mut usize, 2 => i32)), 101);
    assert_eq!(
        call!("CUDART"[2](std::ptr::null_mut() => *mut usize, 1 => i32)),
        1
    );
    assert_eq!(call!("CUDART"[12]()), 0);
    let image = 0_u64;
    assert_eq!(
        call!("CUDART"[6](out => *mut usize, &raw const image => *const u64)),
        0
    );
    assert_eq!(number, 5);
    for (slot, bytes) in [(2, 0x4000), (6, 14)] {
        let hooks = word("TOOLS_RUNTIME_CALLBACK_HOOKS", slot);
        // SAFETY: the slot has a function of these arguments.
        let hooks: unsafe extern "C" fn(*mut usize, *mut usize) -> u32 =
            unsafe { std::mem::transmute(hooks) };
        // SAFETY: both are valid for writes.
        assert_eq!(unsafe { hooks(out, &raw mut size) }, 0);
        assert_eq!(size, bytes);
        // SAFETY: by the function's contract, `size` bytes are readable there.
        let content = unsafe { std::slice::from_raw_parts(number as *const u8, size) };
        assert!(content.iter().all(|byte| *byte == 0));
    }
    assert_eq!(call!("TOOLS_TLS"[2](out => *mut usize)), 0);
    assert_eq!(number, 0);
    assert_eq!(
        call!("TOOLS_CONTEXT"[4](number => usize, out => *mut usize)),
        0
    );
    assert_eq!(call!("TOOLS_CONTEXT"[4](3 => usize, out => *mut usize)), 1);
    assert_eq!(
        call!("CONTEXT_CHECKS"[2](1 => u64, out.cast() => *mut u32, std::ptr::null_mut() => *mut usize)),
        0
    );
    assert_eq!(call!("CONTEXT_CHECKS"[3]()), 0);
    assert_eq!(
        call!("1734dc26"[4](out => *mut usize, out => *mut usize)),
        0
    );
    assert_eq!(number, 0);
}

#[test]
fn functions_of_a_module_are_told_one_by_one() {
    unsafe extern "C" fn each(user: *mut Vec<(u64, u64)>, function: u64, module: u64) {
        // SAFETY: the test passes a list.
        unsafe { &mut *user }.push((function, module));
    }
    type Each = unsafe extern "C" fn(*mut Vec<(u64, u64)>, u64, u64);
    let mut told: Vec<(u64, u64)> = Vec::new();
    let user = &raw mut told;
    let done =
        call!("TOOLS_MODULE"[7](0 => u64, 5 => u64, each => Each, user => *mut Vec<(u64, u64)>));
    assert_eq!(done, 1, "here 1 is success");
    assert_eq!(told, [(51, 5), (52, 5)]);
    assert_eq!(
        call!("TOOLS_MODULE"[7](0 => u64, 6 => u64, each => Each, user => *mut Vec<(u64, u64)>)),
        0
    );
}

#[test]
fn values_are_kept_by_context_and_key_and_destroyed_with_the_context() {
    static DESTROYED: Mutex<Vec<(u64, usize, usize)>> = Mutex::new(Vec::new());
    unsafe extern "C" fn destroy(context: u64, key: usize, value: usize) {
        lock(&DESTROYED).push((context, key, value));
    }
    type Destructor = Option<unsafe extern "C" fn(u64, usize, usize)>;
    let put = |context: u64, key: usize, value: usize, destructor: Destructor| call!("CONTEXT_LOCAL_STORAGE"[0](context => u64, key => usize, value => usize, destructor => Destructor));
    let get = |context: u64, key: usize| {
        let mut value = 0_usize;
        let out = &raw mut value;
        match call!("CONTEXT_LOCAL_STORAGE"[2](out => *mut usize, context => u64, key => usize)) {
            0 => Ok(value),
            error => Err(CuResult(error)),
        }
    };
    assert_eq!(get(8, 1), Err(CuResult::INVALID_HANDLE));
    assert_eq!(put(8, 1, 11, Some(destroy)), 0);
    assert_eq!(put(8, 2, 12, None), 0);
    assert_eq!(put(8, 3, 13, Some(destroy)), 0);
    assert_eq!(put(9, 1, 91, Some(destroy)), 0);
    assert_eq!(put(0, 1, 71, None), 0);
    assert_eq!((get(8, 1), get(9, 1)), (Ok(11), Ok(91)));
    assert_eq!(get(CURRENT, 1), Ok(71), "context 0 is the current one");
    assert_eq!(call!("CONTEXT_LOCAL_STORAGE"[1](8 => u64, 3 => usize)), 0);
    GATE.context_ends(8);
    assert_eq!(*lock(&DESTROYED), [(8, 1, 11)]);
    assert_eq!(
        (get(8, 2), get(9, 1)),
        (Err(CuResult::INVALID_HANDLE), Ok(91))
    );
    GATE.context_ends(8);
    assert_eq!(lock(&DESTROYED).len(), 1, "once");
}

#[cfg(feature = "cudart")]
#[test]
fn the_self_check_depends_on_all_that_it_is_told_of() {
    use crate::selfcheck::{Asked, digest};
    let two = Fake::devices().unwrap();
    let moved = [
        two[0],
        Device {
            pci: [0, 2, 1],
            ..two[1]
        },
    ];
    let asked = |change: usize| {
        let one = |n: usize| usize::from(change == n);
        Asked {
            driver_version: 13_000 + one(1) as u32,
            version: 13_052 + one(2) as u32,
            process: 10 + one(3) as u32,
            thread: 20 + one(4) as u32,
            cudart_table: std::ptr::without_provenance(30 + one(5)),
            check_table: std::ptr::without_provenance(40 + one(6)),
            function: std::ptr::without_provenance(50 + one(7)),
            unix_seconds: 60 + one(8) as u64,
            devices: match change {
                9 => &two[..1],
                10 => &moved,
                _ => &two,
            },
        }
    };
    let all: BTreeSet<[u64; 2]> = (0..=10).map(|change| digest(&asked(change))).collect();
    assert_eq!(all.len(), 11);
    // All runtimes from 12.0 to 13.5 accept the digests of this code (test suite `cudart`). This
    // test detects a change of the digests.
    assert_eq!(
        digest(&asked(0)),
        [0xc431_624c_111a_3e48, 0xd522_8a78_cb4f_806f]
    );
    let mut out = [0_u64; 2];
    let asks = |version: u32, out: *mut [u64; 2]| call!("INTEGRITY_CHECK"[1](version => u32, 1_700_000_000 => u64, out => *mut [u64; 2]));
    assert_eq!(asks(13_050, &raw mut out), 0);
    assert_eq!(
        out[1], 0x8ed3_83aa_1f4c_d1e8,
        "the first answer depends on nothing"
    );
    assert_eq!(asks(13_052, &raw mut out), 0);
    let first = out;
    assert_eq!(asks(13_052, &raw mut out), 0);
    assert_eq!(out, first);
    assert_eq!(
        asks(13_052, std::ptr::null_mut()),
        CuResult::INVALID_VALUE.0
    );
}
