//! Arrays: containers, charged to the VM's ledger, and copied to and from by boxes.
//!
//! A plain array is a block with one array, a mipmapped array a block with its levels. A block is
//! created and destroyed as a whole.

use std::sync::{Arc, Weak};

use vgpu_proto::call::ops::BoxSide;
use vgpu_proto::call::{Op, rep, req};
use vgpu_proto::cuda::{Array as ArrayName, ArrayBlock, ArrayShape, CuResult, MAX_LEVELS};
use vgpu_proto::limits::COPY_PIECE;

use super::Objects;
use super::garbage::{Garbage, Release};
use super::memory::charge;
use super::region::{FetchWork, InArray, Region};
use super::staging::Bulk;
use super::table::{Kind, Table};
use super::work::Work;
use crate::driver::{Array, Context, Result, Side};

/// One array.
#[derive(Debug)]
struct ArrayState {
    driver: Arc<Array>,
    shape: ArrayShape,
}

/// Arrays that are created and destroyed together.
#[derive(Debug)]
struct BlockState {
    /// Our handle of the context.
    context: u64,
    /// Bytes that the VM's ledger gets back.
    charge: u64,
    arrays: Vec<u64>,
}

/// All arrays of the session.
#[derive(Debug)]
pub(crate) struct Arrays {
    table: Table<ArrayState>,
    blocks: Table<BlockState>,
}

impl Arrays {
    /// No arrays.
    pub(crate) fn new() -> Arrays {
        Arrays {
            table: Table::new(Kind::Array),
            blocks: Table::new(Kind::ArrayBlock),
        }
    }

    /// Removes a block. Returns its arrays and its record.
    fn take(&mut self, block: u64) -> Option<(Vec<Arc<Array>>, BlockState)> {
        let state = self.blocks.remove(block)?;
        let arrays = state.arrays.iter();
        let drivers = arrays.filter_map(|a| Some(self.table.remove(*a)?.driver));
        Some((drivers.collect(), state))
    }

    /// Removes all arrays of a context. Returns these arrays and their charge in bytes.
    pub(crate) fn remove_context(&mut self, context: u64) -> (Vec<Arc<Array>>, u64) {
        let mut taken = (Vec::new(), 0);
        for block in self.blocks.handles(|b| b.context == context) {
            if let Some((drivers, state)) = self.take(block) {
                taken.0.extend(drivers);
                taken.1 += state.charge;
            }
        }
        taken
    }
}

/// The shapes of the levels of a mipmapped array; for a plain array (`levels` 0) its shape.
fn shapes(shape: &ArrayShape, levels: u32) -> Vec<ArrayShape> {
    let levels = levels.clamp(1, MAX_LEVELS);
    let next = |shape: &ArrayShape| Some(shape.half());
    std::iter::successors(Some(*shape), next)
        .take(levels as usize)
        .collect()
}

/// Cost of a block in the ledger, in bytes.
///
/// # Errors
/// INVALID_VALUE for an invalid shape or too many levels; OUT_OF_MEMORY if the size overflows.
pub(crate) fn cost(shape: &ArrayShape, levels: u32) -> Result<u64> {
    shape.check()?;
    if levels > shape.levels(MAX_LEVELS) {
        return Err(CuResult::INVALID_VALUE);
    }
    let sizes = shapes(shape, levels);
    let sum = sizes
        .iter()
        .try_fold(0_u64, |sum, shape| sum.checked_add(shape.bytes()?));
    sum.and_then(charge).ok_or(CuResult::OUT_OF_MEMORY)
}

impl Objects {
    /// Creates a block whose cost the ledger has paid.
    pub(crate) fn make_arrays(
        &mut self,
        (context, driver): (u64, &Arc<Context>),
        (shape, levels): (&ArrayShape, u32),
        charge: u64,
    ) -> Result<rep::ArrayCreate> {
        let made = match levels {
            0 => vec![Array::create(driver, shape)?],
            levels => Array::create_levels(driver, shape, levels)?,
        };
        let mut arrays = Vec::with_capacity(made.len());
        for (driver, shape) in made.into_iter().zip(shapes(shape, levels)) {
            let driver = Arc::new(driver);
            arrays.extend(self.arrays.table.insert(ArrayState { driver, shape }));
        }
        let names = arrays.iter().map(|a| ArrayName(*a)).collect();
        let wanted = levels.max(1) as usize;
        let block = BlockState {
            context,
            charge,
            arrays: arrays.clone(),
        };
        let block = self.arrays.blocks.insert(block);
        match block {
            Some(block) if arrays.len() == wanted => Ok(rep::ArrayCreate {
                block: ArrayBlock(block),
                arrays: names,
            }),
            block => {
                let _ = block.and_then(|block| self.arrays.blocks.remove(block));
                for array in arrays {
                    self.arrays.table.remove(array);
                }
                Err(CuResult::OUT_OF_MEMORY)
            }
        }
    }

    /// `cuArrayDestroy`: the handles become invalid at once; the memory is released when earlier
    /// work is complete.
    pub(crate) fn array_destroy(&mut self, reply: (Op, u64), block: ArrayBlock) -> Result<Release> {
        let (arrays, state) = self.arrays.take(block.0).ok_or(CuResult::INVALID_HANDLE)?;
        let garbage = Garbage {
            device: self.device_of(state.context),
            arrays,
            ..Garbage::default()
        };
        Ok(self.leaving(garbage, state.charge, Some(reply)))
    }

    /// Checks a box within an array that the guest names. Returns the driver's array.
    fn in_array(&self, array: ArrayName, at: [u64; 3], size: [u64; 3]) -> Result<Weak<Array>> {
        let state = self.arrays.table.get(array.0);
        let state = state.ok_or(CuResult::INVALID_HANDLE)?;
        if size.contains(&0) || !state.shape.contains(at, size) {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(Arc::downgrade(&state.driver))
    }

    /// Checks a copy of consecutive rows from the guest to one slice of an array.
    pub(crate) fn check_htoa(&self, r: &req::MemcpyHtoA, data: Bulk) -> Result<Work> {
        let (len, width) = (data.bytes().len() as u64, u64::from(r.width));
        if width == 0 || len == 0 || len > COPY_PIECE as u64 || !len.is_multiple_of(width) {
            return Err(CuResult::INVALID_VALUE);
        }
        let array = self.in_array(r.dst, r.at, [width, len / width, 1])?;
        Ok(Work::HtoD {
            to: Region::Array(InArray { array, at: r.at }, width),
            data,
        })
    }

    /// Checks a copy of rows of one slice of an array to the guest.
    pub(crate) fn check_atoh(&self, r: &req::MemcpyAtoH) -> Result<Work> {
        let width = u64::from(r.width);
        if width == 0 || width > COPY_PIECE as u64 {
            return Err(CuResult::INVALID_VALUE);
        }
        let array = self.in_array(r.src, r.at, [width, r.rows, 1])?;
        let len = width.checked_mul(r.rows).ok_or(CuResult::INVALID_VALUE)?;
        Ok(Work::DtoH(FetchWork {
            from: Region::Array(InArray { array, at: r.at }, width),
            len,
            done: 0,
        }))
    }

    /// Checks a copy of a box within the device.
    pub(crate) fn check_box(&self, r: &req::MemcpyBox) -> Result<Work> {
        if r.size.contains(&0) {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(Work::Box {
            dst: self.check_side(&r.dst, r.size)?,
            src: self.check_side(&r.src, r.size)?,
            size: r.size,
        })
    }

    fn check_side(&self, side: &BoxSide, size: [u64; 3]) -> Result<Side> {
        match *side {
            BoxSide::Array { array, at } => {
                let array = self.in_array(array, at, size)?;
                Ok(Side::Array { array, at })
            }
            BoxSide::Memory { at, pitch, rows } => {
                let len = box_len(size, pitch, rows).ok_or(CuResult::INVALID_VALUE)?;
                self.check_range(at.0, len)?;
                Ok(Side::Memory {
                    at: at.0,
                    pitch,
                    rows,
                })
            }
        }
    }
}

/// Number of bytes from the first to the last byte of a box whose sides are not 0; `None` if rows
/// or slices overlap, or the size overflows.
fn box_len([width, height, depth]: [u64; 3], pitch: u64, rows: u64) -> Option<u64> {
    if pitch < width || rows < height {
        return None;
    }
    let slices = pitch.checked_mul(rows)?.checked_mul(depth - 1)?;
    let before = pitch.checked_mul(height - 1)?;
    slices.checked_add(before)?.checked_add(width)
}
