// Samples of calls as a flame graph. The widths are shares of the samples.

import { make, setText, svg } from './dom.js';
import { count, name } from './format.js';
import { nameCss } from './colours.js';

const ROW = 20;
const MIN_WIDTH = 0.15;

/** A flame graph of `{ name, value, children }`; a frame that is chosen fills the width. */
export function flame(root) {
  const chart = svg('svg', { class: 'flame', role: 'group', 'aria-label': 'Flame graph' });
  const line = make('p', { class: 'quiet', role: 'status' });
  const path = make('div', { class: 'buttons' });
  const node = make('div', {}, path, make('div', { class: 'scrolled' }, chart), line);

  function show(frame, parents) {
    const rects = [];
    let depth = 0;
    // Not by recursion: a deep stack must not exhaust ours.
    const rest = [[frame, 0, 0]];
    while (rest.length > 0) {
      const [each, x, y] = rest.pop();
      const width = (100 * each.value) / Math.max(1, frame.value);
      if (width < MIN_WIDTH) {
        continue;
      }
      rects.push([each, x, y, width, y === 0 ? parents : [...parents, frame]]);
      depth = Math.max(depth, y + 1);
      let left = x;
      for (const child of each.children ?? []) {
        rest.push([child, left, y + 1]);
        left += (100 * child.value) / Math.max(1, frame.value);
      }
    }
    chart.replaceChildren(...rects.map(box));
    chart.style.height = `${depth * ROW}px`;
    path.replaceChildren(
      ...parents.map((parent, index) =>
        make(
          'button',
          {
            type: 'button',
            onclick: () => show(parent, parents.slice(0, index)),
          },
          `← ${name(parent.name, 40)}`,
        ),
      ),
    );
    say(frame);
  }

  function say(frame) {
    setText(
      line,
      `${name(frame.name)}: ${count(frame.value)} of ${count(root.value)} samples (${((100 * frame.value) / Math.max(1, root.value)).toFixed(1)} %)`,
    );
  }

  function box([frame, x, y, width, parents]) {
    const choose = () => show(frame, parents);
    const rect = svg('rect', { x: `${x}%`, y: y * ROW, width: `${width}%`, height: ROW - 1, rx: 2 });
    rect.style.fill = nameCss(frame.name);
    const parts = [svg('title', {}, `${name(frame.name)}: ${count(frame.value)}`), rect];
    if (width > 4) {
      const inner = svg('svg', { x: `${x}%`, y: y * ROW, width: `${width}%`, height: ROW });
      inner.append(svg('text', { x: 4, y: 14 }, name(frame.name, 120)));
      parts.push(inner);
    }
    return svg(
      'g',
      {
        tabindex: '0',
        role: 'button',
        'aria-label': `${name(frame.name)}: ${count(frame.value)} samples`,
        onclick: choose,
        onfocus: () => say(frame),
        onpointerenter: () => say(frame),
        onkeydown: (event) => {
          if (event.key === 'Enter' || event.key === ' ') {
            event.preventDefault();
            choose();
          }
        },
      },
      ...parts,
    );
  }

  show(root, []);
  return node;
}
