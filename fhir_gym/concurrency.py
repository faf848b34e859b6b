"""Concurrent work on an event loop, also for callers that run none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, ParamSpec, TypeVar

__all__ = ["LoopThread", "call_in_thread", "gather_or_cancel", "run_coroutine"]

_T = TypeVar("_T")
_R = TypeVar("_R")
_P = ParamSpec("_P")


def run_coroutine(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end; in a thread if the caller's thread runs an event loop, as a notebook's does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run coroutines concurrently and return their results in order.

    If one raises an exception, the others are cancelled and awaited before the exception is raised, so none of them
    runs on.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def call_in_thread(
    thread: Executor | None, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call a function in a thread and return its result. A cancellation is raised when the function has returned.

    None stands for the threads of the event loop.
    """

    def call() -> _T:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:  # a future cannot hold it
            raise RuntimeError("the function raised StopIteration") from error

    future = asyncio.get_running_loop().run_in_executor(thread, call)
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
    return future.result()


class LoopThread(Generic[_T]):
    """Runs a coroutine on an event loop in a thread, and yields what it hands over to the thread that iterates.

    So a caller that runs an event loop itself, as notebooks do, can iterate too.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[tuple[_T] | Callable[[], object] | BaseException | None] = SimpleQueue()
        """What the iterating thread receives: values, functions to call there, an exception, and None at the end."""

    def values(self, coroutine: Coroutine[Any, Any, None]) -> Generator[_T]:
        """Run a coroutine, and yield the values that it hands over; raise its exception.

        Ctrl-C cancels the coroutine; what it hands over after that is yielded before `KeyboardInterrupt` is raised.
        """
        self._loop = asyncio.new_event_loop()
        task = self._loop.create_task(coroutine)
        thread = Thread(target=self._run, args=(task,), name="fhir-gym-loop", daemon=True)
        thread.start()
        try:
            try:
                yield from self._received()
            except KeyboardInterrupt:
                self.call_on_loop(task.cancel)
                yield from self._received()
                raise
        finally:
            self.call_on_loop(task.cancel)
            thread.join()

    def hand_over(self, value: _T) -> None:
        """Let the iterator yield a value."""
        self._items.put((value,))

    def call_in_caller(self, function: Callable[[], object]) -> None:
        """Let the iterating thread call a function as soon as it asks for the next value."""
        self._items.put(function)

    async def result_in_caller(self, function: Callable[[], _R]) -> _R:
        """Return the result of a function that the iterating thread calls. The iterator raises its exception."""
        result: Future[_R] = Future()

        def call() -> None:
            if result.set_running_or_notify_cancel():
                result.set_result(function())

        self.call_in_caller(call)
        return await asyncio.wrap_future(result)

    def call_on_loop(self, function: Callable[[], object]) -> None:
        """Call a function on the event loop, if the loop is not closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def _received(self) -> Iterator[_T]:
        while (item := self._items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, tuple):
                yield item[0]
            else:
                item()

    def _run(self, task: asyncio.Task[None]) -> None:
        async def main() -> None:
            await task

        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(main())
        except asyncio.CancelledError:
            pass  # the iterating thread cancelled the task
        except BaseException as error:  # the iterating thread raises it
            self._items.put(error)
        finally:
            self._items.put(None)
