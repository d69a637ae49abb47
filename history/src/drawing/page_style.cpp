#include "drawing/html.h"

namespace fulgur::history {

// The colours of the series differ in lightness as well as in hue, and have contrast on both backgrounds.
const char* const kPageStyle = R"(
:root{--ground:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--card:#f6f8fa;
--c0:#0969da;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#7d6300;--c6:#0b7c8a;--c7:#57606a}
@media(prefers-color-scheme:dark){:root{--ground:#0d1117;--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--card:#161b22;
--c0:#58a6ff;--c1:#f0883e;--c2:#3fb950;--c3:#bc8cff;--c4:#f778ba;--c5:#d29922;--c6:#39c5cf;--c7:#9198a1}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1400px;padding:16px;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5em;margin:.2em 0}h2{font-size:1.2em;margin:1.6em 0 .5em;border-bottom:1px solid var(--line)}
.note{color:var(--soft);font-size:.9em}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:12px}
figure{margin:0;padding:8px;background:var(--card);border:1px solid var(--line);border-radius:6px;min-width:0;position:relative}
figcaption{font-weight:600;overflow-wrap:anywhere}
figure img{max-width:100%;image-rendering:pixelated}
svg.chart{display:block;width:100%;height:auto;touch-action:pan-y}
svg text{fill:var(--soft);font:12px system-ui,sans-serif}
.axis{stroke:var(--line);stroke-width:1;fill:none}
.mean{fill:none;stroke-width:1.6;stroke-linejoin:round}
.band{stroke:none;opacity:.22}
.legend{display:flex;flex-wrap:wrap;gap:2px 12px;font-size:.85em;margin:0;padding:0;list-style:none}
.legend li{overflow-wrap:anywhere}.legend svg{width:22px;height:8px;margin-right:4px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9em}th,td{text-align:left;padding:3px 10px 3px 0;border-bottom:1px solid var(--line);
vertical-align:top}td.number{font-variant-numeric:tabular-nums}td.wide{overflow-wrap:anywhere;min-width:6em}
pre{overflow-x:auto;background:var(--card);padding:8px}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}
.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}
.f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}
.finished{color:var(--c2)}.failed{color:var(--c4)}.running{color:var(--c6)}.interrupted{color:var(--c1)}
input[name=axis]{margin:0 4px 0 0;width:18px;height:18px;vertical-align:-3px}label{margin-right:16px;padding:8px 0;display:inline-block}
main .by-epoch,main .by-time{display:none}
#x-epoch:checked~main .by-epoch,#x-time:checked~main .by-time{display:block}
#x-epoch:checked~main .by-step,#x-time:checked~main .by-step{display:none}
.tip{position:absolute;pointer-events:none;background:var(--ground);border:1px solid var(--line);border-radius:4px;padding:2px 6px;
font-size:.8em;max-width:90%;white-space:pre-line;z-index:1}
details summary{cursor:pointer;padding:4px 0}
)";

// Values are computed from the paths and the ranges of the axes, so the page does not contain them twice.
const char* const kPageScript = R"(
for(const svg of document.querySelectorAll('svg.chart')){
 const d=svg.dataset,x0=+d.x0,x1=+d.x1,y0=+d.y0,y1=+d.y1,box=d.box.split(' ').map(Number);
 const lines=[...svg.querySelectorAll('.mean')].map(p=>({name:p.dataset.name,
  points:p.getAttribute('d').split(/[ML]/).filter(s=>s).map(s=>s.split(' ').map(Number))}));
 let tip=null;
 const text=v=>Math.abs(v)>=1e6||(v&&Math.abs(v)<1e-3)?v.toExponential(3):String(+v.toPrecision(5));
 const hide=()=>{if(tip){tip.remove();tip=null}};
 const show=e=>{
  const r=svg.getBoundingClientRect(),x=(e.clientX-r.left)*400/r.width;
  const found=lines.map(l=>{let best=null;for(const p of l.points)if(!best||Math.abs(p[0]-x)<Math.abs(best[0]-x))best=p;return[l,best]})
   .filter(f=>f[1]);
  if(!found.length)return hide();
  if(!tip){tip=document.createElement('div');tip.className='tip';svg.parentNode.append(tip)}
  const at=found.reduce((a,b)=>Math.abs(b[1][0]-x)<Math.abs(a[1][0]-x)?b:a)[1][0];
  const out=[d.unit+' '+text(x0+(at-box[0])/(box[2]-box[0])*(x1-x0))];
  for(const[l,p]of found){let v=y1-(p[1]-box[1])/(box[3]-box[1])*(y1-y0);if(d.log)v=10**v;out.push(l.name+': '+text(v))}
  tip.textContent=out.join('\n');
  const host=svg.parentNode.getBoundingClientRect(),left=e.clientX-host.left;
  tip.style.top=(r.top-host.top+8)+'px';
  tip.style.left=left>host.width/2?'8px':'auto';tip.style.right=left>host.width/2?'auto':'8px'};
 svg.addEventListener('pointermove',show);svg.addEventListener('pointerdown',show);svg.addEventListener('pointerleave',hide)}
)";

}  // namespace fulgur::history
