// A column for each rank of the job: what its usual iteration is made of, the tallest being the longest one.
const PARTS = [["wait", "waits for other ranks"], ["exchange", "waits for its exchange"], ["compute", "computes"]];

function column(rank, most) {
  const { iter_ms: whole, compute_ms: compute, exposed_ms: exposed, wait_ms: wait } = rank;
  const known = typeof compute === "number" && typeof exposed === "number";
  const sizes = known ? { compute, exchange: exposed - wait, wait } : { other: whole ?? 0 };
  const box = document.createElement("span");
  box.className = "rank";
  box.dataset.state = rank.state && rank.state !== "running" ? "gone" : rank.silent ? "silent" : "";
  for (const name of known ? PARTS.map(([part]) => part) : ["other"]) {
    const bar = document.createElement("span");
    bar.className = `part ${name}`;
    bar.style.height = `${(100 * Math.max(0, sizes[name])) / most}%`;
    box.append(bar);
  }
  const now = rank.state === undefined ? "" : `${rank.state}, iteration ${rank.iteration}${rank.phase ? `, ${rank.phase} for ${rank.age_s.toFixed(1)} s` : ""}; `;
  const parts = known ? PARTS.map(([part, message]) => `${message} ${sizes[part].toFixed(1)} ms`).reverse().join(", ") : "";
  box.title = `${rank.rank}: ${now}${parts}`;
  return box;
}

export function ranks(root, data) {
  root.hidden = !data.length;
  const most = Math.max(1, ...data.map((rank) => Math.max(rank.iter_ms ?? 0, (rank.compute_ms ?? 0) + (rank.exposed_ms ?? 0))));
  root.replaceChildren(...data.map((rank) => column(rank, most)));
}
