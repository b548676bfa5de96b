// Live pages: hear at which desks something changed, fetch this address again, and change only what differs.
const SOON_MS = 300, REST_MS = 2000;
const trusted = window.trustedTypes
  ? trustedTypes.createPolicy("falaj", { createHTML: (text) => text })
  : { createHTML: (text) => text };
let source = null, timer = 0, last = 0, every = 0, busy = false;

function main() { return document.getElementById("main"); }

function listen() {
  const node = main();
  if (!node || document.hidden) return;
  const desks = (node.dataset.live || "").split(" ").filter(Boolean);
  if (desks.length && !source) {
    source = new EventSource("/console/live");
    source.onmessage = (event) => {
      const changed = event.data.split(" ");
      if (changed.includes("*") || changed.some((desk) => desks.includes(desk))) soon();
    };
  }
  clearInterval(every);
  if (node.dataset.every) every = setInterval(soon, 1000 * Number(node.dataset.every));
}

function rest() {
  if (source) source.close();
  source = null;
  clearInterval(every);
}

function soon() {
  if (timer || document.hidden) return;
  timer = setTimeout(look, Math.max(SOON_MS, last + REST_MS - Date.now()));
}

// A browser keeps few connections to one place: pages that nobody sees give theirs back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return rest();
  listen();
  if (main()?.dataset.live) soon();
});

async function look() {
  timer = 0;
  if (busy) return soon();
  busy = true;
  try { await refresh(); } finally { busy = false; last = Date.now(); }
}

export async function refresh() {
  const answer = await fetch(location.href, { headers: { "falaj-part": "main" }, credentials: "same-origin" });
  if (answer.status === 401) return location.reload();
  if (!answer.ok || !answer.headers.get("content-type")?.startsWith("text/html")) return;
  const parsed = new DOMParser().parseFromString(trusted.createHTML(await answer.text()), "text/html");
  const fresh = parsed.getElementById("main");
  if (!fresh) return;
  morph(main(), fresh);
  document.dispatchEvent(new CustomEvent("falaj:morphed"));
}

// Make `old` like `fresh`, keeping nodes that are the same: focus, scroll and what is being typed live in them.
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) return old.replaceWith(document.importNode(fresh, true));
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE || old.dataset.keep !== undefined) return;
  attributes(old, fresh);
  if (old.matches("input, textarea, select") || (old.localName === "details" && old.open && old.matches(".act"))) return;
  children(old, fresh);
}

function attributes(old, fresh) {
  for (const { name, value } of [...fresh.attributes])
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && name !== "open" && !name.startsWith("data-own")) old.removeAttribute(name);
}

function children(old, fresh) {
  const known = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const match = next.id && known.get(next.id);
    if (match) {
      if (match !== at) old.insertBefore(match, at); else at = at.nextSibling;
      morph(match, next);
    } else if (at && !at.id && !next.id && at.nodeName === next.nodeName) {
      const same = at;
      at = at.nextSibling;
      morph(same, next);
    } else {
      const made = document.importNode(next, true);
      if (made.classList && next.id) made.classList.add("changed");
      old.insertBefore(made, at);
    }
  }
  while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
}

addEventListener("pagehide", rest);
addEventListener("pageshow", listen);
listen();
