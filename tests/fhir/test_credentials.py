"""Credentials are sent to the server and never shown."""

from __future__ import annotations

import html
import json
import pickle
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gymnasium as gym
import pytest

from fhir_gym import EpisodeConfig
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir.adapters.credentials import Credentials, ServerAddress


def test_values_are_hidden() -> None:
    credentials = Credentials({"Authorization": "Bearer abc123"})
    assert "abc123" not in repr(credentials)
    assert credentials.hide("Bearer abc123 and abc123 are unknown") == "… and … are unknown"
    address = ServerAddress.of("https://me:p%40ss@host/fhir/")
    assert (address.base, address.name, address.auth) == ("https://host/fhir", "host-fhir", ("me", "p@ss"))
    assert "p@ss" not in repr(address) and "fhir" in repr(address)
    admitted = Credentials({"X-Tenant": "ward"}).at(address)
    assert admitted == Credentials({"X-Tenant": "ward", **Credentials.basic("me", "p@ss").headers})
    assert admitted.hide("p@ss, p%40ss, bWU6cEBzcw== and ward-7") == "…, …, … and …-7"
    with pytest.raises(ValueError, match="not both"):
        Credentials.bearer("abc123").at(address)


def test_every_way_to_write_a_secret_is_hidden() -> None:
    secret = 'a"b/c<d&e f'
    credentials = Credentials.basic("me", secret)
    for text in (
        secret,
        json.dumps(secret),
        json.dumps(secret).replace("/", "\\/"),
        quote(secret),
        html.escape(secret),
    ):
        assert "c" not in credentials.hide(text).replace("&amp", ""), text
    assert credentials.hide("c\udc80 " + secret) == "c\udc80 …"  # a lone surrogate in the text does no harm


def test_short_values_stay_in_data() -> None:
    credentials = Credentials({"X-Tenant": "ward-7", "Authorization": "Bearer 0123456789abcdef"})
    assert credentials.hide_in_data(b"ward-7: 0123456789abcdef") == "ward-7: …".encode()
    assert credentials.hide("ward-7: 0123456789abcdef") == "…: …"


def test_settings_that_hold_credentials_do_not_show_them() -> None:
    config = EpisodeConfig(
        "FHIRAgent/Appointment-v0",
        fhir_server="http://localhost:1/fhir",
        fhir_credentials=Credentials.bearer("t0p-secret"),
    )
    spec = deepcopy(gym.spec("FHIRAgent/Appointment-v0"))
    spec.kwargs = {"fhir_credentials": config.fhir_credentials}
    with pytest.raises(TypeError, match="not JSON serializable"):
        spec.to_json()
    assert "t0p-secret" not in f"{config!r} {asdict(config)!r} {spec!r}"
    assert pickle.loads(pickle.dumps(config)) == config  # worker processes need the values
    assert len({config.fhir_credentials, Credentials.bearer("t0p-secret"), Credentials.bearer("other")}) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fhir_server": "http://me:t0p-secret@host/fhir"}, "must not contain a user"),
        ({"fhir_server": "ftp://me:t0p-secret@host/fhir"}, "not the base URL"),
        ({"fhir_server": "http://host/fhir", "fhir_credentials": "t0p-secret"}, "must be fhir_gym.fhir.Credentials"),
        ({"fhir_credentials": Credentials.bearer("t0p-secret")}, "need a fhir_server"),
    ],
)
def test_invalid_settings_do_not_show_the_secret(settings: Any, message: str) -> None:
    with pytest.raises(FhirGymError, match=message) as caught:
        EpisodeConfig("FHIRAgent/Appointment-v0", **settings)
    assert "t0p-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "headers",
    [
        *({"X-Key": value} for value in ("t0p\nsecret", " t0p", "t0p\r\nY: b", "t0pé", "t0p\x00", 5)),
        {"X Key": "t0p"},
        {"": "t0p"},
    ],
)
def test_invalid_headers(headers: Any) -> None:
    with pytest.raises(ValueError, match=r"invalid header '(X[- ]Key)?'") as caught:
        Credentials(headers)
    assert "t0p" not in str(caught.value)
    with pytest.raises(ValueError, match="colon"):
        Credentials.basic("a:b", "x")


@pytest.mark.parametrize("url", ["https://me:secret@host/?x", "https://me:secret@host:port/", "ftp://me:secret@host/"])
def test_an_invalid_address_does_not_show_the_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"base URL|invalid URL") as caught:
        ServerAddress.of(url)
    assert "secret" not in str(caught.value)


def test_a_ca_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nonsense")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(ValueError, match=f"cannot use the CA file .*{name}"):
            Credentials(ca=tmp_path / name).client(timeout=1.0)
