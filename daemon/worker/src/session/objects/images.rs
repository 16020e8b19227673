//! Module images. The guest sends an image in pieces, which the worker writes into memory that
//! vgpud has booked. The worker verifies the hash and loads the image from this memory. vgpud
//! copies complete images into the VM's cache, a directory that this process can only read.
//!
//! A cached image is a file whose name is the hash of the image. The worker computes the hash again
//! before use, because a crash of the host may have damaged the file. If an image is neither cached
//! nor in memory any more, the guest sends it again.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vgpu_proto::call::ops::ImageHash;
use vgpu_proto::limits::{MAX_IMAGE, MAX_UPLOADS};
use vgpu_proto::worker::FromWorker;

use crate::control::Vgpud;

/// Maximum number of images that cannot be loaded and whose reasons are stored until the load.
const MAX_REFUSED: usize = 64;

/// An image is dropped if no piece has arrived for this time and the image was not loaded: other
/// images need the memory.
const STALLED: Duration = Duration::from_secs(60);

/// Why an image cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// An image with an invalid length, or too many unfinished images.
    #[error(
        "a module image of no bytes, of more than {MAX_IMAGE}, or begun while {MAX_UPLOADS} others are unfinished"
    )]
    Bounds,
    /// A piece out of order, or beyond the announced length.
    #[error("a piece of a module image out of order, or beyond its announced length")]
    Order,
    /// The image is neither complete in memory nor cached: the guest sends it (again).
    #[error("the module image is not complete")]
    Incomplete,
    /// The bytes do not have the announced hash.
    #[error("the module image does not have the hash that it was sent under")]
    Hash,
    /// vgpud granted no memory for the image; the field is vgpud's sentence.
    #[error("{0}")]
    Refused(String),
    /// An error of the memory file or of the cache's file system.
    #[error("the module image: {0}")]
    Io(#[from] io::Error),
}

/// Memory for one image, booked by vgpud. Dropping this value ends the booking.
#[derive(Debug)]
pub(crate) struct Room {
    image: u64,
    file: File,
    vgpud: Vgpud,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.vgpud.send(FromWorker::ImageDone { image: self.image });
    }
}

/// An image that was received completely and has the announced hash.
#[derive(Debug)]
pub(crate) struct Whole {
    room: Room,
    len: u64,
}

/// The source from which an image is loaded.
#[derive(Debug)]
pub(crate) enum Source {
    /// A file of the VM's cache directory, whose hash is not verified yet.
    Cached(File),
    /// The worker's memory, whose hash is verified.
    Whole(Arc<Whole>),
}

impl Source {
    /// The file that contains the bytes.
    pub(crate) fn file(&self) -> &File {
        match self {
            Source::Cached(file) => file,
            Source::Whole(whole) => &whole.room.file,
        }
    }
}

/// A complete image in the session's memory.
#[derive(Debug)]
struct Held {
    whole: Arc<Whole>,
    /// Whether vgpud no longer needs the memory for its cache.
    kept: bool,
    /// Whether the image was loaded. Before that, the guest expects the image to be available.
    loaded: bool,
    /// Time at which the last piece arrived.
    moved: Instant,
}

#[derive(Debug)]
struct Upload {
    room: Room,
    len: u64,
    received: u64,
    hasher: blake3::Hasher,
    /// Time at which the last piece arrived.
    moved: Instant,
}

/// The images of one session.
#[derive(Debug)]
pub(crate) struct Images {
    dir: PathBuf,
    vgpud: Vgpud,
    /// Number of images begun so far, from which images get their numbers.
    begun: u64,
    uploads: HashMap<ImageHash, Upload>,
    /// Complete images that may be missing in the cache: vgpud has not finished its copy, could not
    /// make the copy, or may have evicted it before the load.
    held: HashMap<ImageHash, Held>,
    /// Images that cannot be loaded, with the reason: no memory, dropped, or another hash. Further
    /// pieces are ignored, and the load reports the reason.
    refused: HashMap<ImageHash, ImageError>,
    /// Images whose cached files do not have the hash in their names.
    damaged: HashSet<ImageHash>,
}

impl Images {
    /// Reads images from the tenant's cache directory `dir`.
    pub(crate) fn new(dir: &Path, vgpud: Vgpud) -> Images {
        Images {
            dir: dir.to_owned(),
            vgpud,
            begun: 0,
            uploads: HashMap::new(),
            held: HashMap::new(),
            refused: HashMap::new(),
            damaged: HashSet::new(),
        }
    }

    fn cached(&self, hash: &ImageHash) -> PathBuf {
        self.dir
            .join(blake3::Hash::from_bytes(*hash).to_hex().as_str())
    }

    /// Whether the worker can load this image, so that the guest need not send the image.
    pub(crate) fn present(&self, hash: &ImageHash, len: u64) -> bool {
        let cached = || {
            !self.damaged.contains(hash)
                && fs::symlink_metadata(self.cached(hash))
                    .is_ok_and(|m| m.is_file() && m.len() == len)
        };
        self.held
            .get(hash)
            .is_some_and(|held| held.whole.len == len)
            || cached()
    }

    /// Begins an image, or begins it again. Returns the number for the request to vgpud for memory.
    ///
    /// # Errors
    /// The length is out of bounds, or too many images are unfinished.
    pub(crate) fn begin(&mut self, hash: &ImageHash, len: u64) -> Result<u64, ImageError> {
        self.uploads.remove(hash);
        self.refused.remove(hash);
        if len == 0 || len > MAX_IMAGE || self.uploads.len() >= MAX_UPLOADS {
            return Err(ImageError::Bounds);
        }
        self.begun += 1;
        Ok(self.begun)
    }

    /// Stores a completely received image, which vgpud may now copy into its cache. For a link, the
    /// guest sends many images before it uses the first.
    fn hold(&mut self, hash: ImageHash, upload: Upload) {
        if *upload.hasher.finalize().as_bytes() != hash {
            return self.refuse(hash, ImageError::Hash);
        }
        let Upload {
            room, len, moved, ..
        } = upload;
        let image = room.image;
        self.vgpud.send(FromWorker::ImageWhole { image, hash });
        let held = Held {
            whole: Arc::new(Whole { room, len }),
            kept: false,
            loaded: false,
            moved,
        };
        self.held.insert(hash, held);
        self.damaged.remove(&hash);
    }

    /// Handles vgpud's answer to the request for memory: the memory, or the reason for a refusal.
    pub(crate) fn begun(
        &mut self,
        (hash, len): (ImageHash, u64),
        image: u64,
        answer: Result<File, String>,
    ) {
        match answer {
            Ok(file) => {
                let room = Room {
                    image,
                    file,
                    vgpud: self.vgpud.clone(),
                };
                let upload = Upload {
                    room,
                    len,
                    received: 0,
                    hasher: blake3::Hasher::new(),
                    moved: Instant::now(),
                };
                self.uploads.insert(hash, upload);
            }
            Err(why) => self.refuse(hash, ImageError::Refused(why)),
        }
    }

    fn refuse(&mut self, hash: ImageHash, why: ImageError) {
        if self.refused.len() >= MAX_REFUSED {
            self.refused.clear();
        }
        self.refused.insert(hash, why);
    }

    /// Drops images for which no piece has arrived for a while and which are not loaded, with their
    /// memory. A later load of such an image reports that the image is incomplete, and the guest
    /// sends it again. Returns the time until the next image may be dropped.
    pub(crate) fn give_up(&mut self, now: Instant) -> Option<Duration> {
        let idle = |upload: &Upload| now.saturating_duration_since(upload.moved);
        let stalled = self.uploads.extract_if(|_, upload| idle(upload) >= STALLED);
        for (hash, upload) in stalled.collect::<Vec<_>>() {
            tracing::info!("{} bytes of a module image are given up", upload.len);
            self.refuse(hash, ImageError::Incomplete);
        }
        let unused = |held: &Held| held.kept && !held.loaded;
        let late = |held: &Held| now.saturating_duration_since(held.moved) >= STALLED;
        self.held.retain(|_, held| !(unused(held) && late(held)));
        let held = self.held.values().filter(|held| unused(held));
        let held = held.map(|held| held.moved);
        let moved = self.uploads.values().map(|upload| upload.moved).chain(held);
        moved
            .map(|moved| STALLED - now.saturating_duration_since(moved))
            .min()
    }

    /// Receives a piece of an image.
    ///
    /// # Errors
    /// A piece out of order, a piece beyond the length, or an error of the system. The earlier
    /// pieces of the image are then dropped.
    pub(crate) fn receive(
        &mut self,
        hash: &ImageHash,
        len: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ImageError> {
        if self.refused.contains_key(hash) {
            return Ok(());
        }
        match self.append(hash, len, offset, bytes) {
            Ok(false) => Ok(()),
            Ok(true) => {
                if let Some(upload) = self.uploads.remove(hash) {
                    self.hold(*hash, upload);
                }
                Ok(())
            }
            Err(e) => {
                self.uploads.remove(hash);
                Err(e)
            }
        }
    }

    /// Appends a piece. Returns whether the image is now complete.
    fn append(
        &mut self,
        hash: &ImageHash,
        len: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool, ImageError> {
        let upload = self.uploads.get_mut(hash).ok_or(ImageError::Order)?;
        let end = offset
            .checked_add(bytes.len() as u64)
            .ok_or(ImageError::Order)?;
        if len != upload.len || offset != upload.received || end > len {
            return Err(ImageError::Order);
        }
        // Written at the piece's offset, because vgpud shares the open file and the file's
        // position.
        upload.room.file.write_all_at(bytes, offset)?;
        upload.hasher.update(bytes);
        upload.received = end;
        upload.moved = Instant::now();
        Ok(end == len)
    }

    /// The source of a complete image for a load: the worker's memory, or else the VM's cache
    /// directory.
    ///
    /// # Errors
    /// The image is incomplete or refused, has another hash, or the file system reports an error.
    pub(crate) fn finish(&mut self, hash: &ImageHash, len: u64) -> Result<Source, ImageError> {
        if let Some(why) = self.refused.remove(hash) {
            return Err(why);
        }
        if let Some(held) = self.held.get_mut(hash).filter(|held| held.whole.len == len) {
            held.loaded = true;
            let whole = Arc::clone(&held.whole);
            if held.kept {
                self.held.remove(hash);
            }
            return Ok(Source::Whole(whole));
        }
        if !self.present(hash, len) {
            return Err(ImageError::Incomplete);
        }
        Ok(Source::Cached(File::open(self.cached(hash))?))
    }

    /// Handles vgpud's message that it has finished with an image for its cache, with or without
    /// success. An image that was not loaded yet stays in memory even if the cache has it: images
    /// that the guest sends before the load may evict it from the cache.
    pub(crate) fn kept(&mut self, image: u64) {
        let is = |(_, held): &(&ImageHash, &mut Held)| held.whole.room.image == image;
        let Some((&hash, held)) = self.held.iter_mut().find(is) else {
            return;
        };
        held.kept = true;
        if held.loaded {
            self.held.remove(&hash);
        }
    }

    /// Records that a cached image is damaged: the guest sends it again, and vgpud replaces the
    /// file.
    pub(crate) fn forget(&mut self, hash: ImageHash) {
        self.damaged.insert(hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use std::os::fd::OwnedFd;

    fn hash(bytes: &[u8]) -> ImageHash {
        *blake3::hash(bytes).as_bytes()
    }

    /// Images with a cache directory, and vgpud's end of the control socket.
    fn images(dir: &Path) -> (Images, OwnedFd) {
        let kind = SockType::SeqPacket;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, kind, None, SockFlag::empty()).expect("sockets");
        (Images::new(dir, Vgpud::new(Arc::new(theirs))), ours)
    }

    fn send(
        images: &mut Images,
        (name, len): (ImageHash, u64),
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ImageError> {
        if offset == 0 {
            let image = images.begin(&name, len)?;
            let file = tempfile::tempfile().expect("a file");
            images.begun((name, len), image, Ok(file));
        }
        images.receive(&name, len, offset, bytes)
    }

    #[test]
    fn an_image_arrives_in_pieces_and_is_held_until_vgpud_has_kept_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let image: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let (name, len) = (hash(&image), image.len() as u64);
        let (mut images, _vgpud) = images(dir.path());
        assert!(!images.present(&name, len));
        assert!(matches!(
            images.finish(&name, len),
            Err(ImageError::Incomplete)
        ));
        for (i, piece) in image.chunks(30_000).enumerate() {
            send(&mut images, (name, len), i as u64 * 30_000, piece).expect("in order");
        }
        assert!(images.present(&name, len), "all of it was sent");
        let source = images.finish(&name, len).expect("complete");
        let mut back = vec![0; image.len()];
        source.file().read_exact_at(&mut back, 0).expect("read");
        assert!(back == image);
        assert!(images.present(&name, len) && !images.present(&name, len + 1));
        assert!(matches!(images.finish(&name, len), Ok(Source::Whole(_))));
        images.kept(1);
        assert!(!images.present(&name, len), "vgpud did not keep it");
        fs::write(images.cached(&name), &image).expect("write");
        assert!(matches!(images.finish(&name, len), Ok(Source::Cached(_))));
        images.forget(name);
        assert!(!images.present(&name, len), "a damaged file is not used");
    }

    #[test]
    fn many_images_may_come_before_the_first_is_loaded() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut images, vgpud) = images(dir.path());
        let all: Vec<_> = (0..3 * MAX_UPLOADS as u32).map(u32::to_le_bytes).collect();
        for image in &all {
            send(&mut images, (hash(image), 4), 0, image).expect("room");
        }
        assert!(images.uploads.is_empty(), "all came whole");
        let mut said = [0; 64];
        let got = nix::unistd::read(&vgpud, &mut said).expect("a message");
        let said: FromWorker = vgpu_proto::codec::decode(&said[..got]).expect("known");
        let first = hash(&all[0]);
        assert_eq!(
            said,
            FromWorker::ImageWhole {
                image: 1,
                hash: first
            }
        );
        // The cache has no room for the first image. The cache takes the second image and evicts it
        // when more images arrive.
        let second = images.cached(&hash(&all[1]));
        fs::write(&second, all[1]).expect("write");
        (1..=2).for_each(|image| images.kept(image));
        fs::remove_file(&second).expect("remove");
        for image in &all {
            assert!(images.present(&hash(image), 4), "it was sent");
            assert!(images.finish(&hash(image), 4).is_ok(), "it was sent");
        }
        assert!(!images.present(&first, 4), "loaded, and not kept");
        // Unfinished images prevent new images.
        for n in 0..MAX_UPLOADS as u8 {
            send(&mut images, ([n; 32], 4), 0, b"ab").expect("room");
        }
        let more = send(&mut images, ([99; 32], 4), 0, b"ab");
        assert!(matches!(more, Err(ImageError::Bounds)), "{more:?}");
        // An image that is never loaded is dropped after a while.
        images.uploads.clear();
        let unused = hash(b"unused");
        send(&mut images, (unused, 6), 0, b"unused").expect("room");
        let image = images.held[&unused].whole.room.image;
        images.kept(image);
        assert!(images.give_up(Instant::now()).is_some() && images.present(&unused, 6));
        images.give_up(Instant::now() + STALLED);
        assert!(!images.present(&unused, 6));
    }

    #[test]
    fn what_is_not_the_image_is_not_loaded() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut images, _vgpud) = images(dir.path());
        let (name, other) = (hash(b"abcd"), hash(b"zzzz"));
        send(&mut images, (other, 4), 0, b"abcd").expect("a piece");
        assert!(matches!(images.finish(&other, 4), Err(ImageError::Hash)));
        send(&mut images, (name, 4), 0, b"ab").expect("a piece");
        assert!(matches!(
            images.finish(&name, 4),
            Err(ImageError::Incomplete)
        ));
        for (offset, bytes, len) in [(1, &b"b"[..], 4), (0, b"abcde", 4)] {
            assert!(matches!(
                send(&mut images, (name, len), offset, bytes),
                Err(ImageError::Order)
            ));
        }
        for (bytes, len) in [(&b""[..], 0), (b"a", MAX_IMAGE + 1)] {
            assert!(matches!(
                send(&mut images, (name, len), 0, bytes),
                Err(ImageError::Bounds)
            ));
        }
        send(&mut images, (name, 4), 0, b"ab").expect("a piece");
        assert!(send(&mut images, (name, 4), 3, b"d").is_err(), "a gap");
        assert!(
            send(&mut images, (name, 4), u64::MAX, b"d").is_err(),
            "wraps"
        );
        assert_eq!(fs::read_dir(dir.path()).expect("dir").count(), 0);
    }

    #[test]
    fn a_refused_image_is_dropped_and_its_load_is_told_why() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut images, _vgpud) = images(dir.path());
        let name = hash(b"abcd");
        let image = images.begin(&name, 4).expect("a number");
        images.begun((name, 4), image, Err("no memory".to_owned()));
        images.receive(&name, 4, 0, b"ab").expect("dropped");
        images.receive(&name, 4, 2, b"cd").expect("dropped");
        match images.finish(&name, 4) {
            Err(ImageError::Refused(why)) => assert_eq!(why, "no memory"),
            other => panic!("{other:?}"),
        }
        // The guest may send the image again.
        send(&mut images, (name, 4), 0, b"abcd").expect("room");
        assert!(images.finish(&name, 4).is_ok());
    }

    #[test]
    fn an_image_of_which_nothing_more_comes_is_given_up_and_may_be_sent_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut images, vgpud) = images(dir.path());
        let (name, slow) = (hash(b"abcd"), hash(b"efgh"));
        send(&mut images, (name, 4), 0, b"ab").expect("a piece");
        send(&mut images, (slow, 4), 0, b"ef").expect("a piece");
        let now = Instant::now();
        let left = images.give_up(now).expect("two wait");
        assert!(left <= STALLED && left > STALLED / 2, "{left:?}");
        let late = now + STALLED;
        images.uploads.get_mut(&slow).expect("begun").moved = late;
        assert_eq!(images.give_up(late), Some(STALLED));
        // vgpud gets the memory back.
        let mut said = [0; 64];
        let got = nix::unistd::read(&vgpud, &mut said).expect("a message");
        let said: FromWorker = vgpu_proto::codec::decode(&said[..got]).expect("known");
        assert_eq!(said, FromWorker::ImageDone { image: 1 });
        // Late pieces are ignored, and the load makes the guest send the image again.
        images.receive(&name, 4, 2, b"cd").expect("dropped");
        let lost = images.finish(&name, 4);
        assert!(matches!(lost, Err(ImageError::Incomplete)), "{lost:?}");
        send(&mut images, (name, 4), 0, b"abcd").expect("room");
        assert!(images.finish(&name, 4).is_ok());
        images.receive(&slow, 4, 2, b"gh").expect("it went on");
        assert!(images.finish(&slow, 4).is_ok());
        assert_eq!(images.give_up(late), None);
    }
}
