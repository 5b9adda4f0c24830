//! The command line's shape.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use terminal::Output;

use crate::intent::Family;
use crate::masquerade::{Peer, Protocol};

/// Where runtimes look for network configurations.
const CONF_DIR: &str = "/etc/cni/net.d";

/// Pod networking for Kubernetes on AWS network interfaces: the node agent, and the command that
/// asks it.
#[derive(Debug, Parser)]
#[command(
    name = "towpath",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "\
Examples:
  towpath run                        Run the agent in the foreground, as root
  towpath status                     Is this node's network as it should be? If not, why?
  towpath routes                     What is ours in the kernel, beside what should be
  towpath metrics --drops            Which packets were dropped, and why
  curl --unix-socket /run/towpath/agent.sock http://towpath/v1/status

Exit codes:
  0  done; for `status`: ready
  1  failed; one line on stderr says why
  2  the command line is wrong
  3  no agent answers
  4  for `status`: degraded or not ready"
)]
pub(super) struct Cli {
    /// The agent's configuration file; without one, the defaults hold.
    #[arg(long, global = true, value_name = "FILE", env = "TOWPATH_CONFIG")]
    pub(super) config: Option<PathBuf>,

    /// The agent's socket, in place of the configuration's.
    #[arg(long, global = true, value_name = "PATH", env = "TOWPATH_SOCKET")]
    pub(super) socket: Option<PathBuf>,

    /// How long to wait for an answer of the agent, such as 500ms, 10s or 2m; a number alone means
    /// seconds. Default: 3s for what only looks, 35s for what changes something.
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        env = "TOWPATH_TIMEOUT",
        value_parser = super::duration::parse
    )]
    pub(super) timeout: Option<Duration>,

    /// What to do.
    #[command(subcommand)]
    pub(super) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the agent.
    ///
    /// Brings the node to what the node document and the endpoints ask for, and keeps it so, until
    /// SIGTERM or SIGINT. What it set up stays when it ends: pods keep their network, and the next
    /// agent takes over.
    Run,

    /// Show how the node is: ENIs, kernel, other software, repairs.
    ///
    /// Ends with 0 when everything is ready, with 4 when something is not.
    Status(Output),

    /// Ask whether pods can be added.
    ///
    /// Ends with 0 when they can, or could be if there were addresses left.
    Ready,

    /// List the endpoints (pod attachments).
    Endpoints(Output),

    /// List the pools: how many of their addresses are in use, cool down, are free, wait.
    Pools(Output),

    /// List the addresses that somebody has, or had until a moment ago.
    Addresses(Output),

    /// List the ENIs, each with its readiness and the reason.
    Enis(Output),

    /// List the rules, routes, addresses and other objects that are ours, beside what should be.
    Routes {
        /// Only what is not as it should be.
        #[arg(long)]
        differing: bool,
        #[command(flatten)]
        output: Output,
    },

    /// Show what is masqueraded and how: switches, pools, exempt destinations, ENIs.
    #[command(after_help = "\
Example:
  towpath masq explain 10.0.1.20 1.1.1.1:443   What becomes of such a packet, and why")]
    Masq {
        /// What to do in place of it.
        #[command(subcommand)]
        command: Option<MasqCommand>,
        #[command(flatten)]
        output: Output,
    },

    /// Show the datapath's counters.
    Metrics {
        /// Only drops.
        #[arg(long)]
        drops: bool,
        /// Also counters that are zero.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        output: Output,
    },

    /// Show or remove translated flows.
    #[command(subcommand)]
    Nat(NatCommand),

    /// Add or delete one endpoint, as the CNI plugin does.
    #[command(subcommand)]
    Endpoint(EndpointCommand),

    /// Install or remove the CNI plugin.
    #[command(subcommand)]
    Cni(CniCommand),

    /// Remove everything of ours from this node, and nothing else.
    ///
    /// For a node that leaves the cluster or changes its network. The agent must not be running.
    /// Endpoints lose their network, so with endpoints present `--yes` is needed. Our entry of the
    /// runtime's configuration list goes first; the plugin's binaries stay: `towpath cni uninstall`
    /// removes these too.
    Cleanup {
        /// Also when endpoints lose their network by it.
        #[arg(long)]
        yes: bool,
        /// The runtime's folder of network configurations.
        #[arg(long, value_name = "FOLDER", default_value = CONF_DIR)]
        conf_dir: PathBuf,
        #[command(flatten)]
        output: Output,
    },

    /// Check and explain the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),

    /// Write shell completions to stdout.
    #[command(after_help = "\
Example:
  towpath completions bash > /etc/bash_completion.d/towpath")]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// What to do about masquerade.
#[derive(Debug, Subcommand)]
pub(super) enum MasqCommand {
    /// Tell what becomes of a pod's packet, step by step, from the live maps.
    ///
    /// With both ports (for ICMP: with the id as source port) it also looks whether the flow is
    /// known.
    #[command(after_help = "\
Examples:
  towpath masq explain 10.0.1.20 1.1.1.1
  towpath masq explain 10.0.1.20:40000 1.1.1.1:443
  towpath masq explain --protocol udp [2001:db8::20]:5353 [2001:db8:1::1]:53 -o json")]
    Explain {
        /// A pod's address, with a port or without.
        source: Peer,
        /// Where to, with a port or without.
        destination: Peer,
        /// tcp, udp, icmp, sctp, or a number.
        #[arg(long, value_name = "PROTOCOL", default_value = "tcp")]
        protocol: Protocol,
        #[command(flatten)]
        output: Output,
    },
}

/// What to do with an endpoint.
#[derive(Debug, Subcommand)]
pub(super) enum EndpointCommand {
    /// Attach a network namespace to the pod network.
    #[command(after_help = "\
Example:
  ip netns add web
  towpath endpoint add 0a1b2c eth0 --netns web
  towpath endpoint add 0a1b2c eth0 --netns web --pool blue --family ipv4 --family ipv6
  towpath endpoint add 0a1b2c eth0 --netns web --address 10.0.1.20
  ip netns exec web ping 10.0.1.1")]
    Add {
        #[command(flatten)]
        owner: OwnerArgs,
        /// The network namespace: a path, or a name under /run/netns.
        #[arg(long, value_name = "PATH|NAME")]
        netns: PathBuf,
        /// An address that a ready ENI owns; one of each family. Without any, the agent gives them.
        #[arg(long = "address", value_name = "IP")]
        addresses: Vec<IpAddr>,
        #[command(flatten)]
        which: WhichArgs,
        #[command(flatten)]
        output: Output,
    },

    /// Take an attachment away. An unknown one is success.
    Del {
        #[command(flatten)]
        owner: OwnerArgs,
        #[command(flatten)]
        output: Output,
    },
}

/// Which addresses the agent is to give.
#[derive(Debug, Args)]
pub(super) struct WhichArgs {
    /// The pool to give addresses from; without it, the default pool.
    #[arg(long, value_name = "NAME", conflicts_with = "addresses")]
    pub(super) pool: Option<String>,
    /// A family to give an address of; without any, those of the configuration.
    #[arg(long = "family", value_name = "FAMILY", conflicts_with = "addresses")]
    pub(super) families: Vec<FamilyName>,
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FamilyName {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl From<FamilyName> for Family {
    fn from(name: FamilyName) -> Self {
        match name {
            FamilyName::Ipv4 => Self::V4,
            FamilyName::Ipv6 => Self::V6,
        }
    }
}

/// What to do with the CNI plugin.
#[derive(Debug, Subcommand)]
pub(super) enum CniCommand {
    /// Put the plugin and its configuration list where the runtime looks for them.
    ///
    /// The binaries come first; the list, by which the runtime finds them, when the agent is ready.
    /// What is as it should be stays untouched, and so does every other file.
    #[command(after_help = "\
Example:
  towpath cni install --wait-ready=120")]
    Install {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        content: ContentArgs,
        /// Wait for an agent that is not ready, this many seconds.
        #[arg(
            long,
            value_name = "SECONDS",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "300"
        )]
        wait_ready: Option<u32>,
        #[command(flatten)]
        output: Output,
    },

    /// Install the plugin when the agent is ready, and keep it installed until SIGTERM.
    ///
    /// What runs beside the agent in its pod. A list that was left before the node's last boot goes
    /// first, so that the runtime calls the node's network ready only when the agent is; what
    /// others change or remove comes back within a second. Entries that others add to the list stay.
    /// What is installed stays when this ends: pods can be deleted while no agent runs.
    #[command(after_help = "\
Example:
  towpath cni keep --uninstall-at-end")]
    Keep {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        content: ContentArgs,
        /// Remove the plugin at the end: for a node that gets another network.
        #[arg(long)]
        uninstall_at_end: bool,
    },

    /// Take the configuration list away, then the plugin.
    ///
    /// Of a list that others added to, our entry goes and the file stays.
    Uninstall {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        output: Output,
    },
}

/// What is installed.
#[derive(Debug, Args)]
pub(super) struct ContentArgs {
    /// The plugin's binary; without this, `towpath-cni` beside our own.
    #[arg(long, value_name = "FILE")]
    pub(super) plugin: Option<PathBuf>,
    /// An own configuration list, which is checked; without this, one is made: our plugin, and
    /// `portmap` behind it where it is installed.
    #[arg(long, value_name = "FILE")]
    pub(super) conflist: Option<PathBuf>,
}

/// Where the runtime looks for plugins and their configuration.
#[derive(Debug, Args)]
pub(super) struct PlaceArgs {
    /// The runtime's folder of plugins.
    #[arg(long, value_name = "FOLDER", default_value = "/opt/cni/bin")]
    pub(super) bin_dir: PathBuf,
    /// The runtime's folder of network configurations.
    #[arg(long, value_name = "FOLDER", default_value = CONF_DIR)]
    pub(super) conf_dir: PathBuf,
}

/// What to do with translated flows.
#[derive(Debug, Subcommand)]
pub(super) enum NatCommand {
    /// List the flows: translated ones, and those from outside that are not translated.
    #[command(after_help = "\
Example:
  towpath nat list --pod 10.0.1.20 --protocol tcp")]
    List {
        /// Only those of this inside address.
        #[arg(long, value_name = "IP")]
        pod: Option<IpAddr>,
        /// Only those with this remote.
        #[arg(long, value_name = "IP")]
        remote: Option<IpAddr>,
        /// Only those of this protocol: tcp, udp, icmp, icmpv6, sctp or a number.
        #[arg(long, value_name = "NAME|NUMBER")]
        protocol: Option<String>,
        #[command(flatten)]
        output: Output,
    },

    /// Remove flows, busy ones too: their connections break.
    Flush {
        #[command(flatten)]
        which: FlushArgs,
        #[command(flatten)]
        output: Output,
    },

    /// Show what translation does: allocations, failures, flows, busy destinations, room.
    Stats(Output),
}

/// Which flows to remove.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct FlushArgs {
    /// Those of this inside address.
    #[arg(long, value_name = "IP")]
    pub(super) pod: Option<IpAddr>,
    /// All.
    #[arg(long)]
    pub(super) all: bool,
}

/// The owner of an endpoint.
#[derive(Debug, Args)]
pub(super) struct OwnerArgs {
    /// The runtime's id of the container.
    pub(super) container_id: String,
    /// Name of the interface inside the container.
    #[arg(default_value = "eth0")]
    pub(super) interface: String,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Check a configuration file, and say what is wrong with it.
    Check {
        /// The file.
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Show every setting with its value and its meaning.
    Show(Output),
}

#[cfg(test)]
mod tests;
