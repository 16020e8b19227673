//! Caches of module images on disk, one per VM. Only vgpud writes to these caches.
//!
//! A cache is `<state_dir>/images/vm<n>-<registration>`, readable to the VM's workers. An image is
//! a file named by its hash. One thread copies complete images from the memory that workers filled.
//! If the disk is full, the cache is full or too many images wait, the image is not cached. It is
//! then loaded from memory, and sent again at its next use.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use vgpu_proto::call::ops::ImageHash;
use vgpu_proto::limits::MAX_IMAGE;

use super::image_memory::ImageMemory;
use super::owner::Owner;
use crate::model::VmIdentity;
use crate::system::free_bytes;

/// Bytes that images leave free in the file system, which also holds vgpud's database.
const DISK_RESERVE: u64 = 256 << 20;
/// Most files of one cache: otherwise a guest could use up the inodes of the file system with small
/// images.
const FILES_MOST: usize = 4_096;
/// Most images of one VM that wait for the disk.
const WAITING_OF_VM: usize = 64;
/// Most images of all VMs that wait for the disk.
const WAITING_OF_ALL: usize = 512;
/// Most bytes of all VMs that wait for the disk. A VM gets at most half of the bytes that the other
/// VMs leave, so that a few VMs never fill the queue.
const WAITING_BYTES: u64 = 2 * MAX_IMAGE;
/// Bytes per copy step.
const PIECE: usize = 1 << 20;
/// Block size in bytes by which the disk space of a file is counted.
const BLOCK: u64 = 4_096;

/// A complete image for the cache of its VM.
pub struct Image {
    /// The VM of the image.
    pub vm: VmIdentity,
    /// The session whose worker sent the image.
    pub session: u64,
    /// The hash that the worker claims.
    pub hash: ImageHash,
    /// Length in bytes.
    pub len: u64,
    /// Memory of the image, to which a worker may still write. The caller keeps a reference until
    /// `done` is called, so that the keeper's thread never frees memory.
    pub memory: Arc<ImageMemory>,
    /// Size limit of the cache in bytes.
    pub bound: u64,
    /// Called when the keeper is done with the image, cached or not.
    pub done: Box<dyn FnOnce(Checked) + Send>,
}

/// Result of the hash check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// The hash matches, or was not checked.
    Honest,
    /// The hash does not match. An honest worker checks the hash before it reports the image.
    Forged,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an image of {} bytes of VM {}", self.len, self.vm.vm_id)
    }
}

/// Why an image is not in the cache.
#[derive(Debug, thiserror::Error)]
enum NotKept {
    #[error("it is larger than the cache may be")]
    TooLarge,
    #[error("the disk has too little room")]
    DiskFull,
    #[error("its bytes are not those of its hash")]
    Hash,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The keeper of all caches. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ImageKeeper {
    root: PathBuf,
    queue: Arc<(Mutex<Queue>, Condvar)>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<VmIdentity, VecDeque<Image>>,
    count: usize,
    bytes: u64,
    /// VM of the last image. The next VM in order is next.
    last: VmIdentity,
    /// Ended registrations, whose caches are to be removed.
    over: Vec<VmIdentity>,
}

/// The next job of the thread.
enum Next {
    Keep(Image),
    /// Remove a cache; with the images that waited for it.
    Remove(VmIdentity, Vec<Image>),
}

impl ImageKeeper {
    /// Starts a keeper of the caches in `root`, with a thread of its own.
    ///
    /// # Errors
    /// If the system cannot create the thread.
    pub fn start(root: PathBuf) -> io::Result<ImageKeeper> {
        let keeper = ImageKeeper {
            root,
            queue: Arc::default(),
        };
        let thread = keeper.clone();
        std::thread::Builder::new()
            .name("vgpud-images".into())
            .spawn(move || thread.run())?;
        Ok(keeper)
    }

    /// A keeper whose thread is not started.
    #[cfg(test)]
    pub fn idle(root: PathBuf) -> ImageKeeper {
        ImageKeeper {
            root,
            queue: Arc::default(),
        }
    }

    /// Queues an image for the cache of its VM.
    ///
    /// # Errors
    /// The image, if too many images or bytes wait. It is not cached.
    pub fn keep(&self, image: Image) -> Result<(), Image> {
        let mut queue = self.queue();
        let (mine, my_bytes) = queue.waiting.get(&image.vm).map_or((0, 0), |mine| {
            (mine.len(), mine.iter().map(|image| image.len).sum::<u64>())
        });
        let within = mine < WAITING_OF_VM
            && queue.count < WAITING_OF_ALL
            && image.len.saturating_add(my_bytes)
                <= (WAITING_BYTES + my_bytes).saturating_sub(queue.bytes) / 2;
        if !within {
            return Err(image);
        }
        queue.count += 1;
        queue.bytes += image.len;
        queue.waiting.entry(image.vm).or_default().push_back(image);
        self.queue.1.notify_one();
        Ok(())
    }

    /// Drops the waiting images of a session. An image that the thread handles now is not affected.
    pub fn forget(&self, vm: VmIdentity, session: u64) {
        let forgotten = self.queue().forget(vm, session);
        give_up(forgotten);
    }

    /// Queues the removal of the cache of an ended registration.
    pub fn remove(&self, vm: VmIdentity) {
        self.queue().over.push(vm);
        self.queue.1.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            match self.next() {
                Next::Keep(image) => {
                    let dir = cache_of(&self.root, image.vm);
                    let kept = keep(&dir, &image);
                    if let Err(why) = &kept {
                        tracing::debug!(
                            vm = image.vm.vm_id,
                            bytes = image.len,
                            "not cached: {why}"
                        );
                    }
                    if !matches!(kept, Err(NotKept::Hash)) {
                        (image.done)(Checked::Honest);
                        continue;
                    }
                    // In a statement of its own, so that the lock of the queue is released before a
                    // callback runs.
                    let forgotten = self.queue().forget(image.vm, image.session);
                    (image.done)(Checked::Forged);
                    give_up(forgotten);
                }
                Next::Remove(vm, waited) => {
                    give_up(waited);
                    remove_cache(&cache_of(&self.root, vm));
                }
            }
        }
    }

    fn next(&self) -> Next {
        let mut queue = self.queue();
        loop {
            if let Some(vm) = queue.over.pop() {
                let waited = Vec::from(queue.waiting.remove(&vm).unwrap_or_default());
                queue.count -= waited.len();
                queue.bytes -= waited.iter().map(|image| image.len).sum::<u64>();
                return Next::Remove(vm, waited);
            }
            if let Some(image) = queue.take() {
                return Next::Keep(image);
            }
            let waited = self.queue.1.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Queue {
    /// Removes the waiting images of a session from the queue.
    fn forget(&mut self, vm: VmIdentity, session: u64) -> Vec<Image> {
        let mine = self.waiting.remove(&vm).unwrap_or_default();
        let (gone, stay): (Vec<_>, Vec<_>) =
            mine.into_iter().partition(|image| image.session == session);
        self.count -= gone.len();
        self.bytes -= gone.iter().map(|image| image.len).sum::<u64>();
        if !stay.is_empty() {
            self.waiting.insert(vm, stay.into());
        }
        gone
    }

    /// Removes the oldest image of the next VM in order.
    fn take(&mut self) -> Option<Image> {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = self.waiting.range((Excluded(self.last), Unbounded)).next();
        let vm = *after.or_else(|| self.waiting.iter().next())?.0;
        let mine = self.waiting.get_mut(&vm)?;
        let image = mine.pop_front()?;
        if mine.is_empty() {
            self.waiting.remove(&vm);
        }
        self.last = vm;
        self.count -= 1;
        self.bytes -= image.len;
        Some(image)
    }
}

/// Reports that these images are not cached and were not checked.
fn give_up(images: Vec<Image>) {
    for image in images {
        (image.done)(Checked::Honest);
    }
}

/// The directory of a registration's cache.
#[must_use]
pub fn cache_of(root: &Path, vm: VmIdentity) -> PathBuf {
    root.join(format!("vm{}-{}", vm.vm_id, vm.generation))
}

/// Creates the cache of a VM, which only vgpud may write and the VM's workers may read.
///
/// A cache of another owner (the users of workers were changed) is emptied, which costs only time.
///
/// # Errors
/// If the directory cannot be created or given the owner.
pub fn make_cache(dir: &Path, owner: Option<&Owner>) -> io::Result<()> {
    use std::os::unix::fs::chown;
    let uid = nix::unistd::geteuid().as_raw();
    let gid = owner.map(|owner| owner.gid);
    let is_ours = |found: &fs::Metadata| {
        found.is_dir() && found.uid() == uid && gid.is_none_or(|gid| found.gid() == gid)
    };
    match fs::symlink_metadata(dir) {
        Ok(found) if is_ours(&found) => return Ok(()),
        Ok(found) if found.is_dir() => remove_cache(dir),
        Ok(_) => {}
        Err(_) => dir.parent().map_or(Ok(()), make_root)?,
    }
    fs::DirBuilder::new().mode(0o700).create(dir)?;
    chown(dir, None, gid)?;
    // Independent of the umask.
    let mode = if owner.is_some() { 0o750 } else { 0o700 };
    fs::set_permissions(dir, fs::Permissions::from_mode(mode))
}

/// Creates the directory of all caches. Workers may pass through it and cannot list it.
fn make_root(root: &Path) -> io::Result<()> {
    if fs::symlink_metadata(root).is_ok_and(|found| found.is_symlink()) {
        return Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            "it is a link, and vgpud removes nothing behind a link. Remove the link, make a directory in its \
             place, and mount the other place there (`mount --bind`)",
        ));
    }
    fs::create_dir_all(root)?;
    let mut options = OpenOptions::new();
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let dir = options.read(true).custom_flags(flags.bits()).open(root)?;
    dir.set_permissions(fs::Permissions::from_mode(0o711))
}

/// Cleans the caches at start, before there are workers. Removes the caches of VMs that are not
/// registered. From the caches of registered VMs, removes unfinished images, and the oldest images
/// beyond `bound` bytes. Files that are no images stay, and the log has their names.
///
/// # Errors
/// If the directory of all caches is a link, or cannot be read or created.
pub fn sweep(root: &Path, registered: &BTreeSet<VmIdentity>, bound: u64) -> io::Result<()> {
    make_root(root)?;
    let known: BTreeSet<PathBuf> = registered.iter().map(|vm| cache_of(root, *vm)).collect();
    let uid = nix::unistd::geteuid().as_raw();
    let mut strange = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let (path, meta) = (entry.path(), entry.metadata()?);
        if !meta.is_dir() || !names_a_cache(&entry) {
            strange.push(path);
        } else if meta.uid() == uid && known.contains(&path) {
            clear(&path, is_unfinished)?;
            let _ = make_room(&path, 0, bound);
        } else {
            remove_cache(&path);
        }
    }
    warn_of(root, &strange);
    Ok(())
}

/// Whether the name is `vm<n>-<registration>`, or `vm<n>` of earlier versions.
fn names_a_cache(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let numbers = name.to_str().and_then(|name| name.strip_prefix("vm"));
    numbers.is_some_and(|numbers| {
        numbers.split('-').count() <= 2
            && numbers
                .split('-')
                .all(|n| !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit()))
    })
}

/// Whether the file is named by a hash.
fn is_image(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let is_hash = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    entry.file_type().is_ok_and(|kind| kind.is_file())
        && name.len() == 64
        && name.as_encoded_bytes().iter().all(is_hash)
}

/// Whether the file is an unfinished image with a name. Earlier versions used the second kind of
/// name.
fn is_unfinished(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    entry.file_type().is_ok_and(|kind| kind.is_file())
        && (name == ".new" || name.as_encoded_bytes().starts_with(b".part-"))
}

/// Removes a cache, unless it contains files that vgpud did not create.
fn remove_cache(dir: &Path) {
    let removed = clear(dir, |entry| is_image(entry) || is_unfinished(entry))
        .and_then(|strange| if strange { Ok(()) } else { fs::remove_dir(dir) });
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove {}: {e}", dir.display());
        }
        _ => {}
    }
}

/// Removes the entries that `these` selects. Returns whether the directory contains files that
/// vgpud did not create.
fn clear(dir: &Path, these: fn(&fs::DirEntry) -> bool) -> io::Result<bool> {
    let mut strange = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if these(&entry) {
            remove(&entry.path());
        } else if !is_image(&entry) {
            strange.push(entry.path());
        }
    }
    warn_of(dir, &strange);
    Ok(!strange.is_empty())
}

fn warn_of(dir: &Path, strange: &[PathBuf]) {
    if let Some(first) = strange.first() {
        tracing::warn!(
            count = strange.len(),
            "{} has things that vgpud did not make, {} for instance. They are left alone: move them away",
            dir.display(),
            first.display()
        );
    }
}

fn remove(path: &Path) {
    if let Err(e) = fs::remove_file(path) {
        tracing::warn!("cannot remove {}: {e}", path.display());
    }
}

/// Puts an image into a cache, unless the cache already has it.
fn keep(dir: &Path, image: &Image) -> Result<(), NotKept> {
    let name = blake3::Hash::from_bytes(image.hash).to_hex();
    let path = dir.join(name.as_str());
    if let Ok(kept) = File::open(&path)
        && kept.metadata()?.len() == image.len
        && hash_of(&kept, image.len, &mut io::sink())? == image.hash
    {
        // Marks the image as new, so that it is removed last.
        return Ok(kept.set_modified(SystemTime::now())?);
    }
    let owner = fs::symlink_metadata(dir)?;
    make_room(dir, image.len, image.bound)?;
    let mut new = NewFile::create(dir)?;
    if hash_of(image.memory.file(), image.len, &mut new.file)? != image.hash {
        return Err(NotKept::Hash);
    }
    if new.file.metadata()?.gid() != owner.gid() {
        std::os::unix::fs::fchown(&new.file, None, Some(owner.gid()))?;
    }
    new.file
        .set_permissions(fs::Permissions::from_mode(0o440))?;
    Ok(new.publish(&path)?)
}

/// Copies `len` bytes of a file. Returns the hash of the copied bytes, even if the file changes
/// meanwhile.
fn hash_of(from: &File, len: u64, to: &mut impl Write) -> io::Result<ImageHash> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE.min(usize::try_from(len).unwrap_or(PIECE))];
    let mut at = 0;
    while at < len {
        let most = piece.len().min(usize::try_from(len - at).unwrap_or(PIECE));
        from.read_exact_at(&mut piece[..most], at)?;
        hasher.update(&piece[..most]);
        to.write_all(&piece[..most])?;
        at += most as u64;
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Makes room in a cache for another `len` bytes, on the disk and within `bound` bytes. Removes the
/// oldest images.
fn make_room(dir: &Path, len: u64, bound: u64) -> Result<(), NotKept> {
    let size = |len: u64| len.div_ceil(BLOCK).saturating_mul(BLOCK);
    let need = size(len);
    if need > bound {
        return Err(NotKept::TooLarge);
    }
    let mut images: Vec<(SystemTime, u64, PathBuf)> = fs::read_dir(dir)?
        .filter_map(|entry| {
            let entry = entry.ok().filter(is_image)?;
            let meta = entry.metadata().ok()?;
            Some((meta.modified().ok()?, size(meta.len()), entry.path()))
        })
        .collect();
    images.sort();
    let mut total: u64 = images.iter().map(|(_, len, _)| len).sum();
    let wanted = need + DISK_RESERVE;
    if len > 0 && free_bytes(dir)?.saturating_add(total) < wanted {
        return Err(NotKept::DiskFull);
    }
    let mut count = images.len();
    let mut oldest = images.into_iter();
    while total.saturating_add(need) > bound
        || count >= FILES_MOST
        || len > 0 && free_bytes(dir)? < wanted
    {
        // A worker may still have the removed file open, which then takes space until it is closed.
        let (_, len, path) = oldest.next().ok_or(NotKept::DiskFull)?;
        match fs::remove_file(&path) {
            Ok(()) => (total, count) = (total - len, count - 1),
            Err(e) => tracing::warn!("cannot remove {}: {e}", path.display()),
        }
    }
    Ok(())
}

/// A new file without a name, which disappears if it is not finished.
///
/// Where the file system does not support this (O_TMPFILE), the file has a name and is removed on
/// failure. A crash may leave the file, whose name is none of an image; the sweep at start removes
/// it.
struct NewFile {
    file: File,
    named: Option<PathBuf>,
}

impl NewFile {
    fn create(dir: &Path) -> io::Result<NewFile> {
        let unnamed = OpenOptions::new()
            .write(true)
            .custom_flags(OFlag::O_TMPFILE.bits())
            .mode(0o400)
            .open(dir);
        match unnamed {
            Ok(file) => Ok(NewFile { file, named: None }),
            Err(e)
                if [Some(nix::libc::EOPNOTSUPP), Some(nix::libc::EISDIR)]
                    .contains(&e.raw_os_error()) =>
            {
                let path = dir.join(".new");
                let _ = fs::remove_file(&path);
                let mut options = OpenOptions::new();
                let file = options
                    .write(true)
                    .create_new(true)
                    .mode(0o400)
                    .open(&path)?;
                Ok(NewFile {
                    file,
                    named: Some(path),
                })
            }
            Err(e) => Err(e),
        }
    }

    /// Gives the file its name. Replaces a file of this name.
    fn publish(mut self, path: &Path) -> io::Result<()> {
        if let Some(named) = self.named.take() {
            return fs::rename(&named, path).inspect_err(|_| remove(&named));
        }
        if fs::symlink_metadata(path).is_ok() {
            fs::remove_file(path)?;
        }
        let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(
            AT_FDCWD,
            from.as_str(),
            AT_FDCWD,
            path,
            AtFlags::AT_SYMLINK_FOLLOW,
        )?;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(named) = &self.named {
            remove(named);
        }
    }
}

#[cfg(test)]
mod tests;
