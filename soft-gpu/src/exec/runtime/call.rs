//! Calls of the device runtime, lane by lane.

use vgpu_cuda_abi::numbers::{event_flag, stream_flag};

use super::nest::{Area, Handle, Order, Work};
use super::{Call, called, error};
use crate::exec::contract::{Child, KernelId, Runtime};
use crate::exec::env::{Env, FUNC_STRIDE, FUNC_WINDOW, SHARED_WINDOW};
use crate::exec::inst::{Flow, Inst, LANES, Op};
use crate::exec::ops::family::each_lane;
use crate::exec::ops::memory::{host_address, illegal};
use crate::exec::program::CallSite;
use crate::exec::warp::Warp;

/// Instructions that the call of one lane counts for: about as much of the thread's turn as the
/// driver's work takes.
pub(crate) const COST: u64 = 400;

/// Bytes of device-side malloc that count as one instruction: the driver marks each granule of the
/// block, at malloc and at free.
pub(crate) const BYTES_AN_INSTRUCTION: u64 = 2_048;

/// `cudaStreamNonBlocking`, the only flag of streams of kernels. The driver's flag is the same.
const NON_BLOCKING: u64 = stream_flag::NON_BLOCKING as u64;
/// `cudaEventDisableTiming`, the only flag of events of kernels. The driver's flag is the same.
const DISABLE_TIMING: u64 = event_flag::DISABLE_TIMING as u64;
/// `cudaStreamTailLaunch` and `cudaStreamFireAndForget`; the numbers below are default streams.
const TAIL_LAUNCH: u64 = 3;
const FIRE_AND_FORGET: u64 = 4;
/// `cudaMemcpyDefault`, the last `cudaMemcpyKind`.
const LAST_KIND: u64 = 4;
/// `cudaSharedMemBankSizeFourByte`.
const FOUR_BYTE_BANKS: u32 = 1;
/// The CUDA version of these functions: the last that changed them.
const VERSION: u32 = 13000;

/// Reason of a call without success.
enum Stop {
    /// The `cudaError_t` of the result.
    Error(u32),
    /// A pointer argument at which the lane has no memory: a device fault.
    Address(u64),
}

impl From<u32> for Stop {
    fn from(code: u32) -> Stop {
        Stop::Error(code)
    }
}

type Done<T = ()> = Result<T, Stop>;

/// Function `a` of the device runtime at call site `imm`.
pub(crate) struct CallRuntime;
impl Op for CallRuntime {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let site = &env.program.calls[i.imm as usize];
        let call = called(i.a);
        let mut bad = None;
        each_lane(mask, |lane| {
            if bad.is_none() {
                bad = Lane { w, env, site, lane }.call(call).err();
            }
        });
        if let Some(addr) = bad {
            illegal(w, env, addr, 1);
            return Flow::Fault;
        }
        w.charge += COST * u64::from(mask.count_ones());
        Flow::Yield
    }
}

/// One lane of a call.
struct Lane<'a> {
    w: &'a mut Warp,
    env: &'a Env<'a>,
    site: &'a CallSite,
    lane: usize,
}

impl Lane<'_> {
    fn arg(&self, k: usize) -> u64 {
        self.w.get(&self.site.args[k], self.lane)
    }

    /// The `n`th 8-byte word of a structure argument.
    fn word(&self, k: usize, n: usize) -> u64 {
        self.w.get_at(&self.site.args[k], self.lane, n as u64 * 8)
    }

    /// A `dim3` argument.
    fn dim3(&self, k: usize) -> [u32; 3] {
        let low = self.word(k, 0);
        [low as u32, (low >> 32) as u32, self.word(k, 1) as u32]
    }

    /// Writes at a generic address of the lane.
    fn put(&mut self, addr: u64, bytes: &[u8]) -> Done {
        for (n, byte) in bytes.iter().enumerate() {
            let at = addr.wrapping_add(n as u64);
            let p = host_address(self.w, self.env, self.lane, at, 1, true);
            let p = p.ok_or(Stop::Address(at))?;
            // SAFETY: `host_address` checked that the byte is writable.
            unsafe { p.write_volatile(*byte) };
        }
        Ok(())
    }

    fn put32(&mut self, k: usize, value: u32) -> Done {
        self.put(self.arg(k), &value.to_le_bytes())
    }

    fn put64(&mut self, k: usize, value: u64) -> Done {
        self.put(self.arg(k), &value.to_le_bytes())
    }

    /// Reads a word at a generic address of the lane.
    fn read(&self, addr: u64) -> Done<u64> {
        let mut out = [0u8; 8];
        for (n, byte) in out.iter_mut().enumerate() {
            let at = addr.wrapping_add(n as u64);
            let p = host_address(self.w, self.env, self.lane, at, 1, false);
            // SAFETY: `host_address` checked that the byte is readable.
            *byte = unsafe { p.ok_or(Stop::Address(at))?.read_volatile() };
        }
        Ok(u64::from_le_bytes(out))
    }

    /// The last error of the lane; 0 is none.
    fn last_error(&self) -> u32 {
        self.w.errors.get(self.lane).copied().unwrap_or(0)
    }

    fn set_last_error(&mut self, code: u32) {
        self.w.errors.resize(LANES, 0);
        self.w.errors[self.lane] = code;
    }

    /// Executes the call, and sets the result and the last error.
    ///
    /// # Errors
    /// An address at which the lane has no memory.
    fn call(&mut self, call: Call) -> Result<(), u64> {
        let buffer = matches!(call, Call::GetParameterBuffer | Call::GetParameterBufferV2);
        let result = match self.env.device.runtime() {
            Some(runtime) => self.answer(runtime, call),
            None => Err(Stop::Error(error::NOT_SUPPORTED)),
        };
        let result = match result {
            Ok(value) => value,
            Err(Stop::Address(addr)) => return Err(addr),
            Err(Stop::Error(code)) => {
                self.set_last_error(code);
                if buffer { 0 } else { u64::from(code) }
            }
        };
        if let Some(ret) = self.site.rets.first() {
            self.w.set(ret, self.lane, result);
        }
        Ok(())
    }

    /// The result: a parameter buffer, or a `cudaError_t`.
    fn answer(&mut self, runtime: &dyn Runtime, call: Call) -> Done<u64> {
        match call {
            Call::GetParameterBuffer => return self.parameter_buffer(runtime),
            Call::GetParameterBufferV2 => return self.parameter_buffer_v2(runtime),
            Call::PeekAtLastError => return Ok(self.last_error().into()),
            Call::GetLastError => {
                let code = self.last_error();
                if let Some(error) = self.w.errors.get_mut(self.lane) {
                    *error = 0;
                }
                return Ok(code.into());
            }
            Call::LaunchDevice | Call::LaunchDeviceV2 => self.launch(runtime, call)?,
            Call::Malloc | Call::Free => self.heap(call)?,
            Call::MemcpyAsync | Call::Memcpy2DAsync | Call::Memcpy3DAsync => {
                self.copy(runtime, call)?;
            }
            Call::MemsetAsync | Call::Memset2DAsync | Call::Memset3DAsync => {
                self.fill(runtime, call)?;
            }
            Call::StreamCreateWithFlags => self.create(Handle::Stream, NON_BLOCKING)?,
            Call::EventCreateWithFlags => self.create(Handle::Event, DISABLE_TIMING)?,
            Call::StreamDestroy => self.created(0, Handle::Stream)?,
            Call::EventDestroy => self.created(0, Handle::Event)?,
            // The work of a grid runs in the order of the calls: an event has nothing to add.
            Call::EventRecord => {
                self.created(0, Handle::Event)?;
                self.order(1)?;
            }
            Call::StreamWaitEvent => {
                self.order(0)?;
                self.created(1, Handle::Event)?;
            }
            _ => self.query(runtime, call)?,
        }
        Ok(0)
    }

    fn query(&mut self, runtime: &dyn Runtime, call: Call) -> Done {
        match call {
            Call::DeviceGetAttribute => {
                let (attribute, device) = (self.arg(1) as i32, self.arg(2) as i32);
                self.put32(0, runtime.attribute(attribute, device)? as u32)
            }
            Call::DeviceGetLimit => {
                let value = runtime.limit(self.arg(1) as u32)?;
                self.put64(0, value)
            }
            Call::DeviceGetCacheConfig => self.put32(0, 0),
            Call::DeviceGetSharedMemConfig => self.put32(0, FOUR_BYTE_BANKS),
            Call::GetDevice => self.put32(0, runtime.devices().0),
            Call::GetDeviceCount => self.put32(0, runtime.devices().1),
            Call::RuntimeGetVersion => self.put32(0, VERSION),
            Call::FuncGetAttributes => {
                let bytes = runtime.function_attributes(self.kernel(1)?)?;
                self.put(self.arg(0), &bytes)
            }
            Call::Occupancy => {
                let kernel = self.kernel(1)?;
                let threads = u32::try_from(self.arg(2)).unwrap_or(0);
                let blocks = runtime.occupancy(kernel, threads, self.arg(3))?;
                self.put32(0, blocks)
            }
            _ => Err(error::NOT_SUPPORTED.into()),
        }
    }

    /// The kernel of a function pointer.
    fn kernel(&self, k: usize) -> Done<KernelId> {
        let at = self.arg(k).wrapping_sub(FUNC_WINDOW);
        let func = at / FUNC_STRIDE;
        let mut kernels = self.env.program.kernels.iter();
        let found = kernels.position(|(f, _)| u64::from(*f) == func);
        let found = found.filter(|_| at.is_multiple_of(FUNC_STRIDE));
        let number = found.ok_or(error::INVALID_DEVICE_FUNCTION)?;
        Ok(KernelId(number as u32))
    }

    /// The order of work in the stream of an argument.
    fn order(&self, k: usize) -> Done<Order> {
        match self.arg(k) {
            TAIL_LAUNCH => Ok(Order::Tail),
            0..=FIRE_AND_FORGET => Ok(Order::Stream),
            _ => self.created(k, Handle::Stream).map(|()| Order::Stream),
        }
    }

    fn create(&mut self, kind: Handle, flags: u64) -> Done {
        if self.arg(1) != flags {
            return Err(error::INVALID_VALUE.into());
        }
        let handle = self.env.nest.create(kind);
        self.put64(0, handle)
    }

    fn created(&self, k: usize, kind: Handle) -> Done {
        match self.env.nest.created(self.arg(k), kind) {
            true => Ok(()),
            false => Err(error::INVALID_RESOURCE_HANDLE.into()),
        }
    }

    /// The launch of the arguments from `k` on: grid, block, bytes of shared memory.
    fn child(&self, kernel: usize, k: usize) -> Done<Child> {
        Ok(Child {
            kernel: self.kernel(kernel)?,
            grid: self.dim3(k),
            block: self.dim3(k + 1),
            shared: self.arg(k + 2) as u32,
        })
    }

    fn parameter_buffer(&self, runtime: &dyn Runtime) -> Done<u64> {
        Ok(self.env.nest.prepare(runtime, self.arg(1), None)?)
    }

    fn parameter_buffer_v2(&self, runtime: &dyn Runtime) -> Done<u64> {
        let child = self.child(0, 1)?;
        let bytes = self.env.program.kernel_info(child.kernel).param_bytes;
        let nest = self.env.nest;
        Ok(nest.prepare(runtime, bytes as u64, Some(child))?)
    }

    fn launch(&self, runtime: &dyn Runtime, call: Call) -> Done {
        let (parameters, child, stream) = match call {
            Call::LaunchDevice => (self.arg(1), Some(self.child(0, 2)?), 5),
            _ => (self.arg(0), None, 1),
        };
        let order = self.order(stream)?;
        Ok(self.env.nest.launch(runtime, parameters, child, order)?)
    }

    fn heap(&mut self, call: Call) -> Done {
        let device = self.env.device;
        if call == Call::Free {
            let addr = self.arg(0);
            return match addr == 0 || device.free(addr) {
                true => Ok(()),
                false => Err(error::INVALID_VALUE.into()),
            };
        }
        let addr = match self.arg(1) {
            0 => 0,
            bytes => match device.malloc(bytes) {
                0 => return Err(error::MEMORY_ALLOCATION.into()),
                addr => {
                    self.w.charge += bytes / BYTES_AN_INSTRUCTION;
                    addr
                }
            },
        };
        self.put64(0, addr)
    }

    fn copy(&self, runtime: &dyn Runtime, call: Call) -> Done {
        let line = |addr| Area {
            addr,
            pitch: 0,
            slice: 0,
        };
        let (to, from, extent, kind, stream) = match call {
            Call::MemcpyAsync => {
                let (to, from) = (line(self.arg(0)), line(self.arg(1)));
                (to, from, [self.arg(2), 1, 1], self.arg(3), 4)
            }
            Call::Memcpy2DAsync => {
                let area = |k| Area {
                    pitch: self.arg(k + 1),
                    ..line(self.arg(k))
                };
                let extent = [self.arg(4), self.arg(5), 1];
                (area(0), area(2), extent, self.arg(6), 7)
            }
            _ => {
                let (to, from, extent, kind) = self.parameters_3d(self.arg(0))?;
                (to, from, extent, kind, 1)
            }
        };
        if kind > LAST_KIND {
            return Err(error::INVALID_MEMCPY_DIRECTION.into());
        }
        check(to, extent)?;
        check(from, extent)?;
        self.add(runtime, Work::Copy(to, from, extent), stream)
    }

    /// Reads `cudaMemcpy3DParms`: destination, source, extent, kind.
    fn parameters_3d(&self, at: u64) -> Done<(Area, Area, [u64; 3], u64)> {
        let word = |n: u64| self.read(at.wrapping_add(n * 8));
        // Arrays, at 0 and 8, are not served.
        if word(0)? != 0 || word(8)? != 0 {
            return Err(error::NOT_SUPPORTED.into());
        }
        let area = |position: u64, pointer: u64| -> Done<Area> {
            let (addr, pitch, rows) = (word(pointer)?, word(pointer + 1)?, word(pointer + 3)?);
            let slice = pitch.wrapping_mul(rows);
            let (x, y, z) = (word(position)?, word(position + 1)?, word(position + 2)?);
            let offset = x
                .wrapping_add(y.wrapping_mul(pitch))
                .wrapping_add(z.wrapping_mul(slice));
            Ok(Area {
                addr: addr.wrapping_add(offset),
                pitch,
                slice,
            })
        };
        let extent = [word(16)?, word(17)?, word(18)?];
        let kind = word(19)? & u64::from(u32::MAX);
        Ok((area(9, 12)?, area(1, 4)?, extent, kind))
    }

    fn fill(&self, runtime: &dyn Runtime, call: Call) -> Done {
        let (to, value, extent, stream) = match call {
            Call::MemsetAsync => {
                let to = Area {
                    addr: self.arg(0),
                    pitch: 0,
                    slice: 0,
                };
                (to, self.arg(1), [self.arg(2), 1, 1], 3)
            }
            Call::Memset2DAsync => {
                let to = Area {
                    addr: self.arg(0),
                    pitch: self.arg(1),
                    slice: 0,
                };
                (to, self.arg(2), [self.arg(3), self.arg(4), 1], 5)
            }
            _ => {
                let pitch = self.word(0, 1);
                let to = Area {
                    addr: self.word(0, 0),
                    pitch,
                    slice: pitch.wrapping_mul(self.word(0, 3)),
                };
                (to, self.arg(1), [0, 1, 2].map(|n| self.word(2, n)), 3)
            }
        };
        check(to, extent)?;
        self.add(runtime, Work::Fill(to, value as u8, extent), stream)
    }

    fn add(&self, runtime: &dyn Runtime, work: Work, stream: usize) -> Done {
        let order = self.order(stream)?;
        Ok(self.env.nest.add(runtime, work, order)?)
    }
}

/// Checks an area: device memory, and rows that do not overlap.
fn check(area: Area, [width, rows, slices]: [u64; 3]) -> Done {
    if rows.max(slices) > 1 && area.pitch < width {
        return Err(error::INVALID_PITCH_VALUE.into());
    }
    // Shared and local memory of the caller is gone when the work runs.
    if area.addr >= SHARED_WINDOW {
        return Err(error::INVALID_VALUE.into());
    }
    Ok(())
}
