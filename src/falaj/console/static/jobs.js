// The log of a job: what it says next is fetched from where the page ended, and shown as it comes.
const PAUSE_MS = 800, LONGEST_MS = 3000, MOST_LETTERS = 2_000_000, NEAR_PX = 40;
let box = null, timer = 0, pause = PAUSE_MS;

function begin() {
  const found = document.querySelector(".log[data-tail]");
  if (found === box) return;
  clearTimeout(timer);
  box = found;
  if (!box) return;
  box.scrollTop = box.scrollHeight;
  more(box);
}

async function more(here) {
  // Every look is recorded: a job that is silent is asked less often.
  pause = Math.min(LONGEST_MS, pause * 1.3);
  if (!document.hidden) {
    const page = await ask(here);
    if (here !== box) return;
    if (page?.lines.length) {
      add(here, page.lines);
      here.dataset.after = page.next;
      pause = PAUSE_MS;
      return more(here);
    } else if (page?.over) return ended(here);
  }
  timer = setTimeout(more, pause, here);
}

async function ask(here) {
  const address = `${here.dataset.tail}&after=${encodeURIComponent(here.dataset.after)}`;
  try {
    const answer = await fetch(address, { credentials: "same-origin" });
    return answer.ok ? await answer.json() : null;
  } catch { return null; }
}

// Who reads further up is left there; who is at the end stays at the end.
function add(here, lines) {
  const follows = here.scrollHeight - here.scrollTop - here.clientHeight < NEAR_PX;
  here.append(lines.join("\n") + "\n");
  let letters = here.textContent.length;
  while (letters > MOST_LETTERS && here.childNodes.length > 1) {
    letters -= here.firstChild.textContent.length;
    here.firstChild.remove();
  }
  if (follows) here.scrollTop = here.scrollHeight;
}

function ended(here) {
  const state = document.getElementById("log-state");
  if (state) state.textContent = here.dataset.said;
}

document.addEventListener("falaj:morphed", begin);
begin();
