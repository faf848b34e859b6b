"""FHIRAgent/Appointment-v0: the front desk of a clinic, after FHIR-AgentEval's appointment workflow."""

from fhir_gym.tasks.appointment.clinic import PACK
from fhir_gym.tasks.appointment.t01_new_patient import NewPatient
from fhir_gym.tasks.appointment.t02_search_patient import SearchExistingPatient, SearchNonexistentPatient
from fhir_gym.tasks.appointment.t11a_earliest_slot import EarliestSlot
from fhir_gym.tasks.appointment.t14a_make_appointment import MakeAppointment
from fhir_gym.tasks.appointment.t15a_cancel_appointment import CancelAppointment
from fhir_gym.tasks.registry import register

__all__ = [
    "PACK",
    "CancelAppointment",
    "EarliestSlot",
    "MakeAppointment",
    "NewPatient",
    "SearchExistingPatient",
    "SearchNonexistentPatient",
]

for _task in (
    NewPatient(),
    SearchExistingPatient(),
    SearchNonexistentPatient(),
    EarliestSlot(),
    MakeAppointment(),
    CancelAppointment(),
):
    register(PACK, _task)
