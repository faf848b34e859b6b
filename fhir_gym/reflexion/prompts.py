"""The prompts of the evaluator and the reflector, and the texts about an episode that they read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from fhir_gym.actions import GRAMMAR, Invalid
from fhir_gym.agents.chat_messages import Lookup
from fhir_gym.agents.memory import OPERATIONS, Reflection
from fhir_gym.agents.tool_sources import ToolSource
from fhir_gym.rollouts import Rollout, Turn

EVALUATOR_PROMPT = (
    "You are the evaluator. You judge how an agent carried out a task on a FHIR R4 server. You get the task, the "
    "agent's actions with the server's responses, and the result of an automatic check of the final state and answer. "
    "The automatic check is right about success. Find out why the run went as it did: look at each action, name the "
    "first one that went wrong, and say which instruction of the task was not followed.\n"
    "Answer with one JSON object and nothing else:\n"
    '{"execution_quality": 1 to 5, "constraint_adherence": 1 to 5, '
    '"failure_modes": ["a short phrase for each distinct mistake"], "critique": "at most 150 words"}\n'
    "execution_quality is about correct and economical use of the tools. constraint_adherence is about what the task "
    "demands and forbids. failure_modes is empty for a run without mistakes."
)
"""System prompt of the evaluator."""

REFLECTOR_PROMPT = (
    "You are the reflector. You write lessons that help an agent with future tasks on a FHIR R4 server. You get one "
    "run of the agent, the result of an automatic check, and an evaluator's critique. Future tasks concern other "
    "patients, other records and other dates, so a lesson never mentions a name, an id, a date, a time or a number of "
    "this run; write <name>, <id>, <date> where an example needs one. Lessons of a successful run keep what worked.\n"
    "There are two kinds of lessons. A micro lesson is about one operation on one resource type: which search "
    "parameters to use, which elements a resource needs, in which form. A macro lesson is about tasks like this one as "
    "a whole: the plan, the order of the steps, how to choose among results, what the task forbids.\n"
    "Answer with one JSON object and nothing else:\n"
    '{"micro": [{"resource_type": "Slot", "operation": "search", "lesson": "one or two sentences"}], '
    '"macro": [{"lesson": "one to three sentences"}]}\n'
    f"operation is one of {', '.join(OPERATIONS)}. Write at most 6 micro and 3 macro lessons, only those that would "
    "change what the agent does; both lists may be empty."
)
"""System prompt of the reflector."""

SPECIFICATION_NOTE = (
    " You can look up the FHIR R4 specification with the tools. Check each micro lesson against it before you answer: "
    "search parameters, elements, data types and codes must exist."
)
"""Sentence that the reflector's system prompt ends with if it may look up the specification."""

LESSONS_HEADING = "Lessons from your earlier attempt at this task:"
"""First line of the lessons that the agent reads in a later trial."""

_ENDED = {
    "step_limit": "\nThe agent reached the limit of actions.",
    "context_limit": "\nThe conversation became too long for the agent's model.",
}
_MAX_OBSERVATION = 3_000
_MAX_ACTION = 3_000
"""Maximum numbers of characters of one observation and of one action."""


def evaluator_message(rollout: Rollout, run_chars: int) -> str:
    """Return the text that the evaluator reads about an episode.

    Args:
        rollout: The episode.
        run_chars: Maximum number of characters of the turns.
    """
    return f"{_run(rollout, run_chars)}\n\n{_outcome(rollout)}"


def reflector_message(rollout: Rollout, critique: str, run_chars: int) -> str:
    """Return the text that the reflector reads about an episode.

    Args:
        rollout: The episode.
        critique: The evaluator's critique.
        run_chars: Maximum number of characters of the turns.
    """
    return f"{evaluator_message(rollout, run_chars)}\n\nCritique of the evaluator:\n{critique}"


def reflector_prompt(tools: ToolSource | None) -> str:
    """Return the reflector's system prompt."""
    return REFLECTOR_PROMPT + (SPECIFICATION_NOTE if tools else "")


def repair_message(problem: str) -> str:
    """Return the request to repeat an unreadable answer."""
    return f"Your answer cannot be used: {problem}. Answer again with one JSON object of the form above, nothing else."


def lessons_text(reflections: Iterable[Reflection]) -> str:
    """Return reflections as the text that the agent reads at the end of its prompt in a later trial."""
    lines = [
        f"- {reflection.text}"
        if reflection.kind == "macro"
        else f"- {reflection.operation} {reflection.resource_type}: {reflection.text}"
        for reflection in reflections
    ]
    return "\n".join([LESSONS_HEADING, *lines])


def _run(rollout: Rollout, run_chars: int) -> str:
    turns = [_turn(number, turn) for number, turn in enumerate(rollout.turns, start=1)]
    turns += map(_lookup, rollout.final_lookups)
    head = f"Task ({rollout.task.title}):\n{rollout.prompt}\n\nRun of the agent (at most {rollout.max_steps} actions):"
    return "\n\n".join([head, *_fitting(turns, run_chars)])


def _turn(number: int, turn: Turn) -> str:
    action, result = _shortened(_as_made(turn), _MAX_ACTION), _shortened(turn.read, _MAX_OBSERVATION)
    return "\n\n".join([*map(_lookup, turn.lookups), f"Action {number}:\n{action}\nResult {number}:\n{result}"])


def _lookup(lookup: Lookup) -> str:
    call = _shortened(f"{lookup.tool}({lookup.arguments})", _MAX_ACTION)
    return f"Look-up:\n{call}\nResult:\n{_shortened(lookup.result, _MAX_OBSERVATION)}"


def _as_made(turn: Turn) -> str:
    """Return an action as the agent made it: a tool call is written as the name of the tool and its arguments."""
    if turn.tool is None:
        return turn.action
    action = GRAMMAR.parse(turn.action)
    call = None if turn.error is not None or isinstance(action, Invalid) else GRAMMAR.to_tool_call(action)
    if call is None:  # an invalid call, of which the record keeps the text
        return turn.text or turn.action
    name, arguments = call
    said = f"{turn.text}\n" if turn.text else ""
    return f"{said}{name}({json.dumps(arguments, ensure_ascii=False)})"


def _outcome(rollout: Rollout) -> str:
    ended = {
        "step_limit": " The agent reached the limit of actions.",
        "context_limit": " The conversation was too long.",
    }
    explanation = rollout.verdict.explanation if rollout.verdict else "There is no verdict."
    return f"Automatic check:\n{_shortened(explanation, _MAX_OBSERVATION)}{ended.get(rollout.stop_reason, '')}"


def _fitting(turns: Sequence[str], limit: int) -> list[str]:
    """Return the first and the last turns that fit together; a note replaces the turns between them."""
    kept = list(turns)
    left_out = 0
    while len(kept) > 2 and sum(map(len, kept)) > limit:
        del kept[len(kept) // 2]
        left_out += 1
    if left_out:
        kept.insert((len(kept) + 1) // 2, f"({left_out} turns in the middle are left out.)")
    return kept


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more characters)"
