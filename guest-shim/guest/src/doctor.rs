//! What stands between a CUDA program of this VM and its GPU, step by step.

use std::ffi::{c_char, c_int};
use std::fmt::Write as _;

use libloading::Library;
use vgpu_door::{Address, look};

use crate::{LIMIT, tell};

/// What is found, or what is wrong and what to do.
type Step = fn() -> Result<String, String>;

/// The findings as text, and whether all is well.
pub(crate) fn examine() -> (String, bool) {
    let steps: [(&str, Step); 5] = [
        ("address", address),
        ("host", host),
        ("libcuda", driver),
        ("libnvidia-ml", management),
        ("cuInit", init),
    ];
    let (mut text, mut good) = (String::new(), true);
    for (name, step) in steps {
        let (word, told) = match step() {
            Ok(told) => ("ok", told),
            Err(told) => {
                good = false;
                ("ERROR", told)
            }
        };
        let _ = writeln!(text, "{word:5} {name}: {told}");
    }
    (text, good)
}

/// VGPU_ADDRESS, and what it leads to in this VM.
fn address() -> Result<String, String> {
    let address = Address::from_environment()?;
    match &address {
        Address::Vsock { .. } if !std::path::Path::new("/dev/vsock").exists() => Err(format!(
            "{address}, but this machine has no /dev/vsock: load vmw_vsock_virtio_transport, and give the VM a \
             vsock device on the host"
        )),
        Address::Unix(path) if !std::path::Path::new(path).exists() => Err(format!(
            "{address}, but there is no such socket: mount the VM's directory of the host there"
        )),
        _ => Ok(address.to_string()),
    }
}

/// Whether vgpud answers.
fn host() -> Result<String, String> {
    let looked = look(&Address::from_environment()?, LIMIT).map_err(|e| e.to_string())?;
    let cuda = looked.cuda_version.map_or("unknown".into(), tell::cuda);
    let text = format!(
        "vgpud {} answers, this is its VM {}, CUDA {cuda}",
        looked.daemon_version, looked.vm_id
    );
    if let Some(quarantine) = looked.standing.quarantine {
        return Err(format!("{text}; it is quarantined: {}", quarantine.reason));
    }
    match looked.gpus.len() {
        0 => Err(format!(
            "{text}, without a GPU: the host's administrator can assign one"
        )),
        n => Ok(format!("{text}, with {n} GPU(s)")),
    }
}

/// Which file a program gets by a name.
fn found(name: &str) -> Result<(Library, String), String> {
    // SAFETY: what the name leads to is what every CUDA program of this machine loads.
    let library = unsafe { Library::new(name) }.map_err(|e| {
        let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        format!(
            "{name} cannot be loaded ({why}); install it where the loader looks (/etc/ld.so.conf.d, ldconfig) or \
             name its directory in LD_LIBRARY_PATH"
        )
    })?;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let stem = name.split(".so").next().unwrap_or(name);
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let path = paths.find(|path| {
        path.rsplit('/')
            .next()
            .is_some_and(|file| file.starts_with(stem))
    });
    Ok((library, path.unwrap_or(name).to_owned()))
}

/// The driver library, and the version that it tells.
fn driver() -> Result<String, String> {
    let (library, path) = found("libcuda.so.1")?;
    let mut version: c_int = 0;
    // SAFETY: the type of cuda.h; the argument is live.
    let code = unsafe {
        let function = library
            .get::<unsafe extern "C" fn(*mut c_int) -> u32>(b"cuDriverGetVersion")
            .map_err(|e| format!("{path} is no CUDA driver: {e}"))?;
        function(&mut version)
    };
    match code {
        0 => Ok(format!(
            "{path}, CUDA {}",
            tell::cuda(version.unsigned_abs())
        )),
        code => Err(format!("{path}: cuDriverGetVersion returned {code}")),
    }
}

/// The management library.
fn management() -> Result<String, String> {
    let (library, path) = found("libnvidia-ml.so.1")?;
    // SAFETY: the types of nvml.h.
    let code = unsafe {
        let init = library
            .get::<unsafe extern "C" fn() -> u32>(b"nvmlInit_v2")
            .map_err(|e| format!("{path} is no NVML: {e}"))?;
        init()
    };
    match code {
        0 => Ok(path),
        code => Err(format!(
            "{path}: nvmlInit returned {code}; VGPU_LOG=warn says why"
        )),
    }
}

/// A session, from its beginning to its end with this program.
fn init() -> Result<String, String> {
    let (library, path) = found("libcuda.so.1")?;
    // SAFETY: the types of cuda.h; the arguments are live, the text is the library's for ever.
    unsafe {
        let init = library
            .get::<unsafe extern "C" fn(u32) -> u32>(b"cuInit")
            .map_err(|e| format!("{path} is no CUDA driver: {e}"))?;
        let code = init(0);
        if code == 0 {
            return Ok("a session was opened".into());
        }
        let mut text: *const c_char = std::ptr::null();
        if let Ok(name) =
            library.get::<unsafe extern "C" fn(u32, *mut *const c_char) -> u32>(b"cuGetErrorName")
        {
            name(code, &mut text);
        }
        let name = match text.is_null() {
            true => code.to_string(),
            false => std::ffi::CStr::from_ptr(text)
                .to_string_lossy()
                .into_owned(),
        };
        Err(format!("{name}; the line of libcuda.so.1 above says why"))
    }
}
