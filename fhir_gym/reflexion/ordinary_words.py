"""Words that are parts of names, but also common words."""

from __future__ import annotations

from fhir_gym.fhir.definitions import RESOURCE_TYPES


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER_NAMES = _words("""
monday tuesday wednesday thursday friday saturday sunday january february march april may june july august september
october november december dr mr mrs ms prof patient
""") | {name.casefold() for name in RESOURCE_TYPES}
"""Words that are never names: days, months, titles and resource types."""

ORDINARY = _words("""
adams art baker banks bell bill brooks brown burke bush butler carter case chance chase christian church clark cole
cook cooper cox cross dale day dean der drew earl faith field fisher ford foster fox frank gene glen good grace grant
gray green guy hall hill hope house hunter jack jean joy king knight law lee lewis long major mark marshall mason may
miles mill miller moon moore norm oral page park parker pat penny perry pine porter price ray read reading reed reese
rich rivers rock rose ruby rush sage sharp short sky stone strong sue summer sun turner van victor wade walker wall
ward warren way webb wells west white will wood woods young
""")
"""Names of people that are also common words. They count as names only with a capital letter inside a sentence."""

GENERIC = _words("""
and angel annex arabic associates assurance at avenue bank bay beacon benefit blue branch bridge bronze campus canyon
care cedar center central centre chapel cherry city clear clinic college community company corner court crest
department diamond drive east elm england family farm first for forest french garden general german gold golden grand
granite great group grove harbor harbour haven health healthcare heart heights high highland hindi home hospital
institute insurance internal lake lakeland lakes lane liberty life light main maple medical medicine midwest mobile
mutual national new north oak of office official old one pacific parkway partners people peoples pinnacle plan
platinum plaza point portuguese practice prairie primary quarry rapids regional ridge river road saint service
services silver south spanish specialists spring springs square state street suite summit terrace test the tidewater
trail trust union united university unknown urgent valley vietnamese view village wellness willow with work
""")
"""Words of the names of places, languages and organisations that are no names without the other words."""
