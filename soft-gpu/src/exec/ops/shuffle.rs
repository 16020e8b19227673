//! Warp-wide operations: `shfl`, `vote`, `match`, `redux`, `activemask`.

use super::family::{each_lane, lane_bits};
use crate::exec::col::{Raw, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, NONE, Op};
use crate::exec::warp::Warp;

/// Handles the teams of a warp-wide instruction. A team is all lanes that name the same members
/// (operand `op`, or [`NONE`] without `.sync`). Calls `f(warp, lanes of the team, members that have
/// arrived)` for each team whose members have all arrived. Other teams wait.
#[inline(always)]
pub(crate) fn teams(
    w: &mut Warp,
    op: u32,
    mask: u32,
    mut f: impl FnMut(&mut Warp, u32, u32),
) -> Flow {
    if let Some(members) = one_team(w, op, mask) {
        f(w, mask, members);
        return Flow::Next;
    }
    let members = *u32::src(w, op);
    several(w, &members, mask, &mut f)
}

/// The members that have arrived, if the lanes are one team and all members have arrived. The
/// caller then runs the operation without [`teams`], because the compiler does not use vector
/// instructions for a closure.
#[inline(always)]
fn one_team(w: &mut Warp, op: u32, mask: u32) -> Option<u32> {
    if op == NONE {
        return Some(mask);
    }
    let members = u32::src(w, op);
    let first = members[mask.trailing_zeros() as usize];
    let mut odd = 0;
    for m in members {
        odd |= m ^ first;
    }
    (odd == 0 && w.together(first, mask)).then_some(first & mask)
}

/// As [`teams`], for lanes that name different members, or whose members have not all arrived.
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

/// Modes of `shfl` in the immediate.
pub(crate) mod shfl {
    pub(crate) const UP: u64 = 0;
    pub(crate) const DOWN: u64 = 1;
    pub(crate) const BFLY: u64 = 2;
    pub(crate) const IDX: u64 = 3;
    /// The instruction has a predicate destination.
    pub(crate) const HAS_PRED: u64 = 1 << 8;
    /// Position of the predicate's index in the immediate.
    pub(crate) const PRED_SHIFT: u32 = 32;
}

/// `shfl`: source value `a`, lane operand `b`, clamp and segment mask `c`, members `e`.
pub(crate) struct Shfl;
impl Op for Shfl {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if one_team(w, i.e, mask).is_some() {
            shuffle(w, i, mask);
            return Flow::Next;
        }
        teams(w, i.e, mask, |w, team, _| shuffle(w, i, team))
    }
}

#[inline(always)]
fn shuffle(w: &mut Warp, i: &Inst, mask: u32) {
    match i.imm & 3 {
        shfl::UP => from_lanes(w, i, mask, |l, b, _, max| {
            (l.wrapping_sub(b), l as i32 - b as i32 >= max as i32)
        }),
        shfl::DOWN => from_lanes(w, i, mask, |l, b, _, max| (l + b, l + b <= max)),
        shfl::BFLY => from_lanes(w, i, mask, |l, b, _, max| (l ^ b, l ^ b <= max)),
        _ => from_lanes(w, i, mask, |l, b, seg, max| {
            let j = (l & seg) | (b & !seg);
            (j, j <= max)
        }),
    }
}

/// Gives each lane the value of the lane that `source(lane, b, segment, max)` returns. If that lane
/// is out of range, the lane keeps its own value.
#[inline(always)]
fn from_lanes(
    w: &mut Warp,
    i: &Inst,
    mask: u32,
    source: impl Fn(u32, u32, u32, u32) -> (u32, bool),
) {
    let v = *u32::src(w, i.a);
    let (b, c) = (u32::src(w, i.b), u32::src(w, i.c));
    let (mut from, mut ok) = ([0u32; LANES], [0u32; LANES]);
    for l in 0..LANES {
        let lane = l as u32;
        let seg = c[l] >> 8 & 31;
        let max = (lane & seg) | (c[l] & 31 & !seg);
        let (j, valid) = source(lane, b[l] & 31, seg, max);
        from[l] = if valid { j & 31 } else { lane };
        ok[l] = u32::from(valid);
    }
    if i.d != NONE {
        let t: [u32; LANES] = std::array::from_fn(|l| v[from[l] as usize % LANES]);
        put(w, i.d, &t, mask);
    }
    if i.imm & shfl::HAS_PRED != 0 {
        let valid = lane_bits(|l| ok[l] != 0);
        w.put_pred((i.imm >> shfl::PRED_SHIFT) as u32, valid, mask);
    }
}

/// Modes of `vote` in the immediate.
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

/// Operations of `redux` in the immediate.
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

/// `redux.sync`: source value `a`, members `e`, result `d`.
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

/// `elect.sync` elects the lowest member. `d` gets the number of its lane, and predicate `c` is
/// true in that lane only.
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
