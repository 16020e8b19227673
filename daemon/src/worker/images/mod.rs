//! The VMs' caches of module images on disk, which only vgpud writes.
//!
//! A cache is `<state_dir>/images/vm<n>-<registration>`, readable to the VM's workers; an image in
//! it is a file named by its hash. One thread copies whole images there from the memory that
//! workers filled. A full disk, a full cache and a busy thread cost the image its place in the
//! cache and nothing else: it is loaded from memory, and sent again when it is wanted again.

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

/// Bytes of the file system that images leave free: vgpud's database lies on it.
const DISK_RESERVE: u64 = 256 << 20;
/// Files of one cache: with small images a guest could otherwise take all names that a file system
/// has.
const FILES_MOST: usize = 4_096;
/// Images of one VM that wait for the disk.
const WAITING_OF_VM: usize = 64;
/// Images of all VMs that wait for the disk.
const WAITING_OF_ALL: usize = 512;
/// Their bytes. A VM has half of what the others leave at most, so that some VMs never fill it.
const WAITING_BYTES: u64 = 2 * MAX_IMAGE;
/// Bytes copied at a time.
const PIECE: usize = 1 << 20;
/// What a file takes is counted in blocks of this many bytes.
const BLOCK: u64 = 4_096;

/// A whole image that may be put into its VM's cache.
pub struct Image {
    /// Whose.
    pub vm: VmIdentity,
    /// The session whose worker says so.
    pub session: u64,
    /// What a worker says that it is.
    pub hash: ImageHash,
    /// Its bytes.
    pub len: u64,
    /// Where they are; a worker may write to it. Whoever gives an image to the keeper keeps the
    /// memory, too, until it is told of it: the keeper's thread frees none.
    pub memory: Arc<ImageMemory>,
    /// The bytes that the cache may have.
    pub bound: u64,
    /// Told when the keeper is done with it: the cache has it, or will not.
    pub done: Box<dyn FnOnce(Checked) + Send>,
}

/// What the bytes of an image were seen to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// What they were said to be, as far as somebody looked.
    Honest,
    /// Not what their hash says, which an honest worker looks at before it names it.
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
    /// Whose image was kept last: the next VM's is next.
    last: VmIdentity,
    /// Registrations that are over, whose caches go.
    over: Vec<VmIdentity>,
}

/// What the thread does next.
enum Next {
    Keep(Image),
    /// With the images of it that waited.
    Remove(VmIdentity, Vec<Image>),
}

impl ImageKeeper {
    /// A keeper of the caches in `root`, with a thread of its own.
    ///
    /// # Errors
    /// When the system gives no thread.
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

    /// One whose thread does nothing yet.
    #[cfg(test)]
    pub fn idle(root: PathBuf) -> ImageKeeper {
        ImageKeeper {
            root,
            queue: Arc::default(),
        }
    }

    /// Puts an image into its VM's cache some time later.
    ///
    /// # Errors
    /// The image, if too many wait: it is not kept.
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

    /// Gives up the images of a session that wait, but for one that is being looked at.
    pub fn forget(&self, vm: VmIdentity, session: u64) {
        let forgotten = self.queue().forget(vm, session);
        give_up(forgotten);
    }

    /// Removes the cache of a registration that is over, some time later.
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
                    // In a statement of its own: nobody is told under the lock.
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
    /// Takes out what waits of a session.
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

    /// The oldest image of the VM whose turn it is.
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

/// Tells that nothing is kept of images that nobody looked at.
fn give_up(images: Vec<Image>) {
    for image in images {
        (image.done)(Checked::Honest);
    }
}

/// Where a registration's images are.
#[must_use]
pub fn cache_of(root: &Path, vm: VmIdentity) -> PathBuf {
    root.join(format!("vm{}-{}", vm.vm_id, vm.generation))
}

/// Makes a VM's cache: vgpud's, and its workers may read it.
///
/// One that belongs to somebody else (the users of workers were changed) is emptied: it is a cache.
///
/// # Errors
/// When it cannot be made or given away.
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
    // Whatever the umask is.
    let mode = if owner.is_some() { 0o750 } else { 0o700 };
    fs::set_permissions(dir, fs::Permissions::from_mode(mode))
}

/// Workers pass through, and see none but their own.
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

/// Removes the caches of VMs that are not registered, and from the others what is unfinished: at
/// start, before there are workers. What vgpud did not make is not vgpud's to remove: it stays, and
/// the log has it.
///
/// # Errors
/// When the directory of all caches is a link, or cannot be read or made.
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

/// `vm<n>-<registration>`, or `vm<n>` as earlier versions had it.
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

/// An image has the name of a hash.
fn is_image(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let is_hash = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    entry.file_type().is_ok_and(|kind| kind.is_file())
        && name.len() == 64
        && name.as_encoded_bytes().iter().all(is_hash)
}

/// An image that was not finished, where it has a name at all; the second is that of earlier
/// versions.
fn is_unfinished(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    entry.file_type().is_ok_and(|kind| kind.is_file())
        && (name == ".new" || name.as_encoded_bytes().starts_with(b".part-"))
}

/// Removes a cache, unless it has what vgpud did not make.
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

/// Removes these entries of a directory; whether there is something in it that vgpud did not make.
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

/// Puts an image into a cache, unless the cache has it.
fn keep(dir: &Path, image: &Image) -> Result<(), NotKept> {
    let name = blake3::Hash::from_bytes(image.hash).to_hex();
    let path = dir.join(name.as_str());
    if let Ok(kept) = File::open(&path)
        && kept.metadata()?.len() == image.len
        && hash_of(&kept, image.len, &mut io::sink())? == image.hash
    {
        // As good as new: the last to make room for others.
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

/// Copies `len` bytes of a file; the hash of what was copied, whatever happens to the file
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

/// Makes room for `len` bytes more in a cache: on the disk, and within its bound. The oldest images
/// go.
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
        // What was removed may still be open in a worker, and takes its room until that closes it.
        let (_, len, path) = oldest.next().ok_or(NotKept::DiskFull)?;
        match fs::remove_file(&path) {
            Ok(()) => (total, count) = (total - len, count - 1),
            Err(e) => tracing::warn!("cannot remove {}: {e}", path.display()),
        }
    }
    Ok(())
}

/// A file without a name, so that it is gone if it is not finished.
///
/// Where the file system has none (O_TMPFILE), it has a name that is removed with it; what a crash
/// leaves is no image, and the sweep at start removes it.
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

    /// Gives the file its name; one that has it is replaced.
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
