"""The policy file: defaults, every fault with file, line, key, value seen and values allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eerl_launch.errors import PolicyError
from eerl_launch.policy import Fixed, Policy, load_policy
from eerl_launch.yaml_file import MAX_FILE_BYTES

REFERENCE = """\
policy: eerl            # eerl | paper | fixed | governor (measure only)
mode: auto
max_throughput_loss: 2% # of governor throughput
total_updates: auto
clocks: {min_mhz: auto, max_mhz: auto, idle_mhz: 345}
pools:  {generation: auto, training: auto}
fixed:  {generation_mhz: 1500, training_mhz: 1200}
report: {price_per_kwh: 0.12, currency: USD, carbon_g_per_kwh: 380, formats: [html, json, csv, txt]}
"""


def _load(folder: Path, text: str | bytes) -> Policy:
    path = folder / "policy.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_policy(path)


def _error(folder: Path, text: str | bytes) -> str:
    with pytest.raises(PolicyError) as caught:
        _load(folder, text)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_no_file_is_the_defaults(tmp_path: Path) -> None:
    """No file, an empty file and a file of comments all mean the defaults."""
    expected = Policy()

    results = [load_policy(None), _load(tmp_path, ""), _load(tmp_path, "# nothing yet\n")]

    assert results == [expected] * 3
    assert expected.policy == "eerl"
    assert expected.max_throughput_loss == 0.02


def test_outlets_survive_the_way_to_the_session(tmp_path: Path) -> None:
    """Each is asked for once, none by itself; the folder may be null."""
    text = "report: {to: [slurm_comment, wandb, wandb], openmetrics_folder: /var/lib/textfile}"

    policy = Policy.from_dict(json.loads(json.dumps(_load(tmp_path, text).to_dict())))

    assert policy.report.to == ("wandb", "slurm_comment")
    assert policy.report.openmetrics_folder == "/var/lib/textfile"
    assert _load(tmp_path, "report: {to: [], openmetrics_folder: null}").report == Policy().report


def test_reference_file_of_the_contract(tmp_path: Path) -> None:
    """The file printed in the contract loads, and survives the way into the ledger."""
    policy = _load(tmp_path, REFERENCE)

    assert policy.fixed == Fixed(1500, 1200)
    assert policy.clocks.min_mhz is None
    assert policy.clocks.idle_mhz == 345
    assert policy.report.price_per_kwh == 0.12
    assert json.loads(json.dumps(policy.to_dict()))["report"]["formats"] == ["html", "json", "csv", "txt"]
    assert policy.controller_settings()["fixed_generation_mhz"] == 1500


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        ("2%", 0.02),
        ("0.02", 0.02),
        ("1e-3", 0.001),
        ("0", 0.0),
        ("0%", 0.0),
        ("'2 %'", 0.02),
        ("2.5%", 0.025),
    ],
)
def test_loss_is_a_fraction_however_it_is_written(tmp_path: Path, text: str, fraction: float) -> None:
    """Percentages, fractions and 1e-3 (text to YAML 1.1) arrive as one fraction."""
    assert _load(tmp_path, f"max_throughput_loss: {text}\n").max_throughput_loss == pytest.approx(fraction)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("max_slowdwon: 3", [":1:", "max_slowdwon", "unknown key", "nearest valid key: max_throughput_loss"]),
        ("\nmin_mhz: 400", [":2:", "nearest valid key: clocks.min_mhz"]),
        ("clocks: {idle: 345}", ["clocks.idle", "nearest valid key: idle_mhz"]),
        ("max_throughput_loss: 2", ["saw 2", "did you mean 2%?"]),
        ("max_throughput_loss: 100%", ["saw 100%", "0% to below 100%"]),
        ("max_throughput_loss: -1%", ["saw -1%"]),
        ("max_throughput_loss: .nan", ["saw .nan"]),
        ("clocks:\n  min_mhz: 1500\n  max_mhz: 1200", [":2:", "clocks.min_mhz", "1500", "1200"]),
        ("fixed: {generation_mhz: fast}", ["fixed.generation_mhz", "saw fast", "clock in whole MHz"]),
        ("fixed: {generation_mhz: 1200.5}", ["saw 1200.5", "clock in whole MHz"]),
        ("clocks: {min_mhz: 0600}", ["saw 0600", "octal"]),
        ("clocks: {min_mhz: '600'}", ["saw '600'", "quoted"]),
        ("total_updates: 1:30", ["saw 1:30"]),
        ("total_updates: 1_000", ["saw 1_000"]),
        ("policy: on", ["saw on", "true or false", "one of eerl, paper, fixed, governor"]),
        ("policy: fixd", ["nearest: fixed"]),
        ("policy: fixed", ["fixed.generation_mhz", "governor"]),
        ("mode: colocated", ["nearest: colocated_sync"]),
        ("policy: eerl\npolicy: paper", [":2:", "given twice", "line 1"]),
        ("clocks: {idle_mhz: 345, idle_mhz: 400}", ["clocks.idle_mhz", "given twice"]),
        ("clocks: 5", ["clocks", "saw 5", "a mapping with min_mhz"]),
        ("policy: [eerl]", ["policy", "saw a list"]),
        ("pools: {generation: [gpu0]}", ["pools.generation", "saw gpu0", "node01:0-3"]),
        ("pools: {training: ['n1:0', 'n1:0']}", ["each once"]),
        ("report: {formats: [html, pdf]}", ["report.formats", "saw pdf", "csv"]),
        ("report: {formats: []}", ["report.formats", "a list out of html"]),
        ("report: {to: [wand]}", ["report.to", "saw wand", "nearest: wandb"]),
        ("report: {to: wandb}", ["report.to", "saw wandb", "a list out of wandb, mlflow, openmetrics"]),
        ("report: {openmetrics_folder: metrics}", ["report.openmetrics_folder", "saw metrics", "absolute"]),
        ("report: {currency: no}", ["report.currency", "true or false"]),
        ("report: {price_per_kwh: -1}", ["report.price_per_kwh", "saw -1"]),
        ("report: {pue: 0.5}", ["report.pue", "saw 0.5"]),
        ("- policy", [":1:", "saw a list"]),
        ("policy: !!python/name:os.system x", ["python/name:os.system"]),
        ("a: &x [1]\nb: *x", ["anchors and aliases"]),
        ("policy: eerl\n---\npolicy: paper", [":2:", "second document"]),
        ("\tpolicy: eerl", [":1:", "not valid YAML"]),
        ("policy: eerl\nmode: a\x01", [":2:", "control character"]),
        ("[" * 5000, ["nested too deeply"]),
        (b"policy: eerl\n# caf\xe9\n", [":2:", "not UTF-8", "0xe9"]),
        (b"#" * (MAX_FILE_BYTES + 1), ["larger than"]),
    ],
)
def test_fault_names_place_value_and_cure(tmp_path: Path, text: str | bytes, parts: list[str]) -> None:
    """Each kind of fault names file, line, key, what was seen and what is allowed."""
    message = _error(tmp_path, text)

    assert str(tmp_path / "policy.yaml") in message
    for part in parts:
        assert part in message
    assert len(message.splitlines()) == 1


def test_all_faults_at_once(tmp_path: Path) -> None:
    """Three faults are three lines of one error, in the order of the file."""
    message = _error(tmp_path, "policy: fast\nmdoe: auto\nclocks: {min_mhz: low}\n")

    lines = message.splitlines()
    assert [line.split(":")[1] for line in lines] == ["1", "2", "3"]


def test_alias_bomb_costs_nothing(tmp_path: Path) -> None:
    """A billion-laughs file is refused at its first anchor."""
    levels = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))

    assert "anchors" in _error(tmp_path, "a0: &a0 [x]\n" + levels)


def test_unreadable_file(tmp_path: Path) -> None:
    """A path that is missing or a folder is named with the reason."""
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(PolicyError, match="cannot read") as caught:
            load_policy(path)
        assert str(path) in str(caught.value)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8"))))
def test_any_bytes_are_a_policy_or_a_policy_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    """Whatever the file holds, the answer is a policy or one PolicyError."""
    folder = tmp_path_factory.getbasetemp()

    try:
        policy = _load(folder, data)
    except PolicyError as error:
        assert "policy.yaml" in str(error)
    else:
        assert isinstance(policy, Policy)


_KEYS = st.sampled_from(
    ["policy", "mode", "max_throughput_loss", "total_updates", "clocks", "pools", "fixed"]
)
_VALUES = st.sampled_from(
    [
        "eerl",
        "on",
        "1e-3",
        "010",
        "2%",
        "E5",
        ".",
        ".e5",
        "{min_mhz: 1e3}",
        "{generation: []}",
        "[]",
        "~",
        "1e99",
    ]
)


@given(st.lists(st.tuples(_KEYS, _VALUES), max_size=6))
def test_any_known_key_with_any_value(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]]
) -> None:
    """Known keys with odd values never escape as another exception."""
    folder = tmp_path_factory.getbasetemp()

    try:
        _load(folder, "".join(f"{key}: {value}\n" for key, value in lines))
    except PolicyError as error:
        assert "policy.yaml" in str(error)


def test_shipped_reference_is_the_defaults() -> None:
    """The commented policy in slurm_examples/ names every key, each with its default."""
    path = Path(__file__).parents[2] / "slurm_examples" / "policy.yaml"

    assert load_policy(path) == Policy()
    text = path.read_text()
    for name, value in Policy().to_dict().items():
        for key in [name, *value] if isinstance(value, dict) else [name]:
            assert f"{key}:" in text
