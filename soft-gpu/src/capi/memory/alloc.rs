//! Allocation, pinned memory, and attributes of pointers.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};

use crate::driver::attributes::PITCH;
use crate::driver::error::Result;
use crate::driver::graph::capture;
use crate::driver::memory::{self, Allocation, Registered, Use};
use crate::driver::{context, driver, healthy};

fn alloc(out: Out<u64>, usage: Use, bytes: usize) -> Result {
    out.check()?;
    out.set(memory::alloc(usage, bytes as u64)?)
}

/// (free, total) bytes of the current device.
fn info() -> Result<(u64, u64)> {
    healthy()?;
    Ok(context::current()?.gpu.shared.memory())
}

/// The value of a pointer attribute, in the size with which the caller receives it.
enum Value {
    Word(u32),
    Long(u64),
}

/// The value of a CUpointer_attribute for an address in an allocation.
fn attribute(attribute: u32, addr: u64, a: &Allocation) -> Result<Value> {
    use Value::{Long, Word};
    let host = a.usage.host();
    Ok(match attribute {
        1 => Long(a.context),
        2 => Word(if host { 1 } else { 2 }),
        3 => Long(addr),
        4 if host || a.usage.managed() => Long(addr),
        4 => return Err(CuResult::INVALID_VALUE),
        6 => Word(u32::from(driver()?.memory.synchronous(a.id))),
        10 => Word(u32::from(a.usage == Use::Device)),
        15 | 21 => Word(0),
        7 | 20 => Long(a.id),
        8 => Word(u32::from(a.usage.managed())),
        9 => Word(a.device as u32),
        11 | 19 => Long(a.addr),
        12 | 18 => Long(a.size),
        13 => Word(1),
        14 => Long(0),
        16 => Word(3),
        17 => Long(a.usage.pool().unwrap_or(0)),
        _ => return Err(CuResult::INVALID_VALUE),
    })
}

fn registered_attribute(attribute: u32, addr: u64, r: &Registered) -> Result<Value> {
    Ok(match attribute {
        1 => Value::Long(r.context),
        2 => Value::Word(1),
        3 => Value::Long(driver()?.memory.map_registered(addr)?),
        4 => Value::Long(addr),
        8 | 13 => Value::Word(0),
        9 => Value::Word(context::find(r.context).map_or(0, |c| c.gpu.ordinal as u32)),
        11 => Value::Long(r.addr),
        12 => Value::Long(r.size),
        _ => return Err(CuResult::INVALID_VALUE),
    })
}

fn pointer_attribute(out: Out<c_void>, wanted: u32, addr: u64) -> Result {
    out.check()?;
    let memory = &driver()?.memory;
    let value = match (memory.find(addr), memory.find_registered(addr)) {
        (Some(a), _) => attribute(wanted, addr, &a)?,
        (_, Some(r)) => registered_attribute(wanted, addr, &r)?,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    match value {
        Value::Word(w) => out.of::<u32>().set(w),
        Value::Long(l) => out.of::<u64>().set(l),
    }
}

fn host_alloc(out: Out<u64>, bytes: usize, flags: u32) -> Result {
    if flags & !7 != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    alloc(out, Use::Host(flags), bytes)
}

fn register(addr: u64, bytes: usize, flags: u32) -> Result {
    if flags & !0xf != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let context = context::current()?.handle;
    let memory = &healthy()?.memory;
    capture::unsafe_call()?;
    if memory.find(addr).is_some() {
        return Err(CuResult::HOST_MEMORY_ALREADY_REGISTERED);
    }
    memory.register(Registered {
        addr,
        size: bytes as u64,
        flags,
        context,
        mapped: false,
    })
}

exports! {
    fn cuMemGetInfo(free: Out<u32>, total: Out<u32>) {
        let (f, t) = info()?;
        free.set_if_wanted(u32::try_from(f).unwrap_or(u32::MAX));
        total.set_if_wanted(u32::try_from(t).unwrap_or(u32::MAX));
        Ok(())
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (f, t) = info()?;
        free.set_if_wanted(f as usize);
        total.set_if_wanted(t as usize);
        Ok(())
    }

    fn cuMemAlloc_v2(out: Out<u64>, bytes: usize) {
        alloc(out, Use::Device, bytes)
    }

    fn cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
            return Err(CuResult::INVALID_VALUE);
        }
        pitch.check()?;
        let row = (width as u64).checked_next_multiple_of(PITCH).ok_or(CuResult::OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height as u64).ok_or(CuResult::OUT_OF_MEMORY)?;
        alloc(out, Use::Device, bytes as usize)?;
        pitch.set(row as usize)
    }

    fn cuMemAllocManaged(out: Out<u64>, bytes: usize, flags: u32) {
        if !matches!(flags, 1 | 2) {
            return Err(CuResult::INVALID_VALUE);
        }
        alloc(out, Use::Managed, bytes)
    }

    fn cuMemFree_v2(addr: u64) {
        memory::free(addr)
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, addr: u64) {
        context::current()?;
        let a = healthy()?.memory.find(addr).ok_or(CuResult::NOT_FOUND)?;
        base.set_if_wanted(a.addr);
        bytes.set_if_wanted(a.size as usize);
        Ok(())
    }

    fn cuMemAllocHost(out: Out<u64>, bytes: u32) {
        host_alloc(out, bytes as usize, 0)
    }

    fn cuMemAllocHost_v2(out: Out<u64>, bytes: usize) {
        host_alloc(out, bytes, 0)
    }

    fn cuMemHostAlloc(out: Out<u64>, bytes: usize, flags: u32) {
        host_alloc(out, bytes, flags)
    }

    fn cuMemFreeHost(addr: u64) {
        memory::free_host(addr)
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, addr: u64, flags: u32) {
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let memory = &healthy()?.memory;
        match memory.find(addr) {
            Some(a) if matches!(a.usage, Use::Host(_)) => out.set(addr),
            None => out.set(memory.map_registered(addr)?),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    fn cuMemHostGetFlags(out: Out<u32>, addr: u64) {
        let memory = &healthy()?.memory;
        match (memory.find(addr), memory.find_registered(addr)) {
            // Flag 2 (mapped) is always set, because addressing is unified.
            (Some(Allocation { usage: Use::Host(flags), .. }), _) => out.set(flags | 2),
            (_, Some(r)) => out.set(r.flags),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    fn cuMemHostRegister(addr: u64, bytes: usize, flags: u32) {
        register(addr, bytes, flags)
    }

    fn cuMemHostRegister_v2(addr: u64, bytes: usize, flags: u32) {
        register(addr, bytes, flags)
    }

    fn cuMemHostUnregister(addr: u64) {
        let context = context::current()?;
        capture::unsafe_call()?;
        context.synchronize()?;
        healthy()?.memory.unregister(addr)
    }

    fn cuPointerGetAttribute(out: Out<c_void>, attribute: u32, addr: u64) {
        pointer_attribute(out, attribute, addr)
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, out: In<Out<c_void>>, addr: u64) {
        for i in 0..count as usize {
            let (wanted, slot) = (attributes.at(i)?, out.at(i)?);
            // This function reports an unknown pointer by zeros (-2 for the device) instead of an
            // error.
            if pointer_attribute(slot, wanted, addr).is_err() {
                match wanted {
                    2 | 6 | 8 | 10 | 13 | 15 | 16 => slot.of::<u32>().set_if_wanted(0),
                    9 => slot.of::<i32>().set_if_wanted(-2),
                    1..=20 => slot.of::<u64>().set_if_wanted(0),
                    _ => return Err(CuResult::INVALID_VALUE),
                }
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: In<u32>, attribute: u32, addr: u64) {
        // 6 is CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, the only attribute that programs can set.
        if attribute != 6 {
            return Err(CuResult::INVALID_VALUE);
        }
        let memory = &healthy()?.memory;
        let a = memory.find(addr).ok_or(CuResult::INVALID_VALUE)?;
        memory.set_synchronous(a.id, value.get()? != 0);
        Ok(())
    }
}
