//! Half precision, asynchronous copies and matrices, against independent computation.

mod copies;
mod exact;
mod half;
mod matrices;
mod narrow;
mod rows;
mod wmma;

use super::eval::{Random, eval, pairs, triples};
use super::{Bench, HEADER};
