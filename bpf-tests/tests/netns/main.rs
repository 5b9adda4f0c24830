//! Namespace tests: the agent on a node in a VPC of network namespaces, with real traffic.
//!
//! Every fabric drops and counts packets that leave by an ENI that does not own their source, and
//! every test ends with none.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod addresses;
mod adversary_hosts;
mod adversary_ipv6;
mod adversary_marks;
mod adversary_numbers;
mod allocation;
mod attach;
mod bench;
mod bypassed_rules;
mod chaos;
mod cleanup;
mod cni_status;
mod damage;
mod demo;
mod device;
mod device_name;
mod documents;
mod endpoints;
mod exclusion;
mod explained;
mod exposition;
mod felix;
mod fixtures;
mod flows;
mod foreign_pids;
mod forwarding;
mod gateways;
mod host_ports;
mod host_source;
mod ingress;
mod ingress_delegated;
mod ingress_ours;
mod ingress_qdisc;
mod internet_mtu;
mod ipv6_only;
mod kills;
mod loopback;
mod manager_networkd;
mod manager_nm;
mod manager_udev;
mod managers;
mod masq;
mod masq_address;
mod masq_agent_file;
mod masq_blind;
mod masq_errors;
mod masq_fragments;
mod masq_host;
mod masq_host_networks;
mod masq_inbound;
mod masq_ipv6_only;
mod masq_metadata;
mod masq_metadata_stack;
mod masq_mtu;
mod masq_mtu_udp;
mod masq_netfilter;
mod masq_offload;
mod masq_plain;
mod masq_policy;
mod masq_pools;
mod masq_portless;
mod masq_races;
mod masq_removal;
mod masq_repair;
mod masq_restart;
mod masq_room;
mod masq_tcp;
mod masq_time_wait;
mod masq_tools;
mod masq_view;
mod mechanisms;
mod mtu;
mod nat_commands;
mod nat_restart;
mod neighbour_floods;
mod neighbours;
mod numbers;
mod one_agent;
mod options;
mod order;
mod orphans;
mod other_cni;
mod path_cost;
mod path_stack;
mod pins;
mod repair;
mod replacement;
mod self_check;
mod self_check_world;
mod service_nat;
mod socket;
mod stale_entries;
mod support;
mod ttl;
mod two_nodes;
mod two_nodes_check;
mod untracked;
mod via_stack;
