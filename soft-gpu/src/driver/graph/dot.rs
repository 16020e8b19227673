//! cuGraphDebugDotPrint: a graph in Graphviz's language.

use std::fmt::Write as _;

use vgpu_cuda_abi::numbers::dot_flag::{HANDLES, VERBOSE};

use super::Graph;
use super::node::{Action, Node};

fn title(action: &Action) -> &'static str {
    match action {
        Action::Kernel(_) => "KERNEL",
        Action::Memcpy(..) => "MEMCPY",
        Action::Memset(..) => "MEMSET",
        Action::Host(_) => "HOST",
        Action::Child(_) => "GRAPH",
        Action::Empty => "EMPTY",
        Action::EventWait(_) => "WAIT_EVENT",
        Action::EventRecord(_) => "EVENT_RECORD",
        Action::Alloc(_) => "MEM_ALLOC",
        Action::Free(_) => "MEM_FREE",
        Action::MemOps(..) => "BATCH_MEM_OP",
        Action::Conditional(_) => "CONDITIONAL",
    }
}

fn details(action: &Action) -> String {
    match action {
        Action::Kernel(k) => {
            let ([gx, gy, gz], [bx, by, bz]) = (k.shape.grid, k.shape.block);
            let name = &k.function.info.name;
            let shared = k.shape.shared;
            format!("{name}\\n\\<\\<\\<({gx},{gy},{gz}),({bx},{by},{bz}),{shared}\\>\\>\\>")
        }
        Action::Memcpy(c, _) => format!(
            "{:#x} to {:#x}\\n{} x {} x {}",
            c.src.device.max(c.src.host),
            c.dst.device.max(c.dst.host),
            c.width,
            c.height,
            c.depth
        ),
        Action::Memset(m, _) => format!(
            "{:#x}\\n{} x {}, {} bytes of {:#x}",
            m.dst, m.width, m.height, m.element, m.value
        ),
        Action::Host(h) => format!("{:p}", h.call as *const ()),
        Action::Child(g) => format!("graph {}", g.id),
        Action::EventWait(e) | Action::EventRecord(e) => format!("event {:#x}", e.handle),
        Action::Alloc(a) => format!("{:#x}, {} bytes", a.block.addr, a.block.size),
        Action::Free(b) => format!("{:#x}", b.addr),
        Action::MemOps(ops, _) => format!("{} operations", ops.len()),
        Action::Conditional(c) => format!("{:?} {:#x}", c.kind, c.cell.addr),
        Action::Empty => String::new(),
    }
}

fn label(node: &Node, flags: u32) -> String {
    let mut text = format!("{}\\n{}", node.local, title(&node.action));
    let about = details(&node.action);
    // The name of a kernel always appears; other details only with the flags.
    if !about.is_empty() && (flags & !HANDLES != 0 || matches!(node.action, Action::Kernel(_))) {
        let _ = write!(text, "\\n{about}");
    }
    if flags & (HANDLES | VERBOSE) != 0 {
        let _ = write!(text, "\\n{:#x}", node.handle);
    }
    text.replace('"', "'")
}

fn cluster(graph: &Graph, flags: u32, out: &mut String) {
    let body = graph.lock();
    let id = graph.id;
    let _ = writeln!(
        out,
        "subgraph cluster_{id} {{\nlabel=\"graph_{id}\" graph[style=\"dashed\"];"
    );
    let name = |node: &Node| format!("\"graph_{id}_node_{}\"", node.local);
    for node in body.nodes.values() {
        let text = label(node, flags);
        let _ = writeln!(
            out,
            "{}[style=\"solid\" shape=\"rectangle\" label=\"{text}\"];",
            name(node)
        );
    }
    for e in &body.edges {
        if let (Some(from), Some(to)) = (body.nodes.get(&e.from), body.nodes.get(&e.to)) {
            let _ = writeln!(out, "{} -> {};", name(from), name(to));
        }
    }
    for node in body.nodes.values() {
        for inner in node.action.graphs() {
            cluster(inner, flags, out);
        }
    }
    out.push_str("}\n");
}

/// The Graphviz text of a graph and its child graphs.
pub fn text(graph: &Graph, flags: u32) -> String {
    let mut out = String::from("digraph dot {\n");
    cluster(graph, flags, &mut out);
    out.push_str("}\n");
    out
}
