"""The table of sessions: bounded, reaped when idle, safe for threads, with ids that cannot be guessed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from fhir_gym.errors import FhirGymError
from fhir_gym.mcp_servers.sessions import Ending, SessionError, SessionTable


class Content:
    """A session that detects concurrent use."""

    def __init__(self, *, broken: bool = False) -> None:
        self.closed = self.calls = 0
        self._broken, self._busy = broken, threading.Lock()

    @contextmanager
    def call(self) -> Iterator[None]:
        assert self._busy.acquire(blocking=False), "two calls at once"
        try:
            assert not self.closed
            self.calls += 1
            yield
        finally:
            self._busy.release()

    def close(self) -> None:
        self.closed += 1
        if self._broken:
            raise OSError("the disk is full")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def table(clock: Clock | None = None, most: int = 3) -> SessionTable[Content]:
    return SessionTable("game", most=most, idle_seconds=60, clock=clock or Clock())


def refusal(sessions: SessionTable[Content], id: str) -> str:
    with pytest.raises(SessionError) as caught, sessions.use(id):
        pass
    return str(caught.value)


def test_sessions_are_found_by_id() -> None:
    sessions = table()
    added = [sessions.add(Content) for _ in range(3)]
    for id, content in added:
        with sessions.use(id) as found:
            assert found is content


def test_the_number_of_sessions_is_bounded() -> None:
    sessions = table()
    id, *_ = [sessions.add(Content)[0] for _ in range(3)]
    with pytest.raises(SessionError, match="all 3 games of this server are in use"):
        sessions.add(Content)
    sessions.end(id, Ending("has finished"))
    sessions.add(Content)


def test_a_session_that_cannot_be_made_takes_no_place() -> None:
    sessions = table(most=1)

    def fail() -> Content:
        raise FhirGymError("no such task")

    for _ in range(3):
        with pytest.raises(FhirGymError, match="no such task"):
            sessions.add(fail)
    assert len(sessions) == 0
    sessions.add(Content)


def test_idle_sessions_are_closed() -> None:
    clock = Clock()
    sessions = table(clock)
    (idle, content), (used, _) = sessions.add(Content), sessions.add(Content)
    clock.now = 59
    with sessions.use(used):
        pass
    clock.now = 61
    sessions.reap()
    assert (content.closed, len(sessions)) == (1, 1)
    assert refusal(sessions, idle) == f"the game {idle!r} was closed because it was idle for 60 seconds"
    clock.now = 118
    with sessions.use(used):
        pass


def test_a_full_table_makes_room_for_new_sessions_when_others_are_idle() -> None:
    clock = Clock()
    sessions = table(clock)
    contents = [sessions.add(Content)[1] for _ in range(3)]
    clock.now = 61
    sessions.add(Content)
    assert [content.closed for content in contents] == [1, 1, 1]


def test_a_running_call_is_not_idle() -> None:
    clock = Clock()
    sessions = table(clock)
    id, content = sessions.add(Content)
    with sessions.use(id):
        clock.now = 1_000
        sessions.reap()
        assert not content.closed
    with sessions.use(id):  # the end of the call counts as use
        pass


@pytest.mark.parametrize("guess", ["", "1", "1-", "0-x", "-1", "9-000000000000", "²-x", "x" * 10_000, "1-\ud800", "\n"])
def test_an_id_cannot_be_guessed(guess: str) -> None:
    sessions = table()
    sessions.add(Content)
    message = refusal(sessions, guess)
    assert message.startswith("there is no game ") and len(message) < 400 and message.isprintable()


def test_ids_differ_between_servers_unless_they_have_a_seed() -> None:
    assert table().add(Content)[0] != table().add(Content)[0]
    seeded = [SessionTable[Content]("game", most=1, idle_seconds=1, seed=7).add(Content)[0] for _ in range(2)]
    assert seeded[0] == seeded[1]


def test_the_error_after_the_end_contains_the_result() -> None:
    sessions = table()
    id, content = sessions.add(Content)
    with sessions.use(id):
        sessions.end(id, Ending("has finished", {"success": True}))
    assert content.closed == 1
    with pytest.raises(SessionError, match="has finished") as caught, sessions.use(id):
        pass
    assert caught.value.ending is not None and caught.value.ending.result == {"success": True}


def test_old_endings_are_dropped() -> None:
    sessions = table()
    first, _ = sessions.add(Content)
    sessions.end(first, Ending("has finished"))
    for _ in range(4_096):
        sessions.end(sessions.add(Content)[0], Ending("has finished"))
    assert refusal(sessions, first) == f"the game {first!r} is over"


def test_close_ends_everything_and_refuses_more() -> None:
    sessions = table()
    id, content = sessions.add(Content)
    sessions.close()
    sessions.close()
    assert content.closed == 1
    assert "because the server stopped" in refusal(sessions, id)
    with pytest.raises(SessionError, match="stopping"):
        sessions.add(Content)


def test_an_error_while_closing_an_idle_session_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    sessions = table(clock)
    id, _ = sessions.add(lambda: Content(broken=True))
    _, content = sessions.add(Content)
    clock.now = 61
    with caplog.at_level(logging.ERROR):
        sessions.reap()
    assert content.closed and f"game {id}: OSError: the disk is full" in caplog.text


def test_calls_of_one_session_run_one_after_another() -> None:
    sessions = table(most=8)
    ids = {id: content for id, content in (sessions.add(Content) for _ in range(8))}

    def work(number: int) -> None:
        for step in range(40):
            with sessions.use([*ids][(number + step) % 8]) as content, content.call():
                pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sum(content.calls for content in ids.values()) == 8 * 40


def test_a_call_that_waits_for_an_ending_session_is_refused() -> None:
    sessions = table()
    id, content = sessions.add(Content)
    with ThreadPoolExecutor(1) as pool:
        with sessions.use(id):
            waiting = pool.submit(refusal, sessions, id)
            sessions.end(id, Ending("has finished"))
        assert "has finished" in waiting.result()
    assert content.closed == 1


@pytest.mark.parametrize(("most", "idle"), [(0, 60), (3, 0), (3, float("nan"))])
def test_limits_are_positive(most: int, idle: float) -> None:
    with pytest.raises(FhirGymError):
        SessionTable("game", most=most, idle_seconds=idle)
