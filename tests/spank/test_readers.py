"""What root reads from others is read strictly: settings, numbers, lists, names, request lines."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spank.lone_node import SPANK

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ARGUMENT = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF), max_size=60)
KEYS = (
    "default users groups partitions accounts min_mhz max_mhz idle_min_mhz site_max_mhz lease_s shared_gpus"
)
KEYS += " on_reset_failure gpu_order gpus_per_node nvml clockd"

Driver = Callable[..., str]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The readers of spank/ under AddressSanitizer and UBSan, one call a run."""
    program = tmp_path_factory.mktemp("driver") / "text_driver"
    sources = [
        SPANK / name
        for name in ("config.c", "text.c", "trust.c", "protocol.c", "lanes.c", "gpu_work.c", "nvml.c")
    ]
    sources += [SPANK / "state.c", SPANK / "grant.c", Path(__file__).with_name("text_driver.c")]
    subprocess.run(
        [
            *(
                "gcc",
                "-std=c11",
                "-D_GNU_SOURCE",
                "-pthread",
                "-O1",
                "-g",
                "-Wall",
                "-Wextra",
                "-Werror",
                f"-I{SPANK}",
            ),
            *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", program, *sources, "-ldl"),
        ],
        check=True,
    )

    def call(*words: str | bytes, data: bytes = b"") -> str:
        done = subprocess.run(
            [program, *map(os.fsencode, words)], input=data, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode(errors="replace")

    return call


@given(text=ARGUMENT | st.from_regex(r"[ +-]?[0-9]{1,12}[ a]?", fullmatch=True))
@FUZZ
def test_numbers_are_digits_only(driver: Driver, text: str) -> None:
    """A number is ASCII digits within 32 bits; blanks, signs, exponents and long ones are refused."""
    right = re.fullmatch(r"[0-9]+", text, re.ASCII) is not None and int(text) < 2**32

    assert driver("number", text) == (f"ok {int(text)}\n" if right else "bad 0\n")


def _list_model(text: str) -> list[int] | None:
    values: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", part, re.ASCII)
        if not match:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or max(first, last) > 9999 or last - first >= 32:
            return None
        values += range(first, last + 1)
    return values if len(set(values)) == len(values) <= 32 else None


@given(text=ARGUMENT | st.from_regex(r"[0-9]{1,2}(?:[,-][0-9]{1,2}){0,6},?", fullmatch=True))
@FUZZ
def test_gpu_lists_match_the_model(driver: Driver, text: str) -> None:
    """Lists and ranges without repeats, at most 32 entries; everything else is refused as a whole."""
    model = _list_model(text)

    words = driver("list", text).split()

    assert words == (["-1"] if model is None else [str(len(model)), *map(str, model)])


@given(name=ARGUMENT)
@FUZZ
def test_names_cannot_leave_their_folder(driver: Driver, name: str) -> None:
    """Node names and UUIDs become file names: only letters, digits and a few marks, never a leading dot."""
    node = re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}", name, re.ASCII) is not None
    uuid = re.fullmatch(r"GPU-[A-Za-z0-9-]{0,91}", name, re.ASCII) is not None

    assert driver("node", name) == ("ok\n" if node else "bad\n")
    assert driver("uuid", name) == ("ok\n" if uuid else "bad\n")


@given(
    words=st.lists(st.tuples(st.sampled_from(KEYS.split()), ARGUMENT).map("=".join) | ARGUMENT, max_size=6)
)
@FUZZ
def test_any_plugstack_line_is_read_or_refused(driver: Driver, words: list[str]) -> None:
    """Whatever stands in plugstack.conf: an answer, and with a refusal one sentence that says why."""
    verdict, why = driver("config", "-", *words).split("\n", 1)

    assert verdict.startswith("ok ") == (why.strip() == "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "",
            "ok default=0 min_mhz=0 max_mhz=0 idle_min_mhz=0 site_max_mhz=0 lease_s=10 shared_gpus=0 drain=0",
        ),
        ("default=on lease_s=2 shared_gpus=yes on_reset_failure=drain gpu_order=minor", "ok default=1"),
        (
            "min_mhz=345 max_mhz=1980 idle_min_mhz=210 site_max_mhz=1500 gpus_per_node=8",
            "ok default=0 min_mhz=345 max_mhz=1980",
        ),
        (
            "nvml=/usr/lib/libnvidia-ml.so.1 clockd=/opt/eerl/eerl-clockd users=a,b groups=c partitions=d accounts=e",
            "ok",
        ),
        ("min_mhz=900 max_mhz=800", "bad"),
        ("min_mhz=900 site_max_mhz=800", "bad"),
        ("min_mhz=0", "bad"),
        ("max_mhz=4294967041", "bad"),
        ("max_mhz=1e3", "bad"),
        ("lease_s=1", "bad"),
        ("lease_s=301", "bad"),
        ("default=yes", "bad"),
        ("default=", "bad"),
        ("shared_gpus=on", "bad"),
        ("nvml=libnvidia-ml.so.1", "bad"),
        ("users=", "bad"),
        ("Default=on", "bad"),
        ("default", "bad"),
    ],
)
def test_settings(driver: Driver, words: str, expected: str) -> None:
    """Each key with its values, and what is no value of it."""
    verdict, why = driver("config", "-", *words.split()).split("\n", 1)

    assert verdict.startswith(expected)
    assert verdict.startswith("ok") or words.split("=")[0].split()[-1] in why


def test_the_rest_is_read_after_a_bad_setting(driver: Driver) -> None:
    """Clean-up goes on with what is usable: a bad key does not hide the good ones after it."""
    verdict = driver("config", "-", "nonsense=1", "site_max_mhz=1500", "min_mhz=x", "on_reset_failure=drain")

    assert verdict.startswith("bad")
    assert "site_max_mhz=1500" in verdict
    assert "drain=1" in verdict
    assert "nonsense=1 is not a known key" in verdict


@given(line=st.binary(max_size=600))
@FUZZ
def test_any_request_line_is_read_or_refused(driver: Driver, line: bytes) -> None:
    """A request that is taken is one the protocol has, exactly; all other bytes are refused."""
    known = re.fullmatch(
        rb"hello 0*1|ping|sample|reset (\*|GPU-[A-Za-z0-9-]{0,91})"
        rb"|lock (\*|GPU-[A-Za-z0-9-]{0,91}) 0*[1-9][0-9]{0,5}",
        line,
    )

    kind = int(driver("request", data=line).split()[0])

    assert (kind != 5) == (known is not None)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"hello 1", "0 1 0 "),
        (b"lock * 1200", "1 1200 1 "),
        (b"lock GPU-12ab-34 900", "1 900 0 GPU-12ab-34"),
        (b"reset *", "2 0 1 "),
        (b"sample", "3 0 0 "),
        (b"ping", "4 0 0 "),
        (b"hello 2", "5 2"),
        (b"lock * 0", "5 0"),
        (b"lock * 100001", "5 0"),
        (b"lock * 12.5", "5"),
        (b"lock  * 900", "5"),
        (b"lock * 900 ", "5"),
        (b"LOCK * 900", "5"),
        (b"lock GPU-../../x 900", "5"),
        (b"lock MIG-12 900", "5"),
        (b"", "5"),
        (b"ping\r", "5"),
        (b"ping\x00", "5"),
        (b"ping" + b" " * 300, "5"),
    ],
)
def test_requests(driver: Driver, line: bytes, answer: str) -> None:
    """Each request, and near misses."""
    assert driver("request", data=line).startswith(answer)


def test_trust_looks_at_every_folder(driver: Driver, tmp_path: Path) -> None:
    """A file is trusted only when no one but root could have put it there, sticky folders excepted."""
    if os.geteuid() != 0:
        pytest.skip("needs root: trust means root's files")
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    file = folder / "lib.so"
    file.write_text("")
    link = tmp_path / "link"
    link.symlink_to(folder)

    assert driver("trust", os.fspath(file)).startswith("ok")
    assert "symbolic link" in driver("trust", os.fspath(link / "lib.so"))
    assert "not a regular file" in driver("trust", os.fspath(folder))
    assert "absolute" in driver("trust", "lib.so")
    folder.parent.chmod(0o777)
    assert "written by others" in driver("trust", os.fspath(file))
    folder.parent.chmod(0o1777)
    assert driver("trust", os.fspath(file)).startswith("ok")
    os.chown(folder, 4001, -1)
    assert "uid 4001" in driver("trust", os.fspath(file))
