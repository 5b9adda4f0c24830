//! The configuration, key by key.
//!
//! Keys, values and defaults come from the types themselves; only the help is written down here,
//! and a test holds its keys against the types'.

use serde::Serialize;
use serde_yaml_ng::Value;

use super::Config;

/// One key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The key's path (`datapath.attach`).
    pub key: String,
    /// Its value now, as YAML.
    pub value: String,
    /// Its value when the file does not have it.
    pub default: String,
    /// Where the value comes from.
    pub source: Source,
    /// What it is for and what is allowed.
    pub help: &'static str,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The configuration file.
    File,
    /// The default.
    Default,
}

/// What each key is for, in the order of display.
pub(super) const HELP: &[(&str, &str)] = &[
    (
        "node.document",
        "File with the node's CiliumNode document, JSON or YAML; followed while the agent runs.",
    ),
    (
        "node.primary-device",
        "Device of the primary ENI where the document lists none with number 0 and no device has the node's InternalIP; null: none.",
    ),
    (
        "node.other-cni",
        "Where another CNI (Amazon VPC CNI, Cilium, Calico ...) is at work on the node: refuse (the agent does not start, unless pods of its own run there), or ignore (it starts, and warns).",
    ),
    (
        "endpoint.mtu",
        "MTU of pod interfaces, 1280 to 9001; null: that of the endpoint's ENI.",
    ),
    (
        "endpoint.internet-mtu",
        "MTU of what pods send out of the VPC, by their default route, 1280 to 9001; running pods follow; null: that of their interface.",
    ),
    (
        "endpoint.device-name",
        "Name of pods' host-side devices: id (tow and the endpoint's id), or the prefix by which a policy engine finds them (cali, eni): 1 to 4 characters.",
    ),
    (
        "datapath.path",
        "Which way pod traffic takes: direct (past the host's stack and netfilter), or stack (through them, both ways).",
    ),
    (
        "datapath.attach",
        "How programs are attached: auto (TCX where the kernel has it), mixed (the same, but clsact for \
         pods' devices), tcx, or clsact.",
    ),
    (
        "datapath.mark-mask",
        "Towpath's bits of the packet mark: contiguous, at least 6, clear of other users' bits.",
    ),
    (
        "datapath.pin-root",
        "Folder on a bpffs under which maps and links are pinned.",
    ),
    (
        "datapath.flow-cache",
        "Flows that each CPU remembers the last decision of, for half a second: a power of two up to 65536, 128 bytes each; 0: none.",
    ),
    (
        "kernel.route-protocol",
        "Protocol of routes and rules: kernel (systemd-networkd leaves those alone), or 5 to 255.",
    ),
    (
        "kernel.sysctls",
        "Folder of the network's sysctls. In a container /proc/sys is read-only: there, where the host's is mounted.",
    ),
    (
        "services.cidrs",
        "CIDRs of services (ClusterIPs): pod packets to them take the host's stack. Empty: in a cluster, what its ServiceCIDR objects say; none: there are none.",
    ),
    (
        "services.addresses",
        "External and load balancer addresses of services, as the CIDRs; in a cluster, beside those of its Services.",
    ),
    (
        "services.nat",
        "Whether the answers of services' backends take the host's stack, where kube-proxy's rules \
         translate them back: auto (as soon as NAT rules are seen, and until the agent ends), on, off.",
    ),
    (
        "masquerade.ipv4",
        "Whether pods' IPv4 packets to the world outside get an ENI's address: true or false.",
    ),
    (
        "masquerade.ipv6",
        "The same for IPv6, whose VPC addresses are global: true or false.",
    ),
    (
        "masquerade.native-routing-cidrs",
        "CIDRs that the VPC routes for pods' addresses: never masqueraded. The VPC's own always are.",
    ),
    (
        "masquerade.external",
        "By which ENI masqueraded packets leave: own-eni, primary-eni, or auto (own, unless only the primary has a public address).",
    ),
    (
        "masquerade.metadata",
        "Pods' packets to the instance metadata service: primary (by it, with its address), own (by the owner ENI, untranslated), block, or stack (the host's rules decide).",
    ),
    (
        "masquerade.only-default-pool",
        "Whether every pool but the pool default skips masquerade: true or false.",
    ),
    (
        "masquerade.pools",
        "File, or folder of *.yaml, *.yml and *.json, with CiliumPodIPPool documents; followed; null: none.",
    ),
    (
        "masquerade.ip-masq-agent.enabled",
        "Whether an ip-masq-agent file says what else is not masqueraded: true or false.",
    ),
    (
        "masquerade.ip-masq-agent.path",
        "That file, or a folder of fragments; followed. Missing or empty: the standard 11 ranges.",
    ),
    (
        "nat.ports",
        "Ports of translated flows, kept from the host's own: 1 to 4 ranges of whole 512s from 1024 on; null: 24576 from 32768 on that the host can do without. Each port is good for one flow to a destination.",
    ),
    (
        "nat.flows.ipv4",
        "Most translated IPv4 flows, 64 to 4194304. Each takes 256 bytes while it lives; a change loses the flows that there are.",
    ),
    ("nat.flows.ipv6", "Most translated IPv6 flows, as for IPv4."),
    (
        "nat.flows.inbound",
        "Most flows from outside the VPC to pods, 64 to 4194304; a change loses the notes of those that there are.",
    ),
    (
        "nat.flows.per-endpoint",
        "Most translated flows of one pod, 64 to 4194304.",
    ),
    (
        "nat.flows.inbound-per-endpoint",
        "Most flows from outside the VPC to one pod, 64 to 4194304.",
    ),
    (
        "nat.flows.host",
        "Most flows of the host that hold a port against pods' flows, 64 to 4194304.",
    ),
    (
        "nat.lifetimes.tcp-established",
        "Seconds that an open TCP connection may be idle, 10 to 864000.",
    ),
    (
        "nat.lifetimes.tcp-transitory",
        "Seconds that a TCP connection may be idle while it opens or ends, 10 to 864000.",
    ),
    (
        "nat.lifetimes.udp",
        "Seconds that an answered UDP flow may be idle, 10 to 864000.",
    ),
    (
        "nat.lifetimes.udp-well-known",
        "The same for remote ports below 1024 (DNS), 10 to 864000.",
    ),
    (
        "nat.lifetimes.udp-unreplied",
        "Seconds that a UDP flow may be idle that was not answered, 10 to 864000.",
    ),
    (
        "nat.lifetimes.icmp",
        "Seconds that an ICMP query may be idle, 10 to 864000.",
    ),
    (
        "nat.lifetimes.sctp",
        "Seconds that an SCTP association may be idle, 10 to 864000.",
    ),
    (
        "nat.lifetimes.closed-under-pressure",
        "Seconds that a closed TCP connection may be idle where entries run short, 2 to 240.",
    ),
    (
        "ipam.enabled",
        "Whether the agent allocates pods' addresses (docs/ipam.md); false: each comes with its request.",
    ),
    (
        "ipam.families",
        "Families that a pod gets an address of when its request names none: [ipv4], [ipv6] or [ipv4, ipv6]. \
         A node without IPv4 needs [ipv6].",
    ),
    (
        "ipam.default-pool",
        "Pool that is meant when a request names none, and that ENIs serve which no pool is bound to.",
    ),
    (
        "ipam.pre-allocate",
        "Addresses that the node asks for beyond those in use, by pool: default=8,blue=16.",
    ),
    (
        "ipam.cooldown",
        "Seconds that a released address is kept back, and then until its last owner's flows are gone; 0 to 86400; 0: neither.",
    ),
    (
        "ipam.unclaimed",
        "Seconds after which an address is taken back that nobody has claimed, 10 to 86400.",
    ),
    (
        "plain-pools.native",
        "Whether the VPC routes the addresses of pools that no ENI backs, so that they may skip masquerade: true or false.",
    ),
    (
        "cni.pending-deletes",
        "Folder in which the CNI plugin leaves deletes while no agent answers: an absolute path that ends with pending-deletes. `towpath cni install` tells the plugin.",
    ),
    (
        "cni.conf-dir",
        "Folder in which container runtimes look for configurations: the agent sees there whether they use another CNI (node.other-cni).",
    ),
    (
        "kubernetes.enabled",
        "Whether the node's document, the pools and the pods come from the API server of a cluster (docs/kubernetes.md): true or false.",
    ),
    (
        "kubernetes.node-name",
        "Name of the Kubernetes node; null: what the environment's NODE_NAME says.",
    ),
    (
        "kubernetes.kubeconfig",
        "File that says how the API server is reached; null: the service account of the agent's pod.",
    ),
    (
        "kubernetes.create-node",
        "Whether the agent makes the node's CiliumNode, and at its start makes its own fields of it right: true or false.",
    ),
    (
        "kubernetes.metadata-endpoint",
        "Where the instance's metadata service (IMDSv2) is, which tells what the CiliumNode says of the instance: http://169.254.169.254, http://[fd00:ec2::254]; null: it is not asked.",
    ),
    (
        "kubernetes.startup-taint",
        "Key of a taint that nodes are started with, so that no pod comes before its network: the agent takes it away once it is ready, and never puts it back; null: it is left alone.",
    ),
    (
        "kubernetes.update-interval",
        "Seconds between two writes of what the node wants, 1 to 86400; a pod that waits does not wait for it.",
    ),
    (
        "kubernetes.watch-timeout",
        "Seconds that a watch lives, 1 to 86400; one that says nothing for a quarter longer has gone stale and is replaced.",
    ),
    (
        "kubernetes.cni-configuration",
        "CNI configuration file or list whose plugin has sections eni and ipam that count more than these; null: none.",
    ),
    (
        "kubernetes.eni.first-interface-index",
        "Number of the first ENI whose addresses are for pods.",
    ),
    (
        "kubernetes.eni.subnet-ids",
        "Subnets that new ENIs are made in; they count more than the tags.",
    ),
    (
        "kubernetes.eni.subnet-tags",
        "Tags of those subnets (team=a,env=prod); empty: any subnet.",
    ),
    (
        "kubernetes.eni.security-groups",
        "Security groups of new ENIs; they count more than the tags.",
    ),
    (
        "kubernetes.eni.security-group-tags",
        "Tags of those groups.",
    ),
    (
        "kubernetes.eni.exclude-interface-tags",
        "ENIs with all of these tags are left alone; empty: none.",
    ),
    (
        "kubernetes.eni.delete-on-termination",
        "Whether ENIs go with the instance; null: the operator's default, which is true.",
    ),
    (
        "kubernetes.eni.use-primary-address",
        "Whether an ENI's own address is for pods too; null: false.",
    ),
    (
        "kubernetes.eni.disable-prefix-delegation",
        "Whether ENIs get single addresses only; null: false.",
    ),
    (
        "kubernetes.ipam.mode",
        "How the operator gives addresses: multi-pool (blocks of pools, spec.ipam.pools), or crd (one by one, spec.ipam.pool, and back by status.ipam.release-ips).",
    ),
    (
        "kubernetes.ipam.min-allocate",
        "Least addresses that the node has; 0: no such bound.",
    ),
    (
        "kubernetes.ipam.max-allocate",
        "Most addresses that the node has; 0: what the instance can.",
    ),
    (
        "kubernetes.ipam.pre-allocate",
        "Addresses of the default pool to spare, instead of those of ipam.pre-allocate; 0: those.",
    ),
    (
        "kubernetes.ipam.max-above-watermark",
        "How many addresses more than those to spare are left alone.",
    ),
    (
        "kubernetes.ipam.static-ip-tags",
        "Tags of the public address that the node is to have; empty: none.",
    ),
    (
        "http.address",
        "Address and port at which /healthz, /readyz and /metrics are served (docs/metrics.md), such as 127.0.0.1:9971; null: none.",
    ),
    (
        "metrics.address",
        "Address and port at which /metrics alone is served, for a Prometheus elsewhere (docs/metrics.md), such as 0.0.0.0:9972; null: only at http.address.",
    ),
    (
        "host-addresses",
        "Addresses that the host answers for though no device has them (a node-local DNS by iptables).",
    ),
    (
        "host-cidrs",
        "Networks that only the host's stack knows the way to, beside those that its routes lead to by a \
         bridge, a tunnel or a VPN: pods' packets to them take the host's stack.",
    ),
    (
        "state-dir",
        "Folder with the endpoint records; it must not outlive a reboot.",
    ),
    ("socket", "Unix socket of the agent."),
    (
        "log-level",
        "What is logged: error, warn, info, debug or trace.",
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

fn find<'a>(tree: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(tree, |tree, part| tree.get(part))
}

/// A value in one line.
fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "null".to_owned(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(value)) => value.to_string(),
        Some(Value::String(value)) => value.clone(),
        Some(Value::Sequence(values)) => {
            let values: Vec<String> = values.iter().map(|v| text(Some(v))).collect();
            format!("[{}]", values.join(", "))
        }
        Some(Value::Mapping(map)) => {
            let pairs: Vec<String> = map
                .iter()
                .map(|(k, v)| format!("{}: {}", text(Some(k)), text(Some(v))))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Some(Value::Tagged(tagged)) => text(Some(&tagged.value)),
    }
}

/// The paths of all leaves below maps.
pub(super) fn leaves(tree: &Value) -> Vec<String> {
    fn walk(tree: &Value, path: &str, out: &mut Vec<String>) {
        match tree {
            Value::Mapping(map) => {
                for (key, value) in map {
                    let key = text(Some(key));
                    let path = if path.is_empty() {
                        key
                    } else {
                        format!("{path}.{key}")
                    };
                    walk(value, &path, out);
                }
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Sequence(_)
            | Value::Tagged(_) => out.push(path.to_owned()),
        }
    }
    let mut out = Vec::new();
    walk(tree, "", &mut out);
    out
}
