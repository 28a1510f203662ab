"""Can I trust this number: what was measured of what there is, how, with which gaps, and what came of the clocks."""

from __future__ import annotations

from typing import Any

from eerl_launch.report.checks import NAMED
from eerl_launch.report.estimate import Estimate
from eerl_launch.report.rows import Run
from eerl_launch.report.totals import allocation, elapsed_s

#: A GPU seen for less than this share of the run makes the total a partial one.
FULL_COVERAGE = 0.99
#: A counter this much above its GPU's own power counts more than the GPU; power samples are good to a few percent.
_MORE_THAN_GPU = 1.1
_SAME_SCOPE = "they seem to count the GPUs only"
_WIDER_SCOPE = "the rest is of the modules' other parts, such as CPU and memory"


def incomplete_reason(run: Run) -> str | None:
    """Why this is not the record of a whole run; None when it is."""
    if run.damage is not None:
        return f"the ledger is damaged, what follows the damage is not counted: {run.damage}"
    if not run.lines:
        return "the ledger is empty: the run was killed as it started"
    if not run.start:
        return "the ledger has no start line"
    if run.end is None:
        return (
            f"the ledger ends {run.last_t_s:.0f} s into the run without an end line: the run was killed "
            "or is still going on"
        )
    status = run.end.get("status")
    exit_code = run.end.get("exit_code")
    if status == "complete":
        return (
            f"the command ended with exit code {exit_code}; it is measured up to there" if exit_code else None
        )
    if status == "launcher_lost":
        return "eerl-run was lost before the end of the job; what came after is not measured"
    if status == "killed":
        signal = run.end.get("signal")
        return f"the command was killed{f' by signal {signal}' if signal else ''}; it is measured up to there"
    return f"the end status is {status!r}"


def trust(run: Run, problems: list[dict[str, Any]], estimate: Estimate) -> list[dict[str, str]]:
    """Statements about the measurement, each with ``level`` good, note or bad, worst first."""
    total = allocation(run)
    found: list[tuple[str, str]] = []
    if run.simulated:
        found.append(
            ("bad", f"The GPUs were simulated ({run.simulated}): no number here is of real hardware.")
        )
    reason = incomplete_reason(run)
    if reason:
        found.append(("bad", f"Incomplete: {reason}."))
    found += _seen(run, total)
    found += _method(run)
    found += _scopes(run, total["energy_scopes"])
    wrong = [check for check in problems if not check["ok"]]
    if wrong:
        found += [("bad", f"Sums do not agree: {check['check']} ({check['seen']}).") for check in wrong]
    elif problems:
        found.append(("good", f"All {len(problems)} sum checks agree within 0.1 %."))
    found += _model(estimate)
    found += _open_phases(run)
    found += _phases_by_gpu(run)
    found += _markers(run)
    if run.event_counts:
        listed = ", ".join(
            f"{kind.replace('_', ' ')} {count}×" for kind, count in run.event_counts.most_common()
        )
        found.append(("note", f"Events: {listed}; see the list."))
    order = {"bad": 0, "note": 1, "good": 2}
    return [{"level": level, "text": text} for level, text in sorted(found, key=lambda item: order[item[0]])]


def _seen(run: Run, total: dict[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    expected, seen = total["nodes_expected"], total["nodes_seen"]
    if expected and seen < expected:
        names = ", ".join(
            f"{node.node} ({node.reason or node.state.replace('_', ' ')})"
            for node in run.nodes.values()
            if node.state not in ("joined", "lost")
        )
        found.append(("bad", f"Partial: {seen} of {expected} nodes were measured; not {names}."))
    found += [
        ("bad", f"Partial: node {node.node} was lost ({node.reason or 'no reason known'}).")
        for node in run.nodes.values()
        if node.state == "lost"
    ]
    beyond = run.start.get("nodes_not_covered")
    if isinstance(beyond, list) and beyond:
        names = ", ".join(str(name) for name in beyond)
        found.append(
            ("bad", f"Partial: other components of this heterogeneous job are not measured: {names}.")
        )
    gpus_expected = total["gpus_expected"]
    if gpus_expected and total["gpus_seen"] < gpus_expected:
        found.append(("bad", f"Partial: {total['gpus_seen']} of {gpus_expected} GPUs were seen."))
    if not run.gpus:
        found.append(("note", "No GPU of this job was seen, so there is no energy to report."))
        return found
    unknown = sum(gpu.energy_j is None for gpu in run.gpus.values())
    if unknown:
        found.append(("bad", f"Partial: {unknown} of {total['gpus_seen']} GPUs have no energy reading."))
    coverage = total["coverage_fraction"]
    if coverage is None:
        found.append(("note", "Coverage is not known: it is written at the end of a run."))
    else:
        thin = [gpu.uuid for gpu in run.gpus.values() if (gpu.coverage or 0.0) < FULL_COVERAGE]
        words = f"{100 * coverage:.1f} % of GPU time was measured"
        if thin:
            found.append(("bad", f"Partial: {words}; {len(thin)} GPUs below 99 % (see the GPU table)."))
        else:
            found.append(("good", f"{words}, on {total['nodes_seen']} nodes and {total['gpus_seen']} GPUs."))
    return found


def _method(run: Run) -> list[tuple[str, str]]:
    measured = [gpu for gpu in run.gpus.values() if gpu.energy_j is not None]
    estimated = sum(gpu.estimated for gpu in measured)
    found: list[tuple[str, str]] = []
    if measured and not estimated:
        source = "simulated energy counters" if run.simulated else "the GPUs' own energy counters"
        found.append(("good", f"Energy is from {source}, interpolated at phase edges."))
    elif estimated:
        found.append(
            (
                "note",
                f"Estimated: energy of {estimated} of {len(measured)} GPUs is summed from power samples.",
            )
        )
    if any(gpu.mig for gpu in run.gpus.values()):
        found.append(("bad", "GPUs with MIG: energy is of the whole card, which other jobs may share."))
    missing = [row for row in run.phases if row.energy_j is None]
    if missing:
        reason = next((row.energy_reason for row in missing if row.energy_reason), "no reason known")
        share = f"{len(missing)} of {len(run.phases)}"
        found.append(("note", f"The energy of {share} phase runs is not known ({reason.split(':')[0]})."))
    return found


def _scopes(run: Run, scopes: list[str]) -> list[tuple[str, str]]:
    known = [scope for scope in scopes if scope != "unknown"]
    found: list[tuple[str, str]] = []
    if len(known) > 1:
        found.append(
            (
                "bad",
                f"Mixed scopes: energy is of {' and '.join(known)} on different GPUs; the total adds unlike things.",
            )
        )
    elif known == ["module"]:
        found.append(("note", "Energy is of whole modules: CPU and memory of the superchip are in it."))
    elif known == ["gpu"]:
        found.append(("good", "Energy is of the GPU boards only: no CPU, network or cooling."))
    if len(known) < len(scopes):
        found.append(
            ("note", "For some GPUs it is not known whether energy is of the GPU or of a whole module.")
        )
    beside = _beside_gpus(run)
    if beside is not None:
        found.append(("note", beside))
    return found


def _beside_gpus(run: Run) -> str | None:
    """What counters that may cover whole modules say beside the power samples of the GPUs alone."""
    counted_w = alone_w = 0.0
    for gpu in run.gpus.values():
        measured_s = (gpu.coverage or 0.0) * elapsed_s(run)
        if gpu.scope == "gpu" or gpu.estimated or gpu.energy_j is None or not measured_s:
            continue
        if gpu.sampled_power_w is not None:
            counted_w += gpu.energy_j / measured_s
            alone_w += gpu.sampled_power_w
    if alone_w <= 0:
        return None
    return (
        f"Beside these counters' {counted_w:,.0f} W on average, the power samples of the GPUs alone say "
        f"{alone_w:,.0f} W: {_SAME_SCOPE if counted_w < _MORE_THAN_GPU * alone_w else _WIDER_SCOPE}."
    )


def _model(estimate: Estimate) -> list[tuple[str, str]]:
    """How far the prediction reaches beyond what the governor was seen doing."""
    if estimate.reason is not None or not estimate.lowered:
        return []
    outside, lowered = estimate.outside_coverage, estimate.lowered
    if outside > lowered / 4:
        return [
            (
                "note",
                f"For {outside} of {lowered} lowered updates the comparison extrapolates: their work lies "
                f"outside the range of the {estimate.references} governor updates that are the reference.",
            )
        ]
    return [("good", f"The comparison rests on {estimate.references} governor updates with similar work.")]


def _open_phases(run: Run) -> list[tuple[str, str]]:
    still_open = [row for row in run.phases if not row.complete]
    if not still_open:
        return []
    names = ", ".join(dict.fromkeys(f"{row.phase} of update {row.update}" for row in still_open[-NAMED:]))
    return [("note", f"{len(still_open)} phases were never marked as ended, the last: {names}.")]


def _phases_by_gpu(run: Run) -> list[tuple[str, str]]:
    if not run.phases_not_by_gpu:
        return []
    text = (
        f"Partial: of the last {run.phases_not_by_gpu} phases the ledger has no energy by GPU (a wide job tells it "
        "every 100 updates); it is in each GPU's unattributed energy."
    )
    return [("note", text)]


def _markers(run: Run) -> list[tuple[str, str]]:
    markers = run.end.get("markers") if run.end else None
    if not isinstance(markers, dict):
        return []
    if markers.get("received") == 0:
        return [("note", "No markers were received: only the energy of the whole job is known.")]
    bad = {key: markers.get(key) or 0 for key in ("malformed", "lost")}
    if any(bad.values()):
        return [("note", f"Markers: {bad['malformed']} malformed, {bad['lost']} lost.")]
    return []


def clocks_at_end(run: Run) -> list[dict[str, Any]]:
    """By node, what is known of the clocks' return to the site's setting."""
    resets = run.end.get("resets") if run.end else None
    resets = resets if isinstance(resets, dict) else {}
    lowered = any(not plan.is_governor for plan in run.plans.values())
    return [
        {"node": node, **_reset(resets.get(node), lowered)}
        for node in dict.fromkeys([*run.nodes, *map(str, resets)])
    ]


def _reset(outcome: Any, lowered: bool) -> dict[str, str]:
    """The outcome of one node's resets, however the session put it: a word, or a mapping with failures."""
    detail = ""
    if isinstance(outcome, dict):
        failures = outcome.get("failures")
        if failures:
            detail = (
                "; ".join(_failure(item) for item in failures)
                if isinstance(failures, list)
                else str(failures)
            )
        if outcome.get("unknown"):
            state = "unknown"
        else:
            state = "failures" if failures or outcome.get("ok") is False else "ok"
    else:
        state = str(outcome) if outcome else "unknown"
    if state in ("unknown", "ok") and not lowered:
        state = "untouched"
    words = {
        "ok": "every reset call returned success",
        "failures": "clocks may still be locked; the broker and the epilog try again",
        "unknown": "not known to the session; the broker, its lease and the epilog reset on their own",
        "untouched": "no clock was ever set by this run",
    }
    return {"state": state, "text": ": ".join(part for part in (words.get(state, state), detail) if part)}


def _failure(item: Any) -> str:
    """One failed reset: GPU, code and text where they are known."""
    if not isinstance(item, dict):
        return str(item)
    return " ".join(str(item[key]) for key in ("uuid", "code", "text") if item.get(key) is not None)
