//! The examples at the end of each command's help.

pub(crate) const INSPECT: &str = "\
Examples:
  daskwire inspect stream.bin
  daskwire inspect --json --data stream.bin
  daskwire inspect traffic.pcap --op compute-task --from :8786";

pub(crate) const ENCODE: &str = "\
Examples:
  daskwire inspect --json --data stream.bin > stream.json
  daskwire encode stream.json --output same.bin
  daskwire encode --layout classic --prefix none stream.json -o old.bin";

pub(crate) const IDENTITY: &str = "\
Examples:
  daskwire identity tcp://127.0.0.1:8786
  daskwire identity --json tcp://127.0.0.1:8786
  daskwire identity tls://10.0.0.7:8786 --tls-ca-file ca.pem --tls-cert own.pem";

pub(crate) const RELAY: &str = "\
Examples:
  daskwire relay --listen tcp://127.0.0.1:9000 --connect tcp://10.0.0.7:8786
  daskwire relay --listen tcp://127.0.0.1:9000 --connect unix:///run/dask --json";

pub(crate) const SCHEDULER: &str = "\
Examples:
  daskwire scheduler --host 127.0.0.1
  daskwire scheduler --scheduler-file dask.json --idle-timeout 1h
  daskwire scheduler --protocol tls --tls-ca-file ca.pem --tls-cert own.pem
  daskwire scheduler --dashboard-address 127.0.0.1:9090";

pub(crate) const CLUSTER: &str = "\
Examples:
  daskwire cluster --workers 4 --python python3
  daskwire cluster --workers 2 --nthreads 1 --memory-limit 2GiB --port 0";

pub(crate) const WORKER: &str = "\
Examples:
  daskwire worker tcp://10.0.0.7:8786 --nthreads 4 --memory-limit 4GiB
  daskwire worker --scheduler-file dask.json --lifetime 1h --lifetime-restart
  daskwire worker tcp://10.0.0.7:8786 --nworkers auto --resources GPU=2,MEM=1e9
  daskwire worker tcp://10.0.0.7:8786 --json > events.jsonl
  daskwire worker --functions";

pub(crate) const JOURNEY: &str = "\
Examples:
  daskwire journey
  daskwire journey --json
  daskwire journey --bodies --scheduler tcp://127.0.0.1:8786";

pub(crate) const SCATTER: &str = "\
Examples:
  daskwire scatter tcp://127.0.0.1:8786 a.bin b.bin
  daskwire scatter tcp://127.0.0.1:8786 - --key input";

pub(crate) const SUBMIT: &str = r#"Examples:
  daskwire submit tcp://127.0.0.1:8786 operator.add 1 2
  daskwire submit tcp://127.0.0.1:8786 builtins.int ff --keyword base=16
  daskwire submit tcp://127.0.0.1:8786 builtins.len @input --json
  daskwire submit tcp://127.0.0.1:8786 numpy.ones '[3, 3]' --output ones.npy
  daskwire submit tcp://127.0.0.1:8786 os.getcwd --impure --workers alice"#;

pub(crate) const GATHER: &str = "\
Examples:
  daskwire gather tcp://127.0.0.1:8786 input --raw
  daskwire gather tcp://127.0.0.1:8786 ones-1f2e --output ones.npy
  daskwire gather tcp://127.0.0.1:8786 '[\"x\", 0, 1]' --json";

pub(crate) const RELEASE: &str = "\
Examples:
  daskwire release tcp://127.0.0.1:8786 input ones-1f2e";

pub(crate) const PICKLE: &str = "\
Listing a pickle is always safe. Loading it may not be.

Examples:
  daskwire pickle model.pkl
  daskwire pickle model.pkl --json
  daskwire pickle array.pkl --buffers data.bin";

pub(crate) const PS: &str = "\
Examples:
  daskwire ps tcp://127.0.0.1:8786
  daskwire ps tcp://127.0.0.1:8786 --json";

pub(crate) const LOGS: &str = "\
Examples:
  daskwire logs tcp://127.0.0.1:8786 -n 20
  daskwire logs tcp://127.0.0.1:8786 alice tcp://127.0.0.1:45297";

pub(crate) const STORY: &str = "\
Examples:
  daskwire story tcp://127.0.0.1:8786 add-9a5f05356ca2747ecc1447e119411aec
  daskwire story tcp://127.0.0.1:8786 '[\"x\", 0, 1]' --json";

pub(crate) const REPLAY: &str = "\
Examples:
  daskwire scheduler --record incident
  daskwire replay incident
  daskwire replay incident --until 12.5s --state
  daskwire replay incident --story '[\"x\", 0, 1]'";

pub(crate) const TOP: &str = "\
Keys: q quits, the arrows to the left and right choose the column to sort by,
r reverses the order, the other arrows and Page Up and Page Down scroll.

Examples:
  daskwire top tcp://127.0.0.1:8786
  daskwire top tcp://127.0.0.1:8786 --interval 0.5";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  daskwire completions bash > ~/daskwire.bash
  daskwire completions zsh > ~/.zfunc/_daskwire";

pub(crate) const MAN: &str = "\
Examples:
  daskwire man /usr/local/share/man/man1";
