//! The driver's functions with integers for results and enumerations.
//!
//! cudarc declares the functions with the Rust enums of one CUDA version. A newer driver returns,
//! and a guest passes, numbers that these enums lack, and an enum with such a value is undefined
//! behaviour. C enums and integers have the same ABI, so the functions are looked up in the library
//! that `load` has opened, and called with integers.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys;
use vgpu_cuda_abi::structs::{AccessDescriptor, AllocationProperties};
use vgpu_proto::cuda::{ArrayShape, CuResult};

use super::Result;
use super::library::function;

macro_rules! raw {
    (
        required { $($required:tt)* }
        optional { $($optional:tt)* }
    ) => {
        raw! { @functions $($required)* $($optional)* }
        raw! { @names REQUIRED $($required)* }
        #[cfg(test)]
        raw! { @names OPTIONAL $($optional)* }
        #[cfg(test)]
        raw! { @calls $($required)* $($optional)* }
    };
    (@functions $($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Errors
        /// The error of the driver; CUDA_ERROR_NOT_SUPPORTED if it lacks the function.
        ///
        /// # Safety
        /// As the CUDA function: pointers must be writable, handles live, and the context current.
        #[allow(non_snake_case, clippy::too_many_arguments)] // The driver's names and arguments.
        pub(super) unsafe fn $name($($arg: $ty),*) -> Result<()> {
            type F = unsafe extern "C" fn($($ty),*) -> c_uint;
            static F: OnceLock<Option<F>> = OnceLock::new();
            let f = F.get_or_init(|| {
                // SAFETY: the type is the function's with 32-bit enums as integers.
                unsafe { function::<F>(concat!(stringify!($name), "\0")) }
            });
            match f {
                // SAFETY: the caller's promise.
                Some(f) => match unsafe { f($($arg),*) } {
                    0 => Ok(()),
                    code => Err(CuResult(code)),
                },
                None => Err(CuResult::NOT_SUPPORTED),
            }
        }
    )*};
    (@names $table:ident $($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// Names of this part of the table.
        pub(super) const $table: &[&str] = &[$(stringify!($name)),*];
    };
    (@calls $($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// Calls each function with zeros.
        ///
        /// # Safety
        /// Only with a driver that uses none of its arguments.
        #[cfg(test)]
        unsafe fn call_each() -> Vec<(&'static str, Result<()>)> {
            // SAFETY: zero is a valid value of every argument's type, and no function uses the
            // arguments.
            vec![$((stringify!($name), unsafe { $name($(std::mem::zeroed::<$ty>()),*) })),*]
        }
    };
}

raw! {
    required {
        cuInit(flags: c_uint);
        cuDriverGetVersion(version: *mut c_int);
        cuDeviceGet(device: *mut sys::CUdevice, ordinal: c_int);
        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGetName(name: *mut c_char, len: c_int, device: sys::CUdevice);
        cuDeviceGetUuid_v2(uuid: *mut sys::CUuuid, device: sys::CUdevice);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: sys::CUdevice);
        cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: sys::CUdevice);
        cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: sys::CUdevice);
        cuDevicePrimaryCtxRetain(context: *mut sys::CUcontext, device: sys::CUdevice);
        cuDevicePrimaryCtxRelease_v2(device: sys::CUdevice);
        cuDevicePrimaryCtxSetFlags_v2(device: sys::CUdevice, flags: c_uint);
        cuCtxCreate_v2(context: *mut sys::CUcontext, flags: c_uint, device: sys::CUdevice);
        cuCtxDestroy_v2(context: sys::CUcontext);
        cuCtxSetCurrent(context: sys::CUcontext);
        cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
        cuCtxSetLimit(limit: c_uint, value: usize);
        cuCtxGetLimit(value: *mut usize, limit: c_uint);
        cuCtxSetCacheConfig(config: c_uint);
        cuMemAlloc_v2(at: *mut sys::CUdeviceptr, size: usize);
        cuMemAllocAsync(at: *mut sys::CUdeviceptr, size: usize, stream: sys::CUstream);
        cuMemFreeAsync(at: sys::CUdeviceptr, stream: sys::CUstream);
        cuMemFree_v2(at: sys::CUdeviceptr);
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        cuMemHostAlloc(at: *mut *mut c_void, size: usize, flags: c_uint);
        cuMemFreeHost(at: *mut c_void);
        cuMemcpyHtoDAsync_v2(
            dst: sys::CUdeviceptr,
            src: *const c_void,
            size: usize,
            stream: sys::CUstream
        );
        cuMemcpyDtoHAsync_v2(
            dst: *mut c_void,
            src: sys::CUdeviceptr,
            size: usize,
            stream: sys::CUstream
        );
        cuMemcpyDtoDAsync_v2(
            dst: sys::CUdeviceptr,
            src: sys::CUdeviceptr,
            size: usize,
            stream: sys::CUstream
        );
        cuMemcpy2DAsync_v2(copy: *const sys::CUDA_MEMCPY2D, stream: sys::CUstream);
        cuMemsetD8Async(dst: sys::CUdeviceptr, value: u8, count: usize, stream: sys::CUstream);
        cuMemsetD16Async(dst: sys::CUdeviceptr, value: u16, count: usize, stream: sys::CUstream);
        cuMemsetD32Async(dst: sys::CUdeviceptr, value: c_uint, count: usize, stream: sys::CUstream);
        cuMemsetD2D8Async(
            dst: sys::CUdeviceptr,
            pitch: usize,
            value: u8,
            width: usize,
            height: usize,
            stream: sys::CUstream
        );
        cuMemsetD2D16Async(
            dst: sys::CUdeviceptr,
            pitch: usize,
            value: u16,
            width: usize,
            height: usize,
            stream: sys::CUstream
        );
        cuMemsetD2D32Async(
            dst: sys::CUdeviceptr,
            pitch: usize,
            value: c_uint,
            width: usize,
            height: usize,
            stream: sys::CUstream
        );
        cuModuleLoadDataEx(
            module: *mut sys::CUmodule,
            image: *const c_void,
            count: c_uint,
            options: *mut c_uint,
            values: *mut *mut c_void
        );
        cuModuleUnload(module: sys::CUmodule);
        cuModuleGetFunction(
            function: *mut sys::CUfunction,
            module: sys::CUmodule,
            name: *const c_char
        );
        cuModuleGetGlobal_v2(
            at: *mut sys::CUdeviceptr,
            size: *mut usize,
            module: sys::CUmodule,
            name: *const c_char
        );
        cuModuleGetFunctionCount(count: *mut c_uint, module: sys::CUmodule);
        cuModuleEnumerateFunctions(
            functions: *mut sys::CUfunction,
            count: c_uint,
            module: sys::CUmodule
        );
        cuFuncGetName(name: *mut *const c_char, function: sys::CUfunction);
        cuFuncGetParamInfo(
            function: sys::CUfunction,
            index: usize,
            offset: *mut usize,
            size: *mut usize
        );
        cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: sys::CUfunction);
        cuFuncSetAttribute(function: sys::CUfunction, attribute: c_uint, value: c_int);
        cuFuncSetCacheConfig(function: sys::CUfunction, config: c_uint);
        cuLinkComplete(state: sys::CUlinkState, result: *mut *mut c_void, size: *mut usize);
        cuLinkDestroy(state: sys::CUlinkState);
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            blocks: *mut c_int,
            function: sys::CUfunction,
            block_size: c_int,
            dynamic_shared: usize,
            flags: c_uint
        );
        cuOccupancyAvailableDynamicSMemPerBlock(
            bytes: *mut usize,
            function: sys::CUfunction,
            blocks: c_int,
            block_size: c_int
        );
        cuLaunchKernel(
            function: sys::CUfunction,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared: c_uint,
            stream: sys::CUstream,
            params: *mut *mut c_void,
            extra: *mut *mut c_void
        );
        cuLaunchCooperativeKernel(
            function: sys::CUfunction,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared: c_uint,
            stream: sys::CUstream,
            params: *mut *mut c_void
        );
        cuStreamCreateWithPriority(stream: *mut sys::CUstream, flags: c_uint, priority: c_int);
        cuStreamDestroy_v2(stream: sys::CUstream);
        cuStreamSynchronize(stream: sys::CUstream);
        cuStreamQuery(stream: sys::CUstream);
        cuStreamWaitEvent(stream: sys::CUstream, event: sys::CUevent, flags: c_uint);
        cuEventCreate(event: *mut sys::CUevent, flags: c_uint);
        cuEventDestroy_v2(event: sys::CUevent);
        cuEventRecordWithFlags(event: sys::CUevent, stream: sys::CUstream, flags: c_uint);
        cuEventQuery(event: sys::CUevent);
        cuEventSynchronize(event: sys::CUevent);
        cuEventElapsedTime(milliseconds: *mut f32, start: sys::CUevent, end: sys::CUevent);
    }
    optional {
        cuLaunchKernelEx(
            config: *const sys::CUlaunchConfig,
            function: sys::CUfunction,
            params: *mut *mut c_void,
            extra: *mut *mut c_void
        );
        cuOccupancyMaxActiveClusters(
            clusters: *mut c_int,
            function: sys::CUfunction,
            config: *const sys::CUlaunchConfig
        );
        cuOccupancyMaxPotentialClusterSize(
            blocks: *mut c_int,
            function: sys::CUfunction,
            config: *const sys::CUlaunchConfig
        );
        cuTensorMapEncodeTiled(
            map: *mut sys::CUtensorMap,
            data_type: c_uint,
            rank: c_uint,
            address: *mut c_void,
            sizes: *const u64,
            strides: *const u64,
            box_sizes: *const c_uint,
            element_strides: *const c_uint,
            interleave: c_uint,
            swizzle: c_uint,
            l2_promotion: c_uint,
            fill: c_uint
        );
        cuTensorMapEncodeIm2col(
            map: *mut sys::CUtensorMap,
            data_type: c_uint,
            rank: c_uint,
            address: *mut c_void,
            sizes: *const u64,
            strides: *const u64,
            lower: *const c_int,
            upper: *const c_int,
            channels: c_uint,
            pixels: c_uint,
            element_strides: *const c_uint,
            interleave: c_uint,
            swizzle: c_uint,
            l2_promotion: c_uint,
            fill: c_uint
        );
        cuTensorMapReplaceAddress(map: *mut sys::CUtensorMap, address: *mut c_void);
        cuLogsDumpToMemory(
            iterator: *mut c_uint,
            buffer: *mut c_char,
            size: *mut usize,
            flags: c_uint
        );
        cuMemHostRegister_v2(at: *mut c_void, size: usize, flags: c_uint);
        cuMemHostUnregister(at: *mut c_void);
        cuMemHostGetDevicePointer_v2(device: *mut sys::CUdeviceptr, at: *mut c_void, flags: c_uint);
        cuLinkCreate_v2(
            count: c_uint,
            options: *mut c_uint,
            values: *mut *mut c_void,
            state: *mut sys::CUlinkState
        );
        cuLinkAddData_v2(
            state: sys::CUlinkState,
            kind: c_uint,
            data: *mut c_void,
            size: usize,
            name: *const c_char,
            count: c_uint,
            options: *mut c_uint,
            values: *mut *mut c_void
        );
        cuStreamWriteValue32_v2(stream: sys::CUstream, at: sys::CUdeviceptr, value: u32, flags: c_uint);
        cuStreamWriteValue64_v2(stream: sys::CUstream, at: sys::CUdeviceptr, value: u64, flags: c_uint);
        cuStreamWaitValue32_v2(stream: sys::CUstream, at: sys::CUdeviceptr, value: u32, flags: c_uint);
        cuStreamWaitValue64_v2(stream: sys::CUstream, at: sys::CUdeviceptr, value: u64, flags: c_uint);
        cuMemcpy3DAsync_v2(copy: *const sys::CUDA_MEMCPY3D, stream: sys::CUstream);
        cuArray3DCreate_v2(array: *mut sys::CUarray, shape: *const ArrayShape);
        cuArrayDestroy(array: sys::CUarray);
        cuMipmappedArrayCreate(
            array: *mut sys::CUmipmappedArray,
            shape: *const ArrayShape,
            levels: c_uint
        );
        cuMipmappedArrayGetLevel(
            level: *mut sys::CUarray,
            array: sys::CUmipmappedArray,
            number: c_uint
        );
        cuMipmappedArrayDestroy(array: sys::CUmipmappedArray);
        cuMemGetAllocationGranularity(
            bytes: *mut usize,
            properties: *const AllocationProperties,
            option: c_uint
        );
        cuMemAddressReserve(
            at: *mut sys::CUdeviceptr,
            size: usize,
            alignment: usize,
            wanted: sys::CUdeviceptr,
            flags: u64
        );
        cuMemAddressFree(at: sys::CUdeviceptr, size: usize);
        cuMemCreate(handle: *mut u64, size: usize, properties: *const AllocationProperties, flags: u64);
        cuMemRelease(handle: u64);
        cuMemMap(at: sys::CUdeviceptr, size: usize, offset: usize, handle: u64, flags: u64);
        cuMemUnmap(at: sys::CUdeviceptr, size: usize);
        cuMemSetAccess(
            at: sys::CUdeviceptr,
            size: usize,
            access: *const AccessDescriptor,
            count: usize
        );
        cuGraphCreate(graph: *mut sys::CUgraph, flags: c_uint);
        cuGraphDestroy(graph: sys::CUgraph);
        cuGraphGetNodes(graph: sys::CUgraph, nodes: *mut sys::CUgraphNode, count: *mut usize);
        cuGraphDestroyNode(node: sys::CUgraphNode);
        cuGraphConditionalHandleCreate(
            handle: *mut u64,
            graph: sys::CUgraph,
            context: sys::CUcontext,
            default: c_uint,
            flags: c_uint
        );
        cuGraphAddNode(
            node: *mut sys::CUgraphNode,
            graph: sys::CUgraph,
            behind: *const sys::CUgraphNode,
            count: usize,
            params: *mut c_void
        );
        cuGraphInstantiateWithFlags(exec: *mut sys::CUgraphExec, graph: sys::CUgraph, flags: u64);
        cuGraphLaunch(exec: sys::CUgraphExec, stream: sys::CUstream);
        cuGraphExecDestroy(exec: sys::CUgraphExec);
        cuStreamBeginCaptureToGraph(
            stream: sys::CUstream,
            graph: sys::CUgraph,
            behind: *const sys::CUgraphNode,
            data: *const c_void,
            count: usize,
            mode: c_uint
        );
        cuStreamEndCapture(stream: sys::CUstream, graph: *mut sys::CUgraph);
        cuStreamGetCaptureInfo_v2(
            stream: sys::CUstream,
            status: *mut c_uint,
            id: *mut u64,
            graph: *mut sys::CUgraph,
            tips: *mut *const sys::CUgraphNode,
            count: *mut usize
        );
        cuStreamUpdateCaptureDependencies(
            stream: sys::CUstream,
            nodes: *mut sys::CUgraphNode,
            count: usize,
            flags: c_uint
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::driver::load;

    /// Results of CUDA 12 end at 999; a newer driver may return larger ones.
    const LAST_ANSWER: u32 = 1200;

    /// A driver of which every function returns `answer` and uses no argument.
    fn stub(dir: &Path) -> String {
        let mut source = String::from("int answer;\nvoid set_answer(int a) { answer = a; }\n");
        for name in REQUIRED.iter().chain(OPTIONAL) {
            match *name {
                "cuDriverGetVersion" => {
                    let body = "(int *version) { if (version) *version = 13000; return answer; }";
                    writeln!(source, "int {name}{body}")
                }
                _ => writeln!(source, "int {name}(void) {{ return answer; }}"),
            }
            .expect("a string takes it");
        }
        let (text, library) = (dir.join("stub.c"), dir.join("libcuda.so.1"));
        std::fs::write(&text, source).expect("the source is written");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-w", "-o"])
            .args([&library, &text])
            .status();
        assert!(built.expect("a C compiler").success());
        library.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn every_number_that_a_driver_may_answer_is_taken_as_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        load(Some(&stub(dir.path())), false).expect("the stub is a driver");
        // SAFETY: the library is present, and this is the function's type.
        let set = unsafe { function::<unsafe extern "C" fn(c_int)>("set_answer") };
        let set = set.expect("the stub has it");
        for answer in 0..=LAST_ANSWER {
            // SAFETY: stores the number; the stub's functions use no argument, except the
            // version's, which may be null.
            let got = unsafe {
                set(answer as c_int);
                call_each()
            };
            assert_eq!(got.len(), REQUIRED.len() + OPTIONAL.len());
            for (name, result) in got {
                let wanted = if answer == 0 {
                    Ok(())
                } else {
                    Err(CuResult(answer))
                };
                assert_eq!(result, wanted, "{name} answered {answer}");
            }
        }
    }

    #[test]
    fn no_function_of_cudarc_is_called_past_this_table() {
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/driver")).unwrap()
        {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let call = ["sys::", "cu"].concat();
            let past = text.lines().find(|line| line.contains(&call));
            assert_eq!(past, None, "{}: call it through `raw`", path.display());
        }
    }
}
