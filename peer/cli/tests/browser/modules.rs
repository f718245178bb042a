//! Modules of the page that compute: levels of detail, the layers of graphs, names and colours.

use serde_json::json;

use crate::{browser, scheduler};

#[test]
fn levels_of_detail_lose_neither_time_nor_failures() {
    let scheduler = scheduler("0", "0", &[]);
    let browser = browser(&scheduler, 1100);
    browser.open("/system");
    let found = browser.run_async(
        "const { Records } = await import('/assets/records.js');
        const records = new Records();
        // 10,007 records: no level is complete. One of them has failed.
        const rows = Array.from({ length: 10007 }, (_, n) => [0, 0, n * 1e6, 5e5, n === 5003 ? 5 : 0, n % 2]);
        records.add({ from: 0, next: rows.length, lost: 3, base: 0, workers: ['w'], threads: [1], prefixes: ['a', 'b'], rows });
        const sums = [1, 10, 1000, 1e9].map((budget) => {
            let [busy, visits, failed] = [0, 0, 0];
            records.lanes[0].visit(-1, 20000, budget, (level, at) => {
                busy += level.busy[at];
                visits += 1;
                failed += Number(level.kind[at] === 5);
            });
            return [busy, visits <= 8 * (budget + 8), failed];
        });
        // A part of it, and a message that was missed.
        let part = 0;
        records.lanes[0].visit(100, 199.9, 1e9, () => { part += 1; });
        records.add({ from: 10010, next: 10011, lost: 0, base: 10010, workers: ['w'], threads: [1], prefixes: ['a'], rows: [[0, 0, 0, 1e6, 0, 0]] });
        return [sums, part, records.lost, records.totals.map((each) => [each.tasks, each.failed])];",
    );
    let sum = |failed| json!([5003.5, true, failed]);
    assert_eq!(
        found,
        json!([
            [sum(1), sum(1), sum(1), sum(1)],
            100,
            6,
            [[5005, 0], [5003, 1]]
        ])
    );
}

#[test]
fn graphs_have_layers_and_names_cannot_act() {
    let scheduler = scheduler("0", "0", &[]);
    let browser = browser(&scheduler, 1100);
    browser.open("/system");
    let found = browser.run_async(
        "const { layers } = await import('/assets/layout.js');
        const { name, lines, bytes, duration } = await import('/assets/format.js');
        const { prefixCss } = await import('/assets/colours.js');
        const graph = [[], [0], [0, 1], [], [2, 3], [9]];
        const rows = layers(graph);
        const depth = [];
        rows.forEach((row, at) => row.forEach((node) => { depth[node] = at; }));
        const isOrdered = graph.every((list, node) => list.every((each) => each === 9 || depth[each] < depth[node]));
        return [isOrdered, depth, name('a\\u202eb\\u001b[1m\\n'), lines('a\\n\\u0007'), bytes(1536), duration(0.0123),
            prefixCss('inc') === prefixCss('inc') && prefixCss('inc') !== prefixCss('dec')];",
    );
    assert_eq!(
        found,
        json!([
            true,
            [0, 1, 2, 0, 3, 0],
            "a\\u{202e}b\\u{1b}[1m\\u{a}",
            "a\n\\u{7}",
            "1.5 KiB",
            "12.3 ms",
            true
        ])
    );
}
