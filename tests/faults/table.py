"""The faults that were tried, what must hold, and the test that shows it; docs/reliability.md shows this table.

`python -m tests.faults.table` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One row."""

    tried: str
    holds: str
    test: str
    """File below tests/faults and name of the test."""


IN_PROCESS = (
    Fault(
        "Ctrl-C at any line of a check, also while state is restored",
        "all state listed above is as before, and another check can begin",
        "test_interruptions.py::test_interrupted_check_leaves_everything_as_it_was",
    ),
    Fault(
        "the function changes grad mode, default dtype, autocast, anomaly mode, deterministic algorithms, warnings "
        "filters, the profiling function or the level of dual numbers, and returns or raises",
        "the setting is restored",
        "test_world.py::test_setting_that_the_function_changes_is_restored",
    ),
    Fault(
        "captured parameters and inputs hold gradients",
        "each `.grad` is the same tensor with the same values",
        "test_world.py::test_gradients_of_captured_parameters_stay",
    ),
    Fault(
        "an input that is the result of other operators, after `retain_grad()`",
        "the check passes, and `.grad` stays",
        "test_world.py::test_retained_gradient_of_an_input_stays",
    ),
    Fault(
        "modules in inputs, keyword arguments and surrogate have running statistics",
        "the statistics stay",
        "test_world.py::test_running_statistics_of_modules_in_inputs_keywords_and_surrogate_stay",
    ),
    Fault(
        "eight threads check one shared module",
        "all 24 checks pass; parameters, running statistics and warnings filters are as before",
        "test_threads.py::test_eight_threads_check_one_shared_module",
    ),
    Fault(
        "a checked function runs a check itself",
        "no deadlock",
        "test_threads.py::test_check_inside_a_checked_function_is_no_deadlock",
    ),
    Fault(
        "torch's default device is not that of the inputs, at import or later",
        "the same reports as without it",
        "test_default_device.py::test_default_device_does_not_matter",
    ),
    Fault(
        "meta, fake, nested and float8 tensors, freed or too small memory",
        "refused in one sentence before the function is called, in `check`, `numerical_jacobian` and `gradcheck`",
        "test_inputs.py::test_tensor_without_usable_values_is_refused",
    ),
    Fault(
        "a list or a dataclass that contains itself",
        "refused in one sentence",
        "test_inputs.py::test_container_that_contains_itself_is_refused",
    ),
    Fault(
        "a lazy module before its first call",
        "refused in one sentence",
        "test_inputs.py::test_lazy_module_is_refused",
    ),
    Fault(
        "`numerical_jacobian` at NaN or infinity",
        "NaN with an infinite error bar there, the other columns as usual",
        "test_inputs.py::test_numerical_jacobian_at_a_number_that_is_not_finite",
    ),
    Fault(
        "`numerical_jacobian` of expanded or overlapping inputs",
        "refused in one sentence",
        "test_inputs.py::test_numerical_jacobian_of_overlapping_elements_is_refused",
    ),
    Fault(
        "34 values of wrong types and ranges for each argument",
        "refused in one sentence before the function is called",
        "test_arguments.py::test_every_argument_refuses_wrong_types_and_values_in_one_sentence",
    ),
    Fault(
        "the working folder was deleted",
        "checks work",
        "test_process.py::test_check_works_in_a_working_folder_that_is_gone",
    ),
    Fault(
        "functions and modules whose class was defined in a function",
        "no class is kept alive",
        "test_process.py::test_classes_defined_in_functions_are_not_kept_alive",
    ),
)

FAULTS = (*IN_PROCESS,)


def markdown() -> str:
    rows = [f"| {fault.tried} | {fault.holds} | `{fault.test.split('::')[0]}` |" for fault in FAULTS]
    return "\n".join(["| what was tried | what holds | test |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    print(markdown())
