//! Half precision, asynchronous copies and matrices, against independent computation.

mod copies;
mod exact;
mod half;
mod layouts;
mod matrices;
mod mbarrier;
mod narrow;
mod rows;
mod wmma;

use super::eval::{Random, eval, pairs, triples};
use super::{Bench, HEADER};
