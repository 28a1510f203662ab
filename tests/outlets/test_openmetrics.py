"""The OpenMetrics file, read with the parsers of the format's own makers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from outlets.runs import parcel_of, report_of
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from report.ledgers import RunSpec

from eerl_launch.outlets.openmetrics import deliver, render

ODD = 'a "quoted" \\ back\nslash'


def samples(text: str, parser: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and labels; the parser refuses what is not the format."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("parser", [openmetrics, prometheus])
def test_both_formats_parse_to_the_reports_numbers(tmp_path: Path, parser: Any) -> None:
    """Strict parsers find the job's energy, its saving with bounds, and phases and nodes that add up."""
    document = report_of(tmp_path).document

    found = samples(render(document), parser)

    def values(name: str, **labels: str) -> list[float]:
        wanted = set(labels.items())
        return [value for (known, pairs), value in found.items() if known == name and wanted <= set(pairs)]

    energy_j = document["allocation"]["energy_j"]
    assert values("eerl_job_energy_joules", run_id="4711", simulated="false") == [energy_j]
    assert sum(values("eerl_phase_energy_joules", partition_of_job="true")) == pytest.approx(energy_j)
    assert sum(values("eerl_node_energy_joules")) == pytest.approx(energy_j)
    (low,), (saved,), (high,) = (
        values("eerl_job_energy_saved_ratio", bound=bound) for bound in ("low", "estimate", "high")
    )
    assert low < saved < high
    assert saved == pytest.approx(document["result"]["whole"]["saving_percent"] / 100)
    assert values("eerl_job_info", user="ada", policy="eerl", job_id="4711") == [1.0]
    assert render(document).endswith("# EOF\n")


@pytest.mark.parametrize("parser", [openmetrics, prometheus])
def test_any_name_survives(tmp_path: Path, parser: Any) -> None:
    """Quotes, backslashes and line ends in a job's name come back as they were."""
    document = report_of(tmp_path, RunSpec(start={"job_name": ODD})).document

    found = samples(render(document), parser)

    assert [dict(labels)["job_name"] for name, labels in found if name == "eerl_job_info"] == [ODD]


def test_a_run_without_numbers_has_no_samples_of_them(tmp_path: Path) -> None:
    """Nothing measured: what is unknown is not there, rather than 0 or NaN."""
    found = samples(render(report_of(tmp_path, RunSpec(updates=0, nodes=0)).document), openmetrics)

    names = {name for name, _ in found}
    assert "eerl_job_info" in names
    assert not names & {"eerl_job_energy_joules", "eerl_job_energy_saved_ratio", "eerl_job_valid_tokens"}


def test_the_file_is_there_at_once_and_under_its_own_name(tmp_path: Path) -> None:
    """In the collector's folder the file is named after the run, readable for all, and nothing else is left."""
    parcel, folder = parcel_of(tmp_path / "run"), tmp_path / "textfile"
    folder.mkdir()

    where = deliver({**parcel, "metrics_folder": str(folder)})
    own = deliver(parcel)

    assert [path.name for path in folder.iterdir()] == ["eerl-4711.prom"]
    assert where == str(folder / "eerl-4711.prom")
    assert own == str(tmp_path / "run" / "metrics.prom")
    assert Path(own).read_text() == Path(where).read_text() == render(parcel["document"])
    assert Path(where).stat().st_mode & 0o777 == 0o644


def test_a_runs_own_name_is_not_doubled(tmp_path: Path) -> None:
    """A run folder is named eerl-… already, and so is the run: the file has that prefix once."""
    parcel = parcel_of(tmp_path / "run", RunSpec(start={"run_id": "eerl-local-20261130T090000-0a1b2c3d"}))

    where = deliver({**parcel, "metrics_folder": str(tmp_path)})

    assert where == str(tmp_path / "eerl-local-20261130T090000-0a1b2c3d.prom")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The error says which file and why."""
    with pytest.raises(OSError, match=r"nowhere/eerl-4711.prom cannot be written: No such file"):
        deliver({**parcel_of(tmp_path), "metrics_folder": str(tmp_path / "nowhere")})
