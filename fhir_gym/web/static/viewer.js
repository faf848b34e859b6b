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
      const unfolded = [...region.querySelectorAll("details")].map((one) => one.open);
      const scrolled = [...region.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      region.replaceChildren(...fresh[at].childNodes);
      region.querySelectorAll("details").forEach((one, number) => (one.open = unfolded[number] ?? one.open));
      region.querySelectorAll(".scroll").forEach((one, number) => (one.scrollLeft = scrolled[number] ?? 0));
      if (focused !== null) region.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    });
  }

  async function look() {
    try {
      if (document.hidden) return;
      const state = await (await fetch("/state")).json();
      if (version !== null && state.version !== version) await refresh();
      version = state.version;
    } catch {
      /* The viewer was stopped; the page stays as it is. */
    } finally {
      setTimeout(look, 2000);
    }
  }
  look();
})();

/* The filters of a table act at once. */
document.querySelector("form.filters")?.addEventListener("change", (event) => event.currentTarget.requestSubmit());

/* Episodes: step through the turns with the keyboard. */
(() => {
  const turns = [...document.querySelectorAll(".turn")];
  const help = document.querySelector("dialog.help");
  if (help === null) return;
  const said = document.querySelector(".said");
  const setting = help.querySelector("[data-shortcuts]");
  const STORED = "fhir-gym shortcuts";

  function stored() {
    try {
      return localStorage.getItem(STORED) !== "off";
    } catch {
      return true; /* the browser forbids storage to files */
    }
  }

  setting.checked = stored();
  setting.addEventListener("change", () => {
    try {
      localStorage.setItem(STORED, setting.checked ? "on" : "off");
    } catch {
      /* the setting then holds until the page is left */
    }
  });

  for (const button of document.querySelectorAll("[data-help]")) {
    button.hidden = false;
    button.addEventListener("click", () => help.showModal());
  }

  function current() {
    return turns.findIndex((turn) => `#${turn.id}` === location.hash);
  }

  function mark() {
    const at = current();
    turns.forEach((turn, number) => turn.classList.toggle("current", number === at));
    for (const link of document.querySelectorAll(".turn-list a")) {
      if (link.hash !== location.hash) {
        link.removeAttribute("aria-current");
        continue;
      }
      link.setAttribute("aria-current", "true");
      const list = link.closest(".turn-list");
      const below = link.getBoundingClientRect().top - list.getBoundingClientRect().top;
      list.scrollTop += below - list.clientHeight / 2;
    }
  }

  function go(id) {
    const target = document.getElementById(id);
    if (target === null) return;
    history.replaceState(null, "", `#${id}`);
    mark();
    target.focus({ preventScroll: true });
    target.scrollIntoView({ block: "start" });
  }

  function step(by) {
    const at = current();
    const next = at < 0 ? (by > 0 ? 0 : turns.length - 1) : at + by;
    if (next >= 0 && next < turns.length) go(turns[next].id);
  }

  function fold() {
    const turn = turns[current()];
    if (turn === undefined) return;
    const parts = [...turn.querySelectorAll(":scope > details, .writes > details")];
    const open = !parts.every((part) => part.open);
    for (const part of parts) part.open = open;
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(location.href);
      say("The link is copied.");
    } catch {
      say("The browser does not allow copying; the address bar has the link.");
    }
  }

  function say(text) {
    said.textContent = text;
    setTimeout(() => (said.textContent = ""), 4000);
  }

  function follow(relation) {
    document.querySelector(`a[rel="${relation}"]`)?.click();
  }

  const actions = {
    j: () => step(1),
    ArrowRight: () => step(1),
    k: () => step(-1),
    ArrowLeft: () => step(-1),
    o: fold,
    c: copy,
    v: () => document.getElementById("verdict").scrollIntoView(),
    n: () => follow("next"),
    p: () => follow("prev"),
    "?": () => help.showModal(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || help.open || !setting.checked) return;
    const inField = event.target.closest("input, select, textarea, [contenteditable]") !== null;
    const scrolls = event.key.startsWith("Arrow") && event.target.closest(".scroll, pre") !== null;
    const action = Object.hasOwn(actions, event.key) ? actions[event.key] : undefined;
    if (inField || scrolls || action === undefined) return;
    event.preventDefault();
    action();
  });
  window.addEventListener("hashchange", mark);
  mark();
})();
