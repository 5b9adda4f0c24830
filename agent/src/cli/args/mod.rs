//! The command line's shape.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use api::{Peer, Protocol};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ipam::Family;
use terminal::Output;

/// Where runtimes look for network configurations.
const CONF_DIR: &str = "/etc/cni/net.d";

/// Pod networking for Kubernetes on AWS network interfaces: the node agent and its command line.
#[derive(Debug, Parser)]
#[command(
    name = "towpath",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "\
Examples:
  towpath run                        Run the agent in the foreground, as root
  towpath status                     Show the health of this node's network, with reasons
  towpath routes                     Compare the kernel's objects of the agent with the wanted ones
  towpath metrics --drops            Show dropped packets by reason
  curl --unix-socket /run/towpath/agent.sock http://towpath/v1/status

Exit codes:
  0  done; for `status`: ready
  1  failed; one line on standard error has the cause
  2  wrong command line
  3  no agent answers
  4  for `status`: degraded or not ready"
)]
pub(super) struct Cli {
    /// Configuration file of the agent. Without one, all settings have their defaults.
    #[arg(long, global = true, value_name = "FILE", env = "TOWPATH_CONFIG")]
    pub(super) config: Option<PathBuf>,

    /// Socket of the agent. Default: socket of the configuration.
    #[arg(long, global = true, value_name = "PATH", env = "TOWPATH_SOCKET")]
    pub(super) socket: Option<PathBuf>,

    /// Time limit of the agent's answer, such as 500ms, 10s or 2m; a plain number is in seconds.
    /// Default: 3s for commands that read, 35s for commands that change something.
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        env = "TOWPATH_TIMEOUT",
        value_parser = super::duration::parse
    )]
    pub(super) timeout: Option<Duration>,

    /// The command.
    #[command(subcommand)]
    pub(super) command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the agent.
    ///
    /// It applies the node document and the endpoints to the kernel, and repairs drift, until SIGTERM
    /// or SIGINT. Its objects stay in the kernel afterwards: pods keep their network, and the next agent
    /// takes over.
    Run,

    /// Show the node's state: ENIs, kernel, other software, repairs.
    ///
    /// The exit code is 0 if everything is ready, and 4 if something is not.
    Status(Output),

    /// Check that pods can be added.
    ///
    /// The exit code is 0 if they can, also where only addresses are missing.
    Ready,

    /// List the endpoints (pod attachments).
    Endpoints(Output),

    /// List the pools with their addresses: in use, cooling down, free and requested.
    Pools(Output),

    /// List the addresses in use, and those that cool down.
    Addresses(Output),

    /// List the ENIs, each with its readiness and the reason.
    Enis(Output),

    /// Compare the agent's rules, routes, addresses and other kernel objects with the wanted ones.
    Routes {
        /// Show only objects that differ.
        #[arg(long)]
        differing: bool,
        #[command(flatten)]
        output: Output,
    },

    /// Show the masquerade policy: switches, pools, exempt destinations, ENIs.
    #[command(after_help = "\
Example:
  towpath masq explain 10.0.1.20 1.1.1.1:443   Show the path of such a packet, with reasons")]
    Masq {
        /// Another command about masquerade.
        #[command(subcommand)]
        command: Option<MasqCommand>,
        #[command(flatten)]
        output: Output,
    },

    /// Show the datapath's counters.
    Metrics {
        /// Show only drops.
        #[arg(long)]
        drops: bool,
        /// Show counters that are zero as well.
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

    /// Remove all objects of the agent from this node, and nothing else.
    ///
    /// Use it on a node that leaves the cluster or changes its network. The agent must not run.
    /// Endpoints lose their network, so `--yes` is required while there are any. The entry in the
    /// runtime's configuration list goes first. The plugin's binaries stay; `towpath cni uninstall`
    /// removes them.
    Cleanup {
        /// Proceed even if endpoints lose their network.
        #[arg(long)]
        yes: bool,
        /// Folder of the runtime's network configurations.
        #[arg(long, value_name = "FOLDER", default_value = CONF_DIR)]
        conf_dir: PathBuf,
        #[command(flatten)]
        output: Output,
    },

    /// Check, explain and write configurations.
    #[command(subcommand)]
    Config(ConfigCommand),

    /// Write shell completions to standard output.
    #[command(after_help = "\
Example:
  towpath completions bash > /etc/bash_completion.d/towpath")]
    Completions {
        /// Shell.
        shell: Shell,
    },
}

/// A command about masquerade.
#[derive(Debug, Subcommand)]
pub(super) enum MasqCommand {
    /// Show the path of a pod's packet, step by step, from the live maps.
    ///
    /// With both ports (for ICMP: the id as source port) an existing flow is looked up as well.
    #[command(after_help = "\
Examples:
  towpath masq explain 10.0.1.20 1.1.1.1
  towpath masq explain 10.0.1.20:40000 1.1.1.1:443
  towpath masq explain --protocol udp [2001:db8::20]:5353 [2001:db8:1::1]:53 -o json")]
    Explain {
        /// Address of a pod, optionally with a port.
        source: Peer,
        /// Destination address, optionally with a port.
        destination: Peer,
        /// Protocol: tcp, udp, icmp, sctp or a number.
        #[arg(long, value_name = "PROTOCOL", default_value = "tcp")]
        protocol: Protocol,
        #[command(flatten)]
        output: Output,
    },
}

/// A command about an endpoint.
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
        /// Network namespace: a path, or a name under /run/netns.
        #[arg(long, value_name = "PATH|NAME")]
        netns: PathBuf,
        /// Address that a ready ENI owns, at most one of each family. Default: the agent chooses.
        #[arg(long = "address", value_name = "IP")]
        addresses: Vec<IpAddr>,
        #[command(flatten)]
        which: WhichArgs,
        #[command(flatten)]
        output: Output,
    },

    /// Detach a network namespace. An unknown endpoint is no error.
    Del {
        #[command(flatten)]
        owner: OwnerArgs,
        #[command(flatten)]
        output: Output,
    },
}

/// The addresses that the agent chooses from.
#[derive(Debug, Args)]
pub(super) struct WhichArgs {
    /// Pool of the addresses. Default: ipam.default-pool of the configuration.
    #[arg(long, value_name = "NAME", conflicts_with = "addresses")]
    pub(super) pool: Option<String>,
    /// Family of an address. Default: ipam.families of the configuration.
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

/// A command about the CNI plugin.
#[derive(Debug, Subcommand)]
pub(super) enum CniCommand {
    /// Install the plugin and its configuration list for the container runtime.
    ///
    /// The binaries come first. The list, by which the runtime finds them, follows once the agent is
    /// ready. Files that are up to date stay untouched, and so do all foreign files.
    #[command(after_help = "\
Example:
  towpath cni install --wait-ready=120")]
    Install {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        content: ContentArgs,
        /// Seconds to wait for an agent that is not ready.
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
    /// It runs beside the agent in its pod. A list from before the node's last boot is removed first,
    /// so that the runtime reports the network ready only once the agent is. Changes by other programs
    /// are undone within a second, but foreign entries of the list stay. The installation stays
    /// afterwards: pods can be deleted while no agent runs.
    #[command(after_help = "\
Example:
  towpath cni keep --uninstall-at-end")]
    Keep {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        content: ContentArgs,
        /// Remove the plugin at the end, for a node that gets another network.
        #[arg(long)]
        uninstall_at_end: bool,
    },

    /// Remove the configuration list, then the plugin.
    ///
    /// A list with foreign entries stays, without the plugin's entry.
    Uninstall {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        output: Output,
    },
}

/// The files that are installed.
#[derive(Debug, Args)]
pub(super) struct ContentArgs {
    /// Binary of the plugin. Default: `towpath-cni` beside this binary.
    #[arg(long, value_name = "FILE")]
    pub(super) plugin: Option<PathBuf>,
    /// Configuration list to install, which is checked. Default: the plugin, followed by `portmap`
    /// where that is installed.
    #[arg(long, value_name = "FILE")]
    pub(super) conflist: Option<PathBuf>,
}

/// The runtime's folders of plugins and of their configuration.
#[derive(Debug, Args)]
pub(super) struct PlaceArgs {
    /// Folder of the runtime's plugins.
    #[arg(long, value_name = "FOLDER", default_value = "/opt/cni/bin")]
    pub(super) bin_dir: PathBuf,
    /// Folder of the runtime's network configurations.
    #[arg(long, value_name = "FOLDER", default_value = CONF_DIR)]
    pub(super) conf_dir: PathBuf,
}

/// A command about translated flows.
#[derive(Debug, Subcommand)]
pub(super) enum NatCommand {
    /// List translated flows, and flows from outside without translation.
    #[command(after_help = "\
Example:
  towpath nat list --pod 10.0.1.20 --protocol tcp")]
    List {
        /// Show only flows of this inside address.
        #[arg(long, value_name = "IP")]
        pod: Option<IpAddr>,
        /// Show only flows with this remote address.
        #[arg(long, value_name = "IP")]
        remote: Option<IpAddr>,
        /// Show only flows of this protocol: tcp, udp, icmp, icmpv6, sctp or a number.
        #[arg(long, value_name = "NAME|NUMBER")]
        protocol: Option<String>,
        #[command(flatten)]
        output: Output,
    },

    /// Remove flows, active ones included. Their connections break.
    Flush {
        #[command(flatten)]
        which: FlushArgs,
        #[command(flatten)]
        output: Output,
    },

    /// Show statistics of translation: allocations, failures, flows, busy destinations, room.
    Stats(Output),
}

/// The flows to remove.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct FlushArgs {
    /// Remove the flows of this inside address.
    #[arg(long, value_name = "IP")]
    pub(super) pod: Option<IpAddr>,
    /// Remove all flows.
    #[arg(long)]
    pub(super) all: bool,
}

/// The owner of an endpoint.
#[derive(Debug, Args)]
pub(super) struct OwnerArgs {
    /// Container id of the runtime.
    pub(super) container_id: String,
    /// Name of the interface inside the container.
    #[arg(default_value = "eth0")]
    pub(super) interface: String,
}

/// A command about the configuration.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Check a configuration file, and show its faults.
    Check {
        /// File.
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Show every setting with its value and its help.
    Show(Output),
    /// Write a configuration file with every default and its help to standard output.
    #[command(after_help = "\
Example:
  towpath config example > /etc/towpath/config.yaml")]
    Example,
    /// Write the JSON schema of the configuration file to standard output.
    Schema,
    /// Write the reference of all settings in Markdown to standard output.
    Reference,
}

#[cfg(test)]
mod tests;
