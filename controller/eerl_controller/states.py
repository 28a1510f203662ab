"""The controller's states and why it wishes what it wishes. Every state and every legal change is in this file.

Theory of operation
===================

A run is a row of updates. Before each of them the controller has one wish, the plan; after each it hears how
the update went, the record. Between the two it is in exactly one state:

1. In ``CALIBRATION`` all clocks are the governor's. The first updates are slow (compilation, caches) and are
   recognised as such. When enough usable updates are known, the governor's time and energy can be predicted
   from token counts (paper, equation 2), and the search begins.
2. In ``SEARCH`` short trials of lowered clocks alternate with governor updates. A trial is judged against the
   governor prediction for equal work: it passes when it keeps the throughput and lowers the energy per valid
   training token. When no further setting promises to be better, the best passing one goes to confirmation;
   when none passed, the job stays on the governor (``SUSPENDED``).
3. In ``CONFIRMATION`` the setting must pass again on fresh updates. If it does not, the next passing one is
   taken, or the search goes on.
4. In ``LOCKED`` the setting is held and monitored. A shortfall raises the responsible clock, and the lock goes
   on; a margin permits a lower clock, which must be confirmed. When the work leaves the range that the governor
   was measured in, when feedback does not help, when a shortfall rests on an old reference or the lock no longer
   saves, the governor is measured again.
5. ``REMEASURE`` is a short return to the governor. When its updates agree with the old references, the lock's
   window is judged again with the refreshed reference, or, when the work had moved, the lock is confirmed on fresh
   updates. When they contradict the old references, calibration starts afresh and the lock is confirmed after it.
6. ``SUSPENDED`` is the governor for now: nothing pays, evidence is missing, or clocks are not honoured. The
   controller tries again after a number of updates that doubles each time.
7. ``FAILED`` is the governor for ever; only causes that cannot go away lead here.

The execution modes differ in what they search and how they compare, not in this life:

* Colocated and disaggregated synchronous updates search both clocks together.
* Where pools are separate and wait as a whole (disaggregated, drained), the idle clock is tried alone at the
  beginning of the search and is then part of every lowered plan, until the plan is the governor's again.
* Asynchronous updates search one pool after the other, in two rounds with a confirmation each: drained updates first
  the pool that usually arrives first, in-flight updates first the less busy one. When the second round finds
  nothing, ``SEARCH`` ends in ``LOCKED`` with what the first one confirmed.
* In-flight updates are compared in blocks. Governor blocks run within ``SEARCH`` and ``CONFIRMATION``, and within
  ``LOCKED`` after every second candidate block, so the reference is always fresh and ``REMEASURE`` is not used. From
  these blocks the lock stays, has a clock raised, or is left.

``MEASURE_ONLY`` and ``FIXED`` are whole lives: a policy or an execution mode that is not controlled.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """What the controller is doing."""

    #: Governor clocks; learning what the governor does with how much work.
    CALIBRATION = "calibration"
    #: Trials of lowered clocks between governor updates.
    SEARCH = "search"
    #: The best setting on fresh updates.
    CONFIRMATION = "confirmation"
    #: The confirmed setting, monitored.
    LOCKED = "locked"
    #: Governor clocks for a few updates: the reference is refreshed.
    REMEASURE = "remeasure"
    #: Governor for now; retried with back-off.
    SUSPENDED = "suspended"
    #: Governor for ever.
    FAILED = "failed"
    #: Never sets a clock.
    MEASURE_ONLY = "measure_only"
    #: Holds given clocks.
    FIXED = "fixed"


#: The legal changes of state. Staying in a state is always legal. README's diagram is drawn from this table.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.CALIBRATION: frozenset({State.SEARCH, State.CONFIRMATION, State.SUSPENDED, State.FAILED}),
    State.SEARCH: frozenset(
        {State.CONFIRMATION, State.LOCKED, State.REMEASURE, State.SUSPENDED, State.FAILED}
    ),
    State.CONFIRMATION: frozenset(
        {State.LOCKED, State.SEARCH, State.REMEASURE, State.SUSPENDED, State.FAILED}
    ),
    State.LOCKED: frozenset({State.CONFIRMATION, State.REMEASURE, State.SUSPENDED, State.FAILED}),
    State.REMEASURE: frozenset(
        {State.CALIBRATION, State.SEARCH, State.CONFIRMATION, State.LOCKED, State.SUSPENDED, State.FAILED}
    ),
    State.SUSPENDED: frozenset({State.CALIBRATION, State.FAILED}),
    State.FAILED: frozenset(),
    State.MEASURE_ONLY: frozenset(),
    State.FIXED: frozenset(),
}


class Reason(Enum):
    """Why a plan is what it is; the plan's note has the numbers."""

    #: Governor updates are being collected for the first reference.
    CALIBRATING = "calibrating"
    #: Records come without valid training tokens: nothing can be judged.
    MISSING_COUNTS = "missing_counts"
    #: Records come without (complete) energy: nothing can be judged.
    MISSING_ENERGY = "missing_energy"
    #: Records do not tell when both pools arrive at the rendezvous (drained updates): nothing can be searched.
    MISSING_ARRIVALS = "missing_arrivals"
    #: Records do not tell how busy both pools are (in-flight updates): it is not known which to search first.
    MISSING_BUSY = "missing_busy"
    #: A setting is tried.
    TRIAL = "trial"
    #: Governor updates between two trials.
    BETWEEN_TRIALS = "between_trials"
    #: A governor block after locking, for continued comparison (in-flight updates).
    GOVERNOR_BLOCK = "governor_block"
    #: The best setting is tried on fresh updates.
    CONFIRMING = "confirming"
    #: A lower setting that monitoring found margin for is tried on fresh updates.
    MARGIN = "margin"
    #: The lock after a re-measurement is tried on fresh updates.
    REJUDGING = "rejudging"
    #: The setting was confirmed.
    CONFIRMED = "confirmed"
    #: Monitoring found throughput below the limit: a clock was raised.
    SHORTFALL = "shortfall"
    #: Monitoring found energy above the governor's: a clock was raised.
    ENERGY_SHORTFALL = "energy_shortfall"
    #: Work outside the range the references cover.
    COVERAGE = "coverage"
    #: The lock does not behave as the reference says it can: the governor may have changed.
    DRIFT = "drift"
    #: Training has had older, fewer or worse responses to learn from under these clocks (asynchronous updates).
    LEARNING = "learning"
    #: The reference is old.
    REFERENCE_AGE = "reference_age"
    #: No tested setting keeps the throughput and saves energy.
    NOTHING_PAYS = "nothing_pays"
    #: The job ends too soon for what a trial could teach.
    NEAR_END = "near_end"
    #: Plans do not come into force.
    NOT_APPLIED = "not_applied"
    #: The hardware does not keep the clock it was given.
    NOT_HONOURED = "not_honoured"
    #: Too many updates in a row that cannot be used.
    NO_EVIDENCE = "no_evidence"
    #: No clock within the limits is below the governor's.
    NO_CLOCKS = "no_clocks"
    #: The policy is ``governor``.
    POLICY_GOVERNOR = "policy_governor"
    #: The policy is ``fixed``.
    POLICY_FIXED = "policy_fixed"
