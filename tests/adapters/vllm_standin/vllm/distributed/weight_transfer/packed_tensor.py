"""Takes the weights and does nothing with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def packed_nccl_broadcast_producer(
    iterator: Iterator[Any], group: Any, src: int, post_iter_func: Callable[[Any], Any]
) -> None:
    for item in iterator:
        post_iter_func(item)
