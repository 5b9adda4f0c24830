//! Netfilter rules that name pods or the metadata service, and that packets on the fast path
//! bypass: a guard of metadata, a policy, a clamp of the MSS. All bypassed rules are reported. So
//! are chains that drop packets of the stack, unless a rule accepts them.
//!
//! A change of rules changes nftables' generation. The rules are read by a separate thread: a table
//! may have tens of thousands of rules, and the agent's task answers adds.

mod flowtable;
mod legacy;
mod matches;
mod nft;
mod policy;
mod rule;
mod xtables;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use self::legacy::Tables;
use self::nft::Rule;
use self::policy::DropPolicy;
use self::rule::Name;
use crate::constants::DEVICE_GROUP;
use crate::netfilter::periodic::{Periodic, lock};
use crate::netfilter::service_nat::NF_TABLES_MODULE;
use crate::netfilter::untracked;

/// Interval of checks for changed rules.
const LOOK: Duration = Duration::from_secs(2);
/// Rest after a check, in multiples of its duration: kube-proxy may change rules each second.
const REST: u32 = 50;
/// Maximum number of rules that are named.
const NAMED: usize = 32;
/// The instance metadata service, and the shortest prefix that names it.
const METADATA: [(&str, u8); 2] = [("169.254.169.254", 16), ("fd00:ec2::254", 32)];

/// Whom rules may name.
#[derive(Clone, Debug, Default)]
pub struct Subjects {
    /// Beginnings of the names of pods' devices.
    pub prefixes: Vec<String>,
    /// The names of pods' devices.
    pub devices: BTreeSet<String>,
    /// Their indexes.
    pub indexes: BTreeSet<u32>,
    /// The names of the ENIs' devices.
    pub enis: BTreeSet<String>,
    /// Pods' addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// The blocks of the node, which pods' addresses are of.
    pub blocks: Vec<IpNet>,
}

/// The rules and policies that were read, for any caller.
#[derive(Clone, Default)]
pub struct Bypassed(Arc<Mutex<Found>>);

/// The newest rules and policies.
#[derive(Default)]
struct Found {
    rules: Vec<Rule>,
    policies: Vec<DropPolicy>,
}

impl Bypassed {
    /// Reads the rules of the calling thread's network namespace from now on.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(&self) -> anyhow::Result<Periodic> {
        let found = self.0.clone();
        let mut reader = Reader::default();
        let mut failed: Option<String> = None;
        Periodic::start("netfilter-rules", move || {
            let began = Instant::now();
            let error = reader.look(&found).err();
            let error = error.map(|error| format!("{error:#}"));
            if let Some(error) = &error
                && failed.as_ref() != Some(error)
            {
                tracing::warn!("cannot read the rules that pods' packets bypass: {error}");
            }
            failed = error;
            LOOK.max(began.elapsed() * REST)
        })
    }

    /// The rules that name one of these, each in a line with the remedy.
    #[must_use]
    pub fn named(&self, subjects: &Subjects) -> Vec<String> {
        let found = lock(&self.0);
        let mut lines: Vec<String> = found
            .rules
            .iter()
            .filter_map(|rule| line(rule, subjects))
            .collect();
        let more = lines.len().saturating_sub(NAMED);
        lines.truncate(NAMED);
        if more > 0 {
            lines.push(format!("{more} more rules name pods or their devices"));
        }
        lines
    }

    /// The chains that drop what the host forwards unless a rule accepts it: those that have lately
    /// dropped packets, and the others.
    #[must_use]
    pub fn drop_policies(&self) -> (Vec<String>, Vec<String>) {
        let now = Instant::now();
        let found = lock(&self.0);
        let (dropping, others): (Vec<_>, Vec<_>) = found
            .policies
            .iter()
            .partition(|policy| policy.is_dropping(now));
        let lines =
            |policies: Vec<&DropPolicy>| policies.into_iter().map(DropPolicy::line).collect();
        (lines(dropping), lines(others))
    }
}

/// The reader's state between two checks.
#[derive(Default)]
struct Reader {
    /// True if the kernel said that it has no nftables.
    lacks_nftables: bool,
    /// The generation of nftables' rules that was read.
    generation: Option<u32>,
    /// Its rules.
    rules: Vec<Rule>,
    /// Its policies of forwarded packets to drop.
    policies: Vec<DropPolicy>,
    /// The tables of the older iptables.
    tables: Tables,
}

impl Reader {
    /// Reads rules that have changed, and what policies have dropped, which changes no rule.
    fn look(&mut self, found: &Mutex<Found>) -> anyhow::Result<()> {
        // Each question would have a kernel without nftables start modprobe again.
        let may_ask = !self.lacks_nftables || Path::new(NF_TABLES_MODULE).exists();
        let opened = if may_ask { untracked::open()? } else { None };
        self.lacks_nftables = opened.is_none();
        if let Some((mut socket, generation)) = opened {
            let is_new = self.generation != Some(generation);
            if is_new || !self.policies.is_empty() {
                self.policies = nft::drop_policies(&mut socket)?;
            }
            if is_new {
                self.rules = nft::read(&mut socket)?;
                self.generation = Some(generation);
            }
        }
        self.tables.look()?;
        let now = Instant::now();
        let mut found = lock(found);
        let policies = self.policies.iter().chain(self.tables.policies());
        let policies = policies.map(|policy| policy.clone().after(&found.policies, now));
        found.policies = policies.collect();
        let rules = self.rules.iter().chain(self.tables.rules());
        found.rules = rules.cloned().collect();
        Ok(())
    }
}

/// A rule in words, if it names one of these.
fn line(rule: &Rule, subjects: &Subjects) -> Option<String> {
    let found = rule
        .names
        .iter()
        .filter_map(|name| subject(name, subjects))
        .min()?;
    let (what, remedy) = found.words();
    let place = &rule.place;
    Some(format!(
        "{place} {what}: packets of the direct path bypass it; {remedy}"
    ))
}

/// The subject of a rule. The first one counts for its remedy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Metadata,
    Mss,
    Pod(String),
    Offload(String),
    Set(String),
}

impl Subject {
    fn words(&self) -> (String, &'static str) {
        const STACK: &str = "set datapath.path to stack";
        match self {
            Self::Metadata => (
                "names the instance metadata service".to_owned(),
                "set masquerade.metadata to stack (the rule decides) or to block",
            ),
            Self::Mss => (
                "clamps the MSS".to_owned(),
                "set endpoint.internet-mtu to the MTU of the egress path",
            ),
            Self::Pod(what) => (format!("names {what}"), STACK),
            Self::Offload(device) => (
                format!("offloads what {device} receives"),
                "leave pods' devices and ENIs out of it, or set datapath.path to stack",
            ),
            Self::Set(set) => (
                format!("looks in the set {set}, which is not read and may name pods"),
                STACK,
            ),
        }
    }
}

impl Subjects {
    /// True if a name, or the beginning of one, is of pods' devices.
    fn has_pods_device(&self, name: &str, is_prefix: bool) -> bool {
        let begins = |prefix: &String| prefix.starts_with(name) || name.starts_with(prefix);
        if is_prefix {
            !name.is_empty() && self.prefixes.iter().any(begins)
        } else {
            self.devices.contains(name)
        }
    }
}

fn subject(name: &Name, subjects: &Subjects) -> Option<Subject> {
    match name {
        Name::Mss => Some(Subject::Mss),
        Name::Set(set) => Some(Subject::Set(set.clone())),
        Name::Device { name, is_prefix } => {
            let star = if *is_prefix { "*" } else { "" };
            let is_pods = subjects.has_pods_device(name, *is_prefix);
            is_pods.then(|| Subject::Pod(format!("the pod device {name}{star}")))
        }
        Name::Offload { name, is_prefix } => {
            let star = if *is_prefix { "*" } else { "" };
            let is_eni = |eni: &String| eni == name || *is_prefix && eni.starts_with(name);
            if subjects.enis.iter().any(is_eni) {
                return Some(Subject::Offload(format!("the ENI {name}{star}")));
            }
            let is_pods = subjects.has_pods_device(name, *is_prefix);
            is_pods.then(|| Subject::Offload(format!("the pod device {name}{star}")))
        }
        Name::Index(index) => {
            let is_pods = subjects.indexes.contains(index);
            is_pods.then(|| Subject::Pod(format!("the pod device with index {index}")))
        }
        Name::Group(group) => {
            let is_pods = *group == DEVICE_GROUP;
            is_pods.then(|| Subject::Pod(format!("the pods' devices by their group {group:#x}")))
        }
        Name::Network(net) => {
            let is_metadata = METADATA.iter().any(|(text, shortest)| {
                let address: Option<IpAddr> = text.parse().ok();
                net.prefix_len() >= *shortest && address.is_some_and(|a| net.contains(&a))
            });
            if is_metadata {
                return Some(Subject::Metadata);
            }
            let is_single = net.prefix_len() == net.max_prefix_len();
            let is_pods = if is_single {
                subjects.addresses.contains(&net.addr())
            } else {
                subjects.blocks.iter().any(|block| block.contains(net))
            };
            is_pods.then(|| Subject::Pod(format!("the pods' address {net}")))
        }
    }
}

#[cfg(test)]
mod tests;
