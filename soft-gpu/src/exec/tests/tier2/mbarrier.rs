//! Barriers in shared memory: threads arrive and wait, over several phases.

use super::{Bench, HEADER};

/// Runs `body` on one block of 96 threads, and returns `%r0` of each thread. `%t` is the thread,
/// `%bar` the address of a barrier, `%o` the address of the thread's result word. `box` is an array
/// of shared words.
fn results(body: &str) -> Vec<u32> {
    let text = format!(
        "{HEADER}.visible .entry k(.param .u64 out) {{\n\
         .reg .b64 %o, %s<4>; .reg .b32 %t, %bar, %b, %r<9>; .reg .pred %p<4>;\n\
         .shared .align 8 .b8 bars[16]; .shared .align 4 .b8 box[512];\n\
         ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mad.wide.u32 %o, %t, 4, %o; mov.u32 %bar, bars;\n\
         mov.u32 %b, box; mad.lo.u32 %b, %t, 4, %b; setp.eq.u32 %p0, %t, 0;\n\
         @%p0 mbarrier.init.shared.b64 [%bar], 96; bar.sync 0;\n\
         {body}\nst.global.u32 [%o], %r0;\nret;\n}}\n"
    );
    let bench = Bench::new();
    let (p, _) = bench.load(&text);
    let out = bench.words(&[0; 96]);
    bench
        .launch(&p, "k", [1, 1, 1], [96, 1, 1], &[out])
        .expect("runs");
    bench.read_words(out, 96)
}

#[test]
pub(super) fn what_was_written_before_an_arrival_is_read_after_the_wait() {
    // In each round, thread t writes a word and reads the word of thread 95 - t.
    let body = "mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r4, box; sub.u32 %r5, 95, %t; mad.lo.u32 %r4, %r5, 4, %r4;\n\
        ROUND: mad.lo.u32 %r2, %r1, 1000, %t; st.shared.u32 [%b], %r2;\n\
        mbarrier.arrive.shared.b64 %s0, [%bar];\n\
        A: mbarrier.test_wait.shared::cta.b64 %p1, [%bar], %s0; @!%p1 bra A;\n\
        ld.shared.u32 %r3, [%r4]; add.u32 %r0, %r0, %r3;\n\
        mbarrier.arrive.release.cta.shared.b64 _, [%bar];\n\
        and.b32 %r6, 1, 1;\n\
        B: mbarrier.try_wait.parity.shared.b64 %p1, [%bar], %r6; @!%p1 bra B;\n\
        add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 3; @%p2 bra ROUND;";
    for (t, got) in results(body).into_iter().enumerate() {
        assert_eq!(got as usize, 3000 + 3 * (95 - t), "thread {t}");
    }
}

#[test]
pub(super) fn states_counts_and_generic_addresses() {
    // Only thread 0 runs, on another barrier, at bars + 8.
    let body = "mov.u32 %r0, 0; @!%p0 bra END; cvt.u64.u32 %s1, %bar; cvta.shared.u64 %s1, %s1;\n\
        mbarrier.init.b64 [%s1+8], 5;\n\
        mbarrier.arrive.noComplete.b64 %s0, [%s1+8], 2; mbarrier.pending_count.b64 %r1, %s0;\n\
        mad.lo.u32 %r0, %r1, 1, 0;\n\
        mbarrier.arrive_drop.shared.b64 %s2, [%bar+8]; mbarrier.pending_count.b64 %r1, %s2;\n\
        mad.lo.u32 %r0, %r0, 10, %r1;\n\
        mbarrier.test_wait.b64 %p1, [%s1+8], %s0; selp.u32 %r2, 1, 0, %p1; mad.lo.u32 %r0, %r0, 10, %r2;\n\
        cp.async.mbarrier.arrive.noinc.shared.b64 [%bar+8];\n\
        cp.async.mbarrier.arrive.shared.b64 [%bar+8];\n\
        mbarrier.arrive.shared.b64 _, [%bar+8];\n\
        mbarrier.test_wait.b64 %p1, [%s1+8], %s0; selp.u32 %r2, 1, 0, %p1; mad.lo.u32 %r0, %r0, 10, %r2;\n\
        mbarrier.arrive.shared.b64 %s3, [%bar+8]; mbarrier.pending_count.b64 %r1, %s3;\n\
        mad.lo.u32 %r0, %r0, 10, %r1; mbarrier.inval.shared.b64 [%bar+8];\n\
        END:";
    // 5 pending arrivals, then 3; not complete; complete after two more arrivals; the next phase
    // expects 4.
    assert_eq!(results(body)[0], 53014);
}

/// Runs each listed form in a phase that expects two arrivals. If the form handles bytes, the phase
/// also expects 16 bytes.
#[test]
pub(super) fn every_form_in_a_phase() {
    for (form, words) in super::listed::forms_of(&["mbarrier"]) {
        if form.contains("pending_count") {
            continue;
        }
        let kind = words[1].as_str();
        let bytes = form.contains("_tx");
        let at = if form.contains("shared") {
            "[%bar+8]"
        } else {
            "[%s1+8]"
        };
        let use_of = |k: &str, default: &str, operands: &str| {
            let (name, at) = if kind == k {
                (form.as_str(), at)
            } else {
                (default, "[%bar+8]")
            };
            operands.replace("OP", name).replace("AT", at)
        };
        let init = use_of("init", "mbarrier.init.shared.b64", "OP AT, 2;");
        let inval = use_of("inval", "mbarrier.inval.shared.b64", "OP AT;");
        let drop = kind == "arrive_drop";
        let no_complete = form.contains("noComplete");
        let count = if no_complete { ", 1" } else { "" };
        let first = match () {
            () if form.starts_with("mbarrier.arrive.expect_tx") => format!("{form} %s0, {at}, 16;"),
            () if drop || kind == "arrive" => format!("{form} %s0, {at}{count};"),
            () => "mbarrier.arrive.shared.b64 %s0, [%bar+8];".to_owned(),
        };
        let expect = match kind {
            "expect_tx" => format!("{form} {at}, 16;"),
            "complete_tx" => "mbarrier.expect_tx.shared.b64 [%bar+8], 16;".to_owned(),
            _ => String::new(),
        };
        let complete = match kind {
            "complete_tx" => format!("{form} {at}, 16;"),
            _ if bytes => "mbarrier.complete_tx.shared.b64 [%bar+8], 16;".to_owned(),
            _ => String::new(),
        };
        let waits = matches!(kind, "test_wait" | "try_wait");
        let parity = form.contains("parity");
        let test = |to: &str| match (waits, parity) {
            (true, true) => format!("{form} {to}, {at}, 0;"),
            (true, false) => format!("{form} {to}, {at}, %s0;"),
            _ => format!("mbarrier.test_wait.shared.b64 {to}, [%bar+8], %s0;"),
        };
        // %r0 gets one more decimal digit for each test of the phase.
        let ask = |n: u32| {
            format!(
                "{} selp.u32 %r{n}, 1, 0, %p1; mad.lo.u32 %r0, %r0, 10, %r{n};\n",
                test("%p1")
            )
        };
        let body = format!(
            "mov.u32 %r0, 7; @!%p0 bra END; cvt.u64.u32 %s1, %bar; cvta.shared.u64 %s1, %s1;\n\
             {init} {expect} {first}\n{}mbarrier.arrive.shared.b64 _, [%bar+8];\n{}{complete}\n{}\
             mbarrier.arrive.shared.b64 %s2, [%bar+8]; mbarrier.pending_count.b64 %r7, %s2;\n\
             mad.lo.u32 %r0, %r0, 10, %r7; {inval}\nEND:",
            ask(2),
            ask(3),
            ask(4)
        );
        // After the second arrival the phase is complete, unless bytes are outstanding. The next
        // phase expects all arrivals that were not dropped.
        let over = u32::from(!bytes);
        let pending = if drop { 1 } else { 2 };
        let want = 70_000 + 100 * over + 10 + pending;
        assert_eq!(results(&body)[0], want, "{form}:\n{body}");
    }
}

/// Completed copies arrive at once, if they count as arrivals (`.noinc`).
#[test]
pub(super) fn copies_arrive() {
    for (space, at) in [
        ("", "[%s1+8]"),
        (".shared", "[%bar+8]"),
        (".shared::cta", "[%bar+8]"),
    ] {
        for (counted, want) in [("", 0), (".noinc", 1)] {
            let body = format!(
                "mov.u32 %r0, 0; @!%p0 bra END; cvt.u64.u32 %s1, %bar; cvta.shared.u64 %s1, %s1;\n\
                 mbarrier.init.shared.b64 [%bar+8], 2; mbarrier.arrive.shared.b64 %s0, [%bar+8];\n\
                 cp.async.mbarrier.arrive{counted}{space}.b64 {at};\n\
                 mbarrier.test_wait.shared.b64 %p1, [%bar+8], %s0; selp.u32 %r0, 1, 0, %p1; END:"
            );
            assert_eq!(results(&body)[0], want, "{counted}{space}");
        }
    }
}
