// Tasks, found by a part of their key and by state.

import { keyed, link, make, panel, scrolled, setText } from './dom.js';
import { STATES, bytes, count, name } from './format.js';
import { get } from './stream.js';

export function open({ act, fail, remember, taskHref, workerHref }, parameters) {
  const query = make('input', {
    type: 'search',
    name: 'query',
    placeholder: 'Part of a key, such as a prefix',
    value: parameters.get('query') ?? '',
    'aria-label': 'Part of a key',
  });
  const state = make(
    'select',
    { name: 'state', 'aria-label': 'State' },
    make('option', { value: '' }, 'any state'),
    ...STATES.map((each) =>
      make('option', { value: each, selected: parameters.get('state') === each }, each),
    ),
  );
  const said = make('p', { class: 'quiet', role: 'status' });
  const body = make('tbody');
  const more = make('button', { type: 'button', onclick: () => load(true) }, 'More');
  const cancel = make(
    'button',
    {
      type: 'button',
      class: 'danger action',
      onclick: async () => {
        const keys = tasks.map((task) => task.key);
        if (
          await act(
            `Cancel ${count(keys.length)} tasks?`,
            'Clients that wait for them get an error; so do tasks that depend on them.',
            'cancel',
            { keys },
          )
        ) {
          load(false);
        }
      },
    },
    'Cancel these',
  );
  let tasks = [];
  let next = null;
  let searched = 0;
  let turn = 0;

  async function load(isMore) {
    turn += 1;
    const mine = turn;
    more.disabled = true;
    setText(said, 'Searching');
    try {
      let found = 0;
      let from = isMore ? next : null;
      if (!isMore) {
        tasks = [];
        searched = 0;
      }
      // A request looks at a bounded number of tasks, so few matches may need several.
      do {
        const page = await get('tasks', { query: query.value.trim(), state: state.value, from });
        if (mine !== turn) {
          return;
        }
        tasks = [...tasks, ...page.tasks];
        found += page.tasks.length;
        searched += page.searched;
        from = page.next;
        setText(said, `Searching: ${count(searched)} looked at`);
      } while (from !== null && found < 100);
      next = from;
      fail(null);
    } catch (error) {
      fail(error);
    }
    show();
  }

  function show() {
    keyed(
      body,
      tasks,
      (task) => task.key,
      (task) =>
        make(
          'tr',
          {},
          make('th', { scope: 'row', title: name(task.key) }, link(taskHref(task.key), name(task.key))),
          make('td', {}, make('span')),
          make('td', { class: 'name' }),
          make('td', { class: 'number' }),
        ),
      (row, task) => {
        const mark = row.cells[1].firstChild;
        setText(mark, task.state);
        mark.className = `state ${task.state}`;
        row.cells[2].replaceChildren(
          ...(task.worker ? [link(workerHref(task.worker), name(task.worker, 60))] : []),
        );
        setText(row.cells[3], task.nbytes > 0 ? bytes(task.nbytes) : '');
      },
    );
    setText(
      said,
      `${count(tasks.length)} found${next === null ? '' : ' so far'}; ${count(searched)} tasks looked at.`,
    );
    more.disabled = false;
    more.hidden = next === null;
    cancel.disabled = tasks.length === 0;
  }

  const form = make(
    'form',
    { class: 'buttons', role: 'search' },
    query,
    state,
    make('button', { class: 'primary' }, 'Search'),
    cancel,
  );
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    remember(
      'tasks',
      Object.fromEntries(
        [
          ['query', query.value.trim()],
          ['state', state.value],
        ].filter(([, value]) => value),
      ),
    );
    load(false);
  });
  state.addEventListener('change', () => form.requestSubmit());
  load(false);
  return {
    title: 'Tasks',
    live: [],
    node: make(
      'div',
      { class: 'page' },
      make('div', { class: 'page-head' }, make('h1', {}, 'Tasks'), form),
      panel(
        'Found',
        { className: 'headless' },
        said,
        scrolled(
          'Tasks',
          make(
            'table',
            { class: 'rows' },
            make(
              'thead',
              {},
              make(
                'tr',
                {},
                ...['Key', 'State', 'Worker', 'Bytes'].map((text, index) =>
                  make('th', { scope: 'col', class: index === 3 ? 'number' : null }, text),
                ),
              ),
            ),
            body,
          ),
        ),
        make('div', { class: 'buttons' }, more),
      ),
    ),
    update: {},
  };
}
