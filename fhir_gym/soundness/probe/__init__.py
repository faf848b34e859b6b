"""Test whether a learner that never sees the prompt can find a task's target or answer in the server's content.

`probe` trains learners on a task's training variations and evaluates them on test variations. A task passes if no
learner finds the target more often than a fair guess among the qualifying records does (`ranker`), and no learner
predicts the answer better than the most frequent answer does (`blind`). `probe` needs scikit-learn.
"""

from fhir_gym.soundness.probe.report import BlindReport, ProbeReport, RankerReport, TaskProbe
from fhir_gym.soundness.probe.run import QUICK, SLOW, Effort, probe, probe_pool

__all__ = ["QUICK", "SLOW", "BlindReport", "Effort", "ProbeReport", "RankerReport", "TaskProbe", "probe", "probe_pool"]
