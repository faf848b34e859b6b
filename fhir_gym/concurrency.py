"""Concurrent work on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

__all__ = ["call_in_thread", "finished", "gather_or_cancel"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run coroutines concurrently and return their results in order.

    If one raises an exception, the others are cancelled and awaited before the exception is raised, so none of them
    runs on.
    """
    tasks = [asyncio.create_task(one) for one in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def finished(future: asyncio.Future[Any]) -> None:
    """Wait until a future is done, even if the waiting task is cancelled; the cancellation is raised afterwards."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        with suppress(BaseException):
            future.exception()  # otherwise asyncio reports that nobody has seen it
        raise asyncio.CancelledError


async def call_in_thread(
    thread: Executor | None, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call a function in a thread and return its result. A cancellation is raised when the function has returned."""
    future = asyncio.get_running_loop().run_in_executor(thread, lambda: function(*args, **kwargs))
    await finished(future)
    return future.result()
