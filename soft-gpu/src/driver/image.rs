//! Module images: finds the code for a device in the image that a program passes as a bare pointer.
//!
//! An image is PTX text, an ELF file (machine code), a fatbin, or a wrapper that points to a
//! fatbin. The entries of a fatbin are PTX or ELF files, plain or compressed. NVIDIA's driver
//! prefers machine code for the device, and otherwise takes the newest PTX that is not newer than
//! the device. Here machine code does not run, so the PTX is taken even if there is machine code.
//! With `SOFT_GPU_SASS=skip`, machine code is taken if there is no PTX.

use vgpu_cuda_abi::CuResult;
use vgpu_cudart::fatbin::{EXACT, Entry, FAMILY, MACHINE_CODE, PTX, entries, runs};
use vgpu_cudart::image::{
    self, ELF, FATBIN, LINKED, TILE, WRAPPER, magic, read, u16_at, u32_at, u64_at,
};

use super::cubin;
use super::linker::{self, Input};

/// Largest accepted size in bytes of an ELF file and of a decompressed fatbin entry. A damaged
/// header may claim any size.
const MAX_CODE: usize = 512 << 20;

/// Reason for a refusal of an image: the CUresult, and a sentence for the log.
pub type Refusal = (CuResult, String);

fn no_binary(why: impl Into<String>) -> Refusal {
    (CuResult::NO_BINARY_FOR_GPU, why.into())
}

/// The device for which code is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    cc: (u32, u32),
    /// Whether machine code is accepted (`SOFT_GPU_SASS=skip`).
    skip: bool,
}

impl Target {
    /// The target for a device of compute capability `cc`, with the setting `SOFT_GPU_SASS`.
    pub fn new(cc: (u32, u32)) -> Target {
        let skip = super::driver().is_ok_and(|d| d.config.skip_machine_code);
        Target { cc, skip }
    }

    /// Refuses machine code, unless the setting accepts it.
    fn machine_code_will_do(self) -> Result<(), Refusal> {
        if self.skip {
            return Ok(());
        }
        let (major, minor) = self.cc;
        Err(no_binary(format!(
            "the image is a cubin (machine code); the soft device needs PTX: compile with \
             -gencode arch=compute_{major}{minor},code=compute_{major}{minor}, or ask NVRTC for PTX. With \
             SOFT_GPU_SASS=skip it loads, and its kernels do nothing"
        )))
    }

    fn machine_code(self, image: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.machine_code_will_do()?;
        let (major, minor) = self.cc;
        let made_for = cubin::architecture(image)?;
        if !runs(made_for, FAMILY, self.cc) {
            return Err(no_binary(format!(
                "the cubin is for sm_{made_for}, which does not run on sm_{major}{minor}"
            )));
        }
        Ok(image.to_vec())
    }
}

/// Copies the code for a device, PTX or a cubin, out of the image at `pointer`.
///
/// # Errors
/// CUDA_ERROR_NO_BINARY_FOR_GPU if the image has no code for the device, CUDA_ERROR_INVALID_IMAGE
/// for a damaged image.
///
/// # Safety
/// `pointer` is a module image as cuModuleLoadData takes it: NUL-terminated PTX, an ELF, a fatbin
/// or a fatbin wrapper.
pub unsafe fn code_at(pointer: *const u8, target: Target) -> Result<Vec<u8>, Refusal> {
    if pointer.is_null() {
        return Err((
            CuResult::INVALID_VALUE,
            "the image pointer is null".to_owned(),
        ));
    }
    // SAFETY: every kind of image has at least one byte. A text may be shorter than a magic number,
    // so `magic` reads byte by byte up to a NUL.
    let form = unsafe { magic(pointer) };
    match form {
        // SAFETY: the magic number is that of a wrapper.
        Some(WRAPPER) => unsafe { wrapped(pointer, target) },
        // SAFETY: the magic number is that of a fatbin.
        Some(FATBIN) => fatbin_code(unsafe { fatbin_at(pointer) }?, target),
        Some(ELF) => {
            target.machine_code_will_do()?;
            // SAFETY: the magic number is that of an ELF file, whose tables determine its length.
            let image = unsafe {
                let len = image::elf_len(pointer, MAX_CODE as u64).ok_or_else(damaged)?;
                std::slice::from_raw_parts(pointer, len as usize)
            };
            target.machine_code(image)
        }
        Some(TILE) => Err(tile_ir()),
        _ => {
            // SAFETY: by the contract, an image of no other kind is NUL-terminated text.
            let text = unsafe { std::ffi::CStr::from_ptr(pointer.cast()) };
            Ok(text.to_bytes().to_vec())
        }
    }
}

/// As [`code_at`], for the bytes of a file.
///
/// # Errors
/// As [`code_at`].
pub fn code_in(bytes: &[u8], target: Target) -> Result<Vec<u8>, Refusal> {
    match u32_at(bytes, 0) {
        Some(FATBIN) => {
            let size = u64_at(bytes, 8).zip(u16_at(bytes, 6));
            let end = size.and_then(|(size, header)| size.checked_add(header.into()));
            let whole = end.and_then(|end| bytes.get(..usize::try_from(end).ok()?));
            fatbin_code(whole.ok_or_else(damaged)?, target)
        }
        Some(ELF) => target.machine_code(bytes),
        Some(TILE) => Err(tile_ir()),
        _ => {
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            Ok(bytes[..end].to_vec())
        }
    }
}

fn tile_ir() -> Refusal {
    no_binary(
        "the image is Tile IR, which only NVIDIA's driver compiles; the soft device needs PTX",
    )
}

/// # Safety
/// `pointer` points to a whole wrapper.
unsafe fn wrapped(pointer: *const u8, target: Target) -> Result<Vec<u8>, Refusal> {
    // SAFETY: a wrapper has 24 bytes.
    let (version, data, list) = unsafe {
        (
            read::<u32>(pointer, 4),
            read::<*const u8>(pointer, 8),
            read::<*const *const u8>(pointer, 16),
        )
    };
    // SAFETY: the data of a wrapper is a fatbin or an ELF file. It is never another wrapper.
    let found = match unsafe { magic(data) } {
        Some(WRAPPER) | None => Err((
            CuResult::INVALID_IMAGE,
            "the fatbin wrapper is damaged".into(),
        )),
        // SAFETY: the data is an image as `code_at` requires.
        _ => unsafe { code_at(data, target) },
    };
    match found {
        Err(missing)
            if missing.0 == CuResult::NO_BINARY_FOR_GPU && version == LINKED && !list.is_null() =>
        {
            // SAFETY: a wrapper of this version has an array of fatbins.
            unsafe { relinked(list, target) }?.ok_or(missing)
        }
        found => found,
    }
}

/// The PTX of a fatbin that is to be linked. `None` for machine code, and for NVIDIA's library of
/// the device runtime, which nvcc links into every program of separately compiled parts. The served
/// functions of that library are built in.
///
/// # Errors
/// CUDA_ERROR_INVALID_IMAGE for a damaged fatbin.
pub fn part_ptx(fatbin: &[u8], cc: (u32, u32)) -> Result<Option<Vec<u8>>, Refusal> {
    match fatbin_ptx(fatbin, cc) {
        Ok(text) => Ok(Some(text).filter(|text| !linker::is_runtime(text))),
        Err((CuResult::NO_BINARY_FOR_GPU, _)) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// Links the PTX of the fatbins from which a program's device code was linked. `None` if no fatbin
/// has PTX for the device.
///
/// # Safety
/// `list` is an array of pointers to whole fatbins that ends with null.
unsafe fn relinked(list: *const *const u8, target: Target) -> Result<Option<Vec<u8>>, Refusal> {
    let mut inputs = Vec::new();
    for n in 0.. {
        // SAFETY: the array ends with a null pointer, which was not reached yet.
        let at = unsafe { list.add(n).read_unaligned() };
        if at.is_null() {
            break;
        }
        // SAFETY: the entries of the array point to whole fatbins.
        let text = unsafe {
            match magic(at) {
                Some(FATBIN) => part_ptx(fatbin_at(at)?, target.cc)?,
                _ => return Err(damaged()),
            }
        };
        let name = format!("part {} of the program", n + 1);
        inputs.extend(text.map(|text| Input { name, text }));
    }
    if inputs.is_empty() {
        return Ok(None);
    }
    let parsed = inputs
        .iter()
        .map(|i| Ok((i.name.clone(), linker::parse(i)?)));
    let linked = linker::link(parsed.collect::<Result<_, Refusal>>()?)?;
    let mut image = linker::pack(&inputs, &linked, None);
    // `pack` ends the image with a NUL, which the caller does not expect.
    image.pop();
    Ok(Some(image))
}

/// # Safety
/// `pointer` points to a whole fatbin.
unsafe fn fatbin_at<'a>(pointer: *const u8) -> Result<&'a [u8], Refusal> {
    // SAFETY: the contract of this function.
    let len = unsafe { image::fatbin_len(pointer, isize::MAX as u64) };
    // SAFETY: a whole fatbin has the length that its header gives.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len.ok_or_else(damaged)? as usize) })
}

fn damaged() -> Refusal {
    (
        CuResult::INVALID_IMAGE,
        "the image is damaged: its parts are not where it says".to_owned(),
    )
}

/// The code of a fatbin for a device: the newest PTX that the device can run, or machine code if
/// there is no such PTX and the target accepts machine code.
///
/// # Errors
/// As [`code_at`].
pub fn fatbin_code(fatbin: &[u8], target: Target) -> Result<Vec<u8>, Refusal> {
    match fatbin_ptx(fatbin, target.cc) {
        Err((CuResult::NO_BINARY_FOR_GPU, _)) if target.skip => machine_code(fatbin, target),
        found => found,
    }
}

/// The newest machine code for the device. Code that uses all features of one architecture
/// (`sm_90a`) is preferred to code that also runs on other devices.
fn machine_code(fatbin: &[u8], target: Target) -> Result<Vec<u8>, Refusal> {
    let all = entries(fatbin).ok_or_else(damaged)?;
    let fits = |e: &&Entry<'_>| e.kind == MACHINE_CODE && runs(e.sm, e.flags | FAMILY, target.cc);
    let best = all
        .iter()
        .filter(fits)
        .max_by_key(|e| (e.sm, e.flags & EXACT));
    match best {
        Some(entry) => target.machine_code(&entry.unpacked(MAX_CODE).ok_or_else(damaged)?),
        None => Err(missing(&all, target)),
    }
}

/// The best PTX of a fatbin: the newest that a device of capability `cc` can run.
///
/// # Errors
/// As [`code_at`].
pub fn fatbin_ptx(fatbin: &[u8], cc: (u32, u32)) -> Result<Vec<u8>, Refusal> {
    let all = entries(fatbin).ok_or_else(damaged)?;
    let fits = |e: &&Entry<'_>| e.kind == PTX && runs(e.sm, e.flags, cc);
    let best = all
        .iter()
        .filter(fits)
        .max_by_key(|e| (e.sm, e.flags & (EXACT | FAMILY)));
    let text = best.ok_or_else(|| missing(&all, Target { cc, skip: false }))?;
    let text = text.text(MAX_CODE);
    Ok(text.ok_or_else(damaged)?.into_owned())
}

/// Largest architecture number of an entry that is plausible: 90 stands for compute capability 9.0.
const LARGEST_SM: u32 = 999;

/// The reason why a fatbin with these entries has no code for a device.
fn missing(all: &[Entry<'_>], target: Target) -> Refusal {
    if all.is_empty() {
        return no_binary("the fatbin has no entry: it holds no code for any device");
    }
    if let Some(entry) = all.iter().find(|e| e.sm > LARGEST_SM) {
        let why = format!(
            "the fatbin is damaged: an entry is for architecture {}",
            entry.sm
        );
        return (CuResult::INVALID_IMAGE, why);
    }
    let name = |e: &Entry<'_>| {
        let kind = if e.kind == PTX { "compute" } else { "sm" };
        let only = match e.flags & (EXACT | FAMILY) {
            0 => "",
            EXACT => "a",
            _ => "f",
        };
        format!("{kind}_{}{only}", e.sm)
    };
    let have: Vec<String> = all.iter().map(name).collect();
    let (have, (major, minor)) = (have.join(", "), target.cc);
    let device = format!("{major}{minor}");
    let lacks = if target.skip || all.iter().any(|e| e.kind == PTX) {
        format!("the fatbin has no PTX for compute_{device} or older (it has: {have})")
    } else {
        format!("the fatbin has machine code only ({have}), and the soft device runs PTX only")
    };
    no_binary(format!(
        "{lacks}; compile with -gencode arch=compute_{device},code=compute_{device}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_cudart::fatbin::{LZ4, ZSTD, entry, pack};
    use vgpu_cudart::whole;

    const CUBIN: &[u8] = include_bytes!("../../fixtures/machine/kinds.13.cubin");

    fn at(major: u32, minor: u32) -> Target {
        Target {
            cc: (major, minor),
            skip: false,
        }
    }

    fn skipping(major: u32, minor: u32) -> Target {
        Target {
            skip: true,
            ..at(major, minor)
        }
    }

    /// Runs `read` on bytes that end directly before a page that is not readable.
    fn before_a_guard<T>(bytes: &[u8], read: impl FnOnce(*const u8) -> T) -> T {
        const PAGE: usize = 4096;
        let room = bytes.len().next_multiple_of(PAGE).max(PAGE);
        // SAFETY: a new mapping of `room` bytes and a page, of which the test writes only to the
        // first `room` bytes, and which ends after the last use.
        unsafe {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(std::ptr::null_mut(), room + PAGE, both, private, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let end = pages.cast::<u8>().add(room);
            assert_eq!(libc::mprotect(end.cast(), PAGE, libc::PROT_NONE), 0);
            let start = end.sub(bytes.len());
            start.copy_from(bytes.as_ptr(), bytes.len());
            let result = read(start);
            libc::munmap(pages, room + PAGE);
            result
        }
    }

    /// Images of all forms.
    fn samples() -> Vec<Vec<u8>> {
        let (ptx, code) = (entry(PTX, 80, 0, b"text\0", 0), CUBIN);
        vec![
            pack(&[ptx.clone(), entry(MACHINE_CODE, 80, 0, code, 0)]),
            pack(&[
                entry(PTX, 80, LZ4, &[0x1f, b'a', 1, 0, 0x10, b'x'], 21),
                ptx,
            ]),
            code.to_vec(),
            b"\x7fTileIR\0\x0d\x01\0\0\x01\x03abc\0".to_vec(),
            [&WRAPPER.to_le_bytes()[..], &[1, 0, 0, 0], &[0; 16]].concat(),
            b".version 7.0\n".to_vec(),
        ]
    }

    proptest::proptest! {
        /// A worker checks images before the driver gets them (`whole::check`).
        #[test]
        fn of_an_image_that_passes_the_check_nothing_outside_is_read(
            sample in 0_usize..6,
            cut in proptest::option::of(0.0..1.0_f64),
            changes in proptest::collection::vec(
                (0.0..1.0_f64, 1_usize..9, proptest::prelude::any::<u64>(), 0_u32..64),
                0..4,
            ),
            more in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..9),
        ) {
            let mut image = samples().swap_remove(sample);
            for (at, bytes, value, shift) in changes {
                // Half of the changes are in the headers.
                let within = if shift % 2 == 0 { image.len().min(192) } else { image.len() };
                let at = (at * within as f64) as usize;
                let end = (at + bytes).min(image.len());
                image[at..end].copy_from_slice(&(value >> shift).to_le_bytes()[..end - at]);
            }
            let kept = cut.map_or(image.len(), |cut| (cut * image.len() as f64) as usize);
            image.truncate(kept);
            image.extend(more);
            if whole::check(&image).is_ok() {
                if !matches!(u32_at(&image, 0), Some(FATBIN | ELF | TILE)) {
                    image.push(0);
                }
                for target in [at(8, 0), skipping(8, 0)] {
                    // SAFETY: the image was checked.
                    let code = before_a_guard(&image, |at| unsafe { code_at(at, target) });
                    if let Ok(code) = code && code.starts_with(b"\x7fELF") {
                        let _ = cubin::program(&code);
                    }
                }
            }
        }
    }

    #[test]
    fn all_forms_but_the_wrapper_pass_the_check() {
        let passes: Vec<bool> = samples().iter().map(|s| whole::check(s).is_ok()).collect();
        assert_eq!(passes, [true, true, true, true, false, true]);
    }

    /// The entries that soft-gpu takes for each compute capability.
    #[test]
    fn the_entry_is_the_one_that_a_driver_takes() {
        let ptx = |sm, flags, text: &[u8]| entry(PTX, sm, flags, text, 0);
        let f = pack(&[
            ptx(80, 0, b"80"),
            ptx(90, EXACT, b"90a"),
            ptx(90, 0, b"90"),
            ptx(100, FAMILY, b"100f"),
            ptx(120, EXACT, b"120a"),
        ]);
        for (cc, wanted) in [
            ((8, 0), &b"80"[..]),
            ((8, 9), b"80"),
            ((9, 0), b"90a"),
            ((10, 0), b"100f"),
            ((10, 3), b"100f"),
            ((11, 0), b"90"),
            ((12, 0), b"120a"),
            ((12, 1), b"90"),
        ] {
            assert_eq!(fatbin_ptx(&f, cc).as_deref(), Ok(wanted), "{cc:?}");
        }
    }

    #[test]
    fn machine_code_is_taken_where_asked_and_where_it_runs() {
        let (elf, ptx) = (
            entry(MACHINE_CODE, 80, 0, CUBIN, 0),
            entry(PTX, 70, 0, b"70", 0),
        );
        let machine = pack(std::slice::from_ref(&elf));
        let taken = |t| fatbin_code(&machine, t).map_err(|e| e.0);
        let none = CuResult::NO_BINARY_FOR_GPU;
        assert_eq!(taken(at(8, 0)), Err(none));
        assert_eq!(taken(skipping(8, 0)).as_deref(), Ok(CUBIN));
        assert_eq!(taken(skipping(8, 6)).as_deref(), Ok(CUBIN));
        assert_eq!(taken(skipping(7, 5)), Err(none));
        assert_eq!(taken(skipping(9, 0)), Err(none), "another major number");
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let packed = ruzstd::encoding::compress_to_vec(CUBIN, level);
        let packed = pack(&[entry(MACHINE_CODE, 80, ZSTD, &packed, CUBIN.len() as u64)]);
        let unpacked = fatbin_code(&packed, skipping(8, 0));
        assert_eq!(unpacked.as_deref(), Ok(CUBIN));
        // If there is PTX, it is preferred, because it can be computed.
        let both = pack(&[elf, ptx]);
        assert_eq!(
            fatbin_code(&both, skipping(8, 0)).as_deref(),
            Ok(&b"70"[..])
        );
        // Images by pointer, and bytes of files. SAFETY: the pointer is to a whole ELF file.
        let bare = unsafe { code_at(CUBIN.as_ptr(), skipping(8, 0)) };
        assert_eq!(bare.as_deref(), Ok(CUBIN), "its length is found");
        for (bytes, wanted) in [(&machine[..], CUBIN), (CUBIN, CUBIN), (b"text\0", b"text")] {
            assert_eq!(code_in(bytes, skipping(8, 0)).as_deref(), Ok(wanted));
        }
        let refused = code_in(CUBIN, at(8, 0)).map_err(|e| e.0);
        assert_eq!(refused, Err(none));
        assert!(code_in(&machine[..100], skipping(8, 0)).is_err());
    }

    /// Relocatable device code: the wrapper's own fatbin has machine code only, the parts have PTX.
    #[test]
    fn parts_of_a_linked_program_are_linked_again() {
        const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";
        let part = |text: &str| pack(&[entry(PTX, 70, 0, format!("{HEAD}{text}").as_bytes(), 0)]);
        // The third part is like NVIDIA's library of the device runtime, which nvcc links in with
        // machine code for some architectures and PTX for others.
        let parts = [
            part(".extern .func f();\n.visible .entry k() { call f; ret; }"),
            pack(&[entry(MACHINE_CODE, 80, 0, CUBIN, 0)]),
            part(
                ".extern .func __cuda_syscall_a();\n.visible .func b() { call __cuda_syscall_a; ret; }",
            ),
            part(".visible .func f() { ret; }"),
        ];
        let linked = pack(&[entry(MACHINE_CODE, 80, 0, CUBIN, 0)]);
        let mut list = parts.each_ref().map(|part| part.as_ptr()).to_vec();
        list.push(std::ptr::null());
        let mut wrapper = Vec::new();
        wrapper.extend_from_slice(&WRAPPER.to_le_bytes());
        wrapper.extend_from_slice(&LINKED.to_le_bytes());
        wrapper.extend_from_slice(&(linked.as_ptr() as u64).to_le_bytes());
        wrapper.extend_from_slice(&(list.as_ptr() as u64).to_le_bytes());
        // SAFETY: a whole wrapper, whose parts are in memory.
        let found = unsafe { code_at(wrapper.as_ptr(), at(8, 0)) };
        let found = found.expect("the parts are linked");
        let image = linker::unpack(&found).expect("a link's image");
        assert_eq!(image.inputs.len(), 2);
        // In a wrapper of version 1, the last pointer is a file name, which must not be read as an
        // array.
        wrapper[4] = 1;
        // SAFETY: as above.
        let found = unsafe { code_at(wrapper.as_ptr(), at(8, 0)) };
        assert_eq!(found.map_err(|e| e.0), Err(CuResult::NO_BINARY_FOR_GPU));
    }

    #[test]
    fn picks_the_newest_ptx_that_fits() {
        let f = pack(&[
            entry(MACHINE_CODE, 80, 0, b"elf", 0),
            entry(PTX, 70, 0, b"old\0", 0),
            entry(PTX, 80, 0, b"right\0", 0),
            entry(PTX, 90, 0, b"new\0", 0),
        ]);
        assert_eq!(fatbin_ptx(&f, (8, 0)).as_deref(), Ok(&b"right"[..]));
        assert_eq!(
            fatbin_ptx(&f, (6, 0)).map_err(|e| e.0),
            Err(CuResult::NO_BINARY_FOR_GPU)
        );
        // SAFETY: `f` is a whole fatbin.
        let through_pointer = unsafe { code_at(f.as_ptr(), at(9, 0)) };
        assert_eq!(through_pointer.as_deref(), Ok(&b"new"[..]));
    }

    #[test]
    fn what_a_fatbin_lacks_is_said() {
        let why = |entries: &[Vec<u8>], target| {
            let refused = fatbin_code(&pack(entries), target).expect_err("no code for 8.0");
            (refused.0, refused.1.split(';').next().map(str::to_owned))
        };
        let code = |sm| entry(MACHINE_CODE, sm, 0, b"elf", 0);
        let said = |code, text: &str| (code, Some(text.to_owned()));
        let none = CuResult::NO_BINARY_FOR_GPU;
        assert_eq!(
            why(&[], at(8, 0)),
            said(
                none,
                "the fatbin has no entry: it holds no code for any device"
            )
        );
        let damaged = "the fatbin is damaged: an entry is for architecture 6029392";
        assert_eq!(
            why(&[code(6_029_392)], at(8, 0)),
            said(CuResult::INVALID_IMAGE, damaged)
        );
        let machine_code =
            "the fatbin has machine code only (sm_75, sm_80), and the soft device runs PTX only";
        assert_eq!(
            why(&[code(75), code(80)], at(8, 0)),
            said(none, machine_code)
        );
        let newer = "the fatbin has no PTX for compute_80 or older (it has: sm_80, compute_90)";
        let entries = [code(80), entry(PTX, 90, 0, b"new", 0)];
        assert_eq!(why(&entries, at(8, 0)), said(none, newer));
        let other = "the fatbin has no PTX for compute_80 or older (it has: sm_90)";
        assert_eq!(why(&[code(90)], skipping(8, 0)), said(none, other));
    }

    #[test]
    fn tile_ir_is_told_from_text() {
        let tile = b"\x7fTileIR\0\x0d\x01\0\0\0";
        // SAFETY: complete Tile IR.
        let refused = unsafe { code_at(tile.as_ptr(), at(13, 0)) };
        for refused in [refused, code_in(tile, at(13, 0))] {
            let (code, why) = refused.expect_err("no PTX");
            assert_eq!(code, CuResult::NO_BINARY_FOR_GPU);
            assert!(why.contains("Tile IR"), "{why}");
        }
    }

    #[test]
    fn damaged_fatbins_are_refused_not_read() {
        let good = pack(&[entry(PTX, 80, 0, b"text\0", 0)]);
        for cut in 17..good.len() {
            assert!(fatbin_ptx(&good[..cut], (8, 0)).is_err(), "cut at {cut}");
        }
    }
}
