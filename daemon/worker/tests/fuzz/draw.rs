//! Plausible requests: arguments for each operation of the table, from the objects that the guest
//! knows.

use vgpu_proto::call::ops::{Call, ImageHash};
use vgpu_proto::call::{LinkInput, Op, Tensor, Window, req};
use vgpu_proto::codec::encode;
use vgpu_proto::cuda::{Ctx, Event, Func, Linked, Module, Stream};

use super::world::{Kind, Object, Random, World};

/// `fill(address, value)` writes words, `set(handle, value)` sets a condition; there are also `nop`
/// and a variable.
pub const PTX: &str = r"
.version 7.0
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 h, .param .b32 v);
.visible .global .align 16 .b8 room[4096];
.visible .entry nop() { ret; }
.visible .entry fill(.param .u64 at, .param .u32 value)
{
  .reg .b64 %a; .reg .b32 %v;
  ld.param.u64 %a, [at];
  ld.param.u32 %v, [value];
  st.global.u32 [%a], %v;
  ret;
}
.visible .entry set(.param .u64 handle, .param .u32 value)
{
  .reg .b64 %h; .reg .b32 %v;
  ld.param.u64 %h, [handle];
  ld.param.u32 %v, [value];
  { .param .b64 a; .param .b32 b;
    st.param.b64 [a], %h;
    st.param.b32 [b], %v;
    call cudaGraphSetConditional, (a, b); }
  ret;
}
";

pub const NAMES: [&str; 3] = ["nop", "fill", "set"];
pub struct Frame {
    pub op: Op,
    pub args: Vec<u8>,
    pub bulk: Vec<u8>,
}

#[allow(clippy::needless_pass_by_value)] // Each caller creates its request for this call.
pub fn with<C: Call>(call: C, bulk: Vec<u8>) -> Frame {
    let args = encode(&call).expect("encodes");
    Frame {
        op: C::OP,
        args,
        bulk,
    }
}

pub fn plain<C: Call>(call: C) -> Frame {
    with(call, Vec::new())
}

fn name_of(image: &[u8]) -> (ImageHash, u64) {
    (*blake3::hash(image).as_bytes(), image.len() as u64)
}

impl World {
    fn image(&mut self) -> (ImageHash, u64) {
        let chosen = self.random.below(self.images.len() as u64) as usize;
        let chosen = if self.random.percent(60) { 0 } else { chosen };
        let (mut hash, len) = name_of(&self.images[chosen]);
        if self.random.percent(4) {
            hash[0] ^= 1;
        }
        (
            hash,
            if self.random.percent(2) {
                self.random.extreme()
            } else {
                len
            },
        )
    }

    fn options(&mut self) -> Vec<(u32, u32)> {
        let n = if self.random.percent(98) {
            self.random.below(3)
        } else {
            70
        };
        (0..n)
            .map(|_| {
                (
                    self.random.of(&[0, 7, 7, 7, 12, 3, 99]),
                    self.random.below(5) as u32,
                )
            })
            .collect()
    }

    pub fn device(&mut self) -> u32 {
        if self.random.percent(90) {
            0
        } else {
            self.random.number(3) as u32
        }
    }

    fn func(&mut self) -> Func {
        Func(self.pick(Kind::Func).name)
    }

    /// A tensor whose lists may be too short, too long or empty.
    fn tensor(&mut self) -> Tensor {
        let mut len = || self.random.below(7) as usize;
        let (sizes, strides, elements, box_sizes) = (len(), len(), len(), len());
        let window = match self.random.number(2) {
            0 => Window::Box {
                sizes: vec![4; box_sizes],
            },
            _ => Window::Pixels {
                lower: vec![-1; box_sizes],
                upper: vec![1; strides],
                channels: 8,
                pixels: 8,
            },
        };
        Tensor {
            data_type: self.random.number(20) as u32,
            address: self.random.number(1 << 40),
            sizes: vec![64; sizes],
            strides: vec![128; strides],
            element_strides: vec![1; elements],
            window,
            interleave: self.random.number(4) as u32,
            swizzle: self.random.number(5) as u32,
            l2_promotion: self.random.number(5) as u32,
            fill: self.random.number(3) as u32,
        }
    }

    /// Creates a request of this operation.
    pub fn draw(&mut self, op: Op) -> Frame {
        match op as u16 {
            0x00..=0x0f | 0x41..=0x42 => self.draw_module(op),
            0x10..=0x1f => self.draw_context(op),
            0x20..=0x27 | 0x80..=0x93 => self.draw_memory(op),
            0x28..=0x2f => self.draw_copy(op),
            _ => self.draw_stream(op),
        }
    }

    fn draw_module(&mut self, op: Op) -> Frame {
        match op {
            Op::ImageQuery => {
                let (hash, len) = self.image();
                plain(req::ImageQuery { hash, len })
            }
            Op::ImageData => {
                if self.random.percent(10) && self.images.len() < 8 {
                    let text = format!("{PTX}// {}\n", self.random.next());
                    self.images.push(text.into_bytes());
                }
                let image = self.random.below(self.images.len() as u64) as usize;
                let image = self.images[image].clone();
                let (hash, len) = name_of(&image);
                let offset = if self.random.percent(90) {
                    0
                } else {
                    self.random.number(len)
                };
                with(req::ImageData { hash, len, offset }, image)
            }
            Op::ModuleLoad => {
                let ((hash, len), ctx, options) = (self.image(), self.ctx(), self.options());
                let info_log_len = self.random.number(100) as u32;
                let error_log_len = self.random.number(100) as u32;
                plain(req::ModuleLoad {
                    ctx,
                    hash,
                    len,
                    options,
                    info_log_len,
                    error_log_len,
                })
            }
            Op::ModuleUnload => {
                let module = Module(self.pick(Kind::Module).name);
                self.kill(Kind::Module, module.0);
                self.kill_if(Kind::Func, |f| f.size >> 8 == module.0 & 0xff_ffff);
                plain(req::ModuleUnload { module })
            }
            Op::ModuleGetFunction => {
                let module = Module(self.pick(Kind::Module).name);
                let name = self
                    .random
                    .of(&["nop", "fill", "set", "fill", "room", "", "a\0b"])
                    .to_owned();
                plain(req::ModuleGetFunction { module, name })
            }
            Op::ModuleGetGlobal => {
                let module = Module(self.pick(Kind::Module).name);
                let name = self
                    .random
                    .of(&["room", "room", "room", "nop", ""])
                    .to_owned();
                plain(req::ModuleGetGlobal { module, name })
            }
            Op::FuncSetAttribute => {
                let (func, attribute) =
                    (self.func(), self.random.of(&[8, 8, 9, 0, 15, 16, u32::MAX]));
                let value = self.random.number(4096) as i32;
                plain(req::FuncSetAttribute {
                    func,
                    attribute,
                    value,
                })
            }
            Op::FuncGetAttribute => {
                let (func, attribute) = (self.func(), self.random.number(17) as u32);
                plain(req::FuncGetAttribute { func, attribute })
            }
            Op::FuncSetCacheConfig => {
                let (func, config) = (self.func(), self.random.number(5) as u32);
                plain(req::FuncSetCacheConfig { func, config })
            }
            Op::OccupancyBlocks => {
                let (func, block_size) = (self.func(), self.random.number(1100) as i32);
                let (dynamic_shared, flags) =
                    (self.random.number(100_000), self.random.number(2) as u32);
                plain(req::OccupancyBlocks {
                    func,
                    block_size,
                    dynamic_shared,
                    flags,
                })
            }
            Op::OccupancyClusters => {
                let func = self.func();
                let cluster = self
                    .random
                    .of(&[[0; 3], [1; 3], [2, 1, 1], [0, 1, u32::MAX]]);
                let mut dims = || [1; 3].map(|least: u32| least + self.random.below(8) as u32);
                let (grid, block) = (dims(), dims());
                plain(req::OccupancyClusters {
                    func,
                    grid,
                    block,
                    shared: self.random.number(100_000) as u32,
                    cluster,
                    largest: self.random.number(2) == 0,
                })
            }
            Op::TensorMapEncode => {
                let tensor = self.tensor();
                let ctx = self.ctx();
                plain(req::TensorMapEncode { ctx, tensor })
            }
            Op::TensorMapReplaceAddress => {
                let (map, address) = (
                    [self.random.number(u64::MAX); 16],
                    self.random.number(1 << 40),
                );
                let ctx = self.ctx();
                plain(req::TensorMapReplaceAddress { ctx, map, address })
            }
            Op::ModuleFunctions => {
                let module = Module(self.pick(Kind::Module).name);
                plain(req::ModuleFunctions {
                    module,
                    start: self.random.number(4) as u32,
                })
            }
            Op::OccupancyShared => {
                let func = self.func();
                let (blocks, block_size) = (
                    self.random.number(40) as i32,
                    self.random.number(1100) as i32,
                );
                plain(req::OccupancyShared {
                    func,
                    blocks,
                    block_size,
                })
            }
            Op::Link => {
                let inputs = (0..self.random.below(3)).map(|_| {
                    let (hash, len) = self.image();
                    let kind = self.random.of(&[1, 1, 1, 1, 0, 4, 9]);
                    let name = self.random.of(&["", "a", "b\0"]).to_owned();
                    LinkInput {
                        kind,
                        hash,
                        len,
                        name,
                    }
                });
                let inputs = inputs.collect();
                let (ctx, options) = (self.ctx(), self.options());
                let info_log_len = self.random.number(100) as u32;
                plain(req::Link {
                    ctx,
                    inputs,
                    options,
                    info_log_len,
                    error_log_len: 64,
                })
            }
            _ => {
                let link = Linked(self.pick(Kind::Link).name);
                self.kill(Kind::Link, link.0);
                plain(req::LinkData { link })
            }
        }
    }

    fn draw_context(&mut self, op: Op) -> Frame {
        match op {
            Op::PrimaryCtxRetain => plain(req::PrimaryCtxRetain {
                device: self.device(),
            }),
            Op::PrimaryCtxRelease => plain(req::PrimaryCtxRelease {
                device: self.device(),
            }),
            Op::PrimaryCtxReset => plain(req::PrimaryCtxReset {
                device: self.device(),
            }),
            Op::PrimaryCtxSetFlags => {
                let (device, flags) = (self.device(), self.random.below(9) as u32);
                plain(req::PrimaryCtxSetFlags { device, flags })
            }
            Op::CtxCreate => {
                let (device, flags) = (self.device(), self.random.below(9) as u32);
                plain(req::CtxCreate { device, flags })
            }
            Op::CtxDestroy => {
                let ctx = self.ctx();
                plain(req::CtxDestroy { ctx })
            }
            Op::CtxSynchronize => plain(req::CtxSynchronize { ctx: self.ctx() }),
            Op::CtxSetLimit => {
                let (ctx, limit) = (self.ctx(), self.random.number(8) as u32);
                let value = self.random.of(&[1024, 1024, 4096, 65_536, u64::MAX]);
                plain(req::CtxSetLimit { ctx, limit, value })
            }
            Op::CtxGetLimit => {
                let (ctx, limit) = (self.ctx(), self.random.number(8) as u32);
                plain(req::CtxGetLimit { ctx, limit })
            }
            _ => {
                let (ctx, config) = (self.ctx(), self.random.number(5) as u32);
                plain(req::CtxSetCacheConfig { ctx, config })
            }
        }
    }

    fn draw_stream(&mut self, op: Op) -> Frame {
        let (ctx, stream) = self.stream();
        match op {
            Op::StreamCreate => {
                let (ctx, stream) = (self.ctx(), Stream(self.mint()));
                let (flags, priority) =
                    (self.random.number(2) as u32, self.random.number(3) as i32);
                if flags < 2 {
                    self.add(Kind::Stream, stream.0, ctx.0, 0);
                }
                plain(req::StreamCreate {
                    ctx,
                    stream,
                    flags,
                    priority,
                })
            }
            Op::StreamDestroy => {
                self.kill(Kind::Stream, stream.0);
                plain(req::StreamDestroy { stream })
            }
            Op::StreamSynchronize => plain(req::StreamSynchronize { ctx, stream }),
            Op::StreamQuery => plain(req::StreamQuery { ctx, stream }),
            Op::StreamWaitEvent => {
                let (event, flags) = (
                    Event(self.pick(Kind::Event).name),
                    self.random.number(2) as u32,
                );
                plain(req::StreamWaitEvent {
                    ctx,
                    stream,
                    event,
                    flags,
                })
            }
            Op::StreamWriteValue => {
                let ((ptr, _), wide) = (self.range(8, 8), self.random.percent(50));
                let (value, flags) = (self.random.below(1 << 30), self.random.number(2) as u32);
                plain(req::StreamWriteValue {
                    ctx,
                    stream,
                    ptr,
                    value,
                    wide,
                    flags,
                })
            }
            Op::StreamWaitValue => {
                let ((ptr, _), wide) = (self.range(8, 8), self.random.percent(50));
                // NOR with 0: true for every word that is not all ones.
                let (mut value, mut flags) = (0, 3);
                if self.random.below(2000) == 0 {
                    (value, flags) = (self.random.next(), self.random.below(5) as u32);
                    self.stuck = true;
                }
                plain(req::StreamWaitValue {
                    ctx,
                    stream,
                    ptr,
                    value,
                    wide,
                    flags,
                })
            }
            Op::HostFunc => {
                let number = if self.random.percent(97) {
                    self.mint()
                } else {
                    self.pick(Kind::Called).name
                };
                self.owed.push(number);
                plain(req::HostFunc {
                    ctx,
                    stream,
                    number,
                })
            }
            Op::HostFuncDone => {
                let number = self.pick(Kind::Called).name;
                if self.live(Kind::Called).iter().any(|c| c.name == number) {
                    self.owed.retain(|n| *n != number);
                }
                self.kill(Kind::Called, number);
                plain(req::HostFuncDone { number })
            }
            Op::EventCreate => {
                let (ctx, event) = (self.ctx(), Event(self.mint()));
                let flags = self.random.of(&[0, 0, 0, 1, 2, 3, 4, u32::MAX]);
                if flags < 4 {
                    self.add(Kind::Event, event.0, ctx.0, 0);
                }
                plain(req::EventCreate { ctx, event, flags })
            }
            Op::EventDestroy => {
                let event = Event(self.pick(Kind::Event).name);
                self.kill(Kind::Event, event.0);
                plain(req::EventDestroy { event })
            }
            Op::EventRecord => {
                let event = Event(self.pick_of(Kind::Event, Some(ctx.0)).name);
                let flags = if self.random.percent(97) { 0 } else { 1 };
                plain(req::EventRecord {
                    ctx,
                    event,
                    stream,
                    flags,
                })
            }
            Op::EventQuery => plain(req::EventQuery {
                event: Event(self.pick(Kind::Event).name),
            }),
            Op::EventSynchronize => plain(req::EventSynchronize {
                event: Event(self.pick(Kind::Event).name),
            }),
            Op::EventElapsedTime => {
                let (start, end) = (
                    Event(self.pick(Kind::Event).name),
                    Event(self.pick(Kind::Event).name),
                );
                plain(req::EventElapsedTime { start, end })
            }
            Op::LaunchKernel => self.draw_launch(),
            _ => self.draw_graph(op),
        }
    }

    fn draw_launch(&mut self) -> Frame {
        let (ctx, stream) = self.place();
        let func = self.pick_of(Kind::Func, Some(ctx.0));
        let mut params = Vec::new();
        match NAMES.get((func.size & 0xff) as usize) {
            Some(&"fill") => {
                let at = self.live(Kind::Memory).to_vec();
                let at = at
                    .get(self.random.below(at.len() as u64) as usize)
                    .map_or(0, |m| m.name);
                // A wrong address makes the device unusable for the session.
                let at = if self.random.below(400) == 0 {
                    self.random.extreme()
                } else {
                    at
                };
                params.extend(at.to_le_bytes());
                params.extend(7u32.to_le_bytes());
            }
            Some(&"set") => {
                let condition = self.pick(Kind::Condition);
                params.extend(condition.name.to_le_bytes());
                // The condition of a loop is never set to 1.
                params.extend((condition.size.min(1) as u32).to_le_bytes());
            }
            _ => {}
        }
        if self.random.percent(3) {
            let n = self.random.below(40);
            params = self.random.bytes(n);
        }
        let last = |random: &mut Random| {
            if random.percent(98) {
                1
            } else {
                random.of(&[0, 65_536, u32::MAX])
            }
        };
        let launch = req::LaunchKernel {
            ctx,
            stream,
            func: Func(func.name),
            grid: [
                self.random.of(&[1, 1, 1, 1, 2, 2, 3, 3, 0, 1 << 31]),
                last(&mut self.random),
                last(&mut self.random),
            ],
            block: [
                self.random.of(&[1, 1, 1, 1, 32, 32, 33, 33, 1025, 0]),
                last(&mut self.random),
                last(&mut self.random),
            ],
            shared: self.random.of(&[0, 0, 0, 0, 0, 0, 0, 64, 64, u32::MAX]),
            cooperative: self.random.percent(10),
            cluster: self
                .random
                .of(&[[0; 3], [0; 3], [0; 3], [1; 3], [2, 1, 1], [0, 1, u32::MAX]]),
        };
        with(launch, params)
    }

    fn draw_graph(&mut self, op: Op) -> Frame {
        match op {
            Op::GraphCreate => {
                let (ctx, graph) = (self.ctx(), Stream(self.mint()));
                self.add(Kind::Graph, graph.0, ctx.0, 0);
                plain(req::GraphCreate { ctx, graph })
            }
            Op::GraphLaunch => {
                let (ctx, stream) = self.stream();
                let graph = Stream(self.pick_of(Kind::Graph, Some(ctx.0)).name);
                plain(req::GraphLaunch { ctx, stream, graph })
            }
            Op::GraphDestroy => {
                let kind = if self.random.percent(80) {
                    Kind::Graph
                } else {
                    Kind::Home
                };
                let graph = Stream(self.pick(kind).name);
                self.kill(kind, graph.0);
                plain(req::GraphDestroy { graph })
            }
            Op::GraphCondition => {
                let ctx = self.ctx();
                let old = self.random.percent(60) && !self.live(Kind::Home).is_empty();
                let home = if old {
                    self.pick(Kind::Home)
                } else {
                    Object {
                        name: self.mint(),
                        of: ctx.0,
                        size: 0,
                    }
                };
                let (default, flags) = (
                    self.random.below(2) as u32,
                    self.random.of(&[1, 1, 1, 0, 2]),
                );
                plain(req::GraphCondition {
                    ctx: Ctx(home.of),
                    home: Stream(home.name),
                    default,
                    flags,
                })
            }
            Op::GraphConditional => {
                let condition = self.pick(Kind::Condition);
                let home = condition.of;
                let of = self
                    .live(Kind::Home)
                    .iter()
                    .find(|h| h.name == home)
                    .map(|h| h.of);
                let graph = self.pick_of(Kind::Graph, of);
                // A loop whose condition is 1 at the start does not end.
                let kind = if condition.size == 0 {
                    self.random.of(&[0, 1, 2, 0, 3])
                } else {
                    self.random.of(&[0, 2])
                };
                let mut bodies = Vec::new();
                for _ in 0..self.random.of(&[1, 1, 1, 1, 2, 0]) {
                    let body = (0..4).map(|_| self.pick_of(Kind::Graph, of).name);
                    let body = body.reduce(|a, b| if a == graph.name { b } else { a });
                    bodies.extend(body.map(Stream));
                }
                plain(req::GraphConditional {
                    graph: Stream(graph.name),
                    home: Stream(home),
                    handle: condition.name,
                    kind,
                    bodies,
                })
            }
            _ => {
                let graphs = self.live(Kind::Graph);
                let complete = graphs.iter().rev().find(|g| g.size > 0).copied();
                let any = self.pick(Kind::Graph);
                let graph = complete.filter(|_| self.random.percent(70)).unwrap_or(any);
                plain(req::GraphBuild {
                    graph: Stream(graph.name),
                })
            }
        }
    }
}
