"""Credentials are sent to the server and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from fhir_gym.fhir.adapters.credentials import Credentials, ServerAddress


def test_values_are_hidden() -> None:
    credentials = Credentials({"Authorization": "Bearer abc123"})
    assert "abc123" not in repr(credentials)
    assert credentials.hide("Bearer abc123 and abc123 are unknown") == "… and … are unknown"
    address = ServerAddress.of("https://me:p%40ss@host/fhir/")
    assert (address.base, address.name, address.auth) == ("https://host/fhir", "host-fhir", ("me", "p@ss"))
    assert "p@ss" not in repr(address) and address.hide("p@ss, p%40ss") == "…, …"


@pytest.mark.parametrize("url", ["https://me:secret@host/?x", "https://me:secret@host:port/", "ftp://me:secret@host/"])
def test_an_invalid_address_does_not_show_the_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"base URL|invalid URL") as caught:
        ServerAddress.of(url)
    assert "secret" not in str(caught.value)


def test_a_ca_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nonsense")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(ValueError, match=f"cannot use the CA file .*{name}"):
            Credentials(ca=tmp_path / name).client(ServerAddress.of("https://host"), headers={}, timeout=1.0)
