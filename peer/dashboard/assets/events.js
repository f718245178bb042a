// Events that workers and clients have logged, by topic.

import { keyed, make, panel, setAttribute, setText } from './dom.js';
import { count, dateTime, name } from './format.js';
import { follow, get } from './stream.js';

export function open({ fail, remember }, parameters) {
  let topic = parameters.get('topic') ?? 'all';
  const topics = make('ul', { class: 'keys' });
  const title = make('p', { class: 'quiet' });
  const list = make('ol', { class: 'log', tabindex: '0', 'aria-label': 'Events' });
  const noTopics = make('p', { class: 'quiet' }, 'No events were logged.');

  // The server sends the newest first.
  function show(answer) {
    noTopics.hidden = answer.topics.length > 0;
    keyed(
      topics,
      answer.topics,
      (each) => each.name,
      (each) =>
        make(
          'li',
          {},
          make(
            'button',
            {
              type: 'button',
              onclick: () => {
                topic = each.name;
                remember('events', { topic });
                get('events', { topic }).then(show, fail);
              },
            },
            make('bdi', {}, name(each.name, 80)),
            ' ',
            make('span', { class: 'quiet' }),
          ),
        ),
      (item, each) => {
        setText(item.firstChild.lastChild, count(each.count));
        setAttribute(item.firstChild, 'aria-pressed', String(each.name === topic));
      },
    );
    setText(title, `The newest of ${name(topic)}, last first`);
    const seen = new Map();
    const events = answer.events.map((each) => {
      const key = `${each.time} ${each.text}`;
      seen.set(key, (seen.get(key) ?? 0) + 1);
      return { ...each, key: `${key} ${seen.get(key)}` };
    });
    keyed(
      list,
      events,
      (each) => each.key,
      (each) =>
        make(
          'li',
          {},
          make('span', { class: 'quiet' }, dateTime(each.time)),
          ' ',
          make('bdi', {}, name(each.text, 2000)),
        ),
    );
    list.hidden = events.length === 0;
  }

  return {
    title: 'Events',
    live: [],
    node: make(
      'div',
      { class: 'page' },
      make('div', { class: 'page-head' }, make('h1', {}, 'Events')),
      panel('Topics', {}, noTopics, topics),
      panel('Events', {}, title, list),
    ),
    update: {},
    stop: follow('events', () => ({ topic }), show, fail),
  };
}
