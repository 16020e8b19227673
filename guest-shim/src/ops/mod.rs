//! What the library does with memory, streams and graphs when the arguments are checked: copies,
//! fills, launches, words, events, and the replay of graphs.

pub(crate) mod area;
pub(crate) mod boxes;
pub(crate) mod copy;
pub(crate) mod event;
pub(crate) mod fill;
pub(crate) mod launch;
pub(crate) mod replay;
pub(crate) mod word;
