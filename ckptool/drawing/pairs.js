// Two columns of names, joined by lines of their status: the page of `diff` and `transfer`, and a part of that of `doctor`.
// What it uses of the page stands in page.html.

function pairs(parent, { links, left, right }) {
  const kinds = [...new Set(links.map((link) => link.status))];
  const shown = new Set(kinds), names = {};
  let query = "";
  const search = element("input", { type: "search", placeholder: "Search …", "aria-label": "Search entries" });
  const found = element("span", { class: "soft", role: "status" });
  const details = element("div", { class: "details", "aria-live": "polite" });
  const list = new List("Pairs", "listbox", (link) => {
    const line = drawn("svg", { viewBox: "0 0 140 24", class: link.status, "aria-hidden": "true" });
    const half = link.via ? 3.5 * link.via.length + 5 : 0;
    const joined = half ? `M4 12 H${70 - half} M${70 + half} 12 H136` : "M4 12 H136";
    line.append(drawn("path", { d: link.left && link.right ? joined : link.left ? "M4 12 H50 m0 -4 v8" : "M136 12 H90 m0 -4 v8" }));
    if (half && link.left && link.right) {
      const word = drawn("text", { x: 70, y: 16 });
      word.textContent = link.via;
      line.append(word);
    }
    const said = `${link.left || "nothing"} to ${link.right || "nothing"}: ${link.status}${link.via ? ", by " + link.via : ""}`;
    return element("div", { role: "option", class: "link", "aria-label": said },
      element("span", { class: "name mono", text: names.left.fit(link.left || "—", roomFor()), title: link.left || "" }), line,
      element("span", { class: "name mono", text: names.right.fit(link.right || "—", roomFor()), title: link.right || "" }),
      element("span", { class: "about soft mono", text: link.about || "" }));
  }, (link) => {
    const rows = [["status", link.status], [left, link.left || "—"], [right, link.right || "—"], ...(link.details || [])];
    details.replaceChildren(element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { class: "mono", text: String(value) })])));
  }, () => small() ? 46 : 24);
  function drawn(tag, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }
  function roomFor() {
    const narrow = matchMedia("(max-width: 800px)").matches;
    if (small()) return Math.floor((list.box.clientWidth - 54) / 7.6);
    return printing ? 10000 : Math.max(10, Math.floor((list.box.clientWidth - (narrow ? 110 : 350)) / 2 / 7.6));
  }
  const text = new Map(links.map((link) => [link, ((link.left || "") + " " + (link.right || "") + " " + link.status + " " + (link.via || "")).toLowerCase()]));
  function refill() {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean), before = list.items[list.at];
    const items = links.filter((link) => shown.has(link.status) && words.every((word) => text.get(link).includes(word)));
    for (const side of ["left", "right"]) names[side] = new Names(items.map((link) => link[side] || ""));
    found.textContent = count(items.length) + " of " + count(links.length);
    list.box.scrollTop = 0;
    list.fill(items);
    if (items.includes(before)) list.select(items.indexOf(before)); else details.replaceChildren(hint);
  }
  const hint = element("span", { class: "soft", text: "Choose a line to see what is known about it." });
  const filters = kinds.map((kind) => {
    const number = links.filter((link) => link.status === kind).length;
    const sign = drawn("svg", { viewBox: "0 0 22 10", class: kind, "aria-hidden": "true" });
    sign.append(drawn("path", { d: "M1 5 H21" }));
    const button = element("button", { class: "filter", "aria-pressed": "true", onclick: () => {
      if (shown.has(kind)) shown.delete(kind); else shown.add(kind);
      pressed(); refill();
    } }, sign, `${kind} ${count(number)}`);
    button.kind = kind;
    return button;
  });
  const fine = ["mapped", "default", "equal", "close", "moved"], problems = kinds.filter((kind) => !fine.includes(kind));
  const doubtful = links.filter((link) => problems.includes(link.status)).length;
  const only = element("button", { class: "filter", text: `only problems ${count(doubtful)}`, onclick: () => {
    const all = only.getAttribute("aria-pressed") === "true";
    shown.clear();
    (all ? kinds : problems).forEach((kind) => shown.add(kind));
    pressed(); refill();
  } });
  function pressed() {
    for (const button of filters) button.setAttribute("aria-pressed", shown.has(button.kind));
    only.setAttribute("aria-pressed", shown.size === problems.length && problems.every((kind) => shown.has(kind)));
  }
  pressed();
  search.addEventListener("input", () => { query = search.value.trim(); refill(); });
  search.addEventListener("keydown", (event) => { if (event.key === "ArrowDown") { list.focus(); event.preventDefault(); } });
  document.addEventListener("keydown", (event) => { if (event.key === "/" && event.target !== search) { search.focus(); event.preventDefault(); } });
  parent.append(element("section", { class: "pairs" }, element("div", { class: "bar" }, search, found, ...(doubtful && doubtful < links.length ? [only] : []), ...filters),
    element("div", { class: "columns soft" }, element("span", { text: left }), element("span"), element("span", { text: right }), element("span")),
    list.box, details));
  refill();
}

if (data.links) {
  const main = document.querySelector("main");
  main.classList.add("pairs");
  pairs(main, data);
}
