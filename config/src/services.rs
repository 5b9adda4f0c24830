//! Section `services`.

use std::collections::BTreeSet;
use std::fmt;

use api::types::ServiceNat;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::values::{UnicastAddr, refused};

/// Section `services`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServicesSection {
    /// CIDRs of services (ClusterIPs): pods' packets to them take the host's stack. Empty: those of
    /// the cluster's ServiceCIDR objects; none: there are no services.
    #[serde(deserialize_with = "document::nullable")]
    pub cidrs: ServiceCidrs,
    /// External and load balancer addresses of services, treated as services.cidrs. In a cluster,
    /// those of its Services are added.
    #[serde(deserialize_with = "document::nullable")]
    pub addresses: BTreeSet<UnicastAddr>,
    /// Path of answers from services' backends: on (the host's stack, where kube-proxy's rules
    /// translate them back), off, or auto (on from the first NAT rule that is seen until the agent
    /// ends).
    #[schemars(with = "String")]
    pub nat: ServiceNat,
}

/// The CIDRs of services.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "Vec<ServiceCidr>", extend("type" = ["array", "string"]))]
pub enum ServiceCidrs {
    /// Unset: in a cluster, its `ServiceCIDR` objects define them.
    #[default]
    Unknown,
    /// There are none.
    None,
    /// These.
    These(BTreeSet<ServiceCidr>),
}

impl ServiceCidrs {
    /// Text for no CIDRs.
    const NONE: &'static str = "none";

    /// Those that are named.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        let these = match self {
            Self::Unknown | Self::None => None,
            Self::These(cidrs) => Some(cidrs),
        };
        these.into_iter().flatten().map(|cidr| cidr.0)
    }
}

impl Serialize for ServiceCidrs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str(Self::NONE),
            Self::Unknown | Self::These(_) => serializer.collect_seq(self.iter()),
        }
    }
}

impl<'de> Deserialize<'de> for ServiceCidrs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Cidrs;

        impl<'de> Visitor<'de> for Cidrs {
            type Value = ServiceCidrs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a sequence of CIDRs, or {}", ServiceCidrs::NONE)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ServiceCidrs, E> {
                if text == ServiceCidrs::NONE {
                    return Ok(ServiceCidrs::None);
                }
                Err(E::invalid_type(Unexpected::Str(text), &self))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<ServiceCidrs, A::Error> {
                let cidrs = BTreeSet::deserialize(SeqAccessDeserializer::new(seq))?;
                Ok(if cidrs.is_empty() {
                    ServiceCidrs::Unknown
                } else {
                    ServiceCidrs::These(cidrs)
                })
            }
        }

        deserializer.deserialize_any(Cidrs)
    }
}

/// A CIDR of services, in its canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(with = "String")]
pub struct ServiceCidr(IpNet);

impl ServiceCidr {
    /// The CIDR.
    pub(super) fn net(self) -> IpNet {
        self.0
    }
}

impl<'de> Deserialize<'de> for ServiceCidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let allowed = "a CIDR of IPv4 or IPv6, not all of it (10.96.0.0/12, fd00:96::/112)";
        let net: IpNet = text
            .parse()
            .map_err(|_not_a_cidr: ipnet::AddrParseError| refused(&text, allowed))?;
        if net.trunc() != net {
            return Err(refused(&text, net.trunc()));
        }
        if net.prefix_len() == 0 {
            return Err(refused(&text, allowed));
        }
        Ok(Self(net))
    }
}
