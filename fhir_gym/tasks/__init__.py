"""Tasks: the request to the agent, the records added to the server, and the grading of the episode.

Pack modules import the base classes of tasks from this package. They import answer forms and comparisons from
`fhir_gym.tasks.grading`, and people, ids, dates and other building blocks from `fhir_gym.tasks.authoring`.
`docs/writing_tasks.md` is a guide for task authors.
"""

from fhir_gym.tasks.core.experiments import EXPERIMENTS, Experiment, Part, experiment_packs, get_experiment
from fhir_gym.tasks.core.grader import GRADINGS, Grading, grade, require_grading
from fhir_gym.tasks.core.ids import IdAllocator
from fhir_gym.tasks.core.params import LabelledRequest, Params, SceneParams
from fhir_gym.tasks.core.registry import (
    Pack,
    TaskSet,
    find_packs,
    find_task,
    get_pack,
    get_task,
    pack_ids,
    register,
    task_keys,
    task_set,
)
from fhir_gym.tasks.core.scene import Candidate, SceneTask
from fhir_gym.tasks.core.selection import available_tasks, choose_tasks, require_phrasing
from fhir_gym.tasks.core.splits import (
    DEFAULT_SPLIT,
    SPLITS,
    TEST_START,
    Split,
    TrainOrTest,
    require_variation,
    split_numbers,
    split_of,
)
from fhir_gym.tasks.core.task import Dial, ExpectedChange, Gold, LatestResponse, Task
from fhir_gym.tasks.core.turn_protocol import ParsedTurn, Simulation, TurnProtocol
from fhir_gym.tasks.core.variation import Variation
from fhir_gym.tasks.grading.answers import (
    AnswerForm,
    CountAnswer,
    CountedIdsAnswer,
    EmptyAnswer,
    IdAnswer,
    IdSetAnswer,
    answer_flag,
    answer_number,
)
from fhir_gym.tasks.grading.checks import Check, Diagnosis, equal
from fhir_gym.tasks.grading.end_state import BeforeView, FinishedEpisode, LoggedRequest, RemoteView, TimedRequest, View
from fhir_gym.tasks.grading.tool_usage import ToolUsage, requests_answered
from fhir_gym.tasks.grading.unrequested_content import ADD_NOTHING
from fhir_gym.tasks.grading.verdict import REWARD_RULES, Evidence, RewardRule, Verdict

__all__ = [
    "ADD_NOTHING",
    "DEFAULT_SPLIT",
    "EXPERIMENTS",
    "GRADINGS",
    "REWARD_RULES",
    "SPLITS",
    "TEST_START",
    "AnswerForm",
    "BeforeView",
    "Candidate",
    "Check",
    "CountAnswer",
    "CountedIdsAnswer",
    "Diagnosis",
    "Dial",
    "EmptyAnswer",
    "Evidence",
    "ExpectedChange",
    "Experiment",
    "FinishedEpisode",
    "Gold",
    "Grading",
    "IdAllocator",
    "IdAnswer",
    "IdSetAnswer",
    "LabelledRequest",
    "LatestResponse",
    "LoggedRequest",
    "Pack",
    "Params",
    "ParsedTurn",
    "Part",
    "RemoteView",
    "RewardRule",
    "SceneParams",
    "SceneTask",
    "Simulation",
    "Split",
    "Task",
    "TaskSet",
    "TimedRequest",
    "ToolUsage",
    "TrainOrTest",
    "TurnProtocol",
    "Variation",
    "Verdict",
    "View",
    "answer_flag",
    "answer_number",
    "available_tasks",
    "choose_tasks",
    "equal",
    "experiment_packs",
    "find_packs",
    "find_task",
    "get_experiment",
    "get_pack",
    "get_task",
    "grade",
    "pack_ids",
    "register",
    "requests_answered",
    "require_grading",
    "require_phrasing",
    "require_variation",
    "split_numbers",
    "split_of",
    "task_keys",
    "task_set",
]
