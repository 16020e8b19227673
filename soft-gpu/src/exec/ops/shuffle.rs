//! Warp-wide operations: `shfl`, `vote`, `match`, `redux`, `activemask`.

use super::family::each_lane;
use crate::exec::col::{Raw, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, NONE, Op};
use crate::exec::warp::Warp;

/// Runs `f(warp, team, members that are here)` for each team of a warp-wide instruction: lanes that
/// name the same members (operand `op`, or [`NONE`] for the forms without `.sync`). A team of which
/// lanes are still on their way waits for them.
#[inline(always)]
pub(crate) fn teams(
    w: &mut Warp,
    op: u32,
    mask: u32,
    mut f: impl FnMut(&mut Warp, u32, u32),
) -> Flow {
    if op == NONE {
        f(w, mask, mask);
        return Flow::Next;
    }
    let members = *u32::src(w, op);
    let first = members[mask.trailing_zeros() as usize];
    let same = members.iter().all(|m| *m == first);
    if same && w.together(first, mask) {
        f(w, mask, first & mask);
        return Flow::Next;
    }
    several(w, &members, mask, &mut f)
}

/// [`teams`] where the lanes may name different members, or must wait.
fn several(
    w: &mut Warp,
    members: &[u32; LANES],
    mask: u32,
    f: &mut dyn FnMut(&mut Warp, u32, u32),
) -> Flow {
    let forced = w.take_force();
    let (mut rest, mut late) = (mask, 0);
    while rest != 0 {
        let m = members[rest.trailing_zeros() as usize];
        let mut team = 0u32;
        each_lane(rest, |l| team |= u32::from(members[l] == m) << l);
        rest &= !team;
        if forced || w.together(m, team) {
            f(w, team, m & team);
        } else {
            w.wait_for(m, team);
            late |= team;
        }
    }
    if late == 0 {
        Flow::Next
    } else {
        w.leave_behind(late)
    }
}

/// Modes of `shfl`; in the immediate.
pub(crate) mod shfl {
    pub(crate) const UP: u64 = 0;
    pub(crate) const DOWN: u64 = 1;
    pub(crate) const BFLY: u64 = 2;
    pub(crate) const IDX: u64 = 3;
    /// `e` holds a predicate destination in its low 16 bits.
    pub(crate) const HAS_PRED: u64 = 1 << 8;
    /// Where the predicate's index is in the immediate.
    pub(crate) const PRED_SHIFT: u32 = 32;
}

/// `shfl`: value `a`, lane operand `b`, clamp and segment `c`, members `e`.
pub(crate) struct Shfl;
impl Op for Shfl {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        teams(w, i.e, mask, |w, team, _| shuffle(w, i, team))
    }
}

fn shuffle(w: &mut Warp, i: &Inst, mask: u32) {
    let v = *u32::src(w, i.a);
    let (b, c) = (u32::src(w, i.b), u32::src(w, i.c));
    let mut t = v;
    let mut valid = 0u32;
    for l in 0..LANES as u32 {
        let (bv, cv) = (b[l as usize] & 31, c[l as usize] & 31);
        let seg = c[l as usize] >> 8 & 31;
        let max = (l & seg) | (cv & !seg);
        let min = l & seg;
        let (j, ok) = match i.imm & 3 {
            shfl::UP => (l.wrapping_sub(bv), l as i32 - bv as i32 >= max as i32),
            shfl::DOWN => (l + bv, l + bv <= max),
            shfl::BFLY => (l ^ bv, l ^ bv <= max),
            _ => (min | (bv & !seg), min | (bv & !seg) <= max),
        };
        let j = if ok { j } else { l };
        t[l as usize] = v[(j & 31) as usize];
        valid |= u32::from(ok) << l;
    }
    if i.d != NONE {
        put(w, i.d, &t, mask);
    }
    if i.imm & shfl::HAS_PRED != 0 {
        w.put_pred((i.imm >> shfl::PRED_SHIFT) as u32, valid, mask);
    }
}

/// Modes of `vote`; in the immediate.
pub(crate) mod vote {
    pub(crate) const ALL: u64 = 0;
    pub(crate) const ANY: u64 = 1;
    pub(crate) const UNI: u64 = 2;
    pub(crate) const BALLOT: u64 = 3;
}

/// `vote`: predicate `a`, members `e`, result `d` (predicate, or register for `.ballot`).
pub(crate) struct Vote;
impl Op for Vote {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        teams(w, i.e, mask, |w, team, among| {
            let p = w.pred(i.a) & among;
            let yes = match i.imm {
                vote::ALL => p == among,
                vote::ANY => p != 0,
                vote::UNI => p == 0 || p == among,
                _ => return put(w, i.d, &[p; LANES], team),
            };
            w.put_pred(i.d, if yes { u32::MAX } else { 0 }, team);
        })
    }
}

/// `match.any`/`match.all`: value `a`, members `e`, result `d`, predicate `c` for `.all`.
pub(crate) struct Match<R, const ALL: bool>(std::marker::PhantomData<R>);
impl<R: Raw, const ALL: bool> Op for Match<R, ALL> {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        teams(w, i.e, mask, |w, team, among| {
            let v = *R::src(w, i.a);
            let mut t = [0u32; LANES];
            let mut all = true;
            each_lane(team, |l| {
                each_lane(among, |k| t[l] |= u32::from(v[k] == v[l]) << k);
                all &= t[l] == among;
            });
            if ALL {
                t = [if all { among } else { 0 }; LANES];
                if i.c != NONE {
                    w.put_pred(i.c, if all { u32::MAX } else { 0 }, team);
                }
            }
            if i.d != NONE {
                put(w, i.d, &t, team);
            }
        })
    }
}

/// Operations of `redux`; in the immediate.
pub(crate) mod redux {
    pub(crate) const ADD: u64 = 0;
    pub(crate) const MIN_U: u64 = 1;
    pub(crate) const MAX_U: u64 = 2;
    pub(crate) const MIN_S: u64 = 3;
    pub(crate) const MAX_S: u64 = 4;
    pub(crate) const AND: u64 = 5;
    pub(crate) const OR: u64 = 6;
    pub(crate) const XOR: u64 = 7;
}

/// `redux.sync`: value `a`, members `e`.
pub(crate) struct Redux;
impl Op for Redux {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        teams(w, i.e, mask, |w, team, among| {
            let v = u32::src(w, i.a);
            let mut acc: Option<u32> = None;
            each_lane(among, |l| {
                acc = Some(match acc {
                    None => v[l],
                    Some(a) => match i.imm {
                        redux::ADD => a.wrapping_add(v[l]),
                        redux::MIN_U => a.min(v[l]),
                        redux::MAX_U => a.max(v[l]),
                        redux::MIN_S => (a as i32).min(v[l] as i32) as u32,
                        redux::MAX_S => (a as i32).max(v[l] as i32) as u32,
                        redux::AND => a & v[l],
                        redux::OR => a | v[l],
                        _ => a ^ v[l],
                    },
                });
            });
            put(w, i.d, &[acc.unwrap_or(0); LANES], team);
        })
    }
}

/// `activemask`.
pub(crate) struct ActiveMask;
impl Op for ActiveMask {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        put(w, i.d, &[mask; LANES], mask);
        Flow::Next
    }
}

/// `elect.sync`: the lowest member is the leader; its lane in `d`, predicate `c`.
pub(crate) struct Elect;
impl Op for Elect {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        teams(w, i.e, mask, |w, team, among| {
            let leader = among.trailing_zeros();
            if i.d != NONE {
                put(w, i.d, &[leader; LANES], team);
            }
            if i.c != NONE {
                w.put_pred(i.c, 1u32.checked_shl(leader).unwrap_or(0), team);
            }
        })
    }
}
