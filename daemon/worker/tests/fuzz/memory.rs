//! Requests about memory: allocations, copies and fills, arrays, mappings, memory of the guest
//! program.

use vgpu_proto::call::ops::BoxSide;
use vgpu_proto::call::{Op, req};
use vgpu_proto::cuda::{Array, ArrayBlock, ArrayShape, DevPtr, Physical};
use vgpu_proto::limits::COPY_PIECE;

use super::draw::{Frame, plain, with};
use super::world::{Kind, World};

/// Page size of mapped memory, in bytes.
pub const GRAIN: u64 = 2 << 20;

impl World {
    fn side(&mut self, size: [u64; 3]) -> BoxSide {
        if self.random.percent(50) {
            let (array, at) = (
                Array(self.pick(Kind::Array).name),
                [0; 3].map(|_: u64| self.random.number(3)),
            );
            return BoxSide::Array { array, at };
        }
        let at = self.range(1, 1).0;
        let (pitch, rows) = (
            size[0].wrapping_add(self.random.number(3)),
            size[1].wrapping_add(self.random.number(2)),
        );
        BoxSide::Memory { at, pitch, rows }
    }

    fn data(&mut self) -> Vec<u8> {
        let len = match self.random.below(200) {
            0 => COPY_PIECE as u64 + self.random.below(3) - 1,
            1..=8 => self.random.below(40_000),
            _ => self.random.below(256),
        };
        let len = if self.sent > 8 << 20 {
            len.min(64)
        } else {
            len
        };
        self.random.bytes(len)
    }

    fn collided(&mut self, kind: Kind) -> Option<DevPtr> {
        self.random.percent(4).then(|| {
            let ptr = self.pick(kind).name;
            self.kill(kind, ptr);
            DevPtr(ptr)
        })
    }

    pub fn draw_memory(&mut self, op: Op) -> Frame {
        match op {
            Op::MemAlloc => {
                let (ctx, size) = (self.ctx(), self.random.number(20_000));
                plain(req::MemAlloc {
                    ctx,
                    size,
                    collided: self.collided(Kind::Memory),
                })
            }
            Op::MemAllocAsync => {
                let ((ctx, stream), size) = (self.stream(), self.random.number(20_000));
                plain(req::MemAllocAsync {
                    ctx,
                    stream,
                    size,
                    collided: self.collided(Kind::Memory),
                })
            }
            Op::MemFree => {
                let ptr = DevPtr(self.pick(Kind::Memory).name);
                self.kill(Kind::Memory, ptr.0);
                plain(req::MemFree { ptr })
            }
            Op::MemFreeAsync => {
                let ((ctx, stream), ptr) = (self.stream(), DevPtr(self.pick(Kind::Memory).name));
                self.kill(Kind::Memory, ptr.0);
                plain(req::MemFreeAsync { ctx, stream, ptr })
            }
            Op::MemGetInfo => plain(req::MemGetInfo { ctx: self.ctx() }),
            Op::ArrayCreate => {
                let shape = ArrayShape {
                    width: self.random.number(33),
                    height: self.random.number(33),
                    depth: self.random.of(&[0, 0, 0, 1, 4, u64::MAX]),
                    format: self.random.of(&[1, 2, 3, 0x20, 0x50, 7]),
                    channels: self.random.of(&[1, 1, 2, 4, 3]),
                    flags: self.random.of(&[0, 0, 0, 1, 2, 0x40]),
                };
                let levels = self.random.of(&[0, 0, 0, 1, 2, 3, u32::MAX]);
                plain(req::ArrayCreate {
                    ctx: self.ctx(),
                    shape,
                    levels,
                })
            }
            Op::ArrayDestroy => {
                let block = ArrayBlock(self.pick(Kind::Block).name);
                self.kill(Kind::Block, block.0);
                self.kill_if(Kind::Array, |a| a.size == block.0);
                plain(req::ArrayDestroy { block })
            }
            Op::MemcpyHtoA => {
                let ((ctx, stream), dst) = (self.stream(), Array(self.pick(Kind::Array).name));
                let at = [
                    self.random.number(4),
                    self.random.number(4),
                    self.random.number(2),
                ];
                let width = self.random.count(8) as u32;
                let rows = 1 + self.random.below(3);
                let len = if self.random.percent(95) {
                    u64::from(width).min(99) * rows
                } else {
                    7
                };
                let bulk = self.random.bytes(len);
                with(
                    req::MemcpyHtoA {
                        ctx,
                        stream,
                        dst,
                        at,
                        width,
                    },
                    bulk,
                )
            }
            Op::MemcpyAtoH => {
                let ((ctx, stream), src) = (self.stream(), Array(self.pick(Kind::Array).name));
                let at = [
                    self.random.number(4),
                    self.random.number(4),
                    self.random.number(2),
                ];
                let (width, rows) = (self.random.count(8) as u32, self.random.number(4));
                plain(req::MemcpyAtoH {
                    ctx,
                    stream,
                    src,
                    at,
                    width,
                    rows,
                })
            }
            Op::MemcpyBox => {
                let ((ctx, stream), size) =
                    (self.stream(), [0; 3].map(|_: u64| self.random.count(3)));
                let (dst, src) = (self.side(size), self.side(size));
                plain(req::MemcpyBox {
                    ctx,
                    stream,
                    dst,
                    src,
                    size,
                })
            }
            Op::HostMap => {
                let (ptr, size) = (DevPtr(self.program_page()), self.random.number(9000));
                plain(req::HostMap { ptr, size })
            }
            Op::HostUnmap => {
                let ptr = DevPtr(self.pick(Kind::Shadow).name);
                self.kill(Kind::Shadow, ptr.0);
                plain(req::HostUnmap { ptr })
            }
            Op::HostPush => with(req::HostPush {}, self.changes()),
            Op::HostPull => {
                let from = if self.random.percent(50) {
                    0
                } else {
                    self.pick(Kind::Shadow).name
                };
                plain(req::HostPull {
                    from: DevPtr(from),
                    of: Vec::new(),
                })
            }
            _ => self.draw_mapping(op),
        }
    }

    /// Records of changed memory.
    fn changes(&mut self) -> Vec<u8> {
        let mut bulk = Vec::new();
        for _ in 0..self.random.below(4) {
            let at = self
                .pick(Kind::Shadow)
                .name
                .wrapping_add(self.random.number(3).wrapping_mul(64));
            let mask = self.random.next() & self.random.next();
            bulk.extend(at.to_le_bytes());
            bulk.extend(mask.to_le_bytes());
            bulk.extend(self.random.bytes(mask.count_ones().into()));
        }
        if self.random.percent(5) {
            bulk.truncate(self.random.below(bulk.len() as u64) as usize);
        }
        bulk
    }

    fn draw_mapping(&mut self, op: Op) -> Frame {
        match op {
            Op::AddressReserve => {
                let size = if self.random.percent(95) {
                    GRAIN * (1 + self.random.below(3))
                } else {
                    self.random.extreme()
                };
                let alignment = self.random.of(&[0, 0, 0, GRAIN, 3, 1 << 63]);
                let wanted = self.random.of(&[0, 0, 0, GRAIN, 1, u64::MAX]);
                let collided = self.collided(Kind::Reserved);
                plain(req::AddressReserve {
                    size,
                    alignment,
                    wanted,
                    collided,
                })
            }
            Op::AddressFree => {
                let ptr = DevPtr(self.pick(Kind::Reserved).name);
                if self.live(Kind::Mapped).iter().all(|m| m.of != ptr.0) {
                    self.kill(Kind::Reserved, ptr.0);
                }
                plain(req::AddressFree { ptr })
            }
            Op::PhysicalCreate => {
                let size = if self.random.percent(95) {
                    GRAIN
                } else {
                    self.random.extreme()
                };
                plain(req::PhysicalCreate {
                    device: self.device(),
                    size,
                })
            }
            Op::PhysicalRelease => {
                let memory = Physical(self.pick(Kind::Physical).name);
                self.kill(Kind::Physical, memory.0);
                plain(req::PhysicalRelease { memory })
            }
            Op::MemMap => {
                let (place, memory) = (
                    self.pick(Kind::Reserved),
                    Physical(self.pick(Kind::Physical).name),
                );
                let offset = self.random.below(place.size.min(8 * GRAIN) / GRAIN) * GRAIN;
                let offset = offset
                    + if self.random.percent(3) {
                        self.random.below(9)
                    } else {
                        0
                    };
                plain(req::MemMap {
                    ptr: DevPtr(place.name.wrapping_add(offset)),
                    memory,
                })
            }
            Op::MemUnmap => {
                let mapped = self.pick(Kind::Mapped);
                let size = if self.random.percent(90) {
                    mapped.size
                } else {
                    self.random.of(&[0, 1, 2 * GRAIN])
                };
                if size >= mapped.size {
                    self.kill(Kind::Mapped, mapped.name);
                }
                plain(req::MemUnmap {
                    ptr: DevPtr(mapped.name),
                    size,
                })
            }
            Op::MemSetAccess => {
                let mapped = self.pick(Kind::Mapped);
                let flags = self.random.of(&[3, 3, 3, 1, 0, 2]);
                plain(req::MemSetAccess {
                    ptr: DevPtr(mapped.name),
                    size: mapped.size,
                    flags,
                })
            }
            _ => {
                let (device, option) = (self.device(), self.random.number(2) as u32);
                plain(req::MemGranularity { device, option })
            }
        }
    }

    pub fn draw_copy(&mut self, op: Op) -> Frame {
        let ((ctx, stream), (at, len)) = (self.stream(), self.range(1, 2048));
        let (width, rows) = (self.random.count(16), self.random.number(5));
        let pitch = width.wrapping_add(self.random.number(8));
        match op {
            Op::MemcpyHtoD => {
                let bulk = self.data();
                with(
                    req::MemcpyHtoD {
                        ctx,
                        stream,
                        dst: at,
                    },
                    bulk,
                )
            }
            Op::MemcpyDtoH => plain(req::MemcpyDtoH {
                ctx,
                stream,
                src: at,
                len,
            }),
            Op::MemcpyDtoD => {
                let ((ctx, stream), src) = (self.place(), self.range(1, 64).0);
                plain(req::MemcpyDtoD {
                    ctx,
                    stream,
                    dst: at,
                    src,
                    len,
                })
            }
            Op::Memset => {
                let (width, (ctx, stream)) = (self.random.of(&[1, 1, 2, 4, 3, 0]), self.place());
                let (dst, len) = self.range(4, 4096);
                let count = len / u64::from(width).max(1);
                plain(req::Memset {
                    ctx,
                    stream,
                    dst,
                    value: self.random.below(128) as u32,
                    width,
                    count,
                })
            }
            Op::Memset2D => {
                let (element, (ctx, stream)) = (self.random.of(&[1, 1, 2, 4, 9]), self.place());
                let (dst, pitch) = (
                    self.range(4, 4).0,
                    self.random.of(&[32, 64, 64, 7, u64::MAX]),
                );
                let (columns, value) = (self.random.number(8), self.random.below(128) as u32);
                plain(req::Memset2D {
                    ctx,
                    stream,
                    dst,
                    pitch,
                    value,
                    width: element,
                    columns,
                    rows,
                })
            }
            Op::Memcpy2DHtoD => {
                let bulk = self.random.bytes(width.min(64) * rows.min(9));
                with(
                    req::Memcpy2DHtoD {
                        ctx,
                        stream,
                        dst: at,
                        pitch,
                        width: width as u32,
                    },
                    bulk,
                )
            }
            Op::Memcpy2DDtoH => plain(req::Memcpy2DDtoH {
                ctx,
                stream,
                src: at,
                pitch,
                width: width as u32,
                rows,
            }),
            _ => {
                let ((ctx, stream), src) = (self.place(), self.range(1, 64).0);
                let (dst_pitch, src_pitch) = (pitch, width.wrapping_add(self.random.number(8)));
                plain(req::Memcpy2DDtoD {
                    ctx,
                    stream,
                    dst: at,
                    dst_pitch,
                    src,
                    src_pitch,
                    width,
                    rows,
                })
            }
        }
    }
}
