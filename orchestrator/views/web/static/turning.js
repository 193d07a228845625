// Slots that turn, as a strip of boxes; and what services of extensions did, as strips of bars.
const ms = (value) => (value >= 1000 ? `${(value / 1000).toFixed(2)} s` : value >= 10 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`);

const box = (name, parent) => {
  const made = document.createElement("span");
  made.className = name;
  parent?.append(made);
  return made;
};

// One box a slot: the present one lit. Slots faster than the eye: no present one, but how often each came.
export function slots(root, words, told) {
  root.hidden = words.hidden = !told;
  if (!told) return;
  words.textContent = told.words;
  words.classList.toggle("bad", told.standing === "died" || told.standing === "repairing");
  const many = told.slots.length > 24, most = Math.max(1e-9, ...told.slots.map((slot) => slot.lit_ms ?? 0));
  root.dataset.fast = told.fast;
  root.dataset.standing = told.standing;
  while (root.childElementCount > told.slots.length) root.lastElementChild.remove();
  while (root.childElementCount < told.slots.length) box("fill", box("slot", root)).after(box("", null));
  told.slots.forEach((slot, n) => {
    const place = root.children[n];
    place.dataset.now = !told.fast && n === told.slot;
    place.dataset.late = slot.longer > 0;
    place.firstElementChild.style.height = `${(100 * (slot.lit_ms ?? 0)) / most}%`;
    place.lastElementChild.textContent = many ? "" : told.fast ? `×${slot.seen}` : n;
    const times = [["lit", slot.lit_ms], ["dark before it", slot.dark_ms], ["late", slot.late_ms], ["at most", slot.late_most_ms]];
    const said = times.filter(([, value]) => value !== undefined).map(([name, value]) => `${name} ${ms(value)}`);
    if (slot.longer) said.push(`${slot.longer} times it lasted longer, as a turn was late`);
    place.title = [`slot ${n}: ${slot.circuits} circuits in turn, ended ${slot.seen} times`, ...said].join(", ");
  });
}

const MARKS = { turned: "", skipped: "", failed: "✗" };

// Words and a strip of bars for each service.
export function services(root, told) {
  root.replaceChildren(...Object.entries(told).flatMap(([name, one]) => {
    const words = document.createElement("p"), strip = document.createElement("div");
    words.id = `${name}-words`;
    words.className = "turning-words";
    words.textContent = one.words;
    words.classList.toggle("bad", one.bad);
    strip.id = name;
    strip.className = "looks";
    strip.setAttribute("role", "img");
    strip.setAttribute("aria-labelledby", words.id);
    for (const bar of one.bars) {
      const place = box("look", strip), fill = box("bar", place);
      place.dataset.what = bar.what;
      place.title = bar.title;
      fill.style.height = `${Math.max(6, 100 * bar.share)}%`;
      fill.textContent = MARKS[bar.what] ?? "";
    }
    return [words, strip];
  }));
}
