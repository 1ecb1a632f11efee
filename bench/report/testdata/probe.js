// Looks at a report as a reader does, and writes what it found into the title (browser_test.go).
addEventListener("load", () => {
 const r = {pictures: 0, numbers: [], empty: [], outside: [], overlap: [], faint: [],
  wider: document.documentElement.scrollWidth > innerWidth,
  saved: document.getElementById("save").href.length > 1000};
 const light = c => {
  const [a, b, d] = c.match(/[0-9.]+/g).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * a + .7152 * b + .0722 * d };
 const paper = light(getComputedStyle(document.body).backgroundColor);
 const contrast = c => { const l = light(c); return (Math.max(l, paper) + .05) / (Math.min(l, paper) + .05) };
 for (const h of document.querySelectorAll("figure h3")) { 
  const m = h.textContent.match(/^([0-9]+)\. /);
  if (m && !r.numbers.includes(+m[1])) r.numbers.push(+m[1]) }
 r.numbers.sort((a, b) => a - b);
 for (const svg of document.querySelectorAll("svg")) {
  r.pictures++;
  const name = svg.getAttribute("aria-label"), box = svg.viewBox.baseVal;
  if (svg.getBoundingClientRect().height < 60 ||
   !svg.querySelector("polyline,rect,circle") || svg.innerHTML.includes("NaN")) r.empty.push(name);
  const at = [...svg.querySelectorAll("text")].map(e => ({e, b: e.getBBox()})).filter(t => t.b.width > 0);
  for (const {e, b} of at) {
   if (b.x < -1 || b.y < -1 || b.x + b.width > box.width + 1 ||
     b.y + b.height > box.height + 1) r.outside.push(name + ": " + e.textContent);
   if (!e.classList.contains("mid") && contrast(getComputedStyle(e).fill) < 4)
     r.faint.push(name + ": " + e.textContent);
  }
  const free = at.filter(t => !t.e.classList.contains("mid"));
  for (let i = 0; i < free.length; i++) for (let k = i + 1; k < free.length; k++) {
   const a = free[i].b, b = free[k].b;
   const w = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
   const h = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
   if (w > 2 && h > 5) r.overlap.push(name + ": " + free[i].e.textContent + " / " + free[k].e.textContent);
  }
 }
 document.title = JSON.stringify(r);
})
