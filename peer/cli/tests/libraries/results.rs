//! Results of libraries: they must be those of Python workers, in clusters of Python workers,
//! of Rust workers, and of both.

use std::thread;

use daskwire_testing::cluster::Cluster;
use daskwire_testing::{LIBRARIES, Peer};

use crate::worker;

/// Clusters of equal size.
struct Clusters {
    python: Cluster,
    rust: Cluster,
    /// One Python worker, one worker with `--python`, and one without.
    mixed: Cluster,
    workers: Vec<Peer>,
}

impl Clusters {
    fn new() -> Self {
        let interpreter = daskwire_testing::python_with_libraries();
        let python = Cluster::with(&interpreter, 2);
        let rust = Cluster::with(&interpreter, 0);
        let mixed = Cluster::with(&interpreter, 1);
        let without_imports = ["--nthreads", "1", "--no-nanny"];
        let imports = LIBRARIES
            .iter()
            .flat_map(|module| ["--python-import", module]);
        let arguments: Vec<&str> = without_imports.into_iter().chain(imports).collect();
        let workers = vec![
            worker(&rust, "a", Some(&interpreter), &arguments),
            worker(&rust, "b", Some(&interpreter), &arguments),
            worker(&mixed, "c", Some(&interpreter), &without_imports),
            worker(&mixed, "without", None, &without_imports),
        ];
        Self {
            python,
            rust,
            mixed,
            workers,
        }
    }

    /// Runs programs that must succeed on all clusters at the same time, and compares their
    /// results.
    fn compare(&mut self, programs: &[&str]) {
        for program in programs {
            let (expected, rust, mixed) = thread::scope(|scope| {
                let [python, rust, mixed] = [&mut self.python, &mut self.rust, &mut self.mixed]
                    .map(|cluster| scope.spawn(|| cluster.try_python(program)));
                (python.join(), rust.join(), mixed.join())
            });
            let expected = expected.expect("an answer").expect(program);
            for (kind, result) in [("Rust", rust), ("mixed", mixed)] {
                let result = result.expect("an answer");
                let logs = || self.workers.iter().map(Peer::log).collect::<String>();
                assert_eq!(
                    result.as_deref(),
                    Ok(&*expected),
                    "{program}, {kind}\n{}",
                    logs()
                );
            }
        }
    }

    /// Asserts that the schedulers and workers have logged no warning.
    fn check_logs(&self) {
        for cluster in [&self.python, &self.rust, &self.mixed] {
            cluster.check_logs();
        }
        for worker in &self.workers {
            assert_eq!(worker.warnings(), Vec::<String>::new(), "{}", worker.log());
        }
    }
}

const ARRAYS: &[&str] = &[
    "import dask.array as da\nx = da.ones((200, 200), chunks=(50, 50))\n(x + x.T).sum().compute()",
    "(x @ x).mean().compute()",
    "x.rechunk((25, 200)).std(axis=0).compute().shape",
    "y = da.arange(40_000, chunks=5_000).reshape(200, 200)\n\
     y.rechunk((200, 20), method='tasks').sum(axis=0).compute()[:5].tolist()",
    "y.rechunk((200, 20), method='p2p').sum(axis=0).compute()[:5].tolist()",
    "da.random.default_rng(1).random((100, 100), chunks=50).sum().compute()",
    "np.linalg.norm(da.linalg.svd(da.ones((100, 5), chunks=(20, 5)))[1].compute()).round(6)",
    "q, r = da.linalg.qr(da.random.default_rng(2).random((200, 5), chunks=(50, 5)))\n\
     float(abs((q @ r).sum().compute().round(6)))",
    "da.arange(100, chunks=10).map_overlap(lambda b: b + 1, depth=1).sum().compute()",
    "y.map_overlap(lambda b: b - b.mean(), depth=2, boundary='reflect', dtype=float).std().compute().round(6)",
    "da.percentile(y.ravel(), [10, 50, 90]).compute().round(3).tolist()",
    "da.where(y % 3 == 0, y, 0).max(axis=1).compute()[-3:].tolist()",
    "da.fft.fft(y.rechunk((200, 50)), axis=0).real.sum().compute().round(3)",
    "da.unique(y % 7).compute().tolist(), da.histogram(y, bins=4, range=(0, 40_000))[0].compute().tolist()",
];

const BAGS_AND_DELAYED_CALLS: &[&str] = &[
    "import dask\n\
     dask.compute(dask.delayed(sum)([dask.delayed(operator.add)(1, 2), 4]), dask.delayed(dict)(a=1))",
    "@dask.delayed(nout=2)\ndef halves(items): return items[::2], items[1::2]\n\
     a, b = halves(list(range(9)))\n(a + b).compute(), dask.delayed(len)(b).compute()",
    "import dask.bag as db\ndb.range(100, npartitions=4).map(lambda i: i % 7).frequencies().compute()",
    "numbers = db.from_sequence(range(50), npartitions=5)\n\
     numbers.groupby(lambda i: i % 3).map(lambda g: (g[0], sorted(g[1]))).compute()",
    "numbers.foldby(lambda i: i % 2, operator.add, 0, operator.add, 0).compute()",
    "numbers.filter(lambda i: i % 5).topk(3).compute(), numbers.mean().compute()",
    "import collections, itertools\nbase = 3\n\
     client.gather(client.map(lambda n, *, by: n * by + base, range(20), by=2))",
    "def multiplier(by):\n    def multiply(n): return n * by\n    return multiply\n\
     client.gather(client.map(multiplier(3), range(50), batch_size=10))",
    "from distributed import as_completed\n\
     sorted(value for _, value in as_completed(client.map(lambda n: n ** 2, range(30)), with_results=True))",
];

const DATAFRAMES: &[&str] = &[
    "import dask\nimport dask.dataframe as dd\nimport pathlib, tempfile\n\
     data = pd.DataFrame({'a': np.arange(3000) % 7, 'b': np.arange(3000.0), \
     'c': [f'x{n % 5}' for n in range(3000)], 't': pd.date_range('2026', periods=3000, freq='h')})\n\
     other = pd.DataFrame({'a': np.arange(7), 'name': list('abcdefg')})\n\
     left = dd.from_pandas(data, npartitions=6)\nright = dd.from_pandas(other, npartitions=2)\n\
     left.groupby('c').b.mean().compute().sort_index().to_dict()",
    "left.groupby(['a', 'c']).agg({'b': ['min', 'max', 'count']}).compute().sort_index().to_csv()",
    "left.groupby('a').b.apply(lambda b: b.iloc[-1] - b.iloc[0], meta=('b', float))\
     .compute().sort_index().to_dict()",
    "left.merge(right, on='a', shuffle_method='tasks').groupby('name').b.sum().compute().sort_index().to_dict()",
    "left.merge(right, on='a', shuffle_method='p2p').groupby('name').b.sum().compute().sort_index().to_dict()",
    "left.shuffle('a', shuffle_method='tasks', npartitions=4).compute().sort_values('b').equals(data)",
    "left.shuffle('a', shuffle_method='p2p', npartitions=4).compute().sort_values('b').equals(\
     left.compute())",
    "left.set_index('b', shuffle_method='tasks', npartitions=4).a.loc[100:110].compute().to_dict()",
    "left.sort_values('c', npartitions=4).c.compute().value_counts().sort_index().to_dict()",
    "left.drop_duplicates('c').c.compute().sort_values().tolist(), left.c.nunique().compute()",
    "left.set_index('t').b.resample('30D').sum().compute().tolist()",
    "left.b.rolling(10).mean().compute().tail(3).tolist(), left.b.quantile([0.1, 0.9]).compute().shape",
    // Strings have a dtype of pyarrow.
    "str(left.c.dtype), left.c.str.upper().value_counts().compute().sort_index().to_dict()",
    "left.map_partitions(lambda part: part.assign(d=part.b * 2)).d.sum().compute()",
    "folder = tempfile.TemporaryDirectory()\n\
     left.to_parquet(folder.name)\n\
     sorted(path.name for path in pathlib.Path(folder.name).iterdir())",
    "back = dd.read_parquet(folder.name)\nback.compute().equals(left.compute()), back.npartitions",
    "dd.read_parquet(folder.name, columns=['b'], filters=[('a', '==', 3)]).b.sum().compute()",
    "left.to_parquet(folder.name, partition_on='c', overwrite=True)\n\
     dd.read_parquet(folder.name).groupby('c', observed=True).a.sum().compute().sort_index().to_dict()",
    "left.to_csv(folder.name + '/*.csv', index=False)\n\
     dd.read_csv(folder.name + '/*.csv').b.sum().compute()",
    "f = client.submit(lambda: data.groupby('c').b.sum())\nf.result().sort_index().to_dict()",
    "client.persist(left).a.max().compute(), len(left.partitions[2].compute())",
];

const XARRAY: &[&str] = &[
    "import tempfile\nimport xarray as xr\n\
     days = pd.date_range('2025', periods=400)\n\
     values = np.random.default_rng(3).random((400, 6, 8))\n\
     ds = xr.Dataset({'t': (('time', 'y', 'x'), values), 'mask': (('y', 'x'), values[0] > 0.5)}, \
     coords={'time': days, 'y': np.arange(6.0), 'x': np.arange(8.0)}).chunk({'time': 80, 'x': 4})\n\
     ds.t.mean().compute().item().__round__(9)",
    "ds.t.groupby('time.month').mean().compute().values.round(9).sum(axis=(1, 2)).round(6).tolist()",
    "ds.t.groupby('time.month').map(lambda days: days - days.mean('time')).std().compute().item().__round__(9)",
    "ds.t.resample(time='1ME').max().isel(x=0, y=0).compute().values.round(9).tolist()",
    "ds.t.rolling(time=7).mean().isel(time=-1).compute().values.round(9).sum().round(6)",
    "xr.apply_ufunc(lambda block: block ** 2, ds.t, dask='parallelized', output_dtypes=[float])\
     .sum('time').compute().values.round(6).sum().round(5)",
    "xr.map_blocks(lambda part: part * 2, ds.t).isel(time=3).compute().values.round(9).sum().round(6)",
    "ds.t.chunk({'time': -1, 'y': 2}).quantile([0.25, 0.75], 'time').compute().values.round(9).sum().round(6)",
    "ds.t.where(ds.mask).count('time').compute().values.tolist()",
    "ds.t.interp(x=[0.5, 3.5]).sum().compute().item().__round__(6)",
    "ds.t.polyfit('time', 1).polyfit_coefficients.compute().sizes['degree']",
    "ds.t.coarsen(time=100).std().compute().values.round(9).sum().round(6)",
    "kept = ds.persist()\nkept.load().identical(ds.compute())",
    "folder = tempfile.TemporaryDirectory()\npaths = []\n\
     for year, part in ds.compute().groupby('time.year'):\n    \
     paths.append(f'{folder.name}/{year}.nc')\n    part.to_netcdf(paths[-1], engine='scipy')\n\
     with xr.open_mfdataset(paths, engine='scipy', parallel=True, chunks={'time': 60}) as read:\n    \
     same = float(abs(read.t - ds.t).max().compute())\nsame",
];

const SCIKIT_LEARN: &[&str] = &[
    "import joblib\nfrom sklearn.datasets import make_classification\n\
     from sklearn.ensemble import RandomForestClassifier\n\
     from sklearn.linear_model import LogisticRegression\n\
     from sklearn.model_selection import GridSearchCV, cross_val_score\n\
     X, y = make_classification(600, 12, random_state=1)\n\
     with joblib.parallel_config(backend='dask'):\n    \
     doubled = joblib.Parallel()(joblib.delayed(operator.mul)(n, 2) for n in range(20))\n\
     doubled",
    "with joblib.parallel_config(backend='dask', scatter=[X, y]):\n    \
     forest = RandomForestClassifier(10, random_state=2).fit(X, y)\n\
     forest.score(X, y), forest.predict(X[:20]).tolist()",
    "with joblib.parallel_config(backend='dask'):\n    \
     scores = cross_val_score(LogisticRegression(), X, y, cv=3)\nscores.round(9).tolist()",
    "search = GridSearchCV(RandomForestClassifier(5, random_state=3), {'max_depth': [2, 4]}, cv=2)\n\
     with joblib.parallel_config(backend='dask'):\n    _ = search.fit(X, y)\n\
     search.best_params_, search.cv_results_['mean_test_score'].round(9).tolist()",
    // Nested parallel calls
    "def inner(n): return sum(joblib.Parallel()(joblib.delayed(operator.pow)(n, m) for m in range(3)))\n\
     with joblib.parallel_config(backend='dask'):\n    \
     nested = joblib.Parallel()(joblib.delayed(inner)(n) for n in range(4))\nnested",
];

/// Programs with peer-to-peer shuffles.
const SHUFFLES: &[&str] = &[
    "import dask\nimport dask.array as da\nimport dask.dataframe as dd\n\
     data = pd.DataFrame({'a': np.arange(3000) % 7, 'b': np.arange(3000.0), 'c': [f'x{n % 5}' for n in range(3000)]})\n\
     other = pd.DataFrame({'a': np.arange(7), 'name': list('abcdefg')})\n\
     left = dd.from_pandas(data, npartitions=6)\nright = dd.from_pandas(other, npartitions=2)\n\
     shuffled = left.shuffle('a', shuffle_method='p2p', npartitions=4).compute()\n\
     len(shuffled), (shuffled.sort_values('b').a.to_numpy() == data.a.to_numpy()).all()",
    "parts = dask.compute(*left.shuffle('a', shuffle_method='p2p').to_delayed())\n\
     sorted(int(n) for part in parts for n in part.a.unique())",
    "merged = left.merge(right, on='a', shuffle_method='p2p').compute()\n\
     len(merged), merged.groupby('name').b.sum().sort_index().to_dict()",
    "left.set_index('b', shuffle_method='p2p', npartitions=4).a.sum().compute()",
    "left.groupby('c').b.mean(split_out=3, shuffle_method='p2p').compute().sort_index().to_dict()",
    // Each of these has arrays of its own: Dask warns if a program uses tasks of an array that
    // the scheduler has not forgotten, because graphs are optimized differently.
    "def rows(start):\n    \
     x = da.arange(start, start + 40_000, chunks=2_000).reshape(200, 200)\n    \
     return x.rechunk((50, 200), method='p2p')\n\
     [block for block in rows(0).rechunk((200, 25), method='p2p').sum(axis=0).compute()[:3]]",
    "client.gather([client.compute(rows(1).rechunk((200, 20), method='p2p').sum()),\
     client.compute(left.shuffle('c', shuffle_method='p2p').b.sum())])",
    "bool((rows(2).rechunk((20, 100), method='p2p').compute() == \
     np.arange(2, 40_002).reshape(200, 200)).all())",
];

/// All libraries share the clusters, because starting clusters would take most of the time.
#[test]
fn libraries_have_the_results_of_workers_in_python() {
    let mut clusters = Clusters::new();
    for programs in [
        ARRAYS,
        BAGS_AND_DELAYED_CALLS,
        DATAFRAMES,
        SHUFFLES,
        XARRAY,
        SCIKIT_LEARN,
    ] {
        clusters.compare(programs);
    }
    clusters.check_logs();
}
