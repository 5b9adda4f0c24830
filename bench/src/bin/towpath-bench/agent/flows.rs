//! Translated flows that were never opened: entries put into the map.

use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::maps::{HashMap, Map, MapData};
use datapath_common::abi::{Addr, AddressEntry, Flow, FlowKey, TransportAddr, map};
use datapath_common::headers::protocol;
use loader::bpf::jiffies_per_second;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::memory::memlock;
use super::scene::Scene;

type Bytes = HashMap<MapData, [u8; size_of::<FlowKey>()], [u8; size_of::<Flow>()]>;

/// The map of translated IPv4 flows.
pub(super) struct Flows {
    map: Bytes,
    /// The map by its descriptor.
    data: MapData,
    /// Pods with translated flows: address, identity, number of the ENI.
    pods: Vec<(Addr, u32, u8)>,
}

impl Flows {
    pub(super) fn open(scene: &Scene) -> Result<Self> {
        let maps = scene.version_folder()?.join("maps");
        let pin = |name: &str| MapData::from_pin(maps.join(name)).map(Map::HashMap);
        let addresses = HashMap::<_, Addr, AddressEntry>::try_from(pin(map::ADDRESSES)?)?;
        let mut pods = Vec::new();
        for item in &addresses {
            let (address, entry) = item?;
            if entry.is_endpoint() && address.is_v4() {
                pods.push((address, entry.identity(), entry.eni()));
            }
        }
        Ok(Self {
            map: Bytes::try_from(pin(map::FLOWS_V4)?)?,
            data: MapData::from_pin(maps.join(map::FLOWS_V4))?,
            pods,
        })
    }

    /// The kernel's time in jiffies, from the flow that was last seen.
    pub(super) fn now(&self) -> Result<u64> {
        let mut last = None;
        for item in &self.map {
            let (_key, value) = item?;
            let flow = Flow::read_from_bytes(&value).ok().context("a flow")?;
            last = last.max(Some(flow.last_seen));
        }
        last.context("there is no flow to tell the time by")
    }

    /// Puts in numbered UDP flows without answers, last seen this long before `now`.
    pub(super) fn preload(
        &mut self,
        numbers: std::ops::Range<u32>,
        now: u64,
        idle: Duration,
    ) -> Result<()> {
        let jiffies = idle.as_secs() * u64::from(jiffies_per_second()?);
        let seen = now.saturating_sub(jiffies);
        for number in numbers {
            let index = usize::try_from(number)? % self.pods.len();
            let (pod, identity, eni) = *self.pods.get(index).context("a pod")?;
            // 1.0.0.0/8, where the fabric has no address, and a port for each 65,536.
            let remote = Addr::from(std::net::Ipv4Addr::from(0x0100_0000 + number));
            let port = u16::try_from(40_960 + number % 16_384)?.to_be();
            let key = FlowKey::new(
                eni,
                protocol::UDP,
                TransportAddr::new(remote, 443_u16.to_be()),
                port,
            );
            let flow = Flow::new(&key, TransportAddr::new(pod, port), identity, seen);
            let (mut key_bytes, mut flow_bytes) = ([0; _], [0; _]);
            key.write_to(&mut key_bytes).ok().context("a key")?;
            flow.write_to(&mut flow_bytes).ok().context("a flow")?;
            self.map.insert(key_bytes, flow_bytes, 0)?;
        }
        Ok(())
    }

    /// Memory of the map in bytes.
    pub(super) fn memory(&self) -> Result<u64> {
        memlock(self.data.fd().as_fd())
    }
}
