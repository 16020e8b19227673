//! A fake guest, which sends valid and invalid frames.

use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;

use vgpu_proto::call::ops::{Call, ImageHash};
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Func, Module, Stream};
use vgpu_wire::{Link, Reply};

/// A connection to the worker. The methods below end the test where they fail; other methods are
/// those of [`Link`].
pub struct Guest(Link);

impl Guest {
    pub fn new(socket: UnixStream) -> Guest {
        let socket = vgpu_wire::with_timeouts(socket).expect("timeouts");
        Guest(Link::new(socket, None))
    }

    /// A guest whose connection is closed.
    pub fn unconnected() -> Guest {
        Guest::new(UnixStream::pair().expect("a socket pair").0)
    }

    pub fn close(&mut self) {
        self.data = Guest::unconnected().0.data;
    }

    /// Sends raw bytes, valid or not.
    #[track_caller]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend(bytes);
        self.flush();
    }
}

/// Methods that end the test where the method of [`Link`] fails.
macro_rules! expecting {
    ($(fn $name:ident$(<$C:ident>)?($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Guest {
            $(#[track_caller]
            pub fn $name$(<$C: Call>)?(&mut self, $($arg: $type),*) -> $result {
                self.0.$name($($arg),*).expect(stringify!($name))
            })*
        }
    };
}

expecting! {
    fn flush() -> ();
    fn read_frame() -> bool;
    fn wait(id: u64) -> Reply;
    fn call<C>(call: &C) -> Reply;
    fn ask<C>(call: &C) -> C::Reply;
    fn status<C>(call: &C) -> CuResult;
    fn outcome(id: u64) -> CuResult;
    fn sync(ctx: Ctx, stream: Stream) -> CuResult;
    fn primary() -> Ctx;
    fn alloc(ctx: Ctx, size: u64) -> DevPtr;
    fn htod(ctx: Ctx, stream: Stream, dst: DevPtr, bytes: &[u8]) -> ();
    fn dtoh(ctx: Ctx, stream: Stream, src: DevPtr, len: u64) -> Vec<u8>;
    fn push(at: DevPtr, lines: u16, value: u8) -> u64;
    fn send_image(image: &[u8]) -> (ImageHash, u64);
    fn module(ctx: Ctx, image: &[u8]) -> Module;
    fn function(module: Module, name: &str) -> Func;
}

impl Deref for Guest {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.0
    }
}

impl DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut Link {
        &mut self.0
    }
}
