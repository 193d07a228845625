// Slots of a schedule, as a strip of boxes; and what services of extensions did, as strips of bars.
const ms = (value) => (value >= 1000 ? `${(value / 1000).toFixed(2)} s` : value >= 10 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`);

const box = (name, parent) => {
  const made = document.createElement("span");
  made.className = name;
  parent?.append(made);
  return made;
};

// One box a slot: the present one lit. Slots faster than the eye: no present one, but how often each came.
export function slots(root, message, data) {
  root.hidden = message.hidden = !data;
  if (!data) return;
  message.textContent = data.message;
  message.classList.toggle("bad", data.status === "died" || data.status === "repairing");
  const many = data.slots.length > 24, most = Math.max(1e-9, ...data.slots.map((slot) => slot.lit_ms ?? 0));
  root.dataset.fast = data.fast;
  root.dataset.status = data.status;
  while (root.childElementCount > data.slots.length) root.lastElementChild.remove();
  while (root.childElementCount < data.slots.length) box("fill", box("slot", root)).after(box("", null));
  data.slots.forEach((slot, n) => {
    const place = root.children[n];
    place.dataset.now = !data.fast && n === data.slot;
    place.dataset.late = slot.longer > 0;
    place.firstElementChild.style.height = `${(100 * (slot.lit_ms ?? 0)) / most}%`;
    place.lastElementChild.textContent = many ? "" : data.fast ? `×${slot.seen}` : n;
    const times = [["lit", slot.lit_ms], ["dark before it", slot.dark_ms], ["late", slot.late_ms], ["at most", slot.late_most_ms]];
    const reply = times.filter(([, value]) => value !== undefined).map(([name, value]) => `${name} ${ms(value)}`);
    if (slot.longer) reply.push(`${slot.longer} times it lasted longer, as a turn was late`);
    place.title = [`slot ${n}: ${slot.circuits} circuits in ringChange, ended ${slot.seen} times`, ...reply].join(", ");
  });
}

const MARKS = { changed: "", skipped: "", failed: "✗" };

// Text and a strip of bars for each service.
export function services(root, data) {
  root.replaceChildren(...Object.entries(data).flatMap(([name, one]) => {
    const message = document.createElement("p"), strip = document.createElement("div");
    message.id = `${name}-message`;
    message.className = "slots-message";
    message.textContent = one.message;
    message.classList.toggle("bad", one.bad);
    strip.id = name;
    strip.className = "looks";
    strip.setAttribute("role", "img");
    strip.setAttribute("aria-labelledby", message.id);
    for (const bar of one.bars) {
      const place = box("look", strip), fill = box("bar", place);
      place.dataset.what = bar.what;
      place.title = bar.title;
      fill.style.height = `${Math.max(6, 100 * bar.share)}%`;
      fill.textContent = MARKS[bar.what] ?? "";
    }
    return [message, strip];
  }));
}
