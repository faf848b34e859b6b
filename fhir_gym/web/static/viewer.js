"use strict";

/* Live updates: parts of a page with data-live are replaced when the episodes have changed. */
(() => {
  const regions = [...document.querySelectorAll("[data-live]")];
  if (regions.length === 0 || !location.protocol.startsWith("http")) return;
  let version = null;

  async function refresh() {
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = [...page.querySelectorAll("[data-live]")];
    regions.forEach((region, at) => {
      if (fresh[at] === undefined || fresh[at].innerHTML === region.innerHTML) return;
      const focused = region.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      region.replaceChildren(...fresh[at].childNodes);
      if (focused !== null) region.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    });
  }

  async function look() {
    try {
      const state = await (await fetch("/state")).json();
      if (version !== null && state.version !== version) await refresh();
      version = state.version;
    } catch {
      /* The viewer was stopped; the page stays as it is. */
    }
    setTimeout(look, 2000);
  }
  look();
})();
