// Follows the server's events and keeps the page as the lab is. All text from the server is inserted as text, never as HTML.
import { carried } from "./carried.js";
import { Chart, together } from "./charts.js";
import { Fabric } from "./fabric.js";
import { ranks } from "./ranks.js";
import { services, slots } from "./slots.js";
import { waterfall } from "./waterfall.js";

const $ = (id) => document.getElementById(id);
const state = { ports: new Map(), colours: {}, marks: [], move: null, safe: null, job: null, plan: [], run: null };
const fabric = new Fabric(document);
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
const short = (ms) => (ms >= 60_000 ? `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s` : ms >= 1000 ? `${(ms / 1000).toFixed(1)} s` : ms >= 10 ? `${Math.round(ms)} ms` : `${ms.toFixed(1)} ms`);

// ---- light and dark

const system = matchMedia("(prefers-color-scheme: dark)");
let theme = "system";
try {
  theme = localStorage.getItem("theme") ?? "system";
} catch { /* a browser that keeps nothing */ }
function dress() {
  document.documentElement.dataset.theme = theme === "system" ? (system.matches ? "dark" : "light") : theme;
  $("theme").textContent = { system: "Theme: system", dark: "Theme: dark", light: "Theme: light" }[theme];
}
dress();
const traffic = new Chart($("traffic"), { gap: 3000, points: false, empty: "No samples of the ports in this time." });
const iterations = new Chart($("iterations"), { gap: 8000, points: true, empty: "No iterations in this time.\nA plan with a job brings them: testbed up --topology PLAN" });
const charts = [traffic, iterations];
function redress() {
  dress();
  for (const chart of charts) chart.build();
  if (fabric.devices) fabric.recolour();
}
system.addEventListener("change", redress);
function turnTheme() {
  theme = { system: document.documentElement.dataset.theme === "dark" ? "light" : "dark", dark: "light", light: "system" }[theme];
  try {
    localStorage.setItem("theme", theme);
  } catch { /* then until the page is closed */ }
  redress();
}

// ---- what the server says

const takers = {
  lab(lab) {
    $("lab").textContent = lab.name;
    fabric.lay(lab);
  },
  colours: (colours) => (state.colours = colours),
  plan(plans) {
    state.plan = plans;
    $("plan").textContent = plans.length ? plans.map((p) => (plans.length > 1 ? `${p.name} (${p.owner})` : p.name) + (p.segments.length ? `, over ${p.segments.join(", ")}` : "")).join(", ") : "no plan is up";
    const switched = plans.some((p) => p.segments.length);
    $("nothing").textContent = switched ? "No light: packet switches carry the plan." : "No circuits are up.\nIn a terminal:\ntestbed up --topology PLAN";
  },
  reserved(lines) {
    $("reserved").textContent = lines.join("\n");
  },
  run(run) {
    state.run = run;
    fall();
    $("run").dataset.status = run?.status ?? "";
    if (!run) return void ($("run").textContent = "no run yet");
    const title = `${run.verb} ${run.plan}`.trim();
    const now = run.status === "running" ? `${run.doing || "at work"}: ${title}` : `${title} ${run.status}${run.seconds ? ` in ${short(run.seconds * 1000)}` : ""}, ${clock(run.started)}`;
    $("run").textContent = run.message && run.status !== "ok" && run.status !== "running" ? `${now}: ${run.message.split("\n")[0]}` : now;
  },
  circuits(list) {
    fabric.circuits(list, new Set(list.map((c) => c.owner)));
    fabric.rates(state.ports);
  },
  states: (changed) => fabric.states(changed),
  devices: (devices) => fabric.phases(devices),
  ports(changed) {
    for (const [port, rates] of Object.entries(changed)) state.ports.set(port, rates);
    fabric.rates(state.ports);
  },
  move(move) {
    state.move = move;
    fall();
  },
  marks(marks) {
    for (const chart of charts) {
      chart.marks = marks;
      chart.plot.redraw(false);
    }
  },
  ring_changes(ringChanges) {
    const last = ringChanges.find((ringChange) => ringChange.last);
    $("ring-change").hidden = !last;
    if (last) $("ring-change").textContent = `▼ ${clock(last.at)} ${last.message}`;
    $("ring-change").title = last ? `${last.job}${MODES[last.mode] ?? ""}${last.after === undefined ? "" : `, after iteration ${last.after}`}${last.worst_rank_ms === undefined ? "" : `, worst rank ${short(last.worst_rank_ms)}`}` : "";
    iterations.ringChanges = ringChanges.filter((ringChange) => ringChange.ok);
    iterations.plot.redraw(false);
  },
  ranks(data) {
    state.ranks = data;
    showRanks();
  },
  slots: (data) => slots($("slots"), $("slots-message"), data),
  services(data) {
    state.services = data;
    services($("services"), data);
  },
  carried(data) {
    carried($("carried"), data);
    fabric.copied(data.copied.to, data.copied.from);
  },
  job(job) {
    state.job = job;
    $("job").textContent = job?.message ?? "";
    $("job").classList.toggle("bad", job?.state === "failed");
    showRanks();
  },
  throughput: (points, whole) => traffic.add(points, whole),
  iterations: (points, whole) => iterations.add(points, whole),
  log(lines, whole) {
    if (whole) {
      $("news").replaceChildren();
      folds = [];
    }
    for (const line of lines) tell(line, whole);
  },
  trouble: (message) => banner("trouble", message.join("\n")),
  safe: showSafe,
};
const ORDER = ["colours", "lab", "plan", "reserved", "run", "slots", "services", "circuits", "states", "devices", "ports", "move", "marks", "ring_changes", "job", "ranks", "carried", "throughput", "iterations", "log", "trouble", "safe"];

const MODES = { hold: ", paused in the dark", drain: ", its traffic had other paths", send: "" };

// What ranks say of themselves is of a job that runs.
function showRanks() {
  const data = state.ranks, running = Boolean(data?.message) && !state.job?.ended;
  $("ranks-message").hidden = !running;
  $("ranks-message").textContent = data?.message ?? "";
  $("ranks-message").classList.toggle("bad", Boolean(data?.trouble));
  ranks($("ranks"), running ? data.ranks : []);
}

function take(data, whole) {
  for (const name of ORDER) if (name in data) takers[name](data[name], whole);
  if (whole) align();
  stats();
}

function fall() {
  const lasting = ["schedule", ...Object.keys(state.services ?? {})].includes(state.run?.verb); // they go on for hours: the last move stays
  waterfall($("waterfall"), $("move-title"), state.move, state.colours, lasting ? null : state.run);
}
setInterval(() => state.run?.status === "running" && fall(), 250);

function align() {
  const until = together(charts);
  for (const small of document.querySelectorAll(".until")) small.textContent = until === null ? "" : `, until ${clock(until * 1000)}`;
}

// A figure stays, dimmed, until its next value arrives; `over`: none will.
function stat(name, now, { title = "", over = false } = {}) {
  const place = $(`stat-${name}`), known = now !== null && now !== undefined;
  if (known || over) place.textContent = known ? now : "–";
  place.classList.toggle("old", !known && place.textContent !== "–");
  place.title = known ? title : place.textContent === "–" ? "" : "the last known";
}

function stats() {
  const now = state.move?.figures ?? {}, last = state.move?.last ?? {};
  for (const [name, key] of [["dark", "dark_ms"], ["total", "total_ms"]]) {
    if (now[key] === undefined && last[key] !== undefined) $(`stat-${name}`).textContent = short(last[key]);
    stat(name, now[key] === undefined ? null : short(now[key]), { over: last[key] === undefined });
  }
  $("stat-total-name").textContent = state.move?.changed ? "moved, rings changed, verified" : "moved, verified";
  const always = fabric.total || !fabric.scheduled ? `${fabric.lit} / ${fabric.total}` : "";
  stat("lit", fabric.total === undefined ? null : [always, fabric.scheduled && `${fabric.scheduled} in turn`].filter(Boolean).join(" + "));
  stat("traffic", traffic.latest === null ? null : traffic.latest >= 1000 ? `${(traffic.latest / 1000).toFixed(2)} Gb/s` : `${Math.round(traffic.latest)} Mb/s`);
  const job = state.job;
  const title = job ? `${job.name ?? job.of}: ${job.state ?? ""}, median of the latest` : "";
  stat("iteration", job?.iteration_ms === undefined || job.ended ? null : short(job.iteration_ms), { title, over: Boolean(job?.ended) });
  document.title = `${$("lab").textContent}: ${$("plan").textContent}`;
}

// The same event of many circuits is one line, and the same phase of many devices.
const FOLD_S = 5;
let folds = [];
const VERBS = { dark: "go dark", making: "are being made", lit: "carry light", lost: "lost their light" };
function folded(line) {
  const of = line.event === "device" ? line.phase : line.event === "circuits" && VERBS[line.state] ? line.state : null;
  if (!of) return false;
  folds = folds.filter((one) => Math.abs(line.at - one.at) < FOLD_S && one.message.isConnected);
  const one = folds.find((f) => f.event === line.event && f.of === of);
  if (!one) return false;
  one.devices.add(line.device);
  if (line.event === "device") {
    one.message.textContent = `${[...one.devices].sort().join(", ")}: ${of}`;
    return true;
  }
  for (const id of line.circuits) one.ids.add(id);
  if (one.ids.size > 1) one.message.textContent = `${[...one.devices].sort().join(", ")}: ${one.ids.size} circuits ${VERBS[line.state]}`;
  return true;
}

function tell(line, old) {
  if (!old && line.state === "lost") $("announced").textContent = line.message;
  if (folded(line)) return;
  const item = document.createElement("li"), time = document.createElement("time");
  time.textContent = clock(line.at * 1000);
  time.dateTime = new Date(line.at * 1000).toISOString();
  const message = document.createElement("span");
  message.textContent = line.message;
  if (line.state === "lost" || line.phase === "fault" || ["failed", "hands-needed", "died"].includes(line.status)) message.className = "bad";
  item.append(time, message);
  if (line.event === "circuits" || line.event === "device") {
    folds.push({ at: line.at, event: line.event, of: line.state ?? line.phase, ids: new Set(line.circuits ?? []), devices: new Set([line.device]), message });
  }
  $("news").prepend(item);
  while ($("news").childElementCount > 100) $("news").lastElementChild.remove();
  if (!old && ["run", "reconfig", "ring_change"].includes(line.event)) $("announced").textContent = line.message;
}

const banners = new Map();
function banner(name, message) {
  if (message) banners.set(name, message);
  else banners.delete(name);
  $("banner").textContent = [...banners.values()].join("\n");
  $("banner").hidden = banners.size === 0;
}

// ---- the stream: on again by itself, also after the server was started anew

let stream = null, heard = 0, wait = 500, instance = null, crowded = false;
function listen() {
  stream?.close();
  stream = new EventSource("events");
  heard = performance.now();
  const alive = () => {
    crowded = false;
    heard = performance.now();
    wait = 500;
    $("link").dataset.state = "live";
    $("link").textContent = "live";
    banner("link", "");
  };
  stream.addEventListener("whole", (event) => {
    alive();
    const data = JSON.parse(event.data);
    if (instance !== null && data.instance !== instance) dropKey();
    instance = data.instance;
    state.ports.clear();
    take(data, true);
  });
  stream.addEventListener("change", (event) => {
    alive();
    take(JSON.parse(event.data), false);
  });
  stream.addEventListener("heartbeat", alive);
  stream.addEventListener("crowded", () => (crowded = true));
  stream.addEventListener("error", lost);
}
function lost() {
  $("link").dataset.state = "lost";
  $("link").textContent = "not connected";
  banner("link", crowded ? "Too many pages are open; this one follows again in a few seconds." : "The server does not answer; retrying. Is testbed ui still running?");
  if (stream.readyState !== EventSource.CLOSED) return;
  setTimeout(listen, wait); // the browser gave up: an answer that was no stream
  wait = Math.min(5000, wait * 2);
}
setInterval(() => {
  if (performance.now() - heard > 15_000 && stream.readyState !== EventSource.CLOSED) listen();
  align();
  stats();
}, 1000);

// ---- the key and the safe state

let key = null;
try {
  key = sessionStorage.getItem("key");
} catch { /* then until the page is closed */ }
function dropKey() {
  key = null;
  try {
    sessionStorage.removeItem("key");
  } catch { /* nothing was kept */ }
}
async function enter() {
  const once = /^#key=([\w-]+)$/.exec(location.hash)?.[1];
  if (!once) return;
  history.replaceState(null, "", location.pathname);
  const answer = await fetch("enter", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ key: once }) });
  const reply = await answer.json().catch(() => ({}));
  if (!answer.ok) return void banner("key", reply.message ?? "The key was refused.");
  key = reply.token;
  try {
    sessionStorage.setItem("key", key);
  } catch { /* then until the page is closed */ }
  showSafe(state.safe);
}

function showSafe(safe) {
  if (!safe) return;
  const was = state.safe?.state;
  state.safe = safe;
  const button = $("safe");
  button.dataset.state = safe.state;
  button.disabled = safe.state === "none" || safe.state === "running" || key === null;
  button.textContent = safe.state === "running" ? `To ${safe.plan} …` : safe.plan ? `Safe state: ${safe.plan}` : "Safe state";
  button.title = safe.state === "none" ? "No safe plan is set: testbed ui --safe-plan PLAN"
    : key === null ? "Only with a key: open the address with a key that testbed ui printed" : `Bring ${safe.plan} up (s)`;
  banner("safe", safe.state === "failed" ? `The safe plan ${safe.plan} did not come up:\n${safe.message}` : "");
  if (was && was !== safe.state && safe.state === "done") $("announced").textContent = safe.message;
}

function askSafe() {
  if ($("safe").disabled) return void ($("announced").textContent = $("safe").title);
  $("safe-message").textContent = `${state.safe.plan} (${state.safe.file}) is brought up as with testbed up, in place of the plan that is up. A job that runs takes over its next rings while it runs; if it cannot, or the plan has another job, it is stopped and the plan's job is launched. If another change is running, this one waits for it.`;
  $("safe-dialog").showModal();
  $("safe-yes").focus();
}
$("safe-dialog").addEventListener("close", async () => {
  if ($("safe-dialog").returnValue !== "yes") return;
  const answer = await fetch("safe", { method: "POST", headers: { authorization: `Bearer ${key}` } }).catch(() => null);
  const reply = await answer?.json().catch(() => ({}));
  if (answer?.status === 401) dropKey();
  if (!answer?.ok) banner("safe", reply?.message ?? "The server did not answer.");
  showSafe(state.safe && answer?.status === 401 ? { ...state.safe } : null);
});

// ---- keys

$("theme").addEventListener("click", turnTheme);
$("safe").addEventListener("click", askSafe);
$("help").addEventListener("click", () => $("help-dialog").showModal());
for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("cancel", () => (dialog.returnValue = "no"));
const zoom = (step) => {
  const seconds = charts.map((chart) => chart.zoom(step))[0];
  $("announced").textContent = `charts over ${seconds < 120 ? `${seconds} seconds` : `${seconds / 60} minutes`}`;
};
const keys = { t: turnTheme, s: askSafe, "?": () => $("help-dialog").showModal(), "+": () => zoom(-1), "=": () => zoom(-1), "-": () => zoom(1), b: () => document.body.toggleAttribute("data-big") };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const device = /^[1-9]$/.test(event.key) ? fabric.devices?.[Number(event.key) - 1] : undefined;
  const act = device ? () => fabric.single(device) : keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

listen();
enter();
addEventListener("hashchange", enter);
