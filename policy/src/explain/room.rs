//! Room for a flow that a packet would open: of the table, of the pod, and of the ports towards its
//! destination.

use std::fmt;

use anyhow::Result;
use datapath_common::abi::{PodTuple, SharedTable};
use datapath_common::headers::protocol;
use datapath_common::outcome::DropReason;
use ipam::Family;

use super::flows::Sender;
use super::{Live, Packet};

/// Room for a new flow.
pub(super) struct Room {
    /// Flows in the family's table.
    used: u64,
    /// As many as it can have.
    capacity: u32,
    /// Flows of the pod.
    pod: u32,
    /// Its quota.
    quota: u32,
    /// Flows that it may have beyond it.
    lent: u32,
    /// The ports towards the destination, if the packet's are known.
    ports: Option<Ports>,
}

/// The ports towards a destination.
struct Ports {
    /// True if the flow would need another port than the pod's, and may have none.
    is_stuck: bool,
    /// True if no port is free that the flow may have.
    is_exhausted: bool,
    /// Ports that flows have.
    used: u64,
    /// Ports that there are.
    all: u32,
    /// True if there is no room to note a port other than the first candidate.
    is_index_full: bool,
}

impl Live<'_> {
    /// Room for the flow that a packet would open.
    pub(super) fn room(
        &self,
        packet: &Packet,
        sender: Sender,
        tuple: Option<&PodTuple>,
    ) -> Result<Room> {
        let family = Family::of(packet.source);
        let candidate = tuple.map(|tuple| self.candidate(tuple).to_be());
        let reserve = self.settings.ports.current().reserve();
        let (mut used, mut towards, mut is_taken) = (0, 0, false);
        let (mut reserved, mut own) = (0, 0);
        self.tables.flows(family, &mut |key, flow| {
            used += 1;
            let is_there = tuple.is_some_and(|tuple| {
                key.eni == sender.policy
                    && key.protocol == tuple.protocol
                    && key.remote == tuple.remote
                    && key.remote_port == tuple.remote_port
            });
            if is_there {
                towards += 1;
                is_taken |= Some(key.port) == candidate;
                if reserve.contains(u16::from_be(key.port)) {
                    reserved += 1;
                    own += u64::from(flow.endpoint == sender.endpoint);
                }
            }
        })?;
        let capacity = self.tables.capacities().flows(family);
        let open = self.settings.ports.current().open();
        let has_share = reserved < u64::from(reserve.count())
            && self.share(sender, family)?.is_none_or(|share| own < share);
        let is_used_up = towards - reserved >= u64::from(open.count());
        let is_exhausted = is_taken && is_used_up && !has_share;
        let ports = tuple.map(|tuple| -> Result<Ports> {
            Ok(Ports {
                is_exhausted,
                is_stuck: tuple.protocol == protocol::SCTP
                    && (is_taken || candidate != Some(tuple.pod_port)),
                used: towards,
                all: self.settings.ports.current().count(),
                is_index_full: is_taken && self.is_index_full(family, tuple, capacity)?,
            })
        });
        Ok(Room {
            used,
            capacity,
            pod: self.tables.quota(sender.endpoint)?,
            quota: self.settings.quotas.endpoint,
            lent: self.tables.lend(SharedTable::flows(family == Family::V4))?,
            ports: ports.transpose()?,
        })
    }

    /// Ports of the reserve that the sender may have; none for any number.
    fn share(&self, sender: Sender, family: Family) -> Result<Option<u64>> {
        let entry = self.tables.eni(sender.policy)?;
        let share = entry.map_or(0, |entry| match family {
            Family::V4 => entry.v4().share,
            Family::V6 => entry.v6().share,
        });
        Ok((share != 0).then_some(share.into()))
    }

    fn is_index_full(&self, family: Family, tuple: &PodTuple, capacity: u32) -> Result<bool> {
        if self.tables.moved_to(family, tuple)?.is_some() {
            return Ok(false);
        }
        let mut moved = 0_u32;
        self.tables.moved(family, &mut |_, _| moved += 1)?;
        Ok(moved >= capacity)
    }
}

impl Room {
    /// Why the flow would not be opened, in the programs' order.
    pub(super) fn refuses(&self) -> Option<DropReason> {
        if self.pod >= self.quota.saturating_add(self.lent) {
            return Some(DropReason::QuotaExceeded);
        }
        if let Some(ports) = &self.ports {
            if ports.is_stuck {
                return Some(DropReason::SctpPortTaken);
            }
            if ports.is_exhausted {
                return Some(DropReason::NoPort);
            }
        }
        let is_index_full = self.ports.as_ref().is_some_and(|ports| ports.is_index_full);
        let is_full = self.used >= self.capacity.into() || is_index_full;
        is_full.then_some(DropReason::FlowsFull)
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            used,
            capacity,
            pod,
            quota,
            lent,
            ports,
        } = self;
        write!(f, "{used} of {capacity} flows, pod {pod} of {quota}")?;
        if pod >= quota && *lent > 0 {
            write!(f, " and {lent} borrowed at most")?;
        }
        if let Some(Ports { used, all, .. }) = ports
            && *used > 0
        {
            write!(f, ", ports to the destination {used} of {all}")?;
        }
        Ok(())
    }
}
