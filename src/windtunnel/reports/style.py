"""The style of the one-file pages: light and dark, narrow and wide, screen and paper. It loads nothing."""

STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#57606a;--page:#fff;--box:#f6f8fa;--rule:#d0d7de;
--link:#0a5ca8;
--good:#11632b;--good-box:#dff5e4;--bad:#9a1b12;--bad-box:#fde7e4;--open:#6a4a00;--open-box:#fdf1cf}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#a4afba;--page:#12161b;--box:#1b2129;
--rule:#3a434d;--link:#7cc0ff;
--good:#7ee2a0;--good-box:#12331d;--bad:#ffaea6;--bad-box:#431814;--open:#f0cf7a;--open-box:#3b2d08}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
main,header,footer,nav{max-width:1240px;margin:0 auto;padding:0 1rem}
h1{font-size:1.7rem;line-height:1.2;margin:1.6rem 0 .4rem}
h2{font-size:1.3rem;line-height:1.25;margin:2.6rem 0 .4rem;padding-top:.6rem;
border-top:2px solid var(--rule)}
h3{font-size:1.05rem;margin:1.4rem 0 .3rem}
p{margin:.4rem 0;max-width:75ch}
.soft,small,caption{color:var(--soft)}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,.box:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-999px}.skip:focus{left:1rem;top:.5rem;background:var(--page);
padding:.4rem .8rem;z-index:9}
nav ul{list-style:none;padding:0;margin:.8rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem}
nav a{display:inline-block;padding:.2rem 0}
.box{overflow-x:auto;border:1px solid var(--rule);border-radius:6px;margin:.6rem 0;max-width:100%}
.box.tall{max-height:34rem;overflow-y:auto}
table{border-collapse:collapse;font-size:.9rem;width:100%;font-variant-numeric:tabular-nums;
overflow-wrap:normal}
caption{text-align:left;padding:.5rem .7rem;font-size:.85rem}
caption span{position:sticky;left:.7rem;display:inline-block;max-width:min(75ch,calc(100vw - 4rem))}
th,td{padding:.35rem .7rem;text-align:left;vertical-align:top;border-top:1px solid var(--rule)}
thead th{background:var(--box);border-top:0;position:sticky;top:0;font-weight:600;vertical-align:bottom}
tbody th{font-weight:600;white-space:nowrap;position:sticky;left:0;background:var(--page);z-index:1}
thead th:first-child{left:0;z-index:3}thead th{z-index:2}
.n{text-align:right;white-space:nowrap}thead th.n{white-space:normal;min-width:5.5rem}
td small{display:block;font-size:.78rem}
td.wide{min-width:15rem}td.mid{min-width:9rem}
.published{background:var(--box)}
.forecast{font-style:italic;border-left:2px dotted var(--soft)}
.failed{color:var(--bad);background:var(--bad-box);font-weight:600;white-space:nowrap;text-align:right}
.waiting,.none{color:var(--soft);text-align:right;white-space:nowrap}
.ruling{font-weight:700;white-space:nowrap;border-radius:4px;padding:.1rem .5rem;display:inline-block}
.holds{color:var(--good);background:var(--good-box)}
.does{color:var(--bad);background:var(--bad-box)}
.open{color:var(--open);background:var(--open-box)}
.tiles{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0;padding:0;list-style:none}
.tiles li{background:var(--box);border:1px solid var(--rule);border-radius:6px;padding:.5rem .9rem;
min-width:7.5rem}
.tiles b{display:block;font-size:1.5rem;line-height:1.2}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:1rem 1.4rem;
margin:.8rem 0;align-items:start}
.charts figure{margin:0}
.charts figure>svg{max-width:100%;height:auto;display:block}
.maps{grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr))}
.box.plain{border:0;margin:0}
.map{font-size:.82rem}.map caption{padding:.2rem 0;color:var(--ink)}.map th,.map td{padding:.3rem .35rem;
text-align:center;border:1px solid var(--page)}
.map thead th,.map tbody th{background:none;position:static;font-weight:400;color:var(--soft);
white-space:nowrap}
.map thead th:first-child{width:1px}.map td{min-width:3rem;width:5rem;vertical-align:middle;
text-align:center}.map .g{display:block;margin:0 auto}.map .lost{border:1px dashed var(--soft)}
.map td small{line-height:1.1;color:var(--ink)}
.bar{display:inline-block;width:9rem;height:.8em;vertical-align:-.05em;border:1px solid var(--rule)}
.note{background:var(--box);border-left:4px solid var(--rule);padding:.5rem .8rem;margin:.6rem 0}
pre{background:var(--box);border:1px solid var(--rule);border-radius:6px;padding:.7rem .9rem;
overflow-x:auto;font-size:.88rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.6rem 0}
dt{color:var(--soft)}dd{margin:0}
summary{cursor:pointer;padding:.3rem 0;color:var(--link)}
ul.key{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.5rem 0;
font-size:.9rem}
.g{vertical-align:-.15em;margin-right:.3em}
footer{margin:3rem auto 2rem;font-size:.85rem;color:var(--soft)}
@media (max-width:520px){dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}h1{font-size:1.4rem}th,td{
padding:.3rem .5rem}tbody th{white-space:normal;min-width:6rem;max-width:8.5rem}}
@media print{:root{color-scheme:light;--ink:#000;--soft:#333;--page:#fff;--box:#f4f4f4;--rule:#bbb;
--link:#000;
--good:#0b4a1f;--good-box:#fff;--bad:#7a130c;--bad-box:#fff;--open:#4d3600;--open-box:#fff}
body{font-size:10pt}nav,.skip{display:none}.box,.box.tall{overflow:visible;max-height:none;border:0}
thead th{position:static}
figure,tr,.tiles li{break-inside:avoid}h2,h3{break-after:avoid}table{font-size:7pt}th,td{
padding:.1rem .25rem}.n,thead th.n{white-space:normal;min-width:0}.bar,.map td{print-color-adjust:exact;
-webkit-print-color-adjust:exact}.charts{grid-template-columns:1fr 1fr}}
"""
