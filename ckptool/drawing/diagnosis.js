// What is wrong with a file, and what to type: the page of `doctor`. What it uses of the page stands in page.html and pairs.js.

function diagnosis(main) {
  main.classList.add("report");
  const anchor = (id, what) => element("a", { class: "anchor", href: "#" + id, "aria-label": "Link to: " + shortened(what, 80), text: "#" });
  function part(id, title, ...inside) {
    const made = element("section", { id, "aria-label": title }, element("h2", {}, title + "\u00a0", anchor(id, title)), ...inside);
    main.append(made);
    return made;
  }
  const purposes = (one) => one.commands.flatMap(([what, text]) => [...(what ? [element("p", { class: "soft", text: what + ":" })] : []), command(text)]);
  const finding = (one) => element("li", { id: one.id, class: "finding" }, element("p", {}, one.what + "\u00a0", anchor(one.id, one.what)),
    ...(one.actions.length ? [element("ul", {}, ...one.actions.map((text) => element("li", { text })))] : []), ...purposes(one));
  const list = (tag, findings) => element(tag, { class: "findings" }, ...findings.map(finding));

  if (data.verdict) document.querySelector("h1").after(element("strong", { class: "verdict " + (data.healthy ? "good" : "bad") },
    element("span", { "aria-hidden": "true", text: data.healthy ? "✓ " : "✗ " }), data.verdict));
  if (data.messages.length) part("messages", data.verdict ? "What the error message means" : "What it means", list(data.messages.length > 1 ? "ol" : "ul", data.messages));
  if (!data.verdict) return;
  const { problems, others, cure, fit, checked } = data;
  if (problems.length) part("problems", problems.length === 1 ? "The problem" : "The problems", list("ol", problems));
  if (fit) {
    const links = fit.links.length ? [element("p", {}, element("a", { href: "#keys", text: "the keys in the way" }))] : [];
    part("fit", "The model", element("p", {}, element("code", { text: fit.model }), ": ",
      element("strong", { class: fit.fits ? "good" : "bad", text: fit.fits ? "fits" : "DOES NOT FIT" }), ", " + fit.share),
      ...(fit.nothing ? [element("p", { text: fit.nothing })] : []), ...links);
  }
  if (cure.commands.length) part("fix", cure.title[0].toUpperCase() + cure.title.slice(1),
    element("ol", { class: "commands" }, ...cure.commands.map((text) => element("li", {}, command(text)))),
    ...(cure.purpose ? [element("p", { class: "soft", text: cure.purpose })] : []));
  if (others.length) part("others", "Worth knowing", list("ul", others));
  if (fit && fit.links.length) pairs(part("keys", "The keys in the way"), fit);
  if (checked.length) part("checked", "Checked, without a problem", element("ul", { class: "checked" }, ...checked.map((text) => element("li", { text }))));
  else part("checked", "Not checked", element("p", { text: "The rest could not be looked at, since ckptool cannot open this as one checkpoint." }));
}

diagnosis(document.querySelector("main"));
// the parts are made after the address was followed
if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
