//! The message `task-finished` for minicbor, with numbers in place of keys.

#[derive(minicbor::Encode, minicbor::Decode)]
#[cbor(map)]
pub(crate) struct TaskFinished<'a> {
    #[n(0)]
    pub(crate) key: &'a str,
    #[n(1)]
    pub(crate) run_id: u64,
    #[n(2)]
    pub(crate) nbytes: u64,
    #[cbor(n(3), with = "minicbor::bytes")]
    pub(crate) pickled_type: &'a [u8],
    #[n(4)]
    pub(crate) typename: &'a str,
    #[n(5)]
    pub(crate) thread: u64,
    #[b(6)]
    pub(crate) startstops: [StartStop<'a>; 1],
    #[n(7)]
    pub(crate) op: &'a str,
    #[n(8)]
    pub(crate) stimulus_id: &'a str,
    #[n(9)]
    pub(crate) status: &'a str,
}

#[derive(minicbor::Encode, minicbor::Decode)]
#[cbor(map)]
pub(crate) struct StartStop<'a> {
    #[n(0)]
    pub(crate) action: &'a str,
    #[n(1)]
    pub(crate) start: f64,
    #[n(2)]
    pub(crate) stop: f64,
}
