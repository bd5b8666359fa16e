// What the scripts of the pages of a plan and of runs share. scheduler/report/embed.sh puts it into both.

const $ = id => document.getElementById(id);
// Okabe and Ito's colours, which people with any colour vision tell apart.
const colours = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#8c8c8c', '#a0522d'];
const escapes = {'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'};
const esc = s => String(s).replace(/[&<>"]/g, c => escapes[c]);

function bytes(x) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let u = 0;
  for (; x >= 1024 && u < 4; u++) x /= 1024;
  return (u ? x.toFixed(2) : x) + ' ' + units[u];
}

const card = (name, value, note, kind, more) => `<div class="card"><span class="soft">${esc(name)}</span><b class="${kind || ''}">${esc(value)}</b>` +
  `<span class="soft">${esc(note)}</span>${more || ''}</div>`;
/** A table of [colour, name, value]. */
const rows = list => `<table>${list.map(([c, name, value]) =>
  `<tr><td>${c ? `<i class="swatch" style="background:${c}"></i>` : ''}${esc(name)}</td><td>${esc(value)}</td></tr>`).join('')}</table>`;

function showTip(event, html) {
  const tip = $('tip');
  tip.innerHTML = html;
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), x = event.clientX + 18, y = event.clientY + 14;
  tip.style.left = (x + box.width > innerWidth - 8 ? Math.max(8, event.clientX - box.width - 18) : x) + 'px';
  tip.style.top = Math.max(8, Math.min(y, innerHeight - box.height - 8)) + 'px';
}

const hideTip = () => { $('tip').hidden = true; };
