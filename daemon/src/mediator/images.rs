//! Module images that guests send. The memory is charged to the VM and booked before the first byte
//! arrives.
//!
//! The mediator creates the memory and the worker fills it, so that nothing of an image remains,
//! however the session ends. Images that the worker reports complete go to the keeper of the image
//! caches, which trusts the bytes only, never the worker's hash.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use vgpu_proto::call::ops::ImageHash;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::{MAX_IMAGE, MAX_UPLOADS};
use vgpu_proto::worker::ToWorker;
use vgpu_sched::{Event, Memory, MemoryRefusal, SessionId, VmId};

use super::actor::Actor;
use super::freeing::Whose;
use super::handle::Command;
use super::messages::HOST_FULL;
use super::session::{Phase, Session};
use crate::events::EndCause;
use crate::model::VmIdentity;
use crate::worker::image_memory::ImageMemory;
use crate::worker::images::{Checked, Image};

/// Most images of a VM in memory, where vgpud has enough descriptors: each image needs one. Images
/// that are loaded, wait for the disk or are being freed count too.
const IMAGES_MOST: u64 = 1_024;

/// Images that every VM may have in memory, however few descriptors there are: enough for 8
/// programs, each with as many uploads at a time as a session may have.
const IMAGES_LEAST: u64 = 64;

/// Seconds after which vgpud kills a worker from which it cannot unmap an image's memory. The death
/// of the worker ends whatever delays the unmapping.
const STALLED_S: u32 = 30;

/// Granularity of memory in bytes.
const PAGE: u64 = 4_096;

#[derive(Debug, Default)]
pub(super) struct Images {
    /// Number of the last image.
    last: u64,
    booked: BTreeMap<u64, Booked>,
    /// Memory of the images in bytes, including those that are being freed.
    bytes: u64,
}

/// An image whose memory is booked.
#[derive(Debug)]
struct Booked {
    len: u64,
    memory: Arc<ImageMemory>,
    whole: bool,
    /// The keeper of the caches has not yet checked the image.
    waits: bool,
    /// The worker has released the image.
    done: bool,
}

/// Memory of the images of all VMs, from its creation until its descriptor is closed.
#[derive(Debug)]
pub(super) struct ImageAccounts {
    /// Descriptors that vgpud may have open.
    descriptors: u64,
    all: u64,
    /// By number of the VM, for all its registrations.
    vms: BTreeMap<u32, OfVm>,
    /// By session and image: images of ended sessions that the keeper of the caches still has.
    with_keeper: BTreeMap<(u64, u64), Left>,
}

/// An image of a session that is over.
#[derive(Debug)]
struct Left {
    vm: u32,
    bytes: u64,
    memory: Arc<ImageMemory>,
}

#[derive(Debug, Default)]
struct OfVm {
    images: u64,
    /// Bytes of images whose sessions have ended.
    left: u64,
}

impl ImageAccounts {
    pub(super) fn new() -> ImageAccounts {
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(now, _)| now);
        ImageAccounts {
            descriptors,
            all: 0,
            vms: BTreeMap::new(),
            with_keeper: BTreeMap::new(),
        }
    }

    /// Whether a VM, of `registered` VMs, may have another image in memory. All VMs together get
    /// half of vgpud's descriptors, in equal shares.
    fn has_place(&self, vm: u32, registered: usize) -> bool {
        let mine = self.vms.get(&vm).map_or(0, |vm| vm.images);
        mine < IMAGES_LEAST || mine < self.places(registered) && self.all < self.descriptors / 2
    }

    /// Images per VM.
    fn places(&self, registered: usize) -> u64 {
        let registered = u64::try_from(registered).unwrap_or(u64::MAX).max(1);
        (self.descriptors / 2 / registered).clamp(IMAGES_LEAST, IMAGES_MOST)
    }

    /// Number and bytes of the images of ended sessions of a VM that the keeper still has.
    fn waiting(&self, vm: u32) -> (u64, u64) {
        let waiting = self.with_keeper.values().filter(|left| left.vm == vm);
        waiting.fold((0, 0), |(images, bytes), left| {
            (images + 1, bytes + left.bytes)
        })
    }

    fn made(&mut self, vm: u32) {
        self.all += 1;
        self.vms.entry(vm).or_default().images += 1;
    }

    fn gone(&mut self, vm: u32) {
        self.all = self.all.saturating_sub(1);
        if let Some(of_vm) = self.vms.get_mut(&vm) {
            of_vm.images = of_vm.images.saturating_sub(1);
            if of_vm.images == 0 {
                self.vms.remove(&vm);
            }
        }
    }
}

impl Images {
    fn unfinished(&self) -> usize {
        let unfinished = self.booked.values().filter(|image| !image.whole);
        unfinished.count()
    }
}

/// Memory of an image of `len` bytes, in bytes.
fn cost(len: u64) -> u64 {
    len.next_multiple_of(PAGE)
}

impl Actor {
    /// A guest starts to send an image.
    pub(super) fn image_begin(&mut self, id: u64, image: u64, len: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if image <= session.images.last || !(1..=MAX_IMAGE).contains(&len) {
            let why = format!(
                "the worker begins image {image} of {len} bytes: numbers must grow, and lengths be 1 to {MAX_IMAGE}"
            );
            return self.breach(id, &why);
        }
        session.images.last = image;
        let made = self.image_memory(id, len);
        let (memory, refused) = match made {
            Ok(memory) => (Some(memory), None),
            Err(why) => (None, Some(why)),
        };
        let fds: Vec<_> = memory.iter().map(|memory| memory.as_fd()).collect();
        self.send_with(id, &ToWorker::ImageRoom { image, refused }, &fds);
        if let (Some(session), Some(memory)) = (self.sessions.get_mut(&id), memory) {
            let booked = Booked {
                len,
                memory,
                whole: false,
                waits: false,
                done: false,
            };
            session.images.booked.insert(image, booked);
        }
    }

    /// Books and creates the memory of an image.
    ///
    /// # Errors
    /// A sentence for the guest.
    fn image_memory(&mut self, id: u64, len: u64) -> Result<Arc<ImageMemory>, String> {
        let may_begin = |session: &&Session| {
            session.images.unfinished() < MAX_UPLOADS
                && self
                    .image_accounts
                    .has_place(session.vm.vm_id, self.registry.vms.len())
        };
        let Some(session) = self.sessions.get(&id).filter(may_begin) else {
            return Err(
                "the VM has too many module images in memory at once; wait until some are loaded, or run fewer programs"
                    .to_owned(),
            );
        };
        let vm = session.vm.vm_id;
        let bytes = cost(len);
        self.book_pinned(id, bytes).map_err(|why| match why {
            MemoryRefusal::Host => {
                format!(
                    "a module of {len} bytes needs the same amount of pinned host memory, which this VM cannot get now: \
                     {HOST_FULL}"
                )
            }
            _ => format!(
                "a module of {len} bytes does not fit the host memory that the VM's programs may pin, of which the module takes the same \
                 amount until it is loaded; the host's administrator can raise the limit (vgpu-admin vm set --pinned)"
            ),
        })?;
        let handle = self.handle.clone();
        let room = ImageMemory::new(len, move || {
            let session = id;
            let _ = handle.send(Command::ImageGone { vm, session, bytes });
        });
        let room = room.map_err(|e| {
            self.unbook_pinned(id, bytes);
            tracing::warn!(
                session = id,
                "no memory for a module image of {len} bytes: {e}"
            );
            format!("the host has no memory for a module of {len} bytes: {e}")
        })?;
        self.image_accounts.made(vm);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.images.bytes += bytes;
        }
        Ok(room.into())
    }

    /// The worker reports an image complete.
    pub(super) fn image_whole(&mut self, id: u64, image: u64, hash: ImageHash) {
        let bound = self.registry.config.worker.image_cache_bytes;
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
            vm: session.vm,
            session: id,
            hash,
            len,
            memory,
            bound,
            done: Box::new(move |checked| {
                let _ = handle.send(match checked {
                    Checked::Honest => Command::ImageKept { session: id, image },
                    Checked::Forged => Command::ImageForged {
                        session: id,
                        image,
                        vm,
                    },
                });
            }),
        };
        if self.images.keep(whole).is_err() {
            self.image_kept(id, image);
        }
    }

    /// The bytes of an image do not match the hash. This is a breach, even if the session is over
    /// by now.
    pub(super) fn image_forged(&mut self, id: u64, image: u64, vm: VmIdentity) {
        let what = "the worker gave an image a hash that its bytes do not have";
        match self.sessions.get(&id).is_none_or(Session::is_ending) {
            true => self.strike(vm, what),
            false => self.breach(id, what),
        }
        self.image_kept(id, image);
    }

    /// An image is in the cache, or cannot be cached.
    pub(super) fn image_kept(&mut self, id: u64, image: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            if let Some(left) = self.image_accounts.with_keeper.remove(&(id, image)) {
                self.freeing.take(left.vm, Whose::Ended, left.memory);
            }
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

    /// The worker reports that it has released an image's memory. vgpud takes the memory away in
    /// any case, and the memory counts until then. If the keeper has not yet checked the image,
    /// vgpud waits for the check: otherwise a worker could avoid the detection of a false hash.
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
        if let Some(done) = session.images.booked.remove(&image) {
            let vm = session.vm.vm_id;
            self.freeing.take(vm, Whose::Session(id), done.memory);
        }
    }

    /// The memory of an image is freed, and the descriptor is closed.
    pub(super) fn image_gone(&mut self, vm: u32, id: u64, bytes: u64) {
        match self.sessions.get_mut(&id) {
            Some(session) => {
                session.images.bytes = session.images.bytes.saturating_sub(bytes);
                self.unbook_pinned(id, bytes);
            }
            None => self.leave_pinned(vm, |left| left.saturating_sub(bytes)),
        }
        self.image_accounts.gone(vm);
    }

    /// A session is over. The memory of its images stays in the account of the VM until it is
    /// freed: now, or when the keeper is done with the image. If more than half of the memory that
    /// the VM may have waits for a slow disk, the images are not cached, because the next program
    /// of the VM needs room.
    pub(super) fn leave_images(&mut self, session: &mut Session) {
        let Images { booked, bytes, .. } = std::mem::take(&mut session.images);
        let vm = session.vm.vm_id;
        for (image, booked) in booked {
            let Booked {
                len, memory, waits, ..
            } = booked;
            if !waits {
                self.freeing.take(vm, Whose::Ended, memory);
                continue;
            }
            let bytes = cost(len);
            let left = Left { vm, bytes, memory };
            self.image_accounts
                .with_keeper
                .insert((session.id, image), left);
        }
        if bytes > 0 {
            self.leave_pinned(vm, |left| left + bytes);
        }
        let record = self.registry.vm(session.vm);
        let limit = record.and_then(|vm| self.registry.limits(vm).pinned_bytes.value());
        let places = self.image_accounts.places(self.registry.vms.len());
        let (images, bytes) = self.image_accounts.waiting(vm);
        if images > places / 2 || limit.is_some_and(|limit| bytes > limit / 2) {
            self.images.forget(session.vm, session.id);
        }
    }

    fn leave_pinned(&mut self, vm: u32, change: impl FnOnce(u64) -> u64) {
        if let Some(of_vm) = self.image_accounts.vms.get_mut(&vm) {
            of_vm.left = change(of_vm.left);
            let bytes = of_vm.left;
            let vm = VmId(vm);
            self.feed(Event::PinnedLeft { vm, bytes });
        }
    }

    /// Ends the sessions whose workers prevent vgpud from unmapping an image's memory. This is no
    /// breach: an honest worker on a host without free CPU time may look the same. Called once a
    /// second.
    pub(super) fn end_stalled(&mut self) {
        for id in self.freeing.stalled(STALLED_S) {
            let text = format!(
                "the host could not take the memory of a loaded module from the program's worker for {STALLED_S} s"
            );
            self.end(
                id,
                EndCause::WorkerDied,
                CuResult::DEVICE_UNAVAILABLE,
                &text,
            );
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

#[cfg(test)]
mod tests {
    use super::super::reactor::Reactor;
    use super::super::{AdmitRequest, MediatorHandle, MediatorSettings};
    use super::*;
    use crate::config::Config;
    use crate::events::{EventSink, Journal};
    use crate::mediation::Change;
    use crate::model::{PoolRecord, VmRecord};
    use crate::worker::images::ImageKeeper;
    use crate::worker::records::WorkerRecords;
    use std::collections::BTreeSet;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};
    use vgpu_api::{EventKind, PoolSettings, Weights};

    const SOON: Duration = Duration::from_secs(30);
    const VM: VmIdentity = VmIdentity {
        vm_id: 1,
        generation: 7,
    };

    /// A mediator that gets its events from a test.
    struct Rig {
        actor: Actor,
        journal: Arc<Journal>,
        _runtime: tokio::runtime::Runtime,
        _dir: tempfile::TempDir,
    }

    impl Rig {
        /// Creates the mediator with VM 1 in pool A.
        fn new() -> Rig {
            let dir = tempfile::tempdir().unwrap();
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let journal = Arc::new(Journal::new(0, BTreeMap::new()));
            let reactor = Reactor::new().unwrap();
            let (commands, inbox) = crossbeam::channel::unbounded();
            let handle = MediatorHandle::new(commands, reactor.waker());
            let settings = MediatorSettings {
                config: Arc::new(Config::default()),
                events: EventSink::new(journal.clone()),
                records: WorkerRecords::open(dir.path()).unwrap(),
                canary: Arc::new(|_, _| unreachable!("no GPU")),
                runtime: runtime.handle().clone(),
                unverified: BTreeSet::new(),
                orphans: 0,
                images: ImageKeeper::idle(dir.path().join("images")),
                first_session: 1,
                first_epoch: 1,
            };
            let mut actor = Actor::new(settings, reactor, inbox, handle);
            let pool = PoolRecord {
                name: "A".into(),
                settings: PoolSettings::default(),
                created_unix_ms: 0,
            };
            let vm = VmRecord {
                vm_id: VM.vm_id,
                generation: VM.generation,
                pool: "A".into(),
                ..VmRecord::default()
            };
            let weights = Weights::default();
            let changes = vec![
                Change::PoolUpserted { pool, weights },
                Change::VmUpserted { vm, debt_ns: None },
            ];
            let (done, _) = tokio::sync::oneshot::channel();
            actor.handle_command(Command::Apply(changes, done));
            Rig {
                actor,
                journal,
                _runtime: runtime,
                _dir: dir,
            }
        }

        /// Starts a session of the VM.
        fn enter(&mut self, id: u64) {
            let (notes, _notes) = tokio::sync::mpsc::channel(1);
            let request = AdmitRequest {
                identity: VM,
                hello: vgpu_wire::hello(),
                peer: String::new(),
                notes,
            };
            self.actor.enter(id, &[], request);
        }

        fn vms_of(&self, kind: EventKind) -> Vec<Option<u32>> {
            let events = self
                .journal
                .events_after(0, 100, |event| event.kind == kind);
            events.iter().map(|event| event.vm_id).collect()
        }
    }

    #[test]
    fn a_false_hash_is_a_strike_also_when_the_session_is_over() {
        let mut rig = Rig::new();
        let (tell, told) = mpsc::channel();
        let room = ImageMemory::new(4_096, move || _ = tell.send(())).unwrap();
        let left = Left {
            vm: VM.vm_id,
            bytes: 4_096,
            memory: room.into(),
        };
        rig.actor.image_accounts.with_keeper.insert((3, 9), left);
        rig.actor.image_forged(3, 9, VM);
        assert_eq!(rig.vms_of(EventKind::Strike), [Some(VM.vm_id)]);
        assert_eq!(told.recv_timeout(SOON), Ok(()), "its memory is freed");
        let other = VmIdentity {
            generation: 8,
            ..VM
        };
        rig.actor.image_forged(4, 1, other);
        assert_eq!(rig.vms_of(EventKind::Strike).len(), 1, "another's");
    }

    #[test]
    fn a_session_whose_worker_holds_an_images_memory_up_is_ended_without_a_strike() {
        let mut rig = Rig::new();
        rig.enter(3);
        let (go_on, wait) = mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let slow = ImageMemory::new(4_096, move || _ = wait.lock().unwrap().recv());
        let slow = slow.unwrap().into();
        rig.actor.freeing.take(1, Whose::Session(3), slow);
        let deadline = Instant::now() + Duration::from_secs(30);
        while rig.actor.freeing.stalled(0).is_empty() {
            assert!(Instant::now() < deadline, "the session is not reported");
            std::thread::yield_now();
        }
        for _ in 1..STALLED_S {
            rig.actor.end_stalled();
        }
        assert_eq!(rig.actor.sessions.len(), 1, "not yet");
        rig.actor.end_stalled();
        assert!(rig.actor.sessions.is_empty());
        assert_eq!(rig.vms_of(EventKind::Strike), []);
        drop(go_on);
    }

    #[test]
    fn images_that_wait_for_a_slow_disk_leave_half_of_the_vms_room() {
        const LARGE: u64 = 600 << 20;
        let mut rig = Rig::new();
        let (tell, told) = mpsc::channel();
        // Four images of 600 MiB do not fit into half of 4 GiB.
        for id in 3..7 {
            rig.enter(id);
            let room = Arc::new(ImageMemory::new(LARGE, || ()).unwrap());
            let tell = tell.clone();
            let image = Image {
                vm: VM,
                session: id,
                hash: [0; 32],
                len: LARGE,
                memory: room.clone(),
                bound: u64::MAX,
                done: Box::new(move |_| tell.send(id).unwrap()),
            };
            // The limit of waiting images is tested elsewhere.
            let _ = rig.actor.images.keep(Image { len: 1, ..image });
            let booked = Booked {
                len: LARGE,
                memory: room,
                whole: true,
                waits: true,
                done: false,
            };
            let mut session = rig.actor.sessions.remove(&id).unwrap();
            session.images.booked.insert(1, booked);
            rig.actor.leave_images(&mut session);
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [6]);
    }

    #[test]
    fn all_vms_together_have_half_of_the_descriptors_and_each_its_share() {
        const VMS: usize = 100;
        let mut rooms = ImageAccounts {
            descriptors: 65_536,
            ..ImageAccounts::new()
        };
        let most = |rooms: &mut ImageAccounts, vm, registered| {
            std::iter::from_fn(|| rooms.has_place(vm, registered).then(|| rooms.made(vm))).count()
        };
        for vm in 0..100 {
            assert_eq!(most(&mut rooms, vm, VMS), 65_536 / 2 / VMS);
        }
        rooms.gone(5);
        assert_eq!(most(&mut rooms, 5, VMS), 1);
        // A single VM does not get all places, and on a small host only a few.
        assert_eq!(most(&mut rooms, 200, 1), 68, "the rest of the descriptors");
        let few = rooms.descriptors / 2 - rooms.all;
        assert_eq!(few, 0);
        assert_eq!(most(&mut rooms, 201, 1), 64);
        let mut alone = ImageAccounts {
            descriptors: 65_536,
            ..ImageAccounts::new()
        };
        assert_eq!(most(&mut alone, 1, 1), 1_024);
        for _ in 0..1_024 {
            alone.gone(1);
        }
        assert!(alone.vms.is_empty() && alone.all == 0);
    }
}
