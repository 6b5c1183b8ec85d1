"""The style of the page of `lightning-shards show --html`, in plain CSS, light and dark."""

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #fafafa; --card: #ffffff; --ink: #1c1e21; --faint: #646a73; --line: #e1e4e8;
  --accent: #5b5bd6; --track: #ececf1; --wrong: #b3261e; --unusual: #8a6100; --ok: #1b7f4b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #131418; --card: #1c1e24; --ink: #e8e9ec; --faint: #9aa0aa; --line: #2e3138;
    --accent: #9a9af5; --track: #2a2c34; --wrong: #ff8a80; --unusual: #f0c060; --ok: #6fd3a0;
  }
}
* { box-sizing: border-box; margin: 0; min-width: 0; }
body {
  background: var(--paper); color: var(--ink); max-width: 76rem; margin: 0 auto; padding: 1.25rem;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  overflow-wrap: anywhere;
}
ul, ol { list-style: none; padding: 0; }
h1 { font-size: 1.35rem; line-height: 1.25; }
h2 { font-size: 1.05rem; margin: 2.25rem 0 .25rem; }
h3 { font: 600 .95rem ui-monospace, "DejaVu Sans Mono", monospace; }
.note, footer { color: var(--faint); font-size: .85rem; }
h2 + .note { margin-bottom: .75rem; }
h2 + :not(.note) { margin-top: .75rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .75rem; }

.numbers { display: flex; flex-wrap: wrap; gap: .75rem 2rem; margin-top: 1rem; }
.numbers dt { color: var(--faint); font-size: .8rem; }
.numbers dd { font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; }

.numbers a { color: inherit; text-decoration: none; }
.numbers a:hover { color: var(--accent); }

.ok { color: var(--ok); }
.findings li { border-left: 3px solid; padding: .35rem .75rem; margin-bottom: .5rem;
  background: var(--card); }
.findings strong { display: block; font-size: .85rem; }
.findings span { color: var(--ink); font-size: .9rem; }
.wrong { color: var(--wrong); }
.unusual { color: var(--unusual); }

.samples {
  display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, calc(var(--tile) + 1rem + 2px)), 1fr));
}
.samples li, .fields li { background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: .5rem; }
.picture { display: grid; place-items: center; margin-bottom: .4rem; min-height: var(--tall); }
.picture img { display: block; max-width: 100%; height: auto; border-radius: 3px; }
.enlarged { image-rendering: pixelated; }
.broken { aspect-ratio: 1; max-height: var(--tile); width: 100%; border-radius: 3px;
  border: 1px dashed; color: var(--wrong); font-size: .8rem; }
.label { font-weight: 600; text-align: center; }
.key { color: var(--faint); text-align: center;
  font: .75rem/1.4 ui-monospace, "DejaVu Sans Mono", monospace; }
.samples dl { margin-top: .4rem; border-top: 1px solid var(--line); font-size: .8rem; }
.samples dl div { padding-top: .3rem; }
.samples dt { color: var(--faint); font-size: .72rem; }
.samples dd { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 5;
  overflow: hidden; }

.fields { display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); }
.fields li { padding: .75rem; }
.fields p { color: var(--faint); font-size: .85rem; }
.histogram { display: flex; align-items: flex-end; gap: 2px; height: 36px; margin-top: .5rem;
  border-bottom: 1px solid var(--line); }
.histogram span { flex: 1; max-width: 2.5rem; background: var(--accent);
  border-radius: 2px 2px 0 0; }

.classes li { display: grid; align-items: center; gap: .75rem; font-size: .9rem;
  grid-template-columns: minmax(2rem, 9rem) 1fr 4.5rem 3.5rem; padding: .15rem 0; }
.bar { background: var(--track); border-radius: 3px; height: .7rem; }
.bar span { display: block; background: var(--accent); border-radius: 3px; height: 100%; }
.count, .share { text-align: right; font-variant-numeric: tabular-nums; }
.share { color: var(--faint); }

summary { cursor: pointer; color: var(--faint); margin-bottom: .5rem; }
table { width: 100%; border-collapse: collapse; font-size: .9rem; background: var(--card); }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }
th { color: var(--faint); font-weight: 500; font-size: .8rem; }
th:first-child, td:first-child { text-align: left; }
td:first-child { font: .8rem ui-monospace, "DejaVu Sans Mono", monospace; }
th, td + td { white-space: nowrap; }

@media (max-width: 600px) {
  body { padding: .9rem; }
  .picture { min-height: 0; }
  .samples { gap: .5rem;
    grid-template-columns: repeat(auto-fill, minmax(min(100%, 9rem, var(--tile) + 1rem), 1fr)); }
  .classes li { grid-template-columns: minmax(2rem, 6rem) 1fr 3.5rem 3rem; gap: .5rem; }
}
"""
