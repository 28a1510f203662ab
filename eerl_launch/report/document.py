"""The whole report as one JSON-able mapping: text, page and report.json all show these same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eerl_launch.report import members, phase_totals, totals, trust
from eerl_launch.report.checks import checks
from eerl_launch.report.estimate import Estimate, estimate_saving
from eerl_launch.report.rows import Run
from eerl_launch.report.standouts import standouts
from eerl_launch.report.values import kwh, number, table

SCHEMA = "eerl.report"
SCHEMA_VERSION = 1

#: Joules, seconds and shares are as measured; nothing is rounded in the document.
Document = dict[str, Any]


@dataclass(slots=True)
class Report:
    """A run with all that was worked out of it."""

    run: Run
    estimate: Estimate
    document: Document


def make_report(run: Run) -> Report:
    """Work everything out."""
    estimate = estimate_saving(run)
    problems = checks(run)
    reason = trust.incomplete_reason(run)
    nodes, gpus = members.nodes(run), members.gpus(run)
    document: Document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "simulated": run.simulated,
        "complete": reason is None,
        "incomplete_reason": reason,
        "run": _head(run),
        "allocation": totals.allocation(run),
        "result": _result(estimate),
        "cost": _cost(run, estimate),
        "updates": totals.updates(run),
        "phases": phase_totals.phases(run),
        "pools": members.pools(run),
        "nodes": nodes,
        "gpus": gpus,
        "standouts": standouts(gpus, nodes),
        "controller": _controller(run),
        "clocks_at_end": trust.clocks_at_end(run),
        "trust": trust.trust(run, problems, estimate),
        "checks": problems,
        "events": [
            {"t_s": row.t_s, "kind": row.kind, "node": row.node, "uuid": row.uuid, "text": row.text}
            for row in run.events
        ],
        "event_counts": dict(run.event_counts),
        "metrics": {
            name: {"first": values[0][1], "last": values[-1][1], "count": len(values)}
            for name, values in run.metrics.items()
        },
    }
    return Report(run, estimate, document)


def _head(run: Run) -> dict[str, Any]:
    end = run.end or {}
    head = {
        key: run.start.get(key)
        for key in (
            "run_id",
            "job_id",
            "array_task",
            "restart",
            "user",
            "cluster",
            "job_name",
            "partition",
            "account",
            "command",
            "time_iso",
            "time_unix_s",
            "time_scale",
            "policy_file",
        )
    }
    versions = {str(name): str(value) for name, value in table(run.start.get("versions")).items()}
    return {
        **head,
        "versions": versions,
        "eerl_version": versions.get("eerl"),
        "end_time_unix_s": number(end.get("time_unix_s")),
        "exit_code": end.get("exit_code"),
        "signal": end.get("signal"),
        "status": end.get("status"),
        "framework": run.trainer.get("framework"),
        "mode": run.mode,
        "policy": run.policy.get("policy"),
        "max_throughput_loss_fraction": number(run.policy.get("max_throughput_loss")),
        "gpu_names": sorted({gpu.name for gpu in run.gpus.values() if gpu.name}),
    }


def _result(estimate: Estimate) -> dict[str, Any]:
    return {
        "estimate": estimate.reason is None,
        "no_estimate_reason": estimate.reason,
        "reference": "what the governor would have taken for the same work, by this run's own updates in hindsight",
        "governor_updates_used": estimate.references,
        "updates_compared": estimate.compared,
        "updates_left_out": dict(estimate.left_out),
        "updates_outside_coverage": estimate.outside_coverage,
        "lowered_updates": estimate.lowered,
        "straggling_lowered_updates": estimate.stragglers,
        "saving_with_stragglers_percent": estimate.saving_with_stragglers_percent,
        "throughput_change_with_stragglers_percent": estimate.throughput_with_stragglers_percent,
        "confidence_percent": 95,
        **{
            name: estimate.intervals[name].to_dict() if name in estimate.intervals else None
            for name in ("whole", "before_lock", "after_lock", "lowered")
        },
    }


def _cost(run: Run, estimate: Estimate) -> dict[str, Any] | None:
    """Money and CO2, only with the factors the policy gives; each factor and its origin beside the number."""
    asked = run.policy.get("report")
    asked = asked if isinstance(asked, dict) else {}
    price, carbon = number(asked.get("price_per_kwh")), number(asked.get("carbon_g_per_kwh"))
    stated_pue = number(asked.get("pue"))
    used_kwh = kwh(totals.allocation(run)["energy_j"])
    if (price is None and carbon is None) or used_kwh is None:
        return None
    pue = 1.0 if stated_pue is None else stated_pue
    whole = estimate.intervals.get("whole")
    saved_kwh = kwh(whole.governor_energy_j - whole.measured_energy_j) if whole else None
    file = run.start.get("policy_file")
    return {
        "origin": f"policy file {file}" if file else "policy",
        "pue": stated_pue,
        "energy_with_pue_kwh": used_kwh * pue,
        "price_per_kwh": price,
        "currency": str(asked.get("currency") or "") or None,
        "price": None if price is None else used_kwh * pue * price,
        "saved_price": None if price is None or saved_kwh is None else saved_kwh * pue * price,
        "carbon_g_per_kwh": carbon,
        "carbon_g": None if carbon is None else used_kwh * pue * carbon,
        "saved_carbon_g": None if carbon is None or saved_kwh is None else saved_kwh * pue * carbon,
    }


def _controller(run: Run) -> dict[str, Any]:
    """What the controller did: plans, states and for how many updates, switches and what they took."""
    states: dict[str, int] = {}
    for row in run.updates:
        if row.state:
            states[row.state] = states.get(row.state, 0) + 1
    last = run.plans[max(run.plans)] if run.plans else None
    latencies_s = sorted(run.switches.latencies_s)
    return {
        "plans": len(run.plans),
        "updates_by_state": states,
        "last_plan": None
        if last is None
        else {
            "plan_id": last.plan_id,
            "generation_mhz": last.generation_mhz,
            "training_mhz": last.training_mhz,
            "idle_mhz": last.idle_mhz,
            "state": last.state,
            "reason": last.reason,
            "note": last.note,
        },
        "clock_switches": run.switches.switches,
        "switch_latency_median_s": latencies_s[len(latencies_s) // 2] if latencies_s else None,
        "switch_latency_max_s": latencies_s[-1] if latencies_s else None,
        "switch_failures": run.switches.failures,
        "switch_failure_texts": [
            f"{text} ({count}×)" for text, count in run.switches.failure_texts.most_common(10)
        ],
    }
