// The graph of tasks: groups and what they depend on, or single tasks.

import { keyed, link, make, panel, scrolled, setAttribute, setText, svg } from './dom.js';
import { STATES, bytes, count, name, plural, total } from './format.js';
import { bar, legend, stateBar } from './charts.js';
import { curve, layers } from './layout.js';
import { follow } from './stream.js';

const NODE = { width: 190, height: 44, across: 70, down: 14, most: 40 };
// Text must stay legible; what does not fit is scrolled.
const SMALLEST = 0.7;
const DOT = { size: 8, across: 40, down: 4, most: 48 };

/** A picture that can be moved with the pointer and made larger. */
function stage(label, largest) {
  const content = svg('g');
  const chart = svg('svg', { class: 'graph', role: 'group', 'aria-label': label }, content);
  const box = make('div', { class: 'graph-box', tabindex: '0', role: 'region', 'aria-label': label }, chart);
  let scale = 1;
  let size = [100, 100];
  let isFitted = true;
  function apply() {
    const [width, height] = size;
    if (isFitted) {
      scale = Math.min(largest, Math.max(SMALLEST, (box.clientWidth - 2) / width));
    }
    setAttribute(chart, 'viewBox', `0 0 ${width} ${height}`);
    chart.style.width = `${width * scale}px`;
    chart.style.height = `${height * scale}px`;
  }
  const zoom = (factor) => {
    isFitted = false;
    scale = Math.min(4, Math.max(0.05, scale * factor));
    apply();
  };
  let drag = null;
  box.addEventListener('pointerdown', (event) => {
    drag =
      event.pointerType === 'mouse' ? [event.clientX + box.scrollLeft, event.clientY + box.scrollTop] : null;
  });
  box.addEventListener('pointermove', (event) => {
    if (drag && event.buttons === 1) {
      box.scrollTo(drag[0] - event.clientX, drag[1] - event.clientY);
    }
  });
  box.addEventListener(
    'wheel',
    (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoom(Math.exp(-event.deltaY / 300));
      }
    },
    { passive: false },
  );
  const button = (text, title, action) =>
    make('button', { type: 'button', title, 'aria-label': title, onclick: action }, text);
  return {
    box,
    content,
    buttons: [
      button('−', 'Smaller', () => zoom(0.7)),
      button('+', 'Larger', () => zoom(1.4)),
      button('Fit', 'Show all', () => {
        isFitted = true;
        apply();
      }),
    ],
    resize(width, height) {
      size = [width, height];
      apply();
    },
  };
}

// Positions of the nodes of layers, centred, with the size of the whole. A layer with more than
// `most` nodes takes several columns, close together.
function positions(rows, { width, height, across, down, most }) {
  const tall = (layer) => Math.ceil(layer.length / Math.ceil(layer.length / most));
  const tallest = Math.max(1, ...rows.map(tall));
  const whole = tallest * (height + down) + down;
  const places = [];
  let x = down;
  for (const layer of rows) {
    const columns = Math.ceil(layer.length / most);
    const each = tall(layer);
    layer.forEach((node, index) => {
      const rest = Math.min(each, layer.length - Math.floor(index / each) * each);
      const y = (whole - rest * (height + down)) / 2 + (index % each) * (height + down) + down / 2;
      places[node] = [x + Math.floor(index / each) * (width + down), y];
    });
    x += columns * (width + down) - down + across;
  }
  return { places, size: [x - across + down, whole] };
}

// A box with a name and a bar of states, as a link.
function groupNode() {
  const label = svg('text', { x: 8, y: 17 });
  const detail = svg('text', { x: 8, y: 38, class: 'detail' });
  const parts = svg('g');
  return Object.assign(
    svg(
      'a',
      { class: 'node' },
      svg('title'),
      svg('rect', { class: 'frame', width: NODE.width, height: NODE.height, rx: 4 }),
      label,
      detail,
      parts,
    ),
    { label, detail, parts },
  );
}

export function open({ fail, taskHref, taskSearchHref }, parameters) {
  const group = parameters.get('group') ?? '';
  const isTasks = parameters.has('group') || parameters.get('show') === 'tasks';
  const said = make('span', { class: 'quiet' });
  const picture = stage(isTasks ? 'Graph of tasks' : 'Graph of groups', isTasks ? 1.5 : 1);
  const edges = svg('g', { class: 'edges' });
  const nodes = svg('g');
  picture.content.append(edges, nodes);
  const empty = make('p', { class: 'quiet' }, 'The scheduler has no tasks.');
  const body = make('tbody');
  const groupHref = (each) => `graph?${new URLSearchParams({ group: each })}`;
  let known = '';
  let places = [];

  // Places the nodes again if the graph has changed, which the same names and edges tell.
  function arrange(names, dependencies, size) {
    const shape = JSON.stringify([names, dependencies]);
    if (shape === known) {
      return;
    }
    known = shape;
    const placed = positions(layers(dependencies), size);
    ({ places } = placed);
    picture.resize(...placed.size);
    const all = dependencies.flatMap((list, node) =>
      list.filter((each) => places[each]).map((each) => [each, node]),
    );
    setAttribute(edges, 'class', all.length > 1000 ? 'edges dense' : 'edges');
    keyed(
      edges,
      all,
      ([from, to]) => `${from} ${to}`,
      () => svg('path'),
      (path, [from, to]) =>
        setAttribute(
          path,
          'd',
          curve(
            places[from][0] + size.width,
            places[from][1] + size.height / 2,
            places[to][0],
            places[to][1] + size.height / 2,
          ),
        ),
    );
  }

  function showGroups({ groups, total: all }) {
    empty.hidden = groups.length > 0;
    picture.box.hidden = groups.length === 0;
    setText(
      said,
      groups.length < all
        ? `${plural(all, 'group')}; the ${count(groups.length)} with most tasks are shown`
        : plural(all, 'group'),
    );
    arrange(
      groups.map((each) => each.name),
      groups.map((each) => each.dependencies),
      NODE,
    );
    keyed(
      nodes,
      groups.map((each, index) => ({ ...each, index })),
      (each) => each.name,
      groupNode,
      (node, each) => {
        setAttribute(
          node,
          'transform',
          `translate(${places[each.index].map((value) => value.toFixed(1)).join(' ')})`,
        );
        setAttribute(node, 'href', groupHref(each.name));
        setText(
          node.firstChild,
          `${name(each.name)}: ${STATES.filter((state) => each.states[state])
            .map((state) => `${count(each.states[state])} ${state}`)
            .join(', ')}`,
        );
        const text = name(each.name, 400);
        setText(node.label, text.length > 27 ? `${text.slice(0, 14)}…${text.slice(-12)}` : text);
        const sum = total(each.states);
        const done = (each.states.memory ?? 0) + (each.states.released ?? 0);
        setText(node.detail, `${count(done)} / ${count(sum)}`);
        showParts(node.parts, each.states, sum);
      },
    );
    keyed(
      body,
      groups,
      (each) => each.name,
      (each) =>
        make(
          'tr',
          {},
          make('th', { scope: 'row' }, link(groupHref(each.name), name(each.name))),
          make('td', { class: 'grow' }, bar()),
          ...[0, 1, 2].map(() => make('td', { class: 'number' })),
        ),
      (row, each) => {
        stateBar(row.cells[1].firstChild, each.states);
        setText(row.cells[2], count(total(each.states)));
        setText(row.cells[3], bytes(each.nbytes));
        setText(row.cells[4], count(each.dependencies.length));
      },
    );
  }

  function showParts(node, states, sum) {
    let x = 76;
    const width = NODE.width - 84;
    keyed(
      node,
      STATES.filter((state) => states[state] > 0),
      (state) => state,
      (state) => svg('rect', { class: `part ${state}`, y: 30, height: 8 }),
      (rect, state) => {
        const part = Math.max(1, (width * states[state]) / sum);
        setAttribute(rect, 'x', x.toFixed(1));
        setAttribute(rect, 'width', Math.max(0, Math.min(part, NODE.width - 8 - x)).toFixed(1));
        x += part;
      },
    );
  }

  function showTasks({ tasks, total: all }) {
    empty.hidden = tasks.length > 0;
    picture.box.hidden = tasks.length === 0;
    setText(
      said,
      tasks.length < all ? `${plural(all, 'task')}; ${count(tasks.length)} are shown` : plural(all, 'task'),
    );
    arrange(
      tasks.map((each) => each.key),
      tasks.map((each) => each.dependencies),
      { ...DOT, width: DOT.size, height: DOT.size },
    );
    keyed(
      nodes,
      tasks.map((each, index) => ({ ...each, index })),
      (each) => each.key,
      (each) =>
        svg(
          'a',
          { href: taskHref(each.key), tabindex: '-1' },
          svg('title'),
          svg('rect', { width: DOT.size, height: DOT.size }),
        ),
      (node, each) => {
        setAttribute(
          node,
          'transform',
          `translate(${places[each.index].map((value) => value.toFixed(1)).join(' ')})`,
        );
        setAttribute(node.lastChild, 'class', `part ${each.state}`);
        setText(node.firstChild, `${name(each.key)}: ${each.state}`);
      },
    );
    const states = {};
    for (const each of tasks) {
      states[each.state] = (states[each.state] ?? 0) + 1;
    }
    keyed(
      body,
      STATES.filter((state) => states[state]),
      (state) => state,
      (state) => make('tr', {}, make('th', { scope: 'row' }, state), make('td', { class: 'number' })),
      (row, state) => setText(row.cells[1], count(states[state])),
    );
  }

  const stop = isTasks
    ? follow('graph/tasks', { group }, showTasks, fail)
    : () => {};
  const columns = isTasks ? ['State', 'Tasks'] : ['Group', 'States', 'Tasks', 'Bytes', 'Depends on'];
  return {
    title: 'Graph',
    live: isTasks ? [] : ['graph'],
    node: make(
      'div',
      { class: 'page' },
      make(
        'div',
        { class: 'page-head' },
        make('h1', {}, group ? name(group) : 'Graph'),
        said,
        make(
          'div',
          { class: 'buttons' },
          make('a', { href: 'graph', 'aria-current': isTasks ? null : 'true' }, 'Groups'),
          make(
            'a',
            { href: 'graph?show=tasks', 'aria-current': isTasks && !group ? 'true' : null },
            'Single tasks',
          ),
          ...(group ? [link(taskSearchHref(group), 'List these tasks')] : []),
        ),
      ),
      panel(
        isTasks ? 'Tasks and what they depend on' : 'Groups and what they depend on',
        { extra: [make('div', { class: 'buttons' }, ...picture.buttons)] },
        legend(STATES.map((state) => [state, state])),
        empty,
        picture.box,
      ),
      panel(
        'As a table',
        {},
        scrolled(
          'Graph as a table',
          make(
            'table',
            { class: 'small' },
            make(
              'thead',
              {},
              make(
                'tr',
                {},
                ...columns.map((text, index) =>
                  make('th', { scope: 'col', class: index > (isTasks ? 0 : 1) ? 'number' : null }, text),
                ),
              ),
            ),
            body,
          ),
        ),
      ),
    ),
    update: isTasks ? {} : { graph: showGroups },
    stop,
  };
}
