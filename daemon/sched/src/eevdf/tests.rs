use super::*;

const SLICE: u64 = 2_000_000;

fn queue(weights: &[u64]) -> Eevdf<usize> {
    let mut q = Eevdf::default();
    for (key, &weight) in weights.iter().enumerate() {
        q.join(key, weight, 0, SLICE);
        q.set_ready(key, true);
    }
    q
}

/// Serves `turns` turns of one slice each. Returns the time in ns of each member.
fn serve(q: &mut Eevdf<usize>, n: usize, turns: usize) -> Vec<u64> {
    let mut got = vec![0; n];
    for _ in 0..turns {
        let key = q.peek().unwrap();
        q.set_ready(key, false);
        q.begin_turn(key);
        q.charge(key, SLICE);
        q.set_ready(key, true);
        got[key] += SLICE;
    }
    got
}

#[test]
fn time_follows_weight_within_one_slice() {
    let weights = [1_000, 4_000, 16_000, 64_000];
    let mut q = queue(&weights);
    let turns = 8_500;
    let got = serve(&mut q, weights.len(), turns);
    for (key, &weight) in weights.iter().enumerate() {
        let ideal = SLICE * turns as u64 / 85_000 * weight;
        assert!(
            got[key].abs_diff(ideal) <= SLICE,
            "{key}: {} for {ideal}",
            got[key]
        );
        assert!(q.lag_ns(key).unsigned_abs() <= u128::from(SLICE));
    }
    let sum: i128 = (0..4).map(|k| q.lag_ns(k)).sum();
    assert!(sum.abs() <= 4, "lags add up to zero: {sum}");
}

#[test]
fn leaving_and_returning_keeps_the_lag() {
    let mut q = queue(&[1, 1, 3]);
    q.charge(0, 10_000_000);
    let before = q.lag_ns(0);
    assert_eq!(before, -8_000_000);
    assert_eq!(q.leave(0, u64::MAX), before);
    serve(&mut q, 3, 100);
    q.join(0, 1, before, SLICE);
    assert!((q.lag_ns(0) - before).abs() <= 1, "{}", q.lag_ns(0));
}

#[test]
fn a_new_weight_keeps_the_lag() {
    let mut q = queue(&[1000, 1000, 7000]);
    q.charge(1, 5_000_001);
    for weight in [1, 16_000, 3, 100_000_000, 1000] {
        let before = q.lag_ns(1);
        q.update(1, weight, SLICE);
        assert!(
            (q.lag_ns(1) - before).abs() <= 2,
            "{before} became {}",
            q.lag_ns(1)
        );
    }
}

#[test]
fn a_queue_that_is_filled_anew_keeps_all_lags() {
    let mut q = queue(&[1, 4, 2, 8]);
    for (key, ns) in [(3, 7_000_001), (1, 900_000), (0, 33)] {
        q.charge(key, ns);
    }
    let joiner = |key: usize, weight: u64| Joiner {
        key,
        weight,
        lag_ns: q.lag_ns(key),
        request_ns: SLICE,
    };
    let joiners = [joiner(0, 1), joiner(1, 4), joiner(2, 2), joiner(3, 8)];
    let mut other = Eevdf::default();
    other.fill(joiners.into_iter());
    for key in 0..4 {
        let (old, new) = (q.lag_ns(key), other.lag_ns(key));
        assert!((old - new).abs() <= 2, "{key}: {old} became {new}");
    }
    // `carry_ns` stores the debt of a lone member until a second member joins.
    let mut lone = Eevdf::default();
    let lag_ns = -5_000;
    lone.fill(
        [Joiner {
            lag_ns,
            ..joiners[0]
        }]
        .into_iter(),
    );
    assert_eq!(lone.lag_ns(0), -5_000);
    lone.join(9, 1, 0, SLICE);
    assert_eq!((lone.lag_ns(0), lone.lag_ns(9)), (-5_000, 5_000));
}

#[test]
fn a_debt_outlives_being_alone() {
    let mut q = queue(&[1, 1]);
    q.charge(0, 10_000_000);
    assert_eq!(q.lag_ns(0), -5_000_000);
    let debt = q.leave(0, u64::MAX);
    let claim = q.leave(1, 1_000_000);
    assert_eq!((debt, claim), (-5_000_000, 0));
    // The member with the debt joins alone, works alone, and then a new member joins.
    q.join(0, 1, debt, SLICE);
    q.set_ready(0, true);
    serve(&mut q, 1, 50);
    q.join(2, 1, 0, SLICE);
    assert_eq!((q.lag_ns(0), q.lag_ns(2)), (-5_000_000, 5_000_000));
}

#[test]
fn a_claim_that_is_given_up_is_owed_no_more() {
    let mut q = queue(&[1, 1]);
    q.charge(0, 10_000_000);
    assert_eq!(q.leave(1, 1_000_000), 1_000_000);
    q.join(1, 1, 1_000_000, SLICE);
    assert_eq!((q.lag_ns(0), q.lag_ns(1)), (-1_000_000, 1_000_000));
}

#[test]
fn a_joiner_neither_gains_nor_loses() {
    let mut q = queue(&[1, 1]);
    serve(&mut q, 2, 1000);
    q.join(2, 1, 0, SLICE);
    q.set_ready(2, true);
    assert_eq!(q.lag_ns(2), 0);
    let got = serve(&mut q, 3, 300);
    for time in got {
        assert!(time.abs_diff(100 * SLICE) <= SLICE);
    }
}

#[test]
fn who_is_before_whom_is_the_order_of_choosing() {
    let mut q = queue(&[1, 4, 2, 8]);
    for key in [3, 1, 0] {
        q.charge(key, SLICE / 3);
    }
    for _ in 0..20 {
        let mut order = q.before(9);
        assert_eq!(order.len(), 4);
        assert_eq!(order.first().copied(), q.peek());
        let last = order.pop().unwrap();
        assert_eq!(q.before(last), order);
        serve(&mut q, 4, 1);
    }
    q.set_ready(2, false);
    assert!(
        !q.before(9).contains(&2),
        "a running member is not before others"
    );
}

#[test]
fn somebody_is_chosen_even_if_only_the_others_are_eligible() {
    let mut q = queue(&[1, 1]);
    q.charge(0, 10_000_000);
    q.set_ready(1, false);
    assert_eq!(q.peek(), Some(0));
    q.set_ready(0, false);
    assert_eq!(q.peek(), None);
    assert!(!q.has_ready());
}

#[test]
fn the_next_turn_is_due_one_period_after_the_last_began() {
    let mut q = queue(&[1, 1, 2]);
    let mut order = vec![];
    for _ in 0..16 {
        let key = q.pick().unwrap();
        q.set_ready(key, false);
        assert_eq!(q.begin_turn(key), SLICE, "no promise shortens the turn");
        q.charge(key, SLICE);
        q.set_ready(key, true);
        order.push(key);
    }
    assert_eq!(
        order[4..8],
        order[8..12],
        "members keep their places in the round"
    );
    assert_eq!(order[8..12], order[12..16]);
}

#[test]
fn turns_are_cut_rather_than_promises_broken() {
    let mut q = queue(&[1, 1, 1, 1]);
    for key in 0..4 {
        q.set_ready(key, false);
        q.set_ready(key, true);
    }
    let next = q.pick().unwrap();
    // 3.8 of the 5 promised turns are over: 1.2 turns are left until the promise.
    q.clock += virtual_time(u128::from(SLICE) * 19 / 5, 4);
    q.set_ready(next, false);
    let turn = q.begin_turn(next);
    assert!((SLICE / 4..SLICE).contains(&turn), "{turn}");
}

#[test]
fn one_for_which_the_holder_is_interrupted_is_the_next() {
    let mut q = queue(&[1, 1, 16]);
    q.set_ready(0, false);
    q.begin_turn(0);
    q.charge(0, SLICE / 8);
    assert!(q.is_due_before(2, 0));
    // Member 1 becomes due, too.
    q.members.get_mut(&1).unwrap().due_by = i128::MIN;
    q.set_ready(1, false);
    q.set_ready(1, true);
    assert_eq!(q.peek(), Some(1));
    q.hasten(2);
    assert_eq!(q.peek(), Some(2));
    q.set_ready(2, false);
    q.begin_turn(2);
    q.charge(2, SLICE / 100);
    q.set_ready(2, true);
    assert_eq!(
        q.peek(),
        Some(1),
        "the member was moved to the front only once"
    );
}
