"""Can gradvet's own tests fail? `python -m benchmarks.mutation` changes the code of core/ and checks/ and runs them.

cosmic-ray lists every small change of that code that it knows (another operator, another number, a negated condition).
A sample of them is tried, the same for the same seed, one at a time, with the tests that execute the changed line. A
change that no test notices survives, and is printed to be judged: docs/mutation.md says what was found.

    population   which changes there are, and which of them are drawn
    reach        which tests execute which lines, and how long they take
    trial        whether the tests notice one change
    score        what share of the changes they notice
"""
