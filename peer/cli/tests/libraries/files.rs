//! Files that the tasks of a worker write together.

use daskwire_testing::cluster::Cluster;

use crate::worker;

/// Dask stores arrays in HDF5 files under a `SerializableLock`. HDF5 refuses to open a file that
/// another process writes.
#[test]
fn tasks_write_to_one_hdf5_file() {
    let interpreter = daskwire_testing::python_with_libraries();
    for processes in [&[][..], &["--python-processes", "1"]] {
        let mut cluster = Cluster::with(&interpreter, 0);
        let options = [&["--nthreads", "4", "--no-nanny"], processes].concat();
        let worker = worker(&cluster, "rust", Some(&interpreter), &options);
        cluster.python(
            "import os, h5py, dask.array as da\n\
             class File:\n    \
             def __init__(self, path): self.path = path\n    \
             def __setitem__(self, place, block):\n        \
             with h5py.File(self.path, 'a') as file: file['x'][place] = block\n\
             path = f'/tmp/daskwire-{os.getpid()}.h5'\n\
             x = da.ones((80, 80), chunks=10, dtype='i8') + da.arange(80, chunks=10)",
        );
        let written = cluster.python(
            "with h5py.File(path, 'w') as file: file.create_dataset('x', x.shape, 'i8')\n\
             da.store(x, File(path), lock=True)\n\
             with h5py.File(path) as file: written = file['x'][:]\n\
             os.remove(path)\n\
             bool((written == x.compute()).all())",
        );
        assert_eq!(written, "True", "{processes:?}: {}", worker.log());
        cluster.check_logs();
    }
}
