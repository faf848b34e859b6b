"""The files that are the same in all task folders."""

from __future__ import annotations

from fhir_gym.integrations.harbor.verdict_files import REWARD, VERDICT, VERDICT_FOLDER

DOCKERFILE = """\
# The agent's container. The records, the task and its grading are in another container.
FROM python:3.12-slim
RUN apt-get update \\
    && apt-get install -y --no-install-recommends ca-certificates curl \\
    && rm -rf /var/lib/apt/lists/*
WORKDIR /work
"""
TEST_DOCKERFILE = """\
FROM python:3.12-slim
COPY test.sh /tests/test.sh
"""
TEST_SH = f"""\
#!/bin/bash
# Hand over the verdict, which Harbor has fetched from the container of the server after the agent's container stopped.
set -e
if [ ! -f {VERDICT_FOLDER}/{REWARD} ]; then
    echo "The episode has no verdict, so it gets no reward: the server failed." >&2
    cat {VERDICT_FOLDER}/{VERDICT} >&2 || true
    exit 1
fi
cat {VERDICT_FOLDER}/{VERDICT}
cp {VERDICT_FOLDER}/{VERDICT} {VERDICT_FOLDER}/{REWARD} /logs/verifier/
"""
SOLVE_SH = """\
#!/bin/bash
set -e
exec python3 "$(dirname "$0")/solve.py"
"""
SOLVE_PY = """\
\"\"\"Send the requests of the reference solution, then the answer.\"\"\"

import json
import urllib.error
import urllib.request
from pathlib import Path

for step in json.loads(Path(__file__).with_name("requests.json").read_text("utf-8")):
    body = step["body"].encode() if step["body"] is not None else None
    request = urllib.request.Request(step["url"], body, step["headers"], method=step["method"])
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status = response.status
    except urllib.error.HTTPError as error:
        status = error.code
    print(step["method"], step["url"], status)
"""
