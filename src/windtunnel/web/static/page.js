// The page of forecasts: a changed field asks for its answer at once, and the address follows.
(() => {
  "use strict";
  const form = document.getElementById("form"), result = document.getElementById("result");
  const said = document.getElementById("said");
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const NODE = 8;

  let asking = null;
  const current = () => asking ? asking.signal : undefined;

  // Ask until the answer is there: 202 says how far it is, 503 that too many others ask.
  const fetched = async (address, place, signal) => {
    for (let pause = 250; ; pause = Math.min(2000, pause * 1.3)) {
      let response, text;
      try {
        response = await fetch(address, { signal, headers: { accept: "text/html" } });
        text = await response.text();
      } catch (error) {
        if (error.name === "AbortError") return null;
        place.innerHTML = '<div class="alert" role="alert"><p><b>The page does not answer.</b></p>' +
          '<p class="soft">Is windtunnel serve still running? The page asks again by itself.</p></div>';
        await wait(2000);
        if (signal && signal.aborted) return null;
        continue;
      }
      if (signal && signal.aborted) return null;
      const coming = response.status === 202 || response.status === 503;
      if (!coming) {
        place.innerHTML = text;
        place.removeAttribute("aria-busy");
        window.windtunnel.ready(place);
        return response;
      }
      place.setAttribute("aria-busy", "true");
      showProgress(place, text);
      await wait(pause);
      if (signal && signal.aborted) return null;
    }
  };

  // An old answer stays below the note that a new one is coming.
  const showProgress = (place, text) => {
    const old = place.querySelector(":scope > .coming");
    const note = old || document.createElement("div");
    note.className = "coming";
    note.innerHTML = text;
    if (!old) {
      if (place.querySelector("[data-waiting]")) place.replaceChildren();
      place.prepend(note);
    }
  };

  // A page that came before its answer.
  const source = document.querySelector("[data-source]");
  const opening = source && source.querySelector("[data-waiting]") && fetched(source.dataset.source, source);

  // Parts that take longer, at a click. A link at the top of the page goes to its part and asks for it.
  const load = (link) => {
    const place = link.nextElementSibling;
    link.hidden = true;
    place.innerHTML = '<div class="progress" data-waiting><div class="bar-track"><span class="bar-run"></span>' +
      '</div><p role="status"><b>Asked</b></p></div>';
    fetched(link.href, place, current()).then((response) => {
      if (response && !response.ok) link.hidden = false;
      if (response) { place.tabIndex = -1; place.focus({ preventScroll: true }); }
    });
  };
  document.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    const link = event.target.closest("[data-load], [data-jump]");
    if (!link) return;
    event.preventDefault();
    if (link.dataset.load !== undefined) { load(link); return; }
    const part = document.querySelector(`[data-load="${link.dataset.jump}"]`);
    part.closest("section").scrollIntoView();
    if (!part.hidden) load(part);
  });

  // A table with a field above it shows the rows that have its words.
  for (const filter of document.querySelectorAll("[data-filter]")) {
    const rows = [...document.querySelectorAll("tbody tr")];
    filter.closest("[hidden]").hidden = false;
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        left += row.hidden ? 0 : 1;
      }
      for (const box of document.querySelectorAll("section[data-rows]"))
        box.hidden = !box.querySelector("tbody tr:not([hidden])");
      document.querySelector("[data-left]").textContent = words.length ? `${left} of ${rows.length}` : "";
    });
  }
  if (!form) return;

  // What the form says, without fields that were left alone.
  const query = () => {
    const pairs = [];
    for (const [name, value] of new FormData(form)) {
      const text = String(value).trim();
      if (text) pairs.push([name, text]);
    }
    return new URLSearchParams(pairs).toString();
  };

  let timer = 0, last = query(), moving = false, address = location.search;
  const ask = (push) => {
    const words = query();
    if (words === last) return;
    last = words;
    if (asking) asking.abort();
    asking = new AbortController();
    const { signal } = asking;
    const began = performance.now();
    history[push ? "pushState" : "replaceState"](null, "", `/?${words}`);
    address = location.search;
    for (const link of document.querySelectorAll("a[data-load]")) {
      link.href = `/part/${link.dataset.load}?${words}`;
      link.hidden = false;
      link.nextElementSibling.replaceChildren();
    }
    result.classList.add("old");
    fetched(`/part/forecast?${words}`, result, signal).then((response) => {
      if (!response) return;
      result.classList.remove("old");
      result.dataset.milliseconds = String(Math.round(performance.now() - began));
      showBatch(Number(response.headers.get("x-batch")));
      const step = result.querySelector(".figure");
      said.textContent = response.ok && step ? `Forecast changed: ${step.textContent} a step.` : "";
      document.title = `${form.elements.job.value} · Windtunnel`;
    });
  };
  // A slider that moves leaves one place to come back to: where it stood before.
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(() => { ask(!moving); moving = true; }, 60);
  };
  const now = () => { clearTimeout(timer); ask(!moving); moving = false; };

  // Batch: a slider of powers of two and a number.
  const slide = document.getElementById("f-batch-slide"), number = document.getElementById("f-batch");
  const showBatch = (batch) => {
    if (!batch) return;
    number.placeholder = String(batch);
    slide.value = String(Math.round(Math.log2(batch)));
    slide.setAttribute("aria-valuetext", `batch ${batch}`);
  };
  slide.addEventListener("input", () => {
    number.value = String(2 ** Number(slide.value));
    showBatch(Number(number.value));
  });

  // Machines: a name of the catalogue and a number of devices give the name that the link has.
  const named = (row) => {
    const base = row.querySelector("[data-base]"), devices = row.querySelector("[data-devices]");
    const range = devices.querySelector("input");
    const counted = base.selectedOptions[0].dataset.counted === "1";
    devices.hidden = !counted;
    const count = counted ? 2 ** Number(range.value) : 1;
    devices.querySelector("output").textContent = String(count);
    range.setAttribute("aria-valuetext", `${count} devices`);
    const name = base.value;
    row.querySelector("[name=on]").value =
      count === 1 ? name : count <= NODE ? `${count}x${name}` : `${count / NODE}x${NODE}x${name}`;
  };
  const rows = () => [...form.querySelectorAll("[data-machine]")];
  const numbered = () => rows().forEach((row, place) => {
    const many = rows().length > 1;
    row.querySelector("[data-base]").id = `f-on-${place + 1}`;
    const label = row.querySelector("label");
    label.htmlFor = `f-on-${place + 1}`;
    label.textContent = many ? `Machine ${place + 1}` : "Machine";
    const devices = row.querySelector("[data-devices]");
    devices.querySelector("input").id = devices.querySelector("label").htmlFor = `f-devices-${place + 1}`;
    const remove = row.querySelector("[data-remove]");
    remove.hidden = !many;
    remove.setAttribute("aria-label", `Remove ${row.querySelector("[name=on]").value}`);
  });
  const add = document.getElementById("add-machine");
  add.addEventListener("click", () => {
    const last = rows().at(-1), row = last.cloneNode(true);
    const base = row.querySelector("[data-base]");
    const used = new Set(rows().map((each) => each.querySelector("[data-base]").value));
    const next = ["h200", "h100", "a100-80gb", "rtx4090", "l4", "t4", "epyc-9654"].find((name) => !used.has(name));
    base.value = next || base.value;
    row.querySelector("[data-devices] input").value = "0";
    last.after(row);
    named(row);
    numbered();
    add.hidden = rows().length >= 6;
    base.focus();
    ask(true);
  });
  form.addEventListener("click", (event) => {
    const remove = event.target.closest("[data-remove]");
    if (!remove) return;
    remove.closest("[data-machine]").remove();
    numbered();
    add.hidden = false;
    add.focus();
    ask(true);
  });

  form.addEventListener("input", (event) => {
    const row = event.target.closest("[data-machine]");
    if (row) { named(row); numbered(); }
    if (event.target.type === "range" || event.target.tagName === "SELECT") soon();
  });
  form.addEventListener("change", now);
  form.addEventListener("submit", (event) => { event.preventDefault(); last = ""; now(); });

  // Where the answer lies below the form, a line at the bottom says it while one chooses.
  const line = document.getElementById("glance-at");
  let inSight = true;
  const glance = () => {
    const title = result.querySelector("h2.answer"), step = result.querySelector(".tile .figure");
    const fastest = result.querySelector(".row-value");
    const words = step ? `${step.textContent} a step` : fastest ? fastest.textContent : "";
    line.firstElementChild.textContent = words && title ? `${title.textContent}: ${words}` : words;
    line.hidden = inSight || !words;
  };
  if (line && "IntersectionObserver" in window) {
    new IntersectionObserver(([entry]) => { inSight = entry.isIntersecting || entry.boundingClientRect.top < 0; glance(); })
      .observe(result);
    new MutationObserver(glance).observe(result, { childList: true, subtree: true });
  }

  // Back and forward bring the whole page of that address; a place within the page does not.
  window.addEventListener("popstate", () => { if (location.search !== address) location.reload(); });

  const share = document.getElementById("share");
  if (navigator.clipboard) {
    share.hidden = false;
    share.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(location.href); share.textContent = "Copied"; }
      catch { share.textContent = "Copy it from the address bar"; }
      setTimeout(() => { share.textContent = "Copy the link"; }, 1800);
    });
  }
  showBatch(Number(number.value));
  if (opening) opening.then((response) => response && showBatch(Number(response.headers.get("x-batch"))));
})();
