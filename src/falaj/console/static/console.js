// What every page does in the browser: copy buttons, the menu on small screens, closing sheets, going on by itself.
document.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) copyText(copy);
  const menu = event.target.closest(".menu");
  if (menu) toggleMenu(menu);
  for (const open of document.querySelectorAll("details.act[open], details.person[open]"))
    if (!open.contains(event.target)) open.open = false;
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape")
    for (const open of document.querySelectorAll("details.act[open], details.person[open]")) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  if (event.key === "/" && !event.target.closest("input, textarea, select, [contenteditable]")) {
    const find = document.querySelector(".find input");
    if (find) { event.preventDefault(); find.focus(); }
  }
});

// A second press of the same button must not do the same twice.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "yes";
});
addEventListener("pageshow", () => { for (const form of document.forms) delete form.dataset.sent; });

async function copyText(button) {
  const before = button.textContent;
  try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "✓"; }
  catch { getSelection().selectAllChildren(button.previousElementSibling ?? button); return; }
  setTimeout(() => { button.textContent = before; }, 1200);
}

function toggleMenu(button) {
  const open = document.getElementById(button.getAttribute("aria-controls")).classList.toggle("open");
  button.setAttribute("aria-expanded", String(open));
}

// Pages whose only use is the next step.
const go = document.querySelector("[data-go]");
if (go) go.tagName === "FORM" ? go.requestSubmit() : go.click();
