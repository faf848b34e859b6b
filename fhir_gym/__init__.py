"""fhir_gym: environments in which LLM agents do real tasks on an embedded FHIR R4 server."""
