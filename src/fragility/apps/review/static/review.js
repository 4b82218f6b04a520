"use strict";
// Keys, what-if, and a word when someone else writes about the case. Every page works without this file but for what-if.

const byId = (id) => document.getElementById(id);

// Control characters of names are written out, as the pages do.
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const visible = (text) => text.replace(CONTROL, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

// A page that the browser kept may tell of decisions that were undone since.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// --- keys ---------------------------------------------------------------------------------------------------

const KEYS_OFF = "fragility-keys-off";

function typing(target) {
  return target.closest("textarea, select, [contenteditable]") !== null
    || (target.tagName === "INPUT" && !["checkbox", "radio", "range", "submit", "button"].includes(target.type));
}

function press(element) {
  if (element.matches("textarea, select, input")) {
    element.focus();
    element.scrollIntoView({ block: "center" });
  } else {
    element.click();
  }
}

function moveLine(step) {
  const lines = [...document.querySelectorAll("[data-line]")];
  if (lines.length === 0) return false;
  const at = lines.indexOf(document.activeElement);
  const next = lines[Math.min(Math.max(at + step, 0), lines.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && typing(event.target)) event.target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  if (event.key !== "?" && localStorage.getItem(KEYS_OFF)) return;
  const open = document.querySelector("dialog[open]");
  if (open) return;
  if (event.key === "j" && moveLine(1)) return event.preventDefault();
  if (event.key === "k" && moveLine(-1)) return event.preventDefault();
  if (event.repeat) return; // a key that is held acts once, on the case that its presser saw
  const wanted = [...document.querySelectorAll("[data-press]")]
    .find((element) => element.dataset.press.split(" ").includes(event.key) && !element.disabled);
  if (wanted) {
    event.preventDefault();
    press(wanted);
  }
});

for (const opener of document.querySelectorAll("[data-opens]")) {
  opener.addEventListener("click", () => byId(opener.dataset.opens).showModal());
}

const single = byId("single-keys");
if (single) {
  single.checked = !localStorage.getItem(KEYS_OFF);
  single.addEventListener("change", () => {
    if (single.checked) localStorage.removeItem(KEYS_OFF);
    else localStorage.setItem(KEYS_OFF, "1");
  });
}

// --- the queue ----------------------------------------------------------------------------------------------

const budget = byId("f-budget");
if (budget) {
  const show = () => {
    for (const field of document.querySelectorAll("[data-when-budget]")) {
      field.hidden = field.dataset.whenBudget !== budget.value;
    }
  };
  budget.addEventListener("change", show);
  show();
  if (matchMedia("(max-width: 700px)").matches) document.querySelector(".filters").open = false;
}

for (const field of document.querySelectorAll("select[name=field]")) {
  const value = field.parentElement.querySelector("input[name=value]");
  const offer = async () => {
    value.list.replaceChildren();
    value.placeholder = "12, <12, 12-36, missing";
    if (!field.value) return;
    const reply = await fetch(`/values?field=${encodeURIComponent(field.value)}`);
    if (!reply.ok) return;
    const found = await reply.json();
    value.list.replaceChildren(...[...found.values, "missing"].map((each) => new Option(each, each)));
    if (found.low !== null) value.placeholder = `${found.low} to ${found.high}; <12, 12-36, missing`;
    else if (found.values.length) value.placeholder = `${found.values[0]}, or missing`;
  };
  field.addEventListener("change", () => { value.value = ""; offer(); });
  offer();
}

const ticked = byId("ticked");
if (ticked) {
  const boxes = [...document.querySelectorAll("[data-tick]")];
  const button = ticked.querySelector("button");
  const count = () => {
    const number = boxes.filter((box) => box.checked).length;
    button.disabled = number === 0;
    button.textContent = number ? `Decide about the ${number} ticked…` : "Decide about the ticked…";
  };
  for (const box of boxes) box.addEventListener("change", count);
  addEventListener("pageshow", count); // a browser may bring ticks back
  count();
}

// --- re-acquire: the first press shows the groups, the second one sends ------------------------------------------

const reacquire = byId("reacquire");
if (reacquire) {
  const button = document.querySelector("button.reacquire");
  button.setAttribute("aria-expanded", String(reacquire.open));
  button.addEventListener("click", (event) => {
    if (reacquire.open) return;
    event.preventDefault();
    reacquire.open = true;
    button.setAttribute("aria-expanded", "true");
    reacquire.querySelector("input").focus();
  });
}

// --- drafts: what was typed and not yet saved is kept in this browser, for this case and this reviewer ------------

const DRAFT = "fragility-draft:";

for (const form of document.querySelectorAll("form[data-draft]")) {
  const key = DRAFT + form.dataset.draft;
  const fields = [...form.querySelectorAll("[name=note], [name=reason]")];
  const read = () => Object.fromEntries(fields.map((field) => [field.name, field.value]));
  const saved = document.querySelector("[data-saved]");
  const known = JSON.parse(localStorage.getItem(key) ?? "null");
  const keep = (sent) => {
    const values = read();
    if (Object.values(values).some((value) => value !== "")) localStorage.setItem(key, JSON.stringify({ values, sent }));
    else localStorage.removeItem(key);
  };
  if (fields.some((field) => field.value !== "")) keep(false); // the page has brought it back: it was not saved
  else if (known && !(known.sent && saved && saved.dataset.saved === form.dataset.draft)) {
    for (const field of fields) field.value = known.values[field.name] ?? "";
  }
  form.addEventListener("input", () => keep(false));
  form.addEventListener("change", () => keep(false));
  form.addEventListener("submit", () => keep(true)); // forgotten once a page says that it was saved
  // A page that answers a form cannot be gone back to; the page of the case, with the draft, can.
  if (form.dataset.instead && document.querySelector(".alert[role=alert]")) {
    history.replaceState(null, "", form.dataset.instead);
  }
}

for (const notice of document.querySelectorAll("[data-saved]")) {
  const key = DRAFT + notice.dataset.saved;
  if (JSON.parse(localStorage.getItem(key) ?? "null")?.sent) localStorage.removeItem(key);
}

// --- what if ------------------------------------------------------------------------------------------------

const DAY = 86400000; // milliseconds
const asDay = (number) => new Date(number * DAY).toISOString().slice(0, 10);

const whatIf = byId("whatif");
if (whatIf) {
  const sliders = [...whatIf.querySelectorAll("input[data-group]")];
  const answer = whatIf.querySelector(".answer");
  let asked = 0;
  let timer = 0;

  const show = (slider) => {
    const parts = slider.parentElement;
    parts.querySelector("output").value = `${slider.value}%`;
    parts.querySelector("[data-lose]").setAttribute("aria-pressed", String(slider.value === "100"));
  };

  // Fields with another value than the record has: a number, a day as text, or a category.
  const READ = {
    number: (field) => Number(field.value),
    day: (field) => asDay(Number(field.value)),
    category: (field) => JSON.parse(field.value),
  };
  const isMoved = (field) => field.dataset.kind === "category"
    ? !field.selectedOptions[0].defaultSelected
    : Number(field.value) !== Number(field.defaultValue);
  const movedFields = () => [...whatIf.querySelectorAll("[data-field]")].filter(isMoved);

  const ask = async () => {
    const number = ++asked;
    const chosen = sliders.filter((slider) => slider.value !== "0");
    const moved = movedFields();
    const severities = Object.fromEntries(chosen.map((slider) => [slider.dataset.group, Number(slider.value) / 100]));
    const values = Object.fromEntries(moved.map((field) => [field.dataset.field, READ[field.dataset.kind](field)]));
    try {
      const reply = await fetch(whatIf.dataset.address, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ severities, values }),
      });
      const found = await reply.json();
      if (number !== asked) return; // a later question is on its way
      if (!reply.ok) throw new Error(found.error.message);
      byId("wi-class").textContent = visible(found.predicted);
      byId("wi-confidence").textContent = `${(100 * found.confidence).toFixed(1)}%`;
      byId("wi-margin").textContent = (found.margin < 0 ? "" : "+") + found.margin.toFixed(3);
      const changed = chosen.length + moved.length > 0;
      byId("wi-verdict").textContent = found.flipped ? `flips to \u2068${visible(found.predicted)}\u2069` : changed ? "holds" : "";
      answer.classList.toggle("flipped", found.flipped);
    } catch (error) {
      if (number === asked) byId("wi-verdict").textContent = `no answer: ${error.message}`;
    }
    whatIf.dataset.answered = String(number);
  };

  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(ask, 60);
  };

  for (const slider of sliders) {
    slider.addEventListener("input", () => { show(slider); soon(); });
    slider.parentElement.querySelector("[data-lose]").addEventListener("click", () => {
      slider.value = slider.value === "100" ? "0" : "100";
      show(slider);
      soon();
    });
  }

  // A slider over the values of a field, and the box beside it that holds the same value.
  const showValue = (field) => {
    const exact = field.closest(".movable").querySelector("[data-exact]");
    const text = field.dataset.kind === "day" ? asDay(Number(field.value)) : field.value;
    if (exact) exact.value = text;
    if (field.dataset.kind !== "category") field.setAttribute("aria-valuetext", text);
    field.closest(".movable").classList.toggle("moved", isMoved(field));
  };
  const wire = (part) => {
    for (const field of part.querySelectorAll("[data-field]")) {
      showValue(field);
      const moves = field.dataset.kind === "category" ? "change" : "input";
      field.addEventListener(moves, () => { showValue(field); soon(); });
      const exact = field.closest(".movable").querySelector("[data-exact]");
      if (!exact) continue;
      if (field.dataset.kind === "day") [exact.min, exact.max] = [asDay(Number(field.min)), asDay(Number(field.max))];
      exact.addEventListener("change", () => {
        const number = field.dataset.kind === "day" ? exact.valueAsNumber / DAY : exact.valueAsNumber;
        const typed = exact.value;
        if (!Number.isNaN(number)) field.value = number; // the slider keeps within its ends
        showValue(field);
        const beyond = number < Number(field.min) || number > Number(field.max);
        const why = beyond ? "lies outside the values of the training rows" : "is between the values that can be asked";
        byId("wi-kept").textContent = number === Number(field.value) || Number.isNaN(number)
          ? "" : `${field.dataset.field}: ${typed} ${why}; the answer is for ${exact.value}.`;
        soon();
      });
    }
  };

  const setAll = (value) => {
    for (const slider of sliders) {
      slider.value = value(slider);
      show(slider);
    }
    soon();
  };
  const flipping = (slider) => slider.parentElement.querySelector(".mark") !== null;
  byId("wi-path").addEventListener("click", () => setAll((slider) => (flipping(slider) ? "100" : "0")));
  byId("wi-reset").addEventListener("click", () => {
    for (const field of whatIf.querySelectorAll("[data-field]")) {
      if (field.dataset.kind === "category") {
        for (const option of field.options) option.selected = option.defaultSelected;
      } else {
        field.value = field.defaultValue;
      }
      showValue(field);
    }
    setAll(() => "0");
  });

  // How far each value may move is searched for when the case is opened; a reader who goes on at once asks nothing.
  const fields = byId("wi-fields");
  const searching = byId("wi-searching");
  if (searching) setTimeout(() => lookUp(fields, searching, "How far each value may move is not known", wire), 250);
  else wire(fields);
}

// --- parts of a case that are searched for ------------------------------------------------------------------

async function lookUp(place, searching, sorry, use) {
  try {
    const reply = await fetch(place.dataset.address);
    if (reply.status === 202) return setTimeout(() => lookUp(place, searching, sorry, use), 500); // not found yet
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    const part = document.createElement("div");
    part.innerHTML = await reply.text(); // made by the same templates as this page
    searching.replaceWith(part);
    use(part);
    place.dataset.ready = "1";
  } catch (error) {
    searching.textContent = `${sorry}: ${error.message}`;
  }
}

const missing = byId("missing");
if (missing && missing.dataset.address) {
  lookUp(missing, byId("missing-searching"), "Whether knowing them would change the decision is not known", () => {});
}

// --- someone else -------------------------------------------------------------------------------------------

const here = document.querySelector("[data-case]");
if (here) {
  const look = async () => {
    if (document.hidden) return;
    try {
      const reply = await fetch(`${here.dataset.case}/state`);
      const found = await reply.json();
      if (reply.ok && found.last > Number(here.dataset.seen)) {
        const word = byId("meanwhile");
        word.textContent = `\u2068${visible(found.by)}\u2069 wrote about this case meanwhile. Reload to see it.`;
        word.hidden = false;
      }
    } catch {
      // the workbench was stopped; the next page will say so
    }
  };
  setInterval(look, 10000);
}
