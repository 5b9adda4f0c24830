//! Which endpoints are gone, at a sweep.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use anyhow::Result;
use datapath_common::abi::{Addr, AddressEntry};

use super::sweep::Surroundings;
use super::tables::Tables;

/// What is known of an endpoint.
#[derive(Clone, Copy)]
enum Known {
    /// It is gone.
    Lost,
    /// It is there, and its address is the ENI's with this number; the datapath may not have been told yet.
    There(Option<u8>),
}

/// Which endpoints are gone, and whose the addresses of the others are. Each is looked up when its first flow
/// is met, and so after the flow was made: an endpoint that has come since is never taken for one that is gone.
pub(super) struct Pods<'a, T> {
    tables: &'a T,
    endpoints: Option<&'a BTreeSet<IpAddr>>,
    known: HashMap<(Addr, u32), Known>,
    error: Option<anyhow::Error>,
}

impl<'a, T: Tables> Pods<'a, T> {
    pub(super) fn new(tables: &'a T, around: &'a Surroundings) -> Self {
        Self {
            tables,
            endpoints: around.endpoints.as_deref(),
            known: HashMap::new(),
            error: None,
        }
    }

    /// Whether the endpoint is gone that had this address and this identity. The host's flows have
    /// none.
    pub(super) fn has_lost(&mut self, pod: Addr, endpoint: u32) -> bool {
        endpoint != 0 && matches!(self.known(pod, endpoint), Known::Lost)
    }

    /// The number of the ENI whose the address is of an endpoint that is there.
    pub(super) fn owner(&mut self, pod: Addr, endpoint: u32) -> Option<u8> {
        match self.known(pod, endpoint) {
            Known::Lost => None,
            Known::There(owner) => owner,
        }
    }

    fn known(&mut self, pod: Addr, endpoint: u32) -> Known {
        if let Some(known) = self.known.get(&(pod, endpoint)) {
            return *known;
        }
        let known = self.look(pod, endpoint).unwrap_or_else(|error| {
            self.error.get_or_insert(error);
            Known::There(None)
        });
        self.known.insert((pod, endpoint), known);
        known
    }

    fn look(&self, pod: Addr, endpoint: u32) -> Result<Known> {
        let entry = self.tables.address(pod)?;
        let is_known = |endpoints: &BTreeSet<IpAddr>| endpoints.contains(&pod.into());
        Ok(match entry.filter(AddressEntry::is_endpoint) {
            Some(entry) if entry.identity() == endpoint => Known::There(Some(entry.eni())),
            Some(_other) => Known::Lost,
            None if self.endpoints.is_none_or(is_known) => Known::There(None),
            None => Known::Lost,
        })
    }

    pub(super) fn finish(self) -> Result<()> {
        self.error.map_or(Ok(()), Err)
    }
}
