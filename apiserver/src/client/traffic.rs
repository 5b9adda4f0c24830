//! Requests to the API server, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::{Method, Request, Response};

/// Counts by name; there is one client in a process.
type Counts<const N: usize> = [(&'static str, AtomicU64); N];

static REQUESTS: Counts<4> = [
    ("GET", AtomicU64::new(0)),
    ("POST", AtomicU64::new(0)),
    ("PATCH", AtomicU64::new(0)),
    ("other", AtomicU64::new(0)),
];

static RESPONSES: Counts<5> = [
    ("1xx", AtomicU64::new(0)),
    ("2xx", AtomicU64::new(0)),
    ("3xx", AtomicU64::new(0)),
    ("4xx", AtomicU64::new(0)),
    ("5xx", AtomicU64::new(0)),
];

/// Requests by method.
#[must_use]
pub fn requests() -> Vec<(&'static str, u64)> {
    read(&REQUESTS)
}

/// Answers by the class of their status code.
#[must_use]
pub fn responses() -> Vec<(&'static str, u64)> {
    read(&RESPONSES)
}

fn read<const N: usize>(counts: &Counts<N>) -> Vec<(&'static str, u64)> {
    let read = |(name, count): &(&'static str, AtomicU64)| (*name, count.load(Ordering::Relaxed));
    counts.iter().map(read).collect()
}

/// Counts a request as it passes.
pub(crate) fn request<B>(request: Request<B>) -> Request<B> {
    let index = match *request.method() {
        Method::GET => 0,
        Method::POST => 1,
        Method::PATCH => 2,
        _ => 3,
    };
    count(&REQUESTS, index);
    request
}

/// Counts an answer as it passes.
pub(crate) fn response<B>(response: Response<B>) -> Response<B> {
    count(
        &RESPONSES,
        usize::from(response.status().as_u16() / 100).saturating_sub(1),
    );
    response
}

fn count<const N: usize>(counts: &Counts<N>, index: usize) {
    if let Some((_, count)) = counts.get(index) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}
