//! The message `task-finished` for postcard.

#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct TaskFinished<'a> {
    pub(crate) key: &'a str,
    pub(crate) run_id: u64,
    pub(crate) nbytes: u64,
    pub(crate) pickled_type: &'a [u8],
    pub(crate) typename: &'a str,
    pub(crate) thread: u64,
    #[serde(borrow)]
    pub(crate) startstops: [StartStop<'a>; 1],
    pub(crate) op: &'a str,
    pub(crate) stimulus_id: &'a str,
    pub(crate) status: &'a str,
}

#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct StartStop<'a> {
    pub(crate) action: &'a str,
    pub(crate) start: f64,
    pub(crate) stop: f64,
}
