// The page: which view is shown, and what the live stream brings for it.

import { ask, keyed, make, setText } from './dom.js';
import { Records } from './records.js';
import { store } from './store.js';
import { Live, Refused, post, setToken, token } from './stream.js';
import * as events from './events.js';
import * as graph from './graph.js';
import * as status from './status.js';
import * as stuck from './stuck.js';
import * as system from './system.js';
import * as task from './task.js';
import * as tasks from './tasks.js';
import * as worker from './worker.js';
import * as workers from './workers.js';

// The views by the last part of the path; those with a title are in the navigation.
const VIEWS = {
  status: { title: 'Status', view: status },
  workers: { title: 'Workers', view: workers },
  worker: { of: 'workers', view: worker },
  tasks: { title: 'Tasks', view: tasks },
  task: { of: 'tasks', view: task },
  graph: { title: 'Graph', view: graph },
  stuck: { title: 'Why is it stuck?', view: stuck },
  events: { title: 'Events', view: events },
  system: { title: 'System', view: system },
};

const HISTORY = 240;
const THEMES = { '': 'system', light: 'light', dark: 'dark' };
const THEME = 'daskwire-theme';
const settings = store('localStorage');

const main = document.querySelector('#main');
const connection = document.querySelector('#connection');
const notice = document.querySelector('#notice');

// What has been seen lives longer than a view, so that a return to the view shows it at once.
let records = new Records();
const history = [];
const newest = {};
let shown = null;

const href = (path, parameters) => `${path}?${new URLSearchParams(parameters)}`;

/** What views use of the page. */
const context = {
  get records() {
    return records;
  },
  history,
  workerHref: (address, part) => href('worker', { address, ...(part ? { part } : {}) }),
  taskHref: (key) => href('task', { key }),
  taskSearchHref: (query) => href('tasks', { query }),
  /** Shows an error, or hides the last one. */
  fail(error) {
    setText(notice, error ? error.message : '');
    notice.hidden = !error;
    if (error instanceof Refused && error.status === 401) {
      needToken();
    }
  },
  /** Asks whether to do something that changes the cluster, and does it. */
  async act(question, text, action, body) {
    if (!(await ask(question, { text, accept: question.replace('?', ''), isDangerous: true }))) {
      return false;
    }
    try {
      await post(action, body);
      context.fail(null);
      return true;
    } catch (error) {
      context.fail(error);
      return false;
    }
  },
  /** Puts parameters into the address of the page, without a new entry in the browser's history. */
  remember(path, parameters) {
    window.history.replaceState(null, '', href(path, parameters));
  },
};

const live = new Live(
  (view, data) => {
    newest[view] = data;
    if (view === 'cluster') {
      recordCluster(data);
    } else if (view === 'stream') {
      records.add(data);
    }
    shown?.update[view]?.(data);
  },
  (state, text) => {
    connection.dataset.state = state;
    setText(connection, text);
    if (state === 'refused') {
      needToken();
    }
  },
);

function recordCluster(cluster) {
  const last = history.at(-1);
  if (last && last.id !== cluster.id) {
    // Another scheduler answers: what was seen of the one before does not belong to it.
    history.length = 0;
    records = new Records();
    live.rewind();
    for (const view of Object.keys(newest)) {
      delete newest[view];
    }
    show();
    live.restart();
    context.fail(new Error('The scheduler was restarted. What is shown is of the new one.'));
  }
  history.push(cluster);
  if (history.length > HISTORY) {
    history.shift();
  }
}

function show() {
  const path = location.pathname.split('/').at(-1);
  const { view } = VIEWS[path] ?? VIEWS.status;
  shown?.stop?.();
  notice.hidden = true;
  shown = view.open(context, new URLSearchParams(location.search));
  main.replaceChildren(shown.node);
  document.title = `${shown.title} - daskwire`;
  for (const each of document.querySelectorAll('#views a')) {
    if (each.getAttribute('href') === (VIEWS[path]?.of ?? path)) {
      each.setAttribute('aria-current', 'page');
    } else {
      each.removeAttribute('aria-current');
    }
  }
  for (const [name, data] of Object.entries(newest)) {
    shown.update[name]?.(data);
  }
  live.watch([...new Set(['cluster', ...shown.live])]);
}

// Links between views do not load the page again.
document.addEventListener('click', (event) => {
  const target = event.target.closest?.('a[href]');
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  const to = target && new URL(target.href?.baseVal ?? target.href, document.baseURI);
  if (
    !isPlain ||
    !to ||
    to.origin !== location.origin ||
    !VIEWS[to.pathname.split('/').at(-1)] ||
    (to.hash && to.pathname === location.pathname)
  ) {
    return;
  }
  event.preventDefault();
  window.history.pushState(null, '', to);
  show();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
addEventListener('popstate', show);

// --- The tools in the header ---

let isAsking = false;
// Whether the user has closed the dialog. It then opens by the button only, not by each refusal.
let isDismissed = false;

function needToken() {
  if (!isDismissed) {
    askToken();
  }
}

async function askToken() {
  if (isAsking) {
    return;
  }
  isAsking = true;
  const input = make('input', {
    name: 'token',
    type: 'password',
    autocomplete: 'off',
    'aria-label': 'Token',
  });
  const form = await ask('Token', {
    text:
      'With the token of --dashboard-token, this page can retire workers, cancel tasks and restart the cluster. ' +
      'It is kept until this tab is closed. Leave it empty to forget it.',
    fields: [input],
    accept: 'Use token',
  });
  isAsking = false;
  isDismissed = !form;
  if (form) {
    setToken(form.get('token').trim());
    showToken();
    live.restart();
    show();
  }
}

function showToken() {
  document.body.toggleAttribute('data-token', token() !== '');
  document.querySelector('#token').setAttribute('aria-label', token() ? 'Token: entered' : 'Token: none');
  setText(document.querySelector('#token'), token() ? 'Token ✓' : 'Token');
}

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  setText(document.querySelector('#theme'), `Theme: ${THEMES[theme]}`);
  shown?.redraw?.();
}

document.querySelector('#token').addEventListener('click', askToken);
document.querySelector('#theme').addEventListener('click', () => {
  const themes = Object.keys(THEMES);
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
  settings.set(THEME, next);
  showTheme(next);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => shown?.redraw?.());

const theme = settings.get(THEME);
showTheme(theme in THEMES ? theme : '');
showToken();
keyed(
  document.querySelector('#views'),
  Object.entries(VIEWS).filter(([, { title }]) => title),
  ([path]) => path,
  ([path, { title }]) => make('a', { href: path }, title),
);
show();
