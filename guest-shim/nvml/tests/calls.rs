//! Calls the library as its clients do, against a fake vgpud: the calls of nvidia-smi in their
//! order, the calls of NCCL and PyTorch, and the results if vgpud does not answer.

mod common;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{DRIVER_NOT_LOADED, Nvml, SUCCESS, UNINITIALIZED, guest, reply, run};
use vgpu_proto::codec;
use vgpu_proto::handshake::{PREAMBLE_LEN, Refusal};
use vgpu_proto::look::{Looked, LookedGpu, LookedPart, LookedProcess, Telemetry, question};

const UUID: &str = "GPU-00112233-4455-6677-8899-aabbccddeeff";

const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const ARGUMENT_VERSION: u32 = 25;

/// Calls a function by name.
macro_rules! ml {
    ($nvml:expr, $name:ident($($arg:expr => $ty:ty),* $(,)?)) => {{
        let function: unsafe extern "C" fn($($ty),*) -> u32 = $nvml.symbol(stringify!($name));
        #[allow(clippy::macro_metavars_in_unsafe)] // The arguments of a test are harmless.
        // SAFETY: the type is that of `nvml.h`, the arguments are live.
        let code = unsafe { function($($arg),*) };
        code
    }};
}

fn looked() -> Looked {
    Looked {
        vm_id: 3,
        driver_version: Some("550.163.01".into()),
        cuda_version: Some(12_040),
        gpus: vec![LookedGpu {
            uuid: UUID.into(),
            name: "NVIDIA H100 80GB HBM3".into(),
            pci_address: Some("0000:65:00.0".into()),
            memory_bytes: 8 << 30,
            memory_used_bytes: 1 << 30,
            memory_free_bytes: 5 << 30,
            compute_capability: Some((9, 0)),
            busy_permille: 333,
            ready: true,
            telemetry: None,
        }],
        processes: vec![LookedProcess {
            pid: 77,
            program: "train".into(),
            gpus: vec![LookedPart {
                gpu: 0,
                memory_bytes: 1 << 30,
            }],
        }],
        ..Looked::default()
    }
}

/// A fake vgpud that gives this answer to every look. Returns its address and the counter of looks.
fn door(dir: &tempfile::TempDir, code: u32, body: Vec<u8>) -> (String, Arc<AtomicUsize>) {
    let path = dir.path().join("vgpu.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = looks.clone();
    std::thread::spawn(move || {
        while let Ok((mut guest, _)) = listener.accept() {
            let mut asked = [0; PREAMBLE_LEN];
            if guest.read_exact(&mut asked).is_err() {
                continue;
            }
            assert_eq!(asked, question());
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = guest.write_all(&reply(code, &body));
        }
    });
    (format!("unix:{}", path.display()), looks)
}

/// Runs the test's body in a separate process, with a fake vgpud that answers `looked`. Returns the
/// number of looks.
fn played(name: &str, looked: &Looked) -> usize {
    let dir = tempfile::tempdir().expect("a directory");
    let (address, looks) = door(&dir, 0, codec::encode(looked).expect("encodes"));
    run(name, &address);
    looks.load(Ordering::SeqCst)
}

type Handle = *const c_void;

fn text(nvml: &Nvml, name: &str, device: Handle) -> String {
    let function: unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> u32 = nvml.symbol(name);
    let mut buffer = [0 as c_char; 96];
    // SAFETY: the type is that of `nvml.h`; the buffer is live.
    let code = unsafe { function(device, buffer.as_mut_ptr(), 96) };
    assert_eq!(code, SUCCESS, "{name}");
    // SAFETY: the function has written a NUL.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}

fn number(nvml: &Nvml, name: &str, device: Handle) -> Result<c_uint, u32> {
    let function: unsafe extern "C" fn(Handle, *mut c_uint) -> u32 = nvml.symbol(name);
    let mut number = c_uint::MAX;
    // SAFETY: the type is that of `nvml.h`; the number is live.
    match unsafe { function(device, &mut number) } {
        SUCCESS => Ok(number),
        code => Err(code),
    }
}

/// The calls of nvidia-smi without arguments, in their order. nvidia-smi needs each of these
/// answers for its screen.
#[test]
#[cfg(feature = "nvidia-smi")]
fn nvidia_smi_finds_what_it_calls_in_its_order() {
    let name = "nvidia_smi_finds_what_it_calls_in_its_order";
    let Some(nvml) = guest(name) else {
        assert_eq!(played(name, &looked()), 1, "one look for one screen");
        return;
    };
    let table_id: [u8; 16] = [
        0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7,
        0xc4,
    ];
    assert_eq!(ml!(nvml, nvmlInitWithFlags(0 => c_uint)), SUCCESS);
    let mut table: *const *const c_void = std::ptr::null();
    let id = table_id.as_ptr();
    assert_eq!(
        ml!(nvml, nvmlInternalGetExportTable(&mut table => *mut *const *const c_void, id => *const u8)),
        SUCCESS
    );
    // SAFETY: the first word is the size of the table in bytes.
    let words = unsafe { std::slice::from_raw_parts(table, (*table).addr() / 8) };
    let entry = |slot: usize| {
        assert!(!words[slot].is_null(), "slot {slot}");
        // SAFETY: a function of the table, which reads no argument.
        let entry: extern "C" fn() -> u32 = unsafe { std::mem::transmute(words[slot]) };
        entry()
    };
    let mut count = 0;
    assert_eq!(
        ml!(nvml, nvmlDeviceGetCount_v2(&mut count => *mut c_uint)),
        SUCCESS
    );
    assert_eq!(count, 1);
    assert_eq!(entry(81), NOT_SUPPORTED);
    let mut device: Handle = std::ptr::null();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetHandleByIndex_v2(0 => c_uint, &mut device => *mut Handle)),
        SUCCESS
    );
    let mut set: Handle = std::ptr::null();
    assert_eq!(
        ml!(nvml, nvmlEventSetCreate(&mut set => *mut Handle)),
        SUCCESS
    );
    let mut version = [0 as c_char; 80];
    let at = version.as_mut_ptr();
    assert_eq!(
        ml!(nvml, nvmlSystemGetDriverVersion(at => *mut c_char, 80 => c_uint)),
        SUCCESS
    );
    let mut cuda = 0;
    assert_eq!(
        ml!(nvml, nvmlSystemGetCudaDriverVersion_v2(&mut cuda => *mut c_int)),
        SUCCESS
    );
    assert_eq!(cuda, 12_040);
    assert_eq!(entry(26), NOT_SUPPORTED);
    assert_eq!(number(&nvml, "nvmlDeviceGetIndex", device), Ok(0));
    assert_eq!(
        text(&nvml, "nvmlDeviceGetName", device),
        "NVIDIA H100 80GB HBM3"
    );
    let mut pci = [0_u8; 68];
    let at = pci.as_mut_ptr();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetPciInfo_v3(device => Handle, at => *mut u8)),
        SUCCESS
    );
    assert!(pci[36..].starts_with(b"00000000:65:00.0\0"), "{pci:?}");
    assert_eq!(
        number(&nvml, "nvmlDeviceGetPersistenceMode", device),
        Err(NOT_SUPPORTED)
    );
    assert_eq!(number(&nvml, "nvmlDeviceGetDisplayActive", device), Ok(0));
    let mut ecc = [0; 2];
    let [current, pending] = &mut ecc;
    assert_eq!(
        ml!(nvml, nvmlDeviceGetEccMode(device => Handle, current => *mut c_uint, pending => *mut c_uint)),
        NOT_SUPPORTED
    );
    let hidden = |what: &str| {
        let answer = number(&nvml, &format!("nvmlDeviceGet{what}"), device);
        assert_eq!(answer, Err(NOT_SUPPORTED), "{what}");
    };
    hidden("FanSpeed");
    assert_eq!(temperature(&nvml, device), Err(NOT_SUPPORTED));
    for what in ["PerformanceState", "PowerUsage", "EnforcedPowerLimit"] {
        hidden(what);
    }
    let mut memory = [0_u64; 5];
    memory[0] = 40 | 2 << 24;
    let at = memory.as_mut_ptr();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetMemoryInfo_v2(device => Handle, at => *mut u64)),
        SUCCESS
    );
    assert_eq!(memory[1..], [8 << 30, 2 << 30, 5 << 30, 1 << 30]);
    let mut rates = [0; 2];
    let at = rates.as_mut_ptr();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetUtilizationRates(device => Handle, at => *mut c_uint)),
        SUCCESS
    );
    assert_eq!(rates, [34, 0]);
    assert_eq!(number(&nvml, "nvmlDeviceGetComputeMode", device), Ok(0));
    let mig = ml!(nvml, nvmlDeviceGetMigMode(device => Handle, current => *mut c_uint, pending => *mut c_uint));
    assert_eq!(mig, NOT_SUPPORTED);
    assert_eq!(
        number(&nvml, "nvmlDeviceGetVirtualizationMode", device),
        Ok(0)
    );
    assert_eq!(
        number(&nvml, "nvmlDeviceGetMaxMigDeviceCount", device),
        Ok(0)
    );
    assert_eq!(number(&nvml, "nvmlDeviceIsMigDeviceHandle", device), Ok(0));
    assert_eq!(
        ml!(nvml, nvmlDeviceValidateInforom(device => Handle)),
        NOT_SUPPORTED
    );
    assert_eq!(ml!(nvml, nvmlEventSetFree(set => Handle)), SUCCESS);
    assert_eq!(ml!(nvml, nvmlShutdown()), SUCCESS);
}

fn temperature(nvml: &Nvml, device: Handle) -> Result<c_uint, u32> {
    let mut degrees = 0;
    match ml!(nvml, nvmlDeviceGetTemperature(device => Handle, 0 => c_uint, &mut degrees => *mut c_uint))
    {
        SUCCESS => Ok(degrees),
        code => Err(code),
    }
}

#[test]
fn both_forms_of_a_name_and_every_way_to_a_handle_lead_to_the_same() {
    let name = "both_forms_of_a_name_and_every_way_to_a_handle_lead_to_the_same";
    let Some(nvml) = guest(name) else {
        played(name, &looked());
        return;
    };
    assert_eq!(ml!(nvml, nvmlInit()), SUCCESS);
    let (mut one, mut two) = (0, 0);
    assert_eq!(
        ml!(nvml, nvmlDeviceGetCount(&mut one => *mut c_uint)),
        SUCCESS
    );
    assert_eq!(
        ml!(nvml, nvmlDeviceGetCount_v2(&mut two => *mut c_uint)),
        SUCCESS
    );
    assert_eq!((one, two), (1, 1));
    let mut handles: [Handle; 5] = [std::ptr::null(); 5];
    let [a, b, c, d, e] = &mut handles;
    assert_eq!(
        ml!(nvml, nvmlDeviceGetHandleByIndex(0 => c_uint, a => *mut Handle)),
        SUCCESS
    );
    assert_eq!(
        ml!(nvml, nvmlDeviceGetHandleByIndex_v2(0 => c_uint, b => *mut Handle)),
        SUCCESS
    );
    // The form that CUDA writes, and the form that NVML writes.
    let (short, long) = (c"0000:65:00.0".as_ptr(), c"00000000:65:00.0".as_ptr());
    assert_eq!(
        ml!(nvml, nvmlDeviceGetHandleByPciBusId(short => *const c_char, c => *mut Handle)),
        SUCCESS
    );
    assert_eq!(
        ml!(nvml, nvmlDeviceGetHandleByPciBusId_v2(long => *const c_char, d => *mut Handle)),
        SUCCESS
    );
    let uuid = format!("{UUID}\0");
    let uuid = uuid.as_ptr().cast();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetHandleByUUID(uuid => *const c_char, e => *mut Handle)),
        SUCCESS
    );
    assert!(
        handles.iter().all(|handle| *handle == handles[0]),
        "{handles:?}"
    );

    let mut none: Handle = std::ptr::null();
    let other = c"0000:66:00.0".as_ptr();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetHandleByPciBusId_v2(other => *const c_char, &mut none => *mut Handle)),
        NOT_FOUND
    );
    assert_eq!(
        ml!(nvml, nvmlDeviceGetHandleByIndex(1 => c_uint, &mut none => *mut Handle)),
        INVALID_ARGUMENT
    );
    // An invalid handle is not dereferenced.
    let junk = 0x0bad_0000_usize as Handle;
    assert_eq!(
        number(&nvml, "nvmlDeviceGetIndex", junk),
        Err(INVALID_ARGUMENT)
    );
}

#[test]
fn used_memory_of_version_1_is_all_that_is_not_free() {
    let name = "used_memory_of_version_1_is_all_that_is_not_free";
    let Some(nvml) = guest(name) else {
        played(name, &looked());
        return;
    };
    let device = first_device(&nvml);
    // Total, free, used. The fixture's VM uses 1 GiB, and 2 GiB are reserved.
    let mut memory = [0_u64; 3];
    let at = memory.as_mut_ptr();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetMemoryInfo(device => Handle, at => *mut u64)),
        SUCCESS
    );
    assert_eq!(memory, [8 << 30, 5 << 30, 3 << 30]);
}

#[test]
fn the_driver_s_branch_is_told_in_the_structure_of_version_1() {
    let name = "the_driver_s_branch_is_told_in_the_structure_of_version_1";
    let Some(nvml) = guest(name) else {
        played(name, &looked());
        return;
    };
    // `nvmlSystemDriverBranchInfo_v1_t`: the version, then 80 bytes of text.
    let mut info = [0_u8; 84];
    let mut branch = |version: u32, length: c_uint| {
        info[..4].copy_from_slice(&version.to_ne_bytes());
        let at = info.as_mut_ptr();
        let code = ml!(nvml, nvmlSystemGetDriverBranch(at => *mut u8, length => c_uint));
        let text = info[4..].split(|byte| *byte == 0).next();
        (
            code,
            String::from_utf8_lossy(text.unwrap_or_default()).into_owned(),
        )
    };
    const V1: u32 = 84 | 1 << 24;
    assert_eq!(branch(V1, 80).0, UNINITIALIZED);
    assert_eq!(ml!(nvml, nvmlInit_v2()), SUCCESS);
    assert_eq!(branch(84 | 2 << 24, 80).0, ARGUMENT_VERSION);
    assert_eq!(branch(V1, 7), (INSUFFICIENT_SIZE, String::new()));
    assert_eq!(branch(V1, 8), (SUCCESS, "r550_00".into()));
    let none = std::ptr::null_mut();
    assert_eq!(
        ml!(nvml, nvmlSystemGetDriverBranch(none => *mut u8, 80 => c_uint)),
        INVALID_ARGUMENT
    );
}

#[test]
fn processes_are_the_vm_s_own_and_links_are_not_served() {
    let name = "processes_are_the_vm_s_own_and_links_are_not_served";
    let Some(nvml) = guest(name) else {
        played(name, &looked());
        return;
    };
    assert_eq!(ml!(nvml, nvmlInit_v2()), SUCCESS);
    let mut device: Handle = std::ptr::null();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetHandleByIndex(0 => c_uint, &mut device => *mut Handle)),
        SUCCESS
    );
    let mut count = 0;
    let none: *mut u64 = std::ptr::null_mut();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetComputeRunningProcesses_v3(
            device => Handle, &mut count => *mut c_uint, none => *mut u64)),
        INSUFFICIENT_SIZE
    );
    assert_eq!(count, 1);
    let (mut old, mut new) = ([0_u64; 2], [0_u64; 3]);
    let (at, place) = (old.as_mut_ptr(), new.as_mut_ptr());
    assert_eq!(
        ml!(nvml, nvmlDeviceGetComputeRunningProcesses(
            device => Handle, &mut count => *mut c_uint, at => *mut u64)),
        SUCCESS
    );
    assert_eq!(
        ml!(nvml, nvmlDeviceGetComputeRunningProcesses_v3(
            device => Handle, &mut count => *mut c_uint, place => *mut u64)),
        SUCCESS
    );
    assert_eq!((old[0] as u32, old[1]), (77, 1 << 30));
    assert_eq!((new[0] as u32, new[1], new[2]), (77, 1 << 30, u64::MAX));

    let mut status = 0;
    assert_eq!(
        ml!(nvml, nvmlDeviceGetP2PStatus(
            device => Handle, device => Handle, 0 => c_uint, &mut status => *mut c_uint)),
        SUCCESS
    );
    assert_ne!(status, 0, "no peers");
    assert_eq!(
        ml!(nvml, nvmlDeviceGetNvLinkState(device => Handle, 0 => c_uint, &mut status => *mut c_uint)),
        NOT_SUPPORTED
    );
    let fabric: *mut u64 = std::ptr::null_mut();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetGpuFabricInfoV(device => Handle, fabric => *mut u64)),
        NOT_SUPPORTED
    );
    let mut fields = [0_u64; 5];
    let at = fields.as_mut_ptr();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetFieldValues(device => Handle, 1 => c_int, at => *mut u64)),
        SUCCESS
    );
    assert_eq!(
        (fields[3] >> 32) as u32,
        NOT_SUPPORTED,
        "each field says so"
    );
}

/// A clock in MHz; `kind` is an `nvmlClockType_t`.
fn clock(nvml: &Nvml, device: Handle, kind: c_uint) -> Result<c_uint, u32> {
    let mut mhz = 0;
    match ml!(nvml, nvmlDeviceGetClockInfo(device => Handle, kind => c_uint, &mut mhz => *mut c_uint))
    {
        SUCCESS => Ok(mhz),
        code => Err(code),
    }
}

fn first_device(nvml: &Nvml) -> Handle {
    assert_eq!(ml!(nvml, nvmlInit_v2()), SUCCESS);
    let mut device: Handle = std::ptr::null();
    assert_eq!(
        ml!(nvml, nvmlDeviceGetHandleByIndex(0 => c_uint, &mut device => *mut Handle)),
        SUCCESS
    );
    device
}

#[test]
fn sensors_are_told_where_the_administrator_shares_them() {
    let name = "sensors_are_told_where_the_administrator_shares_them";
    let Some(nvml) = guest(name) else {
        let mut looked = looked();
        looked.gpus[0].telemetry = Some(Telemetry {
            temperature_celsius: Some(61),
            power_milliwatts: None,
            graphics_clock_mhz: Some(1980),
            sm_clock_mhz: Some(1755),
            memory_clock_mhz: None,
            ecc_enabled: Some(true),
        });
        played(name, &looked);
        return;
    };
    let device = first_device(&nvml);
    assert_eq!(temperature(&nvml, device), Ok(61));
    assert_eq!(
        number(&nvml, "nvmlDeviceGetPowerUsage", device),
        Err(NOT_SUPPORTED)
    );
    // Graphics, multiprocessors, memory, video.
    let clocks = [0, 1, 2, 3].map(|kind| clock(&nvml, device, kind));
    let unknown = Err(NOT_SUPPORTED);
    assert_eq!(clocks, [Ok(1980), Ok(1755), unknown, unknown]);
}

#[test]
fn sensors_that_are_not_shared_are_refused_and_said_once() {
    let name = "sensors_that_are_not_shared_are_refused_and_said_once";
    let Some(nvml) = guest(name) else {
        let dir = tempfile::tempdir().expect("a directory");
        let (address, _) = door(&dir, 0, codec::encode(&looked()).expect("encodes"));
        let said = run(name, &address);
        let line = "vgpu: NVML: temperature, power, clocks and ECC are not shared with VMs; ";
        assert_eq!(said.matches(line).count(), 1, "{said}");
        return;
    };
    let device = first_device(&nvml);
    for _ in 0..2 {
        assert_eq!(temperature(&nvml, device), Err(NOT_SUPPORTED));
        assert_eq!(clock(&nvml, device, 1), Err(NOT_SUPPORTED));
    }
}

#[test]
fn before_init_and_without_a_host_there_is_a_code_and_a_text() {
    let name = "before_init_and_without_a_host_there_is_a_code_and_a_text";
    let Some(nvml) = guest(name) else {
        let said = run(name, "unix:/nonexistent/vgpu.sock");
        assert!(said.contains("vgpu: NVML: no vgpud answers at"), "{said}");
        return;
    };
    let mut count = 0;
    assert_eq!(
        ml!(nvml, nvmlDeviceGetCount_v2(&mut count => *mut c_uint)),
        UNINITIALIZED
    );
    assert_eq!(ml!(nvml, nvmlShutdown()), UNINITIALIZED);
    assert_eq!(ml!(nvml, nvmlInit_v2()), DRIVER_NOT_LOADED);
    let mut version = [0 as c_char; 80];
    let at = version.as_mut_ptr();
    assert_eq!(
        ml!(nvml, nvmlSystemGetNVMLVersion(at => *mut c_char, 80 => c_uint)),
        SUCCESS
    );
    let error: extern "C" fn(c_uint) -> *const c_char = nvml.symbol("nvmlErrorString");
    for (code, expected) in [
        (0, "Success"),
        (9, "Driver Not Loaded"),
        (31, "Unknown Error"),
        (999, "Unknown Error"),
    ] {
        // SAFETY: a static text.
        let said = unsafe { CStr::from_ptr(error(code)) };
        assert_eq!(said.to_str(), Ok(expected));
    }
}

#[test]
fn a_refused_look_is_no_driver_that_is_missing() {
    let name = "a_refused_look_is_no_driver_that_is_missing";
    let Some(nvml) = guest(name) else {
        for refusal in [Refusal::Version, Refusal::UnknownVm, Refusal::Busy] {
            let dir = tempfile::tempdir().expect("a directory");
            let (address, _) = door(&dir, refusal as u32, b"for this reason".to_vec());
            run(name, &address);
        }
        return;
    };
    assert!(![SUCCESS, DRIVER_NOT_LOADED].contains(&ml!(nvml, nvmlInit_v2())));
}

#[test]
fn why_an_address_is_none_is_told() {
    let name = "why_an_address_is_none_is_told";
    let Some(nvml) = guest(name) else {
        let said = run(name, "foo");
        assert!(
            said.contains("vgpu: NVML: VGPU_ADDRESS is `foo`; write"),
            "{said}"
        );
        return;
    };
    assert_eq!(ml!(nvml, nvmlInit_v2()), INVALID_ARGUMENT);
}
