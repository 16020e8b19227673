//! Determines which addresses of this process are memory.

use std::io::Error;

const PAGE: usize = 4096;

/// Whether all of a range is readable and, with `write`, also writable. Maps the pages of the range
/// as page-locking would, which also detects pages beyond the end of a file. True if the system
/// does not answer.
pub(crate) fn is_memory(at: usize, len: usize, write: bool) -> bool {
    let Some(end) = at.checked_add(len) else {
        return false;
    };
    let first = at / PAGE * PAGE;
    let advice = match write {
        true => libc::MADV_POPULATE_WRITE,
        false => libc::MADV_POPULATE_READ,
    };
    // SAFETY: `madvise` accesses the pages like a read, or like a write of their present content.
    // `madvise` changes no bytes, and the system checks the range.
    let done = unsafe { libc::madvise(first as *mut libc::c_void, end - first, advice) } == 0;
    // Linux before 5.14 does not know this advice.
    let unknown = || Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
    done || unknown() && is_mapped(at, end, write)
}

/// As [`is_memory`], from the list of mappings alone, without checking the pages.
fn is_mapped(at: usize, end: usize, write: bool) -> bool {
    match std::fs::read_to_string("/proc/self/maps") {
        Ok(maps) => holds(&maps, at, end, write),
        Err(_) => true,
    }
}

/// As [`is_mapped`], with the content of `/proc/PID/maps`, whose lines are sorted by address.
fn holds(maps: &str, at: usize, end: usize, write: bool) -> bool {
    let mut reached = at;
    for line in maps.lines() {
        let Some((from, to, access)) = range(line) else {
            continue;
        };
        if to <= reached {
            continue;
        }
        if reached >= end {
            break;
        }
        let usable = access.starts_with('r') && (!write || access[1..].starts_with('w'));
        if from > reached || !usable {
            return false;
        }
        reached = to;
    }
    reached >= end
}

/// First address, end address and access rights of a line.
fn range(line: &str) -> Option<(usize, usize, &str)> {
    let mut words = line.split(' ');
    let (from, to) = words.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
3000-4000 rw-s 00000000 08:01 77 /a file
4000-5000 r--p 00000000 08:01 78 /b
5000-6000 ---p 00000000 00:00 0
8000-9000 rw-p 00000000 00:00 0 [heap]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
";

    #[test]
    fn memory_goes_on_where_mappings_follow_each_other() {
        let can = |at, end, write| holds(MAPS, at, end, write);
        assert!(can(0x1000, 0x4000, true) && can(0x1fff, 0x3001, true));
        assert!(can(0x3800, 0x5000, false) && !can(0x3800, 0x5000, true));
        assert!(!can(0x4800, 0x5001, false), "nobody may read it");
        assert!(!can(0x0fff, 0x1001, false) && !can(0x8fff, 0x9001, false));
        assert!(!can(0x5fff, 0x8001, false) && !can(0x7000, 0x7001, false));
        assert!(!can(0xffff_ffff_ff60_0000, 0xffff_ffff_ff60_0001, false));
        assert!(!holds("", 1, 2, false));
    }

    #[test]
    fn the_system_tells_of_this_process() {
        let by_maps = |at: usize, len: usize, write| {
            let end = at.checked_add(len);
            end.is_some_and(|end| is_mapped(at, end, write))
        };
        let ways: [&dyn Fn(usize, usize, bool) -> bool; 2] = [&is_memory, &by_maps];
        for is_memory in ways {
            let own = vec![1_u8; 100_000];
            assert!(is_memory(own.as_ptr() as usize, own.len(), true));
            assert!(own.iter().all(|byte| *byte == 1));
            let text: &'static str = "not to be written";
            assert!(is_memory(text.as_ptr() as usize, text.len(), false));
            assert!(!is_memory(text.as_ptr() as usize, text.len(), true));
            assert!(!is_memory(4096, 4096, false));
            assert!(!is_memory(0xffff_8000_0000_0000, 4096, false));
            assert!(!is_memory(4096, usize::MAX, false));
        }
    }

    #[test]
    fn what_lies_behind_the_end_of_a_file_is_no_memory() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(PAGE as u64 + 1).expect("it grows");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let at = unsafe {
            let (len, fd) = (4 * PAGE, std::os::fd::AsRawFd::as_raw_fd(&file));
            libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        for write in [false, true] {
            assert!(is_memory(at as usize + 5, 2 * PAGE - 5, write));
            assert!(!is_memory(at as usize + 5, 2 * PAGE, write));
        }
        // SAFETY: the mapping of this test.
        unsafe { libc::munmap(at, 4 * PAGE) };
    }
}
