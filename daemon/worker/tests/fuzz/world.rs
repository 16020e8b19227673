//! The objects that a session's guest has, had, and invents.

use vgpu_proto::cuda::{Ctx, DevPtr, Stream};
use vgpu_proto::limits::{COPY_PIECE, HOST_SPACE};

/// Pseudo-random numbers that are the same in every release for a seed, because a seed is a test
/// case (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next().checked_rem(n).unwrap_or(0)
    }

    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// A number of `0..n`; rarely a number at the ends of the type's range.
    pub fn number(&mut self, n: u64) -> u64 {
        match self.percent(95) {
            true => self.below(n),
            false => self.extreme(),
        }
    }

    /// Like [`Random::number`], starting at 1.
    pub fn count(&mut self, n: u64) -> u64 {
        self.number(n).saturating_add(1)
    }

    pub fn extreme(&mut self) -> u64 {
        const PIECE: u64 = COPY_PIECE as u64;
        let edge = self.of(&[
            0,
            1 << 16,
            PIECE,
            1 << 31,
            1 << 32,
            1 << 40,
            1 << 62,
            1 << 63,
        ]);
        edge.wrapping_add(self.below(5)).wrapping_sub(2)
    }

    /// Bytes below 0x80, so that no word is all ones.
    pub fn bytes(&mut self, n: u64) -> Vec<u8> {
        (0..n).map(|_| (self.next() & 0x7f) as u8).collect()
    }
}

/// Kinds of objects that a request may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    Ctx,
    Stream,
    Event,
    Module,
    Func,
    Memory,
    Graph,
    Home,
    Condition,
    Array,
    Block,
    Physical,
    Reserved,
    Mapped,
    Shadow,
    Link,
    /// Host functions that streams have reached.
    Called,
}

const KINDS: usize = Kind::Called as usize + 1;
/// Maximum number of destroyed objects of a kind that are remembered.
const MOST_DEAD: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Handle or address.
    pub name: u64,
    /// Handle of the context, or of the object that this object is a part of.
    pub of: u64,
    /// Size in bytes, or another property, depending on the kind.
    pub size: u64,
}

#[derive(Debug)]
pub struct World {
    pub random: Random,
    live: [Vec<Object>; KINDS],
    dead: [Vec<Object>; KINDS],
    minted: u64,
    /// Images that have been or may be sent.
    pub images: Vec<Vec<u8>>,
    /// Numbers of host functions that have not returned.
    pub owed: Vec<u64>,
    /// Whether a stream may wait forever.
    pub stuck: bool,
    pub sent: u64,
}

impl World {
    pub fn new(seed: u64, images: Vec<Vec<u8>>) -> World {
        World {
            random: Random(seed),
            live: Default::default(),
            dead: Default::default(),
            minted: vgpu_proto::cuda::GUEST_HANDLES.start,
            images,
            owed: Vec::new(),
            stuck: false,
            sent: 0,
        }
    }

    /// Whether nothing waits for the guest.
    pub fn is_quiet(&self) -> bool {
        self.owed.is_empty() && !self.stuck
    }

    pub fn live(&self, kind: Kind) -> &[Object] {
        &self.live[kind as usize]
    }

    pub fn add(&mut self, kind: Kind, name: u64, of: u64, size: u64) {
        self.live[kind as usize].push(Object { name, of, size });
    }

    /// Sets the size of an object to 1, which marks a change of its state.
    pub fn mark(&mut self, kind: Kind, name: u64) {
        let found = self.live[kind as usize].iter_mut().find(|o| o.name == name);
        if let Some(object) = found {
            object.size = 1;
        }
    }

    /// Removes an object, if it exists, and its parts.
    pub fn kill(&mut self, kind: Kind, name: u64) {
        self.kill_if(kind, |o| o.name == name);
        match kind {
            Kind::Ctx => {
                for part in [
                    Kind::Stream,
                    Kind::Event,
                    Kind::Module,
                    Kind::Func,
                    Kind::Memory,
                ] {
                    self.kill_if(part, |o| o.of == name);
                }
                for part in [Kind::Graph, Kind::Home, Kind::Array, Kind::Block] {
                    self.kill_if(part, |o| o.of == name);
                }
            }
            Kind::Home => self.kill_if(Kind::Condition, |o| o.of == name),
            _ => {}
        }
    }

    pub fn kill_if(&mut self, kind: Kind, gone: impl Fn(&Object) -> bool) {
        let dead = &mut self.dead[kind as usize];
        self.live[kind as usize].retain(|o| {
            if gone(o) {
                dead.push(*o);
            }
            !gone(o)
        });
        let over = dead.len().saturating_sub(MOST_DEAD);
        dead.drain(..over);
    }

    /// A handle that the guest may use for a new object; rarely one that it may not.
    pub fn mint(&mut self) -> u64 {
        self.minted += 1;
        match self.random.percent(97) {
            true => self.minted,
            false => self.junk(),
        }
    }

    /// A value that names no object, or an object of another kind.
    fn junk(&mut self) -> u64 {
        let kind = self.random.below(KINDS as u64) as usize;
        let any = self.live[kind].get(self.random.below(self.live[kind].len() as u64) as usize);
        match (self.random.below(3), any.copied()) {
            (0, Some(other)) => other.name,
            (1, Some(other)) => other.name ^ 1 << self.random.below(64),
            _ => self.random.extreme(),
        }
    }

    /// An object of a kind: usually a live object, of the context `of` if that has one.
    pub fn pick_of(&mut self, kind: Kind, of: Option<u64>) -> Object {
        let live = &self.live[kind as usize];
        let mine: Vec<Object> = live
            .iter()
            .copied()
            .filter(|o| of.is_none_or(|of| o.of == of))
            .collect();
        let (live, dead) = (
            if mine.is_empty() { live } else { &mine },
            &self.dead[kind as usize],
        );
        match self.random.below(100) {
            0..=91 if !live.is_empty() => self.random.of(live),
            0..=96 if !dead.is_empty() => self.random.of(dead),
            _ => Object {
                name: self.junk(),
                of: self.junk(),
                size: self.random.extreme(),
            },
        }
    }

    pub fn pick(&mut self, kind: Kind) -> Object {
        self.pick_of(kind, None)
    }

    pub fn ctx(&mut self) -> Ctx {
        Ctx(self.pick(Kind::Ctx).name)
    }

    /// A stream with its context, or a NULL stream.
    pub fn stream(&mut self) -> (Ctx, Stream) {
        if self.random.percent(15) {
            return (self.ctx(), Stream::NULL);
        }
        let stream = self.pick(Kind::Stream);
        let ctx = if self.random.percent(95) {
            Ctx(stream.of)
        } else {
            self.ctx()
        };
        (ctx, Stream(stream.name))
    }

    /// A stream, or a graph in recording.
    pub fn place(&mut self) -> (Ctx, Stream) {
        if self.random.percent(20) && !self.live(Kind::Graph).is_empty() {
            let graph = self.pick(Kind::Graph);
            return (Ctx(graph.of), Stream(graph.name));
        }
        self.stream()
    }

    /// A range for a copy: a multiple of `align` bytes, and at most `most` bytes.
    pub fn range(&mut self, align: u64, most: u64) -> (DevPtr, u64) {
        let kind = match self.random.below(10) {
            0 => Kind::Mapped,
            1 => Kind::Shadow,
            _ => Kind::Memory,
        };
        let object = self.pick(kind);
        let offset = self.random.below(object.size.min(1 << 20) / 2) / align * align;
        let room = object.size.saturating_sub(offset).min(most);
        let len = match self.random.percent(97) {
            true => self.random.below(room) / align * align,
            false => self.random.extreme(),
        };
        (DevPtr(object.name.wrapping_add(offset)), len)
    }

    /// A page that may hold memory of the guest program.
    pub fn program_page(&mut self) -> u64 {
        match self.random.percent(97) {
            true => HOST_SPACE.start + self.random.below(512) * 4096,
            false => self.random.extreme(),
        }
    }
}
