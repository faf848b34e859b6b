"""The embedded FHIR R4 server."""
