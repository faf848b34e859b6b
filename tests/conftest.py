"""Shared fixtures, and a guard against network access."""

from __future__ import annotations

import functools
import gc
import hashlib
import ipaddress
import os
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from fhir_gym.fhir import Session, World

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def _is_local(host: object) -> bool:
    if not isinstance(host, str):
        return host is None
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _network_guard(event: str, args: tuple[Any, ...]) -> None:
    """Refuse connections to other machines. As an audit hook, this function sees sync and async code."""
    if event in ("socket.connect", "socket.sendto"):
        address = args[1]
        if isinstance(address, tuple) and not _is_local(address[0]):
            raise RuntimeError(f"tests may not reach the network: {event} {address!r}")
    elif event == "socket.getaddrinfo" and not _is_local(args[0]):
        raise RuntimeError(f"tests may not reach the network: {event} {args[0]!r}")


sys.addaudithook(_network_guard)

# Fewer passes of the garbage collector: importing the tests and the package makes a million objects, which all stay.
gc.set_threshold(50_000, 20, 20)

# Every machine tests the same examples; `--hypothesis-profile=default` searches for new examples.
settings.register_profile("fhir_gym", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fhir_gym")


@pytest.fixture(scope="session", autouse=True)
def _one_ssl_context() -> Iterator[None]:
    """Share one SSL context. Otherwise each HTTP client loads all certificates (40 ms), although no test uses TLS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture(autouse=True)
def _variations_are_drawn_anew() -> None:
    """Clear the cache of variations, because a test may change how a task draws them."""
    from fhir_gym.tasks.core.variation import variation_cache

    variation_cache.clear()


@pytest.fixture(autouse=True)
def _no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the user's endpoint of models."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep what is known about running servers out of the user's state folder."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FHIR_GYM_STATE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def _own_state_folder(_state_folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own folder, because tests use the same URLs for different servers."""
    name = hashlib.blake2b(request.node.nodeid.encode(), digest_size=8).hexdigest()
    monkeypatch.setenv("FHIR_GYM_STATE", str(_state_folder / name))


def _source_digest() -> str:
    """Return a digest of the code that generates worlds. If the digest changes, the test worlds are rebuilt."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in ("worlds", "fhir"):
        for path in sorted((ROOT / "fhir_gym" / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.read_bytes())
    return digest.hexdigest()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Exclude the slowest tests from coverage tracing, because faster tests cover the same code."""
    for item in items:
        if item.path.relative_to(ROOT).parts[1] in ("conformance", "property", "soundness"):
            item.add_marker("no_cover")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m slow` or `-m exhaustive`, import only files with such tests, because importing takes seconds."""
    mark = config.option.markexpr
    if mark in ("slow", "exhaustive") and collection_path.match("test_*.py"):
        return f"mark.{mark}" not in collection_path.read_text("utf-8") or None
    return None


def pytest_collection_finish() -> None:
    """Exclude what exists before the first test from garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Keep built worlds in pytest's cache between test runs; child processes use this cache too."""
    cache = getattr(config, "cache", None)
    folder = cache.mkdir("fhir_gym") if cache else ROOT / ".pytest_cache" / "fhir_gym"
    os.environ["FHIR_GYM_CACHE"] = str(folder / _source_digest())


@pytest.fixture(scope="session")
def hospital() -> Iterator[World]:
    """The world `hospital-small`, cached between test runs."""
    from fhir_gym import worlds

    with worlds.load("hospital-small") as world:
        yield world


@pytest.fixture(scope="session")
def own_world() -> Iterator[Callable[[str], World]]:
    """A function that returns the default world of a pack, cached between test runs."""
    from fhir_gym import worlds
    from fhir_gym.tasks import get_pack

    opened: dict[str, World] = {}

    def of(env_id: str) -> World:
        name = get_pack(env_id).world
        if name not in opened:
            opened[name] = worlds.load(name)
        return opened[name]

    yield of
    for world in opened.values():
        world.close()


@pytest.fixture(scope="session")
def mini(own_world: Callable[[str], World]) -> World:
    """The world `cohort-mini`, cached between test runs."""
    return own_world("FHIRAgent/ActionReasoning-v0")


@pytest.fixture(scope="session")
def empty_world() -> Iterator[World]:
    """A world without resources."""
    from fhir_gym import worlds

    with worlds.load("empty") as world:
        yield world


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with two patients, who have non-numeric ids. The current time is just before midnight on a leap day."""
    from fhir_gym.fhir import World, WorldBuilder

    path = tmp_path_factory.mktemp("worlds") / "tiny.world"
    with WorldBuilder(path, name="tiny", seed=None, now=datetime(2024, 2, 29, 23, 59, 30, tzinfo=UTC)) as builder:
        builder.add({"resourceType": "Patient", "id": "S1", "name": [{"family": "Lee"}], "birthDate": "1980-02-03"})
        builder.add({"resourceType": "Patient", "id": "S2", "name": [{"family": "O'Brien", "given": ["Ana"]}]})
    with World.open(path) as world:
        yield world


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny language model with random weights; torch uses one thread from here on."""
    pytest.importorskip("torch").set_num_threads(1)
    pytest.importorskip("transformers")
    from tests.agents.tiny import save

    return save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def session(hospital: World) -> Iterator[Session]:
    """A fresh session on `hospital-small`."""
    opened = hospital.session()
    yield opened
    opened.close()


@pytest.fixture
def sigint_interrupts() -> Iterator[None]:
    """Let this process and its children react to SIGINT, also in a background job, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference material beside the repository. Without this folder, the test is skipped."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the reference material in {SHARED.name}/ beside the repository")
    return SHARED
