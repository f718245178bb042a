// The scheduler itself: its log, its configuration, and versions that differ.

import { make, panel, scrolled, setText, tabs } from './dom.js';
import { count, dateTime, duration, name, plural } from './format.js';
import { facts, loaded, logLines, profile, short } from './parts.js';
import { get } from './stream.js';
import { table } from './table.js';

function versions({ packages, rows, different }) {
  const differs = new Set(different);
  const ordered = [...packages].sort((a, b) => Number(differs.has(b)) - Number(differs.has(a)));
  return make(
    'div',
    { class: 'page' },
    make(
      'p',
      {},
      different.length === 0
        ? 'All have the same versions.'
        : `These versions differ: ${different.map((each) => name(each, 60)).join(', ')}.`,
    ),
    scrolled(
      'Versions',
      make(
        'table',
        { class: 'small' },
        make(
          'thead',
          {},
          make(
            'tr',
            {},
            make('th', { scope: 'col' }, 'Who'),
            make('th', { scope: 'col' }, 'What'),
            ...ordered.map((each) =>
              make('th', { scope: 'col' }, `${name(each, 60)}${differs.has(each) ? ' (differs)' : ''}`),
            ),
          ),
        ),
        make(
          'tbody',
          {},
          ...rows.map((row) =>
            make(
              'tr',
              {},
              make('th', { scope: 'row' }, make('bdi', {}, name(row.who, 80))),
              make('td', {}, row.kind),
              ...ordered.map((each) =>
                make(
                  'td',
                  { class: differs.has(each) ? 'differs' : null },
                  name(row.versions[each] ?? '–', 60),
                ),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

export function open({ fail }) {
  const about = make('div');
  return {
    title: 'System',
    live: [],
    node: make(
      'div',
      { class: 'page' },
      make('div', { class: 'page-head' }, make('h1', {}, 'System')),
      panel('Scheduler', {}, about),
      tabs('Parts of the system', [
        {
          title: 'Log',
          open: (content) => loaded(content, async () => logLines((await get('logs')).lines), fail),
        },
        {
          title: 'Configuration',
          open: (content) =>
            loaded(
              content,
              async () => {
                const { settings } = await get('configuration');
                const grid = table(
                  'Settings',
                  [
                    { id: 'name', title: 'Setting', text: (row) => name(row.name) },
                    { id: 'value', title: 'Value', text: (row) => short(row.value) },
                    { id: 'source', title: 'From', text: (row) => name(row.source ?? '') },
                  ],
                  { keyOf: (row) => row.name },
                );
                grid.update(settings);
                return grid.node;
              },
              fail,
            ),
        },
        {
          title: 'Versions',
          open: (content) => loaded(content, async () => versions(await get('versions')), fail),
        },
        { title: 'Profile of all workers', open: (content) => profile(content, '', fail) },
      ]),
    ),
    update: {
      cluster(cluster) {
        const pairs = [
          ['Address', name(cluster.address)],
          ['Version', name(cluster.version)],
          ['Id', name(cluster.id)],
          ['Started', `${dateTime(cluster.started)}, ${duration(cluster.time - cluster.started)} ago`],
          ['Workers', `${count(cluster.workers)} with ${plural(cluster.threads, 'thread')}`],
          ['Clients', count(cluster.clients)],
        ];
        if (about.firstChild) {
          pairs.forEach(([, value], index) =>
            setText(about.firstChild.querySelectorAll('dd bdi')[index], value),
          );
        } else {
          about.append(facts(pairs));
        }
      },
    },
  };
}
