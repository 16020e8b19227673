//! Operations whose arguments were checked: copies, fills, launches, writes of words and waits for
//! words, events, and the replay of graphs.

pub(crate) mod area;
pub(crate) mod boxes;
pub(crate) mod copy;
pub(crate) mod event;
pub(crate) mod fill;
pub(crate) mod launch;
pub(crate) mod replay;
pub(crate) mod word;
