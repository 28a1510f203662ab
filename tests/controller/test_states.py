from __future__ import annotations

from eerl_controller import TRANSITIONS, Reason, State, states


def test_every_state_has_its_row_and_its_place_in_the_theory() -> None:
    """The table and the prose at its head cover the same machine."""
    assert set(TRANSITIONS) == set(State)
    for state in State:
        assert f"``{state.name}``" in (states.__doc__ or "")


def test_failure_is_final_and_every_controlled_state_can_let_go() -> None:
    """From wherever clocks may be held there is a way back to the governor."""
    assert TRANSITIONS[State.FAILED] == frozenset()
    for state in (State.SEARCH, State.CONFIRMATION, State.LOCKED, State.REMEASURE):
        assert {State.SUSPENDED, State.FAILED} <= TRANSITIONS[state]


def test_reasons_are_words_for_ledgers_and_people() -> None:
    """Values are distinct lower-case words."""
    values = [reason.value for reason in Reason]

    assert len(set(values)) == len(values)
    assert all(value.replace("_", "").isalpha() and value.islower() for value in values)
