// What a page can do beyond being read: choose a theme, zoom a timeline, copy code. It needs no network.
(() => {
  "use strict";
  const root = document.documentElement;

  // Theme: the system's, or the one that was chosen last. A file may not be allowed to remember it.
  const remembered = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("windtunnel-theme");
      localStorage.setItem("windtunnel-theme", value);
    } catch { /* nothing is remembered */ }
    return null;
  };
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const named = (button) => { button.textContent = isDark() ? "Light" : "Dark"; };
  const theme = remembered();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  for (const button of document.querySelectorAll("[data-theme-button]")) {
    button.hidden = false;
    named(button);
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remembered(root.dataset.theme);
      named(button);
    });
  }

  // Timelines: places are shares of the width, so a wider drawing is a closer look.
  const most = 64;
  const zoomable = (element) => {
    if (element.dataset.ready) return;
    element.dataset.ready = "1";
    const scroll = element.querySelector(".scroll"), drawing = element.querySelector("svg.timeline");
    const readout = element.querySelector(".readout"), controls = element.querySelector(".controls");
    if (!scroll || !drawing) return;
    const hint = readout ? readout.textContent : "";
    let zoom = 1, chosen = null;
    const zoomTo = (wanted, middle) => {
      const next = Math.min(most, Math.max(1, wanted));
      const at = middle ?? scroll.clientWidth / 2;
      const place = (scroll.scrollLeft + at) / (scroll.clientWidth * zoom);
      zoom = next;
      drawing.setAttribute("width", `${100 * zoom}%`);
      element.dataset.level = zoom >= 16 ? "16" : zoom >= 4 ? "4" : "1";
      scroll.scrollLeft = place * scroll.clientWidth * zoom - at;
    };
    const show = (box) => {
      if (chosen) chosen.classList.remove("on-it");
      chosen = box;
      if (box) box.classList.add("on-it");
      const title = box && box.querySelector("title");
      if (readout) readout.textContent = title ? title.textContent : hint;
    };
    const step = { in: () => zoomTo(zoom * 2), out: () => zoomTo(zoom / 2), fit: () => zoomTo(1) };
    if (controls) {
      controls.hidden = false;
      controls.addEventListener("click", (event) => {
        const button = event.target.closest("[data-zoom]");
        if (button) step[button.dataset.zoom]();
      });
    }
    scroll.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "+" || event.key === "=") step.in();
      else if (event.key === "-") step.out();
      else if (event.key === "0") step.fit();
      else return;
      event.preventDefault();
    });
    scroll.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // a plain wheel scrolls the page
      event.preventDefault();
      zoomTo(zoom * (event.deltaY < 0 ? 1.25 : 0.8), event.clientX - scroll.getBoundingClientRect().left);
    }, { passive: false });
    drawing.addEventListener("pointerover", (event) => {
      const box = event.target.closest(".task");
      if (box) show(box);
    });
    drawing.addEventListener("click", (event) => show(event.target.closest(".task")));
  };

  // Code that can be copied gets a button, where the browser lets a page copy.
  const copyable = (code) => {
    if (code.dataset.ready || !navigator.clipboard) return;
    code.dataset.ready = "1";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
      catch { button.textContent = "Not allowed"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    code.after(button);
  };

  // Also for pieces that a page fetches later: windtunnel.ready(element).
  const ready = (place) => {
    place.querySelectorAll("[data-zoomable]").forEach(zoomable);
    place.querySelectorAll("code[data-copy]").forEach(copyable);
  };
  window.windtunnel = { ready };
  ready(document);
})();
