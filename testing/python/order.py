"""Prints graphs with their order by Dask, for the tests of the scheduler's order.

Usage: PYTHON testing/python/order.py vectors > peer/scheduler/state/src/tests/order.txt
       PYTHON testing/python/order.py random COUNT SEED

Each line has, separated by tabs, the name of the graph, its tasks, Dask's order, and the highest and
the summed number of results in memory if the tasks run in the order of an unchanged Dask, one at a
time. Tasks are separated by `;`, and their dependencies by spaces; those of values begin with `=`, and
those of keys outside of the graph with `-`. Tasks are named by their number of six digits. Keys outside
of the graph are not in the order.

Dask's order depends on the iteration of sets, which is random. Here its sets of tasks are iterated in
their order; the pressure is that with Dask's own sets.
"""

import operator
import random
import sys
from collections import defaultdict

import dask.order
from dask._task_spec import DataNode, Task, TaskRef, convert_legacy_graph
from dask.core import reverse_dict


class Sorted(frozenset):
    """A set that is iterated in order."""

    def __iter__(self):
        return iter(sorted(super().__iter__()))

    def difference(self, other):
        return Sorted(super().difference(other))

    __sub__ = difference


class SortedSet(set):
    """A set that is iterated in order, and can be changed."""

    def __iter__(self):
        return iter(sorted(super().__iter__()))

    def pop(self):
        first = min(super().__iter__())
        self.remove(first)
        return first


def graph_of(tasks, is_sorted):
    """Returns the tasks as Dask has them."""
    graph = {}
    for number, (kind, used) in enumerate(tasks):
        key = f"{number:06}"
        if kind == "=":
            graph[key] = DataNode(key, 1)
        elif kind != "-":
            graph[key] = Task(key, operator.add, *(TaskRef(f"{index:06}") for index in used))
            if is_sorted:
                graph[key]._dependencies = Sorted(graph[key].dependencies)
    return graph


def order_sorted(tasks):
    """Returns Dask's order with sets that are iterated in order."""

    def reversed_sorted(dependencies):
        return {key: SortedSet(users) for key, users in reverse_dict(dependencies).items()}

    def default_sorted(kind):
        return defaultdict(SortedSet if kind is set else kind)

    module = dask.order
    kept = module.reverse_dict, module.defaultdict
    module.reverse_dict, module.defaultdict = reversed_sorted, default_sorted
    try:
        return module.order(graph_of(tasks, True))
    finally:
        module.reverse_dict, module.defaultdict = kept


def line(name, tasks):
    """Returns the line of a graph."""
    places = order_sorted(tasks)
    plain = graph_of(tasks, False)
    for number, (kind, _) in enumerate(tasks):
        if kind == "-":
            plain[f"{number:06}"] = DataNode(f"{number:06}", 1)
    _, pressure = dask.order.diagnostics(plain)
    texts = (kind + " ".join(map(str, sorted(set(used)))) for kind, used in tasks)
    order = " ".join(str(int(key)) for key in sorted(places, key=places.__getitem__))
    return "\t".join([name, ";".join(texts), order, str(max(pressure)), str(sum(pressure))])


class Maker:
    """Tasks of a graph that is being made."""

    def __init__(self):
        self.tasks = []

    def add(self, *used, kind=""):
        self.tasks.append((kind, list(used)))
        return len(self.tasks) - 1

    def roots(self, count):
        return [self.add() for _ in range(count)]

    def reduce(self, layer, width):
        """Reduces a layer in a tree."""
        while len(layer) > 1:
            parts = (layer[first : first + width] for first in range(0, len(layer), width))
            layer = [self.add(*part) for part in parts]
        return layer[0]

    def shuffled(self, chance):
        """Returns the tasks in another order."""
        places = list(range(len(self.tasks)))
        chance.shuffle(places)
        shuffled = [None] * len(places)
        for place, (kind, used) in zip(places, self.tasks):
            shuffled[place] = kind, [places[index] for index in used]
        return shuffled


def chains(maker, chance):
    for _ in range(chance.randint(1, 6)):
        last = maker.add()
        for _ in range(chance.randint(1, 8)):
            last = maker.add(last)


def reductions(maker, chance):
    for _ in range(chance.randint(1, 4)):
        layer = maker.roots(chance.randint(2, 20))
        if chance.random() < 0.5:
            layer = [maker.add(task) for task in layer]
        maker.reduce(layer, chance.randint(2, 5))


def broadcasts(maker, chance):
    """Tasks of an array that all need its sum."""
    layer = maker.roots(chance.randint(2, 12))
    total = maker.reduce(layer, chance.randint(2, 4))
    layer = [maker.add(task, total) for task in layer]
    if chance.random() < 0.5:
        maker.reduce(layer, 3)


def stencils(maker, chance):
    width = chance.randint(2, 9)
    layer = maker.roots(width)
    for _ in range(chance.randint(1, 5)):
        layer = [
            maker.add(*(layer[near] for near in range(max(0, i - 1), min(width, i + 2))))
            for i in range(width)
        ]


def overlaps(maker, chance):
    """`map_overlap`: slices of neighbours."""
    width = chance.randint(2, 9)
    layer = maker.roots(width)
    parts = []
    for i in range(width):
        near = [maker.add(layer[j]) for j in (i - 1, i + 1) if 0 <= j < width]
        parts.append(maker.add(layer[i], *near))
    layer = [maker.add(maker.add(part)) for part in parts]
    if chance.random() < 0.5:
        maker.reduce(layer, 4)


def shuffles(maker, chance):
    """All to all, in one step or in several."""
    width = chance.randint(2, 4)
    layer = maker.roots(width**2)
    for step in range(chance.randint(1, 2)):
        splits = [maker.add(task) for task in layer] if chance.random() < 0.7 else layer
        parts = {}
        for i, split in enumerate(splits):
            for digit in range(width):
                parts[i, digit] = maker.add(split)
        size = width**step
        layer = []
        for i in range(len(splits)):
            digit = i // size % width
            base = i - digit * size
            layer.append(maker.add(*(parts[base + other * size, digit] for other in range(width))))
    if chance.random() < 0.5:
        for task in list(layer):
            maker.add(task)


def climatology(maker, chance):
    """Differences from the mean of each month, as with `groupby` of xarray."""
    months = chance.randint(2, 4)
    for _ in range(chance.randint(1, 3)):
        layer = maker.roots(months * chance.randint(1, 4))
        layer = [maker.add(task) for task in layer]
        means = [maker.reduce([maker.add(t) for t in layer[m::months]], 3) for m in range(months)]
        differences = [maker.add(task, means[i % months]) for i, task in enumerate(layer)]
        if chance.random() < 0.7:
            maker.reduce([maker.add(task) for task in differences], 4)


def products(maker, chance):
    """Matrices."""
    size = chance.randint(2, 4)
    one, other = ([maker.roots(size) for _ in range(size)] for _ in range(2))
    for i in range(size):
        for j in range(size):
            parts = [maker.add(one[i][k], other[k][j]) for k in range(size)]
            maker.reduce(parts, 4)


def transposed(maker, chance):
    size = chance.randint(2, 5)
    rows = [maker.roots(size) for _ in range(size)]
    pairs = [maker.add(*{rows[i][j], rows[j][i]}) for i in range(size) for j in range(size)]
    if chance.random() < 0.5:
        maker.reduce(pairs, 4)


def cumulative(maker, chance):
    last = maker.add()
    for _ in range(chance.randint(2, 15)):
        root = maker.add()
        last = maker.add(root, last)
        if chance.random() < 0.8:
            maker.add(root, last)


def diamonds(maker, chance):
    """So many ways through the graph that their number needs more than 64 bits."""
    last = maker.add()
    for _ in range(chance.randint(3, 80)):
        last = maker.add(*[maker.add(last) for _ in range(chance.randint(2, 3))])


def values(maker, chance):
    """Values and keys outside of the graph that tasks share."""
    shared = [maker.add(kind=chance.choice("=-")) for _ in range(chance.randint(1, 4))]
    layer = []
    for _ in range(chance.randint(2, 15)):
        used = chance.sample(shared, chance.randint(1, len(shared)))
        layer.append(maker.add(*used, *([maker.add()] if chance.random() < 0.5 else [])))
    used = {index for _, indices in maker.tasks for index in indices}
    for task in shared:
        if task not in used:
            layer.append(maker.add(task))
    if chance.random() < 0.5:
        maker.reduce(layer, 3)
    else:
        # Whether Dask begins with the quickest target may depend on the iteration of a set if some
        # tasks are not connected to others.
        for task in layer:
            maker.add(task)


def anything(maker, chance):
    """Layers of tasks that depend on some of those before."""
    maker.roots(chance.randint(1, 8))
    used = set()
    for _ in range(chance.randint(2, 60)):
        recent = min(len(maker.tasks), chance.choice((3, 8, 100)))
        count = min(recent, chance.choice((1, 1, 1, 2, 2, 3, 5)))
        first = len(maker.tasks) - recent
        inputs = [first + index for index in chance.sample(range(recent), count)]
        used.update(inputs)
        maker.add(*inputs)
    for index, (_, inputs) in enumerate(list(maker.tasks)):
        if index not in used and not inputs:
            maker.add(index)


KINDS = (
    chains,
    reductions,
    broadcasts,
    stencils,
    overlaps,
    shuffles,
    climatology,
    products,
    transposed,
    cumulative,
    diamonds,
    values,
    anything,
    anything,
    anything,
)


def random_lines(count, seed):
    chance = random.Random(seed)
    for number in range(count):
        make = KINDS[number % len(KINDS)]
        maker = Maker()
        make(maker, chance)
        if chance.random() < 0.1:
            chance.choice(KINDS)(maker, chance)
        tasks = maker.shuffled(chance) if chance.random() < 0.5 else maker.tasks
        yield line(make.__name__, tasks)


def collections():
    """Names and graphs of collections."""
    import dask.array as da
    import dask.bag as db

    x = da.ones((60, 60), chunks=(10, 15))
    yield "array-mean", x.mean()
    yield "array-anomaly", (x - x.mean(axis=0)).std(axis=1)
    yield "array-transposed", (x + x.T).sum(axis=0)
    yield "array-product", x[:30] @ x.T[:, :30]
    yield "array-rechunk", x[:30, :40].rechunk((30, 5)).rechunk((5, 40)) + 1
    yield "array-overlap", x.map_overlap(lambda block: block, depth=1, boundary="none")
    yield "array-cumulative", x.cumsum(axis=0)[::2]
    yield "array-svd", da.linalg.svd(da.ones((60, 4), chunks=(10, 4)))[0]
    yield "bag-count", db.range(100, npartitions=12).map(str).filter(len).frequencies()
    yield "bag-groupby", db.range(60, npartitions=6).groupby(lambda n: n % 3, shuffle="tasks")


def of_collection(collection):
    """Returns the tasks of a collection, numbered in the order of their keys."""
    (collection,) = dask.optimize(collection)
    graph = convert_legacy_graph(dict(collection.__dask_graph__()))
    numbers = {key: number for number, key in enumerate(sorted(graph, key=str))}
    tasks = [None] * len(numbers)
    for key, number in numbers.items():
        kind = "=" if isinstance(graph[key], DataNode) else ""
        tasks[number] = kind, [numbers[used] for used in graph[key].dependencies if used != key]
    return tasks


def main(mode, *numbers):
    if mode == "random":
        lines = random_lines(*map(int, numbers))
    else:
        lines = [line(name, of_collection(collection)) for name, collection in collections()]
        lines += random_lines(90, 1)
    sys.stdout.writelines(text + "\n" for text in lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
