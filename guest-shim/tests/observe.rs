//! Tests of `VGPU_STATS` and `VGPU_TRACE`.

mod common;

use std::ffi::{c_char, c_int, c_void};

use common::guest;
use common::host::Host;

/// A program with calls of each class.
fn program(cuda: &guest::Cuda) {
    cuda.begin();
    let function = cuda.kernel();
    for _ in 0..10 {
        assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
    }
    let address = cuda.alloc(4096);
    assert_eq!(cuda.to_device(address, &[7; 4096]), 0);
    let mut back = [0; 4096];
    assert_eq!(cuda.to_host(&mut back, address), 0);
    let mut device = 0;
    for _ in 0..5 {
        assert_eq!(cu!(cuda, cuCtxGetDevice(&mut device => *mut c_int)), 0);
    }
    // The same function was looked up before, so the guest answers by itself.
    let again = cuda.kernel();
    assert_eq!(again, function);
    for _ in 0..3 {
        let missing = cu!(cuda, cuIpcCloseMemHandle(8 => u64));
        assert_eq!(missing, 801);
    }
    assert_eq!(cu!(cuda, cuMemFree_v2(1 => u64)), 1);
    assert_eq!(cuda.synchronize(), 0);
}

fn count(said: &str, word: &str) -> Option<u64> {
    let line = said
        .lines()
        .find(|l| l.split_whitespace().nth(1) == Some(word))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

#[test]
fn statistics_are_said_at_the_end() {
    let name = "statistics_are_said_at_the_end";
    if let Some(cuda) = guest::enter(name) {
        return program(&cuda);
    }
    let host = Host::usual();
    let (address, on) = (host.address(), "1");
    let environment = [("VGPU_ADDRESS", address.as_str()), ("VGPU_STATS", on)];
    let said = guest::start_with(name, &environment).success().stderr;
    let number = |word| count(&said, word).unwrap_or_else(|| panic!("no {word}: {said}"));
    assert!(number("local") >= 6, "{said}");
    assert!(number("async") >= 11, "ten launches and a copy: {said}");
    assert!(number("sync") >= 6, "with cuInit: {said}");
    assert_eq!(count(&said, "refused"), None, "{said}");
    assert!(said.contains("cuLaunchKernel, "), "{said}");
    assert!(said.contains("3 cuIpcCloseMemHandle"), "not served: {said}");
    let sent = said
        .lines()
        .find(|l| l.contains("bytes sent"))
        .expect("bytes");
    let bytes: Vec<u64> = sent
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    assert!(bytes[0] > 4096 && bytes[1] == 4096, "{sent}");
}

#[test]
fn only_1_turns_statistics_on() {
    let name = "only_1_turns_statistics_on";
    if let Some(cuda) = guest::enter(name) {
        return cuda.begin();
    }
    for (value, told) in [("", false), ("0", false), ("off", true), ("no", true)] {
        let host = Host::usual();
        let address = host.address();
        let environment = [("VGPU_ADDRESS", address.as_str()), ("VGPU_STATS", value)];
        let said = guest::start_with(name, &environment).success().stderr;
        assert!(!said.contains("calls by how"), "{value}: {said}");
        assert_eq!(
            said.matches("VGPU_STATS=").count(),
            usize::from(told),
            "{said}"
        );
    }
}

#[test]
fn lookups_of_what_is_not_served_are_counted_and_told_once_to_who_asks() {
    let name = "lookups_of_what_is_not_served_are_counted_and_told_once_to_who_asks";
    if let Some(cuda) = guest::enter(name) {
        for _ in 0..2 {
            for symbol in [c"cuGreenCtxDestroy", c"cuMemAlloc"] {
                let mut found = std::ptr::null();
                let (symbol, status) = (symbol.as_ptr(), std::ptr::null_mut());
                assert_eq!(
                    cu!(cuda, cuGetProcAddress_v2(
                        symbol => *const c_char,
                        &mut found => *mut *const c_void,
                        12_040 => c_int,
                        0 => u64,
                        status => *mut u32,
                    )),
                    0
                );
            }
        }
        return;
    }
    let host = Host::usual();
    let address = host.address();
    let line = "vgpu: cuGetProcAddress: cuGreenCtxDestroy is not found, since it is not served: ";
    for (level, told) in [("info", 1), ("warn", 0)] {
        let environment = [
            ("VGPU_ADDRESS", address.as_str()),
            ("VGPU_STATS", "1"),
            ("VGPU_LOG", level),
        ];
        let said = guest::start_with(name, &environment).success().stderr;
        assert_eq!(said.matches(line).count(), told, "{level}: {said}");
        let title = "vgpu: looked up, and not found since not served\n";
        let (_, listed) = said
            .split_once(title)
            .unwrap_or_else(|| panic!("no list: {said}"));
        assert!(
            listed
                .trim_start_matches("vgpu:")
                .trim_start()
                .starts_with("2 cuGreenCtxDestroy\n"),
            "{said}"
        );
        assert!(!listed.contains("cuMemAlloc"), "{said}");
    }
}

#[test]
fn a_trace_has_a_line_a_call() {
    let name = "a_trace_has_a_line_a_call";
    if let Some(cuda) = guest::enter(name) {
        return program(&cuda);
    }
    let host = Host::usual();
    let folder = tempfile::tempdir().expect("a folder");
    let pattern = folder.path().join("trace.%p");
    let (address, pattern) = (host.address(), pattern.to_string_lossy().into_owned());
    let environment = [
        ("VGPU_ADDRESS", address.as_str()),
        ("VGPU_TRACE", pattern.as_str()),
    ];
    let said = guest::start_with(name, &environment).success().stderr;
    assert!(!said.contains("vgpu:   "), "no statistics: {said}");
    let mut files = std::fs::read_dir(folder.path()).expect("a folder");
    let file = files.next().expect("a trace").expect("readable").path();
    assert!(!file.to_string_lossy().contains("%p"));
    let trace = std::fs::read_to_string(file).expect("text");
    let lines = |symbol: &str| -> Vec<&str> {
        let call = format!(" {symbol}(");
        trace.lines().filter(|l| l.contains(&call)).collect()
    };
    assert_eq!(lines("cuLaunchKernel").len(), 10);
    assert!(lines("cuLaunchKernel").iter().all(|l| l.ends_with("async")));
    let function = lines("cuModuleGetFunction");
    assert!(function[0].contains("name=\"kernel\""), "{}", function[0]);
    assert!(function[0].ends_with(" µs sync"), "{}", function[0]);
    let free = lines("cuMemFree_v2");
    let wrong = "address=1) = ERROR_INVALID_VALUE";
    assert!(free.iter().any(|l| l.contains(wrong)), "{free:?}");
    assert!(lines("cuIpcCloseMemHandle")[0].contains("not served"));
    assert!(lines("cuCtxGetDevice").iter().all(|l| l.ends_with("local")));
}

#[test]
fn a_trace_that_cannot_be_written_is_no_reason_to_fail() {
    let name = "a_trace_that_cannot_be_written_is_no_reason_to_fail";
    if let Some(cuda) = guest::enter(name) {
        return program(&cuda);
    }
    let host = Host::usual();
    let (address, nowhere) = (host.address(), "/nonexistent/trace");
    let environment = [("VGPU_ADDRESS", address.as_str()), ("VGPU_TRACE", nowhere)];
    let said = guest::start_with(name, &environment).success().stderr;
    assert!(said.contains("VGPU_TRACE: /nonexistent/trace"), "{said}");
}

#[test]
fn a_refused_cu_init_is_counted_as_refused() {
    let name = "a_refused_cu_init_is_counted_as_refused";
    if let Some(cuda) = guest::enter(name) {
        assert_ne!(cu!(cuda, cuInit(0 => u32)), 0);
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("trace").display().to_string();
    let absent = format!("unix:{}", dir.path().join("absent").display());
    let environment = [
        ("VGPU_ADDRESS", absent.as_str()),
        ("VGPU_STATS", "1"),
        ("VGPU_TRACE", trace.as_str()),
    ];
    let said = guest::start_with(name, &environment).success().stderr;
    assert_eq!(count(&said, "refused"), Some(1), "{said}");
    assert_eq!(count(&said, "local"), Some(0), "{said}");
    let lines = std::fs::read_to_string(&trace).expect("a trace");
    let line = lines.lines().find(|line| line.contains("cuInit("));
    assert!(
        line.is_some_and(|line| line.ends_with(" refused")),
        "{lines}"
    );
}
