//! Updates the guest's knowledge of objects from replies.

use vgpu_proto::call::{Request, rep};
use vgpu_proto::codec::{Decode, decode};

use super::draw::NAMES;
use super::memory::GRAIN;
use super::world::{Kind, Object, World};

impl World {
    /// Learns from the reply to a request.
    pub fn learn(&mut self, request: &Request, args: &[u8]) {
        fn results<T: Decode<()>>(args: &[u8]) -> T {
            decode(args).expect("results that can be read")
        }
        match request {
            Request::PrimaryCtxRetain(_) => {
                let ctx = results::<rep::PrimaryCtxRetain>(args).ctx.0;
                if self.live(Kind::Ctx).iter().all(|c| c.name != ctx) {
                    self.add(Kind::Ctx, ctx, 0, 1);
                }
            }
            Request::CtxCreate(_) => {
                self.add(Kind::Ctx, results::<rep::CtxCreate>(args).ctx.0, 0, 0);
            }
            Request::CtxDestroy(r) => self.kill(Kind::Ctx, r.ctx.0),
            Request::PrimaryCtxRelease(_) | Request::PrimaryCtxReset(_) => {
                // The handle may stay valid: the context may belong to another device, or the guest
                // may have retained it again. A later reply then adds the handle again.
                for ctx in self.live(Kind::Ctx).to_vec().iter().filter(|c| c.size == 1) {
                    self.kill(Kind::Ctx, ctx.name);
                }
            }
            Request::ModuleLoad(r) => {
                let module = results::<rep::ModuleLoad>(args).module.0;
                self.add(Kind::Module, module, r.ctx.0, 0);
            }
            Request::ModuleGetFunction(r) => {
                let func = results::<rep::ModuleGetFunction>(args).func.0;
                let of = self.context_of(r.module.0);
                let which = NAMES.iter().position(|n| *n == r.name).unwrap_or(0) as u64;
                if self.live(Kind::Func).iter().all(|f| f.name != func) {
                    self.add(Kind::Func, func, of, (r.module.0 & 0xff_ffff) << 8 | which);
                }
            }
            Request::ModuleGetGlobal(r) => {
                let (of, found) = (
                    self.context_of(r.module.0),
                    results::<rep::ModuleGetGlobal>(args),
                );
                if self
                    .live(Kind::Memory)
                    .iter()
                    .all(|m| m.name != found.ptr.0)
                {
                    self.add(Kind::Memory, found.ptr.0, of, found.size);
                }
            }
            Request::Link(_) => self.add(Kind::Link, results::<rep::Link>(args).link.0, 0, 0),
            Request::MemAlloc(r) => self.add(
                Kind::Memory,
                results::<rep::MemAlloc>(args).ptr.0,
                r.ctx.0,
                r.size,
            ),
            Request::MemAllocAsync(r) => {
                self.add(
                    Kind::Memory,
                    results::<rep::MemAllocAsync>(args).ptr.0,
                    r.ctx.0,
                    r.size,
                );
            }
            Request::GraphCondition(r) => {
                let handle = results::<rep::GraphCondition>(args).handle;
                if self.live(Kind::Home).iter().all(|h| h.name != r.home.0) {
                    self.add(Kind::Home, r.home.0, r.ctx.0, 0);
                }
                self.add(Kind::Condition, handle, r.home.0, r.default.into());
            }
            Request::GraphConditional(r) => {
                for body in &r.bodies {
                    self.kill(Kind::Graph, body.0);
                }
                self.mark(Kind::Graph, r.graph.0);
            }
            Request::ArrayCreate(r) => {
                let made = results::<rep::ArrayCreate>(args);
                self.add(Kind::Block, made.block.0, r.ctx.0, 0);
                for array in made.arrays {
                    self.add(Kind::Array, array.0, r.ctx.0, made.block.0);
                }
            }
            Request::AddressReserve(r) => {
                self.add(
                    Kind::Reserved,
                    results::<rep::AddressReserve>(args).ptr.0,
                    0,
                    r.size,
                );
            }
            Request::PhysicalCreate(_) => {
                self.add(
                    Kind::Physical,
                    results::<rep::PhysicalCreate>(args).memory.0,
                    0,
                    0,
                );
            }
            Request::MemMap(r) => {
                let at = r.ptr.0;
                let holds = |o: &&Object| o.name <= at && at - o.name < o.size;
                let of = self
                    .live(Kind::Reserved)
                    .iter()
                    .find(holds)
                    .map_or(0, |o| o.name);
                self.add(Kind::Mapped, at, of, GRAIN);
            }
            Request::HostMap(r) => self.add(Kind::Shadow, r.ptr.0, 0, r.size),
            _ => {}
        }
    }

    fn context_of(&self, module: u64) -> u64 {
        self.live(Kind::Module)
            .iter()
            .find(|m| m.name == module)
            .map_or(0, |m| m.of)
    }
}
