//! What of the process's addresses is memory.

/// Can all of a range be read, and, where that is asked for, written? What the system does not tell is taken for yes.
pub(crate) fn is_memory(at: usize, len: usize, write: bool) -> bool {
    let Some(end) = at.checked_add(len) else {
        return false;
    };
    match std::fs::read_to_string("/proc/self/maps") {
        Ok(maps) => holds(&maps, at, end, write),
        Err(_) => true,
    }
}

/// By the lines of `/proc/PID/maps`, which are in the order of their addresses.
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

/// A line's first address, the one behind its last, and what may be done there.
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
        let own = vec![1_u8; 100_000];
        assert!(is_memory(own.as_ptr() as usize, own.len(), true));
        let text: &'static str = "not to be written";
        assert!(is_memory(text.as_ptr() as usize, text.len(), false));
        assert!(!is_memory(text.as_ptr() as usize, text.len(), true));
        assert!(!is_memory(4096, 4096, false));
        assert!(!is_memory(0xffff_8000_0000_0000, 4096, false));
        assert!(!is_memory(4096, usize::MAX, false));
    }
}
