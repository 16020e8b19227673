//! Branches, calls, barriers, fences.

use super::func::{Func, Reg};
use super::mods::Mods;
use super::operand::Want;
use super::{R, Sym, Why};
use crate::exec::inst::{Inst, NONE, op, op_plain};
use crate::exec::ops::builtin::{Builtin, CallBuiltin};
use crate::exec::ops::control::{
    Bar, BarWarp, Bra, BrxIdx, Call, CallIndirect, Exit, Fence, Fetch, Nop, Ret, Sleep, Trap, bar,
};
use crate::exec::program::CallSite;
use crate::exec::runtime::{self, call::CallRuntime};
use crate::exec::warp::Place;
use crate::ptx::ast::{Function, Module, Operand, Param, Type};

/// Lowers control instructions. Returns false for any other opcode.
pub(crate) fn lower<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    match m.base {
        "bra" => {
            m.ignore(&["uni"]);
            let [Operand::Name(label)] = ops else {
                return Err(Why::invalid("expected a label"));
            };
            f.emit_to(op::<Bra>(), label);
        }
        "brx" => brx(f, m, ops)?,
        "call" => call(f, m, ops)?,
        "ret" => {
            m.ignore(&["uni"]);
            f.emit(Inst {
                run: op_plain::<Ret>(),
                ..f.blank()
            });
        }
        "exit" => f.emit(Inst {
            run: op_plain::<Exit>(),
            ..f.blank()
        }),
        "trap" | "brkpt" => f.emit(Inst {
            run: op_plain::<Trap>(),
            ..f.blank()
        }),
        // Some libraries have kernels with texture fetches that programs do not run. Such a kernel
        // loads, and an executed fetch faults.
        "tex" => {
            m.clear();
            f.emit(Inst {
                run: op_plain::<Fetch>(),
                ..f.blank()
            });
        }
        "bar" | "barrier" => barrier(f, m, ops)?,
        "membar" | "fence" => {
            m.clear();
            f.emit(Inst {
                run: op_plain::<Fence>(),
                ..f.blank()
            });
        }
        "nanosleep" => {
            m.ignore(&["u32"]);
            f.plan(op_plain::<Sleep>(), "i", ops, 0)?;
        }
        // A grid begins only when the previous grid is complete, so these instructions wait for
        // nothing.
        "pmevent" | "griddepcontrol" => {
            m.clear();
            f.emit(Inst {
                run: op_plain::<Nop>(),
                ..f.blank()
            });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn brx<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    m.ignore(&["idx", "uni"]);
    let [index, Operand::Name(table)] = ops else {
        return Err(Why::invalid("expected an index and a table of labels"));
    };
    let ast = f.ast;
    let Some((_, labels)) = ast.targets.iter().find(|(n, _)| n == table) else {
        return Err(Why::invalid(format!("no .branchtargets {table}")));
    };
    let a = f.src(index, Want::I32)?;
    let imm = f.table(labels);
    f.emit(Inst {
        run: op_plain::<BrxIdx>(),
        a,
        imm,
        ..f.blank()
    });
    Ok(())
}

/// The parts of a call: results, target, arguments, prototype.
type Parts<'o> = (
    &'o [Operand],
    &'o Operand,
    &'o [Operand],
    Option<&'o Operand>,
);

fn parts(ops: &[Operand]) -> R<Parts<'_>> {
    let (rets, rest): (&[Operand], _) = match ops {
        [Operand::List(r), rest @ ..] => (r, rest),
        rest => (&[], rest),
    };
    let (target, rest) = rest
        .split_first()
        .ok_or_else(|| Why::invalid("no function"))?;
    let (args, rest): (&[Operand], _) = match rest {
        [Operand::List(a), rest @ ..] => (a, rest),
        rest => (&[], rest),
    };
    Ok((rets, target, args, rest.first()))
}

/// Returns the place of an argument or result of a call. A literal becomes a constant of the width
/// of the formal parameter.
fn actual(f: &mut Func<'_, '_>, op_: &Operand, formal: Option<Type>, write: bool) -> R<Place> {
    match op_ {
        Operand::Name(n) => {
            if let Some(s) = f.slots.get(n.as_str()) {
                return Ok(Place::Local(s.offset, s.size));
            }
            if f.is_register(n) {
                return Ok(match f.register(n)? {
                    Reg::W32(c) => Place::Reg32(c),
                    Reg::W64(c) => Place::Reg64(c),
                    Reg::Pred(c) => Place::Pred(c),
                });
            }
        }
        Operand::Sink if write => return Ok(Place::Reg64(f.junk64()?)),
        _ => {}
    }
    if write {
        return Err(Why::invalid(
            "a result that is not a register or .param variable",
        ));
    }
    let want = formal.map_or(Ok(Want::I32), Want::of)?;
    Ok(match want {
        Want::I64 | Want::F64 => Place::Reg64(f.src(op_, want)?),
        _ => Place::Reg32(f.src(op_, want)?),
    })
}

fn site(
    f: &mut Func<'_, '_>,
    rets: &[Operand],
    args: &[Operand],
    formals: Option<(&[Param], &[Param])>,
) -> R<u64> {
    if let Some((r, p)) = formals
        && (r.len() != rets.len() || p.len() != args.len())
    {
        return Err(Why::invalid(format!(
            "the call has {} results and {} arguments, the function {} and {}",
            rets.len(),
            args.len(),
            r.len(),
            p.len()
        )));
    }
    let mut s = CallSite::default();
    for (i, a) in args.iter().enumerate() {
        let formal = formals.and_then(|(_, p)| p.get(i));
        let place = actual(f, a, formal.map(|p| p.var.ty), false)?;
        if let (Some(p), Place::Local(_, n)) = (formal, place)
            && !p.in_register
            && p.var.size() != n
        {
            return Err(Why::invalid(format!(
                "argument {i} has {n} bytes, not {}",
                p.var.size()
            )));
        }
        s.args.push(place);
    }
    for r in rets {
        s.rets.push(actual(f, r, None, true)?);
    }
    let at = f.m.calls.len() as u64;
    f.m.calls.push(s);
    Ok(at)
}

/// Returns the results that the definition `g` sets. If the declaration of another linked input has
/// a result and `g` has none, the register of the result keeps its value: NVIDIA's linker does not
/// compare declaration and definition either.
fn wanted_results<'o>(ast: &Module, g: &Function, rets: &'o [Operand]) -> &'o [Operand] {
    let declared =
        |d: &Function| d.declaration && d.name == g.name && d.returns.len() == rets.len();
    if g.returns.is_empty() && ast.functions.iter().any(declared) {
        return &[];
    }
    rets
}

fn call<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    m.ignore(&["uni"]);
    let (rets, target, args, prototype) = parts(ops)?;
    let Operand::Name(name) = target else {
        return Err(Why::invalid("expected a function or a register"));
    };
    if f.is_register(name) {
        return indirect(f, rets, name, args, prototype);
    }
    let Some(Sym::Func(id)) = f.m.lookup(Some(f.index), name) else {
        return Err(Why::invalid(format!("no function {name}")));
    };
    let ast = f.m.ast;
    let body = f.m.bodies.get(name.as_str()).map(|&i| &ast.functions[i]);
    if let Some(g) = body {
        let rets = wanted_results(ast, g, rets);
        let imm = site(f, rets, args, Some((&g.returns, &g.params)))?;
        f.emit(Inst {
            run: op_plain::<Call>(),
            a: id,
            imm,
            ..f.blank()
        });
        return Ok(());
    }
    if let Some(declared) = runtime::find(name) {
        return device_runtime(f, name, declared, rets, args);
    }
    let Some(b) = Builtin::find(name) else {
        return Err(Why::unsupported(format!(
            "no input defines the external function {name}: link the module that defines it"
        )));
    };
    let (n_args, n_rets) = b.arity();
    if args.len() != n_args || rets.len() > n_rets || (rets.is_empty() && b == Builtin::Malloc) {
        return Err(Why::invalid(format!("{name} takes {n_args} arguments")));
    }
    let imm = site(f, rets, args, None)?;
    f.emit(Inst {
        run: op_plain::<CallBuiltin>(),
        a: b as u32,
        imm,
        ..f.blank()
    });
    Ok(())
}

/// A call of the device runtime, whose arguments have the sizes of its declaration in CUDA.
fn device_runtime(
    f: &mut Func<'_, '_>,
    name: &str,
    declared: runtime::Declared,
    rets: &[Operand],
    args: &[Operand],
) -> R<()> {
    let expected = declared.arguments;
    if args.len() != expected.len() || rets.len() > 1 {
        let n = expected.len();
        return Err(Why::invalid(format!("{name} takes {n} arguments")));
    }
    let mut s = CallSite::default();
    for (i, (arg, bytes)) in args.iter().zip(expected).enumerate() {
        let literal = if *bytes == 8 { Type::U64 } else { Type::U32 };
        let place = actual(f, arg, Some(literal), false)?;
        let fits = match place {
            Place::Local(_, n) => n == *bytes,
            Place::Reg64(_) => *bytes == 8,
            Place::Reg32(_) => *bytes == 4,
            Place::Pred(_) => false,
        };
        if !fits {
            return Err(Why::invalid(format!(
                "argument {i} of {name} has {bytes} bytes"
            )));
        }
        s.args.push(place);
    }
    for ret in rets {
        s.rets.push(actual(f, ret, None, true)?);
    }
    let imm = f.m.calls.len() as u64;
    f.m.calls.push(s);
    f.emit(Inst {
        run: op_plain::<CallRuntime>(),
        a: declared.index,
        imm,
        ..f.blank()
    });
    Ok(())
}

fn indirect<'m>(
    f: &mut Func<'_, 'm>,
    rets: &'m [Operand],
    name: &str,
    args: &'m [Operand],
    prototype: Option<&'m Operand>,
) -> R<()> {
    let Reg::W64(a) = f.register(name)? else {
        return Err(Why::invalid(format!("{name} holds no function address")));
    };
    let ast = f.ast;
    let formals = match prototype {
        Some(Operand::Name(p)) => ast
            .prototypes
            .iter()
            .find(|(n, ..)| n == p)
            .map(|(_, r, p)| (&r[..], &p[..])),
        _ => None,
    };
    let imm = site(f, rets, args, formals)?;
    f.emit(Inst {
        run: op_plain::<CallIndirect>(),
        a,
        imm,
        ..f.blank()
    });
    Ok(())
}

fn barrier<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    if m.has("warp") {
        m.ignore(&["sync"]);
        Func::count(ops, 1)?;
        let a = f.src(&ops[0], Want::I32)?;
        f.emit(Inst {
            run: op_plain::<BarWarp>(),
            a,
            ..f.blank()
        });
        return Ok(());
    }
    if m.has("cluster") {
        return Err(Why::unsupported("clusters are not served"));
    }
    m.ignore(&["cta", "aligned"]);
    let mut inst = Inst {
        run: op_plain::<Bar>(),
        ..f.blank()
    };
    if m.has("red") {
        let kind = m.one(&[("popc", bar::POPC), ("and", bar::AND), ("or", bar::OR)]);
        inst.imm = kind.ok_or_else(|| Why::invalid("bar.red of no operation"))?;
        m.ignore(&["u32", "pred"]);
        let (dst, rest) = ops
            .split_first()
            .ok_or_else(|| Why::invalid("no operands"))?;
        let (id, count, pred) = match rest {
            [id, p] => (id, None, p),
            [id, n, p] => (id, Some(n), p),
            _ => return Err(Why::invalid("wrong number of operands")),
        };
        inst.d = if inst.imm == bar::POPC {
            f.dst(dst, false)?
        } else {
            f.dst_pred(dst)?
        };
        inst.a = f.src(id, Want::I32)?;
        inst.b = count.map_or(Ok(NONE), |n| f.src(n, Want::I32))?;
        inst.c = f.pred(pred)?;
    } else {
        inst.imm = if m.has("arrive") {
            bar::ARRIVE
        } else {
            bar::SYNC
        };
        m.ignore(&["sync"]);
        match ops {
            [id] => inst.a = f.src(id, Want::I32)?,
            [id, n] => {
                inst.a = f.src(id, Want::I32)?;
                inst.b = f.src(n, Want::I32)?;
            }
            _ => return Err(Why::invalid("wrong number of operands")),
        }
        if inst.imm == bar::ARRIVE && inst.b == NONE {
            return Err(Why::invalid("bar.arrive needs a thread count"));
        }
    }
    f.emit(inst);
    Ok(())
}
