//! Module images, device printf, device faults.

mod common;

use common::{Bench, Policy, Setup, fixture, ok};
use vgpu_proto::call::{LinkInput, req};
use vgpu_proto::codec::decode;
use vgpu_proto::cuda::{CuResult, DevPtr, Stream};
use vgpu_proto::worker::FromWorker;
use vgpu_wire::load_call;

const NULL: Stream = Stream::NULL;

#[test]
fn an_image_travels_once_and_is_found_by_the_next_worker() {
    let cache = tempfile::tempdir().expect("a directory");
    let image = fixture!("demo/vecadd");
    let setup = || Setup {
        image_dir: Some(cache.path().to_owned()),
        ..Setup::default()
    };
    let mut bench = Bench::with(setup());
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (hash, len) = (*blake3::hash(image).as_bytes(), image.len() as u64);
    assert!(!guest.ask(&req::ImageQuery { hash, len }).present);
    let load = load_call(ctx, (hash, len));
    assert_eq!(
        guest.status(&load),
        CuResult::FILE_NOT_FOUND,
        "it was never sent"
    );
    guest.send_image(image);
    ok(guest.status(&load));
    assert!(guest.ask(&req::ImageQuery { hash, len }).present);
    image_done(&bench);
    drop(bench);

    let mut bench = Bench::with(setup());
    let ctx = bench.primary();
    assert!(bench.guest.ask(&req::ImageQuery { hash, len }).present);
    ok(bench.guest.status(&load_call(ctx, (hash, len))));

    // A damaged file in the cache is refused, removed, and sent again.
    let file = std::fs::read_dir(cache.path())
        .expect("dir")
        .next()
        .expect("a file")
        .expect("a file");
    std::fs::write(file.path(), vec![b'/'; image.len()]).expect("write");
    assert_eq!(
        bench.guest.status(&load_call(ctx, (hash, len))),
        CuResult::FILE_NOT_FOUND
    );
    assert!(!bench.guest.ask(&req::ImageQuery { hash, len }).present);
    bench.guest.module(ctx, image);
}

/// Waits until the worker has released an image's memory.
fn image_done(bench: &Bench) {
    bench.vgpud.wait("ImageDone", |m| {
        matches!(m, FromWorker::ImageDone { .. }).then_some(())
    });
}

#[test]
fn an_image_that_is_not_cached_is_loaded_from_memory_and_sent_again() {
    let policy = Policy {
        keep_images: false,
        ..Policy::default()
    };
    let mut bench = Bench::with(Setup {
        policy,
        ..Setup::default()
    });
    let ctx = bench.primary();
    let image = fixture!("demo/vecadd");
    for _ in 0..3 {
        let sent = bench.guest.send_image(image);
        let load = load_call(ctx, sent);
        ok(bench.guest.status(&load));
        image_done(&bench);
        assert_eq!(bench.guest.status(&load), CuResult::FILE_NOT_FOUND);
    }
    assert_eq!(std::fs::read_dir(&bench.images).expect("dir").count(), 0);
}

#[test]
fn an_image_without_memory_is_refused_with_the_reason() {
    let policy = Policy {
        no_images: Some("the VM has no memory left".to_owned()),
        ..Policy::default()
    };
    let mut bench = Bench::with(Setup {
        policy,
        ..Setup::default()
    });
    let ctx = bench.primary();
    let sent = bench.guest.send_image(fixture!("demo/vecadd"));
    let reply = bench.guest.call(&load_call(ctx, sent));
    assert_eq!(reply.status, CuResult::OUT_OF_MEMORY);
    let results: vgpu_proto::call::rep::ModuleLoad = decode(&reply.args).expect("results");
    assert_eq!(results.error_log, b"the VM has no memory left");
    assert_eq!(bench.guest.errors, [], "only the load reports the error");
    // When memory is available again, the same image loads.
    bench.vgpud.set(|policy| policy.no_images = None);
    bench.guest.module(ctx, fixture!("demo/vecadd"));
}

#[test]
fn an_image_under_a_wrong_hash_is_refused_and_not_kept() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let image = fixture!("demo/vecadd");
    let (hash, len) = ([7u8; 32], image.len() as u64);
    guest.post_bulk(
        &req::ImageData {
            hash,
            len,
            offset: 0,
        },
        image,
    );
    assert_eq!(
        guest.status(&load_call(ctx, (hash, len))),
        CuResult::INVALID_IMAGE
    );
    assert!(!guest.ask(&req::ImageQuery { hash, len }).present);
    // A gap, and a part beyond the end.
    let hash = *blake3::hash(image).as_bytes();
    guest.post_bulk(
        &req::ImageData {
            hash,
            len,
            offset: 0,
        },
        &image[..100],
    );
    let gap = guest.post_bulk(
        &req::ImageData {
            hash,
            len,
            offset: 101,
        },
        &image[101..200],
    );
    assert_eq!(guest.outcome(gap), CuResult::INVALID_VALUE);
    let long = guest.post_bulk(
        &req::ImageData {
            hash,
            len: 10,
            offset: 0,
        },
        &image[..11],
    );
    assert_eq!(guest.outcome(long), CuResult::INVALID_VALUE);
    guest.post_bulk(
        &req::ImageData {
            hash,
            len,
            offset: 0,
        },
        &image[..100],
    );
    assert_eq!(
        guest.status(&load_call(ctx, (hash, len))),
        CuResult::FILE_NOT_FOUND
    );
    assert_eq!(std::fs::read_dir(&bench.images).expect("dir").count(), 0);
}

#[test]
fn a_module_that_does_not_compile_says_why() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let text =
        b".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { nonsense; }\n";
    let image = guest.send_image(text);
    let reply = guest.call(&load_call(ctx, image));
    assert_ne!(reply.status, CuResult::SUCCESS);
    let results: vgpu_proto::call::rep::ModuleLoad = decode(&reply.args).expect("results");
    let log = String::from_utf8_lossy(&results.error_log);
    assert!(log.contains("nonsense"), "{log:?}");
    // Text of exactly one page: the file has no zero byte after the text.
    let mut long = text.to_vec();
    long.resize(4096, b' ');
    let image = guest.send_image(&long);
    assert_ne!(guest.status(&load_call(ctx, image)), CuResult::SUCCESS);
    // A complete ELF file, which is only a header.
    let elf = [b"\x7fELF\x02\x01\x01\x33".as_slice(), &[0; 56]].concat();
    let image = guest.send_image(&elf);
    assert_eq!(
        guest.status(&load_call(ctx, image)),
        CuResult::NO_BINARY_FOR_GPU
    );
    let mut load = load_call(ctx, image);
    load.options = vec![(3, 1 << 20)];
    assert_eq!(
        guest.status(&load),
        CuResult::INVALID_VALUE,
        "a pointer option"
    );
    load.options = vec![(7, 4); 1000];
    assert_eq!(
        guest.status(&load),
        CuResult::INVALID_VALUE,
        "too many options"
    );
}

/// The driver would read other memory of the worker, or crash.
#[test]
fn an_image_that_leads_outside_of_itself_does_not_reach_the_driver() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    const WRAPPER: u64 = 0x4662_43b1 | 1 << 32;
    const FATBIN: u64 = 0xba55_ed50 | 1 << 32 | 16 << 48;
    // Kind PTX, version 1, and the size of the entry's header.
    let entry = |header: u64| 1 | 1 << 16 | header << 32;
    let mut elf = words(&[
        0x3301_0102_464c_457f,
        0,
        0,
        0,
        0,
        1 << 28,
        0,
        3 << 32 | 64 << 16,
    ]);
    elf.resize(4096, 0);
    let own = elf.as_ptr() as u64;
    let images = [
        ("address in a wrapper", words(&[WRAPPER, own, 0])),
        ("small address in a wrapper", words(&[WRAPPER, 0x10000, 0])),
        (
            "fatbin beyond the image",
            words(&[FATBIN, 1 << 20, entry(64), (1 << 20) - 64, 0, 0, 0, 0, 0, 0]),
        ),
        (
            "header of an entry beyond the image",
            words(&[FATBIN, 64, entry(64 << 10), 0, 0, 0, 0, 0, 0, 0]),
        ),
        ("table of sections beyond the file", elf),
    ];
    for (what, image) in images {
        let (hash, len) = guest.send_image(&image);
        let reply = guest.call(&load_call(ctx, (hash, len)));
        assert_eq!(reply.status, CuResult::INVALID_IMAGE, "{what}");
        let results: vgpu_proto::call::rep::ModuleLoad = decode(&reply.args).expect("results");
        let log = String::from_utf8_lossy(&results.error_log);
        assert!(log.contains("the image"), "{what}: {log:?}");
        let input = LinkInput {
            kind: 2,
            hash,
            len,
            name: "input".to_owned(),
        };
        let link = req::Link {
            ctx,
            inputs: vec![input],
            options: vec![],
            info_log_len: 0,
            error_log_len: 1024,
        };
        guest.send_image(&image);
        assert_eq!(guest.status(&link), CuResult::INVALID_IMAGE, "{what}");
    }
    guest.module(ctx, fixture!("demo/vecadd"));
}

#[test]
fn variables_of_a_module_are_memory_until_it_goes() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let text = b".version 7.0\n.target sm_80\n.address_size 64\n\
        .visible .global .align 4 .u32 answer = 42;\n.visible .entry k() { ret; }\n";
    let module = guest.module(ctx, text);
    let global = guest.ask(&req::ModuleGetGlobal {
        module,
        name: "answer".to_owned(),
    });
    assert_eq!(global.size, 4);
    assert_eq!(guest.dtoh(ctx, NULL, global.ptr, 4), 42u32.to_le_bytes());
    let over = req::MemcpyDtoH {
        ctx,
        stream: NULL,
        src: global.ptr,
        len: 5,
    };
    assert_eq!(guest.status(&over), CuResult::INVALID_VALUE);
    assert_eq!(
        guest.status(&req::MemFree { ptr: global.ptr }),
        CuResult::INVALID_VALUE
    );
    for name in ["nothing", "", "an\0swer"] {
        let call = req::ModuleGetGlobal {
            module,
            name: name.to_owned(),
        };
        assert_eq!(guest.status(&call), CuResult::NOT_FOUND, "{name:?}");
        let call = req::ModuleGetFunction {
            module,
            name: name.to_owned(),
        };
        assert_eq!(guest.status(&call), CuResult::NOT_FOUND, "{name:?}");
    }
    ok(guest.status(&req::ModuleUnload { module }));
    let gone = req::MemcpyDtoH {
        ctx,
        stream: NULL,
        src: global.ptr,
        len: 4,
    };
    assert_eq!(guest.status(&gone), CuResult::INVALID_VALUE);
}

#[test]
fn device_printf_arrives_before_the_call_that_makes_it_visible_returns() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("output"));
    let print = guest.function(module, "print_threads");
    for round in 1..=3usize {
        guest.launch((ctx, NULL), print, (2, 4), &[]);
        let id = match round {
            1 => guest.post(&req::StreamSynchronize { ctx, stream: NULL }),
            2 => guest.post(&req::CtxSynchronize { ctx }),
            _ => {
                let event = guest.event(ctx, 0);
                guest.post(&req::EventRecord {
                    ctx,
                    event,
                    stream: NULL,
                    flags: 0,
                });
                guest.post(&req::EventSynchronize { event })
            }
        };
        ok(guest.wait(id).status);
        let text = String::from_utf8(guest.stdout.clone()).expect("text");
        assert_eq!(text.lines().count(), 4 * round, "{text}");
        assert!(text.contains("thread 2 of block 1\n"), "{text}");
    }
}

#[test]
fn a_flood_of_printf_is_forwarded_whole_while_the_guest_reads() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("output"));
    let print = guest.function(module, "print_threads");
    for _ in 0..40 {
        guest.launch((ctx, NULL), print, (32, 256), &[]);
        ok(guest.sync(ctx, NULL));
    }
    let lines = guest.stdout.iter().filter(|b| **b == b'\n').count();
    assert_eq!(lines, 40 * 32 * 128);
}

#[test]
fn printf_beyond_its_bound_is_dropped_in_whole_lines_and_the_next_wait_says_how_much() {
    // The device stores at most 1 MiB of the output of a launch.
    const LAUNCHES: usize = 20;
    const BLOCKS: u32 = 200;
    const LIMIT: usize = 8 << 20;
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("output"));
    let print = guest.function(module, "print_threads");
    for _ in 0..LAUNCHES {
        guest.launch((ctx, NULL), print, (BLOCKS, 256), &[]);
    }
    ok(guest.sync(ctx, NULL));
    let line = |block, thread| format!("thread {thread} of block {block}\n").len();
    let of_block = |block| -> usize { (0..256).step_by(2).map(|t| line(block, t)).sum() };
    let printed = LAUNCHES * (0..BLOCKS).map(of_block).sum::<usize>();
    assert!(printed > LIMIT, "{printed}");
    let forwarded = guest.stdout.len();
    assert!(
        forwarded <= LIMIT && forwarded > LIMIT - 4096,
        "{forwarded}"
    );
    assert_eq!(forwarded as u64 + guest.dropped, printed as u64);
    let whole = |lines: &[u8]| {
        let text = std::str::from_utf8(lines).expect("text");
        text.ends_with('\n') && text.lines().all(|line| line.starts_with("thread "))
    };
    assert!(whole(&guest.stdout));
    // The worker accepts output of kernels again.
    guest.launch((ctx, NULL), print, (1, 4), &[]);
    ok(guest.sync(ctx, NULL));
    assert!(whole(&guest.stdout[forwarded..]));
    assert_eq!(guest.stdout.len() - forwarded, line(0, 0) + line(0, 2));
    assert_eq!(forwarded as u64 + guest.dropped, printed as u64);
}

#[test]
fn a_device_fault_ends_everything_with_its_code() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("faults"));
    let store = guest.function(module, "store");
    let ptr = guest.alloc(ctx, 64);
    let params = [0x10u64.to_le_bytes().to_vec(), 1u32.to_le_bytes().to_vec()].concat();
    guest.launch((ctx, NULL), store, (1, 1), &params);
    let code = CuResult::ILLEGAL_ADDRESS;
    assert_eq!(guest.sync(ctx, NULL), code);
    assert_eq!(guest.errors, [(0, code)]);
    // The fault persists: for queries, copies, allocations, and work that was queued behind it.
    assert_eq!(
        guest.status(&req::MemAlloc {
            ctx,
            size: 64,
            collided: None
        }),
        code
    );
    assert_eq!(
        guest.status(&req::MemcpyDtoH {
            ctx,
            stream: NULL,
            src: ptr,
            len: 4
        }),
        code
    );
    assert_eq!(guest.status(&req::StreamQuery { ctx, stream: NULL }), code);
    guest.post(&req::Memset {
        ctx,
        stream: NULL,
        dst: ptr,
        value: 0,
        width: 1,
        count: 1,
    });
    assert_eq!(guest.status(&req::CtxSynchronize { ctx }), code);
    let fault = bench.vgpud.wait("Fault", |m| match m {
        FromWorker::Fault { code, .. } => Some(*code),
        _ => None,
    });
    assert_eq!(fault, code);
}

#[test]
fn a_fault_answers_all_waiting_callers() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("faults"));
    let store = guest.function(module, "store");
    let spin = guest.module(ctx, fixture!("demo/spin"));
    let spin = guest.function(spin, "spin_ns");
    let ptr = guest.alloc(ctx, 8 << 20);
    let (one, two) = (guest.stream(ctx, 1), guest.stream(ctx, 1));
    let event = guest.event(ctx, 2);
    guest.launch((ctx, one), spin, (1, 1), &50_000_000u64.to_le_bytes());
    let params = [0x10u64.to_le_bytes().to_vec(), 1u32.to_le_bytes().to_vec()].concat();
    guest.launch((ctx, one), store, (1, 1), &params);
    guest.post(&req::EventRecord {
        ctx,
        event,
        stream: one,
        flags: 0,
    });
    let waiting = [
        guest.post(&req::MemcpyDtoH {
            ctx,
            stream: one,
            src: ptr,
            len: 8 << 20,
        }),
        guest.post(&req::StreamSynchronize { ctx, stream: one }),
        guest.post(&req::EventSynchronize { event }),
        guest.post(&req::CtxSynchronize { ctx }),
        guest.post(&req::ModuleUnload { module }),
        guest.post(&req::StreamSynchronize { ctx, stream: two }),
    ];
    let statuses = waiting.map(|id| guest.wait(id).status);
    assert_eq!(statuses[..5], [CuResult::ILLEGAL_ADDRESS; 5]);
    // The stream `two` was empty, so the worker may have checked this stream before the fault.
    assert!([CuResult::ILLEGAL_ADDRESS, CuResult::SUCCESS].contains(&statuses[5]));
}

#[test]
fn an_assertion_prints_and_faults() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("output"));
    let asserts = guest.function(module, "asserts");
    let input = guest.alloc(ctx, 4);
    guest.htod(ctx, NULL, input, &(-1i32).to_le_bytes());
    guest.launch(
        (ctx, NULL),
        asserts,
        (1, 1),
        &DevPtr(input.0).0.to_le_bytes(),
    );
    assert_eq!(guest.sync(ctx, NULL), CuResult::ASSERT);
}
