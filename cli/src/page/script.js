// Shows at once what a mark or a part of the map is; without it browsers do so after a while.
(() => {
  const tip = document.getElementById("tip");
  for (const title of document.querySelectorAll("svg title")) {
    const owner = title.parentNode;
    owner.dataset.tip = title.textContent;
    owner.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  const show = (event) => {
    const owner = event.target.closest && event.target.closest("[data-tip]");
    if (!owner) { tip.hidden = true; return; }
    tip.textContent = owner.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, document.documentElement.clientWidth - box.width - 8);
    const below = event.clientY + 18;
    const y = below + box.height > window.innerHeight ? event.clientY - box.height - 12 : below;
    tip.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();
