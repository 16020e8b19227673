//! Module images that guests send: their memory is the VM's, booked before the first byte comes.
//!
//! The worker fills memory that is made here, so that nothing of an image is left behind however its session
//! ends. What it says to be whole goes to the keeper of the caches, which believes the bytes only.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use vgpu_proto::call::ops::ImageHash;
use vgpu_proto::limits::{MAX_IMAGE, MAX_UPLOADS};
use vgpu_proto::worker::ToWorker;
use vgpu_sched::{Event, Memory, MemoryRefusal, SessionId};

use super::VmIdentity;
use super::actor::Actor;
use super::handle::Command;
use super::messages::HOST_FULL;
use super::session::{Phase, Session};
use crate::supervisor::images::{Checked, Image, memory};

/// Images of a session, and of all sessions of a VM, whose memory is booked: those that are loaded or wait for
/// the disk count too. Each is a descriptor of vgpud's.
const IMAGES_MOST: (usize, usize) = (1_024, 2_048);

/// Memory is taken by the page.
const PAGE: u64 = 4_096;

/// The images of one session.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// The number of the last one.
    last: u64,
    booked: BTreeMap<u64, Booked>,
    /// Given back by the worker, and not yet taken from it.
    freeing: usize,
}

/// One whose memory is booked.
#[derive(Debug)]
struct Booked {
    len: u64,
    memory: Arc<File>,
    whole: bool,
    /// The keeper of the caches has not yet looked at it.
    waits: bool,
    /// The worker has let go of it.
    done: bool,
}

impl Images {
    fn count(&self) -> usize {
        self.booked.len() + self.freeing
    }

    fn unfinished(&self) -> usize {
        let unfinished = self.booked.values().filter(|image| !image.whole);
        unfinished.count()
    }
}

/// What an image of `len` bytes takes of memory.
fn cost(len: u64) -> u64 {
    len.next_multiple_of(PAGE)
}

impl Actor {
    /// A guest begins to send an image.
    pub(super) fn image_begin(&mut self, id: u64, image: u64, len: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if image <= session.images.last || !(1..=MAX_IMAGE).contains(&len) {
            return self.breach(id, "the worker begins an image as nobody does");
        }
        session.images.last = image;
        let made = self.image_memory(id, len);
        let (memory, refused) = match made {
            Ok(memory) => (Some(memory), None),
            Err(why) => (None, Some(why)),
        };
        let fds: Vec<_> = memory.iter().map(AsFd::as_fd).collect();
        self.send_with(id, &ToWorker::ImageRoom { image, refused }, &fds);
        if let (Some(session), Some(memory)) = (self.sessions.get_mut(&id), memory) {
            let booked = Booked {
                len,
                memory: memory.into(),
                whole: false,
                waits: false,
                done: false,
            };
            session.images.booked.insert(image, booked);
        }
    }

    /// Memory for an image, booked.
    ///
    /// # Errors
    /// A sentence for the guest.
    fn image_memory(&mut self, id: u64, len: u64) -> Result<File, String> {
        let session = self.sessions.get(&id);
        let too_many = |session: &Session| {
            let of_the_vm = self.sessions.values().filter(|s| s.vm == session.vm);
            session.images.unfinished() >= MAX_UPLOADS
                || session.images.count() >= IMAGES_MOST.0
                || of_the_vm.map(|s| s.images.count()).sum::<usize>() >= IMAGES_MOST.1
        };
        if session.is_none_or(too_many) {
            return Err("the program loads too many modules at once".to_owned());
        }
        self.book_pinned(id, cost(len)).map_err(|why| match why {
            MemoryRefusal::Host => {
                format!("there is no host memory for a module of {len} bytes: {HOST_FULL}")
            }
            _ => format!(
                "a module of {len} bytes does not fit the host memory that the VM's programs may pin: it takes as \
                 much until it is loaded; on the host: vgpu-admin vm set --pinned"
            ),
        })?;
        memory(len).map_err(|e| {
            self.unbook_pinned(id, cost(len));
            tracing::warn!(
                session = id,
                "no memory for a module image of {len} bytes: {e}"
            );
            format!("the host has no memory for a module of {len} bytes: {e}")
        })
    }

    /// The worker has all of an image.
    pub(super) fn image_whole(&mut self, id: u64, image: u64, hash: ImageHash) {
        let bound = self.books.config.worker.image_cache_bytes;
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let begun = session.images.booked.get_mut(&image);
        let Some(begun) = begun.filter(|image| !image.whole) else {
            return self.breach(id, "the worker finishes an image that it did not begin");
        };
        (begun.whole, begun.waits) = (true, true);
        let (len, memory) = (begun.len, begun.memory.clone());
        let (handle, vm) = (self.handle.clone(), session.vm);
        let whole = Image {
            vm: (session.vm.vm_id, session.vm.generation),
            session: id,
            hash,
            len,
            memory,
            bound,
            done: Box::new(move |checked| {
                let _ = handle.tell(match checked {
                    Checked::Honest => Command::ImageKept { session: id, image },
                    Checked::Forged => Command::ImageForged { session: id, vm },
                });
            }),
        };
        if self.images.keep(whole).is_err() {
            self.image_kept(id, image);
        }
    }

    /// The bytes of an image are not those of its hash: a breach, also where the session is over by now.
    pub(super) fn image_forged(&mut self, id: u64, vm: VmIdentity) {
        let what = "the worker gave an image a hash that its bytes do not have";
        match self.sessions.get(&id).is_none_or(Session::is_ending) {
            true => self.strike(vm, what),
            false => self.breach(id, what),
        }
    }

    /// An image is in the cache, or will not be.
    pub(super) fn image_kept(&mut self, id: u64, image: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let live = session.phase == Phase::Live;
        match session.images.booked.get_mut(&image) {
            Some(booked) if booked.done => self.free_image(id, image),
            Some(booked) => {
                booked.waits = false;
                if live {
                    self.send(id, &ToWorker::ImageKept { image });
                }
            }
            None => {}
        }
    }

    /// The worker says that it has let go of an image's memory. It is taken away from it, whatever is true, before
    /// it leaves the books; where the keeper has not yet looked at it, when it has: a worker could otherwise take
    /// back a false hash.
    pub(super) fn image_done(&mut self, id: u64, image: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        match session.images.booked.get_mut(&image) {
            Some(booked) if !booked.done => {
                booked.done = true;
                if !booked.waits {
                    self.free_image(id, image);
                }
            }
            _ => self.breach(id, "the worker gives back an image that it did not begin"),
        }
    }

    fn free_image(&mut self, id: u64, image: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(done) = session.images.booked.remove(&image) else {
            return;
        };
        session.images.freeing += 1;
        let (handle, bytes) = (self.handle.clone(), cost(done.len));
        let vm = session.vm.vm_id;
        self.freeing
            .take(vm, done.memory, move |taken| match taken {
                Ok(()) => {
                    let _ = handle.tell(Command::ImageFreed { session: id, bytes });
                }
                Err(e) => tracing::error!(session = id, "the memory of an image stays booked: {e}"),
            });
    }

    /// The memory of an image is gone.
    pub(super) fn image_freed(&mut self, id: u64, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.images.freeing -= 1;
            self.unbook_pinned(id, bytes);
        }
    }

    /// A session is over. The keeper goes on with images that wait for the disk; the memory of the others is taken
    /// from whoever else has it.
    pub(super) fn free_images(&self, session: &mut Session) {
        let vm = session.vm.vm_id;
        for image in std::mem::take(&mut session.images.booked).into_values() {
            match image.waits {
                true => self.freeing.let_go(vm, image.memory),
                false => self.freeing.take(vm, image.memory, |_| {}),
            }
        }
    }

    fn unbook_pinned(&mut self, id: u64, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.pinned_by_us = session.pinned_by_us.saturating_sub(bytes);
        }
        self.feed(Event::MemoryRelease {
            session: SessionId(id),
            of: Memory::Pinned,
            bytes,
        });
    }
}
