// Parts that several views use: facts, logs, and what is loaded when asked for.

import { make } from './dom.js';
import { flame } from './flame.js';
import { dateTime, lines, name, plural, workerName } from './format.js';
import { get } from './stream.js';

/** A list of names and values, such as of a worker's numbers. */
export function facts(pairs) {
  return make(
    'dl',
    { class: 'facts' },
    ...pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== '')
      .flatMap(([label, value]) => [
        make('dt', {}, label),
        make('dd', {}, value instanceof Node ? value : make('bdi', {}, String(value))),
      ]),
  );
}

/** Any value of JSON as short text. */
export function short(value) {
  return name(typeof value === 'string' ? value : JSON.stringify(value), 400);
}

/** Lines of a log. */
export function logLines(list, empty = 'Nothing was logged.') {
  if (list.length === 0) {
    return make('p', { class: 'quiet' }, empty);
  }
  return make(
    'ol',
    { class: 'log', tabindex: '0', 'aria-label': 'Lines of the log' },
    ...list.map((line) =>
      make(
        'li',
        { class: `level-${name(line.level ?? '').toLowerCase()}` },
        make(
          'span',
          { class: 'quiet' },
          [line.time ? dateTime(line.time) : '', name(line.level ?? '')].join(' '),
        ),
        ' ',
        make('bdi', {}, lines(line.text)),
      ),
    ),
  );
}

/** A button that loads what is below it, now and when it is pressed. */
export function loaded(content, load, fail) {
  const place = make('div');
  const button = make('button', { type: 'button', onclick: () => refresh() }, 'Refresh');
  async function refresh() {
    button.disabled = true;
    try {
      place.replaceChildren(await load());
    } catch (error) {
      place.replaceChildren(make('p', { class: 'quiet' }, error.message));
      if (error.status === 401) {
        fail(error);
      }
    }
    button.disabled = false;
  }
  content.append(make('div', { class: 'buttons' }, button), place);
  refresh();
}

const MOST_NAMED = 5;

// The names of some workers.
function named(workers) {
  const names = workers.slice(0, MOST_NAMED).map(workerName);
  const left = workers.length - names.length;
  return names.join(', ') + (left > 0 ? ` and ${plural(left, 'other')}` : '');
}

/** A flame graph of the samples of a worker, or of all of them, and a button that takes it again. */
export function profile(content, address, fail) {
  loaded(
    content,
    async () => {
      const [tree, { workers }] = await Promise.all([get('worker/profile', { address }), get('workers')]);
      const asked = workers.filter((worker) => !address || worker.address === address);
      const [sampled, others] = ['python', 'rust'].map((kind) => asked.filter((worker) => worker.kind === kind));
      const sentences = [
        sampled.length === 0 ? 'There is nothing to show.' : `This shows ${named(sampled)}.`,
        others.length === 0 ? '' : `Workers in Rust take no samples of what they run: ${named(others)}.`,
        sampled.length > 0 && tree.value === 0 ? 'No samples were taken.' : '',
      ];
      return make(
        'div',
        {},
        make('p', { class: 'quiet' }, make('bdi', {}, sentences.filter(Boolean).join(' '))),
        tree.value > 0 ? flame(tree) : null,
      );
    },
    fail,
  );
}
