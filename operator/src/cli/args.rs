//! The shape of the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use terminal::Output;

/// Towpath's operator: ENIs and addresses for the nodes of a Kubernetes cluster on EC2.
#[derive(Debug, Parser)]
#[command(
    name = "towpath-operator",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "\
Examples:
  towpath-operator check                  Check every right that the operator needs at EC2
  towpath-operator run --dry-run          Plan every step and carry out none
  kubectl -n kube-system exec deploy/towpath-operator -- towpath-operator nodes
                                          List the nodes with their addresses and obstacles
  towpath-operator cleanup --cluster blue --list
                                          Show the ENIs that a deleted cluster left

Exit codes:
  0  done
  1  failed; one line on standard error has the cause
  2  wrong command line
  3  no operator answers
  4  check: a right is missing; cleanup: an ENI is left"
)]
pub(super) struct Cli {
    /// Configuration file. Without one, every setting but cluster-name has its default.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "TOWPATH_OPERATOR_CONFIG"
    )]
    pub(super) config: Option<PathBuf>,

    /// The command.
    #[command(subcommand)]
    pub(super) command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the operator until SIGTERM or SIGINT.
    ///
    /// Of several operators, only the holder of the Lease works. On a signal it completes its open
    /// calls and releases the Lease.
    Run {
        /// Plan every step and carry out none, as the setting dry-run. `nodes` and `why` show the steps.
        #[arg(long)]
        dry_run: bool,
    },

    /// List the nodes with their addresses, ENIs, next step and obstacle.
    Nodes {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        output: Output,
    },

    /// Show one node: its ENIs, the plan, and every reason that holds it up.
    #[command(after_help = "\
Example:
  towpath-operator why ip-10-0-1-20.eu-central-1.compute.internal")]
    Why {
        /// Name of the node.
        node: String,
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        output: Output,
    },

    /// List the subnets with their free addresses, and the blocks that EC2 refused.
    Subnets {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        output: Output,
    },

    /// List the pools with the demand of nodes, their ENIs and addresses, blocks of plain pools, and
    /// faults.
    ///
    /// A pool that is gone is listed while nodes have blocks of it.
    Pools {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        output: Output,
    },

    /// List the budgets of EC2's calls, and the calls that wait.
    Budget {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        output: Output,
    },

    /// List detached ENIs of the cluster that cannot be deleted.
    Leaks {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        output: Output,
    },

    /// Show the number of pods that an instance type has addresses for, for the kubelet's maxPods.
    ///
    /// With eni.prefixes of the configuration, each block is a prefix. MAX PODS has two pods more than
    /// ADDRESSES, as AWS's own numbers: pods of the host's network need none. Kubernetes advises 110
    /// pods for small instances.
    #[command(after_help = "\
Example:
  towpath-operator max-pods --instance-type m5.large --instance-type c6i.xlarge")]
    MaxPods {
        /// Instance type; several are allowed.
        #[arg(long, value_name = "TYPE", required = true)]
        instance_type: Vec<String>,
        /// First index whose ENI gives addresses, as first-interface-index of the nodes.
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        first_interface_index: u16,
        /// Pods get the own addresses of ENIs too, as use-primary-address of the nodes.
        #[arg(long)]
        use_primary_address: bool,
        #[command(flatten)]
        output: Output,
    },

    /// Check every right that the operator needs at EC2, without changing anything.
    ///
    /// EC2 judges changes by a dry run, on a subnet and on an ENI of the cluster that exist. It has no
    /// dry run of the calls that assign addresses, so these are shown as untried.
    Check {
        #[command(flatten)]
        output: Output,
    },

    /// Delete the ENIs that a cluster left, without an API server.
    ///
    /// Only detached ENIs with the tag ipam.towpath.dev/cluster=NAME are deleted. Run it after the
    /// cluster and its instances are gone: a running operator has detached ENIs too, for a moment.
    Cleanup {
        /// Name of the cluster, as in its setting cluster-name.
        #[arg(long, value_name = "NAME")]
        cluster: String,
        /// Only list the ENIs.
        #[arg(long)]
        list: bool,
        #[command(flatten)]
        output: Output,
    },

    /// Show, check and explain the settings.
    #[command(subcommand)]
    Config(ConfigCommand),

    /// Write shell completions to standard output.
    #[command(after_help = "\
Example:
  towpath-operator completions bash > /etc/bash_completion.d/towpath-operator")]
    Completions {
        /// Shell.
        shell: Shell,
    },
}

/// A command about the settings.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Show every setting with its value, its default and its help.
    Show(Output),
    /// Check the configuration file.
    Check,
    /// Write a configuration file with every setting and its help.
    Example,
    /// Write the JSON schema of the configuration file.
    Schema,
}

/// The address of a running operator.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct At {
    /// Address of the operator. Default: http.address of the configuration.
    #[arg(long, value_name = "ADDRESS", env = "TOWPATH_OPERATOR_ADDRESS")]
    pub(super) address: Option<SocketAddr>,
}
