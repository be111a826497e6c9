// The page of `inspect`: a treemap of bytes beside a tree. What it uses of the page stands in page.html.

function inspectPage(main) {
  const files = data.files;
  const root = { name: files.length > 1 ? "all files" : files[0].path, children: new Map(), bytes: 0, tensors: 0, level: 0 };
  files.forEach((file) => {
    const t = file.tensors;
    for (let i = 0; i < t.path.length; i++) {
      const parts = t.path[i], mine = t.own[i];
      let node = root, all = files.length > 1 ? [file.path, ...parts] : parts;
      node.bytes += mine; node.tensors++;
      for (const part of all) {
        let next = node.children.get(part);
        if (!next) node.children.set(part, next = { name: part, parent: node, children: new Map(), bytes: 0, tensors: 0, level: node.level + 1 });
        node = next; node.bytes += mine; node.tensors++;
      }
      node.leaf = { file, i };
    }
  });
  const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  const KINDS = [["attention", /attn|attention|(^|[._])(q|k|v|o|qkv|query|key|value)(_proj)?([._]|$)/], ["norm", /norm|(^|[._])(bn|ln|gn)_?\d*([._]|$)/],
    ["embedding", /emb|(^|[._])(wte|wpe)([._]|$)|token/], ["MLP", /mlp|ffn|fc|feed|gate|expert|linear|dense|proj/], ["convolution", /conv|down|up|kernel/]];
  const known = {
    type: (t, i) => t.dtype[i],
    kind: (t, i) => { const name = t.path[i].join(".").toLowerCase(); return (KINDS.find(([, words]) => words.test(name)) || ["other"])[0]; },
    device: (t, i) => t.location[i],
    values: (t, i) => { const s = t.stats && t.stats[i]; return !s ? "not read" : s.nan || s.infinite ? "NaN or infinite" : s.elements && s.zeros / s.elements > 0.5 ? "mostly zeros" : "spread " + (s.std > 0 ? "1e" + Math.round(Math.log10(s.std)) : "0"); },
  };
  const hasStats = files.some((file) => file.tensors.stats);
  let by = "type", groups = [];
  const groupOf = (leaf) => known[by](leaf.file.tensors, leaf.i);
  const fill = (group) => group === "NaN or infinite" ? `hsl(0 75% ${dark() ? 38 : 66}%)` : `hsl(${(groups.indexOf(group) * 137 + 210) % 360} 45% ${dark() ? 30 : 78}%)`;

  const crumbs = element("nav", { class: "bar mono", "aria-label": "Place in the treemap" });
  const canvas = element("canvas", { role: "img", "aria-label": "Treemap of bytes. The tree beside it has the same as text." });
  const legend = element("div", { class: "bar soft key" });
  const search = element("input", { type: "search", placeholder: "Search keys, shapes, types …", "aria-label": "Search tensors" });
  const found = element("span", { class: "soft", role: "status" });
  const details = element("div", { class: "details", "aria-live": "polite" });
  const open = new Set([root]);
  let zoomed = root, chosen = null, boxes = [];
  const ways = ["type", "kind", "device", ...(hasStats ? ["values"] : [])];
  const chooser = element("select", { "aria-label": "Colour by", onchange: () => { by = chooser.value; colours(); paint(); } }, ...ways.map((way) => element("option", { text: way })));
  const orders = { "as in the file": null, "by name": (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }), "by size": (a, b) => b.bytes - a.bytes };
  const sorter = element("select", { "aria-label": "Order", onchange: () => refill() }, ...Object.keys(orders).map((text) => element("option", { text })));
  const inOrder = (node) => { const all = [...node.children.values()], order = orders[sorter.value]; return order ? all.sort(order) : all; };

  const list = new List("Tensors", "tree", (node) => {
    const twist = node.children.size ? (open.has(node) ? "▾" : "▸") : "";
    const label = query ? pathOf(node).slice(1).join(".") || node.name : node.name;
    const about = node.leaf ? node.leaf.file.tensors.dtype[node.leaf.i] + " [" + node.leaf.file.tensors.shape[node.leaf.i].join(", ") + "]"
      : count(node.tensors) + (node.tensors === 1 ? " tensor" : " tensors");
    const row = element("div", { role: "treeitem", "aria-level": node.level + 1, title: pathOf(node).slice(1).join(".") },
      element("span", { class: "twist", text: twist }), element("span", { class: "name mono", text: names.fit(label, roomFor(node, about)) }),
      element("span", { class: "soft mono about", text: query && small() ? "" : about }), element("span", { class: "size", text: isTied(node) ? "tied" : bytes(node.bytes) }));
    row.style.paddingLeft = 10 + (query ? 0 : node.level * 14) + "px";
    if (node.children.size) row.setAttribute("aria-expanded", open.has(node));
    return row;
  }, (node, how) => {
    choose(node);
    if (how === "Enter" || how === "open") zoom(node.children.size ? node : node.parent || root);
    else if (node.children.size && !query) {
      const at = list.items.indexOf(node);
      if (how === "ArrowRight" && open.has(node)) { list.select(at + 1); return choose(list.items[at + 1]); }
      if (how === "ArrowLeft" && !open.has(node)) return up(node);
      if (how === "ArrowRight") open.add(node); else if (how === "ArrowLeft") open.delete(node);
      else if (how === "click" || how === " ") { if (open.has(node)) open.delete(node); else open.add(node); }
      if (how !== "move") refill();
    } else if (how === "ArrowLeft") up(node);
  });
  function up(node) {
    const i = list.items.indexOf(node.parent);
    if (i >= 0) { list.select(i); choose(node.parent); }
  }
  // Letters that there is room for beside the rest of a row. On a phone, what is found is shown without type and shape.
  function roomFor(node, about) {
    if (printing) return 10000;
    if (query && small()) return Math.max(12, Math.floor((list.box.clientWidth - 130) / 7.6));
    return Math.max(12, Math.floor((list.box.clientWidth - 150 - (query ? 0 : node.level * 14)) / 7.6) - about.length);
  }
  // A tensor that is one with another has no bytes of its own.
  function isTied(node) { return node.leaf && !node.bytes && node.leaf.file.tensors.shape[node.leaf.i].every((n) => n > 0); }
  function pathOf(node) { const names = []; for (let n = node; n; n = n.parent) names.unshift(n.name); return names; }
  let query = "", names = new Names([]);
  function refill() {
    const items = [];
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    (function visit(node) {
      if (query) {
        if (node.leaf) {
          const t = node.leaf.file.tensors, i = node.leaf.i;
          node.text ??= (pathOf(node).join(".") + " " + t.dtype[i] + " [" + t.shape[i].join(", ") + "] " + t.location[i]).toLowerCase();
          if (words.every((word) => node.text.includes(word))) items.push(node);
        }
        node.children.forEach(visit);
      } else {
        items.push(node);
        if (open.has(node)) inOrder(node).forEach(visit);
      }
    })(root);
    if (query && orders[sorter.value]) items.sort(sorter.value === "by size" ? orders["by size"] : (a, b) => a.text.localeCompare(b.text, "en", { numeric: true }));
    names = new Names(query ? items.map((node) => pathOf(node).slice(1).join(".")) : []);
    found.textContent = query ? count(items.length) + (items.length === 1 ? " match" : " matches") : "";
    list.fill(items, items.indexOf(chosen));
  }
  const counted = { zeros: "zeros", nan: "NaN", infinite: "infinite" };
  function choose(node) {
    chosen = node;
    const rows = [["path", pathOf(node).slice(1).join(" / ") || node.name], ["size", isTied(node) ? "none of its own: tied to another tensor" : bytes(node.bytes) + " (" + count(node.bytes) + " bytes)"]];
    const picture = [];
    if (node.leaf) {
      const t = node.leaf.file.tensors, i = node.leaf.i;
      rows.push(["shape", "[" + t.shape[i].join(", ") + "]"], ["type", t.dtype[i]], ["location", t.location[i]], ["storage", "number " + t.storage[i]]);
      const stats = t.stats && t.stats[i];
      if (stats) {
        const number = (n) => typeof n !== "number" ? String(n) : Number.isInteger(n) ? count(n) : String(+n.toPrecision(6));
        for (const name of Object.keys(stats)) if (name !== "histogram" && !(name in counted)) rows.push([name, number(stats[name])]);
        if (stats.histogram && stats.histogram.length) picture.push(...histogram(stats, number));
        picture.push(element("div", { class: "counted mono" }, ...Object.entries(counted).flatMap(([name, word], i) => [i ? ", " : "",
          element("span", { class: name !== "zeros" && stats[name] ? "odd" : "", text: number(stats[name]) + " " + word })])));
      }
    } else rows.push(["tensors", count(node.tensors)]);
    details.replaceChildren(...picture, element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { class: "mono", text: value })])));
    details.scrollTop = 0;
    const address = pathOf(node).slice(1).map(encodeURIComponent).join("/");
    if (begun) history.replaceState(null, "", "#" + address);
    paint();
  }
  // The bars between the smallest and the largest value, and where parts of the values end, as near as the bars tell.
  function histogram(stats, number) {
    const top = Math.max(...stats.histogram, 1), all = stats.histogram.reduce((a, b) => a + b, 0);
    const bars = element("div", { class: "histogram", role: "img", "aria-label": "Histogram of values" });
    for (const n of stats.histogram) { const bar = element("i", n ? {} : { class: "empty" }); bar.style.height = (100 * n) / top + "%"; bar.title = count(n); bars.append(bar); }
    const within = (part) => {
      let sum = 0;
      for (let i = 0; i < stats.histogram.length; i++) {
        const n = stats.histogram[i];
        if (n && sum + n >= part * all) return +(stats.min + (stats.max - stats.min) * (i + (part * all - sum) / n) / stats.histogram.length).toPrecision(3);
        sum += n;
      }
      return stats.max;
    };
    const middle = all ? `5 % below ${within(0.05)}, half below ${within(0.5)}, 95 % below ${within(0.95)}` : "";
    const short = (n) => typeof n === "number" ? String(+n.toPrecision(4)) : number(n);
    const ends = element("div", { class: "axis mono" }, element("span", { text: short(stats.min) }), element("span", { text: middle }), element("span", { text: short(stats.max) }));
    return [bars, ends];
  }
  let begun = false;
  function zoom(node) {
    zoomed = node;
    crumbs.replaceChildren();
    for (let n = node; n; n = n.parent) {
      const here = n;
      const button = element("button", { text: n.name, onclick: () => { zoom(here); choose(here); } });
      crumbs.prepend(n.parent ? "›" : "", button);
    }
    paint();
  }
  // Squarified treemap (Bruls, Huizing and van Wijk 2000): rows whose rectangles are as square as can be.
  function squarify(nodes, x, y, w, h, place) {
    let rest = nodes.filter((node) => node.bytes > 0).sort((a, b) => b.bytes - a.bytes);
    let total = rest.reduce((sum, node) => sum + node.bytes, 0);
    while (rest.length && w > 0 && h > 0) {
      const side = Math.min(w, h), scale = (w * h) / total;
      let row = [], sum = 0, worst = Infinity;
      for (const node of rest) {
        const area = (sum + node.bytes) * scale, long = side * side;
        const most = (row[0] || node).bytes * scale, least = node.bytes * scale;
        const ratio = Math.max((long * most) / (area * area), (area * area) / (long * least));
        if (ratio > worst) break;
        row.push(node); sum += node.bytes; worst = ratio;
      }
      const thick = (sum * scale) / side;
      let at = 0;
      for (const node of row) {
        const length = (node.bytes * scale) / thick;
        if (w >= h) place(node, x, y + at, thick, length); else place(node, x + at, y, length, thick);
        at += length;
      }
      if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
      total -= sum; rest = rest.slice(row.length);
    }
  }
  function paint() {
    const ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
    if (!w || !h) return;
    canvas.width = w * ratio; canvas.height = h * ratio;
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.body);
    const ink = style.color, paper = style.backgroundColor;
    pen.scale(ratio, ratio); pen.clearRect(0, 0, w, h); pen.textBaseline = "top";
    boxes = [];
    (function draw(node, x, y, w, h, depth) {
      boxes.push({ node, x, y, w, h });
      const inner = node.children.size > 0;
      if (!inner || w < 3 || h < 3) {
        pen.fillStyle = node.leaf ? fill(groupOf(node.leaf)) : fill(groups[0]);
        pen.fillRect(x, y, w, h);
      } else {
        const head = w > 60 && h > 34 && depth ? 16 : 0, gap = w > 12 && h > 12 && depth ? 2 : 0;
        pen.fillStyle = `hsl(215 14% ${dark() ? 12 + 5 * (depth % 3) : 94 - 5 * (depth % 3)}%)`;
        pen.fillRect(x, y, w, h);
        squarify([...node.children.values()], x + gap, y + gap + head, w - 2 * gap, h - 2 * gap - head, (child, ...box) => draw(child, ...box, depth + 1));
        if (head) {
          const used = label(node.name, x + 4, y + 2, w - 8), size = bytes(node.bytes);
          if (pen.measureText(size).width < w - 18 - used) label(size, x + 10 + used, y + 2, w, 0.65);
        }
      }
      if (w > 4 && h > 4) { pen.strokeStyle = paper; pen.lineWidth = 1; pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1); }
      if (!inner && w > 44 && h > 16) {
        label(node.name, x + 4, y + 3, w - 8);
        if (h > 32) label(node.leaf ? "[" + node.leaf.file.tensors.shape[node.leaf.i].join(", ") + "]" : "", x + 4, y + 17, w - 8, 0.7);
      }
    })(zoomed, 0, 0, w, h, 0);
    function label(text, x, y, room, strength = 1) {
      pen.font = "12px system-ui, sans-serif";
      while (text.length > 2 && pen.measureText(text).width > room) text = text.slice(0, Math.floor(text.length * 0.85) - 1) + "…";
      const width = pen.measureText(text).width;
      if (width > room) return 0;
      pen.globalAlpha = strength; pen.fillStyle = ink; pen.fillText(text, x, y); pen.globalAlpha = 1;
      return width;
    }
    const mark = chosen && chosen !== zoomed && boxes.find((box) => box.node === chosen);
    if (mark) { pen.strokeStyle = style.getPropertyValue("--mark"); pen.lineWidth = 3; pen.strokeRect(mark.x + 1.5, mark.y + 1.5, mark.w - 3, mark.h - 3); }
  }
  function under(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null;
    for (const one of boxes) if (x >= one.x && y >= one.y && x < one.x + one.w && y < one.y + one.h) best = one.node;
    return best;
  }
  canvas.addEventListener("click", (event) => {
    const node = under(event);
    if (!node) return;
    let child = node;
    while (child.parent && child.parent !== zoomed && child !== zoomed) child = child.parent;
    for (let n = node.parent; n; n = n.parent) open.add(n);
    chosen = node;
    if (!query) refill();
    if (list.items.indexOf(node) >= 0) list.select(list.items.indexOf(node));
    choose(node);
    if (child !== zoomed && child.children.size) zoom(child);
  });
  canvas.addEventListener("mousemove", (event) => { const node = under(event); canvas.title = node ? pathOf(node).slice(1).join(".") + "  " + bytes(node.bytes) : ""; });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" || (event.key === "Backspace" && event.target !== search)) zoom(zoomed.parent || root);
    if (event.key === "/" && event.target !== search) { search.focus(); event.preventDefault(); }
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && search.value) { search.value = ""; search.dispatchEvent(new Event("input")); event.stopPropagation(); }
    if (event.key === "ArrowDown") { list.focus(); event.preventDefault(); }
  });
  search.addEventListener("input", () => { query = search.value.trim(); refill(); });
  new ResizeObserver(paint).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours(); paint(); });
  function colours() {
    groups = [...new Set(files.flatMap((file) => file.tensors.path.map((_, i) => known[by](file.tensors, i))))].sort();
    legend.replaceChildren(element("label", {}, "colour by ", chooser), ...groups.slice(0, 12).map((group) => {
      const dot = element("i"); dot.style.background = fill(group); return element("span", {}, dot, group); }));
  }
  colours();
  main.append(
    element("section", { "aria-label": "Treemap" }, crumbs, element("div", { class: "map" }, canvas), legend),
    element("section", { "aria-label": "Tree" }, element("div", { class: "bar" }, search, found, sorter), list.box, details));
  let node = root;
  while (node.children.size === 1) { node = [...node.children.values()][0]; open.add(node); }
  node.children.forEach((child) => { if (node.children.size < 40 && child.children.size) open.add(child); });
  let linked = root;
  for (const part of decodeURI(location.hash.slice(1)).split("/").map((one) => { try { return decodeURIComponent(one); } catch { return one; } })) {
    const next = linked.children.get(part);
    if (!next) break;
    open.add(linked); linked = next;
  }
  refill(); zoom(root); choose(linked);
  if (linked !== root) list.select(list.items.indexOf(linked));
  begun = true;
  const total = files.reduce((sum, file) => sum + file.tensors.path.length, 0);
  document.getElementById("summary").textContent =
    `${count(total)} tensors, ${count(data.parameters)} parameters, ${bytes(root.bytes)} in tensors`;
}

inspectPage(document.querySelector("main"));
