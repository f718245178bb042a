// Small charts of HTML and SVG: bars, stacks, lines over time, and a matrix.

import { keyed, make, newId, setAttribute, setText, svg } from './dom.js';
import { STATES, byName, count, name, total } from './format.js';

/** A bar of parts; `parts` are `{ kind, value, label }`, and `whole` is the width of all of it. */
export function stack(node, parts, whole) {
  keyed(
    node,
    parts.filter((part) => part.value > 0),
    (part) => part.kind,
    (part) => make('i', { class: `part ${part.kind}` }),
    (element, part) => {
      const width = `${Math.min(100, (100 * part.value) / Math.max(whole, 1e-12)).toFixed(2)}%`;
      if (element.style.width !== width) {
        element.style.width = width;
      }
    },
  );
  setAttribute(
    node,
    'aria-label',
    parts
      .filter((part) => part.value > 0)
      .map((part) => part.label)
      .join(', ') || 'none',
  );
}

/** An empty bar for `stack`. */
export function bar() {
  return make('div', { class: 'bar', role: 'img' });
}

// The states of tasks as parts of a bar.
function stateParts(states) {
  return STATES.map((kind) => ({
    kind,
    value: states[kind] ?? 0,
    label: `${count(states[kind] ?? 0)} ${kind}`,
  }));
}

/** Draws the states of tasks in proportion to their sum. */
export function stateBar(node, states) {
  stack(node, stateParts(states), total(states));
}

/** A list that says what the parts of bars mean; `kinds` are pairs of a class and a text. */
export function legend(kinds) {
  return make(
    'ul',
    { class: 'legend' },
    ...kinds.map(([kind, text]) => make('li', {}, make('i', { class: `part ${kind}` }), text)),
  );
}

const MAX_BARS = 24;

/**
 * Bars for the largest of many items, and a line for those left out. `row(item)` gives `{ key,
 * label, href, parts, text, limit }`; `whole` is the value of a full bar.
 */
export function bars(node, items, row, whole) {
  const rows = items.map(row);
  rows.sort((a, b) => (rows.length > MAX_BARS ? sum(b.parts) - sum(a.parts) : byName(a.label, b.label)));
  const others = rows.splice(MAX_BARS);
  keyed(
    node,
    rows,
    (each) => each.key,
    (each) => {
      const label = each.href ? make('a', { href: each.href }) : make('span');
      label.append(make('bdi'));
      const limit = make('b', { class: 'limit' });
      const item = make(
        'li',
        {},
        label,
        make('div', { class: 'bar-box' }, bar(), limit),
        make('span', { class: 'number' }),
      );
      return item;
    },
    (item, each) => {
      const [label, box, number] = item.children;
      setText(label.firstChild, each.label);
      stack(box.firstChild, each.parts, whole);
      box.lastChild.hidden = !each.limit || each.limit > whole * 1.001;
      if (each.limit) {
        box.lastChild.style.insetInlineStart = `${Math.min(99.5, (100 * each.limit) / whole).toFixed(1)}%`;
      }
      setText(number, each.text);
    },
  );
  return others;
}

/** The sum of the parts of a bar. */
export function sum(parts) {
  return parts.reduce((all, part) => all + part.value, 0);
}

// A line of values over time, for the eye only: the number stands beside it.
function spark() {
  const path = svg('polyline', { fill: 'none', 'vector-effect': 'non-scaling-stroke' });
  const node = svg(
    'svg',
    { class: 'spark', viewBox: '0 0 100 24', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    path,
  );
  return {
    node,
    update(values, most = Math.max(...values, 1e-9)) {
      const step = 100 / Math.max(1, values.length - 1);
      path.setAttribute(
        'points',
        values
          .map(
            (value, index) =>
              `${(index * step).toFixed(1)},${(23 - (22 * Math.min(value, most)) / most).toFixed(1)}`,
          )
          .join(' '),
      );
    },
  };
}

/** A figure with a label, a number, a line of its history and a small text. */
export function tile(label) {
  const number = make('strong');
  const detail = make('span', { class: 'quiet' });
  const line = spark();
  return {
    node: make(
      'div',
      { class: 'tile' },
      make('span', { class: 'tile-label' }, label),
      number,
      line.node,
      detail,
    ),
    update(text, small, values, most) {
      setText(number, text);
      setText(detail, small);
      if (values.length > 1) {
        line.update(values, most);
      }
    },
  };
}

/** A matrix of rates between workers: darker is more. Its table has the largest. */
export function matrix(format) {
  const grid = svg('svg', { class: 'matrix', role: 'img' });
  const title = svg('title', { id: newId() });
  const cells = svg('g');
  grid.append(title, cells);
  const table = make('tbody');
  const node = make(
    'div',
    { class: 'matrix-box' },
    grid,
    make(
      'table',
      { class: 'small fixed' },
      make(
        'thead',
        {},
        make(
          'tr',
          {},
          ...['From', 'To', 'Rate'].map((text) =>
            make('th', { scope: 'col', class: text === 'Rate' ? 'number' : null }, text),
          ),
        ),
      ),
      table,
    ),
  );
  return {
    node,
    update(names, rows) {
      const size = Math.max(1, names.length);
      setAttribute(grid, 'viewBox', `-0.5 -0.5 ${size + 1} ${size + 1}`);
      setText(title, `Rates between ${count(names.length)} workers; rows send, columns receive`);
      const most = Math.max(...rows.map((row) => row[2]), 1);
      keyed(
        cells,
        rows,
        (row) => `${row[0]} ${row[1]}`,
        (row) => svg('rect', { x: row[1] + 0.05, y: row[0] + 0.05, width: 0.9, height: 0.9, rx: 0.08 }),
        (cell, row) => {
          setAttribute(cell, 'fill-opacity', (0.1 + 0.9 * Math.sqrt(row[2] / most)).toFixed(2));
        },
      );
      const largest = [...rows].sort((a, b) => b[2] - a[2]).slice(0, 5);
      keyed(
        table,
        largest,
        (row) => `${row[0]} ${row[1]}`,
        () =>
          make(
            'tr',
            {},
            make('td', {}, make('bdi')),
            make('td', {}, make('bdi')),
            make('td', { class: 'number' }),
          ),
        (line, row) => {
          setText(line.cells[0].firstChild, name(names[row[0]], 40));
          setText(line.cells[1].firstChild, name(names[row[1]], 40));
          setText(line.cells[2], format(row[2]));
        },
      );
    },
  };
}
