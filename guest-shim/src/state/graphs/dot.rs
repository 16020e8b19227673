//! `cuGraphDebugDotPrint`: a graph in the language of Graphviz.

use std::fmt::Write as _;

use vgpu_cuda_abi::numbers::dot_flag::{HANDLES, VERBOSE};

use super::{Graph, Kind, Node};
use crate::lock;

fn title(kind: &Kind) -> &'static str {
    match kind {
        Kind::Kernel(_) => "KERNEL",
        Kind::Copy(_) => "MEMCPY",
        Kind::Fill(_) => "MEMSET",
        Kind::Host(_) => "HOST",
        Kind::Child(_) => "GRAPH",
        Kind::Empty => "EMPTY",
        Kind::Wait(_) => "WAIT_EVENT",
        Kind::Record(_) => "EVENT_RECORD",
        Kind::Alloc(_) => "MEM_ALLOC",
        Kind::Free(_) => "MEM_FREE",
        Kind::Words(_) => "BATCH_MEM_OP",
        Kind::Conditional(_) => "CONDITIONAL",
    }
}

fn details(kind: &Kind) -> String {
    match kind {
        Kind::Kernel(k) => {
            let ([gx, gy, gz], [bx, by, bz]) = (k.grid, k.block);
            let shared = k.shared;
            format!("\\<\\<\\<({gx},{gy},{gz}),({bx},{by},{bz}),{shared}\\>\\>\\>")
        }
        Kind::Fill(f) => format!(
            "{:#x}\\n{} x {}, {} bytes of {:#x}",
            f.dst, f.columns, f.rows, f.width, f.value
        ),
        Kind::Child(graph) => format!("graph {}", graph.id),
        Kind::Wait(event) | Kind::Record(event) => format!("event {event:#x}"),
        Kind::Alloc(block) => format!("{:#x}, {} bytes", block.address, block.size),
        Kind::Free(block) => format!("{:#x}", block.address),
        Kind::Words(words) => format!("{} operations", words.len()),
        Kind::Conditional(node) => {
            let rule = ["if", "while", "switch"].get(node.rule as usize);
            format!("{} {:#x}", rule.unwrap_or(&"?"), node.condition.handle)
        }
        Kind::Copy(_) | Kind::Host(_) | Kind::Empty => String::new(),
    }
}

fn label(node: &Node, flags: u32) -> String {
    let kind = lock(&node.kind);
    let mut text = format!("{}\\n{}", node.local, title(&kind));
    let about = details(&kind);
    // The shape of a launch is always shown, other details only on request.
    if !about.is_empty() && (flags & !HANDLES != 0 || matches!(*kind, Kind::Kernel(_))) {
        let _ = write!(text, "\\n{about}");
    }
    if flags & (HANDLES | VERBOSE) != 0 {
        let _ = write!(text, "\\n{:#x}", node.handle);
    }
    text
}

fn cluster(graph: &Graph, flags: u32, out: &mut String) {
    let nodes = graph.nodes();
    let id = graph.id;
    let _ = writeln!(
        out,
        "subgraph cluster_{id} {{\nlabel=\"graph_{id}\" graph[style=\"dashed\"];"
    );
    let name = |local: u32| format!("\"graph_{id}_node_{local}\"");
    for node in &nodes {
        let (name, text) = (name(node.local), label(node, flags));
        let _ = writeln!(
            out,
            "{name}[style=\"solid\" shape=\"rectangle\" label=\"{text}\"];"
        );
    }
    for node in &nodes {
        for before in lock(&node.dependencies).iter() {
            if let Some(before) = nodes.iter().find(|n| n.handle == *before) {
                let _ = writeln!(out, "{} -> {};", name(before.local), name(node.local));
            }
        }
    }
    for node in &nodes {
        let kind = lock(&node.kind).clone();
        kind.graphs().iter().for_each(|g| cluster(g, flags, out));
    }
    out.push_str("}\n");
}

/// The DOT text of a graph and of its inner graphs.
pub(crate) fn text(graph: &Graph, flags: u32) -> String {
    let mut out = String::from("digraph dot {\n");
    cluster(graph, flags, &mut out);
    out.push_str("}\n");
    out
}
