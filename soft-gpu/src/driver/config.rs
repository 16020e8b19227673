//! The `SOFT_GPU_*` environment variables (described in docs/soft-gpu.md).

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use vgpu_cuda_abi::{CuResult, names};

use super::base_name::base;

/// Most devices of one process.
pub const MAX_DEVICES: usize = 16;

/// The default version that cuDriverGetVersion reports.
pub const DRIVER_VERSION: i32 = 13000;

/// An error injected at the Nth call of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailCall {
    /// Export name, with or without its version suffix.
    pub name: String,
    /// Number of the call, from 1; 0 means every call.
    pub nth: u64,
    /// The result that the call returns.
    pub code: CuResult,
}

/// The effect of an injected kernel fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A sticky error.
    Code(CuResult),
    /// The kernel never ends.
    Hang,
}

/// A fault injected into the Nth launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFault {
    /// Kernel name; `*` means any kernel.
    pub kernel: String,
    /// Number of the launch, from 1; 0 means every launch.
    pub nth: u64,
    /// Effect of the fault.
    pub kind: FaultKind,
}

/// Known kernel times (`SOFT_GPU_CLOCK`). Kernels with a known time are not executed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock {
    by_name: BTreeMap<String, u64>,
    default: Option<u64>,
}

impl Clock {
    /// Known time in ns of a launch of `kernel`; `None` if the kernel is executed.
    pub fn ns(&self, kernel: &str) -> Option<u64> {
        self.by_name.get(kernel).copied().or(self.default)
    }

    /// Whether any kernel has a known time.
    pub fn active(&self) -> bool {
        self.default.is_some() || !self.by_name.is_empty()
    }
}

/// Suffix of the device name if kernels of machine code do nothing.
const SKIPS: &str = ", machine code skipped";

/// All settings. [`Config::default`] has the default values.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Number of physical devices.
    pub devices: usize,
    /// Bytes of memory per device.
    pub memory: u64,
    /// Device name; contains `soft`.
    pub name: String,
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// Number that makes the UUIDs of this machine's soft devices differ from those of other
    /// machines.
    pub seed: u64,
    /// Number of the allocation of device memory that fails, from 1.
    pub fail_alloc: Option<u64>,
    /// Injected call errors.
    pub fail_calls: Vec<FailCall>,
    /// Injected kernel faults.
    pub faults: Vec<KernelFault>,
    /// Delay before each kernel starts, in ns.
    pub launch_latency_ns: u64,
    /// Delay before each copy starts, in ns.
    pub copy_latency_ns: u64,
    /// Duration of a copy per byte, in ns.
    pub copy_ns_per_byte: f64,
    /// CPU threads for one launch.
    pub threads: usize,
    /// Known kernel times.
    pub clock: Clock,
    /// Directory of the state that processes share. `None`: no other process uses the devices of
    /// this process.
    pub state: Option<PathBuf>,
    /// Whether an invalid call aborts the process.
    pub strict: bool,
    /// Whether cuInit prints one line on stderr.
    pub banner: bool,
    /// Whether kernels of machine code do nothing instead of being refused.
    pub skip_machine_code: bool,
    /// Prefix of the names of the digest files, which list the operations of the device.
    pub digest: Option<PathBuf>,
    /// CUDA_VISIBLE_DEVICES.
    pub visible: Option<String>,
    /// Whether CUDA_DEVICE_ORDER is unset or has a value that CUDA knows. Every known order gives
    /// the same list of devices, because all devices are alike.
    pub order_known: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            devices: 1,
            memory: 4 << 30,
            name: "SoftGPU CPU (soft)".to_owned(),
            compute_capability: (8, 0),
            seed: 0,
            fail_alloc: None,
            fail_calls: Vec::new(),
            faults: Vec::new(),
            launch_latency_ns: 0,
            copy_latency_ns: 0,
            copy_ns_per_byte: 0.0,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            clock: Clock::default(),
            state: None,
            strict: false,
            banner: false,
            skip_machine_code: false,
            digest: None,
            visible: None,
            order_known: true,
        }
    }
}

/// A setting with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadKnob {
    /// The variable.
    pub name: String,
    /// The value.
    pub value: String,
    /// The accepted values.
    pub wanted: &'static str,
}

impl fmt::Display for BadKnob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}={:?} cannot be used: give {}",
            self.name, self.value, self.wanted
        )
    }
}

impl Config {
    /// Reads the settings from `vars`; also returns the unknown `SOFT_GPU_*` names.
    ///
    /// # Errors
    /// The first setting with an invalid value.
    pub fn parse(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(Config, Vec<String>), BadKnob> {
        let mut config = Config::default();
        let mut unknown = Vec::new();
        for (name, value) in vars {
            if name == "CUDA_VISIBLE_DEVICES" {
                config.visible = Some(value);
            } else if name == "CUDA_DEVICE_ORDER" {
                config.order_known = matches!(value.as_str(), "FASTEST_FIRST" | "PCI_BUS_ID");
            } else if let Some(knob) = name.strip_prefix("SOFT_GPU_") {
                match config.set(knob, &value) {
                    Ok(true) => {}
                    Ok(false) => unknown.push(name),
                    Err(wanted) => {
                        return Err(BadKnob {
                            name,
                            value,
                            wanted,
                        });
                    }
                }
            }
        }
        if config.skip_machine_code {
            config.name.push_str(SKIPS);
        }
        Ok((config, unknown))
    }

    /// Sets one setting. Returns false for an unknown name; the error describes the accepted
    /// values.
    fn set(&mut self, knob: &str, v: &str) -> Result<bool, &'static str> {
        const NUMBER: &str = "a whole number";
        match knob {
            "DEVICES" => {
                let n = v.parse().map_err(|_| NUMBER)?;
                self.devices = Some(n).filter(|n| *n <= MAX_DEVICES).ok_or("0 to 16")?;
            }
            "MEMORY" => {
                let bytes = parse_bytes(v).filter(|b| (1 << 20..=1 << 38).contains(b));
                self.memory = bytes.ok_or("1M to 256G, like 512M or 8G")?;
            }
            "NAME" if v.trim().is_empty() => return Err("a name"),
            "NAME" => {
                let soft = v.to_ascii_lowercase().contains("soft");
                self.name = if soft {
                    v.to_owned()
                } else {
                    format!("{v} (soft)")
                };
            }
            "CC" => {
                self.compute_capability =
                    parse_cc(v).ok_or("major.minor from 5.0 to 99.9, like 8.0")?;
            }
            "DRIVER_VERSION" => {
                driver_version(v)?;
            }
            "SEED" => self.seed = v.parse().map_err(|_| NUMBER)?,
            "FAIL_ALLOC" => self.fail_alloc = Some(v.parse().map_err(|_| NUMBER)?),
            "FAIL_CALL" => self.fail_calls = parse_list(v, parse_fail_call)?,
            "FAULT" => self.faults = parse_list(v, parse_fault)?,
            "LAUNCH_LATENCY_NS" => self.launch_latency_ns = v.parse().map_err(|_| NUMBER)?,
            "COPY_LATENCY_NS" => self.copy_latency_ns = v.parse().map_err(|_| NUMBER)?,
            "COPY_NS_PER_BYTE" => {
                let ns = v.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
                self.copy_ns_per_byte = ns.ok_or("a number, like 0.05")?;
            }
            "THREADS" => {
                let n = v.parse().ok().filter(|n| (1..=1024).contains(n));
                self.threads = n.ok_or("1 to 1024")?;
            }
            "CLOCK" => self.clock = parse_clock(v)?,
            "STATE" => self.state = (!v.is_empty()).then(|| PathBuf::from(v)),
            "STRICT" => self.strict = parse_bool(v)?,
            "BANNER" => self.banner = parse_bool(v)?,
            "SASS" => match v {
                "skip" => self.skip_machine_code = true,
                "" => self.skip_machine_code = false,
                _ => return Err("skip, or nothing"),
            },
            "DIGEST" => self.digest = (!v.is_empty()).then(|| PathBuf::from(v)),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The setting `DRIVER_VERSION`, which programs can query before cuInit.
///
/// # Errors
/// A description of the accepted values.
pub fn driver_version(v: &str) -> Result<i32, &'static str> {
    let known = v
        .parse()
        .ok()
        .filter(|n| (2000..100_000).contains(n) && n % 10 == 0);
    known.ok_or("1000 times CUDA's major version and 10 times its minor one, like 13000 or 12040")
}

fn parse_bool(v: &str) -> Result<bool, &'static str> {
    match v {
        "1" => Ok(true),
        "0" | "" => Ok(false),
        _ => Err("0 or 1"),
    }
}

/// Parses `4096`, `512M`, `8G` or `8GiB` to bytes. The suffixes are powers of 1024.
fn parse_bytes(v: &str) -> Option<u64> {
    let digits = v.find(|c: char| !c.is_ascii_digit()).unwrap_or(v.len());
    let number: u64 = v[..digits].parse().ok()?;
    let shift = match v[digits..].trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// Parses a compute capability. Capabilities above those of real devices are accepted: NVIDIA's
/// libraries use their PTX if the device is newer than all of their machine code.
fn parse_cc(v: &str) -> Option<(u32, u32)> {
    let (major, minor) = v.split_once('.')?;
    let cc = (major.parse().ok()?, minor.parse().ok()?);
    ((5..=99).contains(&cc.0) && cc.1 <= 9).then_some(cc)
}

fn parse_list<T>(
    v: &str,
    one: impl Fn(&str) -> Result<T, &'static str>,
) -> Result<Vec<T>, &'static str> {
    v.split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(one)
        .collect()
}

fn parse_fail_call(v: &str) -> Result<FailCall, &'static str> {
    const WANTED: &str =
        "function:N:error, like cuMemAlloc:3:2 or cuLaunchKernel:1:CUDA_ERROR_LAUNCH_FAILED";
    let mut f = v.split(':');
    let (Some(name), Some(nth), Some(code), None) = (f.next(), f.next(), f.next(), f.next()) else {
        return Err(WANTED);
    };
    let functions = names::symbols();
    if !functions
        .iter()
        .any(|function| name == *function || name == base(function))
    {
        return Err("a function of the driver API before the colon, like cuMemAlloc:3:2");
    }
    Ok(FailCall {
        name: name.to_owned(),
        nth: nth.parse().map_err(|_| WANTED)?,
        code: parse_error(code).ok_or(WANTED)?,
    })
}

/// Parses an error code or an error name; success is refused.
fn parse_error(text: &str) -> Option<CuResult> {
    CuResult::parse(text).filter(|code| code.0 != 0)
}

fn parse_fault(v: &str) -> Result<KernelFault, &'static str> {
    const WANTED: &str = "kernel:N:error or kernel:N:hang, like vadd:2:700";
    let mut f = v.split(':');
    let kernel = f.next().filter(|kernel| !kernel.is_empty());
    let (Some(kernel), Some(nth), Some(what), None) = (kernel, f.next(), f.next(), f.next()) else {
        return Err(WANTED);
    };
    let kind = match what {
        "hang" => FaultKind::Hang,
        code => FaultKind::Code(parse_error(code).ok_or(WANTED)?),
    };
    Ok(KernelFault {
        kernel: kernel.to_owned(),
        nth: nth.parse().map_err(|_| WANTED)?,
        kind,
    })
}

fn parse_clock(v: &str) -> Result<Clock, &'static str> {
    const WANTED: &str = "ns for every kernel, or name:ns,… with *:ns for the others";
    let mut clock = Clock::default();
    for item in v.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        let (name, ns) = item.rsplit_once(':').unwrap_or(("*", item));
        let ns = ns.parse().map_err(|_| WANTED)?;
        if name.is_empty() {
            return Err(WANTED);
        }
        if name == "*" {
            clock.default = Some(ns);
        } else {
            clock.by_name.insert(name.to_owned(), ns);
        }
    }
    Ok(clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(vars: &[(&str, &str)]) -> Result<(Config, Vec<String>), BadKnob> {
        Config::parse(vars.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())))
    }

    #[test]
    fn reads_every_setting() -> Result<(), BadKnob> {
        let (c, unknown) = parse(&[
            ("SOFT_GPU_DEVICES", "2"),
            ("SOFT_GPU_MEMORY", "256MiB"),
            ("SOFT_GPU_NAME", "H100"),
            ("SOFT_GPU_CC", "9.0"),
            ("SOFT_GPU_FAIL_ALLOC", "3"),
            (
                "SOFT_GPU_FAIL_CALL",
                "cuMemAlloc:2:2, cuLaunchKernel:1:LAUNCH_FAILED",
            ),
            ("SOFT_GPU_FAULT", "vadd:1:700,spin:0:hang"),
            ("SOFT_GPU_CLOCK", "a:1000,*:5"),
            ("SOFT_GPU_COPY_NS_PER_BYTE", "0.5"),
            ("SOFT_GPU_STRICT", "1"),
            ("SOFT_GPU_DIGEST", "/tmp/digest"),
            ("SOFT_GPU_TYPO", "1"),
            ("CUDA_VISIBLE_DEVICES", "1"),
            ("HOME", "/"),
        ])?;
        assert_eq!(unknown, ["SOFT_GPU_TYPO"]);
        assert_eq!(
            (c.devices, c.memory, c.name.as_str()),
            (2, 256 << 20, "H100 (soft)")
        );
        assert_eq!(c.compute_capability, (9, 0));
        assert_eq!(c.fail_calls[1].code, CuResult::LAUNCH_FAILED);
        assert_eq!(c.faults[1].kind, FaultKind::Hang);
        assert_eq!((c.clock.ns("a"), c.clock.ns("b")), (Some(1000), Some(5)));
        assert_eq!(c.visible.as_deref(), Some("1"));
        assert_eq!(c.digest, Some(PathBuf::from("/tmp/digest")));
        Ok(())
    }

    #[test]
    fn a_device_that_does_not_compute_machine_code_says_so_in_its_name() -> Result<(), BadKnob> {
        let (c, _) = parse(&[("SOFT_GPU_SASS", "skip"), ("SOFT_GPU_NAME", "H100")])?;
        assert_eq!(c.name, "H100 (soft), machine code skipped");
        let (c, _) = parse(&[("SOFT_GPU_SASS", "")])?;
        assert_eq!(c.name, Config::default().name);
        Ok(())
    }

    #[test]
    fn a_capability_may_be_newer_than_any_card() -> Result<(), BadKnob> {
        let (c, _) = parse(&[("SOFT_GPU_CC", "13.0")])?;
        assert_eq!(c.compute_capability, (13, 0));
        Ok(())
    }

    #[test]
    fn a_refused_value_names_the_accepted_values() {
        for (name, value) in [
            ("SOFT_GPU_MEMORY", "lots"),
            ("SOFT_GPU_DEVICES", "17"),
            ("SOFT_GPU_FAIL_CALL", "cuMemAlloc:2"),
            ("SOFT_GPU_FAULT", "k:1:nothing"),
            ("SOFT_GPU_CLOCK", "k:soon"),
            ("SOFT_GPU_CC", "80"),
            ("SOFT_GPU_CC", "100.0"),
            ("SOFT_GPU_SASS", "1"),
            ("SOFT_GPU_DRIVER_VERSION", "-1"),
            ("SOFT_GPU_DRIVER_VERSION", "12"),
            ("SOFT_GPU_DRIVER_VERSION", "12.4"),
            ("SOFT_GPU_FAIL_CALL", "cuMemAloc:1:2"),
            ("SOFT_GPU_FAIL_CALL", "cuMemAlloc:1:SUCCESS"),
            ("SOFT_GPU_FAULT", "vadd:1:0"),
            ("SOFT_GPU_FAULT", ":1:700"),
            ("SOFT_GPU_CLOCK", ":5"),
            ("SOFT_GPU_NAME", ""),
        ] {
            let error = parse(&[(name, value)]).expect_err(name);
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }
}
