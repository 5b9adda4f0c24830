//! Endpoints that are gone, at a sweep.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use anyhow::Result;
use datapath_common::abi::{Addr, AddressEntry};

use crate::sweep::SweepInput;
use crate::tables::Tables;

/// State of an endpoint.
#[derive(Clone, Copy)]
enum Known {
    /// It is gone.
    Lost,
    /// It is there, and its address belongs to the ENI with this number; the datapath may not have
    /// its entry yet.
    There(Option<u8>),
}

/// Endpoints that are gone, and the owner ENIs of the others' addresses. Each is looked up when its
/// first flow is met, and so after the flow was made. A new endpoint is therefore never treated as
/// gone.
pub(super) struct Pods<'a, T> {
    tables: &'a T,
    endpoints: Option<&'a BTreeSet<IpAddr>>,
    known: HashMap<(Addr, u32), Known>,
    error: Option<anyhow::Error>,
}

impl<'a, T: Tables> Pods<'a, T> {
    pub(crate) fn new(tables: &'a T, around: &'a SweepInput) -> Self {
        Self {
            tables,
            endpoints: around.endpoints.as_deref(),
            known: HashMap::new(),
            error: None,
        }
    }

    /// True if the endpoint with this address and this identity is gone. The host's flows have no
    /// identity.
    pub(super) fn has_lost(&mut self, pod: Addr, endpoint: u32) -> bool {
        endpoint != 0 && matches!(self.known(pod, endpoint), Known::Lost)
    }

    /// Number of the ENI that owns the address of an endpoint that is there.
    pub(crate) fn owner(&mut self, pod: Addr, endpoint: u32) -> Option<u8> {
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
