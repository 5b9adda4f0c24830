//! `status.eni.enis`: a node's ENIs, in Cilium's form.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde_json::{Map, Value, json};

/// An ENI as a node's agent is shown it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EniStatus {
    /// Its id.
    pub id: String,
    /// Its own IPv4 address; none in a subnet with IPv6 alone.
    pub ip: Option<Ipv4Addr>,
    /// The MAC of its device, in lower case.
    pub mac: String,
    /// Its availability zone.
    pub zone: String,
    /// Its description.
    pub description: String,
    /// The device index of its attachment.
    pub number: u16,
    /// Its subnet.
    pub subnet: SubnetStatus,
    /// Its VPC.
    pub vpc: VpcStatus,
    /// The addresses and prefixes for pods.
    pub blocks: BlocksStatus,
    /// Its security groups.
    pub groups: BTreeSet<String>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Its public address.
    pub public_ip: Option<Ipv4Addr>,
}

/// The subnet of an ENI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetStatus {
    /// Its id.
    pub id: String,
    /// Its IPv4 CIDR.
    pub cidr: Option<Ipv4Net>,
}

/// The VPC of an ENI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VpcStatus {
    /// Its id.
    pub id: String,
    /// Its primary IPv4 CIDR.
    pub primary: Option<Ipv4Net>,
    /// Its further CIDRs, of both families.
    pub cidrs: BTreeSet<IpNet>,
}

/// The addresses and prefixes of an ENI for pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlocksStatus {
    /// Single addresses, without those of prefixes.
    pub addresses: BTreeSet<IpAddr>,
    /// IPv4 prefixes.
    pub prefixes: BTreeSet<Ipv4Net>,
    /// IPv6 prefixes.
    pub ipv6_prefixes: BTreeSet<Ipv6Net>,
    /// `use-primary-address`: pods get the ENI's own address too.
    pub with_own: bool,
}

impl BlocksStatus {
    /// Adds a block.
    pub fn insert(&mut self, block: IpNet) {
        match block {
            IpNet::V4(net) if net.prefix_len() < 32 => drop(self.prefixes.insert(net)),
            IpNet::V6(net) if net.prefix_len() < 128 => drop(self.ipv6_prefixes.insert(net)),
            single => drop(self.addresses.insert(single.addr())),
        }
    }
}

/// The keys that an entry has from here. Others are foreign.
pub(super) const KEYS: [&str; 13] = [
    "id",
    "ip",
    "mac",
    "availability-zone",
    "description",
    "number",
    "subnet",
    "vpc",
    "addresses",
    "prefixes",
    "ipv6-prefixes",
    "security-groups",
    "tags",
];
/// A key that is there only for an ENI with a public address.
pub(super) const PUBLIC_IP: &str = "public-ip";

impl EniStatus {
    /// The entry. As for Cilium's own operator, `addresses` has each address of each IPv4 prefix, and
    /// fields without a value are left out.
    #[must_use]
    pub fn entry(&self) -> Map<String, Value> {
        let mut entry = Map::new();
        let mut put = |key: &str, value: Value| {
            let is_empty = match &value {
                Value::String(text) => text.is_empty(),
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                Value::Null => true,
                Value::Bool(_) | Value::Number(_) => false,
            };
            if !is_empty {
                entry.insert(key.to_owned(), value);
            }
        };
        put("id", json!(self.id));
        put("ip", json!(self.ip));
        put("mac", json!(self.mac));
        put("availability-zone", json!(self.zone));
        put("description", json!(self.description));
        put("number", json!(self.number));
        let subnet = &self.subnet;
        put("subnet", named(&subnet.id, "cidr", text(subnet.cidr)));
        let mut vpc = named(&self.vpc.id, "primary-cidr", text(self.vpc.primary));
        if !self.vpc.cidrs.is_empty() {
            vpc["cidrs"] = texts(&self.vpc.cidrs);
        }
        put("vpc", vpc);
        put("addresses", texts(&self.all_addresses()));
        put("prefixes", texts(&self.blocks.prefixes));
        put("ipv6-prefixes", texts(&self.blocks.ipv6_prefixes));
        put("security-groups", json!(self.groups));
        put("tags", json!(self.tags));
        put(PUBLIC_IP, json!(self.public_ip));
        entry
    }

    fn all_addresses(&self) -> BTreeSet<IpAddr> {
        let of_prefixes = self.blocks.prefixes.iter().flat_map(|prefix| {
            let (first, last) = (prefix.network(), prefix.broadcast());
            (u32::from(first)..=u32::from(last)).map(|address| IpAddr::V4(address.into()))
        });
        let own = self.ip.filter(|_| self.blocks.with_own).map(IpAddr::V4);
        let single = self.blocks.addresses.iter().copied();
        single.chain(of_prefixes).chain(own).collect()
    }
}

fn named(id: &str, key: &str, cidr: Option<String>) -> Value {
    let mut map = Map::new();
    if !id.is_empty() {
        map.insert("id".to_owned(), json!(id));
    }
    if let Some(cidr) = cidr {
        map.insert(key.to_owned(), json!(cidr));
    }
    Value::Object(map)
}

fn text<T: ToString>(value: Option<T>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn texts<T: ToString>(values: &BTreeSet<T>) -> Value {
    values.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn eni() -> EniStatus {
        EniStatus {
            id: "eni-1".to_owned(),
            ip: "10.0.1.10".parse().ok(),
            mac: "06:7e:00:00:00:01".to_owned(),
            zone: "eu-west-1a".to_owned(),
            description: "of node-a".to_owned(),
            number: 1,
            subnet: SubnetStatus {
                id: "subnet-1".to_owned(),
                cidr: "10.0.1.0/24".parse().ok(),
            },
            vpc: VpcStatus {
                id: "vpc-1".to_owned(),
                primary: "10.0.0.0/16".parse().ok(),
                cidrs: ["10.1.0.0/16".parse().unwrap()].into(),
            },
            blocks: BlocksStatus {
                addresses: ["10.0.1.20".parse().unwrap()].into(),
                prefixes: ["10.0.1.64/28".parse().unwrap()].into(),
                ipv6_prefixes: ["2001:db8:0:1:a::/80".parse().unwrap()].into(),
                with_own: false,
            },
            groups: ["sg-1".to_owned()].into(),
            tags: [("k".to_owned(), "v".to_owned())].into(),
            public_ip: "198.51.100.1".parse().ok(),
        }
    }

    #[test]
    fn an_entry_has_cilium_s_form() {
        let mut expected = json!({
            "id": "eni-1", "ip": "10.0.1.10", "mac": "06:7e:00:00:00:01",
            "availability-zone": "eu-west-1a", "description": "of node-a", "number": 1,
            "subnet": {"id": "subnet-1", "cidr": "10.0.1.0/24"},
            "vpc": {"id": "vpc-1", "primary-cidr": "10.0.0.0/16", "cidrs": ["10.1.0.0/16"]},
            "prefixes": ["10.0.1.64/28"], "ipv6-prefixes": ["2001:db8:0:1:a::/80"],
            "security-groups": ["sg-1"], "tags": {"k": "v"}, "public-ip": "198.51.100.1"
        });
        let mut addresses = vec!["10.0.1.20".to_owned()];
        addresses.extend((64..80).map(|last| format!("10.0.1.{last}")));
        expected["addresses"] = json!(addresses);
        assert_eq!(Value::Object(eni().entry()), expected);
        let mut own = eni();
        own.blocks.with_own = true;
        let list = own.entry()["addresses"].as_array().unwrap().len();
        assert_eq!(list, 18);
    }

    #[test]
    fn a_field_without_a_value_is_left_out() {
        let eni = EniStatus {
            id: "eni-1".to_owned(),
            ..EniStatus::default()
        };
        let expected = json!({"id": "eni-1", "number": 0});
        assert_eq!(Value::Object(eni.entry()), expected);
    }

    #[test]
    fn every_key_is_known_as_ours() {
        let entry = eni().entry();
        let keys: BTreeSet<&str> = entry.keys().map(String::as_str).collect();
        let known = KEYS.into_iter().chain([PUBLIC_IP]).collect();
        assert_eq!(keys, known);
    }
}
