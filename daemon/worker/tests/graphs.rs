//! Graphs with conditional nodes, whose bodies the driver selects; and a guest that abuses them.

mod common;

use common::{Bench, Guest, Setup, ok};
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Func, Stream};
use vgpu_proto::limits::{MAX_GRAPH_BODIES, MAX_GRAPH_CONDITIONS, MAX_GRAPH_DEPTH, MAX_GRAPHS};

const IF: u32 = 0;
const WHILE: u32 = 1;
const SWITCH: u32 = 2;

/// `set(handle, value)` sets a condition; `step(handle, counter, limit)` counts, and continues the
/// loop while the counter is below the limit.
const PTX: &str = r"
.version 7.0
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 h, .param .b32 v);
.visible .entry set(.param .u64 handle, .param .u32 value)
{
  .reg .b64 %h; .reg .b32 %v;
  ld.param.u64 %h, [handle];
  ld.param.u32 %v, [value];
  { .param .b64 a; .param .b32 b;
    st.param.b64 [a], %h;
    st.param.b32 [b], %v;
    call cudaGraphSetConditional, (a, b); }
  ret;
}
.visible .entry step(.param .u64 handle, .param .u64 counter, .param .u32 limit)
{
  .reg .b64 %h, %c; .reg .b32 %n, %l, %v; .reg .pred %p;
  ld.param.u64 %h, [handle];
  ld.param.u64 %c, [counter];
  ld.param.u32 %l, [limit];
  ld.global.u32 %n, [%c];
  add.u32 %n, %n, 1;
  st.global.u32 [%c], %n;
  setp.lt.u32 %p, %n, %l;
  selp.u32 %v, 1, 0, %p;
  { .param .b64 a; .param .b32 b;
    st.param.b64 [a], %h;
    st.param.b32 [b], %v;
    call cudaGraphSetConditional, (a, b); }
  ret;
}
";

/// A guest with the two kernels, a stream and four words of memory.
struct Scene {
    bench: Bench,
    ctx: Ctx,
    set: Func,
    step: Func,
    stream: Stream,
    words: DevPtr,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(Setup::default())
    }

    fn with(setup: Setup) -> Scene {
        let mut bench = Bench::with(setup);
        let ctx = bench.primary();
        let guest = &mut bench.guest;
        let module = guest.module(ctx, PTX.as_bytes());
        let (set, step) = (
            guest.function(module, "set"),
            guest.function(module, "step"),
        );
        let (stream, words) = (guest.stream(ctx, 1), guest.alloc(ctx, 16));
        Scene {
            bench,
            ctx,
            set,
            step,
            stream,
            words,
        }
    }

    fn guest(&mut self) -> &mut Guest {
        &mut self.bench.guest
    }

    fn graph(&mut self) -> Stream {
        let (ctx, graph) = (self.ctx, Stream(self.guest().fresh()));
        self.guest().post(&req::GraphCreate { ctx, graph });
        graph
    }

    /// A recording that fills one word with a byte value.
    fn filling(&mut self, word: u64, value: u32) -> Stream {
        let graph = self.graph();
        self.fill(graph, word, value);
        graph
    }

    fn fill(&mut self, place: Stream, word: u64, value: u32) {
        let call = req::Memset {
            ctx: self.ctx,
            stream: place,
            dst: DevPtr(self.words.0 + 4 * word),
            value,
            width: 1,
            count: 4,
        };
        self.guest().post(&call);
    }

    fn condition(&mut self, home: Stream, default: u32, flags: u32) -> u64 {
        let call = req::GraphCondition {
            ctx: self.ctx,
            home,
            default,
            flags,
        };
        self.guest().ask(&call).handle
    }

    fn home(&mut self) -> (Stream, u64) {
        let home = Stream(self.guest().fresh());
        (home, self.condition(home, 0, 0))
    }

    fn set(&mut self, place: Stream, handle: u64, value: u32) {
        let mut params = handle.to_le_bytes().to_vec();
        params.extend(value.to_le_bytes());
        let (to, func) = ((self.ctx, place), self.set);
        self.guest().launch(to, func, (1, 1), &params);
    }

    fn step(&mut self, place: Stream, handle: u64, limit: u32) {
        let mut params = handle.to_le_bytes().to_vec();
        params.extend(self.words.0.to_le_bytes());
        params.extend(limit.to_le_bytes());
        let (to, func) = ((self.ctx, place), self.step);
        self.guest().launch(to, func, (1, 1), &params);
    }

    fn node(
        &mut self,
        graph: Stream,
        (home, handle): (Stream, u64),
        kind: u32,
        bodies: &[Stream],
    ) -> CuResult {
        let call = req::GraphConditional {
            graph,
            home,
            handle,
            kind,
            bodies: bodies.to_vec(),
        };
        self.guest().status(&call)
    }

    fn build(&mut self, graph: Stream) -> CuResult {
        self.guest().status(&req::GraphBuild { graph })
    }

    fn launch(&mut self, graph: Stream) -> u64 {
        let (ctx, stream) = (self.ctx, self.stream);
        self.guest().post(&req::GraphLaunch { ctx, stream, graph })
    }

    /// Clears the words, launches the graph and returns the words.
    fn words_after(&mut self, graph: Stream) -> [u32; 4] {
        let (ctx, stream, words) = (self.ctx, self.stream, self.words);
        self.guest().htod(ctx, stream, words, &[0; 16]);
        self.launch(graph);
        let bytes = self.guest().dtoh(ctx, stream, words, 16);
        std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|b| bytes[4 * i + b])))
    }
}

const ONES: u32 = 0x0101_0101;

#[test]
fn if_else_and_switch_run_what_the_value_says() {
    let mut s = Scene::new();
    for (value, expected) in [(1, [ONES, 0]), (0, [0, ONES]), (7, [ONES, 0])] {
        let (graph, home) = (s.graph(), s.home());
        let bodies = [s.filling(0, 1), s.filling(1, 1)];
        s.set(graph, home.1, value);
        ok(s.node(graph, home, IF, &bodies));
        s.fill(graph, 3, 1);
        ok(s.build(graph));
        let [a, b, c, d] = s.words_after(graph);
        assert_eq!(([a, b], c, d), (expected, 0, ONES), "{value}");
        let again = s.words_after(graph);
        assert_eq!(again, [a, b, c, d], "launched again");
    }
    for value in 0..5 {
        let (graph, home) = (s.graph(), s.home());
        let bodies = [s.filling(0, 1), s.filling(1, 1), s.filling(2, 1)];
        s.set(graph, home.1, value);
        ok(s.node(graph, home, SWITCH, &bodies));
        ok(s.build(graph));
        let expected = std::array::from_fn(|i| if i as u32 == value && i < 3 { ONES } else { 0 });
        assert_eq!(s.words_after(graph), expected, "{value}");
    }
}

#[test]
fn a_loop_runs_until_a_kernel_ends_it_and_is_one_operation() {
    let mut s = Scene::new();
    let (graph, body) = (s.graph(), s.graph());
    let home = Stream(s.guest().fresh());
    // A condition that is 1 at the start of every launch.
    let handle = s.condition(home, 1, 1);
    s.step(body, handle, 10);
    ok(s.node(graph, (home, handle), WHILE, &[body]));
    ok(s.build(graph));
    let pages = s.bench.vgpud.pages;
    assert_eq!(s.words_after(graph)[0], 10);
    let before = pages.hints().submitted;
    assert_eq!(s.words_after(graph)[0], 10);
    assert_eq!(pages.hints().submitted - before, 3, "copy, launch, copy");
    // A launched graph runs to its end even if its handles are destroyed.
    s.launch(graph);
    for name in [graph, home] {
        ok_posted(&mut s, &req::GraphDestroy { graph: name });
    }
    let (ctx, stream) = (s.ctx, s.stream);
    ok(s.guest().sync(ctx, stream));
}

#[track_caller]
fn ok_posted(s: &mut Scene, call: &req::GraphDestroy) {
    let id = s.guest().post(call);
    ok(s.guest().outcome(id));
}

#[test]
fn nodes_lie_within_each_other_and_are_built_again_in_the_same_home() {
    let mut s = Scene::new();
    let home = Stream(s.guest().fresh());
    let (outer, inner) = (s.condition(home, 0, 0), s.condition(home, 0, 0));
    for (first, second, expected) in [(1, 1, [ONES, ONES]), (1, 0, [ONES, 0]), (0, 1, [0, 0])] {
        let (graph, body, innermost) = (s.graph(), s.filling(0, 1), s.filling(1, 1));
        s.set(body, inner, second);
        ok(s.node(body, (home, inner), IF, &[innermost]));
        s.set(graph, outer, first);
        ok(s.node(graph, (home, outer), IF, &[body]));
        ok(s.build(graph));
        assert_eq!(s.words_after(graph)[..2], expected);
        // The next graph is built while the present graph exists.
    }
}

#[test]
fn incomplete_and_foreign_graphs_are_refused() {
    let mut s = Scene::new();
    let (graph, home, body) = (s.graph(), s.home(), s.filling(0, 1));
    let other = s.home();
    let (invalid, handle) = (CuResult::INVALID_VALUE, CuResult::INVALID_HANDLE);
    // An empty graph cannot be built.
    assert_eq!(s.build(graph), invalid);
    // Cycles: a graph in itself, a body twice, a body that is already part of another node.
    assert_eq!(s.node(graph, home, IF, &[graph]), invalid);
    assert_eq!(s.node(graph, home, IF, &[body, body]), invalid);
    assert_eq!(s.node(graph, home, IF, &[Stream(0)]), handle);
    assert_eq!(s.node(graph, home, IF, &[home.0]), handle);
    // Handles of other homes, unknown handles, and unknown rules.
    assert_eq!(s.node(graph, (other.0, home.1), IF, &[body]), handle);
    assert_eq!(s.node(graph, (home.0, home.1 ^ 8), IF, &[body]), handle);
    assert_eq!(s.node(graph, (graph, home.1), IF, &[body]), handle);
    assert_eq!(s.node(graph, home, 3, &[body]), invalid);
    assert_eq!(s.node(graph, home, u32::MAX, &[body]), invalid);
    assert_eq!(s.node(graph, home, WHILE, &[]), invalid);
    let many = vec![body; MAX_GRAPH_BODIES + 1];
    assert_eq!(s.node(graph, home, SWITCH, &many), invalid);
    // None of these calls took the body.
    ok(s.node(graph, home, IF, &[body]));
    assert_eq!(
        s.node(graph, home, IF, &[body]),
        handle,
        "the body is taken"
    );
    // A launch fails before the graph is built and after its home is destroyed.
    let early = s.launch(graph);
    assert_eq!(s.guest().outcome(early), invalid);
    ok_posted(&mut s, &req::GraphDestroy { graph: home.0 });
    assert_eq!(s.build(graph), handle);
    // A new home with the same handle is another object, even if the driver gives its condition the
    // same number.
    let again = s.condition(home.0, 0, 0);
    if again != home.1 {
        assert_eq!(s.build(graph), handle);
    }
    // Nodes of two homes cannot be in one graph.
    let (graph, bodies) = (s.graph(), [s.filling(0, 1), s.filling(1, 1)]);
    let home = s.home();
    ok(s.node(graph, home, IF, &bodies[..1]));
    ok(s.node(graph, other, IF, &bodies[1..]));
    assert_eq!(s.build(graph), invalid);
    // A built graph can neither be built again, nor extended, nor be a body.
    let (graph, body) = (s.graph(), s.filling(0, 1));
    ok(s.node(graph, home, IF, &[body]));
    ok(s.build(graph));
    assert_eq!(s.build(graph), invalid);
    let more = s.filling(0, 1);
    assert_eq!(s.node(graph, home, IF, &[more]), invalid);
    assert_eq!(s.node(more, home, IF, &[graph]), invalid);
    assert_eq!(s.words_after(graph), [0; 4], "the graph still launches");
}

#[test]
fn conditions_are_bounded_by_number_depth_and_context() {
    let mut s = Scene::new();
    let home = s.home();
    let (invalid, full) = (CuResult::INVALID_VALUE, CuResult::OUT_OF_MEMORY);
    // The largest depth, and one more.
    let mut inner = s.filling(0, 1);
    for _ in 0..MAX_GRAPH_DEPTH {
        let outer = s.graph();
        ok(s.node(outer, home, IF, &[inner]));
        inner = outer;
    }
    let outer = s.graph();
    assert_eq!(s.node(outer, home, IF, &[inner]), invalid);
    let wrong = req::GraphCondition {
        ctx: s.ctx,
        home: home.0,
        default: 0,
        flags: 2,
    };
    assert_eq!(s.guest().status(&wrong), invalid);
    let (device, flags) = (0, 0);
    let other = s.guest().ask(&req::CtxCreate { device, flags }).ctx;
    let crossed = req::GraphCondition {
        ctx: other,
        flags: 0,
        ..wrong
    };
    assert_eq!(s.guest().status(&crossed), CuResult::INVALID_HANDLE);
    // First the homes, then the handles.
    let call = |home| req::GraphCondition {
        ctx: other,
        home,
        default: 0,
        flags: 0,
    };
    let mut made = 1;
    while made < MAX_GRAPHS {
        let home = Stream(s.guest().fresh());
        let status = s.guest().status(&call(home));
        if status != CuResult::SUCCESS {
            panic!("{made}: {status}");
        }
        made += 1;
    }
    let last = Stream(s.guest().fresh());
    assert_eq!(s.guest().status(&call(last)), full);
    const { assert!(MAX_GRAPH_CONDITIONS == MAX_GRAPHS) };
    let mine = s.ctx;
    let call = req::GraphCondition {
        ctx: mine,
        ..call(home.0)
    };
    assert_eq!(s.guest().status(&call), full);
    // Destroying a context destroys its homes.
    ok(s.guest().status(&req::CtxDestroy { ctx: other }));
    ok(s.guest().status(&call));
}

#[test]
fn memory_that_a_body_names_must_be_there_at_every_launch() {
    let mut s = Scene::new();
    let (graph, home) = (s.graph(), s.home());
    let ctx = s.ctx;
    let gone = s.guest().alloc(ctx, 64);
    let body = s.graph();
    let fill = req::Memset {
        ctx,
        stream: body,
        dst: gone,
        value: 1,
        width: 1,
        count: 64,
    };
    s.guest().post(&fill);
    s.set(graph, home.1, 1);
    ok(s.node(graph, home, IF, &[body]));
    ok(s.build(graph));
    let there = s.launch(graph);
    ok(s.guest().outcome(there));
    let (ctx, stream) = (s.ctx, s.stream);
    ok(s.guest().sync(ctx, stream));
    ok(s.guest().status(&req::MemFree { ptr: gone }));
    let stale = s.launch(graph);
    assert_eq!(s.guest().outcome(stale), CuResult::INVALID_VALUE);
}
