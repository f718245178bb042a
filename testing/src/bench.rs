//! Helpers of the benchmarks that compare Rust with a real Dask.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process that is killed when dropped, at the latest when the benchmark ends.
pub struct Process(pub Child);

impl Process {
    /// Starts a process without input, and discards its output.
    pub fn start(command: &mut Command) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}")))
    }

    /// The process id as a string, which is the name of the process in `/proc`.
    pub fn id(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command `dask` with an interpreter that has `distributed`.
pub fn dask(python: &Path, arguments: &[&str]) -> Process {
    let mut command = Command::new(python);
    command.args(["-m", "dask"]).args(arguments);
    Process::start(command.arg("--no-dashboard"))
}

/// Starts a Python scheduler, and returns its address.
pub fn scheduler(python: &Path) -> (Process, String) {
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        free.local_addr().expect("an address").port().to_string()
    };
    let scheduler = ["scheduler", "--host", "127.0.0.1", "--port", &port];
    (dask(python, &scheduler), format!("tcp://127.0.0.1:{port}"))
}

/// The processor time of a process in seconds; `self` stands for this process.
pub fn processor_time(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("Linux");
    // Fields 14 and 15. The second field is the name, which may contain spaces.
    let rest = stat.rsplit_once(')').expect("a name").1;
    let ticks = |index| {
        let field = rest.split_whitespace().nth(index).expect("a field");
        field.parse::<f64>().expect("a number")
    };
    // On every supported Linux, a tick is a hundredth of a second.
    (ticks(11) + ticks(12)) / 100.0
}

/// The resident memory of a process in bytes; `self` stands for this process.
pub fn memory(process: &str) -> f64 {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).expect("Linux");
    let pages = statm.split_whitespace().nth(1).expect("a field");
    pages.parse::<f64>().expect("a number") * 4096.0
}

/// Returns the median, the minimum and the maximum.
pub fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (
        values[values.len() / 2],
        values[0],
        values[values.len() - 1],
    )
}

/// Prints a row with the median, the minimum and the maximum of some ratios.
pub fn show_ratios(what: &str, ratios: Vec<f64>) {
    let (middle, least, most) = median(ratios);
    println!("  {what:<64} {middle:6.2} ({least:.2} to {most:.2})");
}

/// Prints the heading of the table whose rows [`show`] prints.
pub fn heading(what: &str) {
    println!(
        "{what:<64} {:>9} {:>9}      {:>7}",
        "Rust", "Python", "ratio"
    );
}

/// Prints a row: the medians of Rust and Python, and the ratios of the pairs.
pub fn show(what: &str, unit: &str, scale: f64, pairs: &[(f64, f64)]) {
    let ratios = pairs.iter().map(|(rust, python)| rust / python).collect();
    let (ratio, min, max) = median(ratios);
    let rust = median(pairs.iter().map(|pair| pair.0).collect()).0 * scale;
    let python = median(pairs.iter().map(|pair| pair.1).collect()).0 * scale;
    println!("{what:<64} {rust:>9.2} {python:>9.2} {unit:<4} {ratio:>7.3} ({min:.3} to {max:.3})");
}
