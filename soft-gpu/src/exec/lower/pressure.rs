//! An estimate of the number of registers that a kernel would have on hardware. PTX is not
//! translated to machine code here, so no compiler allocates registers.
//!
//! A virtual register is live from its first to its last use in the text. If a loop uses a register
//! that is live before the loop, the register is live until the end of the loop. The estimate is
//! the largest number of 32-bit words of registers that are live at once.

use std::collections::HashMap;

use crate::ptx::ast::{Function, Module, Operand, Statement, Type};

/// Registers are allocated in multiples of this number.
const UNIT: u32 = 8;
/// Fewest registers of a kernel.
const FEWEST: u32 = 16;
/// Most registers of a thread.
const MOST: u32 = 255;
/// Registers of a multiprocessor.
const FILE: u32 = 65536;
/// Registers added to the estimate for addresses, parameters and similar values. Machine code has
/// registers for these values, PTX has none.
const OVERHEAD: u32 = 4;
/// Most loops that extend the life of one register, one after another.
const NESTING: usize = 64;

/// The estimate for a kernel. The result is limited so that one block of `threads` threads fits.
pub(super) fn registers(module: &Module, kernel: &Function, threads: u32) -> u32 {
    let own = most(kernel);
    let calls = kernel.body.iter().any(|s| match s {
        Statement::Inst(i) => i.opcode.starts_with("call"),
        Statement::Label(_) => false,
    });
    let called = if calls {
        let functions = module.functions.iter();
        let bodies = functions.filter(|f| !f.kernel && !f.declaration);
        bodies.map(most).max().unwrap_or(0)
    } else {
        0
    };
    let wanted = (own.max(called) + OVERHEAD).next_multiple_of(UNIT);
    let blocks = kernel.min_cta_per_sm.unwrap_or(1).max(1);
    let fits = FILE / threads.max(1).saturating_mul(blocks) / UNIT * UNIT;
    let bound = kernel.max_registers.unwrap_or(MOST).min(MOST);
    wanted
        .clamp(FEWEST, fits.max(FEWEST))
        .min(bound.max(FEWEST))
}

/// The first and the last statement that use a register, and its size in words.
struct Life {
    first: usize,
    last: usize,
    words: u32,
}

/// The largest number of words that live registers take at once.
fn most(f: &Function) -> u32 {
    let lives = lives(f);
    let loops = Loops::of(f);
    let mut change = vec![0i64; f.body.len() + 1];
    for life in lives.values() {
        change[life.first] += i64::from(life.words);
        change[loops.end(life)] -= i64::from(life.words);
    }
    let (mut now, mut most) = (0, 0);
    for c in change {
        now += c;
        most = most.max(now);
    }
    u32::try_from(most).unwrap_or(MOST).min(MOST)
}

fn lives(f: &Function) -> HashMap<&str, Life> {
    let types: HashMap<&str, Type> = f.registers.iter().map(|(n, t)| (n.as_str(), *t)).collect();
    let mut lives: HashMap<&str, Life> = HashMap::new();
    for (at, statement) in f.body.iter().enumerate() {
        let Statement::Inst(i) = statement else {
            continue;
        };
        visit(&i.operands, &mut |name| {
            let words = match types.get(name) {
                None | Some(Type::Pred) => return,
                Some(t) => (t.size() as u32).div_ceil(4),
            };
            let life = lives.entry(name).or_insert(Life {
                first: at,
                last: at,
                words,
            });
            life.last = at;
        });
    }
    lives
}

/// Visits the names in operands.
fn visit<'a>(operands: &'a [Operand], name: &mut dyn FnMut(&'a str)) {
    let mut open: Vec<&Operand> = operands.iter().collect();
    while let Some(operand) = open.pop() {
        match operand {
            Operand::Name(n) | Operand::Offset(n, _) | Operand::Memory { base: Some(n), .. } => {
                name(n);
            }
            Operand::Negated(inner) => open.push(inner),
            Operand::Vector(all) | Operand::List(all) => open.extend(all),
            Operand::Pair(a, b) => open.extend([&**a, &**b]),
            _ => {}
        }
    }
}

/// The loops of a body. A loop goes from a label to the last branch back to this label.
struct Loops {
    /// Index of the first statement of each loop, ascending.
    starts: Vec<usize>,
    /// `ends[level][i]` is the largest end among the `2^level` loops from loop `i` on.
    ends: Vec<Vec<usize>>,
}

impl Loops {
    fn of(f: &Function) -> Loops {
        let mut labels: HashMap<&str, usize> = HashMap::new();
        let mut ends: Vec<(usize, usize)> = Vec::new();
        let mut index: HashMap<usize, usize> = HashMap::new();
        for (at, statement) in f.body.iter().enumerate() {
            match statement {
                Statement::Label(name) => {
                    labels.insert(name, at);
                }
                Statement::Inst(i) if i.opcode.starts_with("bra") => {
                    visit(&i.operands, &mut |name| {
                        if let Some(&start) = labels.get(name) {
                            let slot = *index.entry(start).or_insert(ends.len());
                            if slot == ends.len() {
                                ends.push((start, at));
                            }
                            ends[slot].1 = at;
                        }
                    });
                }
                Statement::Inst(_) => {}
            }
        }
        ends.sort_unstable();
        let starts = ends.iter().map(|e| e.0).collect();
        let mut levels = vec![ends.iter().map(|e| e.1).collect::<Vec<_>>()];
        let mut span = 1;
        while span * 2 <= ends.len() {
            let below = &levels[levels.len() - 1];
            let pairs = below.iter().zip(&below[span..]);
            levels.push(pairs.map(|(a, b)| *a.max(b)).collect());
            span *= 2;
        }
        Loops {
            starts,
            ends: levels,
        }
    }

    /// The largest end of the loops that start in `(after, upto]`; 0 if there are none.
    fn last_end(&self, after: usize, upto: usize) -> usize {
        let from = self.starts.partition_point(|s| *s <= after);
        let to = self.starts.partition_point(|s| *s <= upto);
        if from >= to {
            return 0;
        }
        let level = (to - from).ilog2() as usize;
        let row = &self.ends[level];
        row[from].max(row[to - (1 << level)])
    }

    /// The statement until which a register is live.
    fn end(&self, life: &Life) -> usize {
        let mut last = life.last;
        for _ in 0..NESTING {
            let further = self.last_end(life.first, last);
            if further <= last {
                break;
            }
            last = further;
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(head: &str, body: &str) -> Module {
        let text = format!(
            ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p){head}\n{{\n\
             .reg .pred %p<4>; .reg .b32 %r<200>; .reg .b64 %d<9>;\n{body}\nret;\n}}\n"
        );
        crate::ptx::parse(text.as_bytes()).expect("PTX")
    }

    fn of(head: &str, body: &str, threads: u32) -> u32 {
        let m = module(head, body);
        registers(&m, &m.functions[0], threads)
    }

    fn chain() -> String {
        (1..100)
            .map(|n| format!("add.u32 %r{n}, %r{}, 1;\n", n - 1))
            .collect()
    }

    fn crowd(n: usize) -> String {
        let made = (0..n).map(|n| format!("mov.u32 %r{n}, {n};\n"));
        let used = (0..n).map(|n| format!("st.global.u32 [%d0], %r{n};\n"));
        made.chain(used).collect()
    }

    #[test]
    fn simultaneously_live_registers_count() {
        assert_eq!(of("", &chain(), 1024), 16, "two at a time");
        assert_eq!(of("", &crowd(40), 1024), 48, "40 and an address");
        let m = module("", &crowd(40));
        assert_eq!(
            most(&m.functions[0]),
            41,
            "the address takes the place of the first value"
        );
    }

    #[test]
    fn registers_older_than_a_loop_live_to_its_end() {
        // Twenty values have their last use at the start of the loop; twenty more are live later in
        // the loop.
        let older: String = (0..20).map(|n| format!("mov.u32 %r{n}, {n};\n")).collect();
        let used: String = (0..20)
            .map(|n| format!("st.global.u32 [%d0], %r{n};\n"))
            .collect();
        let later = crowd(40)
            .lines()
            .filter(|l| {
                !(0..20).any(|n| l.ends_with(&format!("%r{n};")) || l.contains(&format!("%r{n},")))
            })
            .collect::<Vec<_>>()
            .join("\n");
        let straight = module("", &format!("{older}{used}{later}"));
        let looped = module("", &format!("{older}$L:\n{used}{later}\nbra $L;"));
        let (straight, looped) = (most(&straight.functions[0]), most(&looped.functions[0]));
        assert_eq!((straight, looped), (22, 42));
    }

    #[test]
    fn one_block_fits_and_bounds_hold() {
        assert_eq!(of("", &crowd(150), 1024), 64);
        assert_eq!(of("", &crowd(150), 256), 160);
        assert_eq!(of(" .minnctapersm 4", &crowd(150), 256), 64);
        assert_eq!(of(" .maxnreg 40", &crowd(150), 256), 40);
    }
}
