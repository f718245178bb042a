// One worker: what it does, its logs, its call stacks and its profile.

import { bar, legend, stack } from './charts.js';
import { keyed, link, make, panel, scrolled, setText, tabs } from './dom.js';
import { bytes, count, duration, lines, name, percent, rate, workerName } from './format.js';
import { facts, loaded, logLines, profile, short } from './parts.js';
import { follow, get } from './stream.js';

const MEMORY = [
  ['managed', 'results'],
  ['unmanaged', 'other'],
  ['spilled', 'on disk'],
];

export function open({ act, fail, taskHref }, parameters) {
  const address = parameters.get('address') ?? '';
  const title = make('h1', {}, name(address));
  const status = make('span', { class: 'mark' });
  const memory = bar();
  const numbers = make('div');
  const tables = Object.fromEntries(
    ['processing', 'in_memory'].map((id) => [
      id,
      { body: make('tbody'), more: make('p', { class: 'quiet' }) },
    ]),
  );
  let newest = null;
  let details = null;

  function tasks(content) {
    content.append(
      make(
        'div',
        { class: 'columns' },
        ...[
          ['processing', 'Processing'],
          ['in_memory', 'Results in memory'],
        ].map(([id, text]) =>
          panel(
            text,
            {},
            scrolled(
              text,
              make(
                'table',
                { class: 'small' },
                make(
                  'thead',
                  {},
                  make(
                    'tr',
                    {},
                    make('th', { scope: 'col' }, 'Key'),
                    make('th', { scope: 'col', class: 'number' }, 'Bytes'),
                  ),
                ),
                tables[id].body,
              ),
            ),
            tables[id].more,
          ),
        ),
      ),
    );
  }

  function showTasks(id, list, all) {
    keyed(
      tables[id].body,
      list,
      (task) => task.key,
      (task) =>
        make(
          'tr',
          {},
          make('th', { scope: 'row' }, link(taskHref(task.key), name(task.key))),
          make('td', { class: 'number' }),
        ),
      (row, task) => {
        setText(row.cells[1], task.nbytes === undefined ? '' : bytes(task.nbytes));
      },
    );
    setText(
      tables[id].more,
      all > list.length ? `${count(all - list.length)} more are not listed.` : all === 0 ? 'None.' : '',
    );
  }

  function show(document) {
    const { worker } = document;
    newest = document;
    setText(title, workerName(worker));
    setText(status, worker.status);
    status.className = `mark ${worker.status === 'running' ? '' : 'warn'}`;
    stack(
      memory,
      MEMORY.map(([kind, text]) => ({ kind, value: worker[kind], label: `${bytes(worker[kind])} ${text}` })),
      worker.limit || worker.managed + worker.unmanaged + worker.spilled,
    );
    numbers.replaceChildren(
      facts([
        ['Address', worker.address],
        ['Host', worker.host],
        ['Id', worker.id],
        ['Kind', worker.kind],
        ['Nanny', worker.nanny],
        ['Threads', count(worker.threads)],
        ['Processor', percent(worker.cpu)],
        ['Memory', `${bytes(worker.process_memory)} of ${worker.limit ? bytes(worker.limit) : 'no limit'}`],
        ['On disk', bytes(worker.spilled)],
        ['Receives', rate(worker.read)],
        ['Sends', rate(worker.write)],
        ['Last seen', `${duration(worker.last_seen)} ago`],
        ['Resources', Object.keys(worker.resources ?? {}).length ? short(worker.resources) : 'none'],
      ]),
    );
    showTasks(
      'processing',
      document.processing.map((task) => (typeof task === 'string' ? { key: task } : task)),
      document.processing_total,
    );
    showTasks('in_memory', document.in_memory, document.in_memory_total);
    details?.();
  }

  const parts = [
    { title: 'Tasks', open: tasks },
    {
      title: 'Logs',
      open: (content) =>
        loaded(content, async () => logLines((await get('worker/logs', { address })).lines), fail),
    },
    {
      title: 'Call stacks',
      open: (content) =>
        loaded(
          content,
          async () => {
            const { stacks } = await get('worker/call-stack', { address });
            return stacks.length === 0
              ? make('p', { class: 'quiet' }, 'No task runs now.')
              : make(
                  'div',
                  { class: 'page' },
                  ...stacks.map((each) =>
                    make(
                      'section',
                      {},
                      make('h3', {}, link(taskHref(each.key), name(each.key))),
                      make('pre', { tabindex: '0' }, lines(each.frames.join('\n'))),
                    ),
                  ),
                );
          },
          fail,
        ),
    },
    { title: 'Profile', open: (content) => profile(content, address, fail) },
    {
      title: 'Details',
      open: (content) => {
        const place = make('div', { class: 'page' });
        content.append(place);
        // Once, when the worker is known: what it shows seldom changes, and may be selected.
        details = () => {
          const { local_directory: directory, services, metrics } = newest.worker;
          place.replaceChildren(
            ...[
              ['Directory', { path: directory }],
              ['Services', services],
              ['Metrics', metrics],
            ]
              .filter(([, value]) => value && Object.keys(value).length)
              .map(([label, value]) =>
                panel(
                  label,
                  {},
                  facts(Object.entries(value).map(([key, each]) => [name(key, 80), short(each)])),
                ),
              ),
          );
          details = null;
        };
        if (newest) {
          details();
        }
      },
    },
  ];
  const views = tabs('Parts of the worker', parts, parameters.get('part') ?? '');

  const stop = follow('worker', { address }, show, fail, (error) => {
    if (error.status === 404) {
      setText(status, 'gone');
      status.className = 'mark warn';
      fail(new Error('This worker is not in the cluster any more.'));
    } else {
      fail(error);
    }
  });
  return {
    title: 'Worker',
    live: [],
    node: make(
      'div',
      { class: 'page' },
      make(
        'div',
        { class: 'page-head' },
        title,
        status,
        make('a', { href: 'workers' }, 'All workers'),
        make(
          'button',
          {
            type: 'button',
            class: 'danger action',
            onclick: () =>
              act('Retire this worker?', 'Its results move to other workers, and then it ends.', 'retire', {
                workers: [address],
              }),
          },
          'Retire',
        ),
      ),
      panel('Now', {}, legend([...MEMORY]), memory, numbers),
      views,
    ),
    update: {},
    stop,
  };
}
