//! The CUDA driver API of a library that is loaded by path: the guest library or soft-gpu.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::path::Path;

use anyhow::{Context, Result, bail};
use libloading::Library;
use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::{attach, stream_flag};

/// Device address.
pub type DevicePtr = u64;
/// Opaque handle.
pub type Handle = *mut c_void;

type Status = c_uint;

macro_rules! api {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// The functions that the benchmarks call.
        #[derive(Debug)]
        #[allow(missing_docs)] // Each is the function of its name.
        pub struct Api {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> Status,)*
            _library: Library,
        }

        impl Api {
            /// Loads `library`.
            ///
            /// # Errors
            /// If the library or one of the functions is missing.
            pub fn load(library: &Path) -> Result<Api> {
                // SAFETY: a CUDA driver library, whose initialisers are trusted like the bench
                // itself.
                let loaded = unsafe { Library::new(library) }
                    .with_context(|| format!("loading {}", library.display()))?;
                Ok(Api {
                    $($field: {
                        // SAFETY: the signature is the documented one of this symbol.
                        let symbol = unsafe {
                            loaded.get::<unsafe extern "C" fn($($arg),*) -> Status>(
                                $symbol.as_bytes(),
                            )
                        };
                        *symbol.with_context(|| format!("{} in {}", $symbol, library.display()))?
                    },)*
                    _library: loaded,
                })
            }
        }
    };
}

api! {
    init = "cuInit" (c_uint);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    primary_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    set_current = "cuCtxSetCurrent" (Handle);
    synchronize = "cuCtxSynchronize" ();
    module_load = "cuModuleLoadData" (*mut Handle, *const c_void);
    get_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    mem_alloc = "cuMemAlloc_v2" (*mut DevicePtr, usize);
    mem_free = "cuMemFree_v2" (DevicePtr);
    mem_managed = "cuMemAllocManaged" (*mut DevicePtr, usize, c_uint);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    free_host = "cuMemFreeHost" (*mut c_void);
    fill = "cuMemsetD8Async" (DevicePtr, c_uchar, usize, Handle);
    mem_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    htod = "cuMemcpyHtoD_v2" (DevicePtr, *const c_void, usize);
    dtoh = "cuMemcpyDtoH_v2" (*mut c_void, DevicePtr, usize);
    stream_create = "cuStreamCreate" (*mut Handle, c_uint);
    stream_query = "cuStreamQuery" (Handle);
    stream_synchronize = "cuStreamSynchronize" (Handle);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void
    );
}

/// Turns a status into an error that names the call.
///
/// # Errors
/// If the status is not CUDA_SUCCESS.
pub fn ok(call: &str, status: Status) -> Result<()> {
    if status != 0 {
        bail!("{call} returned {status}");
    }
    Ok(())
}

/// A kernel of a loaded module.
#[derive(Debug, Clone, Copy)]
pub struct Kernel(Handle);

/// Dimensions of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
}

/// A program that has initialised CUDA and loaded the empty kernel.
#[derive(Debug)]
pub struct Program {
    /// The library.
    pub api: Api,
    /// `null_kernel`.
    pub null_kernel: Handle,
    /// A non-blocking stream.
    pub stream: Handle,
}

impl Program {
    /// Initialises device 0.
    ///
    /// # Errors
    /// If any step fails.
    pub fn start(library: &Path, ptx: &CStr) -> Result<Program> {
        let api = Api::load(library)?;
        let (mut device, mut ctx) = (0, std::ptr::null_mut());
        let (mut module, mut null_kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut stream = std::ptr::null_mut();
        // SAFETY: every out pointer is a live local, every handle comes from the call before it.
        unsafe {
            ok("cuInit", (api.init)(0))?;
            ok("cuDeviceGet", (api.device_get)(&raw mut device, 0))?;
            ok(
                "cuDevicePrimaryCtxRetain",
                (api.primary_retain)(&raw mut ctx, device),
            )?;
            ok("cuCtxSetCurrent", (api.set_current)(ctx))?;
            ok(
                "cuModuleLoadData",
                (api.module_load)(&raw mut module, ptx.as_ptr().cast()),
            )?;
            let name = c"null_kernel".as_ptr();
            ok(
                "cuModuleGetFunction",
                (api.get_function)(&raw mut null_kernel, module, name),
            )?;
            ok(
                "cuStreamCreate",
                (api.stream_create)(&raw mut stream, stream_flag::NON_BLOCKING),
            )?;
        }
        Ok(Program {
            api,
            null_kernel,
            stream,
        })
    }

    /// Loads a module (text that ends with NUL, or a whole fatbin) and finds its kernel `name`.
    ///
    /// # Errors
    /// If the driver refuses the module or the name.
    pub fn kernel(&self, image: &[u8], name: &CStr) -> Result<Kernel> {
        let (mut module, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: every out pointer is a live local, the image is complete, and the module comes
        // from the call before.
        unsafe {
            ok(
                "cuModuleLoadData",
                (self.api.module_load)(&raw mut module, image.as_ptr().cast()),
            )?;
            ok(
                "cuModuleGetFunction",
                (self.api.get_function)(&raw mut kernel, module, name.as_ptr()),
            )?;
        }
        Ok(Kernel(kernel))
    }

    /// Launches `kernel`. Each element of `args` holds one parameter of at most 8 bytes.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn launch_kernel(&self, kernel: Kernel, shape: &Shape, args: &mut [u64]) -> Result<()> {
        let mut pointers: Vec<*mut c_void> =
            args.iter_mut().map(|a| (&raw mut *a).cast()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        // SAFETY: `pointers` has one live parameter for each parameter of the caller's kernel.
        let status = unsafe {
            (self.api.launch)(
                kernel.0,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shape.shared,
                self.stream,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        ok("cuLaunchKernel", status)
    }

    /// Launches the empty kernel.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn launch(&self) -> Result<()> {
        let none = std::ptr::null_mut();
        // SAFETY: a kernel without parameters on a live stream.
        let status = unsafe {
            (self.api.launch)(
                self.null_kernel,
                1,
                1,
                1,
                32,
                1,
                1,
                0,
                self.stream,
                none,
                none,
            )
        };
        ok("cuLaunchKernel", status)
    }

    /// `cuStreamQuery`; both "done" and "not ready" are success.
    ///
    /// # Errors
    /// On any other status.
    pub fn query(&self) -> Result<()> {
        const NOT_READY: Status = CuResult::NOT_READY.0;
        // SAFETY: a live stream.
        match unsafe { (self.api.stream_query)(self.stream) } {
            0 | NOT_READY => Ok(()),
            status => ok("cuStreamQuery", status),
        }
    }

    /// `cuStreamSynchronize`.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: a live stream.
        ok("cuStreamSynchronize", unsafe {
            (self.api.stream_synchronize)(self.stream)
        })
    }

    /// Allocates `bytes` of device memory.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        let mut ptr = 0;
        // SAFETY: a live out pointer.
        ok("cuMemAlloc", unsafe {
            (self.api.mem_alloc)(&raw mut ptr, bytes)
        })?;
        Ok(ptr)
    }

    /// Allocates `bytes` of managed memory, which is freed at the end of the program.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn managed(&self, bytes: usize) -> Result<DevicePtr> {
        let mut ptr = 0;
        // SAFETY: a live out pointer.
        ok("cuMemAllocManaged", unsafe {
            (self.api.mem_managed)(&raw mut ptr, bytes, attach::GLOBAL)
        })?;
        Ok(ptr)
    }

    /// Allocates `bytes` of page-locked memory, which kernels reach by the same address.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn page_locked(&self, bytes: usize) -> Result<DevicePtr> {
        let mut at = std::ptr::null_mut();
        // SAFETY: a live out pointer.
        ok("cuMemHostAlloc", unsafe {
            (self.api.host_alloc)(&raw mut at, bytes, 0)
        })?;
        Ok(at as DevicePtr)
    }

    /// Frees page-locked memory.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn free_page_locked(&self, at: DevicePtr) -> Result<()> {
        // SAFETY: memory of `page_locked`, which is not used any more.
        ok("cuMemFreeHost", unsafe {
            (self.api.free_host)(at as *mut c_void)
        })
    }

    /// Fills memory with a byte, on the device.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn fill(&self, ptr: DevicePtr, value: u8, bytes: usize) -> Result<()> {
        // SAFETY: a live stream; the driver checks the range.
        ok("cuMemsetD8Async", unsafe {
            (self.api.fill)(ptr, value, bytes, self.stream)
        })
    }

    /// Fills managed or page-locked memory with a byte, on the host.
    pub fn write(&self, ptr: DevicePtr, value: u8, bytes: usize) {
        // SAFETY: managed or page-locked memory of this program, which no work uses now.
        unsafe { std::ptr::write_bytes(ptr as *mut u8, value, bytes) };
    }

    /// Reads a byte of managed or page-locked memory, on the host.
    pub fn read(&self, ptr: DevicePtr) -> u8 {
        // SAFETY: as in `write`.
        unsafe { std::ptr::read_volatile(ptr as *const u8) }
    }

    /// Copies to the device and waits until the bytes are there.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn upload(&self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        // SAFETY: `src` is readable for its length; the driver checks `dst`.
        ok("cuMemcpyHtoD", unsafe {
            (self.api.htod)(dst, src.as_ptr().cast(), src.len())
        })?;
        // A copy from pageable memory may return before the bytes have reached the device.
        // SAFETY: no arguments.
        ok("cuCtxSynchronize", unsafe { (self.api.synchronize)() })
    }

    /// Copies from the device.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn download(&self, dst: &mut [u8], src: DevicePtr) -> Result<()> {
        // SAFETY: `dst` is writable for its length; the driver checks `src`.
        ok("cuMemcpyDtoH", unsafe {
            (self.api.dtoh)(dst.as_mut_ptr().cast(), src, dst.len())
        })
    }
}
