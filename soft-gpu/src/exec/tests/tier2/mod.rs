//! Tier 2: half precision, asynchronous copies and matrices, against independent computations.

mod copies;
mod exact;
mod half;
mod layouts;
mod listed;
mod matrices;
mod mbarrier;
mod narrow;
mod rows;
mod wmma;

use super::eval::{eval, pairs, triples};
use super::inputs::Random;
use super::{Bench, HEADER};

use std::collections::BTreeSet;

/// The tests that prove the forms.
pub(super) const PROOFS: &[fn()] = &[
    copies::widths_and_zero_fill,
    copies::addresses_are_checked,
    listed::comparisons_form_by_form,
    listed::conversions_form_by_form,
    half::arithmetic_is_rounded_once,
    half::pairs_are_two_values,
    half::signs,
    half::minima_and_maxima,
    half::exponential_and_tangent_keep_their_bounds,
    half::pairs_of_integers,
    half::atomic_sums,
    matrices::small_integers_are_exact_in_every_type,
    matrices::sums_are_rounded_once,
    #[cfg(target_arch = "x86_64")]
    matrices::doubles_are_a_chain_of_fused_steps,
    matrices::special_values,
    matrices::eights,
    matrices::integers,
    matrices::bits,
    matrices::four_products_of_quads,
    mbarrier::what_was_written_before_an_arrival_is_read_after_the_wait,
    mbarrier::every_form_in_a_phase,
    mbarrier::copies_arrive,
    mbarrier::states_counts_and_generic_addresses,
    narrow::from_singles,
    narrow::to_tf32,
    narrow::every_value_widens_exactly,
    narrow::from_doubles_and_integers,
    narrow::to_integers_and_integral_values,
    narrow::eights,
    rows::loads,
    rows::stores,
    rows::transposes,
    rows::row_addresses_are_checked,
    wmma::every_shape_and_type_in_every_layout,
    wmma::in_shared_memory_and_with_natural_strides,
    wmma::addresses_are_checked,
    wmma::lanes_meet_at_the_instruction,
];

/// The forms that `forms.txt` lists.
pub(super) fn listed() -> BTreeSet<String> {
    super::eval::listed(include_str!("forms.txt"))
}
