//! Checks the totals that a worker claims against what any worker can do. Only the worker's page
//! counts calls and bytes, and a guest that controls its worker writes any value there.
//!
//! The bounds are far beyond every honest worker, and count from the start of the session. So a
//! late check rejects no honest claim, however long vgpud was stopped.

use vgpu_proto::lease::Hints;
use vgpu_sched::{SECONDS, Usage};

use super::actor::Actor;
use super::reactor::now_ns;
use super::session::{Phase, Session};
use crate::events::EndCause;

/// Upper bound of calls per second: 10 ns each. The fastest worker needs some 100 ns.
const CALLS_PER_S: u64 = 100_000_000;

/// Upper bound of bytes per second. The bytes pass through a socket, which carries about 10 GB/s.
const BYTES_PER_S: u64 = 1 << 40;

/// Bytes that may be counted ahead: a copy is counted in full at its start, and is at most as large
/// as the memory of a GPU.
const BYTES_AHEAD: u64 = 1 << 42;

/// Totals since the start of a session, as the worker counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Claim {
    calls: u64,
    bytes: u64,
    /// The part of `bytes` that was copied to the guest.
    out_bytes: u64,
}

impl Claim {
    fn of(hints: &Hints) -> Claim {
        Claim {
            calls: hints.used_calls,
            bytes: hints.used_bytes,
            out_bytes: hints.out_bytes,
        }
    }

    /// Returns why the claim is false, if it is. `before` is the earlier claim, `age_ns` the age of
    /// the session.
    fn falsehood(self, before: Claim, age_ns: u64) -> Option<String> {
        let most = |per_s: u64, ahead: u64| {
            let total = u128::from(per_s) * u128::from(age_ns) / u128::from(SECONDS);
            u64::try_from(total)
                .unwrap_or(u64::MAX)
                .saturating_add(ahead)
        };
        let most_bytes = most(BYTES_PER_S, BYTES_AHEAD);
        let counts = [
            (
                "calls",
                self.calls,
                before.calls,
                most(CALLS_PER_S, CALLS_PER_S),
            ),
            ("copied bytes", self.bytes, before.bytes, most_bytes),
            (
                "bytes copied to the guest",
                self.out_bytes,
                before.out_bytes,
                most_bytes,
            ),
        ];
        if self.out_bytes > self.bytes {
            return Some(format!(
                "its worker claims {} bytes copied to the guest, more than the {} it copied in all",
                self.out_bytes, self.bytes
            ));
        }
        counts.into_iter().find_map(|(what, now, before, most)| {
            if now > most {
                return Some(format!(
                    "its worker claims {now} {what}, which is more than it can have done ({most})"
                ));
            }
            (now < before).then(|| {
                format!("its worker claims {now} {what}, fewer than the {before} it claimed before")
            })
        })
    }
}

impl Session {
    fn age_ns(&self) -> u64 {
        now_ns().saturating_sub(self.begun_ns)
    }

    /// The worker's claim, or the earlier claim if the present one is false.
    fn believed(&self) -> Claim {
        let claim = Claim::of(&self.hints());
        match claim.falsehood(self.claimed, self.age_ns()) {
            None => claim,
            Some(_) => self.claimed,
        }
    }

    /// Credit used since the start of the session, as the worker counts it.
    pub(super) fn used(&self) -> Usage {
        let Claim { calls, bytes, .. } = self.believed();
        Usage { calls, bytes }
    }

    /// Bytes copied to the guest since the start of the session, as the worker counts them.
    pub(super) fn out_bytes(&self) -> u64 {
        self.believed().out_bytes
    }

    /// Reads the worker's claim again. Returns why the claim is false, if it is.
    fn examine(&mut self) -> Option<String> {
        let claim = Claim::of(&self.hints());
        let falsehood = claim.falsehood(self.claimed, self.age_ns());
        if falsehood.is_none() {
            self.claimed = claim;
        }
        falsehood
    }
}

impl Actor {
    /// Ends the sessions whose workers make false claims.
    pub(super) fn examine_all(&mut self) {
        let live = self.sessions.values_mut().filter(|s| !s.is_ending());
        let liars: Vec<(u64, String)> = live
            .filter_map(|session| Some((session.id, session.examine()?)))
            .collect();
        for (id, what) in liars {
            self.breach(id, &what);
        }
    }

    /// The last check of a session that is over: a worker that lies and ends at once gets a strike
    /// too.
    pub(super) fn examine_last(&mut self, session: &mut Session) {
        let accused = matches!(session.phase, Phase::Ending(EndCause::Cheating, _));
        if let Some(what) = session.examine().filter(|_| !accused) {
            session.phase = Phase::Ending(EndCause::Cheating, what.clone());
            self.strike(session.vm, &what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Claim = Claim {
        calls: 0,
        bytes: 0,
        out_bytes: 0,
    };

    #[test]
    fn possible_claims_are_accepted_however_late_they_are_read() {
        // 5,000,000 calls and 20 GB per second, first seen after `age_s`: vgpud or the whole host
        // was stopped.
        for age_s in [1, 10, 400, 86_400 * 365] {
            let claim = Claim {
                calls: 5_000_000 * age_s,
                bytes: 20_000_000_000 * age_s,
                out_bytes: 20_000_000_000 * age_s,
            };
            assert_eq!(claim.falsehood(NOTHING, age_s * SECONDS), None);
        }
        // A copy of the whole memory of a GPU has only begun.
        let begun = Claim {
            calls: 1,
            bytes: 288 << 30,
            out_bytes: 288 << 30,
        };
        assert_eq!(begun.falsehood(NOTHING, 0), None);
        assert_eq!(begun.falsehood(begun, 0), None, "nothing new");
    }

    #[test]
    fn impossible_claims_are_rejected() {
        let calls = Claim {
            calls: u64::MAX,
            ..NOTHING
        };
        let hour = 3_600 * SECONDS;
        assert!(calls.falsehood(NOTHING, hour).unwrap().contains(" calls"));
        let bytes = Claim {
            bytes: u64::MAX / 2,
            ..NOTHING
        };
        assert!(bytes.falsehood(NOTHING, hour).is_some());
        let out = Claim {
            bytes: 1 << 43,
            out_bytes: 1 << 43,
            ..NOTHING
        };
        assert!(out.falsehood(NOTHING, 0).is_some());
        let less = NOTHING.falsehood(out, hour).unwrap();
        assert!(less.contains("fewer than the 8796093022208"), "{less}");
        let more_out_than_all = Claim {
            bytes: 5,
            out_bytes: 6,
            ..NOTHING
        };
        let false_part = more_out_than_all.falsehood(NOTHING, hour).unwrap();
        assert!(false_part.contains("more than the 5"), "{false_part}");
    }
}
