//! The worker's half of the scheduling: what of a session's queue may be submitted now, measured in
//! predicted GPU time. Pure, like the rest of this crate: time is an argument.
