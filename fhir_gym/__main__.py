"""`python -m fhir_gym` is `fhir-gym`."""

from fhir_gym.cli import main

if __name__ == "__main__":
    main()
