//! Compression of the data that requests and replies carry.

use daskwire_comm::runtime;
use daskwire_messages::protocol::Request;
use daskwire_messages::{Key, Serialized};

use crate::channel::Channel;

/// Data up to this many bytes is compressed in the task that sends it, more of it on another
/// thread.
const MAX_INLINE_LEN: u64 = 1 << 20;

impl Channel {
    /// Compresses data to send over this comm, if the handshake agreed on a codec that this
    /// build can write.
    ///
    /// Only data is compressed: what `get_data` returns, and what `scatter` and `update_data`
    /// send. Payloads elsewhere are small, or are graphs, which a scheduler of Dask reads
    /// without decompressing them.
    pub async fn compress(&self, data: Vec<(Key, Serialized)>) -> Vec<(Key, Serialized)> {
        let Some(codec) = self.codec else {
            return data;
        };
        let len: u64 = data.iter().map(|(_, datum)| datum.compressible_len()).sum();
        if len == 0 {
            return data;
        }
        let plain = data.clone();
        let all = move || {
            let Some(mut compression) = codec.compressor() else {
                return plain;
            };
            let compressed = plain.into_iter().map(|(key, datum)| {
                let datum = datum.compressed(&mut *compression);
                (key, datum)
            });
            compressed.collect()
        };
        match len > MAX_INLINE_LEN {
            false => all(),
            // Fails if the executor is shutting down.
            true => runtime::spawn_blocking(all).await.unwrap_or(data),
        }
    }

    /// The request with its data compressed; `None` if there is nothing to compress.
    pub(crate) async fn compress_request(&self, request: &Request) -> Option<Request> {
        self.codec?;
        match request {
            Request::Scatter(request) => {
                let mut request = request.clone();
                request.data = Box::pin(self.compress(request.data)).await;
                Some(Request::Scatter(request))
            }
            Request::UpdateData(request) => {
                let mut request = request.clone();
                request.data = match request.data {
                    Some(data) => Some(Box::pin(self.compress(data)).await),
                    None => None,
                };
                Some(Request::UpdateData(request))
            }
            _ => None,
        }
    }
}
