"""The HTML page that browsers get at the server's base URL."""

from __future__ import annotations

from html import escape

from fhir_gym.fhir.world import World

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{name} - fhir-gym</title>
<style>body {{ font-family: sans-serif; max-width: 42em; margin: 2em auto; line-height: 1.5; padding: 0 1em }}</style>
</head>
<body>
<h1>FHIR R4 server of fhir-gym</h1>
<p>This server contains the world <b>{name}</b>: {total} resources of {types} types.
It is made for programs and agents, and answers in JSON. Changes by clients are lost when the server stops.</p>
<p>Base URL for clients: <code>{base}</code></p>
<h2>To try</h2>
<ul>
{links}
</ul>
<p>From a terminal: <code>curl '{base}/{example}'</code></p>
<h2>To read</h2>
<ul>
<li><a href="{base}/metadata">CapabilityStatement</a>: every type, interaction and search parameter</li>
<li><code>docs/server.md</code> and <code>docs/hapi.md</code>: interactions, limits, differences from HAPI</li>
<li><a href="https://hl7.org/fhir/R4/http.html">FHIR R4: RESTful API</a></li>
</ul>
</body>
</html>
"""


def front_page(world: World, base: str) -> str:
    """Return the page as HTML that loads no other files."""
    counts = world.manifest.counts
    kinds = sorted(counts, key=lambda kind: (kind != "Patient", -counts[kind], kind))[:5]
    examples = [f"{kind}?_count=5" for kind in kinds] or ["Patient?_count=5"]
    links = "\n".join(
        f'<li><a href="{escape(f"{base}/{one}")}"><code>GET {escape(one)}</code></a></li>' for one in examples
    )
    return _PAGE.format(
        name=escape(world.manifest.name),
        total=f"{world.manifest.total:,}",
        types=len(counts),
        base=escape(base),
        links=links,
        example=escape(examples[0]),
    )
