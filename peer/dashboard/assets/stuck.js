// Why work does not go on, in sentences.

import { link, make, panel, setText } from './dom.js';
import { clock, count, name } from './format.js';
import { follow } from './stream.js';

export function open({ fail, taskHref, workerHref }) {
  const list = make('div', { class: 'page' });
  const said = make('span', { class: 'quiet' });
  let newest = '';

  function sentence({ kind, text, detail, keys, workers, count: all }) {
    const links = [
      ...keys.map((key) => link(taskHref(key), name(key))),
      ...workers.map((each) => link(workerHref(each), name(each, 60))),
    ];
    return panel(
      name(text, 1000),
      { className: `sentence kind-${name(kind)}` },
      ...detail.map((line) => make('p', {}, make('bdi', {}, name(line, 2000)))),
      links.length ? make('ul', { class: 'keys' }, ...links.map((each) => make('li', {}, each))) : null,
      all > links.length && links.length > 0 ? make('p', { class: 'quiet' }, `${count(all)} in all.`) : null,
    );
  }

  function show({ sentences }) {
    setText(said, `Looked at ${clock(Date.now() / 1000)}`);
    const text = JSON.stringify(sentences);
    if (text === newest) {
      return;
    }
    newest = text;
    list.replaceChildren(
      ...(sentences.length === 0
        ? [
            panel(
              'Nothing is stuck',
              {},
              make(
                'p',
                {},
                'No task waits for something that the cluster does not have, and all workers answer.',
              ),
            ),
          ]
        : sentences.map(sentence)),
    );
  }

  return {
    title: 'Why is it stuck',
    live: [],
    node: make(
      'div',
      { class: 'page' },
      make('div', { class: 'page-head' }, make('h1', {}, 'Why is it stuck?'), said),
      list,
    ),
    update: {},
    stop: follow('stuck', {}, show, fail),
  };
}
