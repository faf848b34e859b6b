"""Fetch the result of a served episode, and write the files that Harbor's verifier reads."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from pydantic import ValidationError

from fhir_gym.errors import FhirGymError, InfraError
from fhir_gym.files import write_files
from fhir_gym.rollouts import Rollout

SOCKET = Path("/tmp/fhir-gym.sock")  # only the server's own container has this path
"""Path of the socket over which the server of the episode sends the result."""
VERDICT_FOLDER = Path("/tmp/fhir-gym-verdict")
"""Folder that Harbor copies from the server's container to the verifier's container."""
REWARD, VERDICT, ROLLOUT = "reward.json", "verdict.json", "rollout.jsonl"
"""Names of the files: the reward, the verdict for people, and the record of the episode."""
_PIECE = 65_536


def fetch_result(path: Path, timeout: float = 60.0) -> Rollout:
    """End the episode of a server, if it still runs, and return its record.

    Args:
        path: The server's socket.
        timeout: Seconds to wait for the server.

    Raises:
        InfraError: The server does not answer.
    """
    received = bytearray()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            while piece := connection.recv(_PIECE):
                received += piece
        return Rollout.model_validate_json(bytes(received))
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the answer is incomplete"
        raise InfraError(f"the server of the episode at {path} does not answer: {reason or error}") from error


def write_verdict_files(rollout: Rollout, folder: Path) -> None:
    """Write the record, the verdict and the reward. An episode without a verdict has no reward file.

    Raises:
        FhirGymError: A file cannot be written.
        InfraError: The episode has no verdict.
    """
    files: dict[Path, str | bytes] = {folder / ROLLOUT: rollout.line() + "\n"}
    files[folder / VERDICT] = json.dumps(_summary(rollout), ensure_ascii=False, indent=2) + "\n"
    if rollout.graded:
        files[folder / REWARD] = json.dumps({"reward": rollout.reward}) + "\n"
    write_files(files, FhirGymError)
    if not rollout.graded:
        raise InfraError(f"the episode has no verdict: {rollout.error or rollout.stop_reason}")


def _summary(rollout: Rollout) -> dict[str, object]:
    verdict = rollout.verdict
    return {
        "task": rollout.task.model_dump(mode="json", include={"key", "variation", "phrasing"}),
        "stop_reason": rollout.stop_reason,
        "truncated": rollout.stop_reason in ("step_limit", "unfinished"),
        "error": rollout.error,
        "steps": rollout.steps,
        "success": rollout.success,
        "reward": rollout.reward,
        "checks": [{"name": check.name, "passed": check.passed} for check in (verdict.checks if verdict else ())],
        "explanation": verdict.explanation if verdict else None,
    }
