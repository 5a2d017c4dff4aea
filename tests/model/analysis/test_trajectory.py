"""Norms and cosines of hand-made states."""

import tracemalloc

import numpy as np

from lightwell.model.analysis.trajectory import trajectory


def test_lengths_and_turns_of_a_small_walk() -> None:
    walk = np.array([[3.0, 4.0], [0.0, 5.0], [0.0, -2.0]])[:, None]  # three states of one position
    other = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])[:, None]
    found = trajectory(walk, other)
    assert np.allclose(found.norms, [[5, 5, 2]])
    assert np.allclose(found.steps, [[0, np.sqrt(10), 7]])
    assert np.allclose(found.cosine_to_start, [[1, 0.8, -0.8]])
    assert np.allclose(found.cosine_to_previous, [[1, 0.8, -1]])
    assert np.allclose(found.cosine_to_others[..., 0], [[0.6, 1, 0]])


def test_a_vector_of_length_zero_has_no_direction() -> None:
    found = trajectory(np.zeros((2, 1, 3)), np.ones((2, 1, 3)))
    assert np.isnan(found.cosine_to_others).all()
    assert (found.norms == 0).all()


def test_a_vector_that_overflowed_has_no_direction_and_the_others_keep_theirs() -> None:
    states = np.ones((3, 2, 4), np.float32)
    states[1:, 0] = np.inf
    found = trajectory(states, states[:, 1:])
    assert found.norms.tolist() == [[2, np.inf, np.inf], [2, 2, 2]]
    assert np.isnan(found.cosine_to_start[0, 1:]).all()
    assert np.isnan(found.cosine_to_others[0, 1:]).all()
    assert np.allclose(found.cosine_to_others[1], 1)
    assert found.steps[0, :2].tolist() == [0, np.inf]


def test_all_pairs_of_positions_need_no_more_memory_than_states_and_answer() -> None:
    """Guard against multiplying number by number: 512 positions of a small model took 4 GB and half a minute."""
    states = np.random.default_rng(0).normal(size=(3, 200, 64))
    tracemalloc.start()
    try:
        found = trajectory(states, states)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * (states.nbytes + found.cosine_to_others.nbytes)
    expected = np.einsum("spd,sod->pso", *(2 * [states / np.linalg.norm(states, axis=-1, keepdims=True)]))
    assert np.allclose(found.cosine_to_others, expected)
