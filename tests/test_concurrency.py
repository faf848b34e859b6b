"""Tests of coroutines that run on the event loop of a thread and serve an iterator."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fhir_gym.concurrency import LoopThread, call_in_thread


def iterate(work: Callable[[LoopThread[int]], Coroutine[Any, Any, None]]) -> tuple[list[int], BaseException | None]:
    """Return the values of a coroutine, and the exception that ended them."""
    received: list[int] = []
    loop = LoopThread[int]()
    try:
        for value in loop.values(work(loop)):
            received.append(value)
    except BaseException as error:
        return received, error
    return received, None


async def count(loop: LoopThread[int], numbers: int = 3) -> None:
    for number in range(numbers):
        loop.hand_over(number)
        await asyncio.sleep(0)


def test_values_arrive_in_order() -> None:
    assert iterate(count) == ([0, 1, 2], None)


def test_an_exception_is_raised_after_the_values() -> None:
    async def fail(loop: LoopThread[int]) -> None:
        await count(loop)
        raise ZeroDivisionError

    received, error = iterate(fail)
    assert received == [0, 1, 2] and isinstance(error, ZeroDivisionError)


def test_functions_run_in_the_iterating_thread() -> None:
    async def ask(loop: LoopThread[int]) -> None:
        loop.hand_over(await loop.result_in_caller(threading.get_ident))
        loop.hand_over(threading.get_ident())

    (caller, own), _ = iterate(ask)
    assert caller == threading.get_ident() != own


def test_ctrl_c_cancels_the_coroutine_and_keeps_its_last_values() -> None:
    async def wait(loop: LoopThread[int]) -> None:
        loop.hand_over(1)
        loop.call_in_caller(press_ctrl_c)
        try:
            await asyncio.Event().wait()
        finally:
            loop.hand_over(2)

    def press_ctrl_c() -> None:
        raise KeyboardInterrupt

    received, error = iterate(wait)
    assert received == [1, 2] and isinstance(error, KeyboardInterrupt)


def test_an_iterator_that_is_left_cancels_the_coroutine() -> None:
    ended = threading.Event()

    async def endless(loop: LoopThread[int]) -> None:
        try:
            await count(loop, 1)
            await loop.result_in_caller(lambda: None)
        finally:
            ended.set()

    loop = LoopThread[int]()
    values = loop.values(endless(loop))
    assert next(values) == 0
    values.close()
    assert ended.is_set()
    loop.call_on_loop(lambda: None)  # the loop is closed, so nothing happens


def test_a_loop_that_cannot_start_is_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = OSError("too many open files")

    def no_loop() -> None:
        raise failed

    loop = LoopThread[int]()
    work = count(loop)
    monkeypatch.setattr(asyncio, "new_event_loop", no_loop)
    with pytest.raises(OSError) as raised:
        list(loop.values(work))
    assert raised.value is failed
    work.close()


def test_a_function_in_a_thread_may_exhaust_an_iterator() -> None:
    async def work() -> None:
        with ThreadPoolExecutor(1) as thread:
            await call_in_thread(thread, next, iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(work(), 20))
