"""Tasks 01 to 06: report a laboratory result (01 to 04), and place an order if it is out of range (05 and 06)."""

from __future__ import annotations

from fhir_gym.tasks.packs.action_reasoning.cases import GROUPS
from fhir_gym.tasks.packs.action_reasoning.phrasing import BRIEFS, ENDINGS, PROMPTS
from fhir_gym.tasks.packs.action_reasoning.reasoning_task import ConditionalTask, QueryTask


class SparseRecord(QueryTask):
    """Report the latest value of a laboratory test for which the patient has at most three results.

    Starting state: the unchanged world, which contains the patient.
    Decoys: the patient's other laboratory tests, withdrawn results if any, and other patients' results.
    Checks: the answer is the stored value, or -1 if there is no result; the agent retrieved the latest result or, if
        there is none, searched for it.
    Light: none.
    Differs from ART: the patient may have no result of the test; a value counts only if the agent looked it up.
    """

    key = "01"
    title = "Latest value of a sparse record"
    scenario = "sparse"
    prompts = PROMPTS["sparse"]
    brief = BRIEFS["sparse"]


class Cluster(QueryTask):
    """Report the latest value of a laboratory test that was measured several times within two hours.

    Starting state: the unchanged world, which contains the patient.
    Decoys: other values of the same two hours; results issued later but taken earlier; withdrawn results.
    Checks: the answer is the stored value; the agent retrieved the latest result.
    Light: none.
    Differs from ART: the prompt says which of two results taken at the same instant counts: the result issued later.
    """

    key = "02"
    title = "Latest value of a cluster"
    scenario = "cluster"
    prompts = PROMPTS["cluster"]
    brief = BRIEFS["cluster"]


class WindowEdge(QueryTask):
    """Report a patient's latest value of the last 24 hours; the latest result was taken 23 to 25 hours ago.

    Starting state: the unchanged world, which contains the patient.
    Decoys: results from just before the window, and results after the reference time of the question.
    Checks: the answer is the stored value, or -1 if the window is empty; the agent retrieved the latest result in the
        window or, if the window is empty, searched for it.
    Light: none.
    Differs from ART: the prompt says that both ends belong to the window; if the window is empty, the answer is -1.
    """

    key = "03"
    title = "Latest value at the edge of a window"
    scenario = "edge"
    prompts = PROMPTS["edge"]
    brief = BRIEFS["edge"]


class WindowMean(QueryTask):
    """Report the average of a laboratory test over a window of 24 hours that has at least three results.

    Starting state: the unchanged world, which contains the patient.
    Decoys: results before and after the window, withdrawn results, and replaced results.
    Checks: the answer is the mean, rounded half up to the requested number of decimals or more; the agent retrieved
        every result of the window.
    Light: none.
    Differs from ART: the prompt says to round to one decimal more than the laboratory reports; windows may end in the
        past.
    """

    key = "04"
    title = "Average within a window"
    category = GROUPS["aggregation"]
    scenario = "window"
    prompts = PROMPTS["window"]
    brief = BRIEFS["window"]
    answer_instructions = ENDINGS["aggregation"]


class GeneralRange(ConditionalTask):
    """Report the latest value of a laboratory test, and place an order if the value is outside the reference range.

    Starting state: the unchanged world, which contains the patient.
    Decoys: values just inside a limit, values out of range on the side that requires no order, older values of another
        category, ranges of other tests in long contexts.
    Checks: if an order is due, one new MedicationRequest (patient, drug, time, route, dose, status, intent) or
        ServiceRequest (patient, test, time, status, intent, priority); otherwise no change; the answer is the value and
        whether an order is due; the agent retrieved the latest result.
    Light: if an order is due, one was created.
    Differs from ART: the prompt states the range and the content of the order; half of the variations require an order.
    """

    key = "05"
    title = "Order by a general range"
    scenario = "general"
    prompts = PROMPTS["general"]
    brief = BRIEFS["general"]


class RangeBySexAndAge(ConditionalTask):
    """Report the latest hemoglobin, hematocrit or creatinine; place an order if it is outside the patient's range.

    Starting state: the unchanged world, which contains the patient.
    Decoys: ranges of the other sex and of other ages, which lead to another decision; values just inside a limit.
    Checks: the checks of task 05; the agent also looked up the patient, because the prompt omits sex and birth date.
    Light: if an order is due, one was created.
    Differs from ART: the prompt never states sex or age; it includes the whole table of ranges.
    """

    key = "06"
    title = "Order by a range for sex and age"
    scenario = "demographic"
    prompts = PROMPTS["demographic"]
    brief = BRIEFS["demographic"]
    required_tools = (("read", "search"), ("read", "search", "create"))
    required_resources = ("Observation", "Patient", "MedicationRequest", "ServiceRequest")
    gold_steps = 4


TASKS = (SparseRecord, Cluster, WindowEdge, WindowMean, GeneralRange, RangeBySexAndAge)
