"""Which cases stand for which mistake of a checker: wrong functions that must not pass, and right ones like them."""

from __future__ import annotations

import pytest

from tests.gallery import RIGHT, WRONG

LEAST = 3
"""Number of cases of each kind."""

CLASSES: dict[str, tuple[str, str]] = {
    "entries lost among many in low precision": (
        "swish_all_lost_in_bfloat16 squash_every_second_lost_in_float16 linear_weight_without_one_row_in_bfloat16",
        "swish_kernel_in_float16 one_steep_entry_in_float32 minimum_with_a_tiny_number_in_float32",
    ),
    "exact checks in half precision": (
        "squash_reads_transposed_cotangent_in_bfloat16 linear_with_workspace_in_float16 "
        "rms_norm_needs_gain_in_bfloat16",
        "squash_by_contiguous_copy_in_bfloat16 linear_of_any_strides_in_float16 linear_on_demand_in_bfloat16",
    ),
    "elements of the same size as one at a kink": (
        "gate_of_zeros_detached_beside_padding weight_of_ones_halved_beside_hardtanh_at_one "
        "padding_lost_through_the_smooth_branch",
        "gate_of_zeros_beside_padding weight_of_ones_beside_hardtanh_at_one sine_at_zero_beside_relu_at_zero",
    ),
    "custom rules in place on views": (
        "in_place_sine_on_upper_rows in_place_square_on_transpose in_place_exponential_on_diagonal",
        "in_place_sine_on_view in_place_square_on_view_of_transpose in_place_exponential_on_view_of_diagonal",
    ),
    "hooks on saved tensors": (
        "saved_tensors_in_eight_bits saved_tensors_in_one_buffer saved_tensors_clipped",
        "saved_tensors_on_cpu saved_tensors_in_two_parts saved_tensors_with_signs_apart",
    ),
    "rows of grad_output that are zero": (
        "sine_of_active_rows_not_scattered_back embedding_of_first_active_tokens squash_stops_at_first_empty_row "
        "sine_of_active_columns_not_scattered_back",
        "sine_of_active_rows_scattered_back softmax_over_safe_norm_of_cotangent linear_of_active_rows",
    ),
    "forward mode below float64": (
        "squash_tangent_halved_in_float32 softmax_tangent_without_coupling_in_bfloat16 growth_tangent_lost_in_bfloat16",
        "softmax_tangent_in_bfloat16 linear_tangent_in_float16 log_total_tangent_in_float32",
    ),
    "a claimed gradient of zero": (
        "identity_behind_1e10_lost sine_behind_1e6_lost tiny_shift_before_softmax_lost distance_of_far_points_halved",
        "identity_behind_1e10 sine_behind_1e6 input_without_influence_behind_1e6 distance_of_far_points "
        "square_through_1e10",
    ),
    "values or derivatives that are not finite": (
        "masked_root_of_negative square_by_ratio_at_zero log_sum_exp_without_shift",
        "log_at_1e_5 sqrt_at_5e_7 entropy_near_a_corner divergence_of_softmax thermal_radiation",
    ),
    "faint inputs and entries": (
        "input_80_of_100_lost shift_of_1e_14_negated faint_entries_lost_over_eight_decades "
        "input_of_a_faint_output_lost input_beside_slopes_of_1e13_lost",
        "one_faint_input_of_100 shift_of_1e_14 entries_over_eight_decades",
    ),
    "faults in some backward passes": (
        "mixed_lost_in_one_pass_of_20 sine_halved_in_one_pass_of_20 linear_lost_in_one_pass_of_100",
        "sum_in_alternating_order plan_made_in_the_first_pass log_every_tenth_pass",
    ),
    "saturated outputs": (
        "gelu_from_minus_nine_to_minus_five_without_last tanh_at_twenty_without_last "
        "cross_entropy_of_two_certain_and_one_uncertain_without_last softplus_at_minus_forty_coupled",
        "gelu_from_minus_nine_to_minus_five one_plus_erf_at_minus_six log_one_plus_exp_at_minus_forty "
        "certain_cross_entropy certain_softmax tails_of_erfc",
    ),
    "wide inputs": (
        "gelu_of_wide_inputs_halved gelu_of_hundreds_negated gelu_of_wide_inputs_in_float32_halved",
        "gelu_of_wide_inputs gelu_of_hundreds gelu_of_wide_inputs_in_float32",
    ),
    "autocast": (
        "product_under_autocast_too_large network_with_one_layer_under_autocast_too_large "
        "model_under_autocast_too_large",
        "product_under_autocast network_with_one_layer_under_autocast model_under_autocast",
    ),
    "the edge of a domain": (
        "asin_next_to_one_halved acos_next_to_one_negated half_circle_next_to_its_end_halved",
        "asin_next_to_one acos_next_to_one half_circle_next_to_its_end asin_at_1e_9_from_one",
    ),
    "a float64 version that rounds": (
        "sine_in_float32_inside_too_large softmax_in_float32_inside_too_large energy_in_float32_inside_too_large",
        "sine_in_float32_inside softmax_in_float32_inside energy_in_float32_inside",
    ),
    "overlapping memory": (
        "sine_of_overlapping_windows_halved log_total_of_expanded_rows_halved "
        "correlation_of_overlapping_patches_without_last",
        "sine_of_overlapping_windows log_total_of_expanded_rows correlation_of_overlapping_patches",
    ),
    "approximate on purpose": (
        "solver_stopped_at_1e_6_too_large fixed_point_stopped_at_1e_6_too_large inverse_root_by_newton_too_large",
        "solver_stopped_at_1e_6 fixed_point_stopped_at_1e_6 inverse_root_by_newton",
    ),
    "training": (
        "conv_norm_dropout_in_training_without_last image_block_in_training_without_last "
        "mlp_with_dropout_in_training_without_last",
        "conv_norm_dropout_in_training image_block_in_training mlp_with_dropout_in_training",
    ),
    "frozen modules": (
        "frozen_bfloat16_model_too_large adapter_beside_frozen_bfloat16_layer_too_large "
        "softmax_of_frozen_bfloat16_layer_too_large",
        "frozen_bfloat16_model adapter_beside_frozen_bfloat16_layer softmax_of_frozen_bfloat16_layer",
    ),
    "modules with buffers alone": (
        "fourier_features_without_last standardised_by_buffers_without_last blurred_by_buffer_without_last",
        "fourier_features standardised_by_buffers blurred_by_buffer",
    ),
    "reentrant checkpoints": (
        "reentrant_checkpoint_too_large reentrant_checkpoint_of_two_inputs_too_large "
        "chain_of_reentrant_checkpoints_too_large",
        "reentrant_checkpoint reentrant_checkpoint_of_two_inputs chain_of_reentrant_checkpoints",
    ),
    "long sorts": (
        "sort_of_2000_even_numbers_reversed_order sort_of_2000_random_numbers_reversed_order "
        "largest_gaps_of_2000_random_numbers_reversed_order",
        "sort_of_2000_even_numbers sort_of_2000_random_numbers largest_gaps_of_2000_random_numbers",
    ),
}
"""Wrong functions, and right ones like them that a checker may report or leave undecided."""

NAMES = {"wrong": {case.name for case in WRONG}, "right": {case.name for case in RIGHT}}


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_has_wrong_and_right_functions(name: str) -> None:
    for kind, listed in zip(("wrong", "right"), CLASSES[name], strict=True):
        found = set(listed.split())
        assert found <= NAMES[kind], found - NAMES[kind]
        assert len(found) >= LEAST
