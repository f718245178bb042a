// One task: its state, what it needs and who needs it, what happened to it, and its error.

import { link, make, panel, scrolled, setText, svg, tabs } from './dom.js';
import { bytes, clock, count, dateTime, lines, name } from './format.js';
import { curve } from './layout.js';
import { facts, loaded, short } from './parts.js';
import { follow, get } from './stream.js';

const BOX = { width: 200, height: 26, across: 60, down: 6 };
const MAX_SHOWN = 8;

/** Dependencies to the left, the task, dependents to the right. */
function neighbours(task, taskHref) {
  const sides = [
    task.dependencies.slice(0, MAX_SHOWN),
    [{ key: task.key, state: task.state }],
    task.dependents.slice(0, MAX_SHOWN),
  ];
  const step = BOX.height + BOX.down;
  const height = Math.max(1, ...sides.map((side) => side.length)) * step + BOX.down;
  const place = (side, row) => [
    side * (BOX.width + BOX.across) + 2,
    (height - sides[side].length * step) / 2 + row * step + BOX.down / 2,
  ];
  const middle = place(1, 0);
  const half = BOX.height / 2;
  const paths = [
    ...sides[0].map((each, row) => [
      place(0, row)[0] + BOX.width,
      place(0, row)[1] + half,
      middle[0],
      middle[1] + half,
    ]),
    ...sides[2].map((each, row) => [
      middle[0] + BOX.width,
      middle[1] + half,
      place(2, row)[0],
      place(2, row)[1] + half,
    ]),
  ];
  const boxes = sides.flatMap((side, column) =>
    side.map((each, row) => {
      const text = name(each.key, 400);
      const [x, y] = place(column, row);
      return svg(
        column === 1 ? 'g' : 'a',
        {
          class: `node ${column === 1 ? 'this' : ''}`,
          href: column === 1 ? null : taskHref(each.key),
          transform: `translate(${x} ${y})`,
        },
        svg('title', {}, `${name(each.key)}: ${each.state}`),
        svg('rect', { class: 'frame', width: BOX.width, height: BOX.height, rx: 4 }),
        svg('rect', { class: `part ${each.state}`, x: 6, y: 8, width: 10, height: 10 }),
        svg('text', { x: 22, y: 17 }, text.length > 26 ? `${text.slice(0, 13)}…${text.slice(-12)}` : text),
      );
    }),
  );
  const width = 3 * BOX.width + 2 * BOX.across + 4;
  const chart = svg(
    'svg',
    {
      class: 'graph',
      role: 'group',
      'aria-label': 'Dependencies, this task, dependents',
      viewBox: `0 0 ${width} ${height}`,
    },
    svg('g', { class: 'edges' }, ...paths.map((path) => svg('path', { d: curve(...path) }))),
    ...boxes,
  );
  chart.style.width = `${width}px`;
  chart.style.height = `${height}px`;
  return make(
    'div',
    { class: 'graph-box small', tabindex: '0', role: 'region', 'aria-label': 'Graph of the task' },
    chart,
  );
}

function keyList(label, list, all, taskHref) {
  return panel(
    `${label} (${count(all)})`,
    {},
    list.length === 0
      ? make('p', { class: 'quiet' }, 'None.')
      : make(
          'ul',
          { class: 'keys', tabindex: '0', 'aria-label': label },
          ...list.map((each) =>
            make(
              'li',
              {},
              make('span', { class: `state ${each.state}` }, each.state),
              ' ',
              link(taskHref(each.key), name(each.key)),
            ),
          ),
        ),
    all > list.length
      ? make('p', { class: 'quiet' }, `${count(all - list.length)} more are not listed.`)
      : null,
  );
}

function story(steps, workerHref) {
  if (steps.length === 0) {
    return make('p', { class: 'quiet' }, 'Nothing is recorded. Steps are forgotten after some time.');
  }
  return scrolled(
    'Story',
    make(
      'table',
      { class: 'small' },
      make(
        'thead',
        {},
        make(
          'tr',
          {},
          ...['Time', 'Where', 'From', 'To', 'Reason'].map((text) => make('th', { scope: 'col' }, text)),
        ),
      ),
      make(
        'tbody',
        {},
        ...steps.map((step) =>
          make(
            'tr',
            {},
            make('td', { class: 'number' }, clock(step.time, 3)),
            make('td', {}, step.worker ? link(workerHref(step.worker), name(step.worker, 60)) : 'scheduler'),
            ...[step.from, step.to].map((state) =>
              make('td', {}, state ? make('span', { class: `state ${state}` }, state) : ''),
            ),
            make('td', { class: 'name' }, make('bdi', {}, name(step.stimulus ?? '', 120))),
          ),
        ),
      ),
    ),
  );
}

function workerStories(stories, workerHref) {
  if (stories.length === 0) {
    return make('p', { class: 'quiet' }, 'No worker knows it.');
  }
  return make(
    'div',
    { class: 'page' },
    ...stories.map(({ worker, steps, error }) =>
      make(
        'section',
        {},
        make('h3', {}, link(workerHref(worker), name(worker, 60))),
        error
          ? make('p', { class: 'quiet' }, name(error, 1000))
          : make(
              'ol',
              { class: 'log', tabindex: '0', 'aria-label': `Steps on ${name(worker, 60)}` },
              ...steps.map((step) =>
                make(
                  'li',
                  {},
                  make('span', { class: 'quiet' }, step.time ? clock(step.time, 3) : ''),
                  ' ',
                  make('bdi', {}, name(step.text, 1000)),
                ),
              ),
            ),
      ),
    ),
  );
}

export function open({ act, fail, taskHref, taskSearchHref, workerHref }, parameters) {
  const key = parameters.get('key') ?? '';
  const title = make('bdi', {}, name(key, 1000));
  const state = make('span', { class: 'state' });
  const content = make('div', { class: 'page' });
  let newest = '';

  function show(task) {
    setText(title, name(task.name, 1000));
    setText(state, task.state);
    state.className = `state ${task.state}`;
    // The page is made anew only if something has changed, so that text can be selected.
    const text = JSON.stringify(task);
    if (text === newest) {
      return;
    }
    newest = text;
    const workers = (list) =>
      make(
        'span',
        {},
        ...list.flatMap((each, index) => [index ? ', ' : '', link(workerHref(each), name(each, 60))]),
      );
    const runsOn = (worker) =>
      make('span', {}, workers([worker]), ' (', link(workerHref(worker, 'Call stacks'), 'call stacks'), ')');
    const isSet = (value) => Object.values(value ?? {}).some((each) => each && each.length !== 0);
    content.replaceChildren(
      panel(
        'Now',
        {},
        facts([
          ['Prefix', link(taskSearchHref(task.prefix), name(task.prefix))],
          ['Group', link(`graph?${new URLSearchParams({ group: task.group })}`, name(task.group))],
          ['Runs on', task.processing_on ? runsOn(task.processing_on) : null],
          ['Result on', task.workers.length ? workers(task.workers) : null],
          ['Type', task.type && name(task.type)],
          ['Bytes', task.nbytes > 0 ? bytes(task.nbytes) : null],
          [
            'Wanted by',
            task.wanted_by.length ? task.wanted_by.map((each) => name(each, 80)).join(', ') : 'no client',
          ],
          ['Priority', task.priority?.length ? short(task.priority) : null],
          ['Restrictions', isSet(task.restrictions) ? short(task.restrictions) : null],
          ['Resources', isSet(task.resources) ? short(task.resources) : null],
          ['Annotations', isSet(task.annotations) ? short(task.annotations) : null],
          ['Retries left', task.retries || null],
          ['In this state since', task.since > 0 ? dateTime(task.since) : null],
          ['Workers that died with it', task.suspicious || null],
        ]),
      ),
      ...(task.exception || task.traceback
        ? [
            panel(
              'Error',
              { className: 'error' },
              task.cause && task.cause !== task.key
                ? make('p', {}, 'It failed because of ', link(taskHref(task.cause), name(task.cause)), '.')
                : null,
              task.exception
                ? make('p', { class: 'exception' }, make('bdi', {}, lines(task.exception)))
                : null,
              task.traceback
                ? make('pre', { tabindex: '0', 'aria-label': 'Traceback' }, lines(task.traceback))
                : null,
            ),
          ]
        : []),
      panel('What it needs, and who needs it', {}, neighbours(task, taskHref)),
      make(
        'div',
        { class: 'columns' },
        keyList('Dependencies', task.dependencies, task.dependencies_total, taskHref),
        keyList('Dependents', task.dependents, task.dependents_total, taskHref),
      ),
      panel(
        'What happened',
        {},
        tabs('Story', [
          { title: 'At the scheduler', open: (place) => place.append(story(task.story, workerHref)) },
          {
            title: 'On workers',
            open: (place) =>
              loaded(
                place,
                async () => workerStories((await get('task/story', { key })).worker_stories, workerHref),
                fail,
              ),
          },
        ]),
      ),
      ...(task.code
        ? [panel('Code', {}, make('pre', { tabindex: '0', 'aria-label': 'Code' }, lines(task.code)))]
        : []),
    );
  }

  const stop = follow('task', { key }, show, fail, (error) => {
    setText(state, error.status === 404 ? 'forgotten' : state.textContent);
    fail(error);
  });
  return {
    title: 'Task',
    live: [],
    node: make(
      'div',
      { class: 'page' },
      make(
        'div',
        { class: 'page-head' },
        make('h1', {}, title),
        state,
        make('a', { href: 'tasks' }, 'All tasks'),
        make(
          'button',
          {
            type: 'button',
            class: 'danger action',
            onclick: () =>
              act(
                'Cancel this task?',
                'Clients that wait for it get an error; so do tasks that depend on it.',
                'cancel',
                { keys: [key] },
              ),
          },
          'Cancel',
        ),
      ),
      content,
    ),
    update: {},
    stop,
  };
}
