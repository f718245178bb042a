// Places the nodes of a graph in layers from left to right.

const SWEEPS = 4;

/**
 * Layers for nodes `0..count` with `dependencies[node]`: a node stands to the right of all that it
 * depends on. Returns the layers, each a list of nodes from top to bottom. Edges of a cycle, which
 * no real graph has, are ignored.
 */
export function layers(dependencies) {
  const depth = depths(dependencies);
  const rows = [];
  depth.forEach((layer, node) => (rows[layer] ??= []).push(node));
  const dependents = dependencies.map(() => []);
  dependencies.forEach((list, node) => list.forEach((each) => dependents[each]?.push(node)));
  const place = new Float64Array(dependencies.length);
  const settle = (layer) =>
    layer.forEach((node, index) => {
      place[node] = index - layer.length / 2;
    });
  rows.forEach(settle);
  // Puts each node near the mean of its neighbours, which untangles most edges.
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isForward = sweep % 2 === 0;
    const neighbours = isForward ? dependencies : dependents;
    for (const layer of isForward ? rows : [...rows].reverse()) {
      const wish = new Map(
        layer.map((node) => {
          const list = neighbours[node];
          return [
            node,
            list.length === 0 ? place[node] : list.reduce((all, each) => all + place[each], 0) / list.length,
          ];
        }),
      );
      layer.sort((a, b) => wish.get(a) - wish.get(b));
      settle(layer);
    }
  }
  return rows;
}

// The longest way to each node from one without dependencies (Kahn's algorithm).
function depths(dependencies) {
  const depth = new Array(dependencies.length).fill(0);
  const open = dependencies.map((list) => list.length);
  const dependents = dependencies.map(() => []);
  dependencies.forEach((list, node) => list.forEach((each) => dependents[each]?.push(node)));
  const ready = [...open.keys()].filter((node) => open[node] === 0);
  for (let at = 0; at < ready.length; at += 1) {
    for (const node of dependents[ready[at]]) {
      depth[node] = Math.max(depth[node], depth[ready[at]] + 1);
      open[node] -= 1;
      if (open[node] === 0) {
        ready.push(node);
      }
    }
  }
  return depth;
}

/** A smooth line from a point to another to its right. */
export function curve(x1, y1, x2, y2) {
  const bend = Math.max(12, (x2 - x1) / 2);
  return `M${x1.toFixed(1)} ${y1.toFixed(1)}C${(x1 + bend).toFixed(1)} ${y1.toFixed(1)} ${(x2 - bend).toFixed(1)} ${y2.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
}
