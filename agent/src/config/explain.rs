//! The configuration, key by key.
//!
//! Keys, values and defaults come from the types. Only the help is written here, and a test compares
//! its keys with those of the types.

use serde::Serialize;
use serde_yaml_ng::Value;

use super::Config;
use super::tree::{find, text};

/// One key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The key's path (`datapath.attach`).
    pub key: String,
    /// Its value now, as YAML.
    pub value: String,
    /// Its default.
    pub default: String,
    /// The origin of the value.
    pub source: Source,
    /// Its purpose and the allowed values.
    pub help: &'static str,
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The configuration file.
    File,
    /// The default.
    Default,
}

/// The purpose of each key, in the order of display.
pub(super) const HELP: &[(&str, &str)] = &[
    (
        "node.document",
        "File with the node's CiliumNode document, JSON or YAML. The agent follows its changes.",
    ),
    (
        "node.primary-device",
        "Device of the primary ENI, for a document that lists no ENI with number 0 on a host where no device has the node's InternalIP; null: none.",
    ),
    (
        "node.other-cni",
        "Reaction to another CNI on the node (Amazon VPC CNI, Cilium, Calico): refuse (do not start, unless pods of this agent run there), or ignore (start and warn).",
    ),
    (
        "endpoint.mtu",
        "MTU of pod interfaces, 1280 to 9001; null: MTU of the endpoint's ENI.",
    ),
    (
        "endpoint.internet-mtu",
        "MTU of pods' default route, for packets that leave the VPC, 1280 to 9001. Running pods follow; null: MTU of the interface.",
    ),
    (
        "endpoint.device-name",
        "Names of pods' host-side devices: id (tow and the endpoint's id), or the prefix that a policy engine expects (cali, eni), 1 to 4 characters.",
    ),
    (
        "datapath.path",
        "Path of pod packets: direct (past the host's stack and netfilter), or stack (through both, in both directions).",
    ),
    (
        "datapath.attach",
        "Attachment of programs: auto (TCX where the kernel has it), mixed (auto, but clsact on pods' devices), tcx, or clsact.",
    ),
    (
        "datapath.mark-mask",
        "Bits of the packet mark that Towpath uses: contiguous, at least 6, and free of other users' bits.",
    ),
    (
        "datapath.pin-root",
        "Folder on a bpffs for pinned maps and links.",
    ),
    (
        "datapath.flow-cache",
        "Flows whose last decision each CPU keeps for half a second: a power of two up to 65536, 128 bytes each; 0: none.",
    ),
    (
        "kernel.route-protocol",
        "Protocol of routes and rules: kernel (systemd-networkd leaves those alone), or 5 to 255.",
    ),
    (
        "kernel.sysctls",
        "Folder of the network's sysctls. In a container /proc/sys is read-only: name the mount of the host's there.",
    ),
    (
        "services.cidrs",
        "CIDRs of services (ClusterIPs): pods' packets to them take the host's stack. Empty: those of the cluster's ServiceCIDR objects; none: there are no services.",
    ),
    (
        "services.addresses",
        "External and load balancer addresses of services, treated as services.cidrs. In a cluster, those of its Services are added.",
    ),
    (
        "services.nat",
        "Path of answers from services' backends: on (the host's stack, where kube-proxy's rules translate them back), off, or auto (on from the first NAT rule that is seen until the agent ends).",
    ),
    (
        "masquerade.ipv4",
        "Masquerade pods' IPv4 packets that leave the VPC: true or false.",
    ),
    (
        "masquerade.ipv6",
        "Masquerade pods' IPv6 packets that leave the VPC, though VPC addresses are global: true or false.",
    ),
    (
        "masquerade.native-routing-cidrs",
        "CIDRs that the VPC routes for pods' addresses: never masqueraded. The VPC's own CIDRs never are.",
    ),
    (
        "masquerade.external",
        "ENI by which masqueraded packets leave: own-eni, primary-eni, or auto (own, unless only the primary has a public address).",
    ),
    (
        "masquerade.metadata",
        "Path of pods' packets to the instance metadata service: primary (by the primary ENI, with its address), own (by the owner ENI, untranslated), block, or stack (the host's rules decide).",
    ),
    (
        "masquerade.only-default-pool",
        "Masquerade the pool default only: true or false.",
    ),
    (
        "masquerade.pools",
        "File with CiliumPodIPPool documents, or a folder of *.yaml, *.yml and *.json files. The agent follows changes; null: none.",
    ),
    (
        "masquerade.ip-masq-agent.enabled",
        "Exempt the CIDRs of an ip-masq-agent file from masquerade: true or false.",
    ),
    (
        "masquerade.ip-masq-agent.path",
        "Path of the ip-masq-agent file, or a folder of fragments. The agent follows changes. Missing or empty: the standard 11 ranges.",
    ),
    (
        "nat.ports",
        "Ports of translated flows, withheld from the host: 1 to 4 ranges of whole 512s from 1024 on; null: 24576 ports from 32768 on. Each port serves one flow to a destination.",
    ),
    (
        "nat.flows.ipv4",
        "Limit of translated IPv4 flows, 64 to 4194304. A flow takes 256 bytes while it lives. A change drops all flows.",
    ),
    (
        "nat.flows.ipv6",
        "Limit of translated IPv6 flows, as nat.flows.ipv4.",
    ),
    (
        "nat.flows.inbound",
        "Limit of flows from outside the VPC to pods, 64 to 4194304. A change drops their entries.",
    ),
    (
        "nat.flows.per-endpoint",
        "Limit of translated flows of one pod, 64 to 4194304.",
    ),
    (
        "nat.flows.inbound-per-endpoint",
        "Limit of flows from outside the VPC to one pod, 64 to 4194304.",
    ),
    (
        "nat.flows.host",
        "Limit of the host's flows that hold a port against pods' flows, 64 to 4194304.",
    ),
    (
        "nat.lifetimes.tcp-established",
        "Idle timeout of an open TCP connection, in seconds, 10 to 864000.",
    ),
    (
        "nat.lifetimes.tcp-transitory",
        "Idle timeout of a TCP connection that opens or ends, in seconds, 10 to 864000.",
    ),
    (
        "nat.lifetimes.udp",
        "Idle timeout of an answered UDP flow, in seconds, 10 to 864000.",
    ),
    (
        "nat.lifetimes.udp-well-known",
        "Idle timeout of an answered UDP flow to a port below 1024 (DNS), in seconds, 10 to 864000.",
    ),
    (
        "nat.lifetimes.udp-unreplied",
        "Idle timeout of an unanswered UDP flow, in seconds, 10 to 864000.",
    ),
    (
        "nat.lifetimes.icmp",
        "Idle timeout of an ICMP query, in seconds, 10 to 864000.",
    ),
    (
        "nat.lifetimes.sctp",
        "Idle timeout of an SCTP association, in seconds, 10 to 864000.",
    ),
    (
        "nat.lifetimes.closed-under-pressure",
        "Idle timeout of a closed TCP connection while entries run short, in seconds, 2 to 240.",
    ),
    (
        "ipam.enabled",
        "Allocate pods' addresses: true, or false (each request brings its own). docs/guide/ipam.md explains it.",
    ),
    (
        "ipam.families",
        "Families of pods whose request names none: [ipv4], [ipv6] or [ipv4, ipv6]. A node without IPv4 needs [ipv6].",
    ),
    (
        "ipam.default-pool",
        "Pool of requests that name none. ENIs that no pool is bound to serve it.",
    ),
    (
        "ipam.pre-allocate",
        "Spare addresses that the node requests, by pool: default=8,blue=16.",
    ),
    (
        "ipam.cooldown",
        "Seconds that a released address is kept back, and then until its last owner's flows are gone; 0 to 86400; 0: neither.",
    ),
    (
        "ipam.unclaimed",
        "Seconds after which an address that nothing has claimed is taken back, 10 to 86400.",
    ),
    (
        "ipam.release",
        "Give blocks of ENIs that are not needed back to the operator: off or on. Only where the operator releases addresses, or else pods can run short of them.",
    ),
    (
        "plain-pools.native",
        "The VPC routes the addresses of pools without an ENI, so they may skip masquerade: true or false.",
    ),
    (
        "cni.pending-deletes",
        "Folder of the deletes that the CNI plugin stores while no agent answers: an absolute path that ends with pending-deletes. `towpath cni install` writes it into the plugin's configuration.",
    ),
    (
        "cni.conf-dir",
        "Folder of container runtimes' network configurations. It shows if they use another CNI (node.other-cni).",
    ),
    (
        "kubernetes.enabled",
        "Read the node's document, pools and pods from a cluster's API server: true or false. docs/guide/kubernetes.md explains it.",
    ),
    (
        "kubernetes.node-name",
        "Name of the Kubernetes node; null: the environment's NODE_NAME.",
    ),
    (
        "kubernetes.kubeconfig",
        "Kubeconfig file; null: the service account of the agent's pod.",
    ),
    (
        "kubernetes.create-node",
        "Create the node's CiliumNode, and repair the agent's fields of it at each start: true or false.",
    ),
    (
        "kubernetes.metadata-endpoint",
        "URL of the instance metadata service (IMDSv2), which has the instance's fields of the CiliumNode: http://169.254.169.254 or http://[fd00:ec2::254]; null: not used.",
    ),
    (
        "kubernetes.startup-taint",
        "Key of a taint that nodes start with, so that no pod precedes the network. The agent removes it once it is ready and never sets it; null: left alone.",
    ),
    (
        "kubernetes.update-interval",
        "Seconds between two writes of the node's demand, 1 to 86400. A waiting pod does not wait for it.",
    ),
    (
        "kubernetes.watch-timeout",
        "Lifetime of a watch in seconds, 1 to 86400. A watch that is silent for a quarter longer is replaced.",
    ),
    (
        "kubernetes.cni-configuration",
        "CNI configuration file or list whose plugin has sections eni and ipam. They take precedence over these settings; null: none.",
    ),
    (
        "kubernetes.eni.first-interface-index",
        "Number of the first ENI whose addresses are for pods.",
    ),
    (
        "kubernetes.eni.subnet-ids",
        "Subnets of new ENIs. They take precedence over subnet-tags.",
    ),
    (
        "kubernetes.eni.subnet-tags",
        "Tags of the subnets of new ENIs (team=a,env=prod); empty: any subnet.",
    ),
    (
        "kubernetes.eni.security-groups",
        "Security groups of new ENIs. They take precedence over security-group-tags.",
    ),
    (
        "kubernetes.eni.security-group-tags",
        "Tags of the security groups of new ENIs.",
    ),
    (
        "kubernetes.eni.exclude-interface-tags",
        "Tags of ENIs that are left alone. An ENI needs all of them; empty: none.",
    ),
    (
        "kubernetes.eni.delete-on-termination",
        "EC2 deletes the ENIs with the instance: true or false; null: the operator's default, true.",
    ),
    (
        "kubernetes.eni.use-primary-address",
        "Pods may get an ENI's own address: true or false; null: false.",
    ),
    (
        "kubernetes.eni.disable-prefix-delegation",
        "ENIs get single addresses and no prefixes: true or false; null: false.",
    ),
    (
        "kubernetes.ipam.mode",
        "Form of the operator's addresses: multi-pool (blocks of pools in spec.ipam.pools), or crd (single addresses in spec.ipam.pool, released by status.ipam.release-ips).",
    ),
    (
        "kubernetes.ipam.min-allocate",
        "Least number of addresses of the node; 0: no bound.",
    ),
    (
        "kubernetes.ipam.max-allocate",
        "Largest number of addresses of the node; 0: the instance's limit.",
    ),
    (
        "kubernetes.ipam.pre-allocate",
        "Spare addresses of the default pool, in place of ipam.pre-allocate; 0: not set.",
    ),
    (
        "kubernetes.ipam.max-above-watermark",
        "Addresses beyond the spare ones that the node keeps.",
    ),
    (
        "kubernetes.ipam.static-ip-tags",
        "Tags of the node's public address; empty: none.",
    ),
    (
        "http.address",
        "Listen address of /healthz, /readyz and /metrics (docs/reference/metrics.md), such as 127.0.0.1:9971; null: none.",
    ),
    (
        "metrics.address",
        "Listen address of /metrics alone, for a Prometheus elsewhere (docs/reference/metrics.md), such as 0.0.0.0:9972; null: only http.address.",
    ),
    (
        "host-addresses",
        "Addresses that the host answers for and no device has (a node-local DNS by iptables).",
    ),
    (
        "agent-addresses.ingress",
        "Addresses of the node's agent for a gateway's listeners (spec.ingress): off, on (the host answers), or the path of the network namespace that answers.",
    ),
    (
        "agent-addresses.pool",
        "Pool of them without delegated IPAM; null: ipam.default-pool.",
    ),
    (
        "agent-addresses.plugin-dirs",
        "Folders of the delegated IPAM plugin.",
    ),
    (
        "agent-addresses.timeout",
        "Seconds until a call of it is killed, 1 to 86400.",
    ),
    (
        "agent-addresses.state-dir",
        "Folder of the record of what the plugin has given. It should outlive a reboot.",
    ),
    (
        "host-cidrs",
        "Networks that only the host's stack knows the way to, beside those that its routes lead to by a \
         bridge, a tunnel or a VPN: pods' packets to them take the host's stack.",
    ),
    (
        "state-dir",
        "Folder of the endpoint records. It must not outlive a reboot.",
    ),
    ("socket", "Unix socket of the agent."),
    (
        "log-level",
        "Lowest level of log lines: error, warn, info, debug or trace.",
    ),
];

impl Config {
    /// Every key with its value, default, source and help.
    #[must_use]
    pub fn explain(&self) -> Vec<Row> {
        let values = tree(self);
        let defaults = tree(&Self::default());
        HELP.iter()
            .map(|(key, help)| Row {
                key: (*key).to_owned(),
                value: text(find(&values, key)),
                default: text(find(&defaults, key)),
                source: if self.given.contains(*key) {
                    Source::File
                } else {
                    Source::Default
                },
                help,
            })
            .collect()
    }
}

/// The configuration as a tree. It has string keys and plain values only, which always can be one.
fn tree(config: &Config) -> Value {
    serde_yaml_ng::to_value(config).unwrap_or_default()
}
