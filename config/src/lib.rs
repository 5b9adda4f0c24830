//! The configuration file: typed, with defaults that work.

mod agent_addresses;
mod explain;
mod ipam;
mod kubernetes;
mod marks;
mod masquerade;
mod nat;
mod sections;
mod services;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeSet;
use std::path::{Path as FilePath, PathBuf};

use api::types::PathMode;
use api::types::ServiceNat;
use datapath_common::abi::DEFAULT_STACK;
use loader::bpf::{BpfOptions, DatapathMode, DatapathSettings, FlowPorts};
use loader::intent::{ClusterServices, HostSettings, Services, Settings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_yaml_ng::Value;

pub use self::agent_addresses::{AgentAddressesSection, Ingress};
pub use self::explain::{example, reference, schema};
pub use self::ipam::{
    CniSection, Families, IpamSection, PlainPoolsSection, PoolName, PreAllocate, Release, Seconds,
};
pub use self::kubernetes::{EniSection, IpamMode, KubernetesSection, NodeIpamSection, Tags};
pub use self::marks::mark_neighbours;
pub use self::masquerade::{AgentSection, MasqueradeSection, Metadata, NativeCidr};
pub use self::nat::{Capacity, FlowsSection, Lifetime, LifetimesSection, NatSection, Ports};
pub use self::sections::{
    DatapathSection, EndpointSection, HttpSection, KernelSection, LogLevel, MetricsSection,
    NodeSection, OtherCni,
};
pub use self::services::{ServiceCidr, ServiceCidrs, ServicesSection};
pub use self::values::device_name::PodDeviceName;
pub use self::values::metadata_endpoint::{MetadataEndpoint, NotMetadataEndpoint};
pub use self::values::{
    AbsolutePath, DeviceName, MarkMask, Mtu, NotADevice, NotAbsolute, RouteProtocol, UnicastAddr,
};
pub use document::settings::{Row, Source};
use document::{FileError, ReadError, nullable};

/// The agent's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// The node and its document.
    #[serde(deserialize_with = "nullable")]
    pub node: NodeSection,
    /// Interfaces of pods.
    #[serde(deserialize_with = "nullable")]
    pub endpoint: EndpointSection,
    /// The eBPF programs and their maps.
    #[serde(deserialize_with = "nullable")]
    pub datapath: DatapathSection,
    /// Routes, rules and sysctls.
    #[serde(deserialize_with = "nullable")]
    pub kernel: KernelSection,
    /// Services, beside kube-proxy. See docs/guide/services.md.
    #[serde(deserialize_with = "nullable")]
    pub services: ServicesSection,
    /// Masquerade policy. See docs/guide/masquerade.md.
    #[serde(deserialize_with = "nullable")]
    pub masquerade: MasqueradeSection,
    /// Ports, limits and timeouts of translated flows. See docs/guide/nat.md.
    #[serde(deserialize_with = "nullable")]
    pub nat: NatSection,
    /// Allocation of pods' addresses. See docs/guide/ipam.md.
    #[serde(deserialize_with = "nullable")]
    pub ipam: IpamSection,
    /// Pools that no ENI backs. See docs/guide/ipam.md#many-pools-on-shared-enis.
    #[serde(deserialize_with = "nullable")]
    pub plain_pools: PlainPoolsSection,
    /// The CNI plugin. See docs/guide/cni.md.
    #[serde(deserialize_with = "nullable")]
    pub cni: CniSection,
    /// The API server of the cluster. See docs/guide/kubernetes.md.
    #[serde(deserialize_with = "nullable")]
    pub kubernetes: KubernetesSection,
    /// Probes and metrics. See docs/reference/metrics.md.
    #[serde(deserialize_with = "nullable")]
    pub http: HttpSection,
    /// Metrics at an address of their own. See docs/reference/metrics.md.
    #[serde(deserialize_with = "nullable")]
    pub metrics: MetricsSection,
    /// Addresses that the host answers for and no device has (a node-local DNS by iptables).
    #[serde(deserialize_with = "nullable")]
    pub host_addresses: BTreeSet<UnicastAddr>,
    /// Addresses of the cloud network that the agent itself has, for the listeners of a gateway on
    /// each node. They stand in spec.ingress of the CiliumNode. See docs/guide/gateway.md.
    #[serde(deserialize_with = "nullable")]
    pub agent_addresses: AgentAddressesSection,
    /// Networks that only the host's stack reaches, added to those that its routes reach by a
    /// bridge, a tunnel or a VPN. Pods' packets to them take the host's stack.
    #[serde(deserialize_with = "nullable")]
    pub host_cidrs: BTreeSet<ServiceCidr>,
    /// Folder of the endpoint records. It must not outlive a reboot.
    pub state_dir: AbsolutePath,
    /// Unix socket of the agent.
    pub socket: AbsolutePath,
    /// Lowest level of log lines: error, warn, info, debug or trace.
    pub log_level: LogLevel,
    /// The document that the settings were read from.
    #[serde(skip)]
    given: Value,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: NodeSection::default(),
            endpoint: EndpointSection::default(),
            datapath: DatapathSection::default(),
            kernel: KernelSection::default(),
            services: ServicesSection::default(),
            masquerade: MasqueradeSection::default(),
            nat: NatSection::default(),
            ipam: IpamSection::default(),
            plain_pools: PlainPoolsSection::default(),
            cni: CniSection::default(),
            kubernetes: KubernetesSection::default(),
            http: HttpSection::default(),
            metrics: MetricsSection::default(),
            host_addresses: BTreeSet::new(),
            agent_addresses: AgentAddressesSection::default(),
            host_cidrs: BTreeSet::new(),
            state_dir: AbsolutePath::known("/run/towpath"),
            socket: AbsolutePath::known("/run/towpath/agent.sock"),
            log_level: LogLevel::default(),
            given: Value::Null,
        }
    }
}

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration {} {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: FileError,
    },
    /// The file has a key or value that is not allowed.
    #[error("configuration {}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The key or value, and the allowed ones.
        reason: ReadError,
    },
}

impl Config {
    /// Default path of the file.
    pub const DEFAULT_PATH: &'static str = "/etc/towpath/config.yaml";

    /// Reads the file. `None` is the default path, where the file may be missing: then every
    /// setting has its default.
    ///
    /// # Errors
    /// When the file cannot be read, or a key or value is not allowed.
    pub fn load(path: Option<&FilePath>) -> Result<Self, ConfigError> {
        let explicit = path.is_some();
        let path = path.unwrap_or(FilePath::new(Self::DEFAULT_PATH));
        let text = match document::read_file(path) {
            Ok(text) => text,
            Err(reason) if reason.is_missing() && !explicit => return Ok(Self::default()),
            Err(reason) => {
                let path = path.to_owned();
                return Err(ConfigError::Read { path, reason });
            }
        };
        Self::parse(&text).map_err(|reason| ConfigError::Invalid {
            path: path.to_owned(),
            reason,
        })
    }

    /// Reads a text in YAML, or in JSON when it begins with a brace.
    ///
    /// # Errors
    /// When a key or value is not allowed; the error names the key's path, the value, and what is
    /// allowed.
    pub fn parse(text: &str) -> Result<Self, ReadError> {
        let mut config: Self = document::read(text)?;
        config.given = document::read(text)?;
        Ok(config)
    }

    /// The settings of the eBPF side.
    #[must_use]
    pub fn bpf_options(&self) -> BpfOptions {
        BpfOptions {
            pin_root: self.datapath.pin_root.as_path().to_owned(),
            attach: self.datapath.attach,
        }
    }

    /// True if flows that the host's stack carries are noted. Otherwise, rules about the metadata
    /// service do not see the replies.
    #[must_use]
    pub fn service_nat(&self) -> ServiceNat {
        match self.masquerade.metadata {
            Metadata::Stack => ServiceNat::On,
            Metadata::Primary | Metadata::Own | Metadata::Block => self.services.nat,
        }
    }

    /// Settings of the programs, and the sizes of their maps.
    #[must_use]
    pub fn datapath_settings(&self) -> DatapathSettings {
        let flows = &self.nat.flows;
        DatapathSettings {
            mark: self.datapath.mark_mask.layout(),
            path: match (self.datapath.path, self.service_nat()) {
                (PathMode::Stack, _any) => DatapathMode::Stack,
                (PathMode::Direct, ServiceNat::On) => DatapathMode::ServiceNat,
                // With `auto` the agent itself detects service NAT.
                (PathMode::Direct, ServiceNat::Auto | ServiceNat::Off) => DatapathMode::Direct,
            },
            stack: DEFAULT_STACK,
            ports: FlowPorts::only(self.nat.slices()),
            flows_v4: flows.ipv4.get(),
            flows_v6: flows.ipv6.get(),
            inbound: flows.inbound.get(),
            quotas: flows.quotas(),
            masquerade_v4: self.masquerade.ipv4,
            masquerade_v6: self.masquerade.ipv6,
            metadata: self.masquerade.metadata.into(),
            cache: self.datapath.flow_cache.get(),
        }
    }

    /// True if the set of services is known.
    ///
    /// In a cluster, the agent is not ready before.
    #[must_use]
    pub fn knows_services(&self) -> bool {
        let ServicesSection {
            cidrs, addresses, ..
        } = &self.services;
        self.kubernetes.enabled || *cidrs != ServiceCidrs::Unknown || !addresses.is_empty()
    }

    /// The settings that shape what is put into the kernel.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let cidrs = self.services.cidrs.iter();
        let addresses = self.services.addresses.iter().map(|a| a.0.into());
        let device = self.node.primary_device.as_ref();
        Settings {
            mark: self.datapath.mark_mask.layout(),
            protocol: self.kernel.route_protocol.get(),
            device_prefix: self.endpoint.device_name.prefix().map(str::to_owned),
            primary_device: device.map(|device| device.as_str().to_owned()),
            internet_mtu: self.endpoint.internet_mtu.map(Mtu::get),
            services: Services {
                configured: cidrs.chain(addresses).collect(),
                cluster: ClusterServices::none(),
            },
            host: HostSettings {
                cidrs: self.host_cidrs.iter().map(|cidr| cidr.net()).collect(),
                // The agent sets it when it has some.
                ingress: BTreeSet::new(),
                addresses: self.host_addresses.iter().map(|a| a.0).collect(),
            },
            masquerade: self.masquerade.settings(),
            default_pool: self.ipam.default_pool.as_str().to_owned(),
            plain_is_native: self.plain_pools.native,
            // The agent sets it with every pass.
            service_nat: false,
            ports: self.nat.slices(),
        }
    }
}
