use super::*;
use std::sync::mpsc;
use std::time::Duration;

const VM: VmIdentity = identity(1, 7);

const fn identity(vm_id: u32, generation: u64) -> VmIdentity {
    VmIdentity { vm_id, generation }
}

const PLENTY: u64 = 1 << 30;

fn cache(root: &Path, vm: VmIdentity) -> PathBuf {
    let dir = cache_of(root, vm);
    make_cache(&dir, None).unwrap();
    dir
}

/// A keeper of a directory with the cache of VM 1.
fn keeper(root: &Path) -> (ImageKeeper, PathBuf) {
    let dir = cache(root, VM);
    (ImageKeeper::start(root.to_owned()).unwrap(), dir)
}

fn image(bytes: &[u8], bound: u64) -> (Image, mpsc::Receiver<Checked>) {
    let room = ImageMemory::new(bytes.len() as u64, || ()).unwrap();
    room.file().write_all_at(bytes, 0).unwrap();
    let (tell, told) = mpsc::channel();
    let image = Image {
        vm: VM,
        session: 3,
        hash: *blake3::hash(bytes).as_bytes(),
        len: bytes.len() as u64,
        memory: room.into(),
        bound,
        // A test may drop the receiver: the keeper does not need it.
        done: Box::new(move |checked| _ = tell.send(checked)),
    };
    (image, told)
}

fn keep_now(keeper: &ImageKeeper, image: (Image, mpsc::Receiver<Checked>)) -> String {
    let name = blake3::Hash::from_bytes(image.0.hash).to_hex().to_string();
    keeper.keep(image.0).unwrap();
    let checked = image.1.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(checked, Checked::Honest);
    name
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn an_image_whose_memory_ended_while_it_waited_is_not_kept() {
    let root = tempfile::tempdir().unwrap();
    let (keeper, dir) = keeper(root.path());
    let gone = image(b"was given back before the disk had it", PLENTY);
    gone.0.memory.free().unwrap();
    keep_now(&keeper, gone);
    assert_eq!(names(&dir), BTreeSet::new());
}

#[test]
fn cached_files_match_the_hash_in_their_name() {
    let root = tempfile::tempdir().unwrap();
    let (keeper, dir) = keeper(root.path());
    let bytes = vec![b'/'; 3 << 20];
    let name = keep_now(&keeper, image(&bytes, PLENTY));
    assert!(fs::read(dir.join(&name)).unwrap() == bytes);
    let mode = fs::metadata(dir.join(&name)).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o440, "no user may write to it");
    // A worker may claim any hash for any bytes.
    let (mut forged, told) = image(b"other bytes", PLENTY);
    forged.hash = [7; 32];
    keeper.keep(forged).unwrap();
    let checked = told.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(checked, Checked::Forged);
    assert_eq!(names(&dir), [name.clone()].into(), "no unfinished file");
    // A damaged file is replaced; a good file stays.
    fs::remove_file(dir.join(&name)).unwrap();
    fs::write(dir.join(&name), vec![b'x'; bytes.len()]).unwrap();
    for _ in 0..2 {
        keep_now(&keeper, image(&bytes, PLENTY));
        assert!(fs::read(dir.join(&name)).unwrap() == bytes);
    }
}

#[test]
fn a_cache_has_a_bound_and_its_oldest_images_make_room() {
    let root = tempfile::tempdir().unwrap();
    let (keeper, dir) = keeper(root.path());
    let neighbour = cache(root.path(), identity(2, 8));
    fs::write(neighbour.join("a".repeat(64)), [0; 10_000]).unwrap();
    let bound = 10 * BLOCK;
    let mut kept = Vec::new();
    for n in 0..5_u8 {
        kept.push(keep_now(&keeper, image(&[n; 3 * BLOCK as usize], bound)));
        // Files with the same time have no order.
        let age = Duration::from_secs(100 - u64::from(n));
        let file = File::open(dir.join(&kept[usize::from(n)])).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }
    assert_eq!(names(&dir), kept[2..].iter().cloned().collect());
    let large = keep_now(&keeper, image(&[9; 11 * BLOCK as usize], bound));
    assert!(!dir.join(large).exists(), "larger than the cache may be");
    assert_eq!(names(&dir), kept[2..].iter().cloned().collect());
    assert_eq!(names(&neighbour).len(), 1, "another VM's stay");
}

#[test]
fn the_sweep_leaves_only_images_of_registered_vms() {
    let root = tempfile::tempdir().unwrap();
    let (dir, gone) = (cache(root.path(), VM), cache(root.path(), identity(1, 6)));
    let image = "a".repeat(64);
    for dir in [&dir, &gone] {
        for name in [&image, ".part-12-1", ".new"] {
            fs::write(dir.join(name), b"x").unwrap();
        }
    }
    fs::create_dir(root.path().join("vm1")).unwrap();
    sweep(root.path(), &[VM].into(), PLENTY).unwrap();
    assert_eq!(names(root.path()), ["vm1-7".to_owned()].into());
    assert_eq!(names(&dir), [image].into());
    sweep(root.path(), &[VM].into(), 0).unwrap();
    assert_eq!(names(&dir).len(), 0, "the bound was lowered");
    sweep(&root.path().join("new"), &BTreeSet::new(), PLENTY).unwrap();
}

/// All paths below a directory.
fn tree(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        found.insert(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(tree(&entry.path()));
        }
    }
    found
}

#[test]
fn what_vgpud_did_not_make_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (root, other) = (dir.path().join("images"), dir.path().join("other"));
    for cache in ["vm1-7", "vm1-6", "vm2", "vm3"] {
        fs::create_dir_all(root.join(cache).join("sub")).unwrap();
        fs::write(root.join(cache).join("notes"), b"x").unwrap();
        fs::write(root.join(cache).join("sub").join("a".repeat(64)), b"x").unwrap();
    }
    for strange in ["home", "vm1-old", "vm", "vm1-2-3", "lost+found"] {
        fs::create_dir_all(root.join(strange)).unwrap();
        fs::write(root.join(strange).join("a".repeat(64)), b"x").unwrap();
    }
    fs::write(root.join("a-file"), b"x").unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("b".repeat(64)), b"x").unwrap();
    std::os::unix::fs::symlink(&other, root.join("vm9-9")).unwrap();
    let before = tree(dir.path());
    sweep(&root, &[VM].into(), 0).unwrap();
    remove_cache(&root.join("vm3"));
    remove_cache(&root.join("vm9-9/nothing"));
    assert_eq!(tree(dir.path()), before);

    // Nothing behind a link is changed, not even the mode.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&root, &link).unwrap();
    fs::create_dir(root.join("vm5-5")).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
    let refused = sweep(&link, &BTreeSet::new(), PLENTY).unwrap_err();
    assert!(refused.to_string().contains("mount --bind"), "{refused}");
    assert!(make_cache(&cache_of(&link, VM).with_file_name("vm6-6"), None).is_err());
    assert!(root.join("vm5-5").exists());
    assert_eq!(fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn images_wait_within_bounds_and_vms_take_turns() {
    let mut queue = Queue::default();
    for (vm, n) in [(1, 0), (1, 1), (1, 2), (3, 3), (2, 4)] {
        let (mut image, _) = image(&[n; 10], PLENTY);
        image.vm = identity(vm, 1);
        queue.count += 1;
        queue.bytes += 10;
        queue.waiting.entry(image.vm).or_default().push_back(image);
    }
    let order: Vec<u32> = std::iter::from_fn(|| Some(queue.take()?.vm.vm_id)).collect();
    assert_eq!(order, [1, 2, 3, 1, 1]);
    assert_eq!((queue.count, queue.bytes), (0, 0));

    let keeper = ImageKeeper {
        root: PathBuf::new(),
        queue: Arc::default(),
    };
    let mut taken = 0;
    while keeper.keep(image(b"small", PLENTY).0).is_ok() {
        taken += 1;
    }
    assert_eq!(taken, WAITING_OF_VM);
    let keep = |vm: u32, len| {
        let (mut large, _) = image(b"large", PLENTY);
        (large.vm, large.session, large.len) = (identity(vm, 1), vm.into(), len);
        keeper.keep(large).is_ok()
    };
    assert!(!keep(2, MAX_IMAGE), "not beside another VM's");
    assert!(keep(2, MAX_IMAGE - 1_000));
    assert!(!keep(3, MAX_IMAGE / 2 + 1_000));
    assert!(keep(3, MAX_IMAGE / 2));
    assert!(keep(4, MAX_IMAGE / 4), "two VMs do not fill it");
    for vm in [2, 3, 4] {
        keeper.remove(identity(vm, 1));
        assert!(
            matches!(keeper.next(), Next::Remove(gone, waited) if gone == identity(vm, 1) && waited.len() == 1)
        );
    }
    let left = (WAITING_OF_VM, 5 * WAITING_OF_VM as u64);
    let waits = || {
        let queue = keeper.queue();
        (queue.count, queue.bytes)
    };
    assert_eq!(waits(), left);
    assert!(keep(2, MAX_IMAGE - 1_000));
    let small = image(b"small", PLENTY).0;
    let forgotten = keeper.queue().forget(small.vm, small.session);
    assert_eq!(forgotten.len(), WAITING_OF_VM);
    assert_eq!(waits(), (1, MAX_IMAGE - 1_000));
}
