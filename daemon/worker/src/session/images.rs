//! Module images: streamed by the guest into a file, verified by hash, kept in the tenant's cache.
//!
//! A cached image is a file named by its hash. It appears there by a rename, so it is whole or not
//! there; what a crash of the host may still do to it is caught by hashing it again before use.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use vgpu_proto::call::ops::ImageHash;
use vgpu_proto::limits::MAX_IMAGE;

/// Images that a guest may be sending at once.
const MAX_UPLOADS: usize = 8;

/// Bytes of a tenant's cache; the images used longest ago make room.
const CACHE_LIMIT: u64 = 8 << 30;

/// Bytes of the file system that images leave free: vgpud's database may live on it.
const DISK_RESERVE: u64 = 256 << 20;

/// Why an image is not to be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageError {
    /// A piece out of order, or too much.
    #[error("a piece of a module image out of order, or beyond its announced length")]
    Order,
    /// Not complete in the cache: the guest sends it (again).
    #[error("the module image is not complete")]
    Incomplete,
    /// The bytes are not those of the hash.
    #[error("the module image does not have the hash that it was sent under")]
    Hash,
    /// The cache's file system.
    #[error("the module cache: {0}")]
    Io(#[from] io::Error),
}

#[derive(Debug)]
struct Upload {
    file: File,
    path: PathBuf,
    len: u64,
    received: u64,
    hasher: blake3::Hasher,
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Renamed files are not there any more under this name; that is fine.
        let _ = fs::remove_file(&self.path);
    }
}

/// The images of one session.
#[derive(Debug)]
pub(super) struct Images {
    dir: PathBuf,
    uploads: HashMap<ImageHash, Upload>,
    counter: u64,
}

impl Images {
    /// Over the tenant's cache directory.
    pub(super) fn new(dir: &Path) -> Images {
        Images {
            dir: dir.to_owned(),
            uploads: HashMap::new(),
            counter: 0,
        }
    }

    fn cached(&self, hash: &ImageHash) -> PathBuf {
        self.dir
            .join(blake3::Hash::from_bytes(*hash).to_hex().as_str())
    }

    /// Is this image in the cache?
    pub(super) fn present(&self, hash: &ImageHash, len: u64) -> bool {
        fs::symlink_metadata(self.cached(hash)).is_ok_and(|m| m.is_file() && m.len() == len)
    }

    /// Takes a piece. One at offset 0 begins the image anew.
    ///
    /// # Errors
    /// Out of order, too long, or the file system's; what came before is then forgotten.
    pub(super) fn receive(
        &mut self,
        hash: &ImageHash,
        len: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ImageError> {
        let result = self.append(hash, len, offset, bytes);
        if result.is_err() {
            self.uploads.remove(hash);
        }
        result
    }

    fn append(
        &mut self,
        hash: &ImageHash,
        len: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ImageError> {
        if offset == 0 {
            self.begin(hash, len)?;
        }
        let upload = self.uploads.get_mut(hash).ok_or(ImageError::Order)?;
        let end = offset
            .checked_add(bytes.len() as u64)
            .ok_or(ImageError::Order)?;
        if len != upload.len || offset != upload.received || end > len {
            return Err(ImageError::Order);
        }
        upload.file.write_all(bytes)?;
        upload.hasher.update(bytes);
        upload.received = end;
        Ok(())
    }

    fn begin(&mut self, hash: &ImageHash, len: u64) -> Result<(), ImageError> {
        self.uploads.remove(hash);
        if len == 0 || len > MAX_IMAGE || self.uploads.len() >= MAX_UPLOADS {
            return Err(ImageError::Order);
        }
        self.check_room(len)?;
        self.counter += 1;
        let path = self
            .dir
            .join(format!(".part-{}-{}", own_pid(), self.counter));
        let _ = fs::remove_file(&path);
        let file = File::options()
            .write(true)
            .read(true)
            .create_new(true)
            .open(&path)?;
        let hasher = blake3::Hasher::new();
        self.uploads.insert(
            *hash,
            Upload {
                file,
                path,
                len,
                received: 0,
                hasher,
            },
        );
        Ok(())
    }

    /// Is there room for one more image, when those that are begun have come?
    fn check_room(&self, len: u64) -> io::Result<()> {
        let disk = nix::sys::statvfs::statvfs(&self.dir)?;
        let free = disk.blocks_available().saturating_mul(disk.fragment_size());
        let due: u64 = self.uploads.values().map(|u| u.len - u.received).sum();
        if due + len + DISK_RESERVE <= free {
            return Ok(());
        }
        let text = format!(
            "{free} bytes are left on the disk of {}",
            self.dir.display()
        );
        Err(io::Error::new(io::ErrorKind::StorageFull, text))
    }

    /// The complete image as a file: the one just received, moved into the cache, or the cached one.
    ///
    /// # Errors
    /// Not complete, another hash, or the file system's.
    pub(super) fn finish(&mut self, hash: &ImageHash, len: u64) -> Result<File, ImageError> {
        if let Some(upload) = self.uploads.remove(hash) {
            if upload.len != len || upload.received != len {
                return Err(ImageError::Incomplete);
            }
            if upload.hasher.finalize().as_bytes() != hash {
                return Err(ImageError::Hash);
            }
            fs::rename(&upload.path, self.cached(hash))?;
            make_room(&self.dir, &self.cached(hash));
            return Ok(upload.file.try_clone()?);
        }
        if !self.present(hash, len) {
            return Err(ImageError::Incomplete);
        }
        let file = File::open(self.cached(hash))?;
        // Used now: least likely to make room for others.
        let _ = file.set_modified(SystemTime::now());
        Ok(file)
    }

    /// Forgets a cached image that turned out to be damaged.
    pub(super) fn forget(&self, hash: &ImageHash) {
        let _ = fs::remove_file(self.cached(hash));
    }
}

/// Removes the images used longest ago until the cache is within its limit, and parts of images
/// whose worker is gone.
fn make_room(dir: &Path, keep: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    let mut images = Vec::new();
    let mut total = 0;
    for entry in entries.flatten() {
        let (path, Ok(meta)) = (entry.path(), entry.metadata()) else {
            continue;
        };
        if abandoned(&path) {
            let _ = fs::remove_file(&path);
        } else if meta.is_file() {
            total += meta.len();
            images.push((
                meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                meta.len(),
                path,
            ));
        }
    }
    images.sort();
    for (_, len, path) in images {
        if total <= CACHE_LIMIT {
            return;
        }
        if path != keep && fs::remove_file(&path).is_ok() {
            total -= len;
        }
    }
}

/// A part left by a process that does not exist any more.
fn abandoned(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_prefix(".part-"))
        .and_then(|rest| rest.split('-').next())
        .and_then(|pid| pid.parse::<u32>().ok())
        .is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

/// This process as the host, which mounted /proc, knows it.
fn own_pid() -> u32 {
    let known = std::fs::read_link("/proc/self").ok();
    let number = known.and_then(|path| path.to_str()?.parse().ok());
    number.unwrap_or_else(std::process::id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    fn hash(bytes: &[u8]) -> ImageHash {
        *blake3::hash(bytes).as_bytes()
    }

    #[test]
    fn an_image_arrives_in_pieces_and_is_found_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let image: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let (name, len) = (hash(&image), image.len() as u64);
        let mut images = Images::new(dir.path());
        assert!(!images.present(&name, len));
        assert!(matches!(
            images.finish(&name, len),
            Err(ImageError::Incomplete)
        ));
        for (i, piece) in image.chunks(30_000).enumerate() {
            images
                .receive(&name, len, i as u64 * 30_000, piece)
                .expect("in order");
        }
        let mut file = images.finish(&name, len).expect("complete");
        let mut back = Vec::new();
        file.rewind().expect("seek");
        file.read_to_end(&mut back).expect("read");
        assert!(back == image);
        let mut others = Images::new(dir.path());
        assert!(others.present(&name, len) && !others.present(&name, len + 1));
        others.finish(&name, len).expect("cached");
        assert_eq!(
            fs::read_dir(dir.path()).expect("dir").count(),
            1,
            "no parts are left"
        );
    }

    #[test]
    fn what_is_not_the_image_does_not_reach_the_cache() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut images = Images::new(dir.path());
        let (name, other) = (hash(b"abcd"), hash(b"zzzz"));
        images.receive(&other, 4, 0, b"abcd").expect("a piece");
        assert!(matches!(images.finish(&other, 4), Err(ImageError::Hash)));
        images.receive(&name, 4, 0, b"ab").expect("a piece");
        assert!(matches!(
            images.finish(&name, 4),
            Err(ImageError::Incomplete)
        ));
        for (offset, bytes, len) in [
            (1, &b"b"[..], 4),
            (0, b"abcde", 4),
            (0, b"", 0),
            (0, b"a", MAX_IMAGE + 1),
        ] {
            assert!(matches!(
                images.receive(&name, len, offset, bytes),
                Err(ImageError::Order)
            ));
        }
        images.receive(&name, 4, 0, b"ab").expect("a piece");
        assert!(images.receive(&name, 4, 3, b"d").is_err(), "a gap");
        assert!(images.receive(&name, 4, u64::MAX, b"d").is_err(), "wraps");
        assert_eq!(fs::read_dir(dir.path()).expect("dir").count(), 0);
    }

    #[test]
    fn parts_of_dead_workers_are_swept() {
        let dir = tempfile::tempdir().expect("a directory");
        // No process has this id: it is above the kernel's largest.
        fs::write(dir.path().join(".part-4294967295-1"), b"x").expect("write");
        let mut images = Images::new(dir.path());
        let name = hash(b"abcd");
        images.receive(&name, 4, 0, b"abcd").expect("a piece");
        images.finish(&name, 4).expect("complete");
        assert_eq!(fs::read_dir(dir.path()).expect("dir").count(), 1);
    }
}
