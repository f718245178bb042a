//! The files of the page, which are compiled into the program.

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asset {
    /// Its name below `/assets/`.
    pub(crate) name: &'static str,
    pub(crate) media_type: &'static str,
    pub(crate) content: &'static [u8],
}

/// Includes files of the folder `assets`, each with its media type.
macro_rules! assets {
    ($($name:literal: $media_type:expr,)*) => {
        &[$(Asset {
            name: $name,
            media_type: $media_type,
            content: include_bytes!(concat!("../assets/", $name)),
        }),*]
    };
}

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The document that all paths of the page answer with.
pub(crate) const INDEX: Asset = Asset {
    name: "index.html",
    media_type: "text/html; charset=utf-8",
    content: include_bytes!("../assets/index.html"),
};

/// All files below `/assets/`.
pub(crate) const ASSETS: &[Asset] = assets! {
    "charts.js": JS,
    "colours.js": JS,
    "dom.js": JS,
    "events.js": JS,
    "flame.js": JS,
    "format.js": JS,
    "graph.js": JS,
    "icon.svg": SVG,
    "layout.js": JS,
    "main.js": JS,
    "page.css": CSS,
    "parts.js": JS,
    "records.js": JS,
    "status.js": JS,
    "store.js": JS,
    "stream.js": JS,
    "strip.js": JS,
    "stuck.js": JS,
    "system.js": JS,
    "table.js": JS,
    "task.js": JS,
    "tasks.js": JS,
    "timeline.js": JS,
    "worker.js": JS,
    "workers.js": JS,
};

impl Asset {
    /// A tag of its content, by which a browser keeps it until it changes.
    pub(crate) fn tag(&self) -> String {
        format!("\"{:016x}\"", hash(self.content))
    }
}

/// The hash of FNV-1a, which tells versions of a file, or keys, from each other. Others can make two that
/// have the same one.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
