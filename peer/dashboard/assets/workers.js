// All workers, in a table.

import { make, panel, setText } from './dom.js';
import { bytes, count, duration, name, percent, plural, rate, workerName } from './format.js';
import { table } from './table.js';

/** The columns of workers. */
function columns(workerHref) {
  const number = (id, title, format, share) => ({
    id,
    title,
    isNumber: true,
    text: (row) => format(row[id]),
    value: (row) => row[id] ?? -1,
    share,
  });
  return [
    { id: 'name', title: 'Name', text: workerName, href: (row) => workerHref(row.address) },
    {
      id: 'status',
      title: 'Status',
      text: (row) => name(row.status, 40),
      mark: (row) => `mark ${row.status === 'running' ? '' : 'warn'}`,
    },
    number('processing', 'Processing', count),
    number('long_running', 'Long-running', count),
    number('in_memory', 'Results', count),
    number('cpu', 'Processor', percent, (row) => row.cpu / (100 * Math.max(1, row.threads))),
    {
      id: 'memory',
      title: 'Memory',
      isNumber: true,
      text: (row) => bytes(row.process_memory),
      value: (row) => row.process_memory ?? -1,
      share: (row) => (row.limit ? row.process_memory / row.limit : 0),
    },
    number('limit', 'Limit', (value) => (value ? bytes(value) : 'none')),
    number('managed', 'Managed', bytes),
    number('spilled', 'On disk', bytes),
    number('read', 'Receives', rate),
    number('write', 'Sends', rate),
    number('threads', 'Threads', count),
    number('last_seen', 'Last seen', (value) =>
      value === null ? '–' : value < 2 ? 'now' : `${duration(value)} ago`,
    ),
    { id: 'kind', title: 'Kind', text: (row) => row.kind },
    { id: 'address', title: 'Address', text: (row) => name(row.address, 80) },
  ];
}

export function open({ act, remember, workerHref }, parameters) {
  const grid = table('Workers', columns(workerHref), {
    keyOf: (row) => row.address,
    filter: parameters.get('filter') ?? '',
    onFilter: (filter) => remember('workers', filter ? { filter } : {}),
    actions: (row) => [
      make(
        'button',
        {
          type: 'button',
          class: 'danger',
          onclick: () =>
            act(
              `Retire ${workerName(row)}?`,
              'Its results move to other workers, and then it ends. Its tasks run elsewhere.',
              'retire',
              { workers: [row.address] },
            ),
        },
        'Retire',
      ),
    ],
  });
  const summary = make('span', { class: 'quiet' });
  const restart = make(
    'button',
    {
      type: 'button',
      class: 'danger action',
      onclick: () =>
        act(
          'Restart the cluster?',
          'All workers that have a nanny start anew, and all tasks and results are lost.',
          'restart',
          {},
        ),
    },
    'Restart cluster',
  );
  return {
    title: 'Workers',
    live: ['workers'],
    node: make(
      'div',
      { class: 'page' },
      make('div', { class: 'page-head' }, make('h1', {}, 'Workers'), summary, restart),
      panel('All workers', { className: 'headless' }, grid.node),
    ),
    update: {
      workers({ workers, total }) {
        setText(
          summary,
          total > workers.length
            ? `${plural(total, 'worker')}; ${count(workers.length)} are listed`
            : plural(total, 'worker'),
        );
        grid.update(workers);
      },
    },
  };
}
