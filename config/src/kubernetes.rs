//! Section `kubernetes`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use kubernetes::node::parameters::{EniParameters, IpamParameters, Parameters};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::MetadataEndpoint;
use super::ipam::Seconds;
use super::values::{AbsolutePath, refused};

/// The variable that names the node where the configuration does not: the `DaemonSet` sets it.
const NODE_NAME: &str = "NODE_NAME";

/// Section `kubernetes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KubernetesSection {
    /// Read the node's document, pools and pods from a cluster's API server: true or false.
    /// docs/guide/kubernetes.md explains it.
    pub enabled: bool,
    /// Name of the Kubernetes node; null: the environment's `NODE_NAME`.
    pub node_name: Option<String>,
    /// Kubeconfig file; null: the service account of the agent's pod.
    pub kubeconfig: Option<AbsolutePath>,
    /// Create the node's CiliumNode, and repair the agent's fields of it at each start: true or
    /// false.
    pub create_node: bool,
    /// URL of the instance metadata service (IMDSv2), which has the instance's fields of the
    /// CiliumNode: `http://169.254.169.254` or `http://[fd00:ec2::254]`; null: not used.
    pub metadata_endpoint: Option<MetadataEndpoint>,
    /// Key of a taint that nodes start with, so that no pod precedes the network. The agent removes
    /// it once it is ready and never sets it; null: ignored.
    pub startup_taint: Option<String>,
    /// Seconds between two writes of the node's demand, 1 to 86400. A waiting pod does not wait for
    /// it.
    pub update_interval: Seconds<1>,
    /// Lifetime of a watch in seconds, 1 to 86400. A watch that is silent for a quarter longer is
    /// replaced.
    pub watch_timeout: Seconds<1>,
    /// CNI configuration file or list whose plugin has sections eni and ipam. They take precedence
    /// over these settings; null: none.
    pub cni_configuration: Option<AbsolutePath>,
    /// spec.eni of the CiliumNode, which the operator follows.
    #[serde(deserialize_with = "document::nullable")]
    pub eni: EniSection,
    /// spec.ipam of the CiliumNode; 0: not set.
    #[serde(deserialize_with = "document::nullable")]
    pub ipam: NodeIpamSection,
}

impl Default for KubernetesSection {
    fn default() -> Self {
        Self {
            enabled: false,
            node_name: None,
            kubeconfig: None,
            create_node: true,
            metadata_endpoint: Some(MetadataEndpoint::default()),
            startup_taint: Some("node.towpath.dev/agent-not-ready".to_owned()),
            update_interval: Seconds::new(Duration::from_secs(15)),
            watch_timeout: Seconds::new(Duration::from_mins(4)),
            cni_configuration: None,
            eni: EniSection::default(),
            ipam: NodeIpamSection::default(),
        }
    }
}

impl KubernetesSection {
    /// The node's name.
    ///
    /// # Errors
    /// When neither the setting nor the environment has one.
    pub fn node_name(&self) -> Result<String> {
        let of_environment = || std::env::var(NODE_NAME).ok();
        match self.node_name.clone().or_else(of_environment) {
            Some(name) if !name.is_empty() => Ok(name),
            Some(_) | None => bail!(
                "kubernetes.node-name: missing; allowed: the name of the Kubernetes node, here or in \
                 the environment's {NODE_NAME}"
            ),
        }
    }

    /// The node's parameters for its operator.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        let EniSection {
            first_interface_index,
            subnet_ids,
            subnet_tags,
            security_groups,
            security_group_tags,
            exclude_interface_tags,
            delete_on_termination,
            use_primary_address,
            disable_prefix_delegation,
        } = self.eni.clone();
        let NodeIpamSection {
            mode: _not_of_the_object,
            min_allocate,
            max_allocate,
            pre_allocate,
            max_above_watermark,
            static_ip_tags,
        } = self.ipam.clone();
        Parameters {
            eni: EniParameters {
                first_interface_index: Some(first_interface_index),
                subnet_ids,
                subnet_tags: subnet_tags.0,
                security_groups,
                security_group_tags: security_group_tags.0,
                exclude_interface_tags: exclude_interface_tags.0,
                delete_on_termination,
                use_primary_address,
                disable_prefix_delegation,
            },
            ipam: IpamParameters {
                min_allocate,
                max_allocate,
                pre_allocate,
                max_above_watermark,
                static_ip_tags: static_ip_tags.0,
            },
        }
    }
}

/// Section `kubernetes.eni`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EniSection {
    /// Number of the first ENI whose addresses are for pods.
    pub first_interface_index: u32,
    /// Subnets of new ENIs. They take precedence over subnet-tags.
    #[serde(deserialize_with = "document::nullable")]
    pub subnet_ids: Vec<String>,
    /// Tags of the subnets of new ENIs (team=a,env=prod); empty: any subnet.
    #[serde(deserialize_with = "document::nullable")]
    pub subnet_tags: Tags,
    /// Security groups of new ENIs. They take precedence over security-group-tags.
    #[serde(deserialize_with = "document::nullable")]
    pub security_groups: Vec<String>,
    /// Tags of the security groups of new ENIs.
    #[serde(deserialize_with = "document::nullable")]
    pub security_group_tags: Tags,
    /// Tags of ENIs that Towpath does not use. An ENI needs all of them; empty: none.
    #[serde(deserialize_with = "document::nullable")]
    pub exclude_interface_tags: Tags,
    /// EC2 deletes the ENIs with the instance: true or false; null: the operator's default, true.
    pub delete_on_termination: Option<bool>,
    /// Pods may get an ENI's own address: true or false; null: false.
    pub use_primary_address: Option<bool>,
    /// ENIs get single addresses and no prefixes: true or false; null: false.
    pub disable_prefix_delegation: Option<bool>,
}

/// Section `kubernetes.ipam`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeIpamSection {
    /// Form of the operator's addresses: multi-pool (blocks of pools in spec.ipam.pools), or crd
    /// (single addresses in spec.ipam.pool, released by status.ipam.release-ips).
    pub mode: IpamMode,
    /// Least number of addresses of the node; 0: no bound.
    pub min_allocate: u32,
    /// Largest number of addresses of the node; 0: the instance's limit.
    pub max_allocate: u32,
    /// Spare addresses of the default pool, in place of ipam.pre-allocate; 0: not set.
    pub pre_allocate: u32,
    /// Addresses beyond the spare ones that the node keeps.
    pub max_above_watermark: u32,
    /// Tags of the node's public address; empty: none.
    #[serde(deserialize_with = "document::nullable")]
    pub static_ip_tags: Tags,
}

/// The source of a node's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IpamMode {
    /// As blocks of pools.
    #[default]
    MultiPool,
    /// One by one.
    Crd,
}

/// Tags, as a text: `team=a,env=prod`.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub struct Tags(BTreeMap<String, String>);

impl fmt::Display for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (key, value)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

impl Serialize for Tags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Tags {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut tags = BTreeMap::new();
        for pair in text.split(',').filter(|_| !text.is_empty()) {
            let allowed = "key=value pairs, each key once (team=a,env=prod)";
            match pair.split_once('=') {
                Some((key, value)) if !key.is_empty() && !tags.contains_key(key) => {
                    tags.insert(key.to_owned(), value.to_owned());
                }
                Some(_) | None => return Err(refused(&text, allowed)),
            }
        }
        Ok(Self(tags))
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    #[test]
    fn tags_are_pairs() {
        let tags = |text: &str| {
            let config = Config::parse(&format!("kubernetes: {{eni: {{subnet-tags: {text:?}}}}}"));
            config.map(|config| config.kubernetes.parameters().eni.subnet_tags)
        };
        assert!(tags("").unwrap().is_empty());
        let two = tags("team=a,env=b=c").unwrap();
        assert_eq!((two["team"].as_str(), two["env"].as_str()), ("a", "b=c"));
        for wrong in ["team", "=a", "a=1,a=2", "a=1,"] {
            let error = tags(wrong).unwrap_err().to_string();
            assert!(error.starts_with("kubernetes.eni.subnet-tags: "), "{error}");
            assert!(error.contains("allowed: key=value pairs"), "{error}");
        }
    }

    #[test]
    fn the_metadata_service_is_an_address_or_nowhere() {
        let endpoint = |text: &str| {
            let config = Config::parse(&format!("kubernetes: {{metadata-endpoint: {text}}}"));
            config.map(|config| config.kubernetes.metadata_endpoint.map(String::from))
        };
        let v6 = "http://[fd00:ec2::254]";
        assert_eq!(endpoint(&format!("{v6:?}")).unwrap().as_deref(), Some(v6));
        assert_eq!(endpoint("null").unwrap(), None);
        let error = endpoint("metadata").unwrap_err().to_string();
        let start = "kubernetes.metadata-endpoint: \"metadata\" is refused; allowed: http://169";
        assert!(error.starts_with(start), "{error}");
    }

    #[test]
    fn a_node_has_a_name() {
        let config = Config::parse("kubernetes: {node-name: node-1}").unwrap();
        assert_eq!(config.kubernetes.node_name().unwrap(), "node-1");
        let config = Config::parse("kubernetes: {node-name: ''}").unwrap();
        let error = config.kubernetes.node_name().unwrap_err().to_string();
        assert!(
            error.starts_with("kubernetes.node-name: missing"),
            "{error}"
        );
    }
}
